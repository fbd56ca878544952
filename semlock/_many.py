"""Many locks at once: a try of each, any one of them, or all of them."""

from __future__ import annotations

import sys
from time import monotonic

from semlock import _explain, _native, _process
from semlock._engine import BaseLock, _checked_timeout
from semlock._errors import LockTimeoutError
from semlock._lock import Lock, TextLock
from semlock._native import HELD, NESTED, OK, POOL, this_thread, try_lock
from semlock._waiting import Waiter, chance

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from types import FrameType, TracebackType
    from typing import Any, TypeAlias

    from semlock._status import StrPath

    Steps: TypeAlias = Generator[tuple[Any, float | None], None, None]

_FAILED = 255

# How long a place in one queue is kept before another lock, that was free and lost, seems the
# better one; doubled with each change.
_FIRST_STAY = 0.1

# How long some locks are held while another is waited for; doubled with each failure.
_FIRST_PATIENCE = 0.001
_LONGEST_PATIENCE = 0.5

# Waits for many locks that are over, but have not given their watches back.
_to_end: list[Waiter] = []
_FEW = 32


def try_acquire_many(paths_or_locks: Iterable[StrPath | Lock]) -> list[Lock | None]:
    """Try many locks in one call of the core, which holds no GIL.

    For each path or ``Lock`` in order: the lock if it was taken, else ``None``.  Tools that
    poll should make their ``Lock`` objects once and pass those.
    """
    locks = [item if isinstance(item, Lock) else Lock(item) for item in paths_or_locks]
    return _try_many(locks, sys._getframe(1))


def _try_many(locks: list[Any], frame: FrameType, *, anyway: bool = True) -> list[Any]:
    for lock in locks:
        if lock._record is None:
            lock._lay_out()
    batch = _native.Batch([lock._native for lock in locks])
    result: list[Any] = [None] * len(locks)
    try:
        batch.run(anyway=anyway)
        outcomes = batch.outcomes
        if outcomes.count(HELD) != len(locks):
            for index, outcome in enumerate(outcomes):
                if outcome == HELD or (outcome == _native.TURN and not anyway):
                    continue
                code = batch.error(index) if outcome == _FAILED else outcome
                before = locks[index]._native.serial
                try:
                    if locks[index]._settle(code, frame):
                        result[index] = locks[index]
                except BaseException:
                    locks[index]._undo(before)
                    raise
    except BaseException:
        for index, outcome in enumerate(batch.outcomes):
            if outcome in (OK, NESTED) or result[index] is not None:
                locks[index]._end(locks[index]._native.endings)
        raise
    return result


def _is_mine(lock: BaseLock) -> bool:
    return bool(lock._native.held) and lock._native.owner == this_thread()


def _distinct(locks: Iterable[BaseLock], kind: type[BaseLock] = BaseLock) -> list[Any]:
    chosen = list(locks)
    for lock in chosen:
        if not isinstance(lock, kind):
            raise TypeError(f"these are locks to be acquired, not {lock!r}")
    if not chosen:
        raise ValueError("there is no lock to wait for")
    if len({lock.path for lock in chosen}) != len(chosen):
        raise ValueError("one path is there twice, and would wait for itself")
    return chosen


# ---------------------------------------------------------------------------- any of them


def acquire_any(locks: Iterable[Lock], timeout: float | None = None) -> Lock:
    """Take whichever of some locks is free first, and wait for it; the lock that was taken.

    It sleeps on all of them at once.  ``LockTimeoutError`` when the time is over.  Release the
    lock that you got; the others were never taken.
    """
    chosen = _distinct(locks)
    limit = None if timeout is None else _checked_timeout(timeout)
    frame = sys._getframe(1)
    before = [lock._native.serial for lock in chosen]
    try:
        won: Lock = _take_any(chosen, limit, frame)
    except BaseException:
        for lock, serial in zip(chosen, before, strict=True):
            lock._undo(serial)
        raise
    return won


def _try_any(locks: list[Any], timeout: float | None, frame: FrameType) -> Any:
    """Try each once: the lock that was taken, or ``None`` if there is time to wait."""
    for lock in locks:
        if lock._record is None or lock._each_time:
            lock._lay_out()
        outcome = try_lock(lock._native, POOL)
        if outcome not in (HELD, _native.LOOK, _native.MINE) and lock._settle(outcome, frame):
            return lock
    if timeout == 0:
        for lock in locks:
            if lock._settle(lock._try_again(), frame):
                return lock
        raise _explain.timeout_error(locks[0], 0.0)
    return None


def _take_any(locks: list[Any], timeout: float | None, frame: FrameType) -> Any:
    won = _try_any(locks, timeout, frame)
    if won is not None:
        return won
    wait = _native.Wait([lock._native for lock in locks])
    waiter = Waiter(timeout, wait=wait, about=locks[0].path)
    any_of = _AnyOf(locks, wait, waiter)
    while _to_end:
        _to_end.pop().end()
    won = None
    try:
        while (won := any_of.next(frame)) is None:
            if not waiter.pause():
                raise _explain.timeout_error(locks[waiter.which], waiter.waited)
    finally:
        if won is None or len(locks) <= _FEW:
            waiter.end()
        else:
            # To give back a thousand watches takes as long as the whole wake, so whoever has
            # the lock is not kept from using it; the next wait of this kind does it.
            wait.leave()
            waiter.over()
            _to_end.append(waiter)
    return won


class _AnyOf:
    """What a wait for any of some locks knows: in whose queue it stands, and which are its own."""

    __slots__ = ("_locks", "_own", "_queued", "_since", "_stay", "_wait", "_waiter")

    # Who holds what: threads here, tasks elsewhere.
    _is_mine = staticmethod(_is_mine)
    _deadlock_error = staticmethod(_explain.deadlock_error)

    def __init__(self, locks: list[Any], wait: _native.Wait, waiter: Waiter) -> None:
        self._locks = locks
        self._wait = wait
        self._waiter = waiter
        self._own: set[int] = set()
        self._queued = -1
        self._since = 0.0
        self._stay = _FIRST_STAY

    def next(self, frame: FrameType) -> Any:
        """Do what the last pause calls for: the lock that was taken, if any."""
        waiter = self._waiter
        if waiter.said == _native.BLIND:
            for lock in self._locks:
                if lock._settle(lock._try_again(), frame):
                    return lock
            return None
        if waiter.said not in (_native.FREE, _native.LOOK):
            return None
        index = waiter.which
        lock = self._locks[index]
        if waiter.said == _native.LOOK:
            self._refuse_to_wait_for_all(index, frame)
            # Looked at here, tried when it turns out to be free.
            if not lock._judge(frame, may_wait=False, waiter=waiter):
                return None
        if lock._record is None or lock._each_time:
            lock._lay_out()
        if index == self._queued:
            outcome = _native.try_anyway(lock._native, POOL)
        else:
            outcome = try_lock(lock._native, POOL)
        if outcome not in (HELD, _native.LOOK, _native.TURN) and lock._settle(outcome, frame):
            return lock
        self._lost(index)
        return None

    def _refuse_to_wait_for_all(self, index: int, frame: FrameType) -> None:
        seen = _native.look(self._locks[index]._encoded)
        own = None if seen is None else _process.held_here(seen.view.dev, seen.view.ino)
        if own is None or not self._is_mine(own):
            self._own.discard(index)
            return
        self._own.add(index)
        if len(self._own) == len(self._locks):
            raise self._deadlock_error(own, frame)

    def _lost(self, index: int) -> None:
        """Stand in a queue from now on: whoever only comes when a lock is free comes too late.

        Its holder makes way for those who stand there.  Another lock's queue may turn out to
        be the shorter way, but whoever changed all the time would never come to its turn.
        """
        now = monotonic()
        if index == self._queued or (self._queued >= 0 and now - self._since < self._stay):
            return
        if not self._locks[index]._native.turns:
            return
        if self._queued >= 0:
            self._stay *= 2
        self._queued = index
        self._since = now
        lock = self._locks[index]
        self._wait.stand(lock._native, lock._record, index)


# ---------------------------------------------------------------------------- all of them


class AllAcquired:
    """What ``acquire_all`` returns: a context manager that releases all of them."""

    __slots__ = ("_locks", "locks")

    _is_mine = staticmethod(_is_mine)

    def __init__(self, locks: Sequence[Any]) -> None:
        # As they were given, and in the order in which everybody takes them.
        self.locks = tuple(locks)
        self._locks = sorted(locks, key=lambda lock: lock.path)

    def __enter__(self) -> tuple[Any, ...]:
        return self.locks

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        first: BaseException | None = None
        try:
            for lock in reversed(self._locks):
                try:
                    lock.__exit__(kind, error, traceback)
                except BaseException as failure:  # noqa: BLE001, PERF203 - the others must go too
                    first = first or failure
        except BaseException:
            self._let_go()  # an interrupt between two of them
            raise
        if first is not None:
            self._let_go()  # it may have struck before one of them had begun to go
            raise first

    def release(self) -> None:
        """Let go of all of them; what goes wrong with one is raised when the others are gone."""
        self.__exit__(None, None, None)

    def __repr__(self) -> str:
        return f"<{len(self.locks)} locks, acquired>"

    def _let_go(self) -> None:
        for lock in reversed(self._locks):
            if self._is_mine(lock):
                lock._end(lock._native.endings)

    def _try_rest(self, frame: FrameType) -> Any:
        """Try those that are not held yet: the first that is not to be had, or ``None``."""
        rest = [lock for lock in self._locks if not self._is_mine(lock)]
        if all(isinstance(lock, TextLock) and not lock._each_time for lock in rest):
            won = _try_many(rest, frame, anyway=False)
            return next((lock for lock, got in zip(rest, won, strict=True) if not got), None)
        return next((lock for lock in rest if not lock.try_acquire()), None)

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        steps = self._steps(timeout, frame)
        step = next(steps, None)
        while step is not None:
            missing, limit = step
            try:
                missing._take(limit, frame)
            except LockTimeoutError as late:
                step = steps.throw(late)
            else:
                step = next(steps, None)

    def _steps(self, timeout: float | None, frame: FrameType) -> Steps:
        """Give the locks that are to be taken one after the other, and for how long to wait.

        That a wait took too long is thrown in here.
        """
        deadline = None if timeout is None else monotonic() + timeout
        patience = 0.0
        while (missing := self._try_rest(frame)) is not None:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if patience == 0.0 or timeout == 0:
                # Nobody who waits holds anything, so whatever order others take them in, it
                # can't end in a circle.
                self._let_go()
                yield missing, left
            else:
                # Politeness may never come to an end where all of them are in use all the
                # time.  So what is held is kept for a while, which is bounded, and grows.
                yield from self._patiently(missing, left, patience)
            patience = min(max(2 * patience, _FIRST_PATIENCE), _LONGEST_PATIENCE)

    def _patiently(self, missing: Any, left: float | None, patience: float) -> Steps:
        limit = patience * (0.5 + chance())
        if left is not None and left < limit:
            yield missing, left
            return
        try:
            yield missing, limit
        except LockTimeoutError:
            self._let_go()
            yield missing, None if left is None else max(0.0, left - limit)


def acquire_all(locks: Iterable[BaseLock], timeout: float | None = None) -> AllAcquired:
    """Take all of some locks or none, waiting for them; a context manager that releases them.

    It never waits for ever while it holds some of them, so it doesn't matter in which order
    others take the same ones.  ``LockTimeoutError`` when the time is over; then none is held.
    """
    chosen = _distinct(locks)
    limit = None if timeout is None else _checked_timeout(timeout)
    frame = sys._getframe(1)
    for lock in chosen:
        if _is_mine(lock):
            raise _explain.deadlock_error(lock, frame)
    acquired = AllAcquired(chosen)
    try:
        acquired._take(limit, frame)
    except BaseException:
        acquired._let_go()
        raise
    return acquired
