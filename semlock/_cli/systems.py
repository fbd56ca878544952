"""The lock systems for the command: the path of a lock file, and the rules that apply."""

from __future__ import annotations

from semlock import systems
from semlock._cli import AUTO, OWN, UsageError
from semlock._core import inside
from semlock._core.status import status_by

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._cli import Options
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy
    from semlock._locks.lock import FileLock
    from semlock.systems import System


class Eye:
    """Looks at lock files by the rules of one system, or of the one that it recognises."""

    __slots__ = ("_named", "_policy", "seen")

    def __init__(self, dialect: str | None, options: Options | None = None) -> None:
        self._named = None if dialect in (None, AUTO) else systems.find(dialect)
        # The system's own, if no age was asked for.
        self._policy = None
        if options is not None and options.stale is not None:
            self._policy = policy_of(options, self._named or systems.find(OWN))
        # The system of the last record; None if there was none.
        self.seen: System | None = self._named

    def look(self, path: str) -> LockStatus:
        """Look at a path."""
        if self._named is not None:
            return self._named.status(path, self._policy)
        self.seen = None
        return status_by(path, self._recognise)

    def watched(self, path: str) -> FileLock:
        """Give the lock object by which to wait for a path, by the system's rule for paths."""
        from semlock._locks.lock import Lock  # noqa: PLC0415 - for those who wait

        return Lock(path if self._named is None else self._named.resolve(path))

    def _recognise(self, content: bytes) -> LockInfo:
        self.seen = None
        self.seen, info = systems.recognise(content)
        return info


class KernelEye:
    """Looks at the kernel's locks on files, which are of no system."""

    seen: System | None = None

    def look(self, path: str) -> LockStatus:
        """Look at a path."""
        return self.watched(path).status()

    def watched(self, path: str) -> FileLock:
        """Give the lock object by which to wait for a path."""
        from semlock import KernelLock  # noqa: PLC0415 - for --kernel

        return KernelLock(path)


def eye_of(options: Options) -> Eye | KernelEye:
    """Give what looks at locks as a call asks for."""
    if not options.kernel:
        return Eye(options.dialect, options)
    if options.dialect not in (None, AUTO) or options.stale is not None:
        from semlock._cli.table import find  # noqa: PLC0415

        raise UsageError(
            "--kernel excludes --dialect and --stale: the kernel's locks are of no system",
            find(options.verb),
        )
    return KernelEye()


def chosen(path: str, dialect: str | None) -> System:
    """Choose the system of a lock to take: by what is at the path, or by its name."""
    if dialect != AUTO:
        return systems.find(dialect or OWN)
    eye = Eye(AUTO)
    if eye.look(path).state != "free" and eye.seen is not None:
        return eye.seen
    return systems.by_path(path) or systems.find(OWN)


def policy_of(options: Options, system: System) -> Policy | None:
    """Give a system's policy, with the age from the command line if there is one."""
    asked(options, system)
    return system.stale() if options.stale is None else system.stale(options.stale or None)


def of_systems(options: Options) -> dict[str, Any]:
    """Give what a call names of the options that only some systems have."""
    given = {
        "stale": options.stale,
        "owner": options.owner,
        "user": options.user,
        "session": options.session,
        "token": options.token_file,
        "ttl": options.ttl,
        "environment": options.environment,
        "purpose": options.purpose,
        "allow": options.allow or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def asked(options: Options, system: System) -> dict[str, Any]:
    """Give the options that only some systems have; ``UsageError`` for other systems."""
    more = of_systems(options)
    if not more:
        return more
    from semlock._cli.table import find  # noqa: PLC0415

    words = {"token": "--token-file"}
    wrong = next((name for name in more if name not in system.options), None)
    if wrong is not None:
        whose = "sema, semats, feature and sidecar" if wrong == "stale" else "task"
        raise UsageError(
            f"{words.get(wrong, '--' + wrong)} is for locks of {whose}, not of {system.name}: name "
            "the system with --dialect",
            find(options.verb),
        )
    texts = {"owner": options.owner, "user": options.user, "session": options.session}
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise UsageError(f"--{name} is a text that is not blank", find(options.verb))
    if options.owner is not None and {"user", "session", "token"} & more.keys():
        raise UsageError(
            "--owner excludes --user, --session and --token-file", find(options.verb)
        )
    if options.token_file is not None:
        if {"user", "session"} & more.keys():
            raise UsageError("--token-file excludes --user and --session", find(options.verb))
        more["token"] = _token_in(options.token_file)
    more.pop("allow", None)
    return more


def _token_in(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            token = file.read().strip()
    except UnicodeDecodeError:
        raise ValueError(f"{name} has no token in it: it is not UTF-8 text") from None
    if not token:
        raise ValueError(f"{name} has no token in it")
    return token


class Asked:
    """A system whose locks are made with the options that only it has, as ``asked`` gives them."""

    def __init__(self, system: System, more: dict[str, Any]) -> None:
        self._system = system
        self._more = more

    def lock(self, path: str, **options: Any) -> FileLock:
        """Make one of its locks."""
        return self._system.lock(path, **options, **self._more)


def tell_of_tag(options: Options, lock: FileLock, system: System) -> None:
    """Say that the tag isn't written if the record has no place for it."""
    if options.tag is not None and lock.tag is None and not options.quiet:
        from semlock._cli.output import say  # noqa: PLC0415 - hardly ever

        say(f"{lock.path}: a record of {system.name} has no place for a tag, so it has none")


def audit(system: System | None, path: str, operation: str, info: LockInfo | None) -> None:
    """Log what the command did with a lock that it doesn't hold."""
    if system is not None and system.audit is not None:
        system.audit(path, operation, info)


def make(
    path: str,
    system: System,
    *,
    tag: str | None,
    durability: str | None,
    make_dirs: bool = False,
    fair: bool = False,
    owner: Process | None = None,
    more: dict[str, Any] | None = None,
    guarded: bool = False,
) -> FileLock:
    """Make a system's lock, for this process or an owner.

    An owner's lock names the owner.  If it is guarded, this process keeps it until the release,
    and the owner inherits the descriptors (``inherited``).
    """
    more = dict(more or {})
    if fair:
        if system.name != OWN:
            raise ValueError(f"--fair is for semlock's own locks, not for {system.name}")
        more["fair"] = True
    if make_dirs:
        more["make_dirs"] = True
    if durability is not None:
        more["durability"] = durability
    lock = system.lock(path, tag=tag, **more)
    if owner is not None:
        inside.leave_to(lock, owner, guarded=guarded)
    return lock


def keep_fresh(lock: FileLock, system: System, stale: float | None) -> None:
    """Refresh a lock that others judge by age, as long as it is held.

    Commands that exclude each other are given the same ``--stale``, so it counts for the holder
    too: several refreshes come within it.
    """
    every = system.refresh(lock)
    if every is not None:
        if stale:
            every = min(every, stale / 3)
        from semlock._locks import heartbeat  # noqa: PLC0415 - a thread, for those who need it

        heartbeat.watch(lock, every)
