"""The task lock: acquiring, taking over, refreshing, and its audit log."""

from __future__ import annotations

import sys
import time
from time import monotonic

from semlock._core import BY_CALLER, capi
from semlock._core.errors import LockLostError, LockTimeoutError, SemlockError
from semlock._core.identity import this_process
from semlock._core.inside import unstruck
from semlock._core.json_records import iso_time
from semlock._core.options import DEFAULTS, checked_timeout
from semlock._systems.task_audit import AuditLog
from semlock._systems.task_owner import LockOwner, refresh_interval, ttl_for
from semlock._systems.task_reclaim import (
    LOCK_HELD,
    checked_allow,
    explain,
    stale,
    taken_from,
    why_it_made_way,
)
from semlock._systems.task_records import (
    TaskInfo,
    checked_ttl,
    decode,
    encode,
    put_since,
    since_of,
)
from semlock._systems.task_taking import NETWORK_RETRY, Pauses, TakingOver
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import FrameType, TracebackType
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.identity import Process
    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
    from semlock._systems.task_owner import Environment, Purpose
    from semlock._waiting.steps import Steps

# After a failed refresh, the part of the interval until the next one.
_TRY_AGAIN = 1 / 15


_DEFAULTS: LockOptions = {**DEFAULTS, "mode": 0o600}
_REFUSED = {"heartbeat": "its ttl says when to refresh it. Use auto_refresh"}


class TaskLock(TakingOver):
    """A lock by the rules of the task lock.

    :owner:         who takes it: a ``LockOwner``, such as ``owner_for()`` finds out, the
                      text of one, or ``{"owner": …, "metadata": …}``
    :ttl:           seconds for which it is held without a refresh; by default what the table
                      has for the environment and purpose
    :environment:   ``"local"``, ``"ci"``, ``"cloud"`` or ``"container"``; by default the
                      owner's
    :purpose:       ``"interactive"``, ``"automated"`` or ``"emergency"``; the same
    :auto_refresh:  whether a thread refreshes it when three quarters of its time are over
    :network:       whether the file is on a network filesystem, where a wait makes ten tries
                      with growing pauses; by default the filesystem is asked
    :tag:           why it is held, for people; it is in what semlock adds to the record
    :audit:         whether operations are written to ``.lock_audit.log`` beside the lock
    :clock:         what tells the time of records, in seconds since 1970

    The other options are those of ``semlock.Lock``, except ``heartbeat``.
    """

    __slots__ = (
        "_audit", "_clock", "_lost_win", "_plain", "_reclaimed", "network", "owner",
        "ttl",
    )  # fmt: skip
    _each_time = True
    _strict = True
    _defaults = _DEFAULTS
    _refused_options = _REFUSED

    def __init__(
        self,
        path: StrPath,
        owner: LockOwner | str | Mapping[str, Any],
        *,
        ttl: float | None = None,
        environment: Environment | None = None,
        purpose: Purpose | None = None,
        auto_refresh: bool = False,
        network: bool | None = None,
        audit: bool = True,
        clock: Callable[[], float] = time.time,
        **options: Unpack[LockOptions],
    ) -> None:
        for name, flag in (
            ("auto_refresh", auto_refresh),
            ("network", network),
            ("audit", audit),
        ):
            if flag not in (True, False) and (flag is not None or name != "network"):
                raise TypeError(f"{name} is True or False, not {flag!r:.60}")
        self.owner = LockOwner.of(owner).replace(environment=environment, purpose=purpose)
        default = ttl_for(self.owner.environment, self.owner.purpose)
        self.ttl = checked_ttl(default if ttl is None else ttl)
        self.network = network
        self._clock = clock
        self._plain: capi.Record | None = None
        self._reclaimed: tuple[str, str] | None = None
        self._lost_win = 0
        super().__init__(path, **options)
        self._heartbeat = refresh_interval(self.ttl) if auto_refresh else None
        if self._policy is None:
            self._policy = stale(clock)
            self._native.vouched = BY_CALLER
        if self._retry is None and network is not False:
            self._retry = NETWORK_RETRY if network else Pauses(self._encoded)
        whose, mode = self.owner.owner, options.get("mode", _DEFAULTS["mode"])
        self._audit = AuditLog(self.path, whose, on=audit, mode=mode, clock=clock)
        # What a record can't contain is refused now, and not in acquire().
        self._lay_out()

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Have the record name another process, in this one's environment.

        An owner that is no process, such as a user or a run of continuous integration, stays.
        """
        own = self.owner
        if own.kind == "pid" and own.metadata.get("process_id") == this_process().pid:
            whose = LockOwner.from_string(f"pid-{owner.pid}@{owner.host or 'unknown-host'}")
            self.owner = whose.replace(environment=own.environment, purpose=own.purpose)
            self._audit.owner = self.owner.owner
        super()._leave_to(owner, guarded=guarded)

    # ------------------------------------------------------------------ the record

    def _compose(self, owner: Process | None) -> capi.Record:
        taken = self._reclaimed
        record = None if owner is not None or taken else self._plain
        if record is None:
            metadata = self.owner.metadata
            if taken:
                metadata["reclaimed_from"], metadata["reclaimed_reason"] = taken
            record = encode(
                self.owner.owner,
                self.ttl,
                metadata,
                owner or this_process(),
                mode=self._mode,
                durability=capi.DURABILITY[self._durability],
                tag=self.tag,
            )
            if not taken and owner is None:
                self._plain = record
        put_since(record, self._now())
        return record

    def _now(self) -> bytes:
        return iso_time(self._clock()).encode("ascii")

    def _decode(self, content: bytes) -> TaskInfo:
        return decode(content)

    @property
    def info(self) -> TaskInfo | None:
        """What this object's record says; ``None`` while it is not held."""
        info = super().info
        return info if isinstance(info, TaskInfo) else None

    def _forget_after_fork(self) -> None:
        super()._forget_after_fork()
        self._plain = None  # the record names the parent process

    # ------------------------------------------------------------------ acquiring

    def try_acquire(self) -> bool:
        """Take the lock if it is free, its time is over, or its holder is dead."""
        before, depth = self._native.serial, self._depth()
        try:
            if depth and run(self._begin_anew(0.0)):
                self._note_taken(sys._getframe(1), 0)
                return True
            taken = super().try_acquire()
            if taken:
                self._note_taken(sys._getframe(1), depth)
        except BaseException:
            self._undo_beyond(depth, before)
            raise
        return taken

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        before, depth = self._native.serial, self._depth()
        try:
            run(self._acquiring(timeout, frame))
        except BaseException:
            self._undo_beyond(depth, before)
            raise

    def _acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        depth = self._depth()
        began = monotonic()
        try:
            if depth and (yield from self._begin_anew(timeout)):
                self._note_taken(frame, 0)
                return
            if depth and timeout is not None:
                timeout = max(0.0, timeout - (monotonic() - began))
            yield from super()._acquiring(timeout, frame)
            self._note_taken(frame, depth)
        except LockTimeoutError as error:
            if error.status is None:
                raise
            self._audit.denied(error.status, LOCK_HELD)
            raise LockTimeoutError(
                f"{self.path} could not be acquired in time. "
                f"{explain(error.status, self.path, self._clock())}",
                path=self.path,
                status=error.status,
            ) from None

    def _depth(self) -> int:
        """Say how often the caller holds the lock."""
        return int(self._native.depth) if self._is_mine() else 0

    def _undo_beyond(self, depth: int, before: int) -> None:
        # BaseLock has undone what it was interrupted in, but not what came after.
        if self._depth() > depth:
            self._undo(before)

    def _try_again(self) -> int:
        outcome = None
        try:
            outcome = super()._try_again()
            return outcome
        finally:
            self._settle_reclaim(won=outcome == capi.OK)

    def _take_note(self, taken: tuple[str, str]) -> None:
        """Have the next record name the previous owner, and why the lock was taken."""
        self._reclaimed = taken

    def _settle_reclaim(self, *, won: bool) -> None:
        """Forget the previous owner: a later try meets another holder."""
        taken, self._reclaimed = self._reclaimed, None
        if taken and not won:
            self._audit.reclaimed(*taken, acquired=False)

    def _made_way(self, found: LockStatus) -> None:
        if isinstance(found.info, TaskInfo):
            self._reclaimed = taken_from(found.info, why_it_made_way(found, self._clock()))

    def reclaim(
        self, *, allow: str | Collection[str] = (), timeout: float | None = 0.0
    ) -> TaskInfo:
        """Take the lock from its holder if there is a reason; what its record says.

        A lock whose time is over or whose holder is proven to be dead is taken, and a free one
        too.  One that is held is taken only for a reason that the decision tree has *and* that
        ``allow`` names: ``"SAME_USER"``, ``"HIGHER_PRIVILEGE"``, ``"EMERGENCY_OVERRIDE"``.  Its
        holder learns of that at its next ``check``, ``refresh`` or ``release``.  Else
        ``ReclaimDeniedError``: at once, or when ``timeout`` seconds have brought no reason.
        """
        limit = None if timeout is None else checked_timeout(timeout)
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == "semlock.task" and frame.f_back is not None:
            frame = frame.f_back  # of task.reclaim(): the place to tell is its caller's
        before, depth = self._native.serial, self._depth()
        try:
            info = run(self._reclaiming(checked_allow(allow), limit, frame))
        except BaseException:
            self._undo_beyond(depth, before)
            raise
        return info

    def _reclaiming(
        self, allowed: frozenset[str], timeout: float | None, frame: FrameType
    ) -> Steps[TaskInfo]:
        if not (self._depth() and (yield from self._begin_anew(timeout))):
            yield from self._take_over(allowed, timeout, frame)
        self._note_taken(frame, 0)
        info = self.info
        assert info is not None
        return info

    # ------------------------------------------------------------------ holding, letting go

    def _refresh(self, patience: float) -> bool:
        """Begin the lock's time anew: write the present time into the record."""
        record = self._record
        if record is None or not self._native.held:
            return super()._refresh(patience)
        before = since_of(record)
        put_since(record, self._now())
        try:
            done = super()._refresh(patience)
        except LockLostError:
            self._note_lost()
            raise
        except BaseException:
            self._refresh_failed(record, before)
            raise
        if not done:
            self._refresh_failed(record, before)
        return done

    def _refresh_failed(self, record: capi.Record, before: bytes) -> None:
        put_since(record, before)
        if self._heartbeat is not None and self._native.held:
            from semlock._locks import heartbeat  # noqa: PLC0415 - threads, for those who ask

            # Otherwise the next beat would come when the lock has expired.
            heartbeat.watch(self, self._heartbeat * _TRY_AGAIN)

    def check(self) -> None:
        """Make sure that the lock is still held: ``LockLostError`` if it was taken."""
        try:
            super().check()
        except LockLostError:
            self._note_lost()
            raise

    @unstruck
    def release(self) -> None:
        """Release the lock; ``LockLostError`` if it was taken meanwhile."""
        endings, depth = self._native.endings, self._native.depth
        try:
            super().release()
        except (SemlockError, OSError):
            raise
        except BaseException:
            self._end(endings)  # an interrupt came before BaseLock could release it
            raise
        self._note_released(endings, depth)

    @unstruck
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        endings, depth = self._native.endings, self._native.depth
        try:
            super().__exit__(kind, error, traceback)
        except (SemlockError, OSError):
            raise
        except BaseException:
            self._end(endings)
            raise
        self._note_released(endings, depth)

    def _finish_release(self, outcome: int) -> None:
        try:
            super()._finish_release(outcome)
        except LockLostError:
            self._note_lost()
            raise

    # ------------------------------------------------------------------ the audit log

    def _note_taken(self, frame: FrameType, depth: int) -> None:
        if depth:
            return  # it was held before, and only counts once more
        self._place = (frame.f_code, frame.f_lasti)
        info = self.info if self._audit.on else None
        if info is not None:
            self._audit.taken(info)

    def _note_released(self, endings: int, depth: int) -> None:
        native = self._native
        if depth == 1 and native.endings != endings and self._lost_win != native.serial:
            self._audit.released()

    def _note_lost(self) -> None:
        # Once for each win, however often the caller asks.
        if self._lost_win != self._native.serial:
            self._lost_win = self._native.serial
            self._audit.lost()
