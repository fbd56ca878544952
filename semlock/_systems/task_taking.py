"""Taking a task lock from its holder: after it expired, or for a reason that the caller names.

On a network filesystem the wait for it is slower.
"""

from __future__ import annotations

import os
from time import monotonic

from semlock._core import capi, explain, inside, registry
from semlock._core.errors import LockLostError
from semlock._core.paths import PREFIX, absolute
from semlock._core.status import remove_exactly
from semlock._core.verdicts import may_make_locks_beside
from semlock._locks.base import ENDLESS
from semlock._locks.lock import FileLock
from semlock._systems.task_reclaim import (
    BY_POLICY,
    HOLDER_DEAD,
    LOCK_EXPIRED,
    denied_error,
    holder_of,
    permitted,
    taken_from,
)
from semlock._systems.task_records import TaskInfo
from semlock._waiting.steps import Pause, PauseWhileHeld
from semlock._waiting.waiter import Waiter
from semlock.retry import Growing

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from semlock._core.status import LockStatus, StrPath
    from semlock._systems.task_audit import AuditLog
    from semlock._systems.task_owner import LockOwner
    from semlock._waiting.steps import Steps

# Ten tries, with pauses that begin at 100 ms and double.
NETWORK_RETRY = Growing(0.1, factor=2.0, longest=25.6, retries=9)


def is_network_path(path: StrPath) -> bool:
    """Tell whether a lock at this path is on a network filesystem.

    A filesystem that is not known to be local counts as one.  If there is no file at the path, a
    temporary file beside it is inspected: ``OSError`` if none can be made.
    """
    text = absolute(path)
    look = capi.look(os.fsencode(text))
    if look is not None and look.kind == capi.REGULAR and not look.error:
        return not look.local
    import tempfile  # noqa: PLC0415 - only for those who ask

    parent = os.path.dirname(text)
    try:
        handle, probe = tempfile.mkstemp(".tmp", f"{PREFIX}probe-", parent)
    except OSError as error:
        error.filename = parent  # not the temporary file, which the caller doesn't know
        raise
    try:
        look = capi.look(os.fsencode(probe))
        return look is None or not look.local
    finally:
        os.close(handle)
        os.unlink(probe)


class Pauses:
    """The pauses of a wait, chosen when it begins: slow ones on a network filesystem."""

    __slots__ = ("_encoded",)

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def __call__(self) -> Iterable[float] | None:
        """Inspect the lock file, and give slow pauses or ``None`` for the default."""
        try:
            look = capi.look(self._encoded)
        except OSError:
            return None  # the next try will report it
        if look is None or look.error or look.kind != capi.REGULAR or look.local:
            return None
        return NETWORK_RETRY()


_TRIES = 100
_SHORTEST_PAUSE = 0.001
_LONGEST_PAUSE = 3600.0  # timers can't be set for arbitrarily long


class TakingOver(FileLock):
    """The part of a task lock that takes a held lock: its own expired one, or another holder's."""

    __slots__ = ()

    if TYPE_CHECKING:
        owner: LockOwner
        _audit: AuditLog
        _clock: Callable[[], float]

        @property
        def info(self) -> TaskInfo | None: ...
        def _depth(self) -> int: ...
        def _take_note(self, taken: tuple[str, str]) -> None: ...
        def _settle_reclaim(self, *, won: bool) -> None: ...

    def _begin_anew(self, timeout: float | None) -> Steps[bool]:
        """Win again, when it expires, the lock that this thread holds by this object.

        It waits if the lock expires within the timeout.  ``False`` if not, or if another holder
        was faster: then the lock is acquired like any other.
        """
        info = self.info
        if info is None or self._native.reentrant or self._heartbeat is not None:
            return False
        end = monotonic() + (timeout or 0.0)
        left = info.ttl - info.seconds_held(self._clock())
        if not info.expired(self._clock()) and (
            timeout is None or not left <= timeout < ENDLESS
        ):
            return False
        while not info.expired(self._clock()):
            rest = end - monotonic()
            if rest <= 0:
                return False
            left = info.ttl - info.seconds_held(self._clock())
            pause = min(rest, max(left, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            if (yield PauseWhileHeld(pause, self._native)):
                break  # another holder took and released it
            info = self.info or info  # another thread may have refreshed it
        try:
            super().release()
        except LockLostError:
            return False
        return self._win(info, LOCK_EXPIRED)

    def _take_over(
        self, allowed: frozenset[str], timeout: float | None, frame: FrameType
    ) -> Steps[None]:
        """Take the lock as soon as there is a reason; ``ReclaimDeniedError`` when time is over."""
        if self._depth():
            raise explain.deadlock_error(self, frame)
        waiter = None
        if timeout != 0:
            waiter = Waiter(timeout, self._retry, of=self)
        meant: list[tuple[object, ...]] = []
        while True:
            found = self._try_to_take(allowed, meant)
            if found is None:
                return
            if waiter is None:
                break
            self._refuse_to_meet_oneself(found, waiter, frame)
            pause = waiter.next_pause()
            if pause is None:
                break
            yield Pause(pause)
        denied = denied_error(found, self.path, self.owner, self._clock())
        self._audit.denied(found, denied.decision.reason)
        raise denied

    def _refuse_to_meet_oneself(
        self, found: LockStatus, waiter: Waiter, frame: FrameType
    ) -> None:
        look = found.instance
        own = None if look is None else registry.held_here(*look.identity)
        if own is not None and inside.is_mine(own) and not self._ends_in_time(own, waiter.left):
            from semlock._locks import mine  # noqa: PLC0415 - only for those who meet themselves

            mine.refuse(own, frame)

    def _try_to_take(
        self, allowed: frozenset[str], meant: list[tuple[object, ...]]
    ) -> LockStatus | None:
        """Take it if there is a reason: ``None`` then, else what was found last."""
        for _ in range(_TRIES):
            found = self.status()
            reason = None
            if found.state != "free":
                # The reasons were named for this holder, not for the next one.
                holder = holder_of(found)
                if not meant:
                    meant.append(holder)
                named = allowed if holder == meant[0] and not self._native.held else ()
                reason = permitted(found, self.owner, named, self._clock())
                if reason is None:
                    break
                robs = reason not in (HOLDER_DEAD, BY_POLICY)
                try:
                    if not remove_exactly(found, self._encoded, robs=robs):
                        continue
                except PermissionError:
                    if not may_make_locks_beside(self.path):
                        raise
                    break  # a file that this user may not remove counts as held
            if self._win(found.info, reason):
                return None
        return found

    def _win(self, taken: object, reason: str | None) -> bool:
        """Try a free lock; the record names the last holder and the reason for taking it."""
        if reason is not None and isinstance(taken, TaskInfo):
            self._take_note(taken_from(taken, reason))
        won = False
        try:
            won = super().try_acquire()
        finally:
            self._settle_reclaim(won=won)
        return won
