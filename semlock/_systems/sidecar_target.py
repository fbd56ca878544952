"""Where a sidecar lock is: the target's real directory, and fs-safe's guard beside it."""

from __future__ import annotations

import errno
import os
from time import time

from semlock._core.errors import LockPathError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.status import StrPath

SUFFIX = ".lock"

# While this exists, fs-safe 0.21 creates no lock: one of its processes is removing a stale lock
# by name.  An old one was left by a process that was killed.
RECLAIM_SUFFIX = ".reclaim"
RECLAIM_ABANDONED = 30.0


def normalize(target: StrPath) -> str:
    """Give a target's absolute path with all links of its directory resolved, as fs-safe does."""
    text = os.fsdecode(target)
    if not text or "\0" in text:
        raise LockPathError(
            f"a target's path can't be empty or contain NUL: {text!r}",
            path=text,
            code=errno.EINVAL,
        )
    directory, name = os.path.split(os.path.abspath(text))
    return os.path.join(os.path.realpath(directory), name)


def make_directory_of(target: str) -> None:
    """Make the directory of a target, if it is missing."""
    directory = os.path.dirname(target)
    if os.path.isdir(directory):
        return
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise LockPathError(
            f"{target} can't be locked: {error.filename or directory} is no directory",
            path=target,
            code=error.errno,
        ) from error


def is_being_reclaimed(lock_path: str) -> bool:
    """Tell whether a process with fs-safe is about to remove a stale lock there."""
    try:
        made = os.lstat(lock_path + RECLAIM_SUFFIX).st_mtime
    except OSError:
        return False
    return abs(time() - made) < RECLAIM_ABANDONED
