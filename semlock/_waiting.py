"""Waiting for a lock to change hands.

This is the one seam between a lock that is held and the next try.  It may return early and
often: whoever waits tries again and judges again.  Time, sleep and chance are injected.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    # Gives the pauses of one wait, in seconds; when they are used up, the wait is over.
    Schedule: TypeAlias = Callable[[], Iterable[float]]

_FIRST = 0.0005
_LONGEST = 0.05
_GROWTH = 1.6


def chance() -> float:
    """Draw a number from 0 on and below 1."""
    # os.urandom and not the random module: importing that costs more than the wait.
    return int.from_bytes(os.urandom(2), "big") / 65536


def growing_pauses(chance: Callable[[], float] = chance) -> Iterable[float]:
    """Give pauses that grow, that never end, and that no two waiters share."""
    pause = _FIRST
    while True:
        yield pause * (0.5 + chance())
        pause = min(pause * _GROWTH, _LONGEST)


class Waiter:
    """One thread's wait for one lock."""

    __slots__ = ("_clock", "_deadline", "_pauses", "_sleep", "_start")

    def __init__(
        self,
        timeout: float | None,
        schedule: Schedule | None = None,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        # Looked up late, so that a test that replaces time.sleep reaches this too.
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        self._pauses = iter((schedule or growing_pauses)())
        self._start = self._clock()
        self._deadline = None if timeout is None else self._start + timeout

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""
        return self._clock() - self._start

    def pause(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over."""
        pause = next(self._pauses, None)
        if pause is None:
            return False
        if self._deadline is not None:
            left = self._deadline - self._clock()
            if left <= 0:
                return False
            pause = min(pause, left)
        self._sleep(pause)
        return True
