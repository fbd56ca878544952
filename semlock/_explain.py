"""The words of a lock's errors: what happened at which path, who holds it, and the way out."""

from __future__ import annotations

import errno
import os
import sys

from semlock import _native
from semlock._errors import (
    LockDeadlockError,
    LockLostError,
    LockPathError,
    LockTimeoutError,
    NotHeldError,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import CodeType, FrameType

    from semlock._engine import BaseLock
    from semlock._status import LockStatus

_AT_ONCE = 0.05


def where(place: tuple[CodeType, int] | None) -> str:
    """Say where a place in the code is, which was kept in the cheapest form."""
    if place is None:
        return "an unknown place"
    code, instruction = place
    line = code.co_firstlineno
    if hasattr(code, "co_lines"):
        for start, end, number in code.co_lines():
            if start <= instruction < end and number is not None:
                line = number
    return f"{code.co_filename}:{line}"


def _status(lock: BaseLock) -> LockStatus | None:
    try:
        return lock.status()
    except OSError:
        return None  # an explanation must not fail for want of details


def os_error(path: str, code: int) -> OSError:
    """Say why the system refused to create the lock file."""
    if code in (-errno.ENOENT, -errno.ENOTDIR, -3):  # -3: Windows' ERROR_PATH_NOT_FOUND
        parent = os.path.dirname(path)
        return LockPathError(
            f"{path} can't be created: {parent} is no directory. Create it first",
            path=path,
            code=-code,
        )
    return _native.os_error(code, path)


def timeout_error(lock: BaseLock, waited: float) -> LockTimeoutError:
    """Say who held the lock for all of the time that was given."""
    found = _status(lock)
    holder = found.holder if found is not None else "somebody"
    after = f"after {waited:.1f} s" if waited >= _AT_ONCE else "at once"
    return LockTimeoutError(
        f"{lock.path} could not be acquired {after}: it is held by {holder}. Wait longer, or "
        "if the holder will never let go, remove it with semlock.remove(path, force=True)",
        path=lock.path,
        status=found,
    )


def deadlock_error(holder: BaseLock, frame: FrameType) -> LockDeadlockError:
    """Say where the thread took the lock that it would wait for."""
    return LockDeadlockError(
        f"{holder.path} is held by this very thread, which would wait for itself for ever: it "
        f"acquired the lock at {where(holder._place)} and would wait for it at "
        f"{where((frame.f_code, frame.f_lasti))}. Release it first, or use one lock object with "
        "reentrant=True",
        path=holder.path,
    )


def lost_error(lock: BaseLock) -> LockLostError:
    """Say who has the lock that was held here."""
    found = _status(lock)
    if found is None or found.state == "free":
        now = "nothing is there now"
    else:
        now = f"it is held by {found.holder} now"
    return LockLostError(
        f"{lock.path} was held here and has been removed by somebody else; {now}. What was done "
        "under the lock may have met what others did",
        path=lock.path,
        status=found,
    )


def not_held_error(lock: BaseLock) -> NotHeldError:
    """Say why there is nothing to let go of."""
    if lock._forked:
        why = "it was acquired before this process was forked off, and is its parent's"
    elif lock._native.held:
        why = "another thread holds it through this object"
    else:
        why = "this object has not acquired it"
    return NotHeldError(f"{lock.path} is not held here: {why}", path=lock.path)


def guarded_error(path: str, intent: str, status: LockStatus | None = None) -> LockTimeoutError:
    """Say that somebody sits on the guard, and how to find them."""
    if sys.platform == "win32":
        how, finders = "or lets nobody delete it", "Resource Monitor, handle.exe"
    else:
        how, finders = "with flock(2)", "fuser, lsof"
    return LockTimeoutError(
        f"{path} can't be {intent} now: somebody keeps its file locked {how}, perhaps a "
        f"stopped process. See who has it open ({finders}), and try again",
        path=path,
        status=status,
    )
