"""How a task sleeps: until its wait has an event, or its time comes, or its turn in a line.

Many tasks of one loop that want one lock stand in a line.  Only the first of it watches the file
and has a ticket in the queue of processes, with the time when it asked: they cost one wait.
"""

from __future__ import annotations

import select
from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush
from itertools import count
from weakref import WeakMethod, proxy

from semlock._core import capi, waits
from semlock._waiting.steps import Parked

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Any, Protocol

    from semlock._core.waits import Wait
    from semlock._waiting.async_waiter import AsyncWaiter
    from semlock._waiting.hub import Hub

    class Timed(Protocol):
        """An object that can be called at a time; ``due_at`` is 0 while it has none."""

        due_at: int

        def on_time(self) -> None:
            """Do what is due."""


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
                sleeper.look()

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
        self._marks, bell, when = self.wait.sources()
        sleepers = self._hub.sleepers
        for mark in self._marks:
            sleepers[mark] = (*sleepers.get(mark, ()), self)
        if bell >= 0:
            if not self._hub.hear_bell(bell, self):
                return False
            self._bell = bell
        if self._until is not None and not 0 < when < self._until:
            when = self._until
        if when:
            self._hub.timers.at(self, when)
        return True

    def look(self, *, told: bool = False) -> None:
        """Check, and wake the task if there is something to do, or ``told`` of an event."""
        # A task that is being woken still takes in events: it may watch other files.
        if self.parked.done():
            return
        outcome = self.wait.wait(capi.now_ns())
        if outcome != capi.TIME:
            self.parked.end(outcome)
        elif told and self._news:
            self.parked.end(capi.RACED)
        elif not self.rest():
            self.parked.end(capi.BLIND)

    def nudge(self) -> None:
        """Check at once: the lock was released in this loop."""
        self.wait.due()
        self.look()

    def stop(self) -> None:
        """Wake the task: its wait was stopped."""
        self.parked.end(capi.TIME)

    def on_time(self) -> None:
        """Check again, or report that the time is over."""
        if self._until is not None and capi.now_ns() >= self._until:
            self.parked.end(capi.TIME)
        else:
            self.look()

    def end(self) -> None:
        """Unregister from everything; it may be called twice."""
        if self.due_at:
            self._hub.timers.never(self)
        marks, self._marks = self._marks, ()
        sleepers = self._hub.sleepers
        for mark in marks:
            others = tuple(other for other in sleepers.get(mark, ()) if other is not self)
            if others:
                sleepers[mark] = others
            else:
                sleepers.pop(mark, None)
        bell, self._bell = self._bell, -1
        if bell >= 0:
            self._hub.ignore_bell(bell, self)


# How many owners are called, and how many tasks begin to wait within a millisecond, before the loop
# runs other callbacks.
_AT_ONCE = 64
_STEP = 1_000_000
# Cancelled entries are removed when they are this many and more than half of all.
_FEW_DEAD = 64

NEVER = 1 << 62


class Timers:
    """Calls ``on_time()`` of its owners, each at one time of ``now_ns``."""

    __slots__ = ("_alarm_at", "_dead", "_heap", "_serial", "_set_alarm")

    def __init__(self, set_alarm: Callable[[int], None]) -> None:
        # Sets the loop's timer.  Weak, as it is a method of the hub, which must be finalized when
        # its loop drops it.
        self._set_alarm = WeakMethod(set_alarm)
        self._alarm_at = NEVER
        self._heap: list[tuple[int, int, Any]] = []
        self._serial = count()
        self._dead = 0

    def at(self, owner: Timed, when: int) -> None:
        """Call an owner at this time instead of the one that was set before."""
        if owner.due_at:
            self.never(owner)
        owner.due_at = when
        heappush(self._heap, (when, next(self._serial), owner))
        if when < self._alarm_at and (set_alarm := self._set_alarm()) is not None:
            self._alarm_at = when
            set_alarm(when)

    def never(self, owner: Timed) -> None:
        """Cancel an owner's call; it may be called twice."""
        if not owner.due_at:
            return
        owner.due_at = 0
        self._dead += 1
        if self._dead >= len(self._heap):
            # Cleared at once, as the entries refer to the hub.
            self._heap.clear()
            self._dead = 0
        elif self._dead > _FEW_DEAD and 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].due_at == entry[0]]
            heapify(self._heap)
            self._dead = 0

    def run(self) -> None:
        """Call owners whose time has come, up to a limit."""
        now = capi.now_ns()
        try:
            for _ in range(_AT_ONCE):
                if not self._heap or self._heap[0][0] > now:
                    break
                when, _, owner = heappop(self._heap)
                if owner.due_at == when:
                    owner.due_at = 0
                    owner.on_time()
                else:
                    self._dead -= 1
        finally:
            self._alarm_at = self._heap[0][0] if self._heap else NEVER
            if self._heap and (set_alarm := self._set_alarm()) is not None:
                set_alarm(self._alarm_at)


# The hubs that have lines, or tasks that are about to join one: while it is empty, neither a
# release nor a try looks for a line.
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
            if not lines and not self._hub.gate.due_at:
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


class Gate:
    """Spreads the beginning of many waits over several steps of the loop.

    Each beginning takes some microseconds, in which the loop does nothing else.  Those beyond the
    limit of a millisecond begin in later steps, a few in each, and so do all that come before the
    last of these has begun: none begins before one that came earlier.
    """

    __slots__ = ("_began", "_count", "_hub", "_key", "due_at", "tasks")

    def __init__(self, hub: Hub) -> None:
        self._hub = proxy(hub)  # weak, as the hub owns the gate
        self._key = id(hub)
        self._began = self._count = 0
        # Not 0 while some are held back, or go on in this step of the loop.
        self.due_at = 0
        # The futures of the tasks that are held back, in the order in which they came.
        self.tasks: deque[Any] = deque()

    def enter(self) -> Parked | None:
        """Give a sleep of the task before its wait, or ``None``."""
        if not self.due_at:
            now = capi.now_ns()
            if now - self._began > _STEP:
                self._began, self._count = now, 0
            self._count += 1
            if self._count <= _AT_ONCE:
                return None
            self._hub.timers.at(self, now)
        parked = self._hub.park()
        self.tasks.append(parked)
        return Parked(parked)

    def on_time(self) -> None:
        """Let some of them begin."""
        tasks = self.tasks
        begin = min(self._hub.in_a_step, len(tasks))
        for _ in range(begin):
            tasks.popleft().end(None)
        # They run in the next step of the loop, and this once more after them.
        if begin:
            self._hub.timers.at(self, capi.now_ns())
        elif not self._hub.lines:
            crowded.discard(self._key)
