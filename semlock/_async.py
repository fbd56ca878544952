"""``semlock.AsyncLock``: the default lock for tasks, which wait without holding up their loop.

The lock itself is the engine's; what differs is who waits, and who waits for himself.  The
core and the engine go by threads, and tasks of one thread may well wait for each other.
"""

from __future__ import annotations

import asyncio
import sys
from weakref import WeakValueDictionary, ref

from semlock import _explain, _native, _process
from semlock._engine import _OWN, _checked_timeout
from semlock._errors import LockDeadlockError
from semlock._hub import AsyncWaiter, LoopWait, hub_here, trio_here
from semlock._lock import TextLock
from semlock._native import HELD, MINE, OK, POOL, TURN, try_lock
from semlock._notice import notice_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import FrameType, TracebackType
    from typing import Any, NoReturn, ParamSpec, TypeVar

    from typing_extensions import Self

    from semlock._engine import Durability
    from semlock._errors import LockLostError
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath
    from semlock._waiting import Waiter

    P = ParamSpec("P")
    T = TypeVar("T")

_frame = sys._getframe

# The object by which each path was won last.  Tasks that stand in a line don't look at the
# file, and so would not see that it is one of their own that they wait for.
_winners: WeakValueDictionary[str, AsyncLock] = WeakValueDictionary()


def _this_task() -> ref[Any] | None:
    """Name the task that runs here, without keeping it."""
    trio = trio_here()
    if trio is not None:
        return ref(trio.lowlevel.current_task())
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else ref(task)


def deadlock_error(holder: Any, frame: FrameType) -> LockDeadlockError:
    """Make the error of a task that would wait for itself."""
    return LockDeadlockError(
        f"{holder.path} is held by this very task, which would wait for itself for ever: it "
        f"acquired the lock at {_explain.where(holder._place)} and would wait for it at "
        f"{_explain.where((frame.f_code, frame.f_lasti))}. Release it first",
        path=holder.path,
    )


class ForTasks:
    """What every lock for tasks refuses to threads, and how it decorates."""

    __slots__ = ()

    if TYPE_CHECKING:

        async def __aenter__(self) -> Any:
            """Take the lock."""

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            """Let go of it."""

    def __enter__(self) -> NoReturn:
        refuse_enter(self)

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """Decorate a coroutine function, which then runs in a block of this lock."""
        import functools  # noqa: PLC0415 - only for those who decorate
        import inspect  # noqa: PLC0415

        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__qualname__} is no coroutine function, so it can't wait for the "
                "lock: use the form of the lock that is for threads"
            )

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await function(*args, **kwargs)

        return locked


def refuse_enter(lock: object) -> NoReturn:
    """Say how to use what is for tasks."""
    raise TypeError(
        f"{lock!r} is for tasks: use it with `async with`, or take the form that is for threads"
    )


class AsyncAcquired:
    """What ``await acquire()`` gives: a context manager that releases at the end."""

    __slots__ = ("_lock",)

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock

    async def __aenter__(self) -> AsyncLock:
        return self._lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{self._lock!r}, acquired>"


class AsyncLock(ForTasks, TextLock):  # type: ignore[misc]  # it refuses what Lock does
    """``Lock`` for tasks: held exactly while a file exists at its path.

    :path:        the lock file; its directory must exist
    :tag:         why it is held, for people; a line of text in the record
    :timeout:     seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :policy:      when somebody else's lock may be taken (see ``semlock.policy``)
    :durability:  what is on the disk before the lock is visible: ``"full"``, ``"data"`` or
                    ``"none"``.  The loop stands still until it is
    :mode:        the lock file's permissions, less the umask
    :fair:        whether this lock is taken only in turn
    :heartbeat:   seconds between refreshes of the record, by a thread; ``None`` for none
    :on_lost:     called by that thread with the lock and the error when it finds it lost
    :on_wait:     called in the loop with the ``LockStatus`` and the seconds waited so far

    Use it with ``async with``, as a decorator of coroutine functions, or by its methods.  It
    excludes ``Lock`` and everybody else, tasks that share one object too.  Only waiting is
    awaited: one try, and letting go, take microseconds and are plain methods.

    It works in asyncio's loops and in trio's.
    """

    __slots__ = ("_holder",)

    def __init__(
        self,
        path: StrPath,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        fair: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[AsyncLock, LockLostError], object] | None = None,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        # The task that holds, and which win made it so: tasks of other threads may use the
        # object too, and hold it before they can say so here.
        self._holder: tuple[int, ref[Any]] | None = None
        super().__init__(
            path,
            tag=tag,
            timeout=timeout,
            policy=policy,
            durability=durability,
            mode=mode,
            fair=fair,
            heartbeat=heartbeat,
            on_lost=on_lost,
            on_wait=on_wait,
        )

    # ------------------------------------------------------------------ acquiring

    def acquire(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = _OWN
    ) -> Coroutine[Any, Any, AbstractAsyncContextManager[Self]]:
        """Take the lock, waiting for it; ``LockTimeoutError`` when the time is over.

        Gives a context manager: ``async with await lock.acquire(timeout=5):`` releases it.
        """
        limit = self.timeout if timeout is _OWN else timeout
        if limit is not None:
            limit = _checked_timeout(limit)
        # One coroutine and not two: each that sleeps costs memory, and there may be thousands.
        return self._win(limit, _frame(1), AsyncAcquired(self))  # type: ignore[arg-type]

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._win(self.timeout, _frame(1), self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def try_acquire(self) -> bool:
        """Take the lock if it is free or its holder is dead; ``False`` if it is held."""
        frame = _frame(1)
        before = self._native.serial
        try:
            won = super().try_acquire()
            if won:
                self._won_by(frame)
        except BaseException:
            self._undo(before)
            raise
        return won

    async def _win(self, timeout: float | None, frame: FrameType, result: T) -> T:
        """Take the lock, and give what was made for the caller before.

        Behind the win nothing may come in which a signal could still strike.
        """
        native = self._native
        asleep = False
        before = native.serial
        try:
            if self._record is None:
                self._lay_out()
            outcome = try_lock(native, POOL)
            if outcome == MINE:
                outcome = HELD
            if outcome == OK or timeout == 0:
                self._settle_now(outcome, frame)
                return result
            self._refuse_to_wait_for(_winners.get(self.path), frame)
            waiter = self._async_waiter(timeout)
            stands = native.turns == _native.FAIR
            won = None
            try:
                while not self._settle(outcome, frame, waiter):
                    if not stands and (outcome == TURN or waiter.passed_over):
                        # Others were faster, so from now on it goes by turns.  Before that,
                        # nobody needs the descriptor that a place costs.
                        stands = waiter.stand(native, self._record)
                    asleep = True
                    goes_on = await waiter.pause_async()
                    before = native.serial
                    asleep = False
                    if not goes_on:
                        raise _explain.timeout_error(self, waiter.waited)
                    outcome = self._try_in_turn(waiter) if stands else self._try_politely()
                won = native
            finally:
                waiter.end(won)
            self._won_by(frame)
        except BaseException:
            # Whatever was won while this task slept was won by another one.
            if not asleep:
                self._undo(before)
            raise
        return result

    def _settle_now(self, outcome: int, frame: FrameType) -> None:
        if (outcome != OK or self._heartbeat is not None) and not self._settle(outcome, frame):
            raise _explain.timeout_error(self, 0.0)
        self._won_by(frame)

    def _won_by(self, frame: FrameType) -> None:
        self._place = (frame.f_code, frame.f_lasti)
        task = _this_task()
        self._holder = None if task is None else (self._native.serial, task)
        if _winners.get(self.path) is not self:
            _winners[self.path] = self

    def _async_waiter(self, timeout: float | None) -> AsyncWaiter:
        native = self._native
        fair = native.turns == _native.FAIR
        hub = hub_here()
        # Whoever judges by rules of his own can't leave it to the first of a line.
        turn = None if fair or self._policy is not None else hub.turn(self.path)
        try:
            wait = LoopWait(hub, (native,), native if fair else None, self._record)
            waiter = AsyncWaiter(hub, timeout, wait=wait, notice=notice_of(self), turn=turn)
        except BaseException:
            if turn is not None:
                turn.leave()
            raise
        if self._policy is not None:
            waiter.judge = None  # by the clock of the lock, from the beginning
        return waiter

    def _try_politely(self) -> int:
        """Try, unless others wait and this process has had its share."""
        if self._record is None:
            self._lay_out()
        outcome: int = try_lock(self._native, POOL)
        return HELD if outcome == MINE else outcome

    def _try_again(self) -> int:
        outcome = super()._try_again()
        return HELD if outcome == MINE else outcome

    # ------------------------------------------------------------------ who waits for himself

    def _judge(self, frame: FrameType, *, may_wait: bool, waiter: Waiter | None = None) -> bool:
        # That the holder is of this thread means nothing here.
        free = super()._judge(frame, may_wait=False, waiter=waiter)
        if may_wait and not free and self._seen is not None:
            self._refuse_to_wait_for(_process.held_here(*self._seen[:2]), frame)
        return free

    def _refuse_to_wait_for(self, holder: object, frame: FrameType) -> None:
        if not isinstance(holder, AsyncLock) or not holder.held or holder._holder is None:
            return
        serial, task = holder._holder
        this = _this_task()
        if serial == holder._native.serial and this is not None and this() is task():
            raise deadlock_error(holder, frame)
