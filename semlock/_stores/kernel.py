"""The store of kernel locks: the file stays, and the kernel's lock on it is the lock.

It is the file store with another core (``csrc/posix/kernel.c``): the same objects, waits, queues
and outcomes.  What differs is that nothing is ever removed, and that the kernel ends a dead
holder's lock by itself, so no holder is judged.
"""

from __future__ import annotations

import errno
import os
import sys

from semlock._core import (
    FAIR,
    HELD,
    NO_TURNS,
    TAKE_TURNS,
    TURN,
    capi,
    explain,
    inside,
    registry,
)
from semlock._core.errors import NotHeldError
from semlock._core.identity import this_process
from semlock._core.kernel_locks import KernelHolder, kernel_status
from semlock._stores.file import InFiles

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType

    from semlock._core.kernel_locks import KernelStatus
    from semlock._core.status import LockStatus
    from semlock._stores.store import Attempt, Instance
    from semlock._waiting.steps import Steps

_OPEN_FILE = "/proc/self/fd" if sys.platform.startswith("linux") else "/dev/fd"
_F_GETPATH = 50  # macOS
_LONGEST_PATH = 1024


def handle_of(fd: object) -> int:
    """Give the number by which the core locks a descriptor of the caller."""
    number = fd if isinstance(fd, int) else getattr(fd, "fileno", lambda: None)()
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"a descriptor is a number, or has fileno(), not {fd!r:.60}")
    if number < 0:
        raise ValueError(f"a descriptor is 0 or more, not {number!r:.60}")
    try:
        os.fstat(number)  # OSError if it is not open
    except OverflowError:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - there is no such module elsewhere

        return msvcrt.get_osfhandle(number)
    return number


def path_of(fd: int) -> tuple[str, bool]:
    """Find the path of an open file, and say whether it leads there."""
    try:
        if sys.platform == "darwin":
            import fcntl  # noqa: PLC0415 - not on Windows

            raw = fcntl.fcntl(fd, _F_GETPATH, bytes(_LONGEST_PATH))
            path = os.fsdecode(raw.partition(b"\0")[0])
        else:
            path = os.readlink(f"{_OPEN_FILE}/{fd}")
        if os.path.isabs(path) and os.path.samestat(os.lstat(path), os.fstat(fd)):
            return path, True
    except OSError:
        pass
    return f"{_OPEN_FILE}/{fd}", False


class InKernel(InFiles):
    """Makes of ``BaseLock`` a kernel lock; it comes before ``TextLock`` in the bases."""

    __slots__ = ()

    def _begin(self, *, shared: bool, fair: bool, fd: int | None, queued: bool) -> None:
        """Tell the core that this lock is the kernel's."""
        native = self._native
        native.kernel = capi.SHARED if shared else capi.EXCLUSIVE
        if fd is not None:
            native.lent = fd + 1
        # Readers always make way for a writer in the queue, or those that come would keep it out.
        turns = FAIR if fair or shared else TAKE_TURNS
        native.turns = turns if queued else NO_TURNS

    def _lend(self, fd: int) -> None:
        self._native.lent = handle_of(fd) + 1

    @property
    def _lent(self) -> int | None:
        lent = self._native.lent
        return lent - 1 if lent else None

    def fileno(self) -> int:
        """Give the descriptor by which the lock is held; it ends with the release.

        Copies of it hold the lock too: a program that inherits one, for example.
        """
        if not self.held:
            raise NotHeldError(
                f"{self.path} is not held here, so there is no descriptor of it", path=self.path
            )
        if sys.platform == "win32":
            raise OSError(
                errno.ENOTSUP, "a kernel lock has no descriptor on Windows", self.path
            )
        return int(self._native.file.handle)

    # ------------------------------------------------------------------ reading twice

    def _reads_already(self) -> bool:
        """Tell whether the caller reads already, by another object.

        A writer that waits for that reader waits for the caller, who must not wait behind it.
        """
        if self._native.kernel != capi.SHARED:
            return False
        holder = self._holder_here()
        return (
            holder is not None
            and inside.native(holder).kernel == capi.SHARED
            and inside.is_mine(holder)
        )

    def _try(self) -> int:
        outcome = super()._try()
        if outcome in (HELD, TURN) and self._reads_already():
            outcome = self._try_again()
        return outcome

    def _waiting(
        self,
        outcome: int | None,
        timeout: float | None,
        frame: FrameType,
        waiter: Attempt | None = None,
    ) -> Steps[None]:
        if outcome in (HELD, TURN) and self._reads_already():
            outcome = self._try_again()
        return super()._waiting(outcome, timeout, frame, waiter)

    # ------------------------------------------------------------------ what stores do

    def status(self) -> KernelStatus:
        """Look who has the kernel's lock, also if another program took it."""
        found = kernel_status(self.path, self._lent)
        if found.state == "held" and (
            found.info is None or found.info.pid == this_process().pid
        ):
            own = self._holder_here()  # which is known also where the system names no holder
            info = None if own is None else own.info
            if own is not None and info is not None:
                found.info = info
                shared = inside.native(own).kernel == capi.SHARED
                found.holders = found.holders or (KernelHolder(info.pid, shared, "FLOCK"),)
        return found

    def _rewrite(self) -> int:
        return self._confirm()  # there is no record

    def _clear(self, found: LockStatus, *, robs: bool) -> bool | None:
        del found, robs
        return None

    def _mend(self, outcome: int) -> int:
        if outcome in (-errno.ELOOP, -errno.ENOLCK, -errno.EBADF):
            raise explain.kernel_error(self.path, outcome)
        return super()._mend(outcome)

    def _holder_of(self, seen: Instance) -> InFiles | None:
        return _holder_at(*seen.key[:2])

    def _holder_here(self) -> InFiles | None:
        try:
            if sys.platform == "win32":
                look = capi.look(self._encoded)
                return None if look is None else _holder_at(*look.identity)
            found = os.lstat(self._encoded) if self._lent is None else os.fstat(self._lent)
        except OSError:
            return None
        return _holder_at(found.st_dev, found.st_ino)


def _holder_at(dev: int, ino: int) -> InFiles | None:
    """Find the object of this process that holds a file, and the caller's own if readers do."""
    first: InFiles | None = None
    for lock in registry.all_locks() if capi.may_hold(ino) else ():
        native = inside.native(lock)
        if native.file.ino == ino and native.file.dev == dev and capi.holds(native):
            if inside.is_mine(lock):
                return lock
            first = first or lock
    return first
