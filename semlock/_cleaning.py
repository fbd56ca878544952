"""Removing what the dead have left: their locks, their kept claims, their temporary files."""

from __future__ import annotations

import os
from time import time

from semlock import _native
from semlock._errors import LockPathError, LockRecordError, LockTimeoutError
from semlock._identity import UNKNOWN
from semlock._policy import GRACE
from semlock._queues import PREFIX, is_queue, queue_of, tickets
from semlock._records import decode_text
from semlock._status import look_at, remove_exactly, was_removed

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._records import LockInfo
    from semlock._status import LockStatus, StrPath

# How the core names its own files: kept claims, and locks that are not finished.
_SUFFIXES = (".kept", ".tmp")
_READERS = ".readers"  # where the readers of a SharedLock are


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
    """Remove the locks of dead holders, the places of dead waiters, and abandoned files.

    Given a directory, everything directly in it, and the readers of its shared locks; given a
    lock's path, that lock and what semlock keeps beside it.  A file goes only with proof: what
    a living process made, what is no record, and what can't be judged stays.  This process's
    own kept claims there are given up too.
    """
    text = os.path.abspath(os.fspath(directory_or_path))
    directory, only = (text, None) if os.path.isdir(text) else os.path.split(text)
    return clean_matching(
        directory,
        lambda name: (
            only is None
            or name in (only, only + _READERS)
            or _is_temporary(name)
            or is_queue(name)
        ),
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
        os.path.join(directory, name)
        for name in sorted(os.listdir(directory))
        if meant(name) and not was_removed(name)
    )
    found: list[Removed] = []
    for path in paths:
        if is_queue(os.path.basename(path)):
            found += _clean_queue(path)
        elif path.endswith(_READERS) and os.path.isdir(path) and not os.path.islink(path):
            found += _clean_readers(path, decode, why)
        else:
            removed = _clean_one(path, decode, why)
            found += [removed] if removed is not None else []
    return found


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
    for name in names:
        path = os.path.join(directory, name)
        try:
            if _is_temporary(name):
                _clean_one(path, decode_text, _why_dead)
            elif is_queue(name):
                _clean_queue(path)
        except OSError:
            continue


def _is_temporary(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(_SUFFIXES)


def nobody_waits(lock: str, name_hash: int) -> bool:
    """Remove what dead waiters have left in the queue of a lock; ``True`` if that was all."""
    queue = queue_of(lock, name_hash)
    _clean_queue(queue)
    return not os.path.lexists(queue)


def _clean_queue(queue: str) -> list[Removed]:
    """Remove the tickets of waiters who are dead, and the queue if nobody is left in it."""
    found = []
    try:
        for path in tickets(queue):
            info = _waiter(path)
            if _native.clean_ticket(os.fsencode(path)):
                found.append(Removed(path, "the process that waited with it has ended", info))
        os.rmdir(queue)
    except OSError:
        pass  # somebody waits, or it is somebody else's to remove
    return found


def _clean_readers(
    directory: str,
    decode: Callable[[bytes], LockInfo],
    why: Callable[[LockStatus], str | None],
) -> list[Removed]:
    """Remove the dead readers of a shared lock, and their directory if nobody reads."""
    paths = (os.path.join(directory, name) for name in sorted(os.listdir(directory)))
    found = [_clean_one(path, decode, why) for path in paths]
    try:  # noqa: SIM105 - contextlib would be imported on the way of every command
        os.rmdir(directory)
    except OSError:
        pass  # somebody reads
    return [removed for removed in found if removed is not None]


def _waiter(path: str) -> LockInfo | None:
    """Say what a ticket says of its owner, if it says it in a form that is known here."""
    try:
        seen = _native.look(os.fsencode(path))
        return None if seen is None or seen.error else decode_text(seen.content)
    except (OSError, LockRecordError):
        return None


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
