"""The sidecar lock itself: its options, one try, and what is done while it is held."""

from __future__ import annotations

import errno
import threading
from functools import partial
from time import time

from semlock._core import BY_CALLER, capi, events, explain
from semlock._core.capi import NESTED, OK, POOL, try_anyway, try_lock
from semlock._core.errors import LockLostError
from semlock._core.options import FOREVER
from semlock._core.paths import absolute
from semlock._core.records import clean_tag
from semlock._locks.base import BaseLock
from semlock._systems.sidecar_record import (
    SUFFIX,
    compose,
    decode,
    default_payload,
    is_being_reclaimed,
    make_directory_of,
    normalize,
    restamp,
)
from semlock._systems.sidecar_terms import (
    DEFAULT_RETRY,
    FAIL_CLOSED,
    REMOVE_IF_UNCHANGED,
    STALE,
    FileLockStaleError,
    RetryOptions,
    Stale,
    timeout_error,
)
from semlock._systems.sidecar_waiting import ALONE, Alone, Waiting
from semlock._waiting.steps import Call, insisting
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType
    from typing import Any, NoReturn, TypeAlias

    from typing_extensions import Unpack

    from semlock._core.identity import Process
    from semlock._core.options import PlainOptions
    from semlock._core.records import LockInfo
    from semlock._core.status import StrPath
    from semlock._stores.store import Attempt
    from semlock._systems.sidecar_terms import StaleRecovery
    from semlock._systems.sidecar_waiting import ShouldReclaim, ShouldRemove
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Schedule

    Payload: TypeAlias = Callable[[], Any]

_TRIES = 10

# How long to ignore that the path is free after a try of a free path has failed.
_DEAF = 0.005


class SidecarLock(Waiting):
    """A lock in a JSON file beside its target: ``state.json`` is locked by ``state.json.lock``.

    :target:                    what is locked; its directory is made where it is missing
    :payload:                   gives the JSON object of the record, anew for each try
    :lock_path:                 another place for the lock file
    :stale:                     seconds after which a lock is stale; ``None``: never
    :timeout:                   seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :retry:                     the pauses of a wait (``RetryOptions``, a dict of its
                                  options, or another schedule)
    :stale_recovery:            ``"fail-closed"`` or ``"remove-if-unchanged"``
    :should_reclaim:            asked with a ``ReclaimQuestion`` instead of the age rule
    :should_remove_stale_lock:  asked with a ``StaleSnapshot`` before one is removed
    :policy:                    what it permits is removed and taken; it replaces the four
                                  options about staleness

    The other options are those of ``semlock.Lock``; ``tag`` is a member of the default payload.
    ``acquire`` raises ``FileLockStaleError`` and ``FileLockTimeoutError``; ``try_acquire`` gives
    ``False`` for a stale lock too.
    """

    __slots__ = (
        "_given_policy", "_mutex", "_next", "_payload", "_should_reclaim", "_should_remove",
        "_stale", "_stale_recovery", "normalized_target_path",
    )  # fmt: skip
    _each_time = True
    _strict = True

    def __init__(
        self,
        target: StrPath,
        *,
        payload: Payload = default_payload,
        lock_path: StrPath | None = None,
        stale: float | None = STALE,
        retry: Schedule | Mapping[str, Any] = DEFAULT_RETRY,
        stale_recovery: StaleRecovery = FAIL_CLOSED,
        should_reclaim: ShouldReclaim | None = None,
        should_remove_stale_lock: ShouldRemove | None = None,
        **options: Unpack[PlainOptions],
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
        if (tag := options.get("tag")) is not None:
            if payload is not default_payload:
                raise TypeError('with a payload of its own a lock has its tag there, as "tag"')
            tag = clean_tag(tag)
            payload = lambda: {**default_payload(), "tag": tag}  # noqa: E731
        age_rule = Stale(stale)
        self.normalized_target_path = normalize(target)
        self._payload = payload
        self._stale = age_rule.seconds
        self._stale_recovery = stale_recovery
        self._should_reclaim = should_reclaim
        self._should_remove = should_remove_stale_lock
        self._given_policy = options.get("policy")
        self._mutex = threading.RLock()
        self._next: capi.Record | None = None
        super().__init__(
            self.normalized_target_path + SUFFIX if lock_path is None else absolute(lock_path),
            **options,
        )
        self._retry = RetryOptions.of(retry)
        if self._given_policy is None:
            self._policy = age_rule
            self._native.vouched = BY_CALLER

    @property
    def lock_path(self) -> str:
        """The lock file; ``path`` is the same."""
        return self.path

    @property
    def token(self) -> str | None:
        """The name of this acquisition, as its record says it; ``None`` while it is not held."""
        info = self.info
        return None if info is None else info.token

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Have the payload name another process, as long as this one keeps the lock."""
        if not guarded:
            raise ValueError("a sidecar lock needs a holder that runs: use semlock run")
        payload = self._payload
        self._payload = lambda: {**payload(), "pid": owner.pid}

    def _compose(self, owner: Process | None) -> NoReturn:  # noqa: ARG002 - it refuses all
        raise TypeError(
            "a sidecar lock can't be one of several slots: its record has a payload, which is only "
            "asked for when the lock is acquired"
        )

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def _forget_after_fork(self) -> None:
        # Another thread may have held it when the process forked.
        self._mutex = threading.RLock()
        super()._forget_after_fork()

    # ------------------------------------------------------------------ acquiring

    def _settled_try(self, frame: FrameType) -> bool:
        try:
            return run(self._attempt(frame, ALONE))
        except FileLockStaleError:
            return False  # it is stale and may not be removed

    _take = BaseLock._take  # noqa: SLF001 - its steps differ, and no record is laid out before

    def _acquiring(
        self,
        timeout: float | None,
        frame: FrameType,
        manager: Alone = ALONE,
        *,
        may_deadlock: bool | None = None,
    ) -> Steps[None]:
        """Take the lock, for a manager or for none."""
        if may_deadlock is None:
            may_deadlock = not self._for_tasks
        steps = self._trying(timeout, frame, manager, may_deadlock=may_deadlock)
        sink = events.sink
        return steps if sink is None else sink.acquiring(self, steps)

    def _trying(
        self, timeout: float | None, frame: FrameType, manager: Alone, *, may_deadlock: bool
    ) -> Steps[None]:
        """Try until the lock is won, or nothing is left of the time or the retries."""
        asked = capi.now_ns()
        waiter = won = None
        # A thread's wait for its own lock is an error only if nothing would ever end it.
        retries = getattr(self._retry, "retries", 0)
        endless = may_deadlock and (timeout is None or timeout >= FOREVER) and retries is None
        fair = bool(self._native.turns == capi.FAIR)
        try:
            try:
                while not manager.join():
                    first = waiter is None or waiter.in_turn(
                        fair=fair, anew=waiter.said != capi.FREE
                    )
                    if first and not manager.blocks():
                        attempt = self._attempt(
                            frame, manager, endless=endless,
                            anyway=waiter is not None, insists=timeout == 0,
                        )  # fmt: skip
                        if (yield from attempt):
                            won = self._native
                            return
                    if timeout == 0:
                        raise timeout_error(self, 0.0)
                    if waiter is None:
                        if (sink := events.sink) is not None:
                            sink.waits(self)
                        waiter = self._waits(timeout, asked, by_thread=may_deadlock)
                    elif waiter.said == capi.FREE:
                        waiter.postpone(_DEAF)  # a path that can't be taken is being worked on
                    while True:
                        if not (yield waiter):
                            raise timeout_error(self, waiter.waited)
                        if self._is_time_to_try(waiter):
                            break
            finally:
                if waiter is not None:
                    waiter.end(won)
        except BaseException:
            if waiter is not None:
                waiter.end()  # again: an interrupt may have come before the call above
            raise

    def _attempt(
        self,
        frame: FrameType,
        manager: Alone,
        *,
        endless: bool = False,
        anyway: bool = False,
        insists: bool = True,
    ) -> Steps[bool]:
        """Try once, and again at once while the path is free, a bounded number of times."""
        for turn in range(_TRIES):
            if is_being_reclaimed(self.path) or self._is_anothers():
                return False
            own = self._payload is default_payload  # which awaits nothing
            value = default_payload() if own else (yield Call(self._payload))
            text = compose(value)
            attempt = partial(self._try_with, text, try_anyway if anyway else try_lock)
            outcome = attempt()
            if outcome == capi.TURN and insists:
                outcome = yield from insisting(attempt)
            if outcome == capi.TURN:
                return False
            if outcome == OK and not self._is_kept():
                return False
            if outcome in (OK, NESTED):
                self._settle(outcome, frame)
                return True
            if outcome == capi.MINE:
                if endless:
                    self._refuse(self, frame)
                return False
            if outcome == -errno.EINTR:
                continue
            if outcome not in (capi.HELD, capi.LOOK):
                if turn + 1 < _TRIES and self._made_dirs(outcome):
                    continue
                raise explain.os_error(self.path, outcome)
            if not (yield from self._may_be_free(frame, manager, endless=endless)):
                return False
        return False

    def _try(self) -> int:
        """Try once, for a caller that tries many locks."""
        return self._try_by(try_lock)

    def _try_again(self) -> int:
        return self._try_by(try_anyway)

    def _try_by(self, attempt: Callable[[Any, Any], int]) -> int:
        if is_being_reclaimed(self.path) or self._is_anothers():
            return capi.HELD
        text = Call(self._payload).pause()
        outcome = self._try_with(compose(text), attempt)
        return capi.HELD if outcome == OK and not self._is_kept() else outcome

    def _judge(
        self, frame: FrameType, *, may_wait: bool, waiter: Attempt | None = None
    ) -> bool:
        if self._given_policy is not None:
            return super()._judge(frame, may_wait=may_wait, waiter=waiter)
        if run(self._may_be_free(frame, ALONE, endless=may_wait)):
            return True
        look = self.status().instance
        if look is not None:
            self._look_again_later(look.key)
            if waiter is not None:
                waiter.judged(look, self._native.look_at)
        return False

    def _try_with(self, text: bytes, attempt: Callable[[Any, Any], int] = try_lock) -> int:
        make_directory_of(self.normalized_target_path)
        record = capi.Record(
            text, mode=self._mode, durability=capi.DURABILITY[self._durability]
        )
        # One thread at a time: the core reads the record during the try, and a try of another
        # thread by this object would replace it.
        with self._mutex:
            self._next = record
            self._native.record = record.cdata
            outcome = attempt(self._native, POOL)
            if outcome == OK:
                self._record = self._next
        return outcome

    def _is_kept(self) -> bool:
        """Check that no reclaimer is about to remove the new lock as the stale one.

        fs-safe removes by name, under a guard that it took while the stale lock was there.  If
        the guard is gone, the removal is over; if not, its owner may remove the new lock.
        """
        try:
            if not is_being_reclaimed(self.path):
                self.check()
                return True
        except LockLostError:
            pass
        self._end(self._native.endings)
        return False

    # ------------------------------------------------------------------ while it is held

    def _restamped(self, before: bytes) -> bytes:
        """Write the present time into ``createdAt``, and with or without one touch the file."""
        return restamp(before, time())
