"""Waiting in a thread: what drives the steps of an acquisition, and its wait for a lock.

A wait sleeps between a failed try and the next one.  It may end too early: the caller then tries
and judges again.  Where the kernel reports changes it sleeps until one comes; elsewhere it pauses.
Time and sleep can be replaced by tests.
"""

from __future__ import annotations

import errno
import sys
import time

from semlock._core import capi, events, registry, waits
from semlock._core.capi import POOL
from semlock._core.options import saturated
from semlock._waiting import inf
from semlock._waiting.steps import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Call,
    Stoppable,
    chance,
    growing_pauses,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from typing import Any, TypeAlias, TypeVar

    from semlock._core.status import LockStatus
    from semlock._waiting import Notice
    from semlock._waiting.steps import KeptWait, Steps

    T = TypeVar("T")

    # Gives the pauses of one wait, in seconds; when they are used up, the wait is over.
    # None leaves it to the wait when to look.
    Schedule: TypeAlias = Callable[[], Iterable[float] | None]

# Even with events, look at the path so often.  The core does it where it can.
_SAFETY = 1.0
CORE_LOOKS = sys.platform != "win32"
# Longer than any wait, and still in the range of the core's numbers.
_FOREVER = 1e9
# The clocks differ: a time that is over for the core may be over here a moment later.
_CLOCKS_DIFFER = 1e-4
_EINTR = -errno.EINTR
# So long for each lock, not to use more than about a hundredth of a processor for judgements.
_FOR_EACH = 4_000_000
# After so many lost races in a row, pause once.
LOST_RACES = 16


def run(steps: Steps[T]) -> T:
    """Carry out all steps in this thread."""
    try:
        try:
            sleep = next(steps)
            while True:
                try:
                    answer = sleep.pause()
                except BaseException as error:  # noqa: BLE001, PERF203 - raised where it belongs
                    sleep = steps.throw(error)
                else:
                    sleep = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            # A kept traceback would keep a suspended generator alive, with its place in the queue.
            steps.close()
    except BaseException:
        steps.close()  # again: an interrupt may have come before the call above
        raise


# Not empty once this process has walked the way from a wake to the caller.
_walked: set[bool] = set()
registry.on_fork(_walked.clear)


def _walk_back() -> None:
    """Walk the way from a wake to the caller, before the first sleep of this process.

    A forked child has its objects in pages of its parent's, and each is copied when it is used
    first: after the wake, this took longer than the hand-over of the lock.
    """
    _walked.add(True)
    run(_ending(Waiter(None, wait=waits.Nothing())))


def _ending(waiter: Waiter) -> Steps[None]:
    yield Call(int)
    waiter.end()


class Waiter(Stoppable):
    """One thread's wait for one lock, or for any of some, as long as it lasts.

    Without a ``waits.Wait`` it only pauses.  ``of`` is the lock whose options say what is reported
    and asked during the wait, and whose ``cancel`` ends it; ``status`` looks at what it waits for.
    """

    __slots__ = (
        "_about", "_check", "_clock", "_deadline", "_free", "_lock", "_pauses", "_queue",
        "_scheduled", "_sleep", "_start", "_until", "_wait", "judge", "outcome", "said",
    )  # fmt: skip

    def __init__(
        self,
        timeout: float | None,
        schedule: Schedule | None = None,
        *,
        wait: waits.Wait | None = None,
        lock: Any = None,
        queue: Any = None,
        of: Any = None,
        status: Callable[[], LockStatus] | None = None,
        notice: Notice | None = None,
        about: str | None = None,
        began: int = 0,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        if wait is not None and not _walked:
            _walk_back()
        # Looked up at the call, so that a test can replace time.sleep.
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        pauses = None if schedule is None else schedule()
        self._scheduled = pauses is not None
        self._pauses: Iterator[float] | None = (
            None if pauses is None else map(saturated, pauses)
        )
        self._start = self._clock() - (capi.now_ns() - began if began else 0) / 1e9
        self._deadline = None if timeout is None else self._start + timeout
        self._wait = wait
        self._lock = lock
        self._queue = queue
        self._notice = self.begin(of, status) or notice
        # What is waited for, where that isn't one lock, which reports its wait itself.
        self._about = about
        self._until: float | None = None
        self._check: float | None = None
        self._free = 0
        self.outcome: int | None = None
        # What the core said last: FREE, LOOK, TIME, BLIND or RACED.
        self.said = capi.TIME
        # Whether the holder is to be judged at the next try: True and False by what the core
        # has seen, None when it could not see and the lock's own clock decides.
        self.judge: bool | None = None
        if wait is not None and not self._scheduled and (CORE_LOOKS or not wait.blind):
            self.judge = False
        if wait is not None and self._scheduled:
            wait.pace(by_caller=True)
        if about is not None:
            events.tell("wait", about)

    def over(self) -> None:
        """Report that the wait is over, whatever is left to give back."""
        about, self._about = self._about, None
        if about is not None:
            events.tell("waited", about, waited=int(self.waited * 1e9))

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return self._clock() - self._start

    @property
    def left(self) -> float | None:
        """Say for how many seconds it may go on; ``None`` if there is no end."""
        return None if self._deadline is None else self._deadline - self._clock()

    @property
    def which(self) -> int:
        """The index of the lock that may be free, or is to be judged."""
        return 0 if self._wait is None else self._wait.which

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        """Tell whether a try now would overtake no waiter that came earlier.

        ``anew`` is for a caller that has judged the holder since the core has looked.
        """
        return self._wait is None or self._wait.in_turn(fair=fair, anew=anew)

    def served(self) -> None:
        """Note that this wait won one of several locks that share a queue."""
        if self._queue is not None:
            capi.burst_began(self._queue)

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        self.stopped = True
        if self._wait is not None:
            self._wait.stop()

    def pause_async(self) -> Awaitable[bool]:
        """Refuse: this is a thread's wait."""
        raise NotImplementedError

    def pause(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over."""
        self.outcome = None
        wait = self._wait
        if wait is None:
            pause = self.next_pause()
            if pause is not None:
                self._sleep(pause)
            return pause is not None
        now = self._clock()
        if self._deadline is not None and now >= self._deadline:
            return False
        # When to look, whatever the core reports until then.
        if self._until is None:
            if not self._scheduled:
                self._until = inf if CORE_LOOKS else now + _SAFETY
            elif (pause := next(self._pauses, None)) is None:  # type: ignore[arg-type]
                return False
            else:
                self._until = now + pause
        until = self._until
        if self._check is not None and not self._scheduled:
            until = min(until, self._check)
        if self.stopped or self._notice is not None:
            self.report(now)
            if self._notice is not None:
                until = min(until, self._notice.due)
        if self._free >= LOST_RACES:
            self._free = 0
            self._sleep(max(0.0, min(FIRST_PAUSE * (0.5 + chance()), until - now)))
        if self._deadline is not None:
            until = min(until, self._deadline)
        # The core counts from its own clock: what is left counts, not what time it is.
        end = capi.now_ns() + int(min(until - now, _FOREVER) * 1e9)
        while True:
            # With a lock, the core tries by itself.
            outcome = (
                waits.wait(wait.cdata, POOL, end)
                if self._lock is None
                else waits.take(wait.cdata, self._lock, POOL, end)
            )
            if outcome != _EINTR:  # Python's handlers have run meanwhile
                break
            self.end_if_stopped()
        self.said = outcome
        if outcome == capi.OK:
            self.outcome = outcome
        else:
            self._take_note(outcome, wait, end)
        return True

    def takes_note(self, outcome: int) -> int:
        """Note what the core said of a wait that has begun without this object."""
        self.said = outcome
        assert self._wait is not None
        self._take_note(outcome, self._wait, capi.now_ns())
        return capi.LOOK if self.judge else capi.HELD if self.outcome is None else self.outcome

    def next_pause(self) -> float | None:
        """Give the next pause to a caller that sleeps itself; ``None``: the time is over."""
        now = self._clock()
        if self._deadline is not None and now >= self._deadline:
            return None
        self.report(now)
        pause = self._drawn()
        if pause is not None and self._deadline is not None:
            pause = min(pause, self._deadline - now)
        return pause

    def _take_note(self, outcome: int, wait: waits.Wait, end: int) -> None:
        """Make of what the core said whether to judge the holder."""
        if outcome == capi.FREE:
            self._free += 1
            self.judge = False
            return
        self._free = 0
        if outcome == capi.LOOK:
            self.judge = True
        elif outcome == capi.BLIND:
            self._grope(wait, end)
        elif outcome == capi.TIME:
            self._time_is_over(wait, self._clock() + _CLOCKS_DIFFER)
        elif outcome == capi.RACED:
            self._free = LOST_RACES
            self.judge = False
        elif self._lock is None:
            capi.raise_os_error(outcome, wait.path)
        else:
            self.outcome = outcome

    def _drawn(self) -> float | None:
        """Give the next pause; ``None`` when the schedule is used up."""
        if self._pauses is None:
            self._pauses = iter(growing_pauses())  # most waits need none
        return next(self._pauses, None)

    def _time_is_over(self, wait: waits.Wait, now: float) -> None:
        """Have the holder judged, unless the time was only that of a notice."""
        ends = (self._until, self._check, self._deadline)
        self.judge = any(end is not None and now >= end for end in ends)
        if self.judge:
            self._until = None
            self._look(wait, now)

    def _look(self, wait: waits.Wait, now: float) -> None:
        """Have the locks looked at again.

        If a judgement is due, all holders are judged again: of several locks, any may be it.
        """
        if self._check is not None and now >= self._check:
            self._check = None
            wait.doubt()
        else:
            wait.due()

    def _grope(self, wait: waits.Wait, end: int) -> None:
        """Pause where no event can be relied on, and the core doesn't do it by itself."""
        self.judge = None
        if not self._scheduled:
            end = min(end, capi.now_ns() + int((self._drawn() or LONGEST_PAUSE) * 1e9))
        if wait.sleep(end) == capi.TIME and self._scheduled:
            self._until = None
        self._look(wait, self._clock())

    def judged(self, seen: capi.Instance, again_at: int | None) -> None:
        """Skip this instance until a time of ``now_ns``, or until it changes."""
        blind = self._wait is None or (self._wait.blind and not CORE_LOOKS)
        self.judge = None if blind or self._scheduled else False
        if self._wait is not None:
            self._wait.judged(self._wait.which, seen)
            if again_at is not None:
                self._check = self._clock() + self._left_until(again_at) / 1e9

    def _left_until(self, again_at: int) -> int:
        """Say how long not to judge: the more holders, the longer, as all are judged then."""
        count = 1 if self._wait is None else self._wait.count
        return max(count * _FOR_EACH, again_at - capi.now_ns())

    def postpone(self, seconds: float) -> None:
        """Skip a free lock for a moment, because it can't be taken yet."""
        if self._wait is not None:
            self._wait.later(self._wait.which, seconds)

    def follow(self, pid: int, start: int) -> None:
        """End the pause also when the holder's process ends, which its file does not show."""
        if self._wait is not None and not self._wait.follow(pid, start):
            self._wait.due()

    def end(self, won: Any = None) -> None:
        """Give back what the wait had; ``won`` is the structure of the lock that it ended with."""
        self.of = None
        if self._wait is not None:
            self._wait.end(won)
        if self._about is not None:
            self.over()


def goes_on(
    lock: Any, native: Any, timeout: float | None, said: int, kept: KeptWait, began: int
) -> tuple[int, Waiter]:
    """Go on with a wait that the core could not end: the outcome to begin with, and the wait."""
    waiter = Waiter(timeout, wait=kept.wait, lock=native, of=lock, began=began)
    try:
        # A cancel() at any moment finds one of them, and ends both.
        kept.heir = waiter
        kept.of = None
        if kept.stopped:
            waiter.stopped = True
        return waiter.takes_note(said), waiter
    except BaseException:
        waiter.end()
        raise
