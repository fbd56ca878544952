"""``FileLock``: the kernel's lock on a file that stays, which excludes filelock's ``FileLock``."""

from __future__ import annotations

import errno
import os
import sys
from time import monotonic

from semlock._filelock.held import HeldBySemlock
from semlock._filelock.options import UNSET_MODE

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._filelock.context import Context

# What a filesystem without flock says.
_NO_FLOCK = (errno.ENOSYS,)


class UnixFileLock(HeldBySemlock):
    """A lock that the kernel keeps on a file, which stays when the lock is released.

    It excludes filelock's ``FileLock``, flock(1) and ``semlock.KernelLock``.  The parameters are
    those of ``BaseFileLock``.
    """

    def _new_inner(self, context: Context, path: str) -> Any:
        from semlock._locks.kernel import KernelLock  # noqa: PLC0415 - when a lock is first taken

        refuse_directory(path)
        return KernelLock(path, **options_of(context))

    def _obtain(
        self,
        context: Context,
        limit: float,
        blocking: bool,
        interval: float,
        cancel_check: Callable[[], bool] | None,
    ) -> None:
        began = monotonic()
        try:
            super()._obtain(context, limit, blocking, interval, cancel_check)
        except OSError as error:
            if not self._may_become_soft(error):
                raise
            self._become_soft(context)
            left = limit if limit < 0 else max(0.0, limit - (monotonic() - began))
            self._obtain(context, left, blocking, interval, cancel_check)

    def _may_become_soft(self, error: OSError) -> bool:
        return (
            error.errno in _NO_FLOCK
            and self._fallback_to_soft
            and not self._preserve_lock_file
            and self._on_acquired is None
        )

    def _become_soft(self, context: Context, kind: Any = None) -> None:
        from warnings import warn  # noqa: PLC0415 - for filesystems without flock

        from semlock._filelock.soft import SoftFileLock  # noqa: PLC0415

        warn(
            "flock not supported on this filesystem, falling back to SoftFileLock", stacklevel=6
        )
        context.inner = None
        self.__class__ = kind or SoftFileLock  # type: ignore[assignment]


def refuse_directory(path: str) -> None:
    """Refuse a directory, which semlock could lock and filelock can't."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def options_of(context: Context) -> dict[str, Any]:
    """Give the options of semlock's lock."""
    exact = context.mode != UNSET_MODE
    return {"mode": context.mode if exact else 0o666, "exact_mode": exact}


WindowsFileLock = UnixFileLock
if sys.platform == "win32":

    class WindowsFileLock(UnixFileLock):  # type: ignore[no-redef]
        """The same on Windows, by ``LockFileEx``."""

    FileLock: type[UnixFileLock] = WindowsFileLock
else:
    FileLock = UnixFileLock
