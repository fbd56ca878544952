"""``acquire_any`` and ``acquire_all`` for tasks."""

from __future__ import annotations

import sys

from semlock._core import explain, inside, waits
from semlock._core.options import checked_timeout
from semlock._locks import mine
from semlock._locks.async_form import Acquiring, AsyncForm, refuse_enter, this_task
from semlock._locks.async_holding import is_mine
from semlock._locks.many import AnyWait, distinct, taking_any
from semlock._locks.together import AllAcquired, Several
from semlock._waiting.async_waiter import waiter_here
from semlock._waiting.steps import run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Iterable
    from types import FrameType
    from typing import Any, NoReturn, TypeVar

    L = TypeVar("L", bound=AsyncForm)

_frame = sys._getframe


def _limit(timeout: float | None) -> float | None:
    return timeout if timeout is None else checked_timeout(timeout)


def _distinct_for_tasks(locks: Iterable[L]) -> list[L]:
    return distinct(locks, AsyncForm)  # type: ignore[type-abstract]


# ---------------------------------------------------------------------------- any of them


class AnyWaitOfTask(AnyWait):
    """How a task waits for any of some locks."""

    @staticmethod
    def refuse(locks: list[Any], timeout: float | None, frame: FrameType) -> None:
        """Raise ``LockDeadlockError`` if this task holds all, and none expires in time."""
        mine.refuse_task_all(locks, this_task(), frame, timeout)

    @staticmethod
    def waiter(locks: list[Any], timeout: float | None) -> tuple[Any, waits.Wait]:
        """Begin to wait."""
        waiter = waiter_here(locks, timeout, locks[0].path)
        return waiter, waiter.wait()


def acquire_any_async(
    locks: Iterable[L], timeout: float | None = None
) -> Coroutine[Any, Any, L]:
    """Take the first of some locks that gets free: ``acquire_any`` for tasks.

    Gives the lock that was taken.  ``LockTimeoutError`` when the time is over.
    """
    return _take_any(_distinct_for_tasks(locks), _limit(timeout), _frame(1))


async def _take_any(locks: list[Any], timeout: float | None, frame: FrameType) -> Any:
    return await run_async(taking_any(locks, timeout, frame, AnyWaitOfTask), locks)


# ---------------------------------------------------------------------------- all of them


class AsyncAllAcquired(AllAcquired):
    """What ``await acquire_all_async()`` gives: a context manager that releases all of them."""

    __slots__ = ()

    async def __aenter__(self) -> tuple[Any, ...]:
        return self.locks

    @inside.unstruck
    def __aexit__(self, *error: Any) -> Any:
        left: list[Awaitable[None]] = []
        first: BaseException | None = None
        try:
            for lock in reversed(self._several.locks):
                try:
                    left.append(lock.__aexit__(*error))
                except BaseException as failure:  # noqa: BLE001, PERF203 - the others must go too
                    first = first or failure
            return self._left(left, first)
        except BaseException:
            self._several.let_go()  # an interrupt may have come before one was released
            raise

    async def _left(self, left: list[Awaitable[None]], first: BaseException | None) -> None:
        try:
            for one in left:
                try:
                    await one
                except BaseException as failure:  # noqa: BLE001, PERF203 - the others must go too
                    first = first or failure
            if first is not None:
                raise first  # noqa: TRY301 - as always
        except BaseException:
            self._several.let_go()
            raise

    def __enter__(self) -> NoReturn:
        refuse_enter(self)


def acquire_all_async(
    locks: Iterable[AsyncForm], timeout: float | None = None
) -> Acquiring[tuple[Any, ...]]:
    """Take all of some locks or none, waiting for them: ``acquire_all`` for tasks.

    ``async with acquire_all_async(locks):`` releases them at the end.  ``LockTimeoutError``
    when the time is over; then none is held.
    """
    several = Several(_distinct_for_tasks(locks), is_mine)
    return take_all_async(several, timeout, _frame(1))


def take_all_async(
    several: Several, timeout: float | None, frame: FrameType
) -> Acquiring[tuple[Any, ...]]:
    """Take all of some locks or none, in this task."""
    return Acquiring(_take_all(several, _limit(timeout), frame))


async def _take_all(
    several: Several, timeout: float | None, frame: FrameType
) -> AsyncAllAcquired:
    for lock in several.chosen:
        if is_mine(lock):
            raise explain.deadlock_error(lock, frame, "task")
    acquired = AsyncAllAcquired(several)
    try:
        await run_async(several.acquiring(timeout, frame), several.chosen)
    except BaseException:
        several.let_go()
        raise
    return acquired
