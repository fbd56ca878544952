"""Removing what the dead have left: their locks, their kept claims, their temporary files."""

from __future__ import annotations

import os
from time import time

from semlock import _native
from semlock._errors import LockPathError, LockTimeoutError
from semlock._identity import UNKNOWN
from semlock._policy import GRACE
from semlock._records import decode_text
from semlock._status import look_at, remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._records import LockInfo
    from semlock._status import LockStatus, StrPath

# How the core names its own files: kept claims, and locks that are not finished.
_PREFIX = ".semlock-"
_SUFFIXES = (".kept", ".tmp")


class Removed:
    """One file that ``clean`` removed, and why."""

    __slots__ = ("info", "path", "reason")

    path: str
    reason: str
    info: LockInfo | None

    def __init__(self, path: str, reason: str, info: LockInfo | None) -> None:
        self.path = path
        self.reason = reason
        self.info = info

    def __repr__(self) -> str:
        return f"Removed({self.path!r}, {self.reason!r})"


def clean(directory_or_path: StrPath) -> list[Removed]:
    """Remove the locks of dead holders, and temporary files whose makers are dead.

    Given a directory, everything directly in it; given a lock's path, that lock and the
    temporary files beside it.  A file goes only with proof: what a living process made, what
    is no record, and what can't be judged stays.  This process's own kept claims there are
    given up too.
    """
    text = os.path.abspath(os.fspath(directory_or_path))
    directory, only = (text, None) if os.path.isdir(text) else os.path.split(text)
    return clean_matching(
        directory,
        lambda name: only is None or name == only or _is_temporary(name),
        decode_text,
        _why_dead,
    )


def clean_matching(
    directory: str,
    meant: Callable[[str], object],
    decode: Callable[[bytes], LockInfo],
    why: Callable[[LockStatus], str | None],
) -> list[Removed]:
    """Remove the files of a directory that are meant by their name and for which there is a why."""
    _native.drain_pool(directory)
    paths = (
        os.path.join(directory, name) for name in sorted(os.listdir(directory)) if meant(name)
    )
    found = (_clean_one(path, decode, why) for path in paths)
    return [removed for removed in found if removed is not None]


_swept: set[str] = set()
_SWEPT_LIMIT = 1000


def sweep(directory: str) -> None:
    """Remove the temporary files in a directory whose makers are dead, as far as that works.

    It is a courtesy to those who come later, done once for each directory; what goes wrong is
    no error of the caller.
    """
    if directory in _swept:
        return
    if len(_swept) >= _SWEPT_LIMIT:
        _swept.clear()
    _swept.add(directory)
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in filter(_is_temporary, names):
        try:
            _clean_one(os.path.join(directory, name), decode_text, _why_dead)
        except OSError:  # noqa: PERF203 - each leftover may fail for a reason of its own
            continue


def _is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIXES)


def _clean_one(
    path: str,
    decode: Callable[[bytes], LockInfo],
    why: Callable[[LockStatus], str | None],
) -> Removed | None:
    encoded = os.fsencode(path)
    try:
        found = look_at(path, encoded, decode)
        reason = why(found) if found.state != "free" else None
        if reason is not None and remove_exactly(found, encoded, robs=False):
            return Removed(path, reason, found.info)
    except (LockPathError, LockTimeoutError, PermissionError, FileNotFoundError):
        pass  # not a lock, in use, or somebody else's to remove
    return None


def _why_dead(found: LockStatus) -> str | None:
    if (
        found.reason is None
        and _is_temporary(os.path.basename(found.path))
        and _abandoned(found)
    ):
        return "it was never finished by the process that began to create it"
    return found.reason


def _abandoned(found: LockStatus) -> bool:
    """Tell a temporary file whose maker was killed before it wrote the record.

    It is never a lock, and a maker that lives after all finds its link refused and begins
    again, so a wrong guess costs it nothing but time.
    """
    return (
        found.state == "unreadable"
        and found.verdict == UNKNOWN
        and found._look is not None
        and not found._look.error
        and found.unchanged_for(time()) >= GRACE
    )
