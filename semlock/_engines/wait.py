"""Waits for locks on an engine: each is an ``Attempt``.

A wait stands in the engine's line from its first request on.  News, or the answer to the renewal
of its entry, end its sleep.  Waiting for one lock, or for any of several, is one generator, which
a thread or a task drives.  Its steps, requests (``Asking``) and sleeps (``Bell``), are for both.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from time import monotonic

from semlock._core import OK, explain, inside
from semlock._engines.engine import GONE, HOLDS, WAITS, Away, now
from semlock._waiting.steps import Stoppable, run_async
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock._engines.client import Client
    from semlock._engines.lock import EngineLock
    from semlock._engines.ticket import Ticket
    from semlock._waiting.steps import Steps


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
        event = threading.Event()
        self._wake = event.set  # before the look: one of both sees what rings meanwhile
        if not self._rung:
            event.wait(self._limit)
        self._rung, self._wake = False, None

    async def pause_async(self) -> None:
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


_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class _NotAsked(Exception):  # noqa: N818 - no failure: it is asked then
    """A notice is due that says who holds the lock."""


class Wait(Stoppable):
    """A wait of a thread or a task, from the first request to its end.

    With no time at all it asks for the lock once, and stands in no line.
    """

    __slots__ = (
        "_began", "_end_at", "_failure", "_found", "_lock", "_next", "_once", "_pause", "client",
        "judge", "outcome", "ticket",
    )  # fmt: skip

    def __init__(self, lock: EngineLock, timeout: float | None) -> None:
        self._lock = lock
        self.client = lock.client
        self._began = monotonic()
        self._end_at = None if timeout is None else self._began + timeout
        self._once = timeout == 0
        self._found: LockStatus | None = None  # for the notice
        self._failure: Away | None = None  # why the last request had no answer
        self._pause = _FIRST_PAUSE
        self._next = 0.0  # when to ask again after a failure
        self.judge: bool | None = False
        self.outcome: int | None = None
        self.ticket: Ticket = lock.new_ticket()
        self._notice = self.begin(lock, self._seen)  # last: from now on it may be stopped

    # ------------------------------------------------------------------ what an Attempt tells

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return monotonic() - self._began

    @property
    def left(self) -> float | None:
        """Say for how many seconds it may go on; ``None`` if there is no end."""
        return None if self._end_at is None else self._end_at - monotonic()

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        """Tell that the engine keeps the turns."""
        del fair, anew
        return True

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
        self.ticket.wake = None
        if not self._lock.holds_by(self.ticket):
            self._drop()

    def _drop(self) -> None:
        self.client.drop(self.ticket, in_loop=inside.is_for_tasks(self._lock))

    # ------------------------------------------------------------------ asking

    def asking(self, function: Callable[..., Any], *arguments: Any) -> Asking:
        """Make a step of a call that may ask the engine."""
        return Asking(self.client, self._lock.name, partial(function, *arguments))

    def entering(self) -> Steps[bool]:
        """Ask for the first time; ``True`` if the lock is won."""
        yield from self.asking_again()
        return self._failure is None and self.wins()

    def asking_again(self) -> Steps[None]:
        """Put the entry in the line, or ask how it stands."""
        yield self.asking(self._ask)

    def _ask(self) -> None:
        try:
            self.client.ask(self.ticket, waits=not self._once, within=self.left)
        except Away as failure:
            self._failure = failure
            self._next = now() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._failure = None
            self._pause = _FIRST_PAUSE

    def is_due(self) -> bool:
        """Tell whether to ask the engine now."""
        ticket, at = self.ticket, now()
        if self._failure is not None:
            return at >= self._next
        if ticket.state == WAITS:
            again = ticket.again_at
            return (again is not None and at >= again) or at >= ticket.ends_at
        return ticket.state != HOLDS

    def wins(self) -> bool:
        """Win if the entry holds; one whose lease has ended begins anew."""
        ticket = self.ticket
        if ticket.state == HOLDS:
            if self._lock.win(ticket):
                self.outcome = OK
                return True
            # Its lease has ended, or another thread holds by this very object at the moment.
            if ticket.lost or now() >= ticket.ends_at:
                ticket.state = GONE
        if ticket.state == GONE:
            # It was removed, the engine has lost it, or its lease may have ended.  Begin at the
            # end of the line, and take out what may be left: only the engine's own answer to a
            # request to enter says that nothing is.
            wake, ticket.wake = ticket.wake, None
            self._drop()
            self.ticket = self._lock.new_ticket()
            self.ticket.wake = wake
        return False

    def ending(self) -> Steps[Exception]:
        """Make the error of a wait whose time is over."""
        if self._failure is not None:
            return self.client.error("acquired", self._failure, self._lock.path, self.waited)
        error: Exception = yield self.asking(explain.timeout_error, self._lock, self.waited)
        return error

    # ------------------------------------------------------------------ telling and sleeping

    def telling(self) -> Steps[None]:
        """Report the wait if that is due; before it, the engine is asked who holds the lock."""
        try:
            self.report(monotonic())
        except _NotAsked:
            with suppress(OSError):  # the next request will say what is wrong
                self._found = yield self.asking(self._lock.status)
            with suppress(_NotAsked):
                self.report(monotonic())

    def _seen(self) -> LockStatus:
        found, self._found = self._found, None
        if found is None:
            raise _NotAsked
        return found

    def sleep_for(self) -> float:
        """Say how long to sleep at most if there is no news."""
        left, ticket, at = self.left, self.ticket, now()
        ends = [float("inf") if left is None else left]
        if self._failure is not None:
            ends.append(self._next - at)
        elif ticket.state == HOLDS:
            ends.append(_FIRST_PAUSE)  # another has lost the lock by this object, and holds on
        elif ticket.state == WAITS:
            ends.append(ticket.ends_at - at)
            if ticket.again_at is not None:
                ends.append(ticket.again_at - at)
        if self._notice is not None:
            ends.append(self._notice.due - monotonic())
        return max(0.0, min(ends))

    def pause(self) -> bool:
        """Sleep in this thread until the lock is won; an error at the end of the time."""
        run(first_of((self,)))
        return True

    async def pause_async(self) -> bool:
        await run_async(first_of((self,)), ())
        return True


def first_of(waits: Sequence[Wait]) -> Steps[Wait]:
    """Sleep until one of some waits has won: that one; an error when the time is over."""
    bell = Bell()
    for wait in waits:
        wait.ticket.wake = bell.ring
    while True:
        for wait in waits:
            if wait.wins():
                return wait
        if any(wait.left is not None and wait.left <= 0 for wait in waits):
            raise (yield from waits[0].ending())
        due = [wait for wait in waits if wait.is_due()]
        for wait in due:
            yield from wait.asking_again()
        if due:
            continue
        for wait in waits:
            yield from wait.telling()
        limit = min(wait.sleep_for() for wait in waits)
        yield bell.within(None if limit == float("inf") else limit)
