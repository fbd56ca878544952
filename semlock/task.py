"""The task lock: JSON records with an owner, a time to live, and rules for taking over.

A lock is stale when its time is over, whether its holder lives or not; a holder that needs
longer refreshes it, by itself or with ``auto_refresh``.  Locks of semlock processes that are
proven dead are taken over at once besides.  Each other reason of
the decision tree takes the lock from a live holder, and applies only if the caller names it.
"""

from __future__ import annotations

import time

from semlock._systems.task_lock import TaskLock
from semlock._systems.task_migrate import Migration, migrate
from semlock._systems.task_owner import LockOwner, owner_for, refresh_interval, ttl_for
from semlock._systems.task_reclaim import (
    Expired,
    ReclaimDecision,
    ReclaimDeniedError,
    decide,
    denied_message,
    held_message,
    stale,
)
from semlock._systems.task_records import TaskInfo, decode, restamp
from semlock._systems.task_taking import NETWORK_RETRY, is_network_path
from semlock.systems import System, for_tasks, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, TypedDict

    from typing_extensions import Unpack

    from semlock._core.errors import LockLostError
    from semlock._core.status import LockStatus, StrPath
    from semlock._systems.task_owner import Environment, Purpose

    class ReclaimOptions(TypedDict, total=False):
        """The options of a lock that ``reclaim`` makes."""

        ttl: float | None
        environment: Environment | None
        purpose: Purpose | None
        auto_refresh: bool
        network: bool | None
        audit: bool
        make_dirs: bool
        on_lost: Callable[[TaskLock, LockLostError], object] | None
        clock: Callable[[], float]


__all__ = [
    "NETWORK_RETRY", "AsyncTaskLock", "Expired", "LockOwner", "Migration", "ReclaimDecision",
    "ReclaimDeniedError", "TaskInfo", "TaskLock", "decide", "decode", "denied_message",
    "held_message", "is_network_path", "migrate", "owner_for", "reclaim", "stale", "status",
    "ttl_for",
]  # fmt: skip


def reclaim(
    path: StrPath,
    owner: LockOwner | str | Mapping[str, Any],
    *,
    allow: str | Collection[str] = (),
    timeout: float | None = 0.0,
    **options: Unpack[ReclaimOptions],
) -> TaskLock:
    """Make a ``TaskLock`` and ``reclaim`` it: the lock, which is held.

    ``allow`` and ``timeout`` are those of ``TaskLock.reclaim``, the others those of the lock.
    """
    lock = TaskLock(path, owner, **options)
    lock.reclaim(allow=allow, timeout=timeout)
    return lock


def status(path: StrPath, *, clock: Callable[[], float] = time.time) -> LockStatus:
    """Say who holds the lock at this path by the task lock's rules."""
    return SYSTEM.status(path, stale(clock))


def _lock_at(
    path: str,
    *,
    owner: str | None = None,
    user: str | None = None,
    session: str | None = None,
    token: str | None = None,
    environment: Environment | None = None,
    purpose: Purpose | None = None,
    kind: type[TaskLock] = TaskLock,
    **options: Any,
) -> TaskLock:
    """Make the lock of which this is the file, for the named owner or for this process."""
    if owner is not None:
        whose = LockOwner.from_string(owner).replace(environment=environment, purpose=purpose)
    else:
        whose = owner_for(
            user=user, session=session, token=token, environment=environment, purpose=purpose
        )
    return kind(path, whose, **options)


SYSTEM = System(
    "task",
    decode=decode,
    stale=stale,
    claims=later("semlock._systems.claims", "task"),
    restamp=restamp,
    refresh=lambda lock: refresh_interval(lock.ttl),
    lock=_lock_at,
    options=("owner", "user", "session", "token", "ttl", "environment", "purpose", "allow"),
    audit=later("semlock._systems.task_audit", "note"),
    async_lock=later("semlock._systems.async_forms", "task_at"),
)


# Names as users write them, in tracebacks and in pickles.
for _name in (
    "Expired",
    "LockOwner",
    "Migration",
    "ReclaimDecision",
    "ReclaimDeniedError",
    "TaskInfo",
    "TaskLock",
):
    globals()[_name].__module__ = __name__
del _name

if TYPE_CHECKING:
    from semlock._systems.async_forms import AsyncTaskLock
else:
    __getattr__ = for_tasks(__name__, AsyncTaskLock="AsyncTaskLock")
