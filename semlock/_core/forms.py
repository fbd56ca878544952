"""Which files each lock system claims when a directory is cleaned: by name and by exact bytes.

Reading is lenient, since a lock must be respected in whatever form it comes.  Removing is
strict: a file is a lock only if its system gives locks such names and if its content is, byte
for byte, one whole record.  A document that quotes a record, a configuration with the same
keys, and other JSON in a file named ``*.lock`` are none.

Each system has one function here.  It is asked with a path, the content, and whether the user
named this very file; it gives what the record says, or ``None`` for a file that isn't claimed.
"""

from __future__ import annotations

import os
import re

from semlock._core.errors import LockRecordError
from semlock._core.records import TEXT_KEYS, decode_text

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    from semlock._core.records import LockInfo

    Recogniser: TypeAlias = Callable[[str, bytes, bool], LockInfo | None]

# How locks are named and other files are not; slots have a number behind that.
_LOCK_NAME = re.compile(r".*\.(lock|lck|sem)(\.[0-9]+)?\Z", re.DOTALL)
_FEATURE_PATH = re.compile(
    r".*[/\\]specs[/\\][a-zA-Z0-9][a-zA-Z0-9._-]*[/\\]\.lock\Z", re.DOTALL
)
# The tool semats writes <path>.<pid>.<16 hexadecimal digits>.tmp and renames it to <path>.
_TEMPORARY = re.compile(
    r"(?P<lock>.+)\.(?P<pid>[1-9][0-9]{0,9})\.[0-9a-f]{16}\.tmp\Z", re.DOTALL
)

_LINE = rb"[^\x00-\x1f\x7f]*"
_NUMBER = rb"[0-9]{1,20}"
_VALUES = {
    "pid": rb"[1-9][0-9]{0,9}", "timestamp": rb"[0-9]{10}", "start": _NUMBER,
    "pidns": _NUMBER, "timens": _NUMBER, "token": rb"[0-9a-f]{32}",
    "witness": rb"kept|left|none|over",
}  # fmt: skip
_LINES = {
    key: re.compile(b"%s=(?:%s)" % (key.encode(), _VALUES.get(key, _LINE))) for key in TEXT_KEYS
}
_REQUIRED = ("pid", "timestamp", "token", "witness")

_FOREIGN_TEXT = re.compile(
    rb"pid=[1-9][0-9]{0,9}\ntimestamp=%s(\ntag=%s)?\n?" % (_NUMBER, _LINE)
)
_BEGUN_TEXT = re.compile(rb"timestamp=%s(\n(t|ta|tag|tag=%s\n?)?)?" % (_NUMBER, _LINE))
_FEATURE = re.compile(rb"[1-9][0-9]{0,6}:[0-9]{10}(\.[0-9]{1,20})?")
_OWN_FEATURE = re.compile(rb"[1-9][0-9]{0,6}:[0-9]{10}\.[0-9]{7}")
_SIDECAR_TOKEN = rb"\n\t{8}[ \t]{128}\n"
_SIDECAR_END = re.compile(rb"(?<=\n\})%s\Z" % _SIDECAR_TOKEN)
_TASK_MEMBERS = (
    ("owner", "since", "ttl"),
    ("owner", "since", "ttl", "metadata"),
    ("owner", "since", "ttl", "metadata", "semlock"),
)

# Where the record ends that begins a file: there the rest of a longer one may stand.
_END = re.compile(
    rb"\nwitness=(?:%s)\n|\n\}(?:%s)?|\A%s"
    % (_VALUES["witness"], _SIDECAR_TOKEN, _OWN_FEATURE.pattern)
)
# A record is written by one call, which a kill can cut between two pages only.
_PAGE = 4096


def is_lock_name(name: str) -> bool:
    """Tell a name that is given to locks and to nothing else."""
    return _LOCK_NAME.match(name) is not None


# ---------------------------------------------------------------- the systems


def own(path: str, content: bytes, named: bool = True) -> LockInfo | None:  # noqa: ARG001
    """Claim semlock's records of locks and of task locks, under any name.

    A program may lock any path, so the name says nothing.  What proves that semlock wrote the
    file is the whole content: its keys in their order, with a token, and nothing else.
    """
    if content.startswith(b"pid="):
        return _read(decode_text, content) if _own_text(content) == "whole" else None
    if b'\n  "semlock": {\n' not in content:
        return None
    info = _whole_task(content)
    return info if info is not None and info.token is not None else None


def sema(path: str, content: bytes, named: bool) -> LockInfo | None:
    """Claim the lines of the protocol under a lock's name, and semlock's own records."""
    lines = content
    if content.count(b"\n") == content.count(b"\r\n"):
        lines = content.replace(b"\r\n", b"\n")
    if (named or is_lock_name(os.path.basename(path))) and _FOREIGN_TEXT.fullmatch(lines):
        return _read(decode_text, content)
    return own(path, content)


def feature(path: str, content: bytes, named: bool) -> LockInfo | None:  # noqa: ARG001
    """Claim ``pid:timestamp`` in ``specs/<feature>/.lock``, and nowhere else."""
    from semlock.feature import decode  # noqa: PLC0415 - each only where it is asked for

    if not _FEATURE_PATH.match(path) or not _FEATURE.fullmatch(content):
        return None
    return _read(decode, content)


def sidecar(path: str, content: bytes, named: bool) -> LockInfo | None:
    """Claim ``<target>.lock`` with a record of fs-safe or semlock.

    The lock files of package managers are JSON too.  So a record has the name of its instance
    behind it, as fs-safe 0.21 and semlock write it, or says at least who made it and when.
    """
    from semlock._core.json_records import parse_iso_time  # noqa: PLC0415

    has_name = len(os.path.basename(path)) > len(".lock") and path.endswith(".lock")
    info = _whole_sidecar(content) if named or has_name else None
    if info is None or info.payload is None or info.token is not None:
        return info
    dated = parse_iso_time(info.payload.get("createdAt")) is not None
    return info if has_name and dated and info.pid is not None else None


def task(path: str, content: bytes, named: bool) -> LockInfo | None:
    """Claim task locks of either form under a lock's name, and semlock's own records."""
    if named or is_lock_name(os.path.basename(path)):
        return _whole_task(content)
    return own(path, content)


# ---------------------------------------------------------------- what is not a whole lock


def temporary(name: str, only: str | None) -> int | None:
    """Give the process in the name of one of semats' temporary files.

    It must be the temporary file of the lock that the user named, or of a name that is given
    to locks.
    """
    match = _TEMPORARY.match(name)
    if match is None or not (match["lock"] == only if only else is_lock_name(match["lock"])):
        return None
    return int(match["pid"])


def is_begun_by_semats(pid: int, content: bytes) -> bool:
    """Tell whether a temporary file holds what semats writes for a process, or its beginning."""
    head = b"pid=%d\n" % pid
    rest = content.removeprefix(head)
    if rest == content and content != b"":
        return head.startswith(content)
    return b"timestamp=".startswith(rest) or _BEGUN_TEXT.fullmatch(rest) is not None


def unfinished(content: bytes) -> bool:
    """Tell what a kill can leave of a record of semlock: nothing, its beginning, or all of it."""
    if is_begun(content) or own("", content) is not None:
        return True
    if content[:1].isdigit():
        return _OWN_FEATURE.fullmatch(content) is not None
    info = _whole_sidecar(content)
    return info is not None and info.token is not None


def is_begun(content: bytes) -> bool:
    """Tell what a kill can leave of a record of semlock before it is whole."""
    if content and len(content) % _PAGE == 0 and content.startswith(b'{\n  "'):
        return content.rfind(b"\n}") == -1
    return _own_text(content) == "part"


def is_ticket(content: bytes) -> bool:
    """Tell what stands in a ticket: the record that its owner would write, or less of it."""
    return _own_text(content) is not None


def kept(content: bytes) -> bool:
    """Tell what a kill can leave of a kept claim: its next record may stand over a longer one."""
    end = _END.search(content)
    return unfinished(content[: end.end()] if end else content) or (
        len(content) > _PAGE and unfinished(content[:_PAGE])
    )


# ---------------------------------------------------------------- the exact forms


def _own_text(content: bytes) -> Literal["whole", "part"] | None:
    """Compare with what ``encode_text`` writes: all of it, the beginning, or something else."""
    *lines, last = content.split(b"\n")
    keys = list(TEXT_KEYS)
    for line in lines:
        key = line.partition(b"=")[0].decode("latin-1")
        while keys and keys[0] != key and keys[0] not in _REQUIRED:
            del keys[0]
        if not keys or keys.pop(0) != key or not _LINES[key].fullmatch(line):
            return None
    if not keys:
        return "whole" if not last else None
    for key in keys:
        word = f"{key}=".encode()
        if word.startswith(last[: len(word)]):
            return "part"
        if key in _REQUIRED:
            break
    return None


def _whole_task(content: bytes) -> LockInfo | None:
    from semlock._systems.task_records import decode  # noqa: PLC0415 - JSON, for those who need it

    info = _read(decode, content)
    if info is None or tuple(info.payload or ()) not in _TASK_MEMBERS:
        return None
    # A record that was migrated has blanks behind it, so that the file didn't get shorter.
    return info if _is_json_of(info, content.rstrip(b" ")) else None


def _whole_sidecar(content: bytes) -> LockInfo | None:
    from semlock._systems.sidecar_record import decode  # noqa: PLC0415

    # Behind the object there is a newline, or the name of the instance on a line of its own.
    text = _SIDECAR_END.sub(b"\n", content)
    info = _read(decode, content) if text.endswith(b"}\n") else None
    return info if info is not None and _is_json_of(info, text[:-1]) else None


def _is_json_of(info: LockInfo, text: bytes) -> bool:
    from semlock._core.json_records import encode_object  # noqa: PLC0415

    try:
        return encode_object(info.payload).encode("utf-8") == text
    except (LockRecordError, UnicodeEncodeError):
        return False


def _read(decode: Callable[[bytes], LockInfo], content: bytes) -> LockInfo | None:
    try:
        return decode(content)
    except LockRecordError:
        return None
