"""One wait for a lock on an engine: an ``Attempt``.

It stands in the engine's line from the first request on.  News, or the answer to the renewal of
its entry, end its sleep.  A task's requests run in a worker thread, so that its loop goes on.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import monotonic

from semlock._core import inside
from semlock._core.outcomes import OK
from semlock._engines.clock import now
from semlock._engines.engine import GONE, HOLDS, WAITS, Away
from semlock._waiting.hub import trio_here
from semlock._waiting.notice import Stoppable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from semlock._engines.client import Client
    from semlock._engines.lock import EngineLock
    from semlock._engines.ticket import Ticket
    from semlock._waiting.steps import Steps

    T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Wait(Stoppable):
    """A wait of a thread or a task, from the first request to its end."""

    __slots__ = (
        "_began", "_end_at", "_failure", "_lock", "_next", "_pause", "client",
        "judge", "outcome", "ticket",
    )  # fmt: skip

    def __init__(self, lock: EngineLock, timeout: float | None) -> None:
        self._lock = lock
        self.client = lock.client
        self._began = monotonic()
        self._end_at = None if timeout is None else self._began + timeout
        self._failure: Away | None = None  # why the last request had no answer
        self._pause = _FIRST_PAUSE
        self._next = 0.0  # when to ask again after a failure
        self.judge: bool | None = False
        self.outcome: int | None = None
        self.ticket: Ticket = lock.new_ticket()
        self._notice = self.begin(lock)  # last: from now on it may be stopped

    # ------------------------------------------------------------------ what an Attempt tells

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return monotonic() - self._began

    @property
    def left(self) -> float | None:
        """Say for how many seconds it may go on; ``None`` if there is no end."""
        return None if self._end_at is None else self._end_at - monotonic()

    def in_turn(self, *, fair: bool) -> bool:
        """Tell that the engine keeps the turns."""
        del fair
        return True

    def failed(self, outcome: int) -> None:
        """Go on: the entry stays in the line."""
        del outcome

    def judged(self, seen: Any, again_at: int | None) -> None:
        """Do nothing: no holder is judged here."""

    def follow(self, pid: int, start: int) -> None:
        """Do nothing: the engine knows when a holder ends."""

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        self.stopped = True
        if (wake := self.ticket.wake) is not None:
            wake()

    def end(self, won: Any = None) -> None:
        """Take the entry out, unless the lock is held by it now."""
        del won
        self.of = None
        ticket = self.ticket
        ticket.wake = None
        if not self._lock.holds_by(ticket):
            self.client.drop(ticket, in_loop=inside.is_for_tasks(self._lock))

    # ------------------------------------------------------------------ asking

    def entering(self) -> Steps[None]:
        """Make the first request."""
        yield _First(self)

    def _ask(self) -> None:
        """Put the entry in the line, or ask how it stands; then win if it holds."""
        ticket = self.ticket
        limit = self.left
        try:
            self.client.ask(ticket, waits=True, within=limit)
        except Away as failure:
            self._failure = failure
            self._next = now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._failure = None
            self._pause = _FIRST_PAUSE

    def _is_due(self) -> bool:
        """Tell whether to ask the engine now."""
        ticket, at = self.ticket, now()
        if self._failure is not None:
            return at >= self._next
        if ticket.state == WAITS:
            return (
                ticket.again_at is not None and at >= ticket.again_at
            ) or at >= ticket.ends_at
        return ticket.state != HOLDS

    def _wins(self) -> bool:
        """Win if the entry holds; one whose lease has ended begins anew."""
        ticket = self.ticket
        if ticket.state == HOLDS:
            if self._lock.win(ticket):
                self.outcome = OK
                return True
            # Its lease has ended, or another thread holds by this very object at the moment.
            if ticket.lost or now() >= ticket.ends_at:
                ticket.state = GONE
        if ticket.state == GONE and ticket.asked:
            # It was removed, or the engine has lost it: begin at the end of the line.
            wake, ticket.wake = ticket.wake, None
            self.client.drop(ticket)
            self.ticket = self._lock.new_ticket()
            self.ticket.wake = wake
        return False

    def _is_over(self) -> bool:
        left = self.left
        if left is None or left > 0:
            return False
        if self._failure is not None:
            raise self.client.error("acquired", self._failure, self._lock.path, self.waited)
        return True

    def _sleep_for(self) -> float | None:
        """Say how long to sleep at most if there is no news."""
        self.report(monotonic())
        ends = [] if self.left is None else [self.left]
        ticket, at = self.ticket, now()
        if self._failure is not None:
            ends.append(self._next - at)
        elif ticket.state == HOLDS:
            ends.append(
                _FIRST_PAUSE
            )  # another thread has lost the lock by this object, and holds on
        elif ticket.state == WAITS:
            ends.append(ticket.ends_at - at)
            if ticket.again_at is not None:
                ends.append(ticket.again_at - at)
        if self._notice is not None and self._notice.due != float("inf"):
            ends.append(self._notice.due - monotonic())
        return max(0.0, min(ends)) if ends else None

    # ------------------------------------------------------------------ sleeping

    def first(self) -> None:
        """Ask for the first time, in this thread."""
        self._ask()
        if self._failure is None:
            self._wins()

    async def first_async(self) -> None:
        """Ask for the first time, while the event loop goes on."""
        await self._ask_async()
        if self._failure is None:
            self._wins()

    def step(self, wake: Callable[[], object]) -> float | None:
        """Do what is due, for a caller that waits for several locks: how long to sleep at most."""
        self.ticket.wake = wake
        while not self._wins():
            if not self._is_due():
                return self._sleep_for()
            self._ask()
        return None

    def pause(self) -> bool:
        """Sleep in this thread until the lock is won; ``False`` if the time is over."""
        event = threading.Event()
        self.ticket.wake = event.set
        while not self._wins():
            if self._is_over():
                return False
            if self._is_due():
                self._ask()
                continue
            event.wait(self._sleep_for())
            event.clear()
        return True

    async def pause_async(self) -> bool:
        """Sleep in the event loop, which goes on."""
        trio = trio_here()
        event: Any = (trio or asyncio).Event()
        if trio:
            token = trio.lowlevel.current_trio_token()

            def wake() -> None:
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(event.set)

        else:
            loop = asyncio.get_running_loop()

            def wake() -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(event.set)

        self.ticket.wake = wake
        while not self._wins():
            if self._is_over():
                return False
            if self._is_due():
                await self._ask_async()
                continue
            limit = self._sleep_for()
            if trio:
                with trio.move_on_after(float("inf") if limit is None else limit):
                    await event.wait()
                event = trio.Event()
            else:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), limit)
                event.clear()
        return True

    async def _ask_async(self) -> None:
        await in_worker(self.client, self.ticket.name, self._ask)


async def in_worker(client: Client, name: str, function: Callable[[], T]) -> T:
    """Call a function in a worker thread, after earlier calls for this name."""
    trio = trio_here()
    answer: list[T | BaseException] = []
    event: Any = (trio or asyncio).Event()
    if trio:
        soon = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        soon = asyncio.get_running_loop().call_soon_threadsafe

    def work() -> None:
        try:
            answer.append(function())
        except BaseException as error:  # noqa: BLE001 - raised where it belongs
            answer.append(error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            soon(event.set)

    if not client.calls.put(name, work):
        return function()
    await event.wait()
    result = answer[0]
    if isinstance(result, BaseException):
        raise result
    return result


class _First:
    """The step of the first request."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    def pause(self) -> None:
        self._wait.first()

    def pause_async(self) -> Any:
        return self._wait.first_async()
