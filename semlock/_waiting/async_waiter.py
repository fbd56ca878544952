"""One task's wait for a lock: in the line of its loop; the first in line gets the events."""

from __future__ import annotations

import errno

from semlock._core import capi, events, inside
from semlock._core.options import saturated
from semlock._core.waits import Wait
from semlock._waiting.hub import hub_here
from semlock._waiting.sleeping import NEVER, Line
from semlock._waiting.steps import FIRST_PAUSE, LONGEST_PAUSE, PAUSE_GROWTH, chance
from semlock._waiting.waiter import CORE_LOOKS, LOST_RACES, Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock._waiting.hub import Hub
    from semlock._waiting.sleeping import Sleeper
    from semlock._waiting.waiter import Schedule

# A timeout that is longer never ends.
_ENDLESS = 1e9


class AsyncWaiter(Waiter):
    """One task's wait for one lock, or for any of some, as long as it lasts.

    :locks:   the core's structures of what is waited for
    :schedule: the pauses between its tries, if its lock has any
    :queue:   the structure of the lock in whose queue the wait stands
    :record:  what its ticket says
    :by:      the lock whose record that is, if it is made only for the first of a line
    :line:    the name of the line of the loop to stand in; ``None`` for none
    :fair:    whether a task that asked later must not get the lock before it
    :asked:   when the task asked, by ``now_ns``; 0 for now
    :stands:  whether it stands in the queue from the beginning, and not only after a lost race
    :tries:   C's array of all the locks, to prepare a file for any of them
    :news:    whether also events without an action are reported: that others were faster
    """

    __slots__ = (
        "_asked", "_by", "_hub", "_line", "_locks", "_looked", "_news", "_parked", "_pause",
        "_record", "_tries", "due_at", "fair", "passed_over", "sleeper", "stands",
    )  # fmt: skip

    _wait: Wait | None
    _deadline: int | None  # by the core's clock, like all here
    _check: int | None
    _until: int | None
    _pauses: Iterator[float] | None

    def __init__(
        self,
        hub: Hub,
        locks: Sequence[Any],
        timeout: float | None,
        *,
        schedule: Schedule | None = None,
        queue: Any = None,
        record: capi.Record | None = None,
        by: Any = None,
        line: Hashable = None,
        fair: bool = False,
        stands: bool = False,
        asked: int = 0,
        of: Any = None,
        status: Callable[[], LockStatus] | None = None,
        about: str | None = None,
        tries: Any = None,
        news: bool = False,
    ) -> None:
        asked = asked or capi.now_ns()
        self._hub = hub
        self._locks = locks
        self._tries = tries
        self._queue = queue
        self._record = record
        self._by = by
        self.fair = fair
        # Whether it stands in the queue, or will as the first of its line.
        self.stands = stands
        self._notice = self.begin(of, status)
        self._about = about
        self._news = news
        self._asked = asked
        self._deadline = (
            None if timeout is None or timeout > _ENDLESS else asked + int(timeout * 1e9)
        )
        pauses = None if schedule is None else schedule()
        self._pauses = None if pauses is None else map(saturated, pauses)
        self._scheduled = pauses is not None
        self._until = None
        self._check = None
        self._free = 0
        self._pause = FIRST_PAUSE
        self._wait = None
        self._parked: Any = None
        self.sleeper: Sleeper | None = None
        self.due_at = 0
        # Whether the lock was free since the last try, or may have been: if a try fails now,
        # then others were faster.
        self.passed_over = False
        self._looked = False
        self.outcome = None
        self.said = capi.TIME
        self.judge = False
        if about is not None:
            events.tell("wait", about)
        self._line = None if line is None else Line.joined(hub, line, self)

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return float((capi.now_ns() - self._asked) / 1e9)

    def wait(self) -> Wait:
        """Give the core's form of this wait, which only the first of a line needs."""
        wait = self._wait
        if wait is None:
            stands = self.stands or (self._line is not None and self._line.stands)
            queue = self._queue if stands else None
            record = self._told() if stands else None
            one = self._locks[0] if len(self._locks) == 1 else None
            wait = self._wait = Wait(
                self._locks,
                queue,
                record,
                hub=self._hub,
                asked=self._asked,
                prepares=one,
                tries=self._tries,
                fair=self.fair,
            )
            self.stands = stands
            if self._scheduled:
                wait.pace(by_caller=True)
            if wait.cdata.blind and not stands and self._queue is not None:
                # Without events it may never see the lock free, and holders make way only for
                # waiters in the queue.
                self.stand()
        return wait

    def _told(self) -> capi.Record | None:
        """Give what the ticket says."""
        return self._record if self._by is None else inside.record(self._by)

    def take_ticket(self) -> None:
        """Stand in the queue of the processes from now on, if this wait stands there at all."""
        if not self.stands or self._wait is not None:
            return
        wait = self.wait()
        # The core takes a ticket after the holder was judged.  The task will judge it soon itself.
        wait.spare_look()
        wait.wait(capi.now_ns())
        wait.doubt()

    def stand(self) -> None:
        """Stand in the queue of the lock from now on, where there can be one."""
        if self._queue is None or (not CORE_LOOKS and self._hub.events < 0):
            return
        if not self.stands:
            self.stands = True
            if self._line is not None:
                self._line.stands = True
            if self._wait is not None:
                self._wait.stand(self._queue, self._told())
        self._news = False

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        """Tell whether a try now would overtake no waiter that came earlier."""
        if self._line is not None and self._line.first is not self:
            return False
        if self._wait is not None:
            return self._wait.in_turn(fair=fair, anew=anew)
        return not fair and not self.must_make_way()

    def must_make_way(self) -> int:
        """Tell whether it is the turn of others: OK, TURN or HELD."""
        if self._queue is None:
            return capi.OK
        return capi.must_make_way(self._queue, capi.many(self._locks))

    def served(self) -> None:
        """Note that this wait has won; in its turn, if it stood in the queue."""
        if self._wait is not None:
            super().served()

    async def pause_async(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over.

        If others were faster than the caller's last try, it enters the queue.  Before that, no wait
        needs the descriptor that a place costs.
        """
        wait, tried, self.outcome = self._wait, self.outcome, None
        if (
            tried is not None
            and not self.stands
            and (tried == capi.TURN or self.passed_over)
            # LOOK without a look at the lock: what was reported is the end of the holder.
            and not (tried == capi.LOOK and wait and wait.unseen and self._locks[0].vouched)
        ):
            self.stand()
        self.passed_over = False
        self.said = capi.TIME
        while True:
            now = capi.now_ns()
            if self._deadline is not None and now >= self._deadline:
                return False
            if self.stopped or self._notice is not None:
                self.report(now / 1e9)
            line = self._line
            if line is None or line.first is self:
                break
            self.judge = False
            self._parked = parked = self._hub.park()
            try:
                if self._deadline is not None or self._notice is not None:
                    self._set_timer(self._end_at())
                await parked
            finally:
                self._parked = None
                if self.due_at:
                    self._hub.timers.never(self)
            if line.first is self and not self.fair:
                return True  # the lock may have been released just now
        if self._scheduled and self._until is None:
            pause = next(self._pauses, None)  # type: ignore[arg-type]
            if pause is None:
                return False
            self._until = now + int(min(pause, _ENDLESS) * 1e9)
        wait = self.wait()
        if self._free >= LOST_RACES:
            self._free = 0
            await self._hub.rest(FIRST_PAUSE * (0.5 + chance()))
            wait.due()  # events of that time are lost, so look again
        heard = self._hub.hear(wait, self._end_at(), news=self._news)
        if isinstance(heard, int):
            outcome = heard
        else:
            self.sleeper = heard
            try:
                outcome = await heard.parked
            finally:
                self.sleeper = None
                heard.end()
        self.said = outcome
        self._free = self._free + 1 if outcome == capi.FREE else 0
        if outcome == capi.BLIND:
            self.judge = None
            await self._grope_async(wait)
        elif outcome in (capi.FREE, capi.RACED):
            self.passed_over = True
            self.judge = False
        elif outcome == capi.LOOK:
            # The second time another holder has come meanwhile, which was faster.
            self.passed_over = self._looked
            self._looked = self.judge = True
        elif outcome == capi.TIME:
            # It is judged when that is due, and once more when the time is over.
            self._time_is_over(wait, capi.now_ns())
        elif outcome == -errno.EINTR:
            self.judge = False
        else:
            capi.raise_os_error(outcome, b"")
        return True

    def _end_at(self) -> int | None:
        """Say until when to sleep at most."""
        check = None if self._scheduled else self._check
        ends = [at for at in (self._until, check, self._deadline) if at is not None]
        if self._notice is not None and self._notice.due != float("inf"):
            ends.append(int(self._notice.due * 1e9))
        return min(ends) if ends else None

    def _set_timer(self, until: int | None) -> None:
        if until is not None:
            self._hub.timers.at(self, min(until, NEVER))

    def wake(self) -> None:
        """End this one's sleep in the line."""
        if self._parked is not None:
            self._parked.end(None)

    on_time = wake

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        self.stopped = True
        self._hub.soon(lambda: (self.sleeper.stop if self.sleeper else self.wake)())  # noqa: PLW0108 - then

    def nudge(self) -> None:
        """Have the first of a line look now."""
        if self.sleeper is not None:
            self.sleeper.nudge()
        else:
            self.wake()

    async def _grope_async(self, wait: Wait) -> None:
        """Pause where the loop gets no events and the core doesn't say when to look."""
        if self._until is not None:
            end, self._until = self._until, None
        else:
            pause = min(self._pause * (0.5 + chance()), LONGEST_PAUSE)
            self._pause = min(self._pause * PAUSE_GROWTH, LONGEST_PAUSE)
            end = capi.now_ns() + int(pause * 1e9)
        if self._deadline is not None:
            end = min(end, self._deadline)
        self._parked = parked = self._hub.park()
        try:
            self._set_timer(end)
            await parked
        finally:
            self._parked = None
            self._hub.timers.never(self)
        self._look(wait, capi.now_ns())

    def judged(self, seen: capi.Instance, again_at: int | None) -> None:
        """Skip this instance until a time of ``now_ns``, or until it changes."""
        wait = self.wait()
        self.judge = None if self._scheduled or self.said == capi.BLIND else False
        wait.judged(wait.which, seen)
        if again_at is not None:
            self._check = capi.now_ns() + self._left_until(again_at)

    def follow(self, pid: int, start: int) -> None:
        """End the pause also when the holder's process ends, which its file does not show."""
        wait = self.wait()
        if not wait.follow(pid, start):
            wait.due()

    def end(self, won: Any = None) -> None:
        """Give back what the wait had; ``won`` is the structure of the lock that it ended with."""
        line, wait, self.of = self._line, self._wait, None
        if wait is None and line is not None and self._about is None:
            line.leave(self, None)  # thousands may be cancelled in one step of the loop
            return
        left = None
        try:
            if self.fair and wait is not None and line is not None and line.first is self:
                if won is not None:
                    line.prepare_second()
                else:
                    left, wait = wait, None
        finally:
            try:
                if wait is not None:
                    wait.end(won)
            finally:
                if line is not None:
                    line.leave(self, left)
                if left is not None:
                    self._wait = None  # the line ends it
                if self._about is not None:
                    self.over()


def waiter_here(
    locks: Sequence[Any],
    timeout: float | None,
    about: str,
    *,
    queue: Any = None,
    line: tuple[Any, ...] | None = None,
    **options: Any,
) -> AsyncWaiter:
    """Begin this task's wait for any of some locks, for a caller that acts on all events.

    ``queue`` is the lock in whose queue it stands, ``about`` the path for reports, and
    ``line`` the name of the line of this loop that it stands in; the others are as above.
    """
    hub = hub_here()
    native = None if queue is None else inside.native(queue)
    return AsyncWaiter(
        hub,
        tuple([inside.native(lock) for lock in locks]),
        timeout,
        queue=native,
        line=line,
        fair=native is not None and native.turns == capi.FAIR,
        stands=native is not None,
        about=about,
        **options,
    )
