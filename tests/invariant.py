"""What is true after each test: nothing is under way, and nothing is left.

``Before`` looks at the tests' own process from outside (descriptors, watches, files) and at
the few numbers that the core keeps.  It costs a fraction of a millisecond.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys

from semlock._core import capi, registry, waits

# Names that are semlock's own: a queue, a file that is to become a lock, one that was.
_OWN = re.compile(r"\.semlock-.*\.(queue|tmp|kept)")
_HAS_PROC = sys.platform.startswith("linux")

# Every kind of thing that a test may leave and say so, by the marker ``leaves``.
KINDS = ("queue", "tmp", "kept", "held", "descriptors", "watches", "waits")


def _descriptors() -> dict[int, str]:
    found = {}
    if _HAS_PROC:
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
    return found


def _sources(opened: dict[int, str]) -> list[int]:
    return [fd for fd, what in opened.items() if what == "anon_inode:inotify"]


def _watched(sources: list[int]) -> int:
    count = 0
    for fd in sources:
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as file:
            count += file.read().count("inotify wd:")
    return count


def _own_names(directory: str) -> list[str]:
    names = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _OWN.fullmatch(entry.name):
                names.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                names += _own_names(entry.path)
    return names


def _is_of_others(name: str) -> bool:
    """Whether another process kept it: one that lives, or one that was killed by the test."""
    if not name.endswith(".kept"):
        return False
    with open(name, "rb") as file:
        return f"pid={os.getpid()}\n".encode() not in file.read()


def _held() -> set[str]:
    return {lock.path for lock in registry.all_locks() if lock._native.held}


def _waiting() -> int:
    return sum(reference() is not None for reference in list(waits.under_way.values()))


class Before:
    """What there is before a test: fixtures of others may have left it there."""

    def __init__(self) -> None:
        self.opened = _descriptors()
        self.held = _held()
        self.waiting = _waiting()
        self.watched = _watched(_sources(self.opened))

    def left_over(self, directory: str) -> dict[str, object]:
        """What is left of the test, by its kind, after what may be kept was given up."""
        found: dict[str, object] = {}
        if busy := capi.lib.semlock_busy():
            found["busy"] = f"{busy} calls under way"
        if _held() - self.held or _waiting() > self.waiting:
            gc.collect()  # what a traceback referred to
        if held := _held() - self.held:
            found["held"] = sorted(held)
        if (waits := _waiting()) > self.waiting:
            found["waits"] = waits
        capi.drain_pool()
        for name in _own_names(directory):
            if not _is_of_others(name):
                kind = name.rpartition(".")[2]
                found.setdefault(kind, []).append(os.path.relpath(name, directory))
        self._look_at_descriptors(directory, found)
        return found

    def _look_at_descriptors(self, directory: str, found: dict[str, object]) -> None:
        after = _descriptors()
        new = {fd: what for fd, what in after.items() if self.opened.get(fd) != what}
        here = [
            f"{fd} is {what}"
            for fd, what in new.items()
            if what.startswith(directory + "/") or what == "anon_inode:[pidfd]"
        ]
        sources = _sources(after)
        # A wait for many locks may give its source back only when the next one begins.
        idle = len(capi.POOL.idle_events) + _waiting()
        most = max(idle, len(_sources(self.opened)))
        if len(sources) > most:
            gc.collect()  # an event loop that was abandoned
            sources = _sources(_descriptors())
        if len(sources) > most:
            here.append(f"{len(sources)} event sources, of which {idle} may be kept")
        if here:
            found["descriptors"] = here
        if (watched := _watched(sources)) > self.watched:
            found["watches"] = watched
