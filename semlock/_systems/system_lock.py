"""The lock of a system that is defined by ``compose`` and ``decode``; and semlock's own system."""

from __future__ import annotations

from time import time

from semlock._core import capi
from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._core.records import LockInfo, decode_text, restamp_text
from semlock._locks.lock import FileLock, Lock
from semlock.systems import System, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Process
    from semlock._core.status import StrPath
    from semlock._core.verdicts import Policy

# Placeholders for the fields that the core fills in.  The record is composed twice with different
# values; the difference shows where the field is.
_STAMPS = 1111111111, 2222222222
_TOKENS = "0" * 32, "1" * 32
_WITNESSES = "none", "kept"


class SystemLock(FileLock):
    """A lock of a system that is defined by ``compose`` and ``decode``."""

    __slots__ = ("_each_time", "_is_read", "_system")

    _turns = capi.TAKE_TURNS
    _strict = True

    def __init__(
        self, system: System, path: StrPath, *, policy: Policy | None = None, **options: Any
    ) -> None:
        self._system = system
        self._each_time = self._is_read = False
        rule = system.stale() if policy is None else policy
        super().__init__(system.resolve(path), policy=rule, **options)

    def _compose(self, owner: Process | None) -> capi.Record:
        process = owner or this_process()

        def text(stamp: float, token: str, witness: str) -> bytes:
            return self._written(
                LockInfo(
                    pid=process.pid, timestamp=stamp, tag=self.tag, host=process.host or None,
                    start=process.start or None, boot=process.boot or None,
                    pidns=process.pidns or None, token=token, witness=witness,
                )
            )  # fmt: skip

        token, witness = _TOKENS[0], _WITNESSES[0]
        record = text(_STAMPS[0], token, witness)
        stamp_at = _place(record, text(_STAMPS[1], token, witness), *map(str, _STAMPS))
        self._each_time = stamp_at < 0
        stamp: float = _STAMPS[0]
        if self._each_time:
            stamp = time()
            record = text(stamp, token, witness)
        if not self._is_read:
            # Else no process could read it, and the lock of a dead holder would stay for ever.
            try:
                self._system.decode(record)
            except LockRecordError as error:
                raise LockRecordError(
                    f"decode of {self._system!r} can't read what its compose gives: {error}"
                ) from None
            self._is_read = True
        return self._record_with(
            record,
            stamp_at=stamp_at,
            token_at=_place(record, text(stamp, _TOKENS[1], witness), *_TOKENS),
            witness_at=_place(record, text(stamp, token, _WITNESSES[1]), *_WITNESSES),
        )

    def _written(self, info: LockInfo) -> bytes:
        """Have the system write a record, and make sure that it can be one."""
        assert self._system.compose is not None
        record = self._system.compose(info)
        if not isinstance(record, (bytes, bytearray)) or not record:
            raise LockRecordError(
                f"compose of {self._system!r} gives {record!r:.60}, and not the bytes of a record"
            )
        if len(record) > capi.RECORD_LIMIT:
            raise LockRecordError(
                f"the record would have {len(record)} bytes, more than the {capi.RECORD_LIMIT} "
                f"that a lock file may have: compose of {self._system!r} wrote it"
            )
        return bytes(record)

    def _decode(self, content: bytes) -> LockInfo:
        return self._system.decode(content)

    def _restamped(self, before: bytes) -> bytes | None:
        if not self._each_time:
            return None
        return self._system.restamp(before, self._system.decode(before), time())


def _place(one: bytes, other: bytes, first: str, second: str) -> int:
    """Find where two texts differ, if they differ only in one field's value."""
    if one == other or len(one) != len(other):
        return -1
    old, new = first.encode("ascii"), second.encode("ascii")
    at = next(i for i in range(len(one)) if one[i] != other[i])
    # The two values differ in every letter, as "none" and "kept" do.
    if one[:at] + new + one[at + len(old) :] == other:
        return at
    raise LockRecordError("a record has its time, token and witness in one place each")


SYSTEM = System(
    "semlock",
    decode=decode_text,
    # Records of sema and semats have the same form, but not all of these keys.
    recognises=lambda info: info.token is not None,
    claims=later("semlock._systems.claims", "own"),
    restamp=restamp_text,
    lock=Lock,
    async_lock=later("semlock._locks.async_lock", "AsyncLock"),
)
