"""What a task lock's record may contain: fields, types, bounds, times and owners.

All checks raise ``LockRecordError``, when reading and when writing.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import datetime, timezone

from semlock._core.errors import LockRecordError
from semlock._core.records import PID_LIMIT, printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

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
