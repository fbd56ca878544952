"""The task lock's records: JSON in an old and an enhanced form.

Old is ``{"owner", "since": milliseconds, "ttl": seconds}``.  Enhanced has ``since`` as ISO
text and an object ``metadata`` of known fields; it is what semlock writes, with one member
more, ``semlock``, that holds what proves a holder's death.
"""

from __future__ import annotations

import re

from semlock._core.capi import RECORD_LIMIT, Record
from semlock._core.errors import LockRecordError
from semlock._core.json_records import decode_object, encode_object, iso_time, milliseconds
from semlock._core.records import PID_LIMIT, LockInfo, parse_integer
from semlock._systems.task_schema import (
    checked_metadata,
    checked_owner,
    checked_since,
    checked_ttl,
    shown_owner,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from semlock._core.identity import Process

_SINCE_ROOM = "0000-00-00T00:00:00.000Z"
_TOKEN_ROOM = "0" * 32
_WITNESS_ROOM = "none"
_TOKEN = re.compile(r"[0-9a-f]{32}\Z")

# Where they stand in what is written.  Nothing else looks like them: inside of a value the
# quotes are escaped.
_SINCE, _TOKEN_AT, _WITNESS_AT = b'"since": "', b'"token": "', b'"witness": "'


class TaskInfo(LockInfo):
    """What a task lock's record says.  ``payload`` is the whole object of the record."""

    # No slots of its own: as_dict() of the base goes by the slots that it finds.

    @property
    def owner(self) -> str:
        """Who holds the lock, in the words of its writer."""
        owner: str = self._members["owner"]
        return owner

    @property
    def ttl(self) -> float:
        """For how many seconds from ``timestamp`` on it is held."""
        return checked_ttl(self._members["ttl"])

    @property
    def metadata(self) -> dict[str, Any]:
        """What is said about the owner; empty for old records."""
        return dict(self._members.get("metadata") or {})

    @property
    def old(self) -> bool:
        """Whether the record has the old form: a number as its time, and no metadata."""
        return not isinstance(self._members["since"], str) and "metadata" not in self._members

    @property
    def holder(self) -> str:
        """Name the holder in a few words."""
        return shown_owner(self.owner)

    @property
    def _members(self) -> dict[str, Any]:
        return self.payload or {}

    def seconds_held(self, now: float) -> float:
        """Say for how long it has been held."""
        return now - (self.timestamp or 0.0)

    def expired(self, now: float) -> bool:
        """Tell whether its time is over: strictly more than its time to live has passed.

        Counted in whole milliseconds, as both forms of a record count, so that it is never
        over early, and the same to the last millisecond for every program.
        """
        return milliseconds(now) - milliseconds(self.timestamp or 0.0) > self.ttl * 1000


def decode(content: bytes) -> TaskInfo:
    """Read a record of either form; ``LockRecordError`` says what is wrong with it.

    Unknown members beside ``metadata`` are passed over, as the old program does; unknown
    fields in it are an error.  Of a key that comes twice the last counts.
    """
    members = decode_object(content)
    missing = [name for name in ("owner", "since", "ttl") if name not in members]
    if missing:
        raise LockRecordError(f"the record has no {' and no '.join(missing)}")
    checked_owner(members["owner"])
    checked_ttl(members["ttl"])
    timestamp = checked_since(members["since"])
    if members.get("metadata", {}) is None:
        del members["metadata"]  # which JavaScript takes for none
    metadata = checked_metadata(members.get("metadata", {}))
    pid = metadata.get("process_id")
    known = {"pid": None if pid is None else int(pid), **_claims(members.get("semlock"))}
    return TaskInfo(
        timestamp=timestamp, host=metadata.get("hostname"), payload=members, **known
    )._of_named_instances()


def restamp(content: bytes, info: LockInfo, now: float) -> bytes:
    """Put another time into ``since``, in the form that it has."""
    since = (info.payload or {}).get("since")
    new = iso_time(now) if isinstance(since, str) else str(milliseconds(now))
    pattern = rb'("since"\s*:\s*"?)' + re.escape(str(since).encode()) + rb'(?="|[\s,}])'
    return re.sub(pattern, rb"\g<1>" + new.encode(), content, count=1)


def _claims(member: object) -> dict[str, Any]:
    """Read what a semlock process says of itself.  What is odd about it proves nothing."""
    if not isinstance(member, dict):
        return {}
    pid = member.get("pid")
    if isinstance(pid, bool) or not isinstance(pid, int) or not 1 <= pid <= PID_LIMIT:
        return {}
    texts = {name: text for name, text in member.items() if isinstance(text, str)}
    token = texts.get("token", "")
    return {
        "pid": pid,
        "start": parse_integer(texts.get("start"), 2**63 - 1),
        "boot": texts.get("boot"),
        "pidns": parse_integer(texts.get("pidns"), 2**64 - 1),
        "timens": parse_integer(texts.get("timens"), 2**64 - 1),
        "tag": texts.get("tag"),
        "token": token if _TOKEN.match(token) else None,
        "witness": texts.get("witness"),
    }


def to_json(members: dict[str, object]) -> bytes:
    """Write a record as JavaScript's ``JSON.stringify(…, null, 2)`` does."""
    encoded = encode_object(members).encode("utf-8")
    if len(encoded) > RECORD_LIMIT:
        raise LockRecordError(
            f"the record would have {len(encoded)} bytes, more than the {RECORD_LIMIT} that a "
            "lock file may have"
        )
    return encoded


def encode(
    owner: str,
    ttl: float,
    metadata: Mapping[str, object],
    process: Process,
    *,
    mode: int,
    durability: int,
    detached: bool = False,
    tag: str | None = None,
) -> Record:
    """Lay out a record, with room for the time of the try and for what each win fills in.

    Its text can be changed: ``put_since`` writes the time into it, time and again.
    """
    # Numbers as text, because a program in JavaScript that wrote the record again would
    # round the long ones.
    claims = {
        "pid": process.pid,
        "start": str(process.start or ""),
        "boot": process.boot,
        "pidns": str(process.pidns or ""),
        "timens": str(process.timens or ""),
        "tag": tag,
        "token": _TOKEN_ROOM,
        "witness": _WITNESS_ROOM,
    }
    members: dict[str, object] = {
        "owner": owner,
        "since": _SINCE_ROOM,
        "ttl": ttl,
        "metadata": dict(metadata),
        "semlock": {name: value for name, value in claims.items() if value},
    }
    text: Any = bytearray(to_json(members))
    return Record(
        text,
        stamp_at=-1,
        token_at=text.rindex(_TOKEN_AT) + len(_TOKEN_AT),
        witness_at=text.rindex(_WITNESS_AT) + len(_WITNESS_AT),
        head=text.index(_SINCE),  # the owner: who gives it another one has taken it over
        mode=mode,
        durability=durability,
        detached=detached,
    )


def put_since(record: Record, since: bytes) -> None:
    """Write a time into a record that is laid out."""
    text: Any = record.text
    at = text.index(_SINCE) + len(_SINCE)
    text[at : at + len(_SINCE_ROOM)] = since


def since_of(record: Record) -> bytes:
    """Give the time in a record that is laid out."""
    at = record.text.index(_SINCE) + len(_SINCE)
    return bytes(record.text[at : at + len(_SINCE_ROOM)])
