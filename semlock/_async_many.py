"""Any or all of some locks, for tasks: what they do is in the sync forms."""

from __future__ import annotations

import sys

from semlock import _explain, _native
from semlock._async import AsyncLock, deadlock_error, refuse_enter
from semlock._async_holding import OwnWins, is_mine
from semlock._engine import _checked_timeout
from semlock._errors import LockTimeoutError
from semlock._hub import waiter_here
from semlock._many import AllAcquired, _AnyOf, _distinct, _try_any

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

_frame = sys._getframe


def _limit(timeout: float | None) -> float | None:
    return timeout if timeout is None else _checked_timeout(timeout)


# ---------------------------------------------------------------------------- any of them


def acquire_any_async(
    locks: Iterable[AsyncLock], timeout: float | None = None
) -> Coroutine[Any, Any, AsyncLock]:
    """Take whichever of some locks is free first, and wait for it: ``acquire_any`` for tasks.

    Gives the lock that was taken.  ``LockTimeoutError`` when the time is over.
    """
    return _take_any(_distinct(locks, AsyncLock), _limit(timeout), _frame(1))


async def _take_any(locks: list[Any], timeout: float | None, frame: FrameType) -> AsyncLock:
    wins = OwnWins(locks)
    try:
        won: AsyncLock | None = _try_any(locks, timeout, frame)
        if won is None:
            waiter = waiter_here(locks, timeout, locks[0].path)
            any_of = _AsyncAnyOf(locks, waiter._wait, waiter)
            try:
                while (won := any_of.next(frame)) is None:
                    wins.asleep()
                    in_time = await waiter.pause_async()
                    wins.awake()
                    if not in_time:
                        raise _explain.timeout_error(locks[waiter.which], waiter.waited)
            finally:
                waiter.end()
        won._won_by(frame)
    except BaseException:
        wins.give_back()
        raise
    return won


class _AsyncAnyOf(_AnyOf):
    """What a task's wait for any of some locks knows."""

    __slots__ = ()

    _is_mine = staticmethod(is_mine)
    _deadlock_error = staticmethod(deadlock_error)


# ---------------------------------------------------------------------------- all of them


class AsyncAllAcquired(AllAcquired):
    """What ``await acquire_all_async()`` gives: a context manager that releases all of them."""

    __slots__ = ()

    _is_mine = staticmethod(is_mine)

    async def __aenter__(self) -> tuple[Any, ...]:
        return self.locks

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __enter__(self) -> NoReturn:
        refuse_enter(self)

    def _try_rest(self, frame: FrameType) -> Any:
        before = [lock._native.serial for lock in self._locks]
        missing = super()._try_rest(frame)
        for lock, serial in zip(self._locks, before, strict=True):
            # Nothing else of this thread runs meanwhile, so these were won just now.
            if lock._native.serial != serial and lock._native.owner == _native.this_thread():
                lock._won_by(frame)
        return missing

    async def _take_async(self, timeout: float | None, frame: FrameType) -> None:
        wins = OwnWins(self._locks)
        steps = self._steps(timeout, frame)
        try:
            step = next(steps, None)
            while step is not None:
                missing, limit = step
                late = None
                wins.asleep()
                try:
                    await missing._win(limit, frame, None)
                except LockTimeoutError as error:
                    late = error
                wins.awake()
                step = next(steps, None) if late is None else steps.throw(late)
        except BaseException:
            self._let_go()
            wins.give_back()
            raise


def acquire_all_async(
    locks: Iterable[AsyncLock], timeout: float | None = None
) -> Coroutine[Any, Any, AsyncAllAcquired]:
    """Take all of some locks or none, waiting for them: ``acquire_all`` for tasks.

    ``async with await acquire_all_async(locks):`` releases them.  ``LockTimeoutError`` when
    the time is over; then none is held.
    """
    return _take_all(_distinct(locks, AsyncLock), _limit(timeout), _frame(1))


async def _take_all(
    locks: list[Any], timeout: float | None, frame: FrameType
) -> AsyncAllAcquired:
    for lock in locks:
        if is_mine(lock):
            raise deadlock_error(lock, frame)
    acquired = AsyncAllAcquired(locks)
    await acquired._take_async(timeout, frame)
    return acquired
