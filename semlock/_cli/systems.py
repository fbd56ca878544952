"""The lock systems as the command sees them: a lock file's path, and whose rules count there."""

from __future__ import annotations

import os

from semlock._cli.table import AUTO, OWN
from semlock._errors import LockPathError, LockRecordError
from semlock._records import decode_text
from semlock._status import absolute, look_at

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._engine import BaseLock
    from semlock._identity import Process
    from semlock._policy import Policy
    from semlock._records import LockInfo
    from semlock._status import LockStatus

    Decode = Callable[[bytes], LockInfo]


class Recogniser:
    """Reads a record of any system, and remembers in ``name`` whose it was."""

    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name: str | None = None

    def __call__(self, content: bytes) -> LockInfo:
        """Read a record; ``LockRecordError`` if no system has written it."""
        self.name = None
        try:
            info = decode_text(content)
        except LockRecordError:
            pass
        else:
            # Sema's and semats' records are the same; ours have keys that theirs haven't.
            self.name = "sema" if info.token is None else OWN
            return info
        for name in ("feature", "task", "sidecar"):
            try:
                info = reader(name)[0](content)
            except LockRecordError:
                continue
            self.name = name
            return info
        raise LockRecordError("the content is no record of any lock system")


def reader(dialect: str) -> tuple[Decode, Policy | None]:
    """Give a system's way to read records, and its rule when a lock is stale."""
    if dialect == "sema":
        from semlock import sema  # noqa: PLC0415 - each only where it is asked for

        return sema.decode, sema.stale()
    if dialect == "semats":
        from semlock import semats  # noqa: PLC0415

        return semats.decode, semats.stale()
    if dialect == "feature":
        from semlock import feature  # noqa: PLC0415

        return feature.decode, feature.stale()
    if dialect == "sidecar":
        from semlock import _sidecar_record, _sidecar_terms  # noqa: PLC0415

        return _sidecar_record.decode, _sidecar_terms.Stale(_sidecar_terms.STALE)
    if dialect == "task":
        import time  # noqa: PLC0415

        from semlock import _task_reclaim, _task_records  # noqa: PLC0415

        return _task_records.decode, _task_reclaim.stale(time.time)
    return decode_text, None


def resolve(path: str, dialect: str) -> str:
    """Make a path absolute by a system's rule for paths."""
    if dialect == "semats":
        from semlock import semats  # noqa: PLC0415

        path = semats.resolve(path)
    return absolute(path)


class Eye:
    """Looks at lock files by the rules of one system, or of whichever it recognises."""

    __slots__ = ("_decode", "_name", "_policy", "_recogniser")

    def __init__(self, dialect: str | None) -> None:
        self._name = dialect or AUTO
        self._recogniser = Recogniser() if self._name == AUTO else None
        self._decode, self._policy = reader(self._name)
        if self._recogniser is not None:
            self._decode = self._recogniser

    def look(self, path: str) -> LockStatus:
        """Look at a path."""
        text = resolve(path, self._name)
        if self._recogniser is not None:
            self._recogniser.name = None
        return look_at(text, os.fsencode(text), self._decode, self._policy)

    @property
    def seen(self) -> str | None:
        """The system of the record that was looked at last; ``None`` if there was none."""
        return self._name if self._recogniser is None else self._recogniser.name

    @property
    def decode(self) -> Decode:
        """How records are read."""
        return self._decode

    @property
    def policy(self) -> Policy | None:
        """When a lock is stale."""
        return self._policy


def _feature_of(path: str) -> tuple[str, str]:
    """Find feature and base directory in the path of a feature lock."""
    rest, name = os.path.split(absolute(path))
    rest, feature = os.path.split(rest)
    base, specs = os.path.split(rest)
    if name != ".lock" or specs != "specs" or not feature:
        raise LockPathError(
            f"{path} is no feature lock, which is named <directory>/specs/<feature>/.lock",
            path=path,
        )
    return feature, base


def _by_path(path: str) -> str:
    """Choose the system for a lock that is to be taken: what is there, or is meant by its name."""
    eye = Eye(AUTO)
    if eye.look(path).state != "free" and eye.seen is not None:
        return eye.seen
    try:
        _feature_of(path)
    except LockPathError:
        return OWN
    return "feature"


# How often the lock of a system in which locks become stale by age is refreshed while `run`
# holds it: several times in that age.
_KEPT_FRESH = {"sema": 600.0, "semats": 600.0, "feature": 1200.0, "sidecar": 10.0}


def keep_fresh(lock: BaseLock, dialect: str) -> None:
    """Have a lock that others judge by age refreshed for as long as it is held."""
    every = _KEPT_FRESH.get(dialect)
    if dialect == "task":
        from semlock._task_owner import refresh_interval  # noqa: PLC0415 - JSON's systems only

        every = refresh_interval(lock.ttl)  # type: ignore[attr-defined]
    if every is not None:
        from semlock import _heartbeat  # noqa: PLC0415 - a thread, for those who need it

        _heartbeat.watch(lock, every)


def chosen(path: str, dialect: str | None) -> str:
    """Name the system of a lock that is to be taken."""
    if dialect == AUTO:
        return _by_path(path)
    return dialect or OWN


def make(
    path: str,
    name: str,
    *,
    tag: str | None,
    durability: str,
    fair: bool = False,
    owner: Process | None = None,
) -> BaseLock:
    """Make a lock of a system: one of this process, or one that is left to its owner."""
    kind, place, more = _kinds(name, path, tag, owner)
    if fair:
        if name != OWN:
            raise ValueError(f"--fair is for semlock's own locks, not for {name}")
        more["fair"] = True
    if owner is None:
        lock: BaseLock = kind(place, durability=durability, **more)
        return lock
    if name == "sidecar":
        raise ValueError("a sidecar lock needs a holder that runs: use semlock run")

    class Left(kind):  # type: ignore[misc, valid-type]
        """A lock that outlives this process: its record names the owner."""

        __slots__ = ()

        def _compose(self, _owner: Process | None) -> Any:
            return super()._compose(owner)

    left: BaseLock = Left(place, durability=durability, **more)
    return left


def _kinds(
    name: str, path: str, tag: str | None, owner: Process | None
) -> tuple[Any, str, dict[str, Any]]:
    """Give a system's lock class, what its first argument is, and what else it takes."""
    if name == OWN:
        from semlock._lock import Lock  # noqa: PLC0415 - each only where it is asked for

        return Lock, path, {"tag": tag}
    if name == "sema":
        from semlock import sema  # noqa: PLC0415

        return sema.Semaphore, path, {"tag": tag}
    if name == "semats":
        from semlock import semats  # noqa: PLC0415

        return semats.Semaphore, path, {"tag": tag}
    if name == "feature":
        from semlock import feature  # noqa: PLC0415

        which, base = _feature_of(path)
        return feature.FeatureLock, which, {"gsd_dir": base}
    if name == "sidecar":
        from semlock import sidecar  # noqa: PLC0415

        target = path.removesuffix(".lock")
        return sidecar.SidecarLock, target, {"lock_path": path}
    from semlock import task  # noqa: PLC0415

    who = task.owner_for()
    if owner is not None:
        who = task.LockOwner.from_string(f"pid-{owner.pid}@{owner.host or 'unknown-host'}")
    return task.TaskLock, path, {"owner": who}


def restamped(name: str | None, content: bytes, info: LockInfo, now: float) -> bytes | None:
    """Give a record with another time in the place of its own, and else unchanged.

    ``None`` if it has no time that can be replaced without changing its length.
    """
    import re  # noqa: PLC0415 - for those who refresh

    from semlock._json_records import iso_time  # noqa: PLC0415

    seconds = b"%d" % int(now)
    if name == "feature":
        pid, _, time = content.partition(b":")
        _, dot, fraction = time.strip().partition(b".")
        text = pid + b":" + seconds + dot + b"0" * len(fraction)
    elif name == "sidecar":
        from semlock._sidecar_record import restamp  # noqa: PLC0415

        text = restamp(content, int(now))
    elif name == "task":
        since = (info.payload or {}).get("since")
        new = iso_time(now) if isinstance(since, str) else str(int(now * 1000))
        pattern = rb'("since"\s*:\s*"?)' + re.escape(str(since).encode()) + rb'(?="|[\s,}])'
        text = re.sub(pattern, rb"\g<1>" + new.encode(), content, count=1)
    else:
        # Of a key that comes twice the last counts.
        before, key, rest = content.rpartition(b"timestamp=")
        match = re.match(rb"[0-9]+", rest)
        if not key or match is None:
            return None
        text = before + key + seconds + rest[match.end() :]
    return text if len(text) == len(content) else None
