"""How a task sleeps until its wait has an event, or until it is time to look without one."""

from __future__ import annotations

import select

from semlock._core import capi, waits

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._waiting.hub import Hub


# Bells need epoll; other systems poll instead.
_epoll: Any = getattr(select, "epoll", None)
_ONCE: int = getattr(select, "EPOLLONESHOT", 0)


class Bells:
    """Reports when the tickets before ours in queues end, by one descriptor for all.

    A bell is a descriptor that the kernel hangs up.  The core opens and closes it, and a closed
    one leaves the epoll set by itself.

    """

    __slots__ = ("_poll", "_sleepers")

    def __init__(self) -> None:
        self._poll = _epoll()
        self._sleepers: dict[int, Sleeper] = {}

    def fileno(self) -> int:
        """Give the descriptor that the loop listens to."""
        return int(self._poll.fileno())

    def listen(self, bell: int, sleeper: Sleeper) -> None:
        """Tell a sleeper, once, when this bell rings."""
        self._sleepers[bell] = sleeper
        # Once only: if a forked child has a copy of the descriptor, it stays in the set.
        try:
            self._poll.register(bell, _ONCE)
        except FileExistsError:
            self._poll.modify(bell, _ONCE)

    def ignore(self, bell: int, sleeper: Sleeper) -> None:
        """Forget a sleeper's bell."""
        # The descriptor's number may have been reused for another bell.
        if self._sleepers.get(bell) is sleeper:
            del self._sleepers[bell]

    def read(self) -> None:
        """Tell the sleepers whose bells have rung."""
        for bell, _ in self._poll.poll(0, 64):
            sleeper = self._sleepers.pop(bell, None)
            if sleeper is not None:
                sleeper.rung()

    def close(self) -> None:
        """Close the descriptor."""
        self._poll.close()


class Sleeper:
    """One sleeping task: the marks and the bell that wake it, and when it looks without them."""

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
        """Go on sleeping until an event or a time; ``False`` if no event can come."""
        if self._marks or self.due_at or self._bell >= 0:
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
        """Check after an event, and wake the task if there is something to do."""
        # A task that is being woken still takes in events: it may watch other files.
        if not self.parked.done():
            self._look(capi.RACED if self._news else capi.TIME)

    def rung(self) -> None:
        """Check which waiter is before this one now."""
        if not self.parked.done():
            self._look(capi.TIME)

    def nudge(self) -> None:
        """Check at once: the lock was released in this loop."""
        self.wait.due()
        self.rung()

    def stop(self) -> None:
        """Wake the task: its wait was stopped."""
        if not self.parked.done():
            self._wake(capi.TIME)

    def on_time(self) -> None:
        """Check again, or report that the time is over."""
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
        if self.due_at:
            self._hub.timers.never(self)
        self._hub.wake(self.parked, outcome)

    def end(self) -> None:
        """Unregister from everything; it may be called twice."""
        if self.due_at:
            self._hub.timers.never(self)
        marks, self._marks = self._marks, ()
        self._hub.ignore(self, marks)
        bell, self._bell = self._bell, -1
        if bell >= 0:
            self._hub.ignore_bell(bell, self)
