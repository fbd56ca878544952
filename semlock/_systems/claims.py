"""Which files each lock system claims when a directory is cleaned: by name and by exact bytes.

Reading is lenient, because a lock in any form must be respected.  Removing is strict: the name must
be one that the system uses, and the content must be exactly one whole record.  So a document that
quotes a record, or other JSON in a file named ``*.lock``, stays.

Each system has one function.  It gets the path, the content, and whether the user named this
file; it returns what the record says, or ``None`` for a file that isn't claimed.
"""

from __future__ import annotations

import os
import re

from semlock._core.errors import LockRecordError
from semlock._core.forms import LINE, NUMBER, PAGE, WITNESS, is_begun, is_lock_name, own_text
from semlock._core.records import decode_text

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._core.records import LockInfo

_FEATURE_PATH = re.compile(
    r".*[/\\]specs[/\\][a-zA-Z0-9][a-zA-Z0-9._-]*[/\\]\.lock\Z", re.DOTALL
)
# The tool semats writes <path>.<pid>.<16 hexadecimal digits>.tmp and renames it to <path>.
_TEMPORARY = re.compile(
    r"(?P<lock>.+)\.(?P<pid>[1-9][0-9]{0,9})\.[0-9a-f]{16}\.tmp\Z", re.DOTALL
)

_FOREIGN_TEXT = re.compile(rb"pid=[1-9][0-9]{0,9}\ntimestamp=%s(\ntag=%s)?\n?" % (NUMBER, LINE))
_BEGUN_TEXT = re.compile(rb"timestamp=%s(\n(t|ta|tag|tag=%s\n?)?)?" % (NUMBER, LINE))
_FEATURE = re.compile(rb"[1-9][0-9]{0,6}:[0-9]{10}(\.[0-9]{1,20})?")
_OWN_FEATURE = re.compile(rb"[1-9][0-9]{0,6}:[0-9]{10}\.[0-9]{7}")
_SIDECAR_TOKEN = rb"\n\t{8}[ \t]{128}\n"
_SIDECAR_END = re.compile(rb"(?<=\n\})%s\Z" % _SIDECAR_TOKEN)
_TASK_MEMBERS = (
    ("owner", "since", "ttl"),
    ("owner", "since", "ttl", "metadata"),
    ("owner", "since", "ttl", "metadata", "semlock"),
)

# The end of the record at the beginning of a file: the rest of a longer record may follow.
_END = re.compile(
    rb"\nwitness=(?:%s)\n|\n\}(?:%s)?|\A%s" % (WITNESS, _SIDECAR_TOKEN, _OWN_FEATURE.pattern)
)


# ---------------------------------------------------------------- the systems


def own(path: str, content: bytes, named: bool = True) -> LockInfo | None:  # noqa: ARG001
    """Claim semlock's records of locks and of task locks, under any name.

    A program may lock any path, so the name proves nothing.  The whole content does: exactly
    the keys that semlock writes, in their order, with a token.
    """
    if content.startswith(b"pid="):
        return _read(decode_text, content) if own_text(content) == "whole" else None
    if b'\n  "semlock": {\n' not in content:
        return None
    info = _whole_task(content)
    return info if info is not None and info.token is not None else None


def sema(path: str, content: bytes, named: bool) -> LockInfo | None:
    """Claim sema's lines under a lock's name, and semlock's own records."""
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

    The lock files of package managers are JSON too.  So the record must be followed by the name
    of its instance, as fs-safe 0.21 and semlock write it, or say at least who made it and when.
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
    """Give the process number in the name of a temporary file of semats.

    It must be the temporary file of the lock that the user named, or of a name used for locks.
    """
    match = _TEMPORARY.match(name)
    if match is None or not (match["lock"] == only if only else is_lock_name(match["lock"])):
        return None
    return int(match["pid"])


def is_begun_by_semats(pid: int, content: bytes) -> bool:
    """Tell whether a temporary file holds a process's record by semats, or its beginning."""
    head = b"pid=%d\n" % pid
    rest = content.removeprefix(head)
    if rest == content and content != b"":
        return head.startswith(content)
    return b"timestamp=".startswith(rest) or _BEGUN_TEXT.fullmatch(rest) is not None


def unfinished(content: bytes) -> bool:
    """Tell whether a kill can leave this of a record of semlock: nothing, a part, or all of it."""
    if is_begun(content) or own("", content) is not None:
        return True
    if content[:1].isdigit():
        return _OWN_FEATURE.fullmatch(content) is not None
    info = _whole_sidecar(content)
    return info is not None and info.token is not None


def kept(content: bytes) -> bool:
    """Tell whether a kill can leave this of a kept claim: a record over a longer one."""
    return unfinished(_first(content)) or (len(content) > PAGE and unfinished(content[:PAGE]))


def first_record(content: bytes) -> LockInfo | None:
    """Read the record that was written over a longer one, whose end follows it."""
    return own("", _first(content))


def _first(content: bytes) -> bytes:
    end = _END.search(content)
    return content[: end.end()] if end else content


# ---------------------------------------------------------------- the exact forms


def _whole_task(content: bytes) -> LockInfo | None:
    from semlock._systems.task_records import decode  # noqa: PLC0415 - JSON, for those who need it

    info = _read(decode, content)
    if info is None or tuple(info.payload or ()) not in _TASK_MEMBERS:
        return None
    # A migrated record is padded with blanks, so that the file doesn't get shorter.
    return info if _is_json_of(info, content.rstrip(b" ")) else None


def _whole_sidecar(content: bytes) -> LockInfo | None:
    from semlock._systems.sidecar_record import decode  # noqa: PLC0415

    # The object is followed by a newline, or by a line with the name of the instance.
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
