"""The text of semlock's own records, exactly: a whole one, or the part that a kill can leave.

Reading is lenient, because a lock in any form must be respected.  Removing is strict: the content
must be exactly one record, or the beginning of one.  What the other lock systems write is known to
``semlock/_systems/claims.py``.
"""

from __future__ import annotations

import re

from semlock._core.records import TEXT_KEYS

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Literal

# Names of locks and of no other files; a slot has a number behind it.
_LOCK_NAME = re.compile(r".*\.(lock|lck|sem)(\.[0-9]+)?\Z", re.DOTALL)

LINE = rb"[^\x00-\x1f\x7f]*"
NUMBER = rb"[0-9]{1,20}"
WITNESS = rb"kept|left|none|over"
_VALUES = {
    "pid": rb"[1-9][0-9]{0,9}", "timestamp": rb"[0-9]{10}", "start": NUMBER,
    "pidns": NUMBER, "timens": NUMBER, "token": rb"[0-9a-f]{32}",
    "witness": WITNESS,
}  # fmt: skip
_LINES = {
    key: re.compile(b"%s=(?:%s)" % (key.encode(), _VALUES.get(key, LINE))) for key in TEXT_KEYS
}
_REQUIRED = ("pid", "timestamp", "token", "witness")

# A record is written by one call; a kill can cut it only between two pages.
PAGE = 4096


def is_lock_name(name: str) -> bool:
    """Tell whether a name is used for locks only."""
    return _LOCK_NAME.match(name) is not None


def own_text(content: bytes) -> Literal["whole", "part"] | None:
    """Compare with what ``encode_text`` writes: the whole, a part, or neither."""
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


def is_begun(content: bytes) -> bool:
    """Tell whether a kill can leave this of an unfinished record of semlock."""
    if content and len(content) % PAGE == 0 and content.startswith(b'{\n  "'):
        return content.rfind(b"\n}") == -1
    return own_text(content) == "part"


def is_ticket(content: bytes) -> bool:
    """Tell whether this may be in a ticket: its owner's record, or a part of it."""
    return own_text(content) is not None
