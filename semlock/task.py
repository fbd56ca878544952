"""The task lock: JSON records with an owner, a time to live, and rules for taking over.

A lock is stale when its time is over, whether its holder lives or not; a holder that needs
longer refreshes it, by itself or with ``auto_refresh``.  Locks of semlock processes that are
proven dead are taken over at once besides.  Everything else that the decision tree knows as
a reason robs a holder that lives, and happens only when it is asked for by name.
"""

from __future__ import annotations

import time

from semlock import _dialects
from semlock._task_lock import TaskLock
from semlock._task_migrate import Migration, migrate
from semlock._task_network import NETWORK_RETRY
from semlock._task_owner import LockOwner, owner_for, ttl_for
from semlock._task_reclaim import (
    Expired,
    ReclaimDecision,
    ReclaimDeniedError,
    decide,
    denied_message,
    held_message,
    stale,
)
from semlock._task_records import TaskInfo, decode

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from semlock._status import LockStatus, StrPath
    from semlock._task_owner import Environment, Purpose

__all__ = [
    "NETWORK_RETRY",
    "Expired",
    "LockOwner",
    "Migration",
    "ReclaimDecision",
    "ReclaimDeniedError",
    "TaskInfo",
    "TaskLock",
    "decide",
    "decode",
    "denied_message",
    "held_message",
    "migrate",
    "owner_for",
    "reclaim",
    "stale",
    "status",
    "ttl_for",
]


def reclaim(
    path: StrPath,
    owner: LockOwner | str,
    *,
    allow: str | Collection[str] = (),
    ttl: float | None = None,
    environment: Environment | None = None,
    purpose: Purpose | None = None,
    auto_refresh: bool = False,
    audit: bool = True,
) -> TaskLock:
    """Make a ``TaskLock`` and ``reclaim`` it: the lock, which is held."""
    lock = TaskLock(
        path,
        owner,
        ttl=ttl,
        environment=environment,
        purpose=purpose,
        auto_refresh=auto_refresh,
        audit=audit,
    )
    lock.reclaim(allow=allow)
    return lock


def status(path: StrPath, *, clock: Callable[[], float] = time.time) -> LockStatus:
    """Say who holds the lock at this path by the task lock's rules."""
    return _dialects.status(path, decode, stale(clock))


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
