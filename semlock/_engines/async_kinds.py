"""Locks of an engine with more than one holder, for tasks."""

from __future__ import annotations

import sys

from semlock._engines.async_lock import AsyncEngineLock
from semlock._engines.engine import READERS
from semlock._engines.kinds import InParts, SharedEngineLock, SlotEngineLock
from semlock._locks.acquired import OWN_TIMEOUT
from semlock._locks.async_form import Acquiring, this_task
from semlock._locks.async_holding import Entering, HeldByTasks, OnePart, task_here

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType
    from typing import Any

    from typing_extensions import Self

    from semlock._waiting.steps import Steps

_frame = sys._getframe


class InPartsOfTasks(HeldByTasks, InParts):
    """What both kinds share.  Only ``async with`` and ``acquire`` let the event loop go on."""

    _who = "task"
    _one_part = AsyncEngineLock

    def _me(self) -> Any:
        return task_here()

    def _mine(self) -> Any:
        return None if this_task() is None else super()._mine()

    def _wins(self) -> tuple[Sequence[Any], OnePart]:
        return (), OnePart(self._parts, self._give_back)

    def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._taking(self._room, timeout, frame)

    def acquire(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = OWN_TIMEOUT
    ) -> Acquiring[Self]:
        """Take it, waiting; ``LockTimeoutError`` when the time is over."""
        return Acquiring(self._entered(self._steps(self._limit(timeout), _frame(1))))

    async def _leave(
        self,
        me: object,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        part = self._held(me)
        try:
            await part.__aexit__(kind, error, traceback)
        finally:
            self._left(me, part)


class AsyncSharedEngineLock(InPartsOfTasks, SharedEngineLock):
    """A lock on an engine that many tasks may share as readers, or one may hold as the writer.

    ``async with lock.shared():`` is for readers, ``async with lock:`` for the writer.  It excludes
    the form for threads and all other holders.
    """

    def acquire_shared(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = OWN_TIMEOUT
    ) -> Acquiring[Self]:
        """Take the lock as a reader, waiting for writers that came before."""
        return Acquiring(self._entered(self._reading(self._limit(timeout), _frame(1))))

    def shared(  # type: ignore[override]  # for async with
        self, timeout: float | None = OWN_TIMEOUT
    ) -> Entering:
        """Hold the lock as a reader in an ``async with`` block."""
        return self._entering(self._reading, self._limit(timeout))

    def exclusive(  # type: ignore[override]  # for async with
        self, timeout: float | None = OWN_TIMEOUT
    ) -> Entering:
        """Hold the lock as the writer in an ``async with`` block."""
        return self._entering(self._steps, self._limit(timeout))

    def _reading(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._taking(READERS, timeout, frame)


class AsyncSlotEngineLock(InPartsOfTasks, SlotEngineLock):
    """At most so many holders at a time, on an engine, each of them a task."""
