"""The options of filelock's locks: what they may be, and what the errors say."""

from __future__ import annotations

import math
from _thread import TIMEOUT_MAX

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias, TypedDict

    ContextErrorPolicy: TypeAlias = Literal["chain", "group"]
    CloseErrorPolicy: TypeAlias = Literal["default", "raise", "suppress"]

    class LockOptions(TypedDict, total=False):
        """What the constructors of the locks take besides the path."""

        timeout: float
        mode: int
        thread_local: bool
        blocking: bool
        is_singleton: bool
        poll_interval: float
        lifetime: float | None
        context_error_policy: ContextErrorPolicy
        close_error_policy: CloseErrorPolicy
        fallback_to_soft: bool
        preserve_lock_file: bool
        on_acquired: Callable[[int], None] | None

else:
    ContextErrorPolicy = CloseErrorPolicy = str
    LockOptions = dict


class Wait:
    """What one acquire was told about waiting; ``limit`` is in seconds, negative for none."""

    __slots__ = ("blocking", "cancel_check", "interval", "limit")

    def __init__(
        self,
        limit: float,
        blocking: bool,
        interval: float,
        cancel_check: Callable[[], bool] | None,
    ) -> None:
        self.limit = limit
        self.blocking = blocking
        self.interval = interval
        self.cancel_check = cancel_check

    def is_cancelled(self) -> bool:
        """Ask the caller's function whether the wait shall end."""
        return self.cancel_check is not None and self.cancel_check()


# The value of ``mode`` for: as the umask and the directory's ACL say.
UNSET_MODE = -1

DEFAULTS: dict[str, Any] = {
    "timeout": -1,
    "mode": UNSET_MODE,
    "thread_local": True,
    "blocking": True,
    "is_singleton": False,
    "poll_interval": 0.05,
    "lifetime": None,
    "context_error_policy": "chain",
    "close_error_policy": "default",
    "fallback_to_soft": True,
    "preserve_lock_file": False,
    "on_acquired": None,
}


def seconds(name: str, value: Any) -> float:
    """Give a number of seconds as a float; ``TypeError`` or ``ValueError`` if it is none."""
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    if kind is not int:
        from decimal import Decimal  # noqa: PLC0415 - most numbers are int or float
        from numbers import Real  # noqa: PLC0415

        if kind is bool or not isinstance(value, (Real, Decimal)):
            raise TypeError(f"{name} must be a number of seconds, not {kind.__name__}")
        if isinstance(value, Decimal) and value.is_snan():
            return math.nan
    try:
        given = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large to be a number of seconds: {value!r}") from None
    # A negative fraction may be rounded to -0.0, and would then mean one try instead of no limit.
    return -5e-324 if given == 0 and value < 0 else given


def wait_limit(timeout: float, *, blocking: bool) -> float:
    """Check the timeout of one call; -1 for no limit."""
    if math.isnan(timeout) and blocking:
        raise ValueError("timeout must be a number of seconds, not nan")
    return timeout if 0 <= timeout < math.inf else -1


def checked_interval(value: Any) -> float:
    """Check a poll interval."""
    given = seconds("poll_interval", value)
    if not 0 <= given < math.inf:
        raise ValueError(f"poll_interval must be finite and non-negative, not {given!r}")
    if given > TIMEOUT_MAX:
        raise ValueError(
            f"poll_interval must not exceed threading.TIMEOUT_MAX ({TIMEOUT_MAX}), got {given!r}"
        )
    return given


def checked_blocking(value: Any) -> bool:
    """Refuse anything but a bool: the text "false" would wait."""
    if type(value) is not bool:
        raise TypeError(f"blocking must be a bool, not {type(value).__name__}")
    return value


def checked_mode(mode: Any, kind: str) -> int:
    """Check file permissions."""
    if isinstance(mode, bool) or not isinstance(mode, int):
        raise TypeError(f"mode must be an int, not {type(mode).__name__}")
    if mode != UNSET_MODE:
        if not 0 <= mode <= 0o777:
            raise ValueError(f"mode={mode:#o} must be within 0o000-0o777 for {kind}")
        if ~mode & 0o600:
            raise ValueError(f"mode={mode:#o} must grant the owner read and write for {kind}")
    return mode


def checked_word(name: str, value: Any, words: tuple[str, ...], listed: str) -> Any:
    """Check an option that is one of some words."""
    if value not in words:
        raise ValueError(f"{name} must be {listed}, got {value!r}")
    return value


def checked_lifetime(value: Any) -> float | None:
    """Check a lifetime; an int stays one, whatever its size."""
    if value is None:
        return None
    given = value if type(value) is int else seconds("lifetime", value)
    if given < 0 or not (isinstance(given, int) or math.isfinite(given)):
        raise ValueError(f"lifetime must be finite and non-negative, not {given!r}")
    return given


def same_wait(one: float, other: float) -> bool:
    """Tell whether two timeouts mean the same."""

    def meaning(timeout: float) -> object:
        if math.isnan(timeout):
            return "nan"
        return timeout if 0 <= timeout < math.inf else -1

    return meaning(one) == meaning(other)
