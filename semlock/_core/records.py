"""Record formats: the bytes in a lock file, and what they say.

This module has the text format of sema (``key=value`` lines) with semlock's additional keys, which
other programs ignore.  ``identity.py`` judges holders, ``policy.py`` decides about removal.
"""

from __future__ import annotations

from semlock._core.capi import RECORD_LIMIT, Record

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from typing_extensions import Self

    from semlock._core.errors import LockRecordError
    from semlock._core.identity import Process

    R = TypeVar("R", bound="LockInfo")

_TOKEN_ROOM = b"0" * 32
_STAMP_ROOM = b"0" * 10
_WITNESS_ROOM = b"none"

# The keys of ``encode_text``, in order.  Only a file with exactly this form is removed.
TEXT_KEYS = (
    "pid", "timestamp", "tag", "host", "start", "boot", "pidns", "timens", "token", "witness",
)  # fmt: skip

PID_LIMIT = 2**32 - 1  # the largest number that all readers of the format accept
_INTEGER_DIGITS = 20

# Control characters could fake lines of a record or control the reader's terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 0x2028, 0x2029), " ")
# These could reverse the text around a foreign record.
_DIRECTIONS = dict.fromkeys(
    (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " "
)


class _Marked:
    # Whether semlock's records of this system have a token, so that one without is foreign.
    __slots__ = ("_names_instances",)


class LockInfo(_Marked):
    """What a record says of its holder; ``None`` for what it doesn't say.

    Every record has ``pid``, ``timestamp`` (seconds since 1970 of the acquire or refresh) and
    ``tag``.  semlock adds ``host``, ``start``, ``boot``, ``pidns``, ``timens``, ``token`` and
    ``witness``.  ``payload`` is the whole object of a JSON record.
    """

    __module__ = "semlock"  # as users write it
    __slots__ = (
        "pid", "timestamp", "tag", "host", "start", "boot", "pidns", "timens", "token",
        "witness", "payload",
    )  # fmt: skip

    def __init__(
        self,
        *,
        pid: int | None = None,
        timestamp: float | None = None,
        tag: str | None = None,
        host: str | None = None,
        start: int | None = None,
        boot: str | None = None,
        pidns: int | None = None,
        timens: int | None = None,
        token: str | None = None,
        witness: str | None = None,
        payload: dict[str, Any] | None = None,
    ) -> None:
        self._names_instances = False
        self.pid = pid
        self.timestamp = timestamp
        self.tag = tag
        self.host = host
        self.start = start
        self.boot = boot
        self.pidns = pidns
        self.timens = timens
        self.token = token
        self.witness = witness
        self.payload = payload

    def as_dict(self) -> dict[str, Any]:
        """Give all fields by name, those that are ``None`` too."""
        return {name: getattr(self, name) for name in self.__slots__}

    def replace(self, **fields: Any) -> Self:
        """Give a copy with other values of some fields."""
        return type(self)(**(self.as_dict() | fields))

    @property
    def holder(self) -> str:
        """Name the holder in a few words."""
        return "an unnamed process" if self.pid is None else f"process {self.pid}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LockInfo):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.pid, self.timestamp, self.token))

    def __repr__(self) -> str:
        shown = (f"{k}={v!r}" for k, v in self.as_dict().items() if v is not None)
        return f"{type(self).__name__}({', '.join(shown)})"


def printable(text: str) -> str:
    """Make text of a foreign record safe for messages and terminals."""
    return text.translate(_CONTROLS | _DIRECTIONS)


def _refusal(message: str) -> LockRecordError:
    from semlock._core.errors import LockRecordError  # noqa: PLC0415 - not for a good record

    return LockRecordError(message)


def clean_tag(tag: str) -> str:
    """Replace characters that a line can't hold; refuse text that UTF-8 can't encode."""
    if not isinstance(tag, str):
        raise TypeError(f"a tag is text, not {type(tag).__name__}")
    return tag.translate(_CONTROLS)


def encode_text(
    process: Process,
    tag: str | None,
    *,
    mode: int,
    durability: int,
    in_place: bool = False,
    detached: bool = False,
) -> Record:
    """Lay out the record of a lock, with room for the fields that each acquire fills in."""
    lines = [b"pid=%d\n" % process.pid, b"timestamp=", _STAMP_ROOM, b"\n"]
    stamp_at = len(lines[0]) + len(lines[1])
    if tag is not None:
        try:
            lines.append(b"tag=%s\n" % clean_tag(tag).encode("utf-8"))
        except UnicodeEncodeError as error:
            raise _refusal(f"the tag can't be written as UTF-8: {error}") from error
    if process.host:
        lines.append(b"host=%s\n" % clean_tag(process.host).encode("utf-8", "replace"))
    if process.start:
        lines.append(b"start=%d\n" % process.start)
    if process.boot:
        lines.append(b"boot=%s\n" % process.boot.encode("ascii", "replace"))
    if process.pidns:
        lines.append(b"pidns=%d\n" % process.pidns)
    lines.append(b"token=")
    token_at = sum(map(len, lines))
    lines += [_TOKEN_ROOM, b"\nwitness="]
    witness_at = sum(map(len, lines))
    lines += [_WITNESS_ROOM, b"\n"]
    text = b"".join(lines)
    if len(text) > RECORD_LIMIT:
        raise _refusal(
            f"the record would have {len(text)} bytes, more than the {RECORD_LIMIT} that a "
            "lock file may have: use a shorter tag"
        )
    return Record(
        text,
        stamp_at=stamp_at,
        token_at=token_at,
        witness_at=witness_at,
        mode=mode,
        durability=durability,
        head=len(lines[0]),  # another process before this position: taken over
        in_place=in_place,
        detached=detached,
    )


def parse_integer(text: str | None, limit: int) -> int | None:
    """Read plain ASCII digits; ``None`` for anything else, as in the other implementations."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _INTEGER_DIGITS:
        return None
    value = int(text)
    return value if value <= limit else None


def text_of(content: bytes) -> str:
    """Decode a record's bytes; ``LockRecordError`` if they are no text."""
    if not isinstance(content, (bytes, bytearray)):
        raise TypeError(f"a record is bytes, as they are in the file, not {content!r:.60}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"the record is not UTF-8: {error}") from None


_BLANKS = " \t"

# Keys that only semlock writes; their values are read without stripping blanks.
_OWN_KEYS = frozenset(("start", "boot", "pidns", "timens", "token", "witness"))
_TEXTS = ("tag", "host", "boot", "token", "witness")


def decode_text(content: bytes) -> LockInfo:
    """Read a text record; ``LockRecordError`` if a required field is missing.

    Unknown keys, empty lines and lines without ``=`` are ignored; of a repeated key the last one
    counts.  Blanks and tabs around keys and values are stripped, except in semlock's own keys.
    A foreign record may lack its timestamp if its last line is complete, so that
    ``echo "pid=$$" > x.lock`` makes a lock.
    """
    text = text_of(content)
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.removesuffix("\r").partition("=")
        if equals:
            key = key.strip(_BLANKS)
            if key == "pid" and key in fields:
                forget_first(fields)
            fields[key] = value
    ours = not _OWN_KEYS.isdisjoint(fields)
    for key, value in fields.items():
        if not ours or key not in _TEXTS:
            fields[key] = value.strip(_BLANKS)
    pid = parse_integer(fields.get("pid"), PID_LIMIT)
    if not pid:
        raise _refusal(f"the record has no usable pid: {fields.get('pid')!r:.60}")
    timestamp = None
    if "timestamp" in fields or ours or not text.endswith("\n"):
        timestamp = parse_integer(fields.get("timestamp"), 2**64 - 1)
        if timestamp is None:
            raise _refusal(
                f"the record has no usable timestamp: {fields.get('timestamp')!r:.60}"
            )
    return info_of(fields, pid, timestamp)


def forget_first(fields: dict[str, str]) -> None:
    """Drop what identifies the process of an earlier ``pid``, from the fields of a text record.

    A second ``pid`` is another program's, which appended its record.  What semlock wrote to
    identify the first process doesn't identify that one.
    """
    for own in ("pid", "host", *_OWN_KEYS):
        fields.pop(own, None)


def restamp_text(content: bytes, info: LockInfo, now: float) -> bytes | None:  # noqa: ARG001
    """Put another time into a text record; of a repeated key the last one counts."""
    before, key, rest = content.rpartition(b"timestamp=")
    digits = len(rest) - len(rest.lstrip(b"0123456789"))
    return before + key + b"%d" % int(now) + rest[digits:] if key and digits else None


def info_of(fields: dict[str, str], pid: int | None, timestamp: int | None) -> LockInfo:
    """Make a ``LockInfo`` of a text record's fields."""
    start, pidns, timens = map(fields.get, ("start", "pidns", "timens"))
    info = LockInfo(
        pid=pid,
        timestamp=timestamp,
        tag=fields.get("tag"),
        host=fields.get("host"),
        start=None if start is None else parse_integer(start, 2**63 - 1),
        boot=fields.get("boot"),
        pidns=None if pidns is None else parse_integer(pidns, 2**64 - 1),
        timens=None if timens is None else parse_integer(timens, 2**64 - 1),
        token=fields.get("token"),
        witness=fields.get("witness"),
    )
    info._names_instances = True  # noqa: SLF001 - as in of_named_instances
    return info


def of_named_instances(info: R) -> R:
    """Mark a record of a system in which semlock's own records have a token."""
    info._names_instances = True  # noqa: SLF001 - a class of this module
    return info
