"""What all locks of this process share: the list of them, and what happens at fork and exit."""

from __future__ import annotations

import atexit
import os
import sys
from _weakref import ref

from semlock import _identity, _native

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._engine import BaseLock

# Every lock object of this process, held or not.  It is written when an object is made and
# when it goes, never on the way of acquire and release.
_locks: dict[int, ref[BaseLock]] = {}

# Objects that somebody dropped while they hold a lock.
_dropped: list[BaseLock] = []

# The waits that are under way, which have descriptors too.
_waits: dict[int, ref[_native.Wait]] = {}

# What else must be made anew in a forked child.
_forgetters: list[Callable[[], object]] = []


def add(lock: BaseLock) -> None:
    """Remember a new lock object."""
    _locks[id(lock)] = ref(lock)


def discard(lock: BaseLock) -> None:
    """Forget a lock object that goes away."""
    _locks.pop(id(lock), None)


def keep(lock: BaseLock) -> None:
    """Keep an object that holds a lock and that nobody else refers to any more."""
    _dropped.append(lock)
    add(lock)


def add_wait(wait: _native.Wait) -> None:
    """Remember a wait."""
    _waits[id(wait)] = ref(wait)


def discard_wait(wait: _native.Wait) -> None:
    """Forget a wait that is over."""
    _waits.pop(id(wait), None)


def all_locks() -> list[BaseLock]:
    """List the lock objects of this process."""
    return [lock for lock in (reference() for reference in list(_locks.values())) if lock]


def held_here(dev: int, ino: int) -> BaseLock | None:
    """Find the object of this process that holds the instance with this identity."""
    for lock in all_locks():
        native = lock._native
        if native.held and native.file.ino == ino and native.file.dev == dev:
            return lock
    return None


def on_fork(forget: Callable[[], object]) -> None:
    """Have a function called in every forked child."""
    _forgetters.append(forget)


def _after_fork_in_child() -> None:
    # The child owns nothing.  Its copies of the descriptors would keep the parent's witness
    # alive beyond the parent's death, so they are closed first of all.
    _native.forget_pool()
    for wait in [reference() for reference in _waits.values()]:
        if wait is not None:
            wait.forget()
    _waits.clear()
    for lock in all_locks():
        lock._forget_after_fork()
    _native.seed_pool()
    _identity.forget()
    for forget in _forgetters:
        forget()


def release_now(lock: BaseLock) -> None:
    """Let go of a lock however often it was acquired, without a word."""
    native = lock._native
    native.reentrant = 0
    _native.release_lock(native, _native.POOL)


def release_all() -> None:
    """Let go of everything: the process ends."""
    for lock in all_locks():
        if lock._native.held:
            release_now(lock)
    _native.POOL.keep = 0
    _native.drain_pool()


_finalizer_of = 0


def first_claim_kept() -> None:
    """Make sure that kept claims go even when the process ends without atexit.

    The children of multiprocessing leave by ``os._exit``, but run its own finalizers before.
    """
    global _finalizer_of  # noqa: PLW0603 - one registration for each process
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return
    if _finalizer_of != os.getpid():
        _finalizer_of = os.getpid()
        util.Finalize(None, release_all, exitpriority=0)


atexit.register(release_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_native.before_fork,
        after_in_parent=_native.after_fork,
        after_in_child=_after_fork_in_child,
    )
