"""Lock systems as values: how the record of a lock is written and read, and when it is stale.

One table lists the systems that this package knows.  The library, the command, the cleaning and
the tests read it.  A system of your own is a value too::

    from semlock import systems

    INI = systems.System("ini", compose=compose, decode=decode)

    with INI.lock("build.lock", timeout=5):
        ...

``compose`` gets a ``LockInfo`` with the values to write and returns bytes.  ``decode`` gets bytes
and returns a ``LockInfo``, or raises ``LockRecordError``.  The command takes such a system by its
place: ``semlock status --dialect mypackage.locks:INI build.lock``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy
    from semlock._locks.lock import FileLock

    Decode: TypeAlias = Callable[[bytes], LockInfo]
    Compose: TypeAlias = Callable[[LockInfo], bytes]
    Claims: TypeAlias = Callable[[str, bytes, bool], LockInfo | None]
    Restamp: TypeAlias = Callable[[bytes, LockInfo, float], bytes | None]

__all__ = ["NAMES", "System", "find", "register"]

# The table: the name of each system, and the module whose ``SYSTEM`` it is.
_ROWS: dict[str, str] = {
    "semlock": "semlock._systems.system_lock",
    "sema": "semlock.sema",
    "semats": "semlock.semats",
    "feature": "semlock.feature",
    "sidecar": "semlock.sidecar",
    "task": "semlock.task",
}
NAMES = tuple(_ROWS)
_found: dict[str, System] = {}


# What each system has, if only by default.
_NEEDED = ("decode", "stale", "resolve", "recognises", "owns_path", "refresh")


class System:
    """One lock system.

    :name:        what users call it
    :decode:      reads a record: a ``LockInfo``; ``LockRecordError`` if it is none
    :compose:     writes a record of what a ``LockInfo`` says.  Where that has no ``token``
                  and ``witness`` the record has no room for them, and a dead holder can't be
                  proven dead by the kernel's lock.  Not needed if ``lock`` is given
    :stale:       gives the policy of its locks; ``None`` for proof of death.  With ``stale`` among
                  ``options`` it takes the age in seconds, ``None`` for never
    :fails_closed:  whether a stale lock fails an acquisition, and is not taken.  ``clean``
                  removes it then only if its process is gone too
    :resolve:     applies the system's rule for paths
    :claims:      tells of a path, its bytes, and whether the user named this file, whether
                  ``clean`` may remove it by this system's rules: what the record says, or
                  ``None``.  By default bytes that are exactly what ``compose`` writes,
                  under the name of a lock
    :recognises:  whether a record is this system's, where no system was named; by default
                  it is if ``decode`` can read it
    :weak:        whether much that is no lock looks like its records.  Then the other
                  systems are asked first, and the file's name must say that it is a lock
    :owns_path:   whether a path is one that only this system uses
    :restamp:     gives a record's bytes with another time; ``None`` if that is impossible
    :orphan:      judges temporary files of the system's other programs
    :guard:       the ending of directories by which they guard a lock's removal
    :refresh:     for a lock that others judge by age: seconds between two refreshes
    :lock:        makes a lock from the path of its file and the lock's options
    :async_lock:  makes the form of it that is for tasks
    :options:     what ``lock`` takes besides, of what the command can be told: ``stale``
                  (seconds, 0 for never), and who owns the lock for how long
    :audit:       is told what the command has done with a lock: its path, the word for that,
                  and what its record said
    """

    __slots__ = (
        "_async_lock", "_claims", "_lock", "_restamp", "audit", "compose", "decode",
        "fails_closed", "guard", "name", "options", "orphan", "owns_path", "recognises",
        "refresh", "resolve", "stale", "weak",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        decode: Decode,
        compose: Compose | None = None,
        stale: Callable[..., Policy | None] = lambda: None,
        fails_closed: bool = False,
        resolve: Callable[[StrPath], StrPath] = lambda path: path,
        claims: Claims | None = None,
        recognises: Callable[[LockInfo], bool] = lambda info: True,  # noqa: ARG005
        weak: bool = False,
        owns_path: Callable[[str], bool] = lambda path: False,  # noqa: ARG005
        restamp: Restamp | None = None,
        orphan: Callable[[LockStatus], str | None] | None = None,
        guard: str = "",
        refresh: Callable[[Any], float | None] = lambda lock: None,  # noqa: ARG005
        lock: Callable[..., FileLock] | None = None,
        options: tuple[str, ...] = (),
        audit: Callable[[str, str, LockInfo | None], object] | None = None,
        async_lock: Callable[..., Any] | None = None,
    ) -> None:
        if (compose is None) == (lock is None):
            raise TypeError("a lock system has either compose or lock")
        for text, what in ((name, "name"), (guard, "guard")):
            if not isinstance(text, str) or not (text or what == "guard"):
                raise TypeError(f"the {what} of a lock system is a text, not {text!r:.60}")
        functions = {
            "decode": decode, "compose": compose, "stale": stale, "resolve": resolve,
            "claims": claims, "recognises": recognises, "owns_path": owns_path,
            "restamp": restamp, "orphan": orphan, "refresh": refresh, "lock": lock,
            "audit": audit, "async_lock": async_lock,
        }  # fmt: skip
        for what, function in functions.items():
            if not callable(function) and (function is not None or what in _NEEDED):
                raise TypeError(f"{what} of a lock system is a function, not {function!r:.60}")
        self.name = name
        self.decode = decode if compose is None else _giving_info(decode, name)
        self.compose = compose
        self.stale = stale
        self.fails_closed = fails_closed
        self.resolve = resolve
        self._claims = claims
        self.recognises = recognises
        self.weak = weak
        self.owns_path = owns_path
        self._restamp = restamp
        self.orphan = orphan
        self.guard = guard
        self.refresh = refresh
        self._lock = lock
        self.options = options
        self.audit = audit
        self._async_lock = async_lock

    def lock(self, path: StrPath, **options: Any) -> FileLock:
        """Make a lock of this system; the options are those of ``semlock.Lock``."""
        if self._lock is not None:
            return self._lock(path, **options)
        from semlock._systems.system_lock import SystemLock  # noqa: PLC0415 - for those who define one

        return SystemLock(self, path, **options)

    def async_lock(self, path: StrPath, **options: Any) -> Any:
        """Make a lock of this system for tasks, which is used with ``async with``."""
        if self._async_lock is not None:
            return self._async_lock(path, **options)
        from semlock._systems.async_forms import AsyncSystemLock  # noqa: PLC0415 - asyncio, for tasks

        return AsyncSystemLock(self, path, **options)

    def status(self, path: StrPath, policy: Policy | None = None) -> LockStatus:
        """Say who holds the lock at a path, by this system's rules."""
        from semlock._core.status import status_by  # noqa: PLC0415 - the command's table reads this

        return status_by(
            self.resolve(path),
            self.decode,
            policy or self.stale(),
            is_foreign=self.name != "semlock",
        )

    def read(self, content: bytes) -> LockInfo | None:
        """Read a record; ``None`` if it is none of this system."""
        from semlock._core.errors import LockRecordError  # noqa: PLC0415 - for those who read

        try:
            return self.decode(content)
        except LockRecordError:
            return None

    def recognise(self, content: bytes) -> LockInfo | None:
        """Read a record whose system isn't known; ``None`` if it is another system's."""
        info = self.read(content)
        return info if info is not None and self.recognises(info) else None

    def claims(self, path: str, content: bytes, named: bool) -> LockInfo | None:
        """Say what a file's record says, if ``clean`` may remove it by this system's rules."""
        if self._claims is not None:
            return self._claims(path, content, named)
        from semlock._core.forms import is_lock_name  # noqa: PLC0415 - for those who clean

        info = self.read(content) if named or is_lock_name(path) else None
        whole = info is not None and self.compose is not None and self.compose(info) == content
        return info if whole else None

    def restamp(self, content: bytes, info: LockInfo, now: float) -> bytes | None:
        """Give a record with another time in the place of its own, and else unchanged.

        ``None`` if it has no time that can be replaced without changing its length.
        """
        text = None
        if self._restamp is not None:
            text = self._restamp(content, info, now)
        elif self.compose is not None and self.compose(info) == content:
            exact = isinstance(info.timestamp, float)
            text = self.compose(info.replace(timestamp=now if exact else int(now)))
        return text if text is not None and len(text) == len(content) else None

    def __repr__(self) -> str:
        return f"<System {self.name!r}>"


def _giving_info(decode: Decode, name: str) -> Decode:
    """Have a user's ``decode`` give a ``LockInfo`` or raise ``LockRecordError``."""
    from semlock._core.errors import LockRecordError  # noqa: PLC0415 - for those who define one
    from semlock._core.records import LockInfo  # noqa: PLC0415 - as above

    def read(content: bytes) -> LockInfo:
        info: object = decode(content)
        if info is None:
            raise LockRecordError(f"it is no record of {name}")
        if not isinstance(info, LockInfo):
            raise TypeError(
                f"decode of the lock system {name} gives {info!r:.60}, not a LockInfo"
            )
        return info

    return read


def later(module: str, name: str) -> Callable[..., Any]:
    """Make a function that imports its module only when it is called."""

    def call(*arguments: Any, **options: Any) -> Any:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(module), name)(*arguments, **options)

    return call


def for_tasks(module: str, **names: str) -> Callable[[str], object]:
    """Make a module's ``__getattr__``, which makes the forms for tasks on first use."""

    def getter(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module("semlock._systems.async_forms"), names[name])

    return getter


def register(system: System) -> System:
    """Add a system to this process's table, by its name.

    Records of unknown systems are then read by it too, before the systems of this package.
    """
    if not isinstance(system, System):
        raise TypeError(f"what is registered is a System, not {system!r:.60}")
    _found[system.name] = system
    return system


def known() -> list[str]:
    """List the names of all systems: registered ones and those of this package."""
    return [*(name for name in _found if name not in _ROWS), *_ROWS]


def find(name: str) -> System:
    """Give a system by its name or its place (``package.module:ATTRIBUTE``)."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a lock system is a text, not {name!r:.60}")
    system = _found.get(name)
    if system is not None:
        return system
    module, colon, attribute = name.partition(":")
    if not colon:
        module, attribute = _ROWS.get(name, ""), "SYSTEM"
    if not (module and attribute):
        raise ValueError(
            f"there is no lock system {name!r}: it is one of {', '.join(known())}, or the place "
            "of one of your own: package.module:NAME"
        )
    from importlib import import_module  # noqa: PLC0415 - each only where it is asked for

    found = getattr(import_module(module), attribute, None)
    if not isinstance(found, System):
        raise ValueError(f"{name} is {found!r:.60}, and no System")  # noqa: TRY004 - a word
    if not colon:
        _found[name] = found
    return found


def recognise(content: bytes) -> tuple[System, LockInfo]:
    """Find the system that can read a record, and what it says; else ``LockRecordError``."""
    weak = []
    for name in known():
        system = find(name)
        if system.weak:
            weak.append(system)
        elif (info := system.recognise(content)) is not None:
            return system, info
    for system in weak:
        if (info := system.recognise(content)) is not None:
            return system, info
    from semlock._core.errors import LockRecordError  # noqa: PLC0415 - for those who read

    raise LockRecordError("the content is no record of any lock system")


def by_path(path: str) -> System | None:
    """Find the system that uses such paths exclusively."""
    return next((s for s in map(find, known()) if s.owns_path(path)), None)
