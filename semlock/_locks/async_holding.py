"""What a task holds of slots and shared locks, and how it enters and leaves a block.

The sync forms of these locks acquire and release.  Here the holder is a task, and not its
thread, which runs other tasks while that one sleeps.
"""

from __future__ import annotations

import sys

from semlock._core import capi, inside
from semlock._core.errors import NotHeldError
from semlock._locks import OWN_TIMEOUT
from semlock._locks.async_form import RELEASED, Acquiring, AsyncForm, ForTasks, this_task
from semlock._waiting.hub import hub_here, is_line_here
from semlock._waiting.steps import run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence
    from types import FrameType
    from typing import Any
    from weakref import ref

    from typing_extensions import Self

    from semlock._waiting.steps import Sleep, Steps

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


@inside.unstruck
def leaving(lock: HeldByTasks, me: object, error: tuple[object, ...]) -> Awaitable[None]:
    """Release what a task holds at the end of a block, by this call if that needs no wait."""
    try:
        if me is None:
            me = this_task()
    except BaseException:  # of a signal's handler
        inside.leave(lock, this_task(), error)
        raise
    left: Awaitable[None] = inside.leave(lock, me, error) or RELEASED
    return left


class Holding:
    """What an acquisition gives: a context manager that only releases.

    It keeps the task that acquired, because another one may leave the block: some event loops'
    timeouts run the guarded code in a task of its own.
    """

    __slots__ = ("_lock", "_me", "_over")

    def __init__(self, lock: HeldByTasks, me: object) -> None:
        self._lock = lock
        self._me = me
        self._over = False

    async def __aenter__(self) -> Any:
        if self._over:
            path = self._lock.path  # type: ignore[attr-defined]  # all locks have one
            raise NotHeldError(f"{path} is not held here: its block has ended", path=path)
        return self._lock

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[None]:
        self._over = True
        return leaving(self._lock, self._me, error)


class Entering(ForTasks):
    """A context manager that acquires when it is entered, for the task that enters it."""

    __slots__ = ("_limit", "_lock", "_reads")

    def __init__(self, lock: HeldByTasks, limit: float | None, *, reads: bool) -> None:
        self._lock = lock
        self._limit = limit
        self._reads = reads

    def __aenter__(self) -> Any:
        lock = self._lock
        steps, (locks, of) = inside.taking(lock, self._limit, _frame(1), reads=self._reads)
        return run_async(steps, locks, of, lock)

    def __exit__(self, *_: object) -> None:
        """Have Python look no further: ``__enter__`` refuses a thread's ``with``."""

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[None]:
        return leaving(self._lock, None, error)

    def __repr__(self) -> str:
        return f"<{self._lock!r}, to be entered>"


class HeldByTasks(ForTasks):
    """``async with`` for a lock whose sync form threads use with ``with``."""

    __slots__ = ()

    _who = "task"
    _patient = False  # a try must not block the loop
    timeout: float | None

    if TYPE_CHECKING:

        def _line_name(self) -> tuple[object, ...] | None: ...
        def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
            """Take the lock."""

        def _limit(self, timeout: float | None) -> float | None: ...
        def _leave(self, me: object, *error: object) -> Any:
            """Release what a task holds, at the end of a block; the result may be awaited."""

    def _into_line(self, timeout: float | None) -> tuple[bool, int, Sleep | None]:
        """Tell whether tasks of this loop wait in this line, and when this task asked.

        If many tasks begin to wait at once, it first sleeps so, until it is its turn to begin.
        """
        asked = capi.now_ns()
        if timeout == 0:
            return False, asked, None
        task_here()
        in_line = is_line_here(self._line_name())
        return in_line, asked, hub_here().gate.enter() if in_line else None

    def _wins(self) -> tuple[Sequence[Any], Any]:
        """Name what an acquisition wins: some locks, or a part of this one."""
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
        return await run_async(steps, *self._wins(), Holding(self, task_here()))

    @inside.unstruck
    def __aexit__(self, *error: object) -> Awaitable[None]:
        return leaving(self, None, error)


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
        return Entering(self, self._limit(timeout), reads=True)

    def exclusive(self, timeout: float | None = OWN_TIMEOUT) -> Entering:
        """Hold the lock as the writer in an ``async with`` block."""
        return Entering(self, self._limit(timeout), reads=False)
