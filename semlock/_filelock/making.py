"""Making lock objects: options are checked once, and a class may have one object for each path.

Here is what the options of filelock's locks may be, and what the errors say.
"""

from __future__ import annotations

import math
import os
from _thread import TIMEOUT_MAX, RLock
from abc import ABCMeta

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


_INIT_NAMES: dict[Any, tuple[frozenset[str], bool]] = {}


class FileLockMeta(ABCMeta):
    """Checks the options of a new lock, passes on those of its class, and finds singletons."""

    # What a class knows of itself.
    _lifetime_supported: bool
    _preserve_lock_file_supported: bool
    _on_acquired_supported: bool
    _singletons: Any = None
    _making: Any = None
    _frames = 0  # between the caller and what warns, besides those of this class

    def __init__(cls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        cls._singletons = None
        cls._making = RLock()

    def _give(
        cls,
        lock_file: Any,
        timeout: float = -1,
        mode: int = UNSET_MODE,
        *arguments: Any,
        **given: Any,
    ) -> Any:
        """Make a lock object, or give the one that exists for this path."""
        if arguments:
            if len(arguments) > 1 or "thread_local" in given:
                raise TypeError(
                    f"{cls.__name__}() takes a path, timeout, mode and thread_local by position; "
                    "name the other options"
                )
            given["thread_local"] = arguments[0]
        given["timeout"], given["mode"] = timeout, mode
        cls._check(given)
        options = cls._accepted(given)
        if not given.get("is_singleton", False):
            return super().__call__(lock_file, **options)
        return cls._singleton(lock_file, given, options)

    if (
        not TYPE_CHECKING
    ):  # which reads __init__ and not this, so that the types are the class's
        __call__ = _give

    def _defaults(cls) -> dict[str, Any]:
        """Give the options of this kind of lock and their defaults."""
        return DEFAULTS

    def _check(cls, given: dict[str, Any]) -> None:
        """Check the options, before there is an object."""
        name = cls.__name__
        if type(given["timeout"]) is not int or given["timeout"] != -1:
            given["timeout"] = seconds("timeout", given["timeout"])
        if type(given["mode"]) is not int or given["mode"] != UNSET_MODE:
            checked_mode(given["mode"], name)
        if len(given) == 2:
            return
        if "lifetime" in given:
            given["lifetime"] = cls.usable_lifetime(
                checked_lifetime(given["lifetime"]), 4 + cls._frames
            )
        if "poll_interval" in given:
            given["poll_interval"] = checked_interval(given["poll_interval"])
        if "blocking" in given:
            checked_blocking(given["blocking"])
        if "context_error_policy" in given:
            checked_word(
                "context_error_policy",
                given["context_error_policy"],
                ("chain", "group"),
                "'chain' or 'group'",
            )
        if "close_error_policy" in given:
            checked_word(
                "close_error_policy",
                given["close_error_policy"],
                ("default", "raise", "suppress"),
                "'default', 'raise', or 'suppress'",
            )
        if given.get("preserve_lock_file") and not cls._preserve_lock_file_supported:
            raise ValueError(
                f"preserve_lock_file=True is not supported by {name}: it is released by removing "
                "its file"
            )
        if given.get("on_acquired") is not None and not cls._on_acquired_supported:
            raise ValueError(
                f"on_acquired is not supported by {name}: it has no descriptor that a program may "
                "write to"
            )

    def usable_lifetime(cls, lifetime: float | None, depth: int) -> float | None:
        """Warn of a lifetime: it means nothing to the kernel, and lets a second holder in."""
        if lifetime is None:
            return None
        from warnings import warn  # noqa: PLC0415 - for those who give one

        from semlock._filelock.reporting import SoftFileLockLifetimeWarning  # noqa: PLC0415

        if not cls._lifetime_supported:
            warn(
                f"lifetime is ignored for {cls.__name__}: a native OS lock has no age, and ends "
                "with its holder; only SoftFileLock supports lifetime-based expiry",
                stacklevel=depth,
            )
            return None
        if getattr(cls, "_is_soft", False):
            warn(
                f"{cls.__name__}(lifetime=...) takes the lock from a live holder by its age, so "
                "that two may hold it: use semlock.Lock with heartbeat= for expiry",
                SoftFileLockLifetimeWarning,
                stacklevel=depth,
            )
        return lifetime

    def _accepted(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Leave out what the class does not accept, as long as it has its default."""
        names, all_accepted = _names_of(cls.__init__)  # type: ignore[misc]
        if all_accepted:
            return {**cls._defaults(), **given}
        defaults = cls._defaults()
        refused = sorted(
            name
            for name, value in given.items()
            if name not in names and (name not in defaults or value != defaults[name])
        )
        if refused:
            raise TypeError(
                f"{cls.__name__} does not support non-default lock options: {', '.join(refused)}"
            )
        return {name: value for name, value in given.items() if name in names}

    # ------------------------------------------------------------------ one object for each path

    def _singleton(cls, lock_file: Any, given: dict[str, Any], options: dict[str, Any]) -> Any:
        key = canonical(lock_file)
        with cls._making:
            if cls._singletons is None:
                from weakref import WeakValueDictionary  # noqa: PLC0415 - for singletons only

                cls._singletons = os.getpid(), WeakValueDictionary()
            pid, known = cls._singletons
            if pid != os.getpid():  # what the parent had is its own
                known.clear()
                cls._singletons = os.getpid(), known
            found = known.get(key)
            # A relative path may lead elsewhere by now, unless it is held.
            if found is None or canonical(found._lock_path) != key:  # noqa: SLF001
                found = super().__call__(lock_file, **options)
                known[key] = found
                return found
        cls._compare(found, given)
        return found

    def _compare(cls, found: Any, given: dict[str, Any]) -> None:
        """Refuse to give an object that was made with other options."""
        wanted = {**cls._defaults(), **given}
        different = {}
        for name, value in wanted.items():
            if name in ("is_singleton", "on_acquired") or name not in cls._defaults():
                continue
            set_to = found.is_thread_local() if name == "thread_local" else getattr(found, name)
            if name == "mode" and not found.has_explicit_mode:
                set_to = UNSET_MODE
            same = same_wait(value, set_to) if name == "timeout" else value == set_to
            if not same:
                different[name] = str(value), str(set_to)
        own = {name: value for name, value in given.items() if name not in cls._defaults()}
        different.update(found._singleton_extra_mismatches(own))  # noqa: SLF001 - its subclasses' hook
        if wanted.get("on_acquired") is not found.on_acquired:
            different["on_acquired"] = str(wanted.get("on_acquired")), str(found.on_acquired)
        if different:
            lines = (
                f"\n\t{name} (existing lock has {was} but {value} was passed)"
                for name, (value, was) in different.items()
            )
            raise ValueError(
                "Singleton lock instances cannot be initialized with differing arguments"
                "\nNon-matching arguments: " + "".join(lines)
            )


def _names_of(function: Any) -> tuple[frozenset[str], bool]:
    """Give the names of a function's parameters, and whether it takes any others too."""
    known = _INIT_NAMES.get(function)
    if known is not None:
        return known
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__"):
        import inspect  # noqa: PLC0415 - for what is no plain function

        parameters = inspect.signature(function).parameters.values()
        found = (
            frozenset(
                p.name
                for p in parameters
                if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            ),
            any(p.kind is p.VAR_KEYWORD for p in parameters),
        )
    else:
        first = code.co_posonlyargcount
        last = code.co_argcount + code.co_kwonlyargcount
        found = frozenset(code.co_varnames[first:last]), bool(code.co_flags & 0x08)
    if function.__module__.startswith("semlock."):
        _INIT_NAMES[function] = found  # classes of users may come and go
    return found


def canonical(path: Any) -> str:
    """Give one name for all spellings of a path; a link as its last part stays what it is."""
    head, name = os.path.split(os.fspath(path))
    return os.path.join(os.path.realpath(head or os.curdir), name)
