"""What a task holds of slots and shared locks, and how it enters and leaves a block.

The sync forms of these locks acquire and release.  Here the holder is a task, and not its
thread, which runs other tasks while that one sleeps.
"""

from __future__ import annotations

import sys

from semlock._core import capi, inside
from semlock._core.errors import NotHeldError
from semlock._locks import OWN_TIMEOUT
from semlock._locks.async_form import Acquiring, AsyncForm, ForTasks, this_task
from semlock._waiting.hub import Parked, hub_here, is_line_here
from semlock._waiting.steps import as_awaited, run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Sequence
    from types import FrameType
    from typing import Any
    from weakref import ref

    from typing_extensions import Self

    from semlock._waiting.steps import Steps

_frame = sys._getframe


def task_here() -> ref[Any]:
    """Give the running task; ``RuntimeError`` outside of tasks."""
    task = this_task()
    if task is None:
        raise RuntimeError("a task holds this kind of lock, and no task runs here")
    return task


def is_held_by(lock: Any, task: object) -> bool:
    """Tell whether a task holds a lock by this object."""
    return isinstance(lock, AsyncForm) and inside.is_held_by(lock, task)


def is_mine(lock: Any) -> bool:
    """Tell whether the running task holds a lock."""
    return is_held_by(lock, this_task())


def into_line(name: Hashable, timeout: float | None) -> Steps[tuple[bool, int]]:
    """Tell whether tasks of this loop wait in this line, and when this task asked.

    If many tasks begin to wait at once, it first waits for its turn to begin.
    """
    task_here()
    asked = capi.now_ns()
    in_line = timeout != 0 and is_line_here(name)
    if in_line and (gate := hub_here().gate.enter()) is not None:
        yield Parked(gate)
    return in_line, asked


class Holding:
    """What an acquisition gives: a context manager that only releases.

    It keeps the task that acquired, because another one may leave the block: some event loops'
    timeouts run the guarded code in a task of its own.
    """

    __slots__ = ("_leave", "_lock", "_me", "_over")

    def __init__(self, lock: HeldByTasks, me: object, leave: Callable[..., Any]) -> None:
        self._lock = lock
        self._me = me
        self._leave = leave
        self._over = False

    async def __aenter__(self) -> Any:
        if self._over:
            path = self._lock.path  # type: ignore[attr-defined]  # all locks have one
            raise NotHeldError(f"{path} is not held here: its block has ended", path=path)
        return self._lock

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        await as_awaited(self._leave(self._me, *error))


class Entering(ForTasks):
    """A context manager that acquires when it is entered, for the task that enters it.

    ``enter`` acquires for the frame of the block, and ``leave`` releases what a task holds.
    """

    __slots__ = ("_enter", "_leave")

    def __init__(self, enter: Callable[[FrameType], Any], leave: Callable[..., Any]) -> None:
        self._enter = enter
        self._leave = leave

    def __aenter__(self) -> Any:
        return self._enter(_frame(1))

    def __exit__(self, *_: object) -> None:
        """Have Python look no further: ``__enter__`` refuses a thread's ``with``."""

    async def __aexit__(self, *error: object) -> None:
        await as_awaited(self._leave(this_task(), *error))

    def __repr__(self) -> str:
        return f"<{self._leave.__self__!r}, to be entered>"  # type: ignore[attr-defined]


class OnePart:
    """What a task's call has won of a lock in parts: a part of its own."""

    __slots__ = ("_before", "_give_back", "_me", "_parts")

    def __init__(self, parts: dict[Any, Any], give_back: Callable[[Any, Any], None]) -> None:
        self._parts = parts
        self._give_back = give_back
        self._me: Any = None
        self._before: Any = None

    def begin(self) -> None:
        """Take note of the task, and of what it has already."""
        self._me = this_task()
        self._before = self._parts.get(self._me)

    def give_back(self) -> None:
        """Release what the call has won."""
        self._give_back(self._me, self._before)


class HeldByTasks(ForTasks):
    """``async with`` for a lock whose sync form threads use with ``with``."""

    __slots__ = ()

    timeout: float | None

    if TYPE_CHECKING:

        def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
            """Take the lock."""

        def _limit(self, timeout: float | None) -> float | None: ...
        def _leave(self, me: object, *error: object) -> Any:
            """Release what a task holds, at the end of a block; the result may be awaited."""

    def _wins(self) -> tuple[Sequence[Any], OnePart | None]:
        """Name what an acquisition wins: locks, and perhaps a part."""
        raise NotImplementedError

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return run_async(self._steps(self.timeout, _frame(1)), *self._wins(), self)

    def acquire(self, timeout: float | None = OWN_TIMEOUT) -> Acquiring[Self]:
        """Take the lock, waiting for it; ``LockTimeoutError`` when the time is over.

        ``async with lock.acquire(timeout=5):`` releases it at the end, ``await`` gives a context
        manager that does.
        """
        return Acquiring(self._entered(self._steps(self._limit(timeout), _frame(1))))

    async def _entered(self, steps: Steps[None]) -> Any:
        """Take the lock, and give the context manager that releases it."""
        return await run_async(steps, *self._wins(), Holding(self, task_here(), self._leave))

    def _entering(self, steps: Callable[..., Steps[None]], timeout: float | None) -> Entering:
        """Take the lock by these steps when a block is entered."""

        def enter(frame: FrameType) -> Any:
            return run_async(steps(timeout, frame), *self._wins(), self)

        return Entering(enter, self._leave)

    async def __aexit__(self, *error: object) -> None:
        await as_awaited(self._leave(this_task(), *error))


class SharedByTasks(HeldByTasks):
    """The same for a lock that readers acquire too: ``_reading`` gives their steps."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _reading(self, timeout: float | None, frame: FrameType) -> Steps[None]:
            """Take the lock as a reader."""

    def acquire_shared(self, timeout: float | None = OWN_TIMEOUT) -> Acquiring[Self]:
        """Take the lock as a reader, waiting for writers; ``LockTimeoutError`` at the end."""
        return Acquiring(self._entered(self._reading(self._limit(timeout), _frame(1))))

    def shared(self, timeout: float | None = OWN_TIMEOUT) -> Entering:
        """Hold the lock as a reader in an ``async with`` block."""
        return self._entering(self._reading, self._limit(timeout))

    def exclusive(self, timeout: float | None = OWN_TIMEOUT) -> Entering:
        """Hold the lock as the writer in an ``async with`` block."""
        return self._entering(self._steps, self._limit(timeout))
