"""What the record of a file lock says: as its lock system defines it, or for another process."""

from __future__ import annotations

from time import time

from semlock._core import BY_WITNESS, CHANGED, FREE, OK, capi
from semlock._core.capi import POOL, WITNESSED

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._locks.base import BaseLock
else:
    BaseLock = object


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
