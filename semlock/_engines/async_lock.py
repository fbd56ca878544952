"""A lock on an engine for tasks: its requests run in worker threads."""

from __future__ import annotations

from semlock._core.outcomes import HELD, LOST, NESTED, OK
from semlock._engines.lock import EngineLock
from semlock._engines.wait import in_worker
from semlock._locks.async_form import AsyncForm

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from semlock._waiting.steps import Steps

_HAD = (OK, NESTED)


class AsyncEngineLock(AsyncForm, EngineLock):  # type: ignore[misc]
    """A lock on an engine for tasks.  ``Space.AsyncLock`` makes it.

    ``try_acquire`` and ``release`` are calls, which wait for the engine's answer; ``async with``
    and ``acquire`` let the event loop go on meanwhile.
    """

    __slots__ = ("_holder",)

    def _from_the_first_try(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        if self._native.reentrant and self._is_mine():
            self._settle(self._try(), frame)
            return
        if self.client.is_parents():
            self._follow_fork()
        wait = self._waiter(timeout, 0)
        try:
            yield from wait.entering()
            if wait.outcome == OK:
                self._settle(OK, frame)
            else:
                yield from self._waiting(HELD, timeout, frame, waiter=wait)
        finally:
            wait.end()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outcome, ticket = self.give_back_reported()
        if ticket is not None:
            lost = outcome == LOST
            outcome = await in_worker(
                self.client, self.name, lambda: self.client.leave(ticket, lost=lost)
            )
        if outcome not in _HAD:
            self._finish_block(outcome, kind)
