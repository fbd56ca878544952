"""semlock's own lock system: its row of the table."""

from __future__ import annotations

from semlock._core.records import decode_text, restamp_text
from semlock._locks.lock import Lock
from semlock.systems import System, later

SYSTEM = System(
    "semlock",
    decode=decode_text,
    # Records of sema and semats have the same form, but not all of these keys.
    recognises=lambda info: info.token is not None,
    claims=later("semlock._systems.claims", "own"),
    restamp=restamp_text,
    lock=Lock,
    async_lock=later("semlock._locks.async_lock", "AsyncLock"),
)
