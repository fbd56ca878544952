"""The engine of every lock system: acquire, release, refresh and check on top of the core.

A lock system ("dialect") is a subclass of ``BaseLock`` that says how its record is laid out
and read, where its file is, when it is stale, and what its defaults are.  Nothing of what
keeps locks exclusive is in a dialect.
"""

from __future__ import annotations

import errno
import os
import sys
from time import monotonic, sleep, time

from semlock import _explain, _native, _process
from semlock._cleaning import nobody_waits, sweep
from semlock._errors import LockLostError, LockLostWarning, LockTimeoutError
from semlock._identity import ALIVE, this_process
from semlock._native import (
    HELD,
    NESTED,
    OK,
    POOL,
    release_lock,
    this_thread,
    try_anyway,
    try_lock,
)
from semlock._notice import notice_of
from semlock._records import clean_tag
from semlock._status import GUARD_PATIENCE, LockStatus, absolute, look_at, remove_exactly
from semlock._waiting import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

    from typing_extensions import Self

    from semlock._identity import Process
    from semlock._policy import Policy
    from semlock._records import LockInfo
    from semlock._status import StrPath
    from semlock._waiting import Schedule

    P = ParamSpec("P")
    T = TypeVar("T")
    Durability: TypeAlias = Literal["full", "data", "none"]

_frame = sys._getframe

# A holder that was alive is judged again when a tenth of the time that it has been watched
# has passed, within these bounds: soon after it was first seen, and hardly ever later on.
_FIRST_LOOK = 10_000_000
_LAST_LOOK = 1_000_000_000

_GUARD_PAUSE = 0.0005
_RECLAIM_PATIENCE = 0.002
_TRIES = 10
_RECORDS_KEPT = 7

_RELEASED = (OK, NESTED)


class _FromLock:
    """The default of ``acquire(timeout=...)``: the lock's own timeout."""

    def __repr__(self) -> str:
        return "the lock's own timeout"


_OWN: Any = _FromLock()


class Acquired:
    """What ``acquire()`` returns: a context manager that releases, without acquiring again."""

    __slots__ = ("_lock",)

    def __init__(self, lock: BaseLock) -> None:
        self._lock = lock

    def __enter__(self) -> BaseLock:
        return self._lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{self._lock!r}, acquired>"


class BaseLock:
    """What all locks do.  A dialect fills in the four methods behind "what a dialect says"."""

    __slots__ = (
        "__weakref__",
        "_durability",
        "_encoded",
        "_first_seen",
        "_forked",
        "_heartbeat",
        "_laid_out",
        "_mode",
        "_native",
        "_on_lost",
        "_on_wait",
        "_path_at",
        "_place",
        "_policy",
        "_record",
        "_retry",
        "_seen",
        "path",
        "tag",
        "timeout",
    )

    # Whether waiters stand in a queue, and when holders make way for them.
    _turns = _native.NO_TURNS

    # Whether the record must be laid out anew for each try, because the core can't fill in
    # what changes (a payload that the user computes, a time in another form).
    _each_time = False

    def __init__(
        self,
        path: StrPath,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        retry: Schedule | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        reentrant: bool = False,
        fair: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[Any, LockLostError], object] | None = None,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        self.path = absolute(path)
        self.tag = tag if tag is None else clean_tag(tag)
        self.timeout = timeout if timeout is None else _checked_timeout(timeout)
        if durability not in _native.DURABILITY:
            raise ValueError(f'durability is "full", "data" or "none", not {durability!r}')
        if policy is not None and not callable(policy):
            raise TypeError(f"a policy is a function of a LockStatus, not {policy!r}")
        if retry is not None and not callable(retry):
            raise TypeError(f"a retry schedule is a function that gives pauses, not {retry!r}")
        if not 0 <= mode <= 0o777:
            raise ValueError(f"mode is a permission between 0 and 0o777, not {mode!r}")
        if heartbeat is not None and not heartbeat > 0:
            raise ValueError(f"heartbeat is a number of seconds above 0, not {heartbeat!r}")
        self._policy = policy
        self._retry = retry
        self._durability = durability
        self._mode = mode
        self._heartbeat = heartbeat
        self._on_lost = on_lost
        self._on_wait = on_wait
        self._record: _native.Record | None = None
        self._laid_out: tuple[_native.Record, ...] = ()
        self._place: tuple[CodeType, int] | None = None
        self._forked = False
        self._seen: tuple[int, int, int] | None = None
        self._first_seen = 0
        self._encoded = os.fsencode(self.path)
        self._path_at = _native.address(self._encoded)
        native = _native.new_lock()
        _native.start_lock_path(native, self._path_at, len(self._encoded))
        if reentrant:
            native.reentrant = 1
        native.turns = _native.FAIR if fair else self._turns
        # Last, so that __del__ never sees a structure that is not ready: its zeroes would name
        # the program's own descriptor 0.
        self._native = native
        _process.add(self)

    # ------------------------------------------------------------------ what a dialect says

    def _compose(self, owner: Process | None) -> _native.Record:
        """Lay out the record of this process, or of an owner whom the lock is left to."""
        raise NotImplementedError

    def _decode(self, content: bytes) -> LockInfo:
        """Read a record of this system; ``LockRecordError`` if it is none."""
        raise NotImplementedError

    def _text(self, record: _native.Record, stamp: int) -> bytes:
        """Give the record as it stands in the file, with the time of winning or another."""
        text = bytearray(record.text)
        native = self._native
        if record.stamp_at >= 0:
            text[record.stamp_at : record.stamp_at + 10] = b"%010d" % max(0, stamp)
        if record.token_at >= 0:
            text[record.token_at : record.token_at + 32] = _native.token_of(native)
        if record.witness_at >= 0:
            witness, local = native.file.witness, native.file.local
            claim = b"kept" if witness else b"left" if local else b"none"
            text[record.witness_at : record.witness_at + 4] = claim
        return bytes(text)

    def _made_way(self, found: LockStatus) -> None:
        """Take note of a lock that was just removed to make way for the next try."""

    # ------------------------------------------------------------------ acquiring

    def acquire(self, timeout: float | None = _OWN) -> AbstractContextManager[Self]:
        """Take the lock, waiting for it; ``LockTimeoutError`` when the time is over.

        Returns a context manager, so that ``with lock.acquire(timeout=5):`` releases it.
        """
        limit = self.timeout if timeout is _OWN else timeout
        if limit is not None:
            limit = _checked_timeout(limit)
        # Made first: behind _take() nothing may come in which a signal could still strike.
        acquired = Acquired(self)
        self._take(limit, _frame(1))
        return acquired  # type: ignore[return-value]

    def __enter__(self) -> Self:
        self._take(self.timeout, _frame(1))
        return self

    def try_acquire(self) -> bool:
        """Take the lock if it is free or its holder is dead; ``False`` if it is held."""
        native = self._native
        before = native.serial
        try:
            if self._record is None or self._each_time:
                self._lay_out()
            outcome = try_lock(native, POOL)
            return outcome != HELD and self._settle(outcome, _frame(1))
        except BaseException:
            self._undo(before)
            raise

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        native = self._native
        before = native.serial
        try:
            if self._record is None or self._each_time:
                self._lay_out()
            outcome = try_lock(native, POOL)
            if outcome == OK and self._heartbeat is None:
                # What _settle does too, without the call: this is the way of nearly all.
                self._place = (frame.f_code, frame.f_lasti)
            else:
                self._wait(outcome, timeout, frame)
        except BaseException:
            self._undo(before)
            raise

    def _undo(self, before: int) -> None:
        """Give back what an interrupted call has won: only the core knows whether it did."""
        native = self._native
        if native.serial != before and native.owner == this_thread():
            self._end(native.endings)

    def _wait(self, outcome: int, timeout: float | None, frame: FrameType) -> None:
        if timeout == 0:
            if not self._settle(outcome, frame):
                raise _explain.timeout_error(self, 0.0)
            return
        if outcome < 0 and outcome != -errno.EINTR:
            raise _explain.os_error(self.path, outcome)  # nothing that waiting could mend
        if outcome == _native.TURN:
            # Whoever was woken by our release may be waiting for our processor.
            _native.give_way()
        waiter = self._waiter(timeout)
        won = None
        try:
            try:
                while True:
                    if outcome == OK and self._heartbeat is None:
                        self._place = (frame.f_code, frame.f_lasti)  # as in _take
                        break
                    if self._settle(outcome, frame, waiter):
                        break
                    if not waiter.pause():
                        raise _explain.timeout_error(self, waiter.waited)
                    outcome = self._try_in_turn(waiter)
                won = self._native
            finally:
                waiter.end(won)
        except BaseException:
            waiter.end()  # an interrupt may have struck before the other one had begun
            raise

    def _try_in_turn(self, waiter: Waiter) -> int:
        """Try again after a pause, but not before those who came before."""
        if waiter.outcome is not None:
            return waiter.outcome  # the core has tried
        if waiter.in_turn(fair=self._native.turns == _native.FAIR):
            return self._try_again()
        # Whoever stands behind sees to it too that a dead holder's lock goes.
        by_clock = waiter.judge is None and _native.now_ns() < self._native.look_at
        return HELD if by_clock else _native.LOOK

    def _waiter(self, timeout: float | None) -> Waiter:
        native = self._native
        queue = native if native.turns else None
        wait = _native.Wait((native,), queue, self._record)
        # The core can try by itself where nothing has to be laid out anew for each try.
        lock = native if native.turns and not self._each_time else None
        return Waiter(timeout, self._retry, wait=wait, lock=lock, notice=notice_of(self))

    def _try_again(self) -> int:
        if self._record is None or self._each_time:
            self._lay_out()
        outcome: int = try_anyway(self._native, POOL)
        return outcome

    def _settle(self, outcome: int, frame: FrameType, waiter: Waiter | None = None) -> bool:
        """Make of the outcome of a try a lock that is held, or one that can't be had now."""
        # Bounded, so that a path that changes hands at every look uses up no more time than
        # there was given.
        for _ in range(_TRIES):
            if outcome == OK:
                self._place = (frame.f_code, frame.f_lasti)
                if self._heartbeat is not None:
                    from semlock import _heartbeat  # noqa: PLC0415 - threads, for those who ask

                    _heartbeat.watch(self, self._heartbeat)
                return True
            if outcome == NESTED:
                return True
            if outcome in (HELD, _native.LOOK):
                # A waiter lets the core look first, which mostly needs no judgement.
                due = None if waiter is None else waiter.judge
                if not (outcome == _native.LOOK if due is None else due):
                    return False
                if not self._judge(frame, may_wait=waiter is not None, waiter=waiter):
                    return False
            elif outcome == _native.MINE:
                if waiter is not None:
                    raise _explain.deadlock_error(self, frame)
                return False
            elif outcome == _native.TURN:
                if waiter is not None:
                    return False
                fair = self._native.turns == _native.FAIR
                if fair and not nobody_waits(self.path, self._native.name_hash):
                    return False
            elif outcome < 0 and outcome != -errno.EINTR:
                raise _explain.os_error(self.path, outcome)
            fair = self._native.turns == _native.FAIR
            if waiter is not None and not waiter.in_turn(fair=fair):
                return False
            outcome = self._try_again()
        if outcome in (OK, NESTED):
            return self._settle(outcome, frame, waiter)
        return False

    def _judge(self, frame: FrameType, *, may_wait: bool, waiter: Waiter | None = None) -> bool:
        """Look who holds the lock; ``True`` if it may be free now."""
        found = self.status()
        seen = found._look
        if seen is None:
            return True
        view = seen.view
        if may_wait and found.info is not None and found.info.pid == this_process().pid:
            own = _process.held_here(view.dev, view.ino)
            if own is not None and own._native.owner == this_thread():
                raise _explain.deadlock_error(own, frame)
        if found.reason is not None:
            # Only a policy of the user's can have meant a holder that lives.
            robs = self._policy is not None and found.verdict == ALIVE and not found.unfinished
            try:
                if remove_exactly(found, self._encoded, robs=robs, patience=_RECLAIM_PATIENCE):
                    self._made_way(found)
            except LockTimeoutError:
                pass  # Somebody sits on the guard, which counts as alive: look again later.
            else:
                return True
        self._look_again_later((view.dev, view.ino, view.ctime_ns))
        if waiter is not None:
            # Death shows by events; what else a policy may go by, only the clock tells.
            by_clock = (
                self._policy is not None
                or found.unfinished
                or found.reason is not None
                or seen.error != 0
            )
            waiter.judged(view, self._native.look_at if by_clock else None)
            info = found.info
            if (
                found.verdict == ALIVE
                and view.witness != 1
                and info
                and info.pid
                and info.start
            ):
                waiter.follow(info.pid, info.start)
        return False

    def _look_again_later(self, identity: tuple[int, int, int]) -> None:
        now = _native.now_ns()
        if identity != self._seen:
            self._seen = identity
            self._first_seen = now
        watched = (now - self._first_seen) // 10
        self._native.look_at = now + min(max(watched, _FIRST_LOOK), _LAST_LOOK)

    def _lay_out(self, owner: Process | None = None) -> None:
        if owner is None and self._record is not None and self._native.owner:
            return  # some thread tries or holds by this record, so it must stay as it is
        record = self._compose(owner)
        # The core may still read an earlier one, in a try of another thread that has just begun.
        self._laid_out = (*self._laid_out[-_RECORDS_KEPT:], record)
        self._native.record = record.cdata
        self._record = record

    def _try_for(self, owner: Process) -> LockInfo | None:
        """Take the lock for another process, and leave it: what its record says, if taken."""
        self._lay_out(owner)
        if not self.try_acquire():
            return None
        info = self.info
        _native.detach_lock(self._native)
        return info

    # ------------------------------------------------------------------ letting go

    def release(self) -> None:
        """Let go of the lock.

        ``NotHeldError`` if it is not held here; ``LockLostError`` if somebody has removed it
        meanwhile, in which case the file at the path, if any, is theirs and stays.
        """
        native = self._native
        endings = native.endings
        try:
            outcome = release_lock(native, POOL)
        except BaseException:
            self._end(endings)
            raise
        if outcome not in _RELEASED:
            self._finish_release(outcome)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        native = self._native
        endings = native.endings
        try:
            outcome = release_lock(native, POOL)
        except BaseException:
            self._end(endings)
            raise
        if outcome in _RELEASED:
            return
        if outcome == _native.FREE and self._forked:
            return  # The block was entered by the parent, who still holds the lock.
        try:
            self._finish_release(outcome)
        except LockLostError as lost:
            if kind is None:
                raise
            # The block's own exception matters more; the loss must not be silent either.
            from warnings import warn  # noqa: PLC0415 - hardly ever needed

            warn(str(lost), LockLostWarning, stacklevel=2)

    def _end(self, endings: int) -> None:
        """Let go once, unless that was done since ``endings`` was read."""
        if self._native.endings == endings and release_lock(self._native, POOL) == _native.KEPT:
            _process.first_claim_kept()

    def _finish_release(self, outcome: int) -> None:
        end = monotonic() + GUARD_PATIENCE
        while outcome in (_native.GUARDED, -errno.EINTR):
            if monotonic() >= end:
                raise _explain.guarded_error(self.path, "released")
            sleep(_GUARD_PAUSE)
            outcome = release_lock(self._native, POOL)
        if outcome == _native.KEPT:
            # From now on this process leaves a file here while it idles, so it tidies up
            # after those who were killed while they did.
            _process.first_claim_kept()
            sweep(os.path.dirname(self.path))
        elif outcome == _native.LOST:
            raise _explain.lost_error(self)
        elif outcome in (_native.FREE, HELD):
            raise _explain.not_held_error(self)
        elif outcome < 0:
            raise _native.os_error(outcome, self.path)

    # ------------------------------------------------------------------ while it is held

    def refresh(self) -> None:
        """Write the present time into the record: a sign of life for those who judge by age."""
        if not self._refresh(GUARD_PATIENCE):
            raise _explain.guarded_error(self.path, "refreshed")

    def _refresh(self, patience: float) -> bool:
        """Refresh, waiting so long for whoever sits on the guard; ``False`` if that was in vain."""
        native = self._native
        record = self._record
        end = monotonic() + patience
        while native.held and record is not None:
            now = int(time())
            text = self._text(record, now)
            outcome = _native.refresh_lock(native, POOL, text, len(text))
            if outcome == OK:
                native.stamp = now
                return True
            if outcome == _native.LOST:
                raise _explain.lost_error(self)
            if outcome == _native.FREE:
                break
            if outcome not in (_native.GUARDED, -errno.EINTR):
                raise _native.os_error(outcome, self.path)
            if monotonic() >= end:
                return False
            sleep(_GUARD_PAUSE)
        raise _explain.not_held_error(self)

    def check(self) -> None:
        """Make sure that the lock is still held: ``LockLostError`` if somebody removed it."""
        while (outcome := _native.check_lock(self._native, POOL)) == -errno.EINTR:
            pass
        if outcome == _native.LOST:
            raise _explain.lost_error(self)
        if outcome == _native.FREE:
            raise _explain.not_held_error(self)
        if outcome < 0:
            raise _native.os_error(outcome, self.path)

    # ------------------------------------------------------------------ what it says

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, as far as it knows; see ``check``."""
        return bool(self._native.held)

    @property
    def token(self) -> str | None:
        """The name of this acquisition, new each time; ``None`` while it is not held."""
        return _native.token_of(self._native).decode("ascii") if self._native.held else None

    @property
    def info(self) -> LockInfo | None:
        """What this object's record says; ``None`` while it is not held."""
        record = self._record
        if not self._native.held or record is None:
            return None
        return self._decode(self._text(record, self._native.stamp))

    def status(self) -> LockStatus:
        """Look at the path, whoever holds it."""
        return look_at(self.path, self._encoded, self._decode, self._policy)

    def __repr__(self) -> str:
        state = "held" if self._native.held else "not held"
        return f"<{type(self).__name__} {self.path!r}, {state}>"

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, which then runs under the lock."""
        import functools  # noqa: PLC0415 - only for those who decorate
        import inspect  # noqa: PLC0415

        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"{function.__qualname__} returns before its body has run, so a lock around the "
                "call would guard nothing: use the lock with `with` inside of it"
            )

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return locked

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} can't be pickled: make a lock of the same path in the other process"
        )

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        # A free-threaded Python may come to this when it has already taken the modules apart.
        if native is None or _process is None:
            return
        if not native.held:
            _process.discard(self)
            _native.forget_lock(native)
            return
        # When a lock ends must not depend on the garbage collector, least of all for somebody
        # who believes to be protected by it: it stays held, which can be seen and found.
        _process.keep(self)
        from warnings import warn  # noqa: PLC0415 - hardly ever needed

        warn(
            f"{self.path} is held by a lock object that nobody refers to any more, and stays held "
            f"until the process ends. It was acquired at {_explain.where(self._place)}: keep the "
            "object and release it, or use `with`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _forget_after_fork(self) -> None:
        if self._native.held:
            self._forked = True
        self._record = None
        self._place = None
        _native.forget_lock(self._native)


def _checked_timeout(timeout: float) -> float:
    if isinstance(timeout, (int, float)) and timeout >= 0:
        return timeout
    raise ValueError(f"timeout is None or a number of seconds from 0 on, not {timeout!r}")
