"""Waits for locks on an engine: each is an ``Attempt``.

A wait stands in the engine's line from its first request on.  News, or the answer to the renewal
of its entry, end its sleep.  Waiting for one lock, or for any of several, is one generator, which
a thread or a task drives.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic

from semlock._core import OK, explain, inside
from semlock._engines.asking import Asking, Bell
from semlock._engines.clock import now
from semlock._engines.engine import GONE, HOLDS, WAITS, Away
from semlock._waiting.kept import Stoppable
from semlock._waiting.steps import run_async
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock._engines.lock import EngineLock
    from semlock._engines.ticket import Ticket
    from semlock._waiting.steps import Steps

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
        """Sleep in the event loop, which goes on."""
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
