"""Waiting in an event loop: one event source and one timer for each loop, one line for each lock.

A waiting task needs no thread, and all tasks of a loop share one descriptor.  All of this runs in
the loop's thread and never blocks it: the core is asked what it sees, and tasks await futures.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import suppress
from contextvars import Context
from weakref import WeakSet, ref

from semlock._core import capi, registry, waits
from semlock._waiting.sleeping import Bells, Gate, Sleeper, Timers, crowded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any

    from semlock._core.waits import Wait
    from semlock._waiting.sleeping import Line

# A loop's timer is not set for longer, since some loops can't.
_LONGEST_TIMER = 3600.0

# How many tasks may end by a cancellation within a millisecond.  The others end in later steps of
# the loop, as many in each: by themselves all tasks that are cancelled at once end in one step.
_AT_ONCE = 64
_STEP = 1_000_000


class _Parked(asyncio.Future):  # type: ignore[type-arg]
    """What a task of asyncio sleeps by.

    A cancellation that is put off counts from the moment when it was asked for: what wakes the
    task until then cancels it.
    """

    __slots__ = ("_hub", "_late", "_message")

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._hub = hub
        self._late = False
        self._message: Any = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, now or after others that were cancelled before."""
        if self._late:
            return True
        if not self.done() and self._hub.is_late(self.end, None):
            self._late, self._message = True, msg
            return True
        return super().cancel(msg)

    def end(self, outcome: int | None) -> None:
        """End the sleep, by the cancellation that was asked for if there was one."""
        if self.done() or self.get_loop().is_closed():
            return
        # A signal handler may have cancelled it since it was checked.
        with suppress(asyncio.InvalidStateError):
            if self._late:
                super().cancel(self._message)
            else:
                self.set_result(outcome)


class Hub:
    """What the waits of one loop share: event source, timer, and which wait waits for what."""

    __slots__ = (
        "__weakref__", "_alarm", "_began", "_bells", "_cancelled", "_count", "_deaf", "_marks",
        "_over", "context", "events", "gate", "lines", "loop", "sleepers", "timers", "waits",
    )  # fmt: skip

    # How many tasks may begin to wait in one step of the loop.
    in_a_step = 16

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.events = -1
        self.waits: set[int] = set()
        # One context for all timers: a copy of each task's own would cost memory for each task.
        self.context = Context()
        self._over = False
        # What ends the tasks that are to be cancelled in later steps, and its argument.
        self._cancelled: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._began = self._count = 0
        self.loop = None if loop is None else ref(loop)
        self._marks = waits.Marks()
        self.sleepers: dict[int, tuple[Sleeper, ...]] = {}
        self._bells: Bells | None = None
        self._deaf = False
        self._alarm: asyncio.TimerHandle | None = None
        self.lines: dict[Hashable, Line] = {}
        self.timers = Timers(self._set_alarm)
        self.gate = Gate(self)
        _alive.add(self)
        if sys.platform != "win32":  # Windows has no event source that a loop can poll
            self.events = waits.take_events(capi.POOL)
        if (
            loop is not None
            and self.events >= 0
            and not self._listen_to(self.events, self._read)
        ):
            self._give_back()

    # ------------------------------------------------------------------ the loop

    def _listen_to(self, descriptor: int, read: Any) -> bool:
        """Have the loop call a function when a descriptor is readable; ``False`` if it can't."""
        loop = None if self.loop is None else self.loop()
        try:
            if loop is not None and not self._deaf:
                loop.add_reader(descriptor, read)
                return True
        except NotImplementedError:
            self._deaf = True
        return False

    def park(self) -> Any:
        """Make a future for a task to await, which its ``end`` ends."""
        return _Parked(self, asyncio.get_running_loop())

    def is_late(self, end: Callable[[Any], object], how: Any) -> bool:
        """Tell whether a cancellation comes after too many others; then ``end(how)`` does it."""
        now = capi.now_ns()
        if now - self._began > _STEP:
            self._began, self._count = now, 0
        self._count += 1
        if self._count <= _AT_ONCE and not self._cancelled:
            return False
        self._cancelled.append((end, how))
        if len(self._cancelled) == 1:
            self.soon(self._cancel_some)
        return True

    def _cancel_some(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._cancelled))):
            end, how = self._cancelled.popleft()
            end(how)
        if self._cancelled:
            self.soon(self._cancel_some)

    def soon(self, function: Callable[[], object]) -> None:
        """Have the loop call a function; any thread may ask for it."""
        loop = None if self.loop is None else self.loop()
        if loop is not None:
            with suppress(RuntimeError):  # it is closed, or is being closed
                loop.call_soon_threadsafe(function, context=self.context)

    async def rest(self, seconds: float) -> None:
        """Sleep for some seconds."""
        await asyncio.sleep(seconds)

    def _set_alarm(self, when: int) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()
        loop = None if self.loop is None else self.loop()
        if loop is not None and not loop.is_closed():
            delay = min(max(0, when - capi.now_ns()) / 1e9, _LONGEST_TIMER)
            self._alarm = loop.call_later(delay, self.timers.run, context=self.context)

    def __del__(self) -> None:
        # The garbage collector may finalize a hub before its waits.  The last one to end gives
        # the event source back.
        self._over = True
        crowded.discard(id(self))
        if not self.waits:
            self._give_back()

    def left(self, wait: Wait) -> None:
        """Note that a wait has ended; it may be called twice."""
        self.waits.discard(id(wait))
        if self._over and not self.waits:
            self._give_back()

    def _give_back(self) -> None:
        events, self.events = self.events, -1
        if events >= 0:
            waits.give_events(capi.POOL, events)
        if self._bells is not None:
            self._close_bells()

    def _close_bells(self) -> None:
        bells, self._bells = self._bells, None
        if bells is not None:
            bells.close()

    def forget(self) -> None:
        """Forget the parent's descriptors after a fork; C closes its copies."""
        self.events = -1
        self._close_bells()

    # ------------------------------------------------------------------ hearing

    def hear(self, wait: Wait, until: int | None, *, news: bool = False) -> int | Sleeper:
        """Return what can be done now, or a ``Sleeper`` that sleeps until there is something.

        Outcomes are those of ``wait.wait()``: FREE, LOOK, or BLIND (look after a pause).  A
        sleeper's ``parked`` gives them too, and TIME; end the sleeper afterwards.  With ``news`` it
        also gives RACED after an event that left nothing to do.  The wait must use this hub's event
        source (see ``Wait``).
        """
        outcome = wait.wait(capi.now_ns())
        if outcome == capi.TIME and self.events < 0 and not wait.look_at:
            return capi.BLIND  # there are events, but this loop can't poll for them
        if outcome != capi.TIME:
            return outcome
        sleeper = Sleeper(self, wait, until, news=news)
        if sleeper.rest():
            return sleeper
        sleeper.end()
        return capi.BLIND

    def _read(self) -> None:
        marks = self._marks.read(self.events)
        if -1 in marks:
            marks = list(self.sleepers)
        # Waits for one file share its mark, so several sleepers may have to check.
        for sleeper in {s for mark in marks for s in self.sleepers.get(mark, ())}:
            if sleeper.wait.told(self._marks):
                sleeper.look(told=True)

    def hear_bell(self, bell: int, sleeper: Sleeper) -> bool:
        """Register a sleeper for a bell; ``False`` if bells don't work here."""
        if self._bells is None and not self._deaf:
            self._bells = self._new_bells()
        if self._bells is None:
            return False
        self._bells.listen(bell, sleeper)
        return True

    def _new_bells(self) -> Bells | None:
        try:
            bells = Bells()
        except (TypeError, OSError):
            return None  # no epoll here, or no descriptor left: the wait polls
        if self._listen_to(bells.fileno(), bells.read):
            return bells
        bells.close()
        return None

    def ignore_bell(self, bell: int, sleeper: Sleeper) -> None:
        """Unregister a sleeper from a bell."""
        if self._bells is not None:
            self._bells.ignore(bell, sleeper)


# By the identity of loops, and weak: the loop and its waits keep a hub alive.  A strong reference
# would keep the loop alive, as futures of the hub refer to it.
_hubs: dict[int, ref[Hub]] = {}
_alive: WeakSet[Hub] = WeakSet()


def trio_here() -> Any:
    """Give the module trio if the current task is trio's."""
    trio = registry.imported("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def hub_here() -> Hub:
    """Give the hub of the running loop."""
    if "trio" in sys.modules and (trio := trio_here()) is not None:
        from semlock._waiting.trio_loop import hub_of_run  # noqa: PLC0415 - for those who have trio

        return hub_of_run(trio)
    loop = asyncio.get_running_loop()
    known = _hubs.get(id(loop))
    hub = None if known is None else known()
    if hub is None or hub.loop is None or hub.loop() is not loop:
        hub = Hub(loop)
        for name in [name for name, other in list(_hubs.items()) if other() is None]:
            _hubs.pop(name, None)
        _hubs[id(loop)] = ref(hub)
    return hub


def is_line_here(name: Hashable) -> bool:
    """Tell whether tasks of this loop wait in this line, or are about to."""
    if not crowded or name is None:
        return False
    hub = hub_here()
    return name in hub.lines or hub.gate.due_at != 0


def released_here(*names: Hashable) -> None:
    """Wake the first of some lines of this loop after a release, to try at once."""
    if trio_here() is None and asyncio._get_running_loop() is None:
        return
    hub = hub_here()
    for name in names:
        line = hub.lines.get(name)
        if line is not None:
            line.released()


def _forget() -> None:
    for hub in list(_alive):
        hub.forget()
    _hubs.clear()
    crowded.clear()


registry.on_fork(_forget)
