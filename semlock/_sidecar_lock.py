"""The sidecar lock itself: one try, what its failure means, and the wait between tries."""

from __future__ import annotations

import errno
import sys
import threading
from time import monotonic, time

from semlock import _explain, _native, _process
from semlock._engine import _OWN, BaseLock, _checked_timeout
from semlock._errors import LockLostError, LockTimeoutError
from semlock._identity import ALIVE
from semlock._native import NESTED, OK, POOL, release_lock, this_thread, try_lock
from semlock._sidecar_record import compose, decode, default_payload, restamp
from semlock._sidecar_steps import ALONE, Alone, Call, Pause, run, run_async
from semlock._sidecar_target import SUFFIX, is_being_reclaimed, make_directory_of, normalize
from semlock._sidecar_terms import (
    DEFAULT_RETRY,
    FAIL_CLOSED,
    REMOVE_IF_UNCHANGED,
    STALE,
    FileLockStaleError,
    ReclaimQuestion,
    Stale,
    StaleSnapshot,
    stale_error,
    timeout_error,
)
from semlock._status import GUARD_PATIENCE, GUARD_PAUSE, absolute, remove_exactly
from semlock._waiting import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeAlias

    from semlock._engine import Durability
    from semlock._policy import Policy
    from semlock._records import LockInfo
    from semlock._sidecar_steps import Steps
    from semlock._sidecar_terms import StaleRecovery
    from semlock._status import LockStatus, StrPath
    from semlock._waiting import Schedule

    Payload: TypeAlias = Callable[[], Any]
    ShouldReclaim: TypeAlias = Callable[[ReclaimQuestion], object]
    ShouldRemove: TypeAlias = Callable[[StaleSnapshot], object]

_frame = sys._getframe

_TRIES = 10

# How long not to listen where the path is free and still not to be had.
_DEAF = 0.005
_REMOVAL_PATIENCE = 0.002


class SidecarLock(BaseLock):
    """A lock in a JSON file beside its target: ``state.json`` is locked by ``state.json.lock``.

    :target:                    what is locked; its directory is made where it is missing
    :payload:                   gives the JSON object of the record, anew for each try
    :lock_path:                 another place for the lock file
    :stale:                     seconds after which a lock is stale; ``None``: never
    :timeout:                   seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :retry:                     the pauses of a wait (``RetryOptions`` or another schedule)
    :stale_recovery:            ``"fail-closed"`` or ``"remove-if-unchanged"``
    :should_reclaim:            asked with a ``ReclaimQuestion`` instead of the age rule
    :should_remove_stale_lock:  asked with a ``StaleSnapshot`` before one is removed
    :policy:                    what it permits is removed and taken; it replaces the four
                                  options about staleness

    The other options are those of ``semlock.Lock``.  ``acquire`` raises ``FileLockStaleError``
    and ``FileLockTimeoutError``; ``try_acquire`` gives ``False`` for a stale lock too.
    """

    __slots__ = (
        "_given_policy", "_mutex", "_next", "_payload", "_should_reclaim", "_should_remove",
        "_stale", "_stale_recovery", "_won_at", "normalized_target_path",
    )  # fmt: skip
    _each_time = True

    def __init__(
        self,
        target: StrPath,
        *,
        payload: Payload = default_payload,
        lock_path: StrPath | None = None,
        stale: float | None = STALE,
        timeout: float | None = None,
        retry: Schedule = DEFAULT_RETRY,
        stale_recovery: StaleRecovery = FAIL_CLOSED,
        should_reclaim: ShouldReclaim | None = None,
        should_remove_stale_lock: ShouldRemove | None = None,
        policy: Policy | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        reentrant: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[SidecarLock, LockLostError], object] | None = None,
    ) -> None:
        for name, function in (
            ("payload", payload),
            ("should_reclaim", should_reclaim),
            ("should_remove_stale_lock", should_remove_stale_lock),
        ):
            if not callable(function) and (function is not None or function is payload):
                raise TypeError(f"{name} is a function, not {function!r}")
        if stale_recovery not in (FAIL_CLOSED, REMOVE_IF_UNCHANGED):
            raise ValueError(
                f"stale_recovery is {FAIL_CLOSED!r} or {REMOVE_IF_UNCHANGED!r}, "
                f"not {stale_recovery!r}"
            )
        age_rule = Stale(stale)
        self.normalized_target_path = normalize(target)
        self._payload = payload
        self._stale = stale
        self._stale_recovery = stale_recovery
        self._should_reclaim = should_reclaim
        self._should_remove = should_remove_stale_lock
        self._given_policy = policy
        self._mutex = threading.RLock()
        self._next: _native.Record | None = None
        self._won_at = 0
        super().__init__(
            self.normalized_target_path + SUFFIX if lock_path is None else absolute(lock_path),
            timeout=timeout,
            policy=policy or age_rule,
            retry=retry,
            durability=durability,
            mode=mode,
            reentrant=reentrant,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )

    @property
    def lock_path(self) -> str:
        """The lock file; ``path`` is the same."""
        return self.path

    @property
    def token(self) -> str | None:
        """The name of this acquisition, as its record says it; ``None`` while it is not held."""
        info = self.info
        return None if info is None else info.token

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def _text(self, record: _native.Record, stamp: int) -> bytes:
        # As it was written, until the first refresh puts a later time into it.
        return record.text if stamp == self._won_at else restamp(record.text, stamp)

    def _forget_after_fork(self) -> None:
        # Another thread may have held it when the process forked.
        self._mutex = threading.RLock()
        super()._forget_after_fork()

    # ------------------------------------------------------------------ acquiring

    def try_acquire(self) -> bool:
        """Take the lock if it is free; ``False`` if it is held, or stale and not removable."""
        before = self._native.serial
        try:
            return run(self._attempt(_frame(1), ALONE))
        except FileLockStaleError:
            return False
        except BaseException:
            self._undo(before)
            raise

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        before = self._native.serial
        try:
            run(self._acquiring(timeout, frame, may_deadlock=True))
        except BaseException:
            self._undo(before)
            raise

    async def acquire_async(self, timeout: float | None = _OWN) -> None:
        """Take the lock, waiting in the event loop instead of in the thread.

        The callbacks may be coroutine functions.  When the task is cancelled nothing is held.
        """
        before = self._native.serial
        limit = self.timeout if timeout is _OWN else timeout
        if limit is not None:
            limit = _checked_timeout(limit)
        try:
            await run_async(self._acquiring(limit, _frame(1)))
        except BaseException:
            self._undo(before)
            raise

    def _acquiring(
        self,
        timeout: float | None,
        frame: FrameType,
        manager: Alone = ALONE,
        *,
        may_deadlock: bool = False,
    ) -> Steps[None]:
        """Try until the lock is won, or nothing is left of the time or the retries."""
        pauses: list[float] = []
        waiter = Waiter(timeout, self._retry, sleep=pauses.append)
        # A thread that waits for itself is an error only where nothing would ever end the wait.
        retries = getattr(self._retry, "retries", 0)
        endless = may_deadlock and timeout in (None, float("inf")) and retries is None
        until = 0.0
        free = False
        while not manager.join():
            if not manager.blocks() and (
                yield from self._attempt(frame, manager, endless=endless)
            ):
                return
            rest = until - monotonic()
            if rest <= 0:
                if not waiter.pause():
                    raise timeout_error(self, waiter.waited)
                rest = pauses.pop()
                until = monotonic() + rest
            # A pause that ends early since the lock is free goes on if others are faster, so
            # that the schedule is kept.  If it was free and still not to be had, somebody is
            # at work there: don't listen for a moment.
            free = yield Pause(min(rest, _DEAF)) if free else Pause(rest, self._native)

    def _attempt(
        self, frame: FrameType, manager: Alone, *, endless: bool = False
    ) -> Steps[bool]:
        """Try once, and again at once as often as the path turns out to be free, within bounds."""
        for _ in range(_TRIES):
            if is_being_reclaimed(self.path):
                return False
            outcome = self._try_with(compose((yield Call(self._payload))))
            if outcome == OK and not self._is_kept():
                return False
            if outcome in (OK, NESTED):
                self._settle(outcome, frame)
                return True
            if outcome == _native.MINE and not endless:
                return False
            if outcome == _native.MINE:
                raise _explain.deadlock_error(self, frame)
            if outcome == -errno.EINTR:
                continue
            if outcome not in (_native.HELD, _native.LOOK):
                raise _explain.os_error(self.path, outcome)
            if not (yield from self._may_be_free(frame, manager, endless=endless)):
                return False
        return False

    def _try_with(self, text: bytes) -> int:
        make_directory_of(self.normalized_target_path)
        record = _native.Record(
            text,
            stamp_at=-1,
            token_at=-1,
            witness_at=-1,
            mode=self._mode,
            durability=_native.DURABILITY[self._durability],
        )
        # One thread at a time: the core reads the record that is laid out while it tries, and
        # another thread's try through this object would lay out another one.
        with self._mutex:
            self._next = record
            self._native.record = record.cdata
            outcome: int = try_lock(self._native, POOL)
            if outcome == OK:
                self._won_at = self._native.stamp
                self._record = self._next
        return outcome

    def _is_kept(self) -> bool:
        """Make sure that what was just won is not removed by a reclaimer that took it for stale.

        fs-safe removes by name, under a guard that it took while the stale lock was there.
        If the guard is gone now, so is what its owner removed; if it is not, the owner may be
        about to remove ours.
        """
        try:
            if not is_being_reclaimed(self.path):
                self.check()
                return True
        except LockLostError:
            pass
        self._end(self._native.endings)
        return False

    def _may_be_free(self, frame: FrameType, manager: Alone, *, endless: bool) -> Steps[bool]:
        """Judge what is at the path: ``True`` if it is gone, and an error if it is stale."""
        found = self.status()
        look = found._look
        if look is None:
            return True
        if self._given_policy is not None:
            return self._judge(frame, may_wait=endless)
        if found.unfinished:
            # Nobody believes to hold it, so it is no lock yet, and no stale one either.
            return found.reason is not None and self._removed(found)
        stale = found.reason is not None
        if self._should_reclaim is not None:
            question = ReclaimQuestion(
                lock_path=self.path,
                normalized_target_path=self.normalized_target_path,
                payload=None if found.info is None else found.info.payload,
                stale=self._stale,
                now=time(),
                held_by_this_process=manager.holds(),
                verdict=found.verdict,
            )
            stale = bool((yield Call(self._should_reclaim, question)))
            if stale and not self._is_still(found):
                return True
        if stale:
            if not (yield from self._is_removable(found)):
                raise stale_error(self, found)
            return not is_being_reclaimed(self.path) and self._removed(found)
        own = _process.held_here(look.view.dev, look.view.ino) if endless else None
        if own is not None and own._native.owner == this_thread():
            raise _explain.deadlock_error(own, frame)
        return False

    def _is_still(self, found: LockStatus) -> bool:
        """Tell whether the instance that was looked at is there, and was left alone since."""
        seen, now = found._look, self.status()._look
        if seen is None or now is None:
            return False
        return (seen.view.dev, seen.view.ino, seen.view.ctime_ns, seen.content) == (
            now.view.dev, now.view.ino, now.view.ctime_ns, now.content,
        )  # fmt: skip

    def _is_removable(self, found: LockStatus) -> Steps[bool]:
        """Ask whether a stale lock may be removed.  One whose holder lives never is."""
        look = found._look
        if (
            self._stale_recovery != REMOVE_IF_UNCHANGED
            or self._should_remove is None
            or found.verdict == ALIVE
            or look is None
            or look.error
        ):
            return False
        snapshot = StaleSnapshot(
            lock_path=self.path,
            normalized_target_path=self.normalized_target_path,
            raw=look.content.decode("utf-8", "replace"),
            payload=None if found.info is None else found.info.payload,
        )
        return bool((yield Call(self._should_remove, snapshot)))

    def _removed(self, found: LockStatus) -> bool:
        """Remove exactly what was judged; ``True`` if another try is worth while."""
        try:
            remove_exactly(found, self._encoded, robs=False, patience=_REMOVAL_PATIENCE)
        except LockTimeoutError:
            return False  # somebody sits on the guard, which counts as alive
        return True

    # ------------------------------------------------------------------ while it is held

    def _refresh(self, patience: float) -> bool:
        """Write the present time into ``createdAt``, and with or without one touch the file."""
        native = self._native
        while True:
            serial = native.serial
            done = False
            try:
                done = super()._refresh(patience)
            except OSError:
                if native.serial == serial:
                    raise
            # If another thread let go and acquired anew meanwhile, what was written is the
            # record of before; once more, and it is the right one.
            if native.serial == serial:
                return done

    async def release_async(self) -> None:
        """Let go of the lock as ``release`` does, waiting for the guard in the event loop."""
        import asyncio  # noqa: PLC0415 - whoever gets here has it

        end = monotonic() + GUARD_PATIENCE
        cancelled = None
        while True:
            outcome = release_lock(self._native, POOL)
            if outcome not in (_native.GUARDED, -errno.EINTR) or monotonic() >= end:
                break
            try:
                await asyncio.sleep(GUARD_PAUSE)
            except asyncio.CancelledError as error:
                # The lock must not stay held because nobody waits for its end any more.
                cancelled = error
        if outcome == _native.GUARDED:
            raise _explain.guarded_error(self.path, "released")
        if outcome not in (OK, NESTED):
            self._finish_release(outcome)
        if cancelled is not None:
            raise cancelled
