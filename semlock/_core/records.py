"""Record formats: the bytes in a lock file, and what they say.

The format here is sema's text, ``key=value`` lines, with keys that other programs ignore.
A format knows bytes only; whether a holder lives is judged in ``_identity``, and when a lock
may be broken in ``_policy``.
"""

from __future__ import annotations

from semlock._core.capi import RECORD_LIMIT, Record
from semlock._core.errors import LockRecordError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self

    from semlock._core.identity import Process

_TOKEN_ROOM = b"0" * 32
_STAMP_ROOM = b"0" * 10
_WITNESS_ROOM = b"none"

# What ``encode_text`` writes, in this order.  A file is removed only if it is exactly so.
TEXT_KEYS = (
    "pid", "timestamp", "tag", "host", "start", "boot", "pidns", "timens", "token", "witness",
)  # fmt: skip

PID_LIMIT = 2**32 - 1  # what every reader of the format can hold
_INTEGER_DIGITS = 20

# Control characters would forge lines of the record or take over the reader's terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160), 0x2028, 0x2029), " ")
# These would let a foreign record turn the words around it about.
_DIRECTIONS = dict.fromkeys(
    (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), " "
)


class _Marked:
    # Whether semlock's own records of this system have a token, which tells those of others.
    __slots__ = ("_names_instances",)


class LockInfo(_Marked):
    """What a record says of its holder.  What it doesn't say is ``None``.

    ``pid``, ``timestamp`` (seconds since 1970 when it was won or refreshed) and ``tag`` are
    everybody's.  ``host``, ``start``, ``boot``, ``pidns``, ``timens``, ``token`` and
    ``witness`` are written by semlock.  ``payload`` is the whole object of a JSON record.
    """

    __slots__ = (
        "pid", "timestamp", "tag", "host", "start", "boot", "pidns", "timens", "token",
        "witness", "payload",
    )  # fmt: skip

    pid: int | None
    timestamp: float | None
    tag: str | None
    host: str | None
    start: int | None
    boot: str | None
    pidns: int | None
    timens: int | None
    token: str | None
    witness: str | None
    payload: dict[str, Any] | None

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
        """Give the fields by name, those that are ``None`` too."""
        return {name: getattr(self, name) for name in self.__slots__}

    def replace(self, **fields: Any) -> Self:
        """Give the same with other values of some fields."""
        return type(self)(**(self.as_dict() | fields))

    def _of_named_instances(self) -> Self:
        """Mark it as read by a system whose records have a token if semlock wrote them."""
        self._names_instances = True
        return self

    @property
    def _is_foreign(self) -> bool:
        """Whether it is known that semlock did not write the record."""
        return self._names_instances and self.token is None and self.witness is None

    @property
    def holder(self) -> str:
        """Name the holder in a few words."""
        return "somebody" if self.pid is None else f"process {self.pid}"

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
    """Make what a foreign record says fit for a message or a terminal."""
    return text.translate(_CONTROLS | _DIRECTIONS)


def clean_tag(tag: str) -> str:
    """Replace what a record can't hold in one line; refuse what UTF-8 can't encode."""
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
    """Lay out the record of a lock of this process, with room for what each win fills in."""
    lines = [b"pid=%d\n" % process.pid, b"timestamp=", _STAMP_ROOM, b"\n"]
    stamp_at = len(lines[0]) + len(lines[1])
    if tag is not None:
        try:
            lines.append(b"tag=%s\n" % clean_tag(tag).encode("utf-8"))
        except UnicodeEncodeError as error:
            raise LockRecordError(f"the tag can't be written as UTF-8: {error}") from error
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
        raise LockRecordError(
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
        in_place=in_place,
        detached=detached,
    )


def parse_integer(text: str | None, limit: int) -> int | None:
    """Read plain ASCII digits, as the other implementations do; anything else is no number."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _INTEGER_DIGITS:
        return None
    value = int(text)
    return value if value <= limit else None


def text_of(content: bytes) -> str:
    """Give the bytes of a record as the text that they are, or say that they are none."""
    if not isinstance(content, (bytes, bytearray)):
        raise TypeError(f"a record is bytes, as they are in the file, not {content!r:.60}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LockRecordError(f"the record is not UTF-8: {error}") from None


_BLANKS = " \t"

# Keys that only semlock writes, whose texts are read as they stand.
_OWN_KEYS = frozenset(("start", "boot", "pidns", "timens", "token", "witness"))
_TEXTS = ("tag", "host", "boot", "token", "witness")


def decode_text(content: bytes) -> LockInfo:
    """Read a text record; ``LockRecordError`` if it lacks what every record must have.

    Unknown keys, empty lines and lines without ``=`` are passed over; of a key that comes
    twice the last counts.  Blanks and tabs around keys and values don't count, except around
    the texts that semlock wrote.  A record of others may lack its timestamp if its lines are
    complete: ``echo "pid=$$" > x.lock`` makes a lock too.
    """
    text = text_of(content)
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.removesuffix("\r").partition("=")
        if equals:
            fields[key.strip(_BLANKS)] = value
    ours = not _OWN_KEYS.isdisjoint(fields)
    for key, value in fields.items():
        if not ours or key not in _TEXTS:
            fields[key] = value.strip(_BLANKS)
    if "timestamp" not in fields and not ours and text.endswith("\n"):
        return info_of(fields, _usable_pid(fields), None)
    return decode_fields(fields)


def restamp_text(content: bytes, info: LockInfo, now: float) -> bytes | None:  # noqa: ARG001
    """Put another time into a text record.  Of a key that comes twice the last counts."""
    before, key, rest = content.rpartition(b"timestamp=")
    digits = len(rest) - len(rest.lstrip(b"0123456789"))
    return before + key + b"%d" % int(now) + rest[digits:] if key and digits else None


def decode_fields(fields: dict[str, str]) -> LockInfo:
    """Make of a text record's fields what it says; ``pid`` and ``timestamp`` must be there."""
    pid = _usable_pid(fields)
    timestamp = parse_integer(fields.get("timestamp"), 2**64 - 1)
    if timestamp is None:
        raise LockRecordError(
            f"the record has no usable timestamp: {fields.get('timestamp')!r:.60}"
        )
    return info_of(fields, pid, timestamp)


def _usable_pid(fields: dict[str, str]) -> int:
    pid = parse_integer(fields.get("pid"), PID_LIMIT)
    if pid is None or pid < 1:
        raise LockRecordError(f"the record has no usable pid: {fields.get('pid')!r:.60}")
    return pid


def info_of(fields: dict[str, str], pid: int | None, timestamp: int | None) -> LockInfo:
    return LockInfo(
        pid=pid,
        timestamp=timestamp,
        tag=fields.get("tag"),
        host=fields.get("host"),
        start=parse_integer(fields.get("start"), 2**63 - 1),
        boot=fields.get("boot"),
        pidns=parse_integer(fields.get("pidns"), 2**64 - 1),
        timens=parse_integer(fields.get("timens"), 2**64 - 1),
        token=fields.get("token"),
        witness=fields.get("witness"),
    )._of_named_instances()
