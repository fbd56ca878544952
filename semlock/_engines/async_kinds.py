"""Locks on an engine for tasks: their requests run in worker threads."""

from __future__ import annotations

from semlock._core import LOST, NESTED, OK, explain
from semlock._engines.engine import READERS
from semlock._engines.kinds import InParts, SharedEngineLock, SlotEngineLock
from semlock._engines.lock import EngineLock
from semlock._engines.wait import Asking
from semlock._locks.async_form import AsyncForm, this_task
from semlock._locks.async_holding import HeldByTasks, SharedByTasks, task_here

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from semlock._locks.base import BaseLock
    from semlock._waiting.steps import Steps


class AsyncEngineLock(AsyncForm, EngineLock):  # type: ignore[misc]
    """A lock on an engine for tasks.  ``Space.AsyncLock`` makes it.

    ``try_acquire`` and ``release`` are calls, which wait for the engine's answer; ``async with``
    and ``acquire`` let the event loop go on meanwhile.
    """

    __slots__ = ("_holder",)

    async def __aexit__(  # type: ignore[override]
        self, kind: type[BaseException] | None, *_: object
    ) -> None:
        outcome, ticket = self.give_back_reported()
        if ticket is not None:
            lost = outcome == LOST
            outcome = await self._in_worker(lambda: self.client.leave(ticket, lost=lost))
        if outcome not in (OK, NESTED):
            await self._in_worker(lambda: self._finish_block(outcome, kind))

    async def _in_worker(self, function: Callable[[], Any]) -> Any:
        return await Asking(self.client, self.name, function).pause_async()

    def _end(self, endings: int) -> None:
        """Release for a call that has failed: the engine hears of it while the loop goes on."""
        if self._native.endings == endings:
            _, ticket = self.give_back_reported()
            if ticket is not None:
                self.client.drop(ticket, in_loop=True)

    def _holder_here(self) -> BaseLock | None:
        # Also if it is lost, and not released: then nothing would end this wait.
        return self if self._is_mine() else super()._holder_here()

    def _refuse_if_own(self, holder: BaseLock, frame: FrameType, timeout: float | None) -> None:
        if holder is self and self._is_mine():
            raise explain.deadlock_error(self, frame, "task")
        super()._refuse_if_own(holder, frame, timeout)


class InPartsOfTasks(HeldByTasks, InParts):  # type: ignore[misc]  # its words are awaited
    """What both kinds share.  Only ``async with`` and ``acquire`` let the event loop go on."""

    _one_part = AsyncEngineLock

    def _me(self) -> Any:
        return task_here()

    def _mine(self) -> Any:
        return None if this_task() is None else super()._mine()

    def _wins(self) -> tuple[Sequence[Any], Any]:
        return (), self

    def _part_here(self) -> tuple[Any, Any]:
        me = this_task()
        return me, self._parts.get(me)

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
