"""Acquiring a lock of any store: the public methods, and the loop of a wait.

This module uses no file and not the compiled core.  A lock's class mixes in a store
(``_stores/store.py`` lists its methods).  A lock system is a subclass: it defines the layout of
its record, its path, when a lock is stale, and its defaults.
"""

from __future__ import annotations

import errno
import sys
from time import monotonic_ns

from semlock._core import (
    FAIR,
    FORKED,
    HELD,
    LOOK,
    LOST,
    MINE,
    NESTED,
    OK,
    TURN,
    events,
    explain,
    inside,
)
from semlock._core.identity import ALIVE, this_process
from semlock._core.options import FOREVER, WithOptions, checked_timeout
from semlock._locks import OWN_TIMEOUT, Acquired, Decorates, mine
from semlock._locks.lock_object import LockObject
from semlock._waiting.steps import insisting
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType

    from typing_extensions import Self

    from semlock._core.status import LockStatus
    from semlock._stores.store import Attempt
    from semlock._waiting.steps import Sleep, Steps

_frame = sys._getframe

# A wait with more time left than this has no timeout.
ENDLESS = FOREVER / 2

_TRIES = 10
_HAD = (OK, NESTED)
_HELD = (HELD, LOOK)


class Acquirable(Decorates, WithOptions):
    """A lock of any kind that threads acquire: ``_take`` does it, or fails having won nothing."""

    __slots__ = ()

    if TYPE_CHECKING:
        timeout: float | None

        def _take(self, timeout: float | None, frame: FrameType) -> None: ...

    def acquire(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Take the lock, waiting for it; ``LockTimeoutError`` when the time is over.

        Returns a context manager, so that ``with lock.acquire(timeout=5):`` releases it.
        """
        # Made first: a signal that arrives after _take() could leave the lock held and unowned.
        acquired = Acquired()
        acquired.lock = self
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        if limit is not None:
            limit = checked_timeout(limit)
        self._take(limit, _frame(1))
        return acquired

    def __enter__(self) -> Self:
        self._take(self.timeout, _frame(1))
        return self

    def _limit(self, timeout: float | None) -> float | None:
        """Give the seconds that a call may wait."""
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        return limit if limit is None else checked_timeout(limit)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} can't be pickled: make a lock of the same path in the other process"
        )


class BaseLock(Acquirable, LockObject):
    """Acquiring, for all locks; a store implements the methods of ``Store``."""

    __slots__ = ()

    def _made_way(self, found: LockStatus) -> None:
        """Note that this stale lock was removed; the next try may win."""

    # ------------------------------------------------------------------ acquiring

    def try_acquire(self) -> bool:
        """Take the lock if it is free or its holder is dead; ``False`` if it is held."""
        before = self._native.serial
        sink = events.sink
        asked = 0 if sink is None else monotonic_ns()
        try:
            won = self._settled_try(_frame(1))
            if sink is not None:
                sink.tried(self, asked, won=won)
        except BaseException as error:
            self._undo(before)
            if sink is not None:
                sink.failed(self, asked, error)
            raise
        return won

    def _settled_try(self, frame: FrameType) -> bool:
        outcome = self._try()
        if outcome == TURN and not self._for_tasks and self._native.turns == FAIR:
            outcome = run(insisting(self._try))
        return outcome != HELD and self._settle(outcome, frame)

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        before = self._native.serial
        try:
            run(self._acquiring(timeout, frame))
        except BaseException:
            self._undo(before)
            raise

    def _acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Give the steps that take the lock; a lock system may add some."""
        steps = self._waiting(None, timeout, frame)
        sink = events.sink
        return steps if sink is None else sink.acquiring(self, steps)

    def _first_try(self, timeout: float | None) -> tuple[int, int, Sleep | None]:
        """Try: the outcome, when the caller asked, and a sleep before the wait begins."""
        del timeout
        return self._try(), 0, None

    def _undo(self, before: int) -> None:
        """Release what an interrupted call has won; the serial number shows whether it won."""
        native = self._native
        if native.serial != before and self._is_of_thread():
            self._end(native.endings)

    def _waiting(
        self,
        outcome: int | None,
        timeout: float | None,
        frame: FrameType,
        waiter: Attempt | None = None,
    ) -> Steps[None]:
        """Go on from the outcome of the first try until the lock is won or the time is over.

        Without an outcome it makes that try.  ``waiter`` is the wait, if it has begun already.
        """
        asked, early = 0, None
        if outcome is None:
            outcome, asked, early = self._first_try(timeout)
        if early is not None:
            yield early
            del early  # thousands may wait, and each would keep it
        if timeout == 0:
            if outcome == TURN and self._native.turns == FAIR:
                outcome = yield from insisting(self._try)
            if not self._settle(outcome, frame):
                raise explain.timeout_error(self, 0.0)
            return
        if outcome == FORKED:
            self._follow_fork()  # it forgets all waits of the parent, so it comes before ours
            outcome = self._try()
        if outcome < 0 and outcome != -errno.EINTR:
            outcome = self._mend(outcome)  # waiting can't mend it
        if outcome in _HAD and self._settle(outcome, frame):
            return
        holder = self._holder_here()
        if holder is not None:
            self._refuse_if_own(holder, frame, timeout)
        if outcome == TURN:
            self._give_way()
        if waiter is None:
            waiter = self._waiter(timeout, asked)
        won = None
        try:
            try:
                if (sink := events.sink) is not None:
                    sink.waits(self)
                while True:
                    # The two usual cases need no call: it is won, or the holder stays.
                    if outcome == OK and self._heartbeat is None:
                        if self._for_tasks:
                            self._won_by(frame)
                        else:
                            self._place = (frame.f_code, frame.f_lasti)
                        break
                    if (outcome not in _HELD or waiter.judge is not False) and self._settle(
                        outcome, frame, waiter
                    ):
                        break
                    waiter.outcome = outcome
                    if not (yield waiter):
                        raise explain.timeout_error(self, waiter.waited)
                    if waiter.outcome is not None:
                        outcome = waiter.outcome  # the store has tried
                    elif waiter.judge:
                        outcome = LOOK  # it has looked just now
                    else:
                        outcome = self._try_in_turn(waiter)
                won = self._native
            finally:
                waiter.end(won)
        except BaseException:
            waiter.end()  # again: an interrupt may have come before the call above
            raise

    def _won_by(self, frame: FrameType) -> None:
        """Note the task that has won, and where; only the form for tasks has this."""
        raise NotImplementedError

    def _is_mine(self) -> bool:
        """Tell whether this thread holds the lock by this object."""
        return self._is_of_thread()

    def _is_anothers(self) -> bool:
        """Tell whether another task of this thread holds this reentrant lock."""
        return False

    def _refuse_if_own(self, holder: BaseLock, frame: FrameType, timeout: float | None) -> None:
        """Raise ``LockDeadlockError`` if this object, which holds, is the caller's."""
        mine.refuse_if_own(holder, self, frame, timeout)

    def _try_in_turn(self, waiter: Attempt) -> int:
        """Try again after a pause, unless an earlier waiter comes first."""
        native = self._native
        if native.held and native.by_object and native.reentrant:
            return self._try_again()  # it is acquired once more, which keeps no waiter out
        if waiter.in_turn(fair=native.turns == FAIR):
            return self._try_again()
        # Later waiters judge too: the first one may be a stopped process.
        return HELD if waiter.judge is None and not self._look_is_due() else LOOK

    def _settle(self, outcome: int, frame: FrameType, waiter: Attempt | None = None) -> bool:
        """Act on the outcome of a try; ``True`` if the lock is held now."""
        # Bounded: where the holder changes at every look, the timeout must still end the call.
        for _ in range(_TRIES):
            if outcome in _HAD:
                if self._for_tasks:
                    self._won_by(frame)
                elif outcome == OK:
                    self._place = (frame.f_code, frame.f_lasti)
                if outcome == OK and self._heartbeat is not None:
                    from semlock._locks import heartbeat as _heartbeat  # noqa: PLC0415 - threads, for those who ask

                    _heartbeat.watch(self, self._heartbeat)
                return True
            if outcome == MINE:
                if waiter is None:
                    return False
                mine.refuse(self, frame)
                outcome = HELD
            if outcome in _HELD:
                # During a wait the core looks first, and most looks need no judgement.
                due = None if waiter is None else waiter.judge
                if not (outcome == LOOK if due is None else due):
                    return False
                if not self._judge(frame, may_wait=waiter is not None, waiter=waiter):
                    return False
            elif outcome == TURN:
                if waiter is not None or self._native.turns == FAIR:
                    return False
            elif outcome == FORKED:
                self._follow_fork()
                outcome = self._try()
                continue
            elif outcome < 0 and outcome != -errno.EINTR:
                outcome = self._mend(outcome)
                continue
            fair = self._native.turns == FAIR
            if waiter is not None and not waiter.in_turn(fair=fair, anew=True):
                return False
            outcome = self._try_again()
        if outcome in _HAD:
            return self._settle(outcome, frame, waiter)
        return False

    def _has_won(self, outcome: int, frame: FrameType) -> bool:
        """Act on a try of one of several locks, and report it if it has won."""
        won = self._settle(outcome, frame)
        if won and (sink := events.sink) is not None:
            sink.won(self)
        return won

    def _judge(
        self, frame: FrameType, *, may_wait: bool, waiter: Attempt | None = None
    ) -> bool:
        """Look who holds the lock; ``True`` if it may be free now."""
        found = self.status()
        seen = found.instance
        if seen is None:
            return True
        if may_wait and found.info is not None and found.info.pid == this_process().pid:
            own = self._holder_of(seen)
            if (
                own is not None
                and not inside.native(own).by_object
                and inside.is_of_thread(own)
                and not self._ends_in_time(own, None if waiter is None else waiter.left)
            ):
                mine.refuse(own, frame)
        if found.reason is not None:
            # Only a policy that the user has given removes the lock of a live holder.
            robs = self._policy is not None and found.verdict == ALIVE and not found.unfinished
            removed = self._clear(found, robs=robs)
            if removed:
                self._made_way(found)
            if removed is not None:
                return True
        again_at = self._look_again_later(seen.key)
        if waiter is not None:
            # The end of a process is an event.  A rule about age has none: look again later.
            by_clock = (
                self._policy is not None
                or found.unfinished
                or found.reason is not None
                or inside.barred(found) is not None
                or seen.error != 0
            )
            waiter.judged(seen, again_at if by_clock else None)
            info = found.info
            if found.verdict == ALIVE and not seen.witnessed and info and info.pid:
                waiter.follow(info.pid, 0 if info.timens else info.start or 0)
        return False

    def _ends_in_time(self, own: BaseLock, left: float | None) -> bool:
        """Tell whether the lock that this thread holds gets stale before its wait ends.

        One that was taken from it has ended: the wait is for the program that took it.
        """
        if inside.confirm(own) == LOST:
            return True
        if inside.heartbeat(own) is not None or self._policy is None:
            return False
        from semlock.policy import due_in  # noqa: PLC0415 - only for a thread that meets itself

        due = due_in(self._policy, self.status())
        # Without a timeout only a lock that is stale now: a nested acquire that would block until
        # its own lock expires is a mistake more often than intended.
        return due is not None and (due == 0 or (left is not None and due <= left < ENDLESS))
