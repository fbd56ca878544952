"""Waiting for a lock to change hands.

This is the one seam between a lock that is held and the next try.  It may return early and
often: whoever waits tries again and judges again.  Time, sleep and chance are injected.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST = 0.0005
_LONGEST = 0.05
_GROWTH = 1.6


def _chance() -> float:
    # os.urandom and not the random module: importing that costs more than the wait.
    return int.from_bytes(os.urandom(2), "big") / 65536


class Waiter:
    """One thread's wait for one lock: pauses that grow, and that no two waiters share."""

    __slots__ = ("_chance", "_clock", "_deadline", "_pause", "_sleep", "_start")

    def __init__(
        self,
        timeout: float | None,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        chance: Callable[[], float] = _chance,
    ) -> None:
        # Looked up late, so that a test that replaces time.sleep reaches this too.
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        self._chance = chance
        self._pause = _FIRST
        self._start = self._clock()
        self._deadline = None if timeout is None else self._start + timeout

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return self._clock() - self._start

    def pause(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over."""
        length = self._pause * (0.5 + self._chance())
        self._pause = min(self._pause * _GROWTH, _LONGEST)
        if self._deadline is not None:
            left = self._deadline - self._clock()
            if left <= 0:
                return False
            length = min(length, left)
        self._sleep(length)
        return True
