"""What a task holds: whose a lock is, what a call has won, and how a block is entered and left.

It is below the locks of several files.  What they do is in the sync forms; what differs is
that a task holds and not its thread, which runs other tasks while that one sleeps.
"""

from __future__ import annotations

import sys

from semlock._async import AsyncLock, ForTasks, _this_task

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import FrameType, TracebackType
    from typing import Any, ParamSpec, TypeVar
    from weakref import ref

    from typing_extensions import Self

    P = ParamSpec("P")
    T = TypeVar("T")

_frame = sys._getframe


def task_here() -> ref[Any]:
    """Name the task that runs here; an error where there is none."""
    task = _this_task()
    if task is None:
        raise RuntimeError("a task holds this kind of lock, and no task runs here")
    return task


def is_held_by(lock: Any, task: object) -> bool:
    """Tell whether a task holds a lock, by this very object."""
    if not isinstance(lock, AsyncLock):
        return False
    native = lock._native
    return bool(native.held) and lock._holder == (native.serial, task)


def is_mine(lock: Any) -> bool:
    """Tell whether the task that runs here holds a lock."""
    return is_held_by(lock, _this_task())


class OwnWins:
    """What a task's call has won so far, to be given back if the call fails.

    Whatever is won while the task sleeps was won by another one.  So one that is cancelled in
    its sleep has nothing to give back but its place in the queue.
    """

    __slots__ = ("_before", "_locks")

    def __init__(self, locks: Sequence[Any]) -> None:
        self._locks = locks
        self._before: list[int] | None = None
        self.awake()

    def asleep(self) -> None:
        """Take note that the task is about to sleep."""
        self._before = None

    def awake(self) -> None:
        """Take note that it goes on, and that all wins from now on are its own."""
        self._before = [lock._native.serial for lock in self._locks]

    def give_back(self) -> None:
        """Let go of what was won since then."""
        if self._before is not None:
            for lock, serial in zip(self._locks, self._before, strict=True):
                lock._undo(serial)


class Holding:
    """What an acquisition gives: a context manager that only releases.

    It knows whose the acquisition is, which need not be the task that leaves the block: some
    event loops' timeouts run what they guard in a task of its own.
    """

    __slots__ = ("_lock", "_me")

    def __init__(self, lock: HeldByTasks, me: object) -> None:
        self._lock = lock
        self._me = me

    async def __aenter__(self) -> Any:
        return self._lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock._leave(self._me, kind, error, traceback)


class Entering:
    """A context manager that acquires when it is entered, for the task that enters it."""

    __slots__ = ("_limit", "_lock", "_take")

    def __init__(
        self, lock: HeldByTasks, take: Callable[..., Any], limit: float | None
    ) -> None:
        self._lock = lock
        self._take = take
        self._limit = limit

    def __aenter__(self) -> Any:
        return self._take(self._limit, _frame(1), entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock._leave(_this_task(), kind, error, traceback)


class HeldByTasks(ForTasks):
    """How tasks use a lock that threads use with ``with`` in its sync form."""

    __slots__ = ()

    timeout: float | None

    if TYPE_CHECKING:

        async def _take_async(
            self, timeout: float | None, frame: FrameType, *, entered: bool = False
        ) -> Any:
            """Take the lock: itself when ``entered``, else what the caller leaves it by."""

        def _leave(
            self,
            me: object,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            """Let go of what a task holds, at the end of a block."""

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._take_async(self.timeout, _frame(1), entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(_this_task(), kind, error, traceback)
