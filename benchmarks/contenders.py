"""Who runs: semlock, the C loops, and the other libraries as far as they are installed.

Every contender does what its own documentation shows, with its default options.  Only what
would compare different things is set: the durability of semlock, and "don't wait" for tries.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

import semlock
from benchmarks.measuring import FLOOR, Contender
from semlock._core import capi

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from benchmarks.floor import Floor
    from benchmarks.measuring import Loop

# Each peer: the module it comes in, its class, how to try once without waiting, and how it
# says that somebody else holds the lock.
_PEERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "FileLock": ("filelock", "FileLock", {"timeout": 0}, "Timeout"),
    "SoftFileLock": ("filelock", "SoftFileLock", {"timeout": 0}, "Timeout"),
    "fasteners": ("fasteners", "InterProcessLock", {"blocking": False}, ""),
    "portalocker": ("portalocker", "Lock", {"fail_when_locked": True}, "AlreadyLocked"),
}

# semlock's locks for those who come from there: the kernel's lock on a file that stays.  Neither
# they nor filelock write or sync anything.
_KERNEL = {
    "kernel": ("semlock", "KernelLock"),
    "own FileLock": ("semlock.filelock", "FileLock"),
}

_KEEP = capi.POOL.keep

MODULES = ("filelock", "fasteners", "portalocker")


def installed() -> list[str]:
    """Name the peers' modules that can be imported here."""
    return [name for name in MODULES if importlib.util.find_spec(name) is not None]


def peers() -> list[str]:
    """Name the peers that can take part."""
    modules = installed()
    return [key for key, (module, *_) in _PEERS.items() if module in modules]


def _make(key: str) -> Callable[..., Any]:
    module, name, _, _ = _PEERS[key]
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _label(key: str) -> str:
    module, name, _, _ = _PEERS[key]
    return f"{module}.{name}"


def _reused(lock: Any) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations):
            with lock:
                pass
        return perf_counter_ns() - start

    return run


def _reused_by_name(lock: semlock.Lock) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations):
            lock.acquire()
            lock.release()
        return perf_counter_ns() - start

    return run


def _new(make: Callable[..., Any], path: str, **options: Any) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations):
            with make(path, **options):
                pass
        return perf_counter_ns() - start

    return run


class Places:
    """A directory of its own for each contender, so that none meets another's files."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._count = 0

    def path(self) -> str:
        """Give a path for a lock where nobody else is."""
        self._count += 1
        directory = os.path.join(self._root, f"{self._count:03}")
        os.mkdir(directory)
        return os.path.join(directory, "a.lock")

    def paths(self, count: int) -> list[str]:
        """Give the paths of many locks in one directory."""
        directory = os.path.dirname(self.path())
        return [os.path.join(directory, f"{i:04}.lock") for i in range(count)]


def _keep_nothing() -> None:
    capi.POOL.keep = 0


def _keep_again() -> None:
    capi.POOL.keep = _KEEP


def pairs(floor: Floor, places: Places, durability: Any) -> list[Contender]:
    """Acquire and release: a lock that is used again, and a new one each time."""
    synced = durability not in (
        "none",
        "safe",
    )  # "safe" syncs nothing where a boot mark is kept
    suffix = "_synced" if synced else ""
    sync = " + fsync" if synced else ""
    reused = semlock.Lock(places.path(), durability=durability)
    by_name = semlock.Lock(places.path(), durability=durability)
    found = [
        Contender(
            FLOOR,
            f"C: open(O_EXCL) + write{sync} + close + unlink",
            "floor",
            floor.loop(f"plain{suffix}", [places.path()]),
        ),
        Contender(
            "c kept",
            "C: the system calls of semlock, Lock used again",
            "c",
            floor.kept_loop(f"kept{suffix}", places.path()),
        ),
        Contender(
            "c fresh",
            "C: the system calls of semlock, nothing kept",
            "c",
            floor.loop(f"fresh{suffix}", [places.path()]),
        ),
        Contender("reused", "semlock, Lock used again", "semlock", _reused(reused)),
        Contender(
            "by name",
            "semlock, used again, acquire() and release()",
            "semlock",
            _reused_by_name(by_name),
        ),
        Contender(
            "new",
            "semlock, new Lock each time",
            "semlock",
            _new(semlock.Lock, places.path(), durability=durability),
        ),
        Contender(
            "first",
            "semlock, new Lock each time, nothing kept",
            "semlock",
            _new(semlock.Lock, places.path(), durability=durability),
            before=_keep_nothing,
            after=_keep_again,
        ),
    ]
    if not synced:  # the peers never sync, which would compare different things
        for key, (module, name) in _KERNEL.items():
            make, label = getattr(importlib.import_module(module), name), f"{module}.{name}"
            found += [
                Contender(key, f"{label}, used again", "semlock", _reused(make(places.path()))),
                Contender(
                    f"new {key}",
                    f"{label}, new each time",
                    "semlock",
                    _new(make, places.path()),
                ),
            ]
        for key in peers():
            make, label = _make(key), _label(key)
            found += [
                Contender(key, f"{label}, used again", "peer", _reused(make(places.path()))),
                Contender(
                    f"new {key}", f"{label}, new each time", "peer", _new(make, places.path())
                ),
            ]
    return found


def _failing(try_once: Callable[[], object]) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations):
            if try_once():
                raise RuntimeError("a lock that another process holds was acquired")
        return perf_counter_ns() - start

    return run


def _failing_by_exception(
    acquire: Callable[..., object], options: dict[str, Any], error: type[Exception]
) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations):
            try:
                acquire(**options)
            except error:
                continue
            raise RuntimeError("a lock that another process holds was acquired")
        return perf_counter_ns() - start

    return run


def _failing_peer(key: str, path: str) -> Loop:
    module, _, options, error = _PEERS[key]
    acquire = _make(key)(path).acquire
    if not error:
        return _failing(lambda: acquire(**options))
    return _failing_by_exception(
        acquire, options, getattr(importlib.import_module(module), error)
    )


def failed_tries(floor: Floor, held: dict[str, list[str]]) -> list[Contender]:
    """One try of a lock that another process holds, by its own library."""
    [path] = held["semlock"]
    return [
        Contender(
            FLOOR, "C: open(O_EXCL) that fails", "floor", floor.loop("failing_create", [path])
        ),
        Contender(
            "c look", "C: the system call of semlock: access", "c", floor.loop("look", [path])
        ),
        Contender(
            "try",
            "semlock, try_acquire()",
            "semlock",
            _failing(semlock.Lock(path, durability="none").try_acquire),
        ),
        *(
            Contender(key, _label(key), "peer", _failing_peer(key, held[key][0]))
            for key in peers()
        ),
    ]


def _batch(locks: list[semlock.Lock]) -> Loop:
    try_many = semlock.try_acquire_many

    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations // len(locks)):
            if any(try_many(locks)):
                raise RuntimeError("a lock that another process holds was acquired")
        return perf_counter_ns() - start

    return run


def _one_by_one(locks: list[semlock.Lock]) -> Loop:
    tries = [lock.try_acquire for lock in locks]

    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations // len(locks)):
            for try_once in tries:
                if try_once():
                    raise RuntimeError("a lock that another process holds was acquired")
        return perf_counter_ns() - start

    return run


def many_tries(floor: Floor, paths: list[str]) -> list[Contender]:
    """Many locks that another process holds, tried in one call."""
    count = len(paths)
    return [
        Contender(
            FLOOR,
            "C: open(O_EXCL) that fails",
            "floor",
            floor.loop("failing_create", paths),
            step=count,
        ),
        Contender(
            "c look",
            "C: the system calls of semlock: faccessat",
            "c",
            floor.loop("look_from_directory", paths),
            step=count,
        ),
        Contender(
            "batch",
            "semlock, try_acquire_many()",
            "semlock",
            _batch([semlock.Lock(path, durability="none") for path in paths]),
            step=count,
        ),
        Contender(
            "one by one",
            "semlock, try_acquire() of each",
            "semlock",
            _one_by_one([semlock.Lock(path, durability="none") for path in paths]),
            step=count,
        ),
    ]
