"""Waiting in trio: the same hub, served by tasks of trio's own.

Nothing of trio is imported here; it is there when one of its tasks waits.
"""

from __future__ import annotations

from contextlib import suppress

from semlock._core import capi
from semlock._waiting.hub import Hub

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any


class _Parked:
    """What a task sleeps by: a future of a kind."""

    __slots__ = ("_hub", "_over", "_result", "_task")

    def __init__(self, hub: TrioHub) -> None:
        self._hub = hub
        self._task: Any = None
        self._over = False
        self._result: Any = None  # as trio takes it

    def done(self) -> bool:
        """Tell whether the sleep is over."""
        return self._over

    def end(self, outcome: int | None) -> None:
        """End the sleep."""
        if not self._over:
            self._wake(self._hub.value(outcome))

    def cancel(self, raise_cancel: Any) -> None:
        """End the sleep by what trio raises in the task, unless it has ended meanwhile."""
        if not self._over:
            self._wake(self._hub.capture(raise_cancel))

    def _wake(self, result: Any) -> None:
        self._over, self._result = True, result
        task, self._task = self._task, None
        if task is not None:
            self._hub.trio.lowlevel.reschedule(task, result)

    def _abort(self, raise_cancel: Any) -> Any:
        abort = self._hub.trio.lowlevel.Abort
        if self._hub.is_late(self.cancel, raise_cancel):
            return abort.FAILED
        self._over, self._task = True, None
        return abort.SUCCEEDED

    def __await__(self) -> Generator[Any, Any, int | None]:
        if self._over:
            return self._passed().__await__()
        lowlevel = self._hub.trio.lowlevel
        self._task = lowlevel.current_task()
        # No generator of its own: thousands may sleep.
        steps: Generator[Any, Any, int | None]
        steps = lowlevel.wait_task_rescheduled(self._abort).__await__()
        return steps

    async def _passed(self) -> int | None:
        await self._hub.trio.lowlevel.checkpoint()
        result: int | None = self._result.unwrap()
        return result


class TrioHub(Hub):
    """What the waits of one run of trio share."""

    __slots__ = ("_scope", "_token", "capture", "trio", "value")

    in_a_step = 1  # trio runs what it wakes in any order

    def __init__(self, trio: Any) -> None:
        from outcome import Value, capture  # noqa: PLC0415 - trio has it

        self.trio = trio
        self.value, self.capture = Value, capture
        self._token = trio.lowlevel.current_trio_token()
        # Ends the sleep of the task that keeps the time.
        self._scope: Any = trio.CancelScope()
        super().__init__()
        trio.lowlevel.spawn_system_task(self._keep_time)
        if self.events >= 0:
            self._listen_to(self.events, self._read)

    def _listen_to(self, descriptor: int, read: Any) -> bool:
        self.trio.lowlevel.spawn_system_task(self._serve, descriptor, read)
        return True

    async def _serve(self, descriptor: int, read: Any) -> None:
        while True:
            await self.trio.lowlevel.wait_readable(descriptor)
            read()

    async def _keep_time(self) -> None:
        while True:
            with self._scope:
                await self.trio.sleep_forever()
            self._scope = self.trio.CancelScope()
            self.timers.run()

    def _set_alarm(self, when: int) -> None:
        delay = max(0, when - capi.now_ns()) / 1e9
        self._scope.deadline = self.trio.current_time() + delay

    def park(self) -> _Parked:
        """Make what a task sleeps by."""
        return _Parked(self)

    def soon(self, function: Callable[[], object]) -> None:
        """Have the run call a function; any thread may ask for it."""
        with suppress(self.trio.RunFinishedError):
            self._token.run_sync_soon(function)

    async def rest(self, seconds: float) -> None:
        """Sleep so long, whatever happens."""
        await self.trio.sleep(seconds)


_of_run: Any = None


def hub_of_run(trio: Any) -> TrioHub:
    """Give the hub of the run of trio that goes on in this thread."""
    global _of_run  # noqa: PLW0603 - made when trio is there
    if _of_run is None:
        _of_run = trio.lowlevel.RunVar("semlock", default=None)
    hub: TrioHub | None = _of_run.get()
    if hub is None:
        hub = TrioHub(trio)
        _of_run.set(hub)
    return hub
