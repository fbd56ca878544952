"""The engine of every lock system: acquire, release, refresh and check on top of the core.

A lock system ("dialect") is a subclass of ``BaseLock`` that says how its record is laid out
and read, where its file is, when it is stale, and what its defaults are.  Nothing of what
keeps locks exclusive is in a dialect.
"""

from __future__ import annotations

import errno
import os
import sys
from time import monotonic, monotonic_ns, sleep, time

from semlock._core import capi, events, explain, registry, waits
from semlock._core.capi import (
    HELD,
    NESTED,
    OK,
    POOL,
    WITNESSED,
    release_lock,
    this_thread,
    try_anyway,
    try_lock,
)
from semlock._core.cleaning import sweep
from semlock._core.errors import LockLostError, LockLostWarning, LockTimeoutError
from semlock._core.identity import ALIVE, this_process
from semlock._core.records import clean_tag
from semlock._core.seconds import FOREVER, checked_pause, checked_timeout
from semlock._core.status import GUARD_PATIENCE, LockStatus, absolute, look_at, remove_exactly
from semlock._core.sticky import may_make_locks_beside
from semlock._waiting.notice import notice_of
from semlock._waiting.steps import insisting, run
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

    from typing_extensions import Self

    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._core.status import StrPath
    from semlock._core.verdicts import Policy
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Schedule

    P = ParamSpec("P")
    T = TypeVar("T")
    Durability: TypeAlias = Literal["full", "data", "none"]

    class LockOptions(TypedDict, total=False):
        """What every lock can be told; ``semlock.Lock`` says what it means."""

        tag: str | None
        timeout: float | None
        policy: Policy | None
        retry: Schedule | None
        durability: Durability
        mode: int
        make_dirs: bool
        reentrant: bool
        fair: bool
        heartbeat: float | None
        on_lost: Callable[[Any, LockLostError], object] | None
        on_wait: Callable[[LockStatus, float], object] | None


_frame = sys._getframe

# A holder that was alive is judged again when a tenth of the time that it has been watched
# has passed, within these bounds: soon after it was first seen, and hardly ever later on.
_FIRST_LOOK = 10_000_000
_LAST_LOOK = 200_000_000

# A wait that has so much left was asked for without an end.
ENDLESS = FOREVER / 2

_GUARD_PAUSE = 0.0005
_RECLAIM_PATIENCE = 0.002
_TRIES = 10
_RECORDS_KEPT = 32

_RELEASED = _HAD = (OK, NESTED)


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


def make_parents(path: str) -> bool:
    """Make the directories that a file is to be in; ``False`` if another file is in the way."""
    parent = os.path.dirname(path)
    try:
        os.makedirs(parent, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return os.path.isdir(parent)
    except FileNotFoundError:
        pass  # another process has just removed one of them
    return True


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
        "_make_dirs",
        "_mode",
        "_native",
        "_on_lost",
        "_on_wait",
        "_owner",
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

    # Whether other programs take such locks over by writing their record into the file, so that
    # it is read whenever it is asked whether the lock is still held.
    _strict = False

    # Whether waiters stand in a queue, and when holders make way for them.
    _turns = capi.NO_TURNS

    # Whether tasks hold it, and not threads.  A try must not hold up their loop.
    _for_tasks = False

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
        make_dirs: bool = False,
        reentrant: bool = False,
        fair: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[Any, LockLostError], object] | None = None,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        self.path = absolute(path)
        self.tag = tag if tag is None else clean_tag(tag)
        self.timeout = timeout if timeout is None else checked_timeout(timeout)
        if durability not in capi.DURABILITY:
            raise ValueError(f'durability is "full", "data" or "none", not {durability!r}')
        if policy is not None and not callable(policy):
            raise TypeError(f"a policy is a function of a LockStatus, not {policy!r}")
        if retry is not None and not callable(retry):
            raise TypeError(f"a retry schedule is a function that gives pauses, not {retry!r}")
        if not 0 <= mode <= 0o777:
            raise ValueError(f"mode is a permission between 0 and 0o777, not {mode!r}")
        self._policy = policy
        self._retry = retry
        self._durability = durability
        self._mode = mode
        self._make_dirs = make_dirs
        self._heartbeat = None if heartbeat is None else checked_pause(heartbeat, "heartbeat")
        self._on_lost = on_lost
        self._on_wait = on_wait
        # The process that the lock is for, if it isn't this one, and whether this one keeps it.
        self._owner: tuple[Process, bool] | None = None
        self._record: capi.Record | None = None
        self._laid_out: list[capi.Record] = []
        self._place: tuple[CodeType, int] | None = None
        self._forked = False
        self._seen: tuple[int, int, int] | None = None
        self._first_seen = 0
        self._encoded = os.fsencode(self.path)
        self._path_at = capi.address(self._encoded)
        native = capi.new_lock()
        capi.start_lock_path(native, self._path_at, len(self._encoded))
        if reentrant:
            native.reentrant = 1
        native.turns = capi.FAIR if fair else self._turns
        native.vouched = policy is None
        native.strict = self._strict
        # Last, so that __del__ never sees a structure that is not ready: its zeroes would name
        # the program's own descriptor 0.
        self._native = native
        registry.add(self)

    # ------------------------------------------------------------------ what a dialect says

    def _compose(self, owner: Process | None) -> capi.Record:
        """Lay out the record of this process, or of an owner that the lock is for."""
        raise NotImplementedError

    def _decode(self, content: bytes) -> LockInfo:
        """Read a record of this system; ``LockRecordError`` if it is none."""
        raise NotImplementedError

    def _text(self, record: capi.Record, stamp: int) -> bytes:
        """Give the record as it stands in the file, with the time of winning or another."""
        text = bytearray(record.text)
        native = self._native
        if record.stamp_at >= 0:
            text[record.stamp_at : record.stamp_at + 10] = b"%010d" % max(0, stamp)
        if record.token_at >= 0:
            text[record.token_at : record.token_at + 32] = capi.token_of(native)
        if record.witness_at >= 0:
            witness, local = native.file.witness, native.file.local
            claim = b"kept" if witness == WITNESSED else b"left" if local else b"none"
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
            limit = checked_timeout(limit)
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
        sink = events.sink
        asked = 0 if sink is None else monotonic_ns()
        try:
            if self._record is None or self._each_time:
                self._lay_out()
            outcome = try_lock(native, POOL)
            if outcome == capi.TURN and not self._for_tasks and native.turns == capi.FAIR:
                outcome = run(insisting(self._try))
            won = outcome != HELD and self._settle(outcome, _frame(1))
            if sink is not None:
                sink.tried(self, asked, won=won)
        except BaseException as error:
            self._undo(before)
            if sink is not None:
                sink.failed(self, asked, error)
            raise
        return won

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        native = self._native
        before = native.serial
        try:
            if events.sink is not None:
                run(self._acquiring(timeout, frame))
                return
            if self._record is None or self._each_time:
                self._lay_out()
            outcome = try_lock(native, POOL)
            if outcome == OK and self._heartbeat is None:
                # What _settle does too, without the call: this is the way of nearly all.
                self._place = (frame.f_code, frame.f_lasti)
            elif outcome in _HAD:
                self._settle(outcome, frame)
            else:
                run(self._waiting(outcome, timeout, frame))
        except BaseException:
            self._undo(before)
            raise

    def _acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Take the lock: what ``_take`` does, in steps; a lock system may do more."""
        steps = self._from_the_first_try(timeout, frame)
        sink = events.sink
        return steps if sink is None else sink.acquiring(self, steps)

    def _from_the_first_try(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        yield from self._waiting(self._try(), timeout, frame)

    def _undo(self, before: int) -> None:
        """Give back what an interrupted call has won: only the core knows whether it did."""
        native = self._native
        if native.serial != before and native.owner == this_thread():
            self._end(native.endings)

    def _waiting(
        self, outcome: int, timeout: float | None, frame: FrameType, asked: int = 0
    ) -> Steps[None]:
        """Go on from the outcome of the first try until the lock is won or the time is over."""
        if timeout == 0:
            if outcome == capi.TURN and self._native.turns == capi.FAIR:
                outcome = yield from insisting(self._try)
            if not self._settle(outcome, frame):
                raise explain.timeout_error(self, 0.0)
            return
        if outcome < 0 and outcome != -errno.EINTR:
            outcome = self._mend(outcome)  # waiting could not
        if outcome in _HAD and self._settle(outcome, frame):
            return
        self._refuse_to_wait(frame, timeout)
        if outcome == capi.TURN:
            # Whoever was woken by our release may be waiting for our processor.
            capi.give_way()
        waiter = self._waiter(timeout, asked)
        won = None
        try:
            try:
                if (sink := events.sink) is not None:
                    sink.waits(self)
                while not self._settle(outcome, frame, waiter):
                    waiter.failed(outcome)
                    if not (yield waiter):
                        raise explain.timeout_error(self, waiter.waited)
                    outcome = self._try_in_turn(waiter)
                won = self._native
            finally:
                waiter.end(won)
        except BaseException:
            waiter.end()  # an interrupt may have struck before the other one had begun
            raise

    def _is_mine(self) -> bool:
        """Tell whether this thread holds the lock by this object."""
        return bool(self._native.owner == this_thread())

    def _is_anothers(self) -> bool:
        """Tell a reentrant lock that another task of this thread holds."""
        return False

    def _refuse_to_wait(self, frame: FrameType, timeout: float | None) -> None:
        """Refuse a wait that is for oneself."""
        from semlock._locks import mine  # noqa: PLC0415 - only for those who wait

        mine.refuse_thread(self, frame, timeout)

    def _try(self) -> int:
        """Try once, after those whose turn it is."""
        if self._record is None or self._each_time:
            self._lay_out()
        outcome: int = try_lock(self._native, POOL)
        return outcome

    def _try_in_turn(self, waiter: Waiter) -> int:
        """Try again after a pause, but not before those who came before."""
        if waiter.outcome is not None:
            return waiter.outcome  # the core has tried
        if waiter.in_turn(fair=self._native.turns == capi.FAIR):
            return self._try_again()
        # Whoever stands behind sees to it too that a dead holder's lock goes.
        by_clock = waiter.judge is None and capi.now_ns() < self._native.look_at
        return HELD if by_clock else capi.LOOK

    def _waiter(self, timeout: float | None, asked: int) -> Waiter:
        del asked  # a thread asks when it begins to wait
        native = self._native
        queue = native if native.turns else None
        wait = waits.Wait((native,), queue, self._record)
        # The core can try by itself where nothing has to be laid out anew for each try.
        lock = native if native.turns and not self._each_time else None
        return Waiter(timeout, self._retry, wait=wait, lock=lock, notice=notice_of(self))

    def _try_again(self) -> int:
        if self._record is None or self._each_time:
            self._lay_out()
        outcome: int = try_anyway(self._native, POOL)
        return outcome

    def _made_dirs(self, outcome: int) -> bool:
        """Make the path's missing directories, if a try failed by them and that was asked for."""
        missing = self._make_dirs and outcome in explain.NO_DIRECTORY
        return missing and make_parents(self.path)

    def _mend(self, outcome: int) -> int:
        """Make the path's missing directories, if that was asked for, and try again.

        Gives the outcome of that try; ``OSError`` if there was another reason.
        """
        for _ in range(_TRIES):  # another process may remove an empty directory again
            if not self._made_dirs(outcome):
                break
            outcome = self._try_again()
        if outcome < 0 and outcome != -errno.EINTR:
            raise explain.os_error(self.path, outcome)
        return outcome

    def _settle(self, outcome: int, frame: FrameType, waiter: Waiter | None = None) -> bool:
        """Make of the outcome of a try a lock that is held, or one that can't be had now."""
        # Bounded, so that a path that changes hands at every look uses up no more time than
        # there was given.
        for _ in range(_TRIES):
            if outcome == OK:
                self._place = (frame.f_code, frame.f_lasti)
                if self._heartbeat is not None:
                    from semlock._locks import heartbeat as _heartbeat  # noqa: PLC0415 - threads, for those who ask

                    _heartbeat.watch(self, self._heartbeat)
                return True
            if outcome == NESTED:
                return True
            if outcome == capi.MINE:
                if waiter is None:
                    return False
                from semlock._locks import mine  # noqa: PLC0415 - only for those who wait

                mine.refuse(self, frame)
                outcome = HELD
            if outcome in (HELD, capi.LOOK):
                # A waiter lets the core look first, which mostly needs no judgement.
                due = None if waiter is None else waiter.judge
                if not (outcome == capi.LOOK if due is None else due):
                    return False
                if not self._judge(frame, may_wait=waiter is not None, waiter=waiter):
                    return False
            elif outcome == capi.TURN:
                if waiter is not None:
                    return False
                if self._native.turns == capi.FAIR:
                    return False
            elif outcome == capi.FORKED:
                self._follow_fork()
                outcome = try_lock(self._native, POOL)
                continue
            elif outcome < 0 and outcome != -errno.EINTR:
                outcome = self._mend(outcome)
                continue
            fair = self._native.turns == capi.FAIR
            if waiter is not None and not waiter.in_turn(fair=fair):
                return False
            outcome = self._try_again()
        if outcome in (OK, NESTED):
            return self._settle(outcome, frame, waiter)
        return False

    def _has_won(self, outcome: int, frame: FrameType) -> bool:
        """Settle a try that was made for one of several locks, and report it if it has won."""
        won = self._settle(outcome, frame)
        if won and (sink := events.sink) is not None:
            sink.won(self)
        return won

    def _judge(self, frame: FrameType, *, may_wait: bool, waiter: Waiter | None = None) -> bool:
        """Look who holds the lock; ``True`` if it may be free now."""
        found = self.status()
        seen = found.instance
        if seen is None:
            return True
        if may_wait and found.info is not None and found.info.pid == this_process().pid:
            own = registry.held_here(*seen.identity)
            if (
                own is not None
                and own._native.owner == this_thread()
                and not self._ends_in_time(own, None if waiter is None else waiter.left)
            ):
                from semlock._locks import mine  # noqa: PLC0415 - only for those who wait

                mine.refuse(own, frame)
        if found.reason is not None:
            # Only a policy of the user's can have meant a holder that lives.
            robs = self._policy is not None and found.verdict == ALIVE and not found.unfinished
            try:
                if remove_exactly(found, self._encoded, robs=robs, patience=_RECLAIM_PATIENCE):
                    self._made_way(found)
            except LockTimeoutError:
                pass  # Somebody sits on the guard, which counts as alive: look again later.
            except PermissionError:
                if not may_make_locks_beside(self.path):
                    raise  # nor would this user get the lock when it is free
            else:
                return True
        self._look_again_later(seen.key)
        if waiter is not None:
            # Death shows by events; what else a policy may go by, only the clock tells.
            by_clock = (
                self._policy is not None
                or found.unfinished
                or found.reason is not None
                or found._barred is not None
                or seen.error != 0
            )
            waiter.judged(seen, self._native.look_at if by_clock else None)
            info = found.info
            if found.verdict == ALIVE and not seen.witnessed and info and info.pid:
                waiter.follow(info.pid, 0 if info.timens else info.start or 0)
        return False

    def _ends_in_time(self, own: BaseLock, left: float | None) -> bool:
        """Tell whether a lock of this very thread will be stale before its wait is over."""
        if own._heartbeat is not None or self._policy is None:
            return False
        from semlock.policy import due_in  # noqa: PLC0415 - only for a thread that meets itself

        due = due_in(self._policy, self.status())
        # Without a timeout only what is stale now: a nested acquire that stands for the whole
        # time of a lock is more likely a mistake than meant.
        return due is not None and (due == 0 or (left is not None and due <= left < ENDLESS))

    def _look_again_later(self, identity: tuple[int, int, int]) -> None:
        now = capi.now_ns()
        if identity != self._seen:
            self._seen = identity
            self._first_seen = now
        watched = (now - self._first_seen) // 10
        self._native.look_at = now + min(max(watched, _FIRST_LOOK), _LAST_LOOK)

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Have the record name another process, whose lock it is from now on.

        If it is guarded this process keeps it until it is released, else it is left there.
        """
        self._owner = owner, guarded
        self._record = None

    def _lay_out(self) -> None:
        if self._record is not None and self._native.owner:
            return  # some thread tries or holds by this record, so it must stay as it is
        record = self._compose(None if self._owner is None else self._owner[0])
        if self._owner is not None:
            record.cdata.detached = not self._owner[1]
        # The core may still read an earlier one, in a try of another thread that has just begun.
        # Appended and cut in one step each, for two threads may lay out at once.
        self._laid_out.append(record)
        del self._laid_out[:-_RECORDS_KEPT]
        self._native.record = record.cdata
        self._record = record

    # ------------------------------------------------------------------ letting go

    def release(self) -> None:
        """Let go of the lock.

        ``NotHeldError`` if it is not held here; ``LockLostError`` if it was removed
        meanwhile, in which case the file at the path, if any, is theirs and stays.
        """
        native = self._native
        endings = native.endings
        try:
            outcome = (
                release_lock(native, POOL) if events.sink is None else events.release(self)
            )
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
            outcome = (
                release_lock(native, POOL) if events.sink is None else events.release(self)
            )
        except BaseException:
            self._end(endings)
            raise
        if outcome in _RELEASED:
            return
        if outcome == capi.FORKED or (outcome == capi.FREE and self._forked):
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
        if self._native.endings == endings and events.release(self) == capi.KEPT:
            registry.first_claim_kept()

    def _finish_release(self, outcome: int) -> None:
        end = monotonic() + GUARD_PATIENCE
        while outcome in (capi.GUARDED, -errno.EINTR):
            if monotonic() >= end:
                raise explain.guarded_error(self.path, "released")
            sleep(_GUARD_PAUSE)
            outcome = events.release(self)
        if outcome == capi.KEPT:
            # From now on this process leaves a file here while it idles, so it tidies up
            # after those who were killed while they did.
            registry.first_claim_kept()
            sweep(os.path.dirname(self.path))
        elif outcome == capi.LOST:
            raise self._lost()
        elif outcome in (capi.FREE, capi.OTHER_THREAD, capi.FORKED):
            self._forked = self._forked or outcome == capi.FORKED
            raise explain.not_held_error(self)
        elif outcome < 0:
            raise capi.os_error(outcome, self.path)

    # ------------------------------------------------------------------ while it is held

    def refresh(self) -> None:
        """Write the present time into the record: a sign of life for those who judge by age."""
        if not self._refresh(GUARD_PATIENCE):
            raise explain.guarded_error(self.path, "refreshed")

    def _refresh(self, patience: float) -> bool:
        """Refresh, waiting so long for whoever sits on the guard; ``False`` if that was in vain."""
        native = self._native
        record = self._record
        end = monotonic() + patience
        while native.held and record is not None:
            now = int(time())
            text = self._text(record, now)
            outcome = capi.refresh_lock(native, POOL, text, len(text))
            if outcome == OK:
                native.stamp = now
                if (sink := events.sink) is not None:
                    sink.refreshed(self)
                return True
            if outcome == capi.LOST:
                raise self._lost()
            if outcome in (capi.FREE, capi.FORKED):
                self._forked = self._forked or outcome == capi.FORKED
                break
            if outcome not in (capi.GUARDED, -errno.EINTR):
                raise capi.os_error(outcome, self.path)
            if monotonic() >= end:
                return False
            sleep(_GUARD_PAUSE)
        raise explain.not_held_error(self)

    def check(self) -> None:
        """Make sure that the lock is still held: ``LockLostError`` if it was removed."""
        while (outcome := capi.check_lock(self._native, POOL)) == -errno.EINTR:
            pass
        if outcome == capi.LOST:
            raise self._lost()
        if outcome in (capi.FREE, capi.FORKED):
            self._forked = self._forked or outcome == capi.FORKED
            raise explain.not_held_error(self)
        if outcome < 0:
            raise capi.os_error(outcome, self.path)

    def _lost(self) -> LockLostError:
        """Report that the lock was lost, and make the error that says so."""
        if (sink := events.sink) is not None:
            sink.lost(self)
        return explain.lost_error(self)

    # ------------------------------------------------------------------ what it says

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, as far as it knows; see ``check``."""
        outcome = capi.hold_of(self._native, POOL)
        if outcome == capi.FORKED:
            self._forked = True
        return bool(outcome == OK)

    @property
    def token(self) -> str | None:
        """The name of this acquisition, new each time; ``None`` while it is not held."""
        return capi.token_of(self._native).decode("ascii") if self.held else None

    @property
    def info(self) -> LockInfo | None:
        """What this object's record says; ``None`` while it is not held."""
        record = self._record
        if record is None or not self.held:
            return None
        return self._decode(self._text(record, self._native.stamp))

    def status(self) -> LockStatus:
        """Look at the path, also if another process holds it."""
        return look_at(self.path, self._encoded, self._decode, self._policy)

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<{type(self).__name__} {self.path!r}, {state}>"

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, which then runs under the lock."""
        from semlock._locks import decorating  # noqa: PLC0415 - only for those who decorate

        decorated: Callable[P, T] = decorating.decorate(self, function)
        return decorated

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} can't be pickled: make a lock of the same path in the other process"
        )

    def __del__(
        self,
        hold_of: Callable[[Any, Any], int] = capi.hold_of,
        pool: Any = POOL,
        held: int = OK,
        discard: Callable[[BaseLock], object] = registry.discard,
        forget: Callable[[Any, Any], object] = capi.forget_lock,
        keep: Callable[[BaseLock], object] = registry.keep,
        ending: Callable[[], bool] = sys.is_finalizing,
        interpreter: Any = sys,
    ) -> None:
        # All that this needs it has itself: at the end of the interpreter the modules are
        # taken apart before the last objects go.
        native = getattr(self, "_native", None)
        if native is None:
            return
        if hold_of(native, pool) != held:
            discard(self)
            forget(native, pool)
            return
        # When a lock ends must not depend on the garbage collector, least of all for somebody
        # who believes to be protected by it: it stays held, which can be seen and found.
        keep(self)
        # A subinterpreter ends without finalizing the process; none can import any more then.
        if ending() or getattr(interpreter, "meta_path", None) is None:
            return
        from warnings import warn  # noqa: PLC0415 - hardly ever needed

        warn(
            f"{self.path} is held by a lock object that nothing refers to any more, and stays held "
            f"until the process ends. It was acquired at {explain.where(self._place)}: keep the "
            "object and release it, or use `with`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _forget_after_fork(self) -> None:
        """Forget what is the parent's; C resets its own part at the first call."""
        if self._native.held:
            self._forked = True
        self._record = None
        self._place = None
        capi.holds(self._native)

    def _follow_fork(self) -> None:
        """Go on as the process that this is now: the record names the parent."""
        registry.follow_fork()
        self._record = None
        self._lay_out()
