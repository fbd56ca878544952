"""What a lock stands on: how a store tries, releases, refreshes, looks and waits.

Its own names say which object of this process holds what is at a path, and whether two paths are
one lock's.  A lock is the same by any spelling of its path, any form and any object: the file at
its path is one file, and one object of this process holds it.
"""

from __future__ import annotations

import os
from _weakref import ref

from semlock._core import capi, inside, registry
from semlock._core.errors import LockRecordError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semlock._stores.file import InFiles

# Up to so many objects are searched directly.  With more, the record is read first: it says
# whether this process holds the lock at all.
_FEW = 64


# The known holder of an instance: an object of this process, or another process.  Of thousands
# of tasks that wait for one instance, only the first reads its record.
def _FOREIGN() -> None:  # noqa: N802 - a constant, of the form of a reference
    """Stand for the object that another process has."""


_known: dict[tuple[int, int, int], Callable[[], InFiles | None]] = {}
_KNOWN_LIMIT = 256


def place_of(path: str) -> tuple[object, ...]:
    """Name a lock path in the way that all spellings of it share: its directory, its last part."""
    head, name = os.path.split(path)
    try:
        found = os.stat(head)
    except OSError:
        return head, name
    # Where directories have no inode numbers, compare paths.
    return (found.st_dev, found.st_ino, name) if found.st_ino else (head, name)


def same_path(one: str, other: str) -> bool:
    """Tell whether two paths are one lock's."""
    if one == other:
        return True
    try:
        if os.path.samestat(os.lstat(one), os.lstat(other)):
            return True
    except OSError:
        pass
    return place_of(one) == place_of(other)


def are_distinct(paths: Sequence[str]) -> bool:
    """Tell whether no two of some paths are one lock's."""
    heads: dict[str, tuple[object, ...]] = {}
    places = set()
    for path in paths:
        head, name = os.path.split(path)
        if head not in heads:
            heads[head] = place_of(os.path.join(head, ""))
        places.add((heads[head], name))
    return len(places) == len(paths)


def holder_here(lock: InFiles, found: os.stat_result | None) -> InFiles | None:
    """Find the object of this process that holds what is at a lock's path.

    ``found`` describes the file, where directories have inode numbers.
    """
    if found is not None:
        if registry.count() <= _FEW:
            return registry.held_here(found.st_dev, found.st_ino)
        known = _known.get((found.st_dev, found.st_ino, found.st_ctime_ns))
        if known is not None:
            holder = known()
            if known is _FOREIGN or (holder is not None and _holds(holder, found)):
                return holder
    try:
        seen = capi.look(inside.encoded(lock))
    except OSError:
        return None
    if seen is None:
        return None
    try:
        pid = inside.decode(lock, seen.content).pid
    except LockRecordError:
        pid = None
    holder = None
    if pid is None or pid == os.getpid():
        holder = registry.held_here(*seen.identity)
        if holder is None:
            return None  # another thread is just about to hold it
    if len(_known) >= _KNOWN_LIMIT:
        _known.clear()
    _known[seen.key] = _FOREIGN if holder is None else ref(holder)
    return holder


def _holds(lock: InFiles, found: os.stat_result) -> bool:
    native = inside.native(lock)
    return bool(lock.held) and (native.file.dev, native.file.ino) == (
        found.st_dev,
        found.st_ino,
    )
