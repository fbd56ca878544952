"""Waiting in an event loop: one event source for each loop, and one line for each path.

A thousand tasks that wait cost no thread and, beyond that one event source, no descriptor.
Everything here runs in the loop's own thread and never sleeps in it: the core is only asked
to look, and what has to be waited for is a future.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from contextvars import Context
from weakref import WeakSet, WeakValueDictionary, ref

from semlock import _native, _process
from semlock._waiting import _FIRST, _LOST_RACES, _SAFETY, Waiter, chance, growing_pauses

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from semlock._notice import Notice

_NO_PAUSES: Iterator[float] = iter(())


class Hub:
    """What the waits of one loop share: the event source, and who is to hear of which mark."""

    __slots__ = (
        "__weakref__", "_lines", "_loop", "_marks", "_over", "_sleepers", "context", "events",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events = -1
        self.waits: set[int] = set()
        # All timers run in one, which is ours: a copy of each task's would be one more thing
        # that a thousand tasks need a thousand of.
        self.context = Context()
        self._over = False
        self._loop: ref[asyncio.AbstractEventLoop] | None = None
        self._marks = _native.Marks()
        self._sleepers: dict[int, tuple[Any, ...]] = {}
        self._lines: dict[str, list[Turn]] = {}
        _alive.add(self)
        if sys.platform != "win32":  # no loop can listen to what tells of changes there
            self.events = _native.take_events()

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a loop listen to the event source."""
        self._loop = ref(loop)
        if self.events >= 0:
            try:
                loop.add_reader(self.events, self._read)
            except NotImplementedError:
                self._give_back()

    def serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether it is this loop's."""
        return self._loop is not None and self._loop() is loop

    def __del__(self) -> None:
        # When a loop goes that tasks still wait in, the garbage collector may come to their
        # waits later than to this.  The last one to go gives the event source back.
        self._over = True
        if not self.waits:
            self._give_back()

    def left(self, wait: LoopWait) -> None:
        """Take note that a wait is over; more than once does no harm."""
        self.waits.discard(id(wait))
        if self._over and not self.waits:
            self._give_back()

    def _give_back(self) -> None:
        events, self.events = self.events, -1
        if events >= 0:
            _native.give_events(events)

    def forget(self) -> None:
        """Close this process's copy of the parent's event source, after a fork."""
        events, self.events = self.events, -1
        if events >= 0:
            _native.forget_events(events)

    async def hear(self, wait: _native.Wait, until: int | None, *, news: bool = False) -> int:
        """Sleep until something can be done, or until a time of ``now_ns``.

        The outcomes are those of ``wait.wait()``: FREE, LOOK, BLIND (look after a pause), or
        TIME.  With ``news`` it is HELD when something was told that left nothing to be done.
        The wait must have been made with this hub's event source (see ``LoopWait``).
        """
        outcome = wait.wait(_native.now_ns())
        if outcome == _native.TIME and self.events < 0:
            outcome = _native.BLIND
        if outcome != _native.TIME:
            return outcome
        sleeper = _Sleeper(self, wait, until, news=news)
        try:
            sleeper.rest()
            return await sleeper.future
        finally:
            sleeper.end()

    def _read(self) -> None:
        marks = self._marks.read(self.events)
        if -1 in marks:
            marks = list(self._sleepers)
        # One file has one mark, whoever watches it, so more than one may have to hear of it.
        for sleeper in {s for mark in marks for s in self._sleepers.get(mark, ())}:
            if sleeper.wait.told(self._marks):
                sleeper.told()

    async def rest(self, seconds: float) -> None:
        """Sleep so long, whatever happens."""
        await asyncio.sleep(seconds)

    def listen(self, sleeper: Any, marks: Sequence[int]) -> None:
        """Have a sleeper, with its ``wait`` and ``told()``, hear of some marks."""
        for mark in marks:
            self._sleepers[mark] = (*self._sleepers.get(mark, ()), sleeper)

    def ignore(self, sleeper: Any, marks: Sequence[int]) -> None:
        """Have a sleeper hear of them no more."""
        for mark in marks:
            others = tuple(s for s in self._sleepers.get(mark, ()) if s is not sleeper)
            if others:
                self._sleepers[mark] = others
            else:
                self._sleepers.pop(mark, None)

    def turn(self, path: str) -> Turn | None:
        """Stand in the line of those who wait for a path in this loop, if it has lines."""
        return Turn(self._lines, path)


class _Sleeper:
    """One task that sleeps: what it is to hear of, and when it looks for itself."""

    __slots__ = ("_hub", "_marks", "_news", "_safety", "_timer", "_until", "future", "wait")

    def __init__(self, hub: Hub, wait: _native.Wait, until: int | None, *, news: bool) -> None:
        self._hub = hub
        self._news = news
        self._until = until
        self._marks: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._safety = next_safety()
        self.wait = wait
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def rest(self) -> None:
        """Sleep on, until told or until it is time to look."""
        self.end()
        marks = tuple(self.wait.marks)
        self._hub.listen(self, marks)
        self._marks = marks
        when = next_look(self.wait, self._safety, self._until)
        delay = max(0, when - _native.now_ns()) / 1e9
        loop = self.future.get_loop()
        self._timer = loop.call_later(delay, self._on_time, context=self._hub.context)

    def told(self) -> None:
        """See whether there is something to do, and wake the task if so."""
        # A task that is being woken still hears, so that what it waits for besides isn't lost.
        if not self.future.done():
            self._look(_native.HELD if self._news else _native.TIME)

    def _look(self, nothing: int) -> None:
        outcome = self.wait.wait(_native.now_ns())
        if outcome == _native.TIME:
            outcome = nothing
        if outcome == _native.TIME:
            self.rest()
        else:
            self._wake(outcome)

    def _on_time(self) -> None:
        now = _native.now_ns()
        if self._until is not None and now >= self._until:
            self._wake(_native.TIME)
            return
        if now >= self._safety:
            self._safety = next_safety()
            self.wait.doubt()
        elif not self.wait.recheck_at:
            self.wait.due()
        self._look(_native.TIME)

    def _wake(self, outcome: int) -> None:
        self._stop_timer()
        if not self.future.done():
            self.future.set_result(outcome)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def end(self) -> None:
        """Hear of nothing any more; more than once does no harm."""
        self._stop_timer()
        marks, self._marks = self._marks, ()
        self._hub.ignore(self, marks)


def next_safety() -> int:
    """Say when to look, however reliable events are."""
    # Spread, so that a thousand who began together don't look together.
    now: int = _native.now_ns()
    return now + int(_SAFETY * (0.75 + chance() / 2) * 1e9)


def next_look(wait: _native.Wait, safety: int, until: int | None) -> int:
    """Say when a wait is to look for itself if nothing is told."""
    when = safety if until is None else min(safety, until)
    recheck_at = wait.recheck_at
    if recheck_at:
        return min(when, recheck_at)
    # Those further behind see to the queue when they look for themselves anyway.
    return min(when, _native.now_ns() + _native.NEXT_CHECK) if wait.ahead == 1 else when


class Turn:
    """A place in the line of one path, in which the tasks of one loop wait for their turn.

    Only the first of the line waits for the lock's file, and stands in the queue of the
    processes.  So what many tasks of one process that want one lock cost is one wait, and
    not a ticket for each and a look at all others' tickets.
    """

    __slots__ = ("_future", "_lines", "_path")

    def __init__(self, lines: dict[str, list[Turn]], path: str) -> None:
        self._lines = lines
        self._path = path
        self._future: asyncio.Future[None] | None = None
        lines.setdefault(path, []).append(self)

    @property
    def come(self) -> bool:
        """Whether it is this one's turn."""
        return self._lines[self._path][0] is self

    async def wait(self, until: int | None) -> None:
        """Sleep until it may be this one's turn, or until a time of ``now_ns``."""
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = None
        try:
            if until is not None:
                delay = max(0, until - _native.now_ns()) / 1e9
                timer = loop.call_later(delay, self._wake)
            await self._future
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        future = self._future
        # The loop of a task that is gone may be closed, and then nobody waits in it.
        if future is not None and not future.done() and not future.get_loop().is_closed():
            future.set_result(None)

    def leave(self) -> None:
        """Leave the line, and let the next one have its turn; more than once does no harm."""
        line = self._lines.get(self._path, [])
        if self not in line:
            return
        line.remove(self)
        if line:
            line[0]._wake()
        else:
            del self._lines[self._path]


class LoopWait(_native.Wait):
    """C's form of a wait that uses a hub's event source, and doesn't outlive it."""

    __slots__ = ("_hub",)

    def __init__(
        self,
        hub: Hub,
        locks: Sequence[Any],
        queue: Any = None,
        record: _native.Record | None = None,
    ) -> None:
        self._hub: Hub | None = None
        super().__init__(locks, queue, record, hub.events)
        self._hub = hub
        hub.waits.add(id(self))

    def end(self, won: Any = None) -> None:
        """Leave the queue and give everything back; more than once does no harm."""
        super().end(won)
        if self._hub is not None:
            self._hub.left(self)


class AsyncWaiter(Waiter):
    """One task's wait for one lock, or for any of some, as long as it lasts."""

    __slots__ = ("_hub", "_looked", "_news", "_turn", "passed_over")

    _wait: _native.Wait

    def __init__(
        self,
        hub: Hub,
        timeout: float | None,
        *,
        wait: _native.Wait,
        notice: Notice | None = None,
        about: str | None = None,
        turn: Turn | None = None,
        news: bool = True,
    ) -> None:
        self._hub = hub
        self._turn = turn
        # Whether to be told also what leaves nothing to be done: that others were faster.
        self._news = news
        # Whether the lock was free since the last try, or may have been: if a try fails now,
        # then others were faster.
        self.passed_over = False
        self._looked = False
        super().__init__(timeout, wait=wait, notice=notice, about=about)
        self._pauses = _NO_PAUSES  # nobody needs them where events are heard

    def stand(self, queue: Any, record: _native.Record | None) -> bool:
        """Stand in the queue of a lock from now on; ``False`` if that is of no use here."""
        if self._wait.blind:
            return False
        self._wait.stand(queue, record)
        self._news = False
        return True

    async def pause_async(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over."""
        wait = self._wait
        self.passed_over = False
        self.said = _native.TIME
        while True:
            now = self._clock()
            if self._deadline is not None and now >= self._deadline:
                return False
            if self._notice is not None:
                self._notice.tell(now)
            if self._turn is None or self._turn.come:
                break
            self.judge = False
            await self._turn.wait(self._end_at(now))
            if self._turn.come:
                return True
        if self._free >= _LOST_RACES:
            self._free = 0
            await self._hub.rest(_FIRST * (0.5 + chance()))
            wait.due()  # what was told meanwhile, nobody has heard
        outcome = await self._hub.hear(wait, self._end_at(now), news=self._news)
        self.said = outcome
        self._free = self._free + 1 if outcome == _native.FREE else 0
        if outcome in (_native.FREE, _native.HELD):
            self.passed_over = True
            self.judge = False
        elif outcome == _native.LOOK:
            # The second time somebody else has had it meanwhile, and was faster.
            self.passed_over = self._looked
            self._looked = True
            self.judge = True
        elif outcome == _native.BLIND:
            self.judge = None
            await self._grope_async(wait, now)
        elif outcome == _native.TIME:
            # It is judged when that is due, and once more when the time is over.
            now = self._clock()
            self.judge = any(
                at is not None and now >= at for at in (self._check, self._deadline)
            )
            if self.judge:
                self._check = None
                wait.due()
        elif outcome == -errno.EINTR:
            self.judge = False
        else:
            _native.raise_os_error(outcome, b"")
        return True

    def _end_at(self, now: float) -> int | None:
        """Say until when to sleep at most, by the core's clock."""
        ends = [at for at in (self._check, self._deadline) if at is not None]
        if self._notice is not None and self._notice.due != float("inf"):
            ends.append(self._notice.due)
        return _native.now_ns() + int((min(ends) - now) * 1e9) if ends else None

    async def _grope_async(self, wait: _native.Wait, now: float) -> None:
        """Pause where no event can be relied on: the longer, the more others come first."""
        pause = next(self._pauses, None)
        if pause is None:
            self._pauses = iter(growing_pauses())
            pause = next(self._pauses)
        pause *= 1 + wait.ahead
        if self._deadline is not None:
            pause = min(pause, max(0.0, self._deadline - now))
        await self._hub.rest(pause)
        wait.due()

    def end(self, won: Any = None) -> None:
        """Give back what the wait had."""
        super().end(won)
        if self._turn is not None:
            self._turn.leave()


# By the loops' identities.  A hub is kept by the loop that listens for it, and by its waits;
# if it was kept here, so would be the loop, to which all that sleeps refers.
_hubs: WeakValueDictionary[int, Hub] = WeakValueDictionary()
_alive: WeakSet[Hub] = WeakSet()


def trio_here() -> Any:
    """Give the module trio, if it is one of its tasks that runs here."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def hub_here() -> Hub:
    """Give the hub of the loop that runs here."""
    trio = trio_here()
    if trio is not None:
        from semlock._trio import hub_of_run  # noqa: PLC0415 - for those who have trio

        return hub_of_run(trio)
    loop = asyncio.get_running_loop()
    hub = _hubs.get(id(loop))
    if hub is None or not hub.serves(loop):
        hub = _hubs[id(loop)] = Hub()
        hub.serve(loop)
    return hub


def waiter_here(
    locks: Sequence[Any],
    timeout: float | None,
    about: str,
    *,
    queue: Any = None,
    record: _native.Record | None = None,
    notice: Notice | None = None,
) -> AsyncWaiter:
    """Begin this task's wait for any of some locks, for a caller who acts on all that is said.

    ``queue`` is the lock in whose queue it stands, and ``about`` the path that people know.
    """
    hub = hub_here()
    native = None if queue is None else queue._native
    wait = LoopWait(hub, [lock._native for lock in locks], native, record)
    return AsyncWaiter(hub, timeout, wait=wait, notice=notice, about=about, news=False)


def _forget() -> None:
    for hub in list(_alive):
        hub.forget()
    _hubs.clear()


_process.on_fork(_forget)
