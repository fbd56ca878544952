"""What the package's own modules do with a lock, a status or a record beyond its public methods.

They are functions, so that users see only the methods that are for them.  A module that needs a
private name of another one gives that need a name here (ruff's SLF001; see pyproject.toml).
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from semlock._core.compiled import semlock_lock
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus

    R = TypeVar("R", bound=LockInfo)


def native(lock: Any) -> semlock_lock:
    """Give the core's structure of a lock: who holds it, how often, and its file."""
    found: semlock_lock = lock._native
    return found


def undo(lock: Any, before: int) -> None:
    """Release what an interrupted call has won since the lock's serial number was read."""
    lock._undo(before)


def on_wait(lock: Any) -> Any:
    """Give the function that is called during a wait."""
    return lock._on_wait


def barred(found: LockStatus) -> tuple[str, str] | None:
    """Give the reason and the user who may remove a lock, if this user may not."""
    return found._barred


def of_named_instances(info: R) -> R:
    """Mark a record of a system in which semlock's own records have a token."""
    info._names_instances = True
    return info


def is_foreign(info: LockInfo) -> bool:
    """Tell whether semlock certainly did not write a record."""
    return info._names_instances and info.token is None and info.witness is None
