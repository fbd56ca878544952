"""Locks of an engine with more than one holder, for tasks."""

from __future__ import annotations

from semlock._engines.async_lock import AsyncEngineLock
from semlock._engines.engine import READERS
from semlock._engines.kinds import InParts, SharedEngineLock, SlotEngineLock
from semlock._locks.async_form import this_task
from semlock._locks.async_holding import HeldByTasks, OnePart, SharedByTasks, task_here

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from semlock._waiting.steps import Steps


class InPartsOfTasks(HeldByTasks, InParts):  # type: ignore[misc]  # its words are awaited
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

    async def _leave(self, me: object, *error: object) -> None:
        part = self._held(me)
        try:
            await part.__aexit__(*error)
        finally:
            self._left(me, part)


class AsyncSharedEngineLock(SharedByTasks, InPartsOfTasks, SharedEngineLock):  # type: ignore[misc]
    """A lock on an engine that many tasks may share as readers, or one may hold as the writer.

    ``async with lock.shared():`` is for readers, ``async with lock:`` for the writer.  It excludes
    the form for threads and all other holders.
    """

    def _reading(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._taking(READERS, timeout, frame)


class AsyncSlotEngineLock(InPartsOfTasks, SlotEngineLock):  # type: ignore[misc]
    """At most so many holders at a time, on an engine, each of them a task."""
