"""Steps of acquiring on an engine, each for a thread and for a task: a request, and a sleep."""

from __future__ import annotations

import threading
from contextlib import suppress

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._engines.client import Client


def _in_loop() -> tuple[Any, Callable[..., object]]:
    """Make an event of the loop that runs; and give what has a function called in that loop."""
    import asyncio  # noqa: PLC0415 - for tasks only

    from semlock._waiting.hub import trio_here  # noqa: PLC0415

    trio = trio_here()
    if trio:
        return trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe


class Asking:
    """A call that may ask the engine.

    A thread makes it itself; a task's is made in a worker thread.  Calls for the same name are made
    in order.  A task that is cancelled does not end its call: what it asks later comes after it.
    """

    __slots__ = ("_client", "_function", "_name")

    def __init__(self, client: Client, name: str, function: Callable[[], Any]) -> None:
        self._client = client
        self._name = name
        self._function = function

    def pause(self) -> Any:
        """Make the call."""
        return self._function()

    async def pause_async(self) -> Any:
        """Have it made, while the event loop goes on."""
        event, soon = _in_loop()
        answer: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(self._function())
            except BaseException as error:  # noqa: BLE001 - raised where it belongs
                failure.append(error)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                soon(event.set)

        if not self._client.calls.put(self._name, work):
            return self._function()
        await event.wait()
        if failure:
            raise failure[0]
        return answer[0]


class Bell:
    """A sleep that any thread can end, at once or in advance."""

    __slots__ = ("_limit", "_rung", "_wake")

    def __init__(self) -> None:
        self._limit: float | None = None
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def ring(self) -> None:
        """End the sleep, or the next one."""
        self._rung = True
        wake = self._wake
        if wake is not None:
            wake()

    def within(self, limit: float | None) -> Bell:
        """Make it a sleep of at most so many seconds."""
        self._limit = limit
        return self

    def pause(self) -> None:
        """Sleep in this thread."""
        event = threading.Event()
        self._wake = event.set  # before the look: one of both sees what rings meanwhile
        if not self._rung:
            event.wait(self._limit)
        self._rung, self._wake = False, None

    async def pause_async(self) -> None:
        """Sleep in the event loop, which goes on."""
        import asyncio  # noqa: PLC0415 - for tasks only

        from semlock._waiting.hub import trio_here  # noqa: PLC0415

        event, soon = _in_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                soon(event.set)

        self._wake = wake
        if not self._rung:
            trio = trio_here()
            if trio:
                limit = float("inf") if self._limit is None else self._limit
                with trio.move_on_after(limit):
                    await event.wait()
            else:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), self._limit)
        self._rung, self._wake = False, None
