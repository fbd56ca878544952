"""``semlock.KernelLock``: a lock on a file that stays, by the kernel's own lock (flock)."""

from __future__ import annotations

import os

from semlock._core import capi
from semlock._core.options import KernelOptions, all_but
from semlock._core.paths import absolute
from semlock._locks.lock import TextLock
from semlock._stores.file import InFiles
from semlock._stores.kernel import InKernel, handle_of, path_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self, Unpack

    from semlock._core.status import StrPath


def _absolute(path: StrPath) -> str:
    """Let a directory have any of its names: with a slash at the end, ``.``, ``..`` or ``/``."""
    text = os.fsdecode(os.fspath(path)) if isinstance(path, (str, bytes, os.PathLike)) else ""
    stripped = text.rstrip("/" if os.sep == "/" else "/\\")
    is_by_dots = os.path.basename(stripped) in (os.curdir, os.pardir)
    if (stripped == text and not is_by_dots) or "\0" in text or not os.path.isdir(text):
        return absolute(path)
    if is_by_dots or not stripped or stripped.endswith(":"):
        return os.path.realpath(text)
    return absolute(stripped)


_REFUSED = all_but(
    KernelOptions, "it has no record, and the kernel ends it with its holder. Lock has one"
)


class KernelLock(InKernel, TextLock):
    """A lock on a file that stays: the kernel's lock (``flock``) on it is the lock.

    For paths that other programs lock like that: flock(1), filelock, portalocker.

    :path:    a file, which is made empty if there is none, or a directory.  What is in it is
                neither read nor changed, and it is never removed
    :shared:  whether it is held together with other readers; see ``shared()``
    :tag:     what it is waited for, for people who look at the queue
    :mode:    the permissions of a file that is made, less the umask; ``exact_mode`` is about it too
    :fair:    whether it is taken only in turn among the waiters of semlock

    The other options are those of ``Lock``, but ``policy``, ``durability``, ``heartbeat`` and
    ``on_lost``: there is no record, and the kernel ends the lock with its holder.

    Use it with ``with``, as a decorator, or by its methods, as ``Lock``.  It ends with its release
    or with its process.  A path that other programs lock by creating a file needs ``Lock``.
    """

    __slots__ = ("_options",)
    _refused_options = _REFUSED

    _absolute = staticmethod(_absolute)

    def __init__(
        self, path: StrPath, *, shared: bool = False, **options: Unpack[KernelOptions]
    ) -> None:
        self._options: Any = options
        InFiles.__init__(self, path, **options)
        # The root has no directory beside it for a queue.
        self._begin(
            shared=shared, fair=bool(options.get("fair")), fd=None, queued=self.path != os.sep
        )

    @classmethod
    def from_fd(
        cls, fd: object, *, shared: bool = False, **options: Unpack[KernelOptions]
    ) -> Self:
        """Lock a file that the caller has open, by that descriptor, which is never closed.

        ``fd`` is a descriptor or has ``fileno()``; the file must stay open as long as the object is
        used.  All copies of a descriptor are one to the kernel: a process that inherits one holds
        the lock too, and a release ends it for all of them.
        """
        number = handle_of(fd)
        path, leads_there = path_of(number)
        lock = cls(path, shared=shared, **options)
        lock._begin(
            shared=shared, fair=bool(options.get("fair")), fd=number, queued=leads_there
        )
        return lock

    def shared(self) -> Self:
        """Give a lock of the same file that is held together with other readers.

        ``with lock.shared():`` reads; each call gives an object of its own.
        """
        cls = type(self)
        if self._lent is not None:
            return cls.from_fd(self._lent, shared=True, **self._options)
        return cls(self.path, shared=True, **self._options)

    @property
    def is_shared(self) -> bool:
        """Whether this object holds together with other readers."""
        return bool(self._native.kernel == capi.SHARED)
