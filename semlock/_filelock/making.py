"""Making lock objects: options are checked once, and a class may have one object for each path."""

from __future__ import annotations

import os
from _thread import RLock
from abc import ABCMeta

from semlock._filelock import options as opt

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

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
        mode: int = opt.UNSET_MODE,
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
        return opt.DEFAULTS

    def _check(cls, given: dict[str, Any]) -> None:
        """Check the options, before there is an object."""
        name = cls.__name__
        if type(given["timeout"]) is not int or given["timeout"] != -1:
            given["timeout"] = opt.seconds("timeout", given["timeout"])
        if type(given["mode"]) is not int or given["mode"] != opt.UNSET_MODE:
            opt.checked_mode(given["mode"], name)
        if len(given) == 2:
            return
        if "lifetime" in given:
            given["lifetime"] = cls.usable_lifetime(
                opt.checked_lifetime(given["lifetime"]), 4 + cls._frames
            )
        if "poll_interval" in given:
            given["poll_interval"] = opt.checked_interval(given["poll_interval"])
        if "blocking" in given:
            opt.checked_blocking(given["blocking"])
        if "context_error_policy" in given:
            opt.checked_word(
                "context_error_policy",
                given["context_error_policy"],
                ("chain", "group"),
                "'chain' or 'group'",
            )
        if "close_error_policy" in given:
            opt.checked_word(
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

        from semlock._filelock.errors import SoftFileLockLifetimeWarning  # noqa: PLC0415

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
                set_to = opt.UNSET_MODE
            same = opt.same_wait(value, set_to) if name == "timeout" else value == set_to
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
