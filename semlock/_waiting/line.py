"""The line in which the tasks of one loop wait for one lock.

Only the first of the line waits for the lock's file and stands in the queue of the processes,
with a ticket that says when it asked.  So what many tasks of one process that want one lock
cost is one wait, and not a wait, a timer and a ticket for each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from weakref import proxy

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from semlock._waiting.async_waiter import AsyncWaiter, LoopWait
    from semlock._waiting.hub import Hub

# The hubs that have lines.  While there is none, nobody needs to look for a line of its own.
crowded: set[int] = set()


class Line:
    """Those who wait, in the order in which they asked.  Joining and leaving take a step."""

    __slots__ = ("_hub", "_key", "_left", "_rest", "due_at", "first", "stands")

    def __init__(self, hub: Hub, key: Hashable) -> None:
        self._hub = hub
        self._key = key
        self._left: LoopWait | None = None
        self.due_at = 0
        # The one whose turn it is, and those behind it: most have nobody behind them.
        self.first: AsyncWaiter | None = None
        self._rest: OrderedDict[AsyncWaiter, None] | None = None
        # Whether one of them had to stand in the queue of the processes, so that those who
        # come after it stand there from the beginning.
        self.stands = False

    def __len__(self) -> int:
        return (self.first is not None) + len(self._rest or ())

    def join(self, member: AsyncWaiter) -> None:
        """Stand at the end."""
        if self.first is None:
            self.first = member
        else:
            if self._rest is None:
                self._rest = OrderedDict()
            self._rest[member] = None
        self._hub.lines[self._key] = self
        crowded.add(id(self._hub))

    def released(self) -> None:
        """Have the first one look now: the lock was let go of in this loop."""
        first = self.first
        if first is not None:
            first.nudge()

    def prepare_second(self) -> None:
        """Give the second its ticket before the first one's goes, if order is to be kept.

        Between the two the queue might be empty, and another process that asked later would be
        before it.
        """
        second = next(iter(self._rest or ()), None)
        if second is not None and second.fair:
            second.take_ticket()

    def leave(self, member: AsyncWaiter, wait: LoopWait | None) -> None:
        """Leave, and let the next one have its turn; more than once does no harm.

        ``wait`` is the one of a first that gives up.  It is ended when the next one has its
        own ticket.
        """
        was_first = self.first is member
        if self._rest:
            # In this order: an interrupt in between leaves nobody out.
            self._rest.pop(member, None)
        if was_first:
            self.first = next(iter(self._rest or ()), None)
            if self._rest:
                self._rest.popitem(last=False)
        if wait is not None:
            self._end_left()
            self._left = wait
        first = self.first
        if first is None:
            self._hub.drop_line(self._key, self)
            self._end_left()
            return
        if self._left is not None and not self.due_at:
            self._hub.timers.at(self, capi.now_ns())
        if was_first:
            first.wake()

    def on_time(self) -> None:
        """End the wait of one that gave up, when the next one has a ticket."""
        try:
            first = self.first
            if first is not None and self._left is not None:
                first.take_ticket()
        finally:
            self._end_left()

    def _end_left(self) -> None:
        self._hub.timers.never(self)
        wait, self._left = self._left, None
        if wait is not None:
            wait.end()


# So many may begin to wait in a millisecond; the others of that step of the loop, and those who
# come while they wait for that, begin in steps of their own, a few in each.
_AT_ONCE = 64
_STEP = 1_000_000


class Gate:
    """Where tasks begin to wait when thousands want to in one step of the loop.

    What each has to do then takes some microseconds, in which the loop does nothing else.
    """

    __slots__ = ("_began", "_count", "_hub", "due_at", "tasks")

    def __init__(self, hub: Hub) -> None:
        self._hub = proxy(hub)  # which has the gate
        self._began = self._count = 0
        self.due_at = 0
        # What those sleep by who have not begun, in the order in which they came.
        self.tasks: deque[Any] = deque()

    def enter(self) -> Any:
        """Give what to await before, ``None`` if nothing."""
        if not self.tasks:
            now = capi.now_ns()
            if now - self._began > _STEP:
                self._began, self._count = now, 0
            self._count += 1
            if self._count <= _AT_ONCE:
                return None
            self._hub.timers.at(self, now)
        parked = self._hub.park()
        self.tasks.append(parked)
        return parked

    def on_time(self) -> None:
        """Let some of them begin."""
        tasks = self.tasks
        for _ in range(min(self._hub.in_a_step, len(tasks))):
            self._hub.wake(tasks.popleft(), None)
        if tasks:
            self._hub.timers.at(self, capi.now_ns())
