"""``FileLock``: the kernel's lock on a file that stays, which excludes filelock's ``FileLock``."""

from __future__ import annotations

import errno
import os
import sys
from time import monotonic

from semlock._filelock.held import HeldBySemlock
from semlock._filelock.making import UNSET_MODE

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._filelock.making import Wait
    from semlock._filelock.said import Context

# What a filesystem without flock says.
_NO_FLOCK = (errno.ENOSYS,)


class NativeFileLock(HeldBySemlock):
    """A lock that the kernel keeps on a file, which stays when the lock is released.

    It excludes filelock's ``FileLock``, flock(1) and ``semlock.KernelLock``.  The parameters are
    those of ``BaseFileLock``.
    """

    _is_of_this_system = True
    _on_acquired_supported = sys.platform != "win32"

    def _new_inner(self, context: Context, path: str) -> Any:
        from semlock._locks.kernel import KernelLock  # noqa: PLC0415 - when a lock is first taken

        self._refuse_to_lock(path)
        return KernelLock(path, **options_of(context))

    def _refuse_to_lock(self, path: str) -> None:
        """Refuse the class of another system, and a directory, which filelock can't lock."""
        if not self._is_of_this_system:
            raise NotImplementedError(
                f"{type(self).__name__} is the lock of another system: FileLock is that of this one"
            )
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def _obtain(self, context: Context, wait: Wait) -> None:
        began = monotonic()
        try:
            super()._obtain(context, wait)
        except OSError as error:
            self._become_soft(context, wait, error, began)
            self._obtain(context, wait)

    def _become_soft(
        self, context: Context, wait: Wait, error: OSError, began: float, kind: Any = None
    ) -> None:
        """Go on as a soft lock, if the filesystem has no flock; else raise the error again."""
        if (
            error.errno not in _NO_FLOCK
            or not self._fallback_to_soft
            or self._preserve_lock_file
            or self._on_acquired is not None
        ):
            raise error
        from warnings import warn  # noqa: PLC0415 - for filesystems without flock

        from semlock._filelock.soft import SoftFileLock  # noqa: PLC0415

        warn(
            "flock not supported on this filesystem, falling back to SoftFileLock", stacklevel=6
        )
        if wait.limit >= 0:
            wait.limit = max(0.0, wait.limit - (monotonic() - began))
        context.inner = None
        self.__class__ = kind or SoftFileLock  # type: ignore[assignment]


def options_of(context: Context) -> dict[str, Any]:
    """Give the options of semlock's lock."""
    exact = context.mode != UNSET_MODE
    return {"mode": context.mode if exact else 0o666, "exact_mode": exact}


class UnixFileLock(NativeFileLock):
    """The kernel's lock on Linux, macOS and the BSDs: ``flock``."""

    _is_of_this_system = sys.platform != "win32"


class WindowsFileLock(NativeFileLock):
    """The kernel's lock on Windows: ``LockFileEx``."""

    _is_of_this_system = sys.platform == "win32"


if sys.platform == "win32":
    FileLock = WindowsFileLock
else:
    FileLock = UnixFileLock
