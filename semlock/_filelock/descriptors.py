"""The kernel's lock on a descriptor that the caller has."""

from __future__ import annotations

import errno
import os
import sys
from _thread import TIMEOUT_MAX
from time import sleep

from semlock._filelock.making import seconds

if sys.platform == "win32":
    import msvcrt

    def _lock_once(fd: int) -> bool:
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        finally:
            os.lseek(fd, at, os.SEEK_SET)
        return True

    def unlock_descriptor(fd: int) -> None:
        """Release the kernel's lock on a descriptor, which stays open."""
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        finally:
            os.lseek(fd, at, os.SEEK_SET)

else:
    import fcntl

    def _lock_once(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK):
                return False
            raise
        return True

    def unlock_descriptor(fd: int) -> None:
        """Release the kernel's lock on a descriptor, which stays open."""
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock_descriptor(fd: int, *, blocking: bool = True, poll_interval: float = 0.05) -> bool:
    """Lock a descriptor as ``FileLock`` locks its file; ``False`` if another holder has it.

    The descriptor stays the caller's.  While it is blocking it tries every ``poll_interval``
    seconds; ``semlock.KernelLock.from_fd`` waits by events.
    """
    if not blocking:
        return _lock_once(fd)
    if not 0 < (pause := seconds("poll_interval", poll_interval)) <= TIMEOUT_MAX:
        raise ValueError(
            f"poll_interval must be greater than 0 and at most {TIMEOUT_MAX}, got {pause}"
        )
    while not _lock_once(fd):
        sleep(pause)
    return True
