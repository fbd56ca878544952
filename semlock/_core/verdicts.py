"""When a lock may be taken from its holder, and by which users.

A policy is a callable: given a ``LockStatus`` it returns a reason why the lock may be removed, or
a false value.  The default is proof of death.

In a sticky directory (``/tmp``) only its owner, the file's owner and root may remove a file.  If
a dead holder's lock may not be removed by this user, it counts as held until one of them does.
"""

from __future__ import annotations

import os
import stat
import sys
from time import time

from semlock._core.identity import DEAD

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from semlock._core import capi
    from semlock._core.status import LockStatus

    Policy: TypeAlias = Callable[[LockStatus], object]

# How long an unfinished file must be unchanged before it counts as abandoned.  Its creator
# doesn't hold it yet, so a removal takes it from no holder; the time only spares a slow creator a
# new start.
GRACE = 2.0


def proof_of_death(status: LockStatus) -> str | None:
    """Permit removal when the holder is known to be dead, and say how that is known."""
    return status.evidence if status.verdict == DEAD else None


def reason_to_remove(status: LockStatus, policy: Policy | None) -> str | None:
    """Ask a policy (``None`` for the default) for its reason, as text."""
    if status.unfinished and status.unchanged_for(time()) >= GRACE:
        return "it was never finished by the process that began to create it"
    if policy is None:
        return status.evidence if status.verdict == DEAD else None  # as proof_of_death
    answer = policy(status)
    if not answer:
        return None
    return answer if isinstance(answer, str) else "the policy permits it"


# ---------------------------------------------------------------- which users may remove it

_CAP_FOWNER = 3


def keeper_of(path: str, look: capi.Instance) -> str | None:
    """Name the users who alone may remove a file; ``None`` if this user may too."""
    if sys.platform == "win32":
        return None
    try:
        directory = os.stat(os.path.dirname(path))
        if not directory.st_mode & stat.S_ISVTX:
            return None
        file = os.lstat(path)
    except OSError:
        return None
    if (file.st_dev, file.st_ino) != look.identity:
        return None
    if os.geteuid() in (file.st_uid, directory.st_uid) or _may_all():
        return None
    return _or_root(file.st_uid)


def owner_of(path: str) -> str:
    """Name the users who may always remove a file: its owner, and root."""
    try:
        return _or_root(os.lstat(path).st_uid)
    except OSError:
        return "the owner of the file or root"


def is_mine(path: str) -> bool:
    """Tell whether this user owns a file."""
    if sys.platform == "win32":
        return True
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _or_root(uid: int) -> str:
    """Give a user's name and number, and root."""
    if sys.platform == "win32":
        return "the owner of the file or an administrator"
    if uid == 0:
        return "root"
    try:
        import pwd  # noqa: PLC0415 - for an error only

        return f"{pwd.getpwuid(uid).pw_name} (uid {uid}) or root"
    except (ImportError, KeyError):
        return f"the user with uid {uid} or root"


def _may_all() -> bool:
    """Tell whether this thread may act on other users' files."""
    if sys.platform == "win32":
        return False
    try:
        with open("/proc/thread-self/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"CapEff:"))
    except (OSError, StopIteration):
        return os.geteuid() == 0
    return bool(int(mask.split()[1], 16) >> _CAP_FOWNER & 1)


def may_make_locks_beside(path: str) -> bool:
    """Tell whether this user may create files in a lock's directory."""
    effective = os.access in os.supports_effective_ids
    return os.access(os.path.dirname(path), os.W_OK | os.X_OK, effective_ids=effective)
