"""Who may remove a file: in a sticky directory (``/tmp``) only its owner and root.

If a dead holder's lock may not be removed by this user, it counts as held until its owner or
root removes it.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core import capi

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
