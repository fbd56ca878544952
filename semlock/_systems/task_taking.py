"""Taking a task lock from its holder: when its time is over, or for a reason that is named."""

from __future__ import annotations

from time import monotonic

from semlock._core import explain, registry
from semlock._core.errors import LockLostError
from semlock._core.status import remove_exactly
from semlock._core.sticky import may_make_locks_beside
from semlock._locks.base import ENDLESS
from semlock._locks.lock import FileLock
from semlock._systems.task_reclaim import (
    BY_POLICY,
    HOLDER_DEAD,
    LOCK_EXPIRED,
    denied_error,
    holder_of,
    permitted,
    taken_from,
)
from semlock._systems.task_records import TaskInfo
from semlock._waiting.notice import notice_of
from semlock._waiting.steps import Pause
from semlock._waiting.waiter import PauseWhileHeld, Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType

    from semlock._core.status import LockStatus
    from semlock._systems.task_lock import TaskLock
    from semlock._waiting.steps import Steps

_TRIES = 100
_SHORTEST_PAUSE = 0.001
_LONGEST_PAUSE = 3600.0  # a wait may be longer than any timer can be told


def begin_anew(lock: TaskLock, timeout: float | None) -> Steps[bool]:
    """Win again what this thread holds by this very object, when its time is over.

    It waits for that if it comes within the timeout.  ``False`` if it doesn't, or if
    another was quicker: then it is taken, or waited for, like any lock.
    """
    info = lock.info
    if info is None or lock._native.reentrant or lock._heartbeat is not None:
        return False
    end = monotonic() + (timeout or 0.0)
    left = info.ttl - info.seconds_held(lock._clock())
    if not info.expired(lock._clock()) and (timeout is None or not left <= timeout < ENDLESS):
        return False
    while not info.expired(lock._clock()):
        rest = end - monotonic()
        if rest <= 0:
            return False
        left = info.ttl - info.seconds_held(lock._clock())
        pause = min(rest, max(left, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        if (yield PauseWhileHeld(pause, lock._native)):
            break  # it was taken from us, and let go
        info = lock.info or info  # another thread may have refreshed it
    try:
        FileLock.release(lock)
    except LockLostError:
        return False
    return _win(lock, info, LOCK_EXPIRED)


def take_over(
    lock: TaskLock, allowed: frozenset[str], timeout: float | None, frame: FrameType
) -> Steps[None]:
    """Take the lock as soon as there is a reason; ``ReclaimDeniedError`` when time is over."""
    if lock._depth():
        raise explain.deadlock_error(lock, frame)
    waiter = None
    if timeout != 0:
        waiter = Waiter(timeout, lock._retry, notice=notice_of(lock))
    meant: list[tuple[object, ...]] = []
    while True:
        found = _try_to_take(lock, allowed, meant)
        if found is None:
            return
        if waiter is None:
            break
        _refuse_to_wait_for_oneself(lock, found, waiter, frame)
        pause = waiter.next_pause()
        if pause is None:
            break
        yield Pause(pause)
    denied = denied_error(found, lock.path, lock.owner, lock._clock())
    lock._audit.denied(found, denied.decision.reason)
    raise denied


def _refuse_to_wait_for_oneself(
    lock: TaskLock, found: LockStatus, waiter: Waiter, frame: FrameType
) -> None:
    look = found.instance
    own = None if look is None else registry.held_here(*look.identity)
    if own is not None and own._is_mine() and not lock._ends_in_time(own, waiter.left):
        from semlock._locks import mine  # noqa: PLC0415 - only for those who meet themselves

        mine.refuse(own, frame)


def _try_to_take(
    lock: TaskLock, allowed: frozenset[str], meant: list[tuple[object, ...]]
) -> LockStatus | None:
    """Take it if there is a reason: ``None`` then, else what was found last."""
    for _ in range(_TRIES):
        found = lock.status()
        reason = None
        if found.state != "free":
            # A name is given for the holder that is there, and not for the next one.
            holder = holder_of(found)
            if not meant:
                meant.append(holder)
            named = allowed if holder == meant[0] and not lock._native.held else ()
            reason = permitted(found, lock.owner, named, lock._clock())
            if reason is None:
                break
            robs = reason not in (HOLDER_DEAD, BY_POLICY)
            try:
                if not remove_exactly(found, lock._encoded, robs=robs):
                    continue
            except PermissionError:
                if not may_make_locks_beside(lock.path):
                    raise
                break  # what this user may not remove counts as held
        if _win(lock, found.info, reason):
            return None
    return found


def _win(lock: TaskLock, taken: object, reason: str | None) -> bool:
    """Try to take what is free now; the record says from whom it was taken, and why."""
    if reason is not None and isinstance(taken, TaskInfo):
        lock._reclaimed = taken_from(taken, reason)
    won = False
    try:
        won = FileLock.try_acquire(lock)
    finally:
        lock._settle_reclaim(won=won)
    return won
