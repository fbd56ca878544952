"""What a sidecar lock does about a lock that it finds: how it is judged, and waited for.

It is judged by the age rule or by what callbacks say, and waited for by the schedule of the
caller, or earlier if it gets free.
"""

from __future__ import annotations

import errno
from sys import _getframe as _frame
from time import monotonic, time

from semlock._core import capi, explain, inside, registry, waits
from semlock._core.capi import NESTED, OK, this_thread
from semlock._core.errors import LockTimeoutError
from semlock._core.identity import ALIVE
from semlock._core.options import GUARD_PATIENCE, checked_timeout
from semlock._core.status import GUARD_PAUSE, remove_exactly
from semlock._core.verdicts import may_make_locks_beside
from semlock._locks import OWN_TIMEOUT
from semlock._locks.lock import FileLock
from semlock._systems.sidecar_record import is_being_reclaimed
from semlock._systems.sidecar_terms import (
    REMOVE_IF_UNCHANGED,
    ReclaimQuestion,
    StaleSnapshot,
    stale_error,
)
from semlock._waiting.steps import Call, run_async
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeAlias

    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy
    from semlock._locks.base import BaseLock
    from semlock._systems.sidecar_terms import StaleRecovery
    from semlock._waiting.steps import Steps

    ShouldReclaim: TypeAlias = Callable[[ReclaimQuestion], object]
    ShouldRemove: TypeAlias = Callable[[StaleSnapshot], object]


_REMOVAL_PATIENCE = 0.002


class Alone:
    """What a lock asks of its manager; this class is for a lock without one."""

    __slots__ = ()

    def join(self) -> bool:
        """Become one more holder of a lock that the manager has; ``True`` if that is done."""
        return False

    def blocks(self) -> bool:
        """Tell whether the manager holds the target by another lock file."""
        return False

    def holds(self) -> bool:
        """Tell whether the manager holds the target."""
        return False


ALONE = Alone()


class Waiting(FileLock):
    """The part of ``SidecarLock`` that judges what is at the path, and waits for it."""

    __slots__ = ()

    if TYPE_CHECKING:
        normalized_target_path: str
        _given_policy: Policy | None
        _should_reclaim: ShouldReclaim | None
        _should_remove: ShouldRemove | None
        _stale: float | None
        _stale_recovery: StaleRecovery
        _next: capi.Record | None

    @property
    def of_empty(self) -> str:
        """What an empty file is in this system: fs-safe writes its record after making it."""
        if self._should_reclaim is not None:
            ends = "should_reclaim decides when it is stale"
        elif self._stale is None:
            ends = "it is never stale, because stale is None"
        else:
            ends = f"it is stale when it is older than {self._stale:g} s"
        return (
            "its file is empty: the program that made it, such as fs-safe, is about to write its "
            f"record, or was killed before it did. Wait longer (timeout=): {ends}"
        )

    def _may_be_free(self, frame: FrameType, manager: Alone, *, endless: bool) -> Steps[bool]:
        """Judge what is at the path: ``True`` if it is gone, and an error if it is stale."""
        found = self.status()
        look = found.instance
        if look is None:
            return True
        if self._given_policy is not None:
            return super()._judge(frame, may_wait=endless)
        if found.unfinished:
            # Its creator has not published it yet, so it is neither held nor stale.
            return found.reason is not None and self._removed(found)
        # A lock that this user may not remove is stale too; the error names who may remove it.
        stale = found.reason is not None or inside.barred(found) is not None
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
                raise stale_error(self, found, self._stale_recovery)
            return not is_being_reclaimed(self.path) and self._removed(found)
        own = registry.held_here(*look.identity) if endless else None
        mine = own is not None and inside.native(own).owner == this_thread()
        if own is not None and mine and not self._ends_in_time(own, None):
            self._refuse(own, frame)
        return False

    @staticmethod
    def _refuse(own: BaseLock, frame: FrameType) -> None:
        from semlock._locks import mine  # noqa: PLC0415 - only for those who meet themselves

        mine.refuse(own, frame)

    def _is_still(self, found: LockStatus) -> bool:
        """Tell whether the same instance is there, unchanged."""
        seen, now = found.instance, self.status().instance
        if seen is None or now is None:
            return False
        return (seen.key, seen.content) == (now.key, now.content)

    def _is_removable(self, found: LockStatus) -> Steps[bool]:
        """Ask whether a stale lock may be removed; a live holder's lock may not."""
        look = found.instance
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
        """Remove exactly what was judged; ``True`` if another try may win."""
        try:
            remove_exactly(found, self._encoded, robs=False, patience=_REMOVAL_PATIENCE)
        except LockTimeoutError:
            return False  # another process has the guard, which counts as alive
        except PermissionError:
            if not may_make_locks_beside(self.path):
                raise
            return False
        return True

    # ------------------------------------------------------------------ waiting

    async def acquire_async(self, timeout: float | None = OWN_TIMEOUT) -> None:
        """Take the lock, waiting in the event loop instead of in the thread.

        The callbacks may be coroutine functions.  When the task is cancelled nothing is held.
        """
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        if limit is not None:
            limit = checked_timeout(limit)
        steps = self._acquiring(limit, _frame(1), may_deadlock=False)  # type: ignore[call-arg]
        await run_async(steps, (self,))

    def _is_time_to_try(self, waiter: Waiter) -> bool:
        """Tell whether the path may be free, or the schedule's pause is over."""
        if waiter.said == capi.LOOK:
            # Another instance is there.  It is judged at the next try: the schedule says when.
            seen = self.status().instance
            if seen is None:
                return True
            waiter.judged(seen, self._look_again_later(seen.key))
            return False
        if waiter.said in (capi.TIME, capi.BLIND):
            return waiter.judge is not False
        return waiter.said in (capi.FREE, capi.RACED)

    def _waits(self, timeout: float | None, asked: int, *, by_thread: bool) -> Waiter:
        """Begin to wait.  A lock of the form for threads may be waited for by a task too."""
        native = self._native
        queue = native if native.turns else None
        if by_thread:
            left = None if timeout is None else timeout - (capi.now_ns() - asked) / 1e9
            wait = waits.Wait((native,), queue, self._next, asked=asked)
            return Waiter(left, self._retry, wait=wait, of=self)
        from semlock._waiting.async_waiter import AsyncWaiter  # noqa: PLC0415 - for tasks
        from semlock._waiting.hub import hub_here  # noqa: PLC0415

        fair = queue is not None
        return AsyncWaiter(
            hub_here(), (native,), timeout, schedule=self._retry, queue=queue, record=self._next,
            fair=fair, stands=fair, asked=asked, of=self,
        )  # fmt: skip

    async def release_async(self) -> None:
        """Release the lock as ``release`` does, waiting for the guard in the event loop."""
        import asyncio  # noqa: PLC0415 - the caller has it

        end = monotonic() + GUARD_PATIENCE
        cancelled = None
        while True:
            outcome = self._let_go_whole()
            if outcome not in (capi.GUARDED, -errno.EINTR) or monotonic() >= end:
                break
            try:
                await asyncio.sleep(GUARD_PAUSE)
            except asyncio.CancelledError as error:
                # The lock must be released even if the task that releases it is cancelled.
                cancelled = error
        if outcome == capi.GUARDED:
            raise explain.guarded_error(self.path, "released")
        if outcome not in (OK, NESTED):
            self._finish_release(outcome)
        if cancelled is not None:
            raise cancelled
