"""How a sidecar lock is waited for: by the schedule of the caller, or earlier if it gets free."""

from __future__ import annotations

import errno
from sys import _getframe as _frame
from time import monotonic

from semlock._core import capi, explain, waits
from semlock._core.capi import NESTED, OK
from semlock._core.seconds import GUARD_PATIENCE, checked_timeout
from semlock._core.status import GUARD_PAUSE
from semlock._locks.acquired import OWN_TIMEOUT
from semlock._systems.sidecar_judging import Judging
from semlock._waiting.steps import run_async
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it


class Waiting(Judging):
    """The part of ``SidecarLock`` for its waits, and for what waits in the event loop."""

    __slots__ = ()

    if TYPE_CHECKING:
        _next: capi.Record | None

    async def acquire_async(self, timeout: float | None = OWN_TIMEOUT) -> None:
        """Take the lock, waiting in the event loop instead of in the thread.

        The callbacks may be coroutine functions.  When the task is cancelled nothing is held.
        """
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        if limit is not None:
            limit = checked_timeout(limit)
        steps = self._acquiring(limit, _frame(1), may_deadlock=False)  # type: ignore[call-arg]
        await run_async(steps, (self,))

    def _is_time_to_try(self, waiter: Waiter) -> bool:
        """Tell whether the path may be free, or the schedule's pause is over."""
        if waiter.said == capi.LOOK:
            # Another instance is there.  It is judged at the next try: the schedule says when.
            seen = self.status().instance
            if seen is None:
                return True
            waiter.judged(seen, self._look_again_later(seen.key))
            return False
        if waiter.said in (capi.TIME, capi.BLIND):
            return waiter.judge is not False
        return waiter.said in (capi.FREE, capi.RACED)

    def _waits(self, timeout: float | None, asked: int, *, by_thread: bool) -> Waiter:
        """Begin to wait.  A lock of the form for threads may be waited for by a task too."""
        native = self._native
        queue = native if native.turns else None
        if by_thread:
            left = None if timeout is None else timeout - (capi.now_ns() - asked) / 1e9
            wait = waits.Wait((native,), queue, self._next, asked=asked)
            return Waiter(left, self._retry, wait=wait, of=self)
        from semlock._waiting.async_waiter import AsyncWaiter  # noqa: PLC0415 - for tasks
        from semlock._waiting.hub import hub_here  # noqa: PLC0415

        fair = queue is not None
        return AsyncWaiter(
            hub_here(), (native,), timeout, schedule=self._retry, queue=queue, record=self._next,
            fair=fair, stands=fair, asked=asked, of=self,
        )  # fmt: skip

    async def release_async(self) -> None:
        """Release the lock as ``release`` does, waiting for the guard in the event loop."""
        import asyncio  # noqa: PLC0415 - the caller has it

        end = monotonic() + GUARD_PATIENCE
        cancelled = None
        while True:
            outcome = self._let_go_whole()
            if outcome not in (capi.GUARDED, -errno.EINTR) or monotonic() >= end:
                break
            try:
                await asyncio.sleep(GUARD_PAUSE)
            except asyncio.CancelledError as error:
                # The lock must be released even if the task that releases it is cancelled.
                cancelled = error
        if outcome == capi.GUARDED:
            raise explain.guarded_error(self.path, "released")
        if outcome not in (OK, NESTED):
            self._finish_release(outcome)
        if cancelled is not None:
            raise cancelled
