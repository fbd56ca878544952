"""The line in which the tasks of one loop wait for one lock.

Only the first of the line watches the lock's file and has a ticket in the queue of processes, with
the time when it asked.  So many tasks that want one lock cost one wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from weakref import proxy

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from semlock._core.waits import Wait
    from semlock._waiting.async_waiter import AsyncWaiter
    from semlock._waiting.hub import Hub

# The hubs that have lines: while it is empty, a release needs no look for a line.
crowded: set[int] = set()


class Line:
    """The tasks that wait, in the order in which they asked; joining and leaving cost O(1)."""

    __slots__ = ("_hub", "_key", "_left", "due_at", "first", "rest", "stands")

    def __init__(self, hub: Hub, key: Hashable) -> None:
        self._hub = hub
        self._key = key
        self._left: Wait | None = None
        self.due_at = 0
        # The task whose turn it is, and the others, which mostly don't exist.
        self.first: AsyncWaiter | None = None
        self.rest: OrderedDict[AsyncWaiter, None] | None = None
        # Whether a task of this line had to join the queue of processes: then later ones join it
        # at once.
        self.stands = False

    def __len__(self) -> int:
        return (self.first is not None) + len(self.rest or ())

    @staticmethod
    def joined(hub: Hub, key: Hashable, member: AsyncWaiter) -> Line:
        """Join the line with this key at its end; a new one if there is none."""
        crowded.add(id(hub))
        line = hub.lines.get(key)
        if line is None:
            line = hub.lines[key] = Line(hub, key)
        if line.first is None:
            line.first = member
        else:
            if line.rest is None:
                line.rest = OrderedDict()
            line.rest[member] = None
        return line

    def released(self) -> None:
        """Have the first one check now: the lock was released in this loop."""
        first = self.first
        if first is not None:
            first.nudge()

    def prepare_second(self) -> None:
        """Give the second its ticket before the first one's ends, if order matters.

        Otherwise the queue could be empty between the two, and another process that asked later
        would be first.

        """
        second = next(iter(self.rest or ()), None)
        if second is not None and second.fair:
            second.take_ticket()

    def leave(self, member: AsyncWaiter, wait: Wait | None) -> None:
        """Leave, and let the next one have its turn; it may be called twice.

        ``wait`` is the wait of a first that gives up.  It ends when the next one has its own
        ticket.

        """
        was_first = self.first is member
        if self.rest:
            # In this order an interrupt in between skips no task.
            self.rest.pop(member, None)
        if was_first:
            self.first = next(iter(self.rest or ()), None)
            if self.rest:
                self.rest.popitem(last=False)
        if wait is not None:
            self._end_left()
            self._left = wait
        first = self.first
        if first is None:
            lines = self._hub.lines
            if lines.get(self._key) is self:
                del lines[self._key]
            if not lines:
                crowded.discard(id(self._hub))
            if self._left is not None:
                self._end_left()
            return
        if self._left is not None and not self.due_at:
            self._hub.timers.at(self, capi.now_ns())
        if was_first:
            first.wake()

    def on_time(self) -> None:
        """End the wait of a task that gave up, when the next one has a ticket."""
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


# How many may begin to wait within a millisecond.  Those beyond it, and those that come while
# some are held back, begin in later steps of the loop, a few in each.
_AT_ONCE = 64
_STEP = 1_000_000


class Gate:
    """Spreads the beginning of many waits over several steps of the loop.

    Each beginning takes some microseconds, in which the loop does nothing else.

    """

    __slots__ = ("_began", "_count", "_hub", "due_at", "tasks")

    def __init__(self, hub: Hub) -> None:
        self._hub = proxy(hub)  # weak, as the hub owns the gate
        self._began = self._count = 0
        self.due_at = 0
        # The futures of the tasks that were held back, in the order in which they came.
        self.tasks: deque[Any] = deque()

    def enter(self) -> Any:
        """Give a future to await before the wait, or ``None``."""
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
            tasks.popleft().end(None)
        if tasks:
            self._hub.timers.at(self, capi.now_ns())
