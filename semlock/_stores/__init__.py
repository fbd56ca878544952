"""What a lock stands on: how a store tries, releases, refreshes, looks and waits.

Its own names say which object of this process holds what is at a path, and whether two paths are
one lock's.  A lock is the same by any spelling of its path, any form and any object: the file at
its path is one file, and one object of this process holds it.  ``FileRecord`` is what the record
of a file says.
"""

from __future__ import annotations

import os
from _weakref import ref
from time import time

from semlock._core import BY_WITNESS, CHANGED, FREE, OK, capi, inside, registry
from semlock._core.capi import POOL, WITNESSED
from semlock._core.errors import LockRecordError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._locks.base import BaseLock
    from semlock._stores.file import InFiles
else:
    BaseLock = object

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


def by_object(usual: str, held_by: str | None) -> bool:
    """Tell whether an object holds, and not a thread or task of those that use it."""
    if held_by not in (None, usual, "object"):
        raise ValueError(f'held_by is "{usual}" or "object", not {held_by!r}')
    return held_by == "object"


class FileRecord(BaseLock):
    """The part of ``InFiles`` for the content of the record, which a lock system defines."""

    __slots__ = ()

    _native: semlock_lock

    # What the core may judge itself of such a record, if the policy is the default one.
    _vouched = BY_WITNESS

    if TYPE_CHECKING:
        _owner: tuple[Process, bool] | None
        _record: capi.Record | None
        _mode: int
        _durability: str

    def _compose(self, owner: Process | None) -> capi.Record:
        """Lay out the record of this process, or of an owner that the lock is for."""
        raise NotImplementedError

    def _decode(self, content: bytes) -> LockInfo:
        """Read a record of this system; ``LockRecordError`` if it is none."""
        raise NotImplementedError

    def _record_with(self, text: bytes, **places: Any) -> capi.Record:
        """Make a record of this text, which the core writes as the lock's options say."""
        return capi.Record(
            text, mode=self._mode, durability=capi.DURABILITY[self._durability], **places
        )

    def _restamped(self, before: bytes) -> bytes | None:  # noqa: ARG002 - of those that have one
        """Give the record with the present time, if its system writes that and not the core."""
        return None

    def _refresh(self, patience: float) -> bool:
        """Write the present time into the record, in the system's form."""
        record = self._record
        new = None
        if record is not None and self._native.held:
            new = self._restamped(record.text)
        if record is None or new is None:
            return super()._refresh(patience)
        before, done = record.text, False
        try:
            record.text = new
            done = super()._refresh(patience)
        finally:
            if not done:
                record.text = before  # what the file still contains
        return done

    def _text(self, record: capi.Record, stamp: int) -> bytes:
        """Give the record as it stands in the file, with the time of winning or another."""
        text = bytearray(record.text)
        native = self._native
        if record.stamp_at >= 0:
            text[record.stamp_at : record.stamp_at + 10] = b"%010d" % max(0, stamp)
        if record.token_at >= 0:
            text[record.token_at : record.token_at + 32] = capi.token_of(native)
        if record.witness_at >= 0:
            witness, local = native.file.witness, native.file.local
            claim = b"kept" if witness == WITNESSED else b"left" if local else b"none"
            text[record.witness_at : record.witness_at + 4] = claim
        return bytes(text)

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Have the record name another process as the holder.

        If guarded, this process keeps the lock until it releases it; else only the file stays.
        """
        self._owner = owner, guarded
        self._record = None

    def _rewrite(self) -> int:
        native = self._native
        while True:
            # The text has the token of this acquisition.  Another thread may release the lock and
            # acquire it again before the text is written; then a new one is composed.
            serial = native.serial
            record = self._record
            if not native.held or record is None:
                return FREE
            now = int(time())
            text = self._text(record, now)
            outcome: int = capi.refresh_lock(native, POOL, text, len(text), serial)
            if outcome != CHANGED:
                break
        if outcome == OK:
            native.stamp = now
        return outcome

    def _record_held(self) -> LockInfo | None:
        record = self._record
        if record is None:
            return None
        return self._decode(self._text(record, self._native.stamp))
