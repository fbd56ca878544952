"""What a sidecar lock does about a lock that it finds: the age rule, and what callbacks say."""

from __future__ import annotations

from time import time

from semlock._core import inside, registry
from semlock._core.capi import this_thread
from semlock._core.errors import LockTimeoutError
from semlock._core.identity import ALIVE
from semlock._core.status import remove_exactly
from semlock._core.verdicts import may_make_locks_beside
from semlock._locks.lock import FileLock
from semlock._systems.sidecar_target import is_being_reclaimed
from semlock._systems.sidecar_terms import (
    REMOVE_IF_UNCHANGED,
    ReclaimQuestion,
    StaleSnapshot,
    stale_error,
)
from semlock._waiting.steps import Call

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


class Judging(FileLock):
    """The part of ``SidecarLock`` that judges what is at the path."""

    __slots__ = ()

    if TYPE_CHECKING:
        normalized_target_path: str
        _given_policy: Policy | None
        _should_reclaim: ShouldReclaim | None
        _should_remove: ShouldRemove | None
        _stale: float | None
        _stale_recovery: StaleRecovery

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
