"""What is found under a name of an engine: the entry that holds, as a status shows it."""

from __future__ import annotations

from semlock._core.identity import ALIVE
from semlock._core.records import decode_text
from semlock._core.status import LockStatus

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Verdict
    from semlock._core.records import LockInfo
    from semlock._engines.engine import Entry


class Found:
    """One entry that holds: an ``Instance``."""

    __slots__ = (
        "content",
        "ctime_ns",
        "entry",
        "error",
        "key",
        "unfinished",
        "witnessed",
        "written_at",
    )

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.key = (entry.fence,)
        self.content = entry.record
        self.error = 0
        self.unfinished = self.witnessed = False
        self.written_at = 0.0
        self.ctime_ns = 0

    def evidence(self, info: LockInfo | None) -> tuple[Verdict, str]:
        """Say how it is known that the holder lives: by its lease or its connection."""
        del info
        left = self.entry.left
        if left is None:
            return ALIVE, "its connection is open"
        return ALIVE, f"its lease lasts {max(0.0, left):.1f} s more unless it is renewed"

    def keeper(self, path: str) -> str | None:
        """Name no user: all that may use the engine may remove."""
        del path
        return None


def status_of(path: str, entry: Entry | None) -> LockStatus:
    """Describe an entry that holds, or that none does."""
    if entry is None:
        return LockStatus(path, None, None)
    found: Any = Found(entry)
    try:
        info = decode_text(entry.record)
    except ValueError:
        info = None
    if info is not None and info.timestamp is not None:
        found.written_at = info.timestamp
        found.ctime_ns = int(info.timestamp * 1e9)
    return LockStatus(path, found, info)
