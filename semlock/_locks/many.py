"""Many locks at once: a try of each, or a wait for any of them."""

from __future__ import annotations

import sys
from bisect import bisect_left
from time import monotonic

from semlock._core import capi, explain, inside, waits
from semlock._core.capi import HELD, NESTED, OK, this_thread
from semlock._core.changes import Batch
from semlock._core.options import checked_timeout
from semlock._locks import mine
from semlock._locks.base import BaseLock
from semlock._locks.lock import Lock, TextLock
from semlock._stores import are_distinct
from semlock._waiting.steps import chance, insisting
from semlock._waiting.waiter import Waiter, run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType
    from typing import Any, TypeVar, overload

    from semlock._core.status import StrPath
    from semlock._waiting.steps import Steps

    L = TypeVar("L", bound=BaseLock)

_FAILED = 255
TWICE = "%s is there twice, and would wait for itself"

# How long a wait stays in one lock's queue before it may change to another lock's, where it
# lost a race; doubled with each change.
_FIRST_STAY = 0.1

# How long not to look at a free lock whose turn others have.
_FOR_OTHERS = 0.005

# Ended waits for many locks whose watches are not removed yet.
_to_end: list[Waiter] = []
_FEW = 32


if TYPE_CHECKING:

    @overload
    def try_acquire_many(paths_or_locks: Iterable[StrPath | Lock]) -> list[Lock | None]: ...
    @overload
    def try_acquire_many(
        paths_or_locks: Iterable[StrPath | BaseLock],
    ) -> list[BaseLock | None]: ...


def try_acquire_many(paths_or_locks: Iterable[Any]) -> list[Any]:
    """Try many locks in one call of the core, which holds no GIL.

    For each path or lock in order: the lock if it was taken, else ``None``.  Tools that poll
    should make their ``Lock`` objects once and pass those.  A lock of another class is tried by
    its own ``try_acquire``, after the ``Lock`` objects.
    """
    frame = sys._getframe(1)
    if isinstance(paths_or_locks, (str, bytes)):
        raise TypeError(
            f"try_acquire_many takes a list of paths and locks, not {paths_or_locks!r}"
        )
    locks = list(paths_or_locks)
    if _all_plain(locks):
        return try_many(locks, frame)
    locks = [item if isinstance(item, BaseLock) else _lock_at(item) for item in locks]
    if _all_plain(locks):
        return try_many(locks, frame)
    plain = [lock for lock in locks if isinstance(lock, Lock)]
    before = [(inside.native(lock).serial, lock.count) for lock in locks]
    try:
        won = iter(try_many(plain, frame))
        first = [next(won) if isinstance(lock, Lock) else None for lock in locks]
        return [
            lock if taken or (not isinstance(lock, Lock) and lock.try_acquire()) else None
            for lock, taken in zip(locks, first, strict=True)
        ]
    except BaseException:
        for lock, (serial, count) in zip(locks, before, strict=True):
            if lock.count > count:  # or the call that failed has given it back itself
                inside.undo(lock, serial)
        raise


def _all_plain(items: list[Any]) -> bool:
    """Tell whether all are ``Lock`` objects, by one short walk: each poll pays for it."""
    return all(issubclass(kind, Lock) for kind in set(map(type, items)))


def _lock_at(path: Any) -> Lock:
    if hasattr(path, "try_acquire"):
        raise TypeError(
            "try_acquire_many takes paths and locks of one holder (Lock, KernelLock and those of "
            f"lock systems), not {path!r}: call its own try_acquire(), or keep several such locks "
            "in a LockSet, if they are files"
        )
    return Lock(path)


def try_many(locks: list[Any], frame: FrameType, *, anyway: bool = True) -> list[Any]:
    """Try many locks in one call of the core: each that was taken, else ``None``."""
    inside.lay_out(*locks)
    batch = Batch(list(map(inside.native, locks)))
    result: list[Any] = [None] * len(locks)
    try:
        batch.run(anyway=anyway)
        outcomes = batch.outcomes
        if outcomes.count(HELD) != len(locks):
            for index, outcome in enumerate(outcomes):
                if outcome == HELD or (outcome == capi.TURN and not anyway):
                    continue
                code = batch.error(index) if outcome == _FAILED else outcome
                before = inside.native(locks[index]).serial
                try:
                    if inside.has_won(locks[index], code, frame):
                        result[index] = locks[index]
                except BaseException:
                    inside.undo(locks[index], before)
                    raise
    except BaseException:
        for index, outcome in enumerate(batch.outcomes):
            if outcome in (OK, NESTED) or result[index] is not None:
                inside.end(locks[index])
        raise
    return result


def is_plain(lock: BaseLock) -> bool:
    """Tell whether the core can try this lock in one call with others."""
    return isinstance(lock, TextLock) and not (
        inside.is_composed_anew(lock) or inside.native(lock).reentrant
    )


def is_mine(lock: BaseLock) -> bool:
    """Tell whether this thread holds a lock by this object."""
    return bool(inside.native(lock).owner == this_thread()) and lock.held


def distinct(locks: Iterable[BaseLock], kind: type[BaseLock] = BaseLock) -> list[Any]:
    """Check that these are locks of one kind and of different paths."""
    chosen = list(locks)
    for lock in chosen:
        if not isinstance(lock, kind):
            form = "a Lock" if kind is BaseLock else "a form for tasks, such as AsyncLock"
            why = ""
            if hasattr(lock, "try_acquire") and not isinstance(lock, BaseLock):
                why = (
                    ": one of several holders waits in its own way. A LockSet takes such locks"
                )
            raise TypeError(f"each of the locks is {form}, not {lock!r}{why}")
    if not chosen:
        raise ValueError("there is no lock to wait for")
    if len(chosen) > 1 and not are_distinct([lock.path for lock in chosen]):
        raise _twice(chosen)
    return chosen


def _twice(locks: Sequence[BaseLock]) -> ValueError:
    """Make the error that names the first path that is there twice."""
    paths = [lock.path for lock in locks]
    first = bisect_left(
        range(2, len(paths)), True, key=lambda end: not are_distinct(paths[:end])
    )
    return ValueError(TWICE % paths[first + 1])


# ---------------------------------------------------------------------------- any of them


def acquire_any(locks: Iterable[L], timeout: float | None = None) -> L:
    """Take the first of some locks that gets free, and return it.

    It sleeps on all of them at once.  ``LockTimeoutError`` when the time is over.  Release the
    lock that it returns; the others were never taken.
    """
    chosen = distinct(locks)
    limit = None if timeout is None else checked_timeout(timeout)
    won: L = take_any(chosen, taking_any(chosen, limit, sys._getframe(1), AnyWait))
    return won


def take_any(locks: list[Any], steps: Steps[Any]) -> Any:
    """Take any of some locks by these steps, in this thread."""
    before = [inside.native(lock).serial for lock in locks]
    try:
        return run(steps)
    except BaseException:
        for lock, serial in zip(locks, before, strict=True):
            inside.undo(lock, serial)
        raise


def taking_any(
    locks: list[Any], timeout: float | None, frame: FrameType, form: type[AnyWait]
) -> Steps[Any]:
    """Take any of some locks."""
    won: Any = None

    def attempt() -> int:
        nonlocal won
        won, said = _try_each(locks, frame)
        return said

    if timeout == 0:
        yield from insisting(attempt)
    else:
        attempt()
    if won is not None:
        return won
    if timeout == 0:
        for lock in locks:
            fair = inside.is_fair(lock)
            if inside.has_won(
                lock, inside.try_once(lock) if fair else inside.try_anyway(lock), frame
            ):
                return lock
        raise explain.timeout_error(locks[0], 0.0)
    form.refuse(locks, timeout, frame)
    waiter, wait = form.waiter(locks, timeout)
    any_of = _AnyOf(locks, wait, waiter)
    _end_those_before()
    try:
        while (won := any_of.next(frame)) is None:
            if not (yield waiter):
                raise explain.timeout_error(locks[waiter.which], waiter.waited)
    finally:
        if won is None or len(locks) <= _FEW:
            waiter.end()
        else:
            # Removing a thousand watches takes as long as the wake itself.  The next such wait
            # does it, so that the caller can use its lock now.
            wait.leave()
            waiter.over()
            _to_end.append(waiter)
    return won


class AnyWait:
    """How a thread waits for any of some locks."""

    @staticmethod
    def refuse(locks: list[Any], timeout: float | None, frame: FrameType) -> None:
        """Raise ``LockDeadlockError`` if this thread holds all, and none expires in time."""
        holder = mine.all_mine(locks, mine.is_of_thread, timeout)
        if holder is not None:
            mine.refuse(holder, frame)

    @staticmethod
    def waiter(locks: list[Any], timeout: float | None) -> tuple[Any, waits.Wait]:
        """Begin to wait."""
        natives = [inside.native(lock) for lock in locks]
        # The core prepares a file, for whichever gets free; the tries stay here.
        wait = waits.Wait(natives, tries=capi.many(natives))
        return Waiter(timeout, wait=wait, about=locks[0].path), wait


def _try_each(locks: list[Any], frame: FrameType) -> tuple[Any, int]:
    """Try each once: the lock that was taken, or TURN if a fair lock is free for others."""
    others = HELD
    for lock in locks:
        outcome = inside.try_once(lock)
        if outcome == capi.TURN and inside.is_fair(lock):
            others = outcome
        elif outcome not in (HELD, capi.LOOK, capi.MINE) and inside.has_won(
            lock, outcome, frame
        ):
            return lock, OK
    return None, others


def _end_those_before() -> None:
    while True:
        try:
            waiter = _to_end.pop()  # in one step: other threads do this too
        except IndexError:
            return
        waiter.end()


class _AnyOf:
    """A wait for any of some locks, and the one lock in whose queue it stands."""

    __slots__ = ("_locks", "_queued", "_since", "_stay", "_wait", "_waiter")

    def __init__(self, locks: list[Any], wait: waits.Wait, waiter: Waiter) -> None:
        self._locks = locks
        self._wait = wait
        self._waiter = waiter
        self._queued = -1
        self._since = 0.0
        self._stay = _FIRST_STAY

    def next(self, frame: FrameType) -> Any:
        """Do what the last pause calls for: the lock that was taken, if any."""
        waiter = self._waiter
        if waiter.said == capi.BLIND:
            for lock in self._locks:
                if inside.has_won(lock, inside.try_anyway(lock), frame):
                    return lock
            return None
        if waiter.said not in (capi.FREE, capi.LOOK):
            return None
        index = waiter.which
        lock = self._locks[index]
        # LOOK: the holder must be judged before a try.
        if waiter.said == capi.LOOK and not inside.judge(
            lock, frame, may_wait=False, waiter=waiter
        ):
            return None
        outcome = inside.try_anyway(lock) if index == self._queued else inside.try_once(lock)
        if outcome not in (HELD, capi.LOOK, capi.TURN) and inside.has_won(lock, outcome, frame):
            return lock
        if outcome == capi.TURN:
            # It is free for others, and no event comes before they take it.
            self._wait.later(index, _FOR_OTHERS * (0.5 + chance()))
        self._lost(index)
        return None

    def _lost(self, index: int) -> None:
        """Enter the queue of the lock that another process took first.

        Holders make way only for waiters in the queue.  Another lock's queue may be shorter, but
        a wait that changed often would never reach its turn, so each stay is longer.
        """
        now = monotonic()
        if index == self._queued or (self._queued >= 0 and now - self._since < self._stay):
            return
        if not inside.native(self._locks[index]).turns:
            return
        if self._queued >= 0:
            self._stay *= 2
        self._queued = index
        self._since = now
        lock = self._locks[index]
        self._wait.stand(inside.native(lock), inside.record(lock), index)
