"""The times at which waits of one loop look without an event: many times, one timer of the loop."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from weakref import WeakMethod

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Timed(Protocol):
        """An object that can be called at a time; ``due_at`` is 0 while it has none."""

        due_at: int

        def on_time(self) -> None:
            """Do what is due."""


# How many are called in one step of the loop; it runs other callbacks before the next ones.
_AT_ONCE = 32
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
        if when < self._alarm_at:
            self._alarm_at = when
            self._ask_for(when)

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

    def _ask_for(self, when: int) -> None:
        set_alarm = self._set_alarm()
        if set_alarm is not None:
            set_alarm(when)

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
            if self._heap:
                self._ask_for(self._alarm_at)
