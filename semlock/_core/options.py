"""The options of all locks: the name, type, default and check of each.

``semlock.Lock`` says what each one means.  A class of locks takes all of them, those of a smaller
table, or all but those in its ``_refused_options``; what it is told goes through ``taken``.
"""

from __future__ import annotations

from semlock._core.capi import DURABILITY
from semlock._core.records import clean_tag

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal, TypeAlias, TypedDict

    from semlock._core.errors import LockLostError
    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy
    from semlock._waiting.waiter import Schedule

    Durability: TypeAlias = Literal["safe", "full", "data", "none"]
    HeldBy: TypeAlias = Literal["thread", "task", "object"]

else:

    class TypedDict:
        """Keeps the names and types, as ``typing.TypedDict`` does, without importing it."""

        def __init_subclass__(cls, **_: object) -> None:
            cls.__slots__ = ()


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


class AnyStore(TypedDict, total=False):
    """What a lock on any store can be told."""

    tag: str | None
    timeout: float | None
    reentrant: bool
    on_wait: Callable[[LockStatus, float], object] | None
    cancel_check: Callable[[], object] | None


class EngineOptions(AnyStore, total=False):
    """What a lock on a server can be told."""

    on_lost: Callable[[Any, LockLostError], object] | None


class AnyFile(AnyStore, total=False):
    """What a lock on a file can be told, also if that has no record."""

    mode: int
    exact_mode: bool
    make_dirs: bool
    held_by: HeldBy | None
    fair: bool


class KernelOptions(AnyFile, total=False):
    """What a kernel lock can be told."""

    retry: Schedule | None


class PlainOptions(AnyFile, EngineOptions, total=False):
    """What every lock file can be told, without ``retry``, which some take in another form too."""

    policy: Policy | None
    durability: Durability
    heartbeat: float | None


class LockOptions(PlainOptions, total=False):
    """What every lock file can be told."""

    retry: Schedule | None


# In the order in which a signature shows them.
DEFAULTS: LockOptions = {
    "tag": None,
    "timeout": None,
    "policy": None,
    "retry": None,
    "durability": "full",
    "mode": 0o644,
    "exact_mode": False,
    "make_dirs": False,
    "reentrant": False,
    "held_by": None,
    "fair": False,
    "heartbeat": None,
    "on_lost": None,
    "on_wait": None,
    "cancel_check": None,
}


def _durability(value: Any) -> Any:
    if not isinstance(value, str) or value not in DURABILITY:
        raise ValueError(f'durability is "safe", "full", "data" or "none", not {value!r}')
    return value


def _mode(value: Any) -> Any:
    if not isinstance(value, int) or not 0 <= value <= 0o777:
        raise ValueError(f"mode is a number from 0 to 0o777, such as 0o644, not {value!r}")
    return value


def _exact_mode(value: Any) -> Any:
    if not isinstance(value, bool):
        raise TypeError(f"exact_mode is True or False, not {value!r}; see mode")
    return value


_USUAL: Mapping[str, Any] = DEFAULTS

# They give the value to use.  A default is not checked.
_CHECKS: dict[str, Callable[[Any], Any]] = {
    "tag": clean_tag,
    "timeout": checked_timeout,
    "durability": _durability,
    "mode": _mode,
    "exact_mode": _exact_mode,
    "heartbeat": lambda value: checked_pause(value, "heartbeat"),
}
_FUNCTIONS = {
    "policy": "a policy is a function of a LockStatus",
    "retry": "a retry schedule is a function that gives pauses",
    "on_lost": "on_lost is a function",
    "on_wait": "on_wait is a function",
    "cancel_check": "cancel_check is a function",
}


def function_error(name: str, value: object) -> TypeError:
    """Refuse a value of an option that is a function."""
    return TypeError(f"{_FUNCTIONS[name]}, not {value!r}")


def refuse_unknown(lock: WithOptions, options: Mapping[str, object]) -> None:
    """Refuse an option that no lock has, or not this one, with the name of the class called."""
    kind = type(lock)
    for name in options:
        if name not in DEFAULTS:
            from semlock._core import explain  # noqa: PLC0415 - only for those who mistyped

            raise explain.unknown_option(kind.__name__, name, kind)
        if (why := kind._refused_options.get(name)) is not None:  # noqa: SLF001 - each class says it
            raise TypeError(f"{kind.__name__} has no {name}: {why}")


def taken(lock: WithOptions, options: Mapping[str, object]) -> LockOptions:
    """Check the options that a call names, and add the class's defaults of the others."""
    defaults = lock._defaults  # noqa: SLF001 - each class says it
    given: Any = {**defaults, **options}
    if len(given) != len(defaults) or not lock._refused_options.keys().isdisjoint(options):  # noqa: SLF001
        refuse_unknown(lock, options)
    for name in options:
        value = given[name]
        if value is _USUAL[name]:
            continue
        if name in _FUNCTIONS:
            if not callable(value):
                raise function_error(name, value)
        elif name in _CHECKS:
            given[name] = _CHECKS[name](value)
    return given  # type: ignore[no-any-return]


def or_else(options: Any, **usual: Any) -> None:
    """Add a class's own values of the options that a call doesn't name, or names as ``None``."""
    for name, value in usual.items():
        if options.get(name) is None:
            options[name] = value


def told_of(lock: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the options of the locks that another one is made of: a loss is told of that one."""
    on_lost = options.get("on_lost")
    if not callable(on_lost):
        return options
    return {**options, "on_lost": lambda _, error: on_lost(lock, error)}


def made_by(usual: Any, system: Any, *, for_tasks: bool) -> Any:
    """Give what makes the locks that another one is made of: their class, or their lock system."""
    if system is None:
        return usual
    make = getattr(system, "async_lock" if for_tasks else "lock", None)
    if make is None:
        raise TypeError(
            f"system is a lock system, such as semlock.systems.find('sema'), not {system!r:.60}"
        )
    return make


def names_of(*tables: type) -> dict[str, str]:
    """Give the options in some of the tables above, and their types as they are written there."""
    found: dict[str, str] = {}
    for table in tables:
        for part in reversed(table.__mro__):
            found.update(getattr(part, "__annotations__", {}))
    return found


def all_but(table: type, why: str, **other: str) -> dict[str, str]:
    """Refuse all options that are not in one of the tables above, some for another reason."""
    return {name: why for name in DEFAULTS if name not in names_of(table)} | other


class _Signature:
    """A class's ``__signature__``: that of its ``__init__``, with the names of the options."""

    def __get__(self, lock: Any, kind: Any) -> Any:
        if lock is not None:
            return None  # an object is called as a decorator
        from inspect import Parameter, signature  # noqa: PLC0415 - only for those who look

        own = signature(kind.__init__)
        _, *all_of_them = own.parameters.values()
        before = [each for each in all_of_them if each.kind != each.VAR_KEYWORD]
        if len(before) == len(all_of_them):
            return own.replace(parameters=before)
        types, known = names_of(LockOptions), {each.name for each in before}
        options = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
            for name, default in kind._defaults.items()  # noqa: SLF001 - each class says it
            if name not in kind._refused_options and name not in known  # noqa: SLF001
        ]
        return own.replace(parameters=[*before, *options])


class WithOptions:
    """What each class that takes options says of them."""

    __slots__ = ()

    # Those that a call doesn't name.
    _defaults: LockOptions = DEFAULTS
    # Those that the class does not take, and why.
    _refused_options: Mapping[str, str] = {}

    __signature__ = _Signature()
