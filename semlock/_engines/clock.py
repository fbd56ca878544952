"""The clock of leases: it goes on while the machine sleeps, as the engine's does."""

from __future__ import annotations

import time

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

_time: Any = time
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Give the seconds since some time in the past."""
    seconds: float = time.monotonic() if _BOOTTIME is None else _time.clock_gettime(_BOOTTIME)
    return seconds
