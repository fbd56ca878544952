"""The form of a lock for tasks: they wait without blocking their event loop.

The lock itself is the same.  Stores identify a holder by its thread, but tasks of one thread may
wait for each other, so this form identifies a holder by its task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from weakref import ref

from semlock._core import FAIR, HELD, MINE, NESTED, NO_TURNS, OK, TAKE_TURNS, explain, inside
from semlock._core.errors import SemlockError
from semlock._core.options import checked_timeout
from semlock._locks import OWN_TIMEOUT, mine
from semlock._waiting.async_waiter import AsyncWaiter
from semlock._waiting.hub import hub_here, is_line_here, released_here, trio_here
from semlock._waiting.sleeping import crowded
from semlock._waiting.steps import run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from contextlib import AbstractAsyncContextManager
    from types import FrameType
    from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

    from typing_extensions import Self

    from semlock._core.verdicts import Policy
    from semlock._locks.base import BaseLock
    from semlock._stores.store import Attempt
    from semlock._waiting.steps import Sleep

    P = ParamSpec("P")
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)

    _Lock = BaseLock

    class _Base(Coroutine[Any, Any, AbstractAsyncContextManager[T_co]], Generic[T_co]):
        """The types, which nothing needs at run time."""

else:
    _Lock = object

    class _Base(Coroutine):
        """The same without types: subscribing one would import ``typing``."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls


_frame = sys._getframe


def this_task() -> ref[Any] | None:
    """Give a weak reference to the running task."""
    if "trio" in sys.modules and (trio := trio_here()) is not None:
        return ref(trio.lowlevel.current_task())
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else ref(task)


class ForTasks:
    """What all locks for tasks share: no ``with``, and decorating coroutine functions."""

    __slots__ = ()

    if TYPE_CHECKING:

        async def __aenter__(self) -> Any: ...
        def __aexit__(self, *error: Any) -> Awaitable[None]: ...

    def __enter__(self) -> NoReturn:
        refuse_enter(self)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Decorate a coroutine function, which then runs in a block of this lock."""
        from semlock._locks import decorating  # noqa: PLC0415 - only for those who decorate

        decorated: Callable[P, Awaitable[T]] = decorating.decorate_async(self, function)
        return decorated


def refuse_enter(lock: object) -> NoReturn:
    """Raise the error of a lock for tasks that a thread enters with ``with``."""
    raise TypeError(
        f"{lock!r} is for tasks: use it with `async with`, or take the form that is for threads"
    )


class Acquiring(_Base["T_co"]):
    """A coroutine that is a context manager as well.

    ``await lock.acquire(timeout=1)`` gives a context manager that releases;
    ``async with lock.acquire(timeout=1):`` acquires, and releases at the end.
    """

    __slots__ = ("_coroutine", "_entered")

    def __init__(
        self, coroutine: Coroutine[Any, Any, AbstractAsyncContextManager[T_co]]
    ) -> None:
        self._coroutine = coroutine
        self._entered: Any = None

    def __await__(self) -> Generator[Any, Any, AbstractAsyncContextManager[T_co]]:
        return self._coroutine.__await__()

    # A task that is made of it drives it by these.

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception, as a coroutine does."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End, as a coroutine does."""
        self._coroutine.close()

    async def __aenter__(self) -> T_co:
        self._entered = await self._coroutine
        entered: T_co = await self._entered.__aenter__()
        return entered

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[bool | None]:
        left: Awaitable[bool | None] = self._entered.__aexit__(*error)
        return left


class _Released:
    """What the end of a block gives to be awaited, when its lock has been released.

    Behind the call that makes a coroutine a handler of a signal may raise; then that never runs.
    So a lock that needs no wait for its release is released by the call.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


RELEASED = _Released()


class AsyncAcquired:
    """What ``await acquire()`` gives: a context manager that releases at the end."""

    __slots__ = ("lock",)  # set by the caller

    lock: Any

    async def __aenter__(self) -> Any:
        if not self.lock.held:
            raise explain.not_held_error(self.lock)
        return self.lock

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[None]:
        self.lock.__exit__(*error)
        return RELEASED

    def __repr__(self) -> str:
        return f"<{self.lock!r}, acquired>"


class AsyncForm(ForTasks, _Lock):  # type: ignore[misc]  # it refuses what threads do
    """Makes of a lock for threads one for tasks; it comes before the lock's class in the bases.

    The core and ``BaseLock`` identify holders by thread.  Here a holder is a task: tasks of one
    thread may wait for each other, and a task is refused if it waits for its own lock.
    """

    __slots__ = ()

    _for_tasks = True

    # The serial number of a win and the task that won.  Tasks of other threads may use the object
    # too: if the number is not the lock's, the holder has not been noted yet.
    _holder: tuple[int, ref[Any]] | None

    # Not in __init__(), which is the other form's, so that a wrong call is told with its class.
    def __new__(cls, *_arguments: Any, **_options: Any) -> Self:
        self = super().__new__(cls)
        self._holder = None  # a slot of each class that has this form
        return self

    # ------------------------------------------------------------------ acquiring

    def acquire(  # type: ignore[override]  # it is awaited
        self, timeout: float | None = OWN_TIMEOUT
    ) -> Acquiring[Self]:
        """Take the lock, waiting for it; ``LockTimeoutError`` when the time is over.

        ``async with lock.acquire(timeout=5):`` releases it at the end, ``await`` gives a context
        manager that does.
        """
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        if limit is not None:
            limit = checked_timeout(limit)
        # One coroutine and not two: thousands may sleep, and each costs memory.
        steps = self._acquiring(limit, _frame(1))
        acquired = AsyncAcquired()
        acquired.lock = self
        return Acquiring(run_async(steps, (self,), None, acquired))

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return run_async(self._acquiring(self.timeout, _frame(1)), (self,), None, self)

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[None]:
        self.__exit__(*error)  # type: ignore[arg-type]
        return RELEASED

    def try_acquire(self) -> bool:
        """Take the lock if it is free or its holder is dead; ``False`` if it is held."""
        frame = _frame(1)
        before = self._native.serial
        try:
            won = not self._is_anothers() and super().try_acquire()
            if won:
                self._won_by(frame)
        except BaseException:
            self._undo(before)
            raise
        return won

    def _first_try(self, timeout: float | None) -> tuple[int, int, Sleep | None]:
        outcome = HELD
        # If tasks of this loop already wait, this one joins them without a try.
        nested = bool(self._native.reentrant) and self._is_mine()
        if timeout == 0 or nested or not crowded or not is_line_here(self._line_name()):
            outcome = self._try()
            if timeout == 0 or outcome in (OK, NESTED):
                return outcome, 0, None
        # The first one of all that wait doesn't come in a crowd.
        gate = hub_here().gate.enter() if crowded or self._retry else None
        return outcome, self._store_time(), gate

    def _won_by(self, frame: FrameType) -> None:
        """Note the task that has won, and where."""
        self._place = (frame.f_code, frame.f_lasti)
        task = this_task()
        win = None if task is None else (self._native.serial, task)
        self._holder = win

    def _is_mine(self) -> bool:
        """Tell whether the running task holds the lock by this object."""
        return self._is_held_by(this_task())

    def _is_held_by(self, task: object) -> bool:
        """Tell whether a task holds the lock by this object."""
        holder, native = self._holder, self._native
        if native.by_object:
            return bool(native.held)
        if holder is None or holder[1] != task or not native.held:
            return False
        return bool(holder[0] == native.serial)

    def _is_anothers(self) -> bool:
        """Tell whether another task of this thread holds this reentrant lock.

        The core identifies holders by thread, and would count this as a nested acquire.
        """
        native = self._native
        if not native.reentrant or native.by_object or not self._is_of_thread():
            return False
        return not self._is_mine()

    def _line_name(self) -> tuple[object, ...] | None:
        """Name the line in which tasks of one loop wait for this lock; ``None``: in no line."""
        return None

    def _refuse_if_own(self, holder: BaseLock, frame: FrameType, timeout: float | None) -> None:
        mine.refuse_task(self, holder, this_task(), frame, timeout)

    # ------------------------------------------------------------------ trying

    def _try(self) -> int:
        if self._native.reentrant and self._is_anothers():
            return HELD
        outcome = super()._try()  # type: ignore[safe-super]  # the lock's class comes later
        return HELD if outcome == MINE else outcome

    def _try_again(self) -> int:
        if self._native.reentrant and self._is_anothers():
            return HELD
        outcome = super()._try_again()  # type: ignore[safe-super]
        return HELD if outcome == MINE else outcome

    def _judge(
        self, frame: FrameType, *, may_wait: bool, waiter: Attempt | None = None
    ) -> bool:
        # A holder in the same thread is no deadlock for a task.  That this task does not hold it
        # was checked before the wait began.
        del may_wait
        return super()._judge(frame, may_wait=False, waiter=waiter)


class AsyncFileForm(AsyncForm):
    """The same for a lock that is a file: its waits, and the line of the waiters of one loop."""

    __slots__ = ()

    def _line_name(self) -> tuple[object, ...] | None:
        """Name the line in which tasks of one loop wait for this lock; ``None``: in no line.

        The first task in line judges the holder for all of them, so they share a line only if
        their policies are the same.  A task with a schedule of retries stands in none.
        """
        if self._retry is not None:
            return None
        policy = self._policy
        rules = None if policy is None else rules_of(policy)
        return self.path, self._native.turns, rules

    def _waiter(self, timeout: float | None, asked: int) -> AsyncWaiter:
        native = self._native
        fair = native.turns == FAIR
        waiter = AsyncWaiter(
            hub_here(),
            (native,),
            timeout,
            schedule=self._retry,
            queue=native if native.turns else None,
            record=inside.record(self),
            line=self._line_name(),
            fair=fair,
            stands=fair,
            asked=asked,
            of=self,
            news=True,
        )
        if self._policy is not None:
            waiter.judge = None  # by the clock of the lock, from the beginning
        return waiter

    def _try_in_turn(self, waiter: AsyncWaiter) -> int:  # type: ignore[override]
        if waiter.stands or not self._native.turns:
            return super()._try_in_turn(waiter)
        return self._try()  # not before the waiters in the queue

    # ------------------------------------------------------------------ letting go

    def release(self) -> None:
        """Release the lock; the errors are those of ``Lock.release``."""
        super().release()
        if crowded:
            self._released()

    @inside.unstruck
    def __exit__(self, *error: object) -> None:
        endings = self._native.endings
        try:
            super().__exit__(*error)  # type: ignore[arg-type]
        except SemlockError:
            raise
        except BaseException:
            self._end(endings)  # a handler of a signal may have raised before the release
            raise
        if crowded:
            self._released()

    def _released(self) -> None:
        """Wake the first waiter for this lock in this loop."""
        turns = (NO_TURNS, TAKE_TURNS, FAIR)
        rules = {None, None if self._policy is None else rules_of(self._policy)}
        released_here(*((self.path, each, rule) for each in turns for rule in rules))


def rules_of(policy: Policy | None) -> object:
    """Name a policy: those that are equal share a line."""
    try:
        hash(policy)
    except TypeError:
        return id(policy)
    return policy
