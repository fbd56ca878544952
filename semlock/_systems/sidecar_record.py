"""Where a sidecar lock is, and its record: the payload as JSON, and the name of the instance.

It is in the target's real directory, with fs-safe's guard beside it.  The name is 128 random
bits on a line of their own, in the form of fs-safe 0.21: eight tabs, then a tab for each 1 and a
space for each 0.  Readers of JSON skip it as white space.
"""

from __future__ import annotations

import errno
import os
import re
from time import time

from semlock._core.capi import RECORD_LIMIT
from semlock._core.errors import LockPathError, LockRecordError
from semlock._core.identity import this_process
from semlock._core.json_records import decode_object, encode_object, iso_time, parse_iso_time
from semlock._core.records import PID_LIMIT, LockInfo, of_named_instances

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import StrPath


SUFFIX = ".lock"

# While this exists, fs-safe 0.21 creates no lock: one of its processes is removing a stale lock
# by name.  An old one was left by a process that was killed.
RECLAIM_SUFFIX = ".reclaim"
RECLAIM_ABANDONED = 30.0


def normalize(target: StrPath) -> str:
    """Give a target's absolute path with all links of its directory resolved, as fs-safe does."""
    text = os.fsdecode(target)
    if not text or "\0" in text:
        raise LockPathError(
            f"a target's path can't be empty or contain NUL: {text!r}",
            path=text,
            code=errno.EINVAL,
        )
    directory, name = os.path.split(os.path.abspath(text))
    return os.path.join(os.path.realpath(directory), name)


def make_directory_of(target: str) -> None:
    """Make the directory of a target, if it is missing."""
    directory = os.path.dirname(target)
    if os.path.isdir(directory):
        return
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise LockPathError(
            f"{target} can't be locked: {error.filename or directory} is no directory",
            path=target,
            code=error.errno,
        ) from error


def is_being_reclaimed(lock_path: str) -> bool:
    """Tell whether a process with fs-safe is about to remove a stale lock there."""
    try:
        made = os.lstat(lock_path + RECLAIM_SUFFIX).st_mtime
    except OSError:
        return False
    return abs(time() - made) < RECLAIM_ABANDONED


_MARK = "\t" * 8
_TOKEN_BITS = 128
_TO_WHITE_SPACE = str.maketrans("01", " \t")
_FROM_WHITE_SPACE = str.maketrans(" \t", "01")
_TOKEN = re.compile(rb"\n\t{8}([ \t]{128})\n\Z")

# Members of the payload are indented by two spaces, and strings contain no raw newline, so this
# matches nothing else.
_CREATED = re.compile(
    rb'(?<=\n  "createdAt": ")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z(?="[,\n])'
)


def default_payload() -> dict[str, Any]:
    """Give the payload if the caller gives none: the process, and since when."""
    me = this_process()
    return {"pid": me.pid, "host": me.host, "createdAt": iso_time(time())}


def compose(payload: object) -> bytes:
    """Lay out a record with a new name; ``LockRecordError`` if that is impossible."""
    bits = int.from_bytes(os.urandom(_TOKEN_BITS // 8), "big")
    token = f"{bits:0{_TOKEN_BITS}b}".translate(_TO_WHITE_SPACE)
    text = f"{encode_object(payload)}\n{_MARK}{token}\n".encode()
    if len(text) > RECORD_LIMIT:
        raise LockRecordError(
            f"the record would have {len(text)} bytes, more than the {RECORD_LIMIT} that a "
            "lock file may have: use a smaller payload"
        )
    return text


def decode(content: bytes) -> LockInfo:
    """Read a record of semlock or fs-safe; ``LockRecordError`` if it is no JSON object."""
    payload = decode_object(content)
    pid, host, tag = (payload.get(name) for name in ("pid", "host", "tag"))
    return of_named_instances(
        LockInfo(
            pid=pid if type(pid) is int and 1 <= pid <= PID_LIMIT else None,
            timestamp=parse_iso_time(payload.get("createdAt")),
            tag=tag if isinstance(tag, str) else None,
            host=host if isinstance(host, str) else None,
            token=token_of(content),
            payload=payload,
        )
    )


def token_of(content: bytes) -> str | None:
    """Read the instance's name as 32 hexadecimal digits; ``None`` if there is none."""
    match = _TOKEN.search(content)
    if match is None:
        return None
    return f"{int(match[1].decode('ascii').translate(_FROM_WHITE_SPACE), 2):032x}"


def restamp(text: bytes, seconds: float) -> bytes:
    """Put another time into ``createdAt``, if it has JavaScript's form."""
    return _CREATED.sub(iso_time(seconds).encode("ascii"), text, count=1)
