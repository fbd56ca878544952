"""The task lock's records: JSON in an old and an enhanced form.

The old form is ``{"owner", "since": milliseconds, "ttl": seconds}``.  The enhanced form has
``since`` as ISO text and an object ``metadata`` of known fields.  semlock writes the enhanced
form with one more member, ``semlock``, for the proof of a holder's death.  All checks of fields,
types, bounds and owners raise ``LockRecordError``, when reading and when writing.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import datetime, timezone

from semlock._core.capi import RECORD_LIMIT, Record
from semlock._core.errors import LockRecordError
from semlock._core.json_records import decode_object, encode_object, iso_time, milliseconds
from semlock._core.records import (
    PID_LIMIT,
    LockInfo,
    of_named_instances,
    parse_integer,
    printable,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from semlock._core.identity import Process

OWNER_LIMIT = 256  # UTF-16 units, as JavaScript counts characters

ENVIRONMENTS = ("local", "ci", "cloud", "container")
PURPOSES = ("interactive", "automated", "emergency")

# Fields that an owner may have, and fields that only taking over and migrating add.
OWNER_FIELDS = (
    "hostname", "process_id", "user_identity", "session_id", "environment", "purpose",
)  # fmt: skip
ALL_FIELDS = (
    *OWNER_FIELDS, "reclaimed_from", "reclaimed_reason", "migrated", "migrated_at",
)  # fmt: skip

_ENUMS = {"environment": ENVIRONMENTS, "purpose": PURPOSES}

# With a zone only: a local time is another moment on another machine.
_ISO = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))\Z"
)

# Milliseconds, in 1973.  A smaller number is not a lock's time: it counts seconds.
_EARLIEST = 100_000_000_000
_LATEST = 8_640_000_000_000_000  # the last moment of a JavaScript Date

_LAST_WHOLE = 2**53

# How many characters of a token's digest are written, and the mark of a digest.
TOKEN_DIGEST = 20
_DIGEST = re.compile(rf"[0-9a-f]{{{TOKEN_DIGEST}}}\Z")


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number that every reader can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


# ---------------------------------------------------------------- time


def checked_since(value: Any) -> float:
    """Read either form of a time, as seconds since 1970."""
    if isinstance(value, str):
        return _from_iso(value)
    if not is_number(value):
        raise LockRecordError(f"since is neither a text nor a number: {value!r:.60}")
    if not _EARLIEST <= value <= _LATEST:
        raise LockRecordError(f"since is no time in milliseconds: {value!r:.60}")
    return float(value) / 1000


def _from_iso(text: str) -> float:
    match = _ISO.match(text)
    if match is None:
        raise LockRecordError(f"since is no ISO time with its zone: {text!r:.60}")
    *parts, fraction, sign, hours, minutes = match.groups()
    if sign and (int(hours) > 23 or int(minutes) > 59):
        raise LockRecordError(f"since has a zone that does not exist: {text!r:.60}")
    year, month, day, hour, minute, second = map(int, parts)
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError as error:
        raise LockRecordError(f"since is no time: {error}: {text!r:.60}") from None
    shift = int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60) if sign else 0
    # Whole milliseconds, as in JavaScript, so that it is written as it was read.
    thousandths = int((fraction or "").ljust(3, "0")[:3])
    return (round(moment.timestamp() - shift) * 1000 + thousandths) / 1000


# ---------------------------------------------------------------- members


def checked_owner(owner: object) -> str:
    """Return an owner if it is valid."""
    if not isinstance(owner, str) or not owner:
        raise LockRecordError(f"an owner is a text that is not empty, not {owner!r:.60}")
    length = characters(owner)
    if length > OWNER_LIMIT:
        raise LockRecordError(
            f"an owner has at most {OWNER_LIMIT} characters, this one has {length}"
        )
    return owner


def characters(text: str) -> int:
    """Count characters as JavaScript does."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def checked_ttl(ttl: Any) -> float:
    """Return a time to live if it is valid."""
    if not is_number(ttl) or not ttl > 0:
        raise LockRecordError(f"a ttl is a number of seconds above 0, not {ttl!r:.60}")
    # JavaScript's numbers: exact integers up to here, rounded beyond.
    return int(ttl) if ttl == int(ttl) and ttl <= _LAST_WHOLE else float(ttl)


def checked_metadata(metadata: object, allowed: Collection[str] = ALL_FIELDS) -> dict[str, Any]:
    """Return the metadata if all fields are known and have the right type."""
    if not isinstance(metadata, dict):
        raise LockRecordError(f"metadata is an object, not {metadata!r:.60}")
    for field, value in metadata.items():
        if field not in allowed:
            raise LockRecordError(f"unexpected metadata field: {field!r:.60}")
        if field == "process_id":
            if not is_number(value) or value != int(value) or not 1 <= value <= PID_LIMIT:
                raise LockRecordError(f"process_id is no process number: {value!r:.60}")
        elif field == "migrated":
            if not isinstance(value, bool):
                raise LockRecordError(f"migrated is true or false, not {value!r:.60}")
        elif not isinstance(value, str):
            raise LockRecordError(f"{field} is a text, not {value!r:.60}")
        elif field in _ENUMS and value not in _ENUMS[field]:
            raise LockRecordError(
                f"{field} is one of {', '.join(_ENUMS[field])}, not {value!r:.60}"
            )
    return metadata


# ---------------------------------------------------------------- tokens


def digest(secret: str) -> str:
    """Give the digest that is written in place of a secret."""
    encoded = secret.encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).hexdigest()[:TOKEN_DIGEST]


def without_token(owner: str) -> str:
    """Replace the token in an owner by its digest, once."""
    token = owner.removeprefix("token-")
    if token in (owner, "") or _DIGEST.match(token):
        return owner
    return f"token-{digest(token)}"


def shown_owner(owner: str) -> str:
    """Give an owner for display: one line, without secrets, always encodable."""
    plain = without_token(owner).encode("utf-8", "replace").decode("utf-8")
    return printable(plain)


def without_secrets(owner: str) -> str:
    """Give an owner for a log, where a session counts as a secret too."""
    user, at, session = shown_owner(owner).rpartition("@session-")
    if not at or not user.startswith("user-"):
        return shown_owner(owner)
    return f"{user}@session-{digest(session)}"


_SINCE_ROOM = "0000-00-00T00:00:00.000Z"
_TOKEN_ROOM = "0" * 32
_WITNESS_ROOM = "none"
_TOKEN = re.compile(r"[0-9a-f]{32}\Z")

# Where these fields are in the text.  They can't occur inside a value, where quotes are escaped.
_SINCE, _TOKEN_AT, _WITNESS_AT = b'"since": "', b'"token": "', b'"witness": "'


class TaskInfo(LockInfo):
    """What a task lock's record says.  ``payload`` is the whole object of the record."""

    # No slots of its own, as the base's as_dict() lists the slots of the class.

    @property
    def owner(self) -> str:
        """The owner, in its writer's words."""
        owner: str = self._members["owner"]
        return owner

    @property
    def ttl(self) -> float:
        """For how many seconds after ``timestamp`` it is held."""
        return checked_ttl(self._members["ttl"])

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields about the owner; empty for old records."""
        return dict(self._members.get("metadata") or {})

    @property
    def old(self) -> bool:
        """Whether it is in the old form: a number as its time, and no metadata."""
        return not isinstance(self._members["since"], str) and "metadata" not in self._members

    @property
    def holder(self) -> str:
        """Name the holder in a few words."""
        return shown_owner(self.owner)

    @property
    def _members(self) -> dict[str, Any]:
        return self.payload or {}

    def seconds_held(self, now: float) -> float:
        """Return for how long it has been held."""
        return now - (self.timestamp or 0.0)

    def expired(self, now: float) -> bool:
        """Tell whether more than its time to live has passed.

        It is counted in whole milliseconds, as in both forms of the record, so that it never
        expires early, and at the same millisecond for every program.
        """
        return milliseconds(now) - milliseconds(self.timestamp or 0.0) > self.ttl * 1000


def decode(content: bytes) -> TaskInfo:
    """Read a record of either form; ``LockRecordError`` says what is wrong with it.

    Unknown members beside ``metadata`` are ignored, as in the old program; unknown fields in it
    are an error.  Of a repeated key the last one counts.
    """
    members = decode_object(content)
    missing = [name for name in ("owner", "since", "ttl") if name not in members]
    if missing:
        raise LockRecordError(f"the record has no {' and no '.join(missing)}")
    checked_owner(members["owner"])
    checked_ttl(members["ttl"])
    timestamp = checked_since(members["since"])
    if members.get("metadata", {}) is None:
        del members["metadata"]  # null counts as missing in JavaScript
    metadata = checked_metadata(members.get("metadata", {}))
    pid = metadata.get("process_id")
    known = {"pid": None if pid is None else int(pid), **_claims(members.get("semlock"))}
    return of_named_instances(
        TaskInfo(timestamp=timestamp, host=metadata.get("hostname"), payload=members, **known)
    )


def restamp(content: bytes, info: LockInfo, now: float) -> bytes:
    """Put another time into ``since``, in its own form."""
    since = (info.payload or {}).get("since")
    new = iso_time(now) if isinstance(since, str) else str(milliseconds(now))
    pattern = rb'("since"\s*:\s*"?)' + re.escape(str(since).encode()) + rb'(?="|[\s,}])'
    return re.sub(pattern, rb"\g<1>" + new.encode(), content, count=1)


def _claims(member: object) -> dict[str, Any]:
    """Read the fields of a semlock process; invalid ones are ignored."""
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
    """Lay out a record, with room for the time of a try and for the core's fields.

    Its text is mutable: ``put_since`` writes the time before each try.
    """
    # Numbers as text: a JavaScript program that rewrites the record would round long ones.
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
        head=text.index(_SINCE),  # another owner before this position: taken over
        mode=mode,
        durability=durability,
        detached=detached,
    )


def put_since(record: Record, since: bytes) -> None:
    """Write a time into a record."""
    text: Any = record.text
    at = text.index(_SINCE) + len(_SINCE)
    text[at : at + len(_SINCE_ROOM)] = since


def since_of(record: Record) -> bytes:
    """Read the time in a record."""
    at = record.text.index(_SINCE) + len(_SINCE)
    return bytes(record.text[at : at + len(_SINCE_ROOM)])
