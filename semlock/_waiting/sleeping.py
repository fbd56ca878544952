"""Sleeping in a loop until a wait is told of something, or until it is to look for itself."""

from __future__ import annotations

import select

from semlock._core import capi, waits

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._waiting.hub import Hub


# Where there is none of it, nobody has a bell.
_epoll: Any = getattr(select, "epoll", None)
_ONCE: int = getattr(select, "EPOLLONESHOT", 0)


class Bells:
    """Hears of the end of those who stand before us in queues, by one descriptor for all.

    A bell is a descriptor that the kernel hangs up.  The core opens and closes it; a closed
    one leaves the set by itself.
    """

    __slots__ = ("_poll", "_sleepers")

    def __init__(self) -> None:
        self._poll = _epoll()
        self._sleepers: dict[int, Sleeper] = {}

    def fileno(self) -> int:
        """Give the descriptor for a loop to listen to."""
        return int(self._poll.fileno())

    def listen(self, bell: int, sleeper: Sleeper) -> None:
        """Have a sleeper told when this bell rings, which it does once."""
        self._sleepers[bell] = sleeper
        # Once: a bell that a forked child has a copy of stays in the set when it is closed.
        try:
            self._poll.register(bell, _ONCE)
        except FileExistsError:
            self._poll.modify(bell, _ONCE)

    def ignore(self, bell: int, sleeper: Sleeper) -> None:
        """Have a sleeper told of it no more."""
        # The number may be another one's by now.
        if self._sleepers.get(bell) is sleeper:
            del self._sleepers[bell]

    def read(self) -> None:
        """Tell those whose bells have rung."""
        for bell, _ in self._poll.poll(0, 64):
            sleeper = self._sleepers.pop(bell, None)
            if sleeper is not None:
                sleeper.rung()

    def close(self) -> None:
        """Give the descriptor back."""
        self._poll.close()


class Sleeper:
    """One task that sleeps: what it is to hear of, and when it looks for itself."""

    __slots__ = ("_bell", "_hub", "_marks", "_news", "_until", "due_at", "parked", "wait")

    def __init__(self, hub: Hub, wait: waits.Wait, until: int | None, *, news: bool) -> None:
        self._hub = hub
        self._news = news
        self._until = until
        self._marks: Sequence[int] = ()
        self._bell = -1
        self.due_at = 0
        self.wait = wait
        self.parked: Any = hub.park()

    def rest(self) -> bool:
        """Sleep on, until told or until it is time to look; ``False`` if nobody can tell."""
        self.end()
        self._marks = self.wait.marks
        self._hub.listen(self, self._marks)
        bell = self.wait.bell
        if bell >= 0:
            if not self._hub.hear_bell(bell, self):
                return False
            self._bell = bell
        when = self.wait.look_at
        if self._until is not None and not 0 < when < self._until:
            when = self._until
        if when:
            self._hub.timers.at(self, when)
        return True

    def told(self) -> None:
        """See whether there is something to do, and wake the task if so."""
        # A task that is being woken still hears, so that what it waits for besides isn't lost.
        if not self.parked.done():
            self._look(capi.HELD if self._news else capi.TIME)

    def rung(self) -> None:
        """Look who stands before this one now."""
        if not self.parked.done():
            self._look(capi.TIME)

    def nudge(self) -> None:
        """Look at once: the lock was let go of in this loop."""
        self.wait.due()
        self.rung()

    def on_time(self) -> None:
        """Look, or say that the time is over."""
        if self.parked.done():
            return
        if self._until is not None and capi.now_ns() >= self._until:
            self._wake(capi.TIME)
        else:
            self._look(capi.TIME)

    def _look(self, nothing: int) -> None:
        outcome = self.wait.wait(capi.now_ns())
        if outcome == capi.TIME:
            outcome = nothing
        if outcome == capi.TIME:
            if not self.rest():
                self._wake(capi.BLIND)
        else:
            self._wake(outcome)

    def _wake(self, outcome: int) -> None:
        self._hub.timers.never(self)
        self._hub.wake(self.parked, outcome)

    def end(self) -> None:
        """Hear of nothing any more; more than once does no harm."""
        self._hub.timers.never(self)
        marks, self._marks = self._marks, ()
        self._hub.ignore(self, marks)
        bell, self._bell = self._bell, -1
        if bell >= 0:
            self._hub.ignore_bell(bell, self)
