"""Checking and limiting the numbers of seconds that users give."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

# Longer times, infinity too, become this: 31 years, which fits into the core's nanoseconds and the
# timers of every event loop.
FOREVER = 1e9

# How long to wait for one that keeps the lock itself locked, which others do for microseconds.
GUARD_PATIENCE = 5.0


def checked_timeout(timeout: Any) -> float:
    """Give the seconds of a timeout, at most ``FOREVER``."""
    if type(timeout) is float and 0 <= timeout <= FOREVER:
        return timeout
    seconds = _number(timeout)
    if seconds is None or not seconds >= 0:
        raise ValueError(
            f"timeout is None or a number of seconds from 0 on, not {timeout!r:.60}"
        )
    return min(seconds, FOREVER)


def checked_pause(pause: Any, what: str) -> float:
    """Give the seconds between two events: more than 0, at most ``FOREVER``."""
    seconds = _number(pause)
    if seconds is None or not seconds > 0:
        raise ValueError(f"{what} is a number of seconds above 0, not {pause!r:.60}")
    return min(seconds, FOREVER)


def checked_age(age: Any, what: str) -> float:
    """Give the seconds of an age, which may be infinite, as it is only compared."""
    if type(age) is float and age >= 0:
        return age
    seconds = _number(age)
    if seconds is None or not seconds >= 0:
        raise ValueError(f"{what} a number of seconds from 0 on, not {age!r:.60}")
    return seconds


def saturated(pause: float) -> float:
    """Give a pause of a user's schedule, from 0 to ``FOREVER``."""
    return min(max(float(pause), 0.0), FOREVER)


def _number(value: Any) -> float | None:
    """Give a real number of any type as a float, infinite if it is too large."""
    if type(value) is int and abs(value) <= FOREVER:
        return value
    # True as one second is hardly meant.
    if isinstance(value, bool) or not hasattr(type(value), "__float__"):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else None
    except (TypeError, ValueError):
        return None  # an array with several elements, a signalling Decimal
