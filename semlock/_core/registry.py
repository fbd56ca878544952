"""What all locks of this process share: the list of them, and what happens at fork and exit."""

from __future__ import annotations

import atexit
import os
import sys
from _weakref import ref

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._core import waits
    from semlock._locks.base import BaseLock

# Every lock object of this process, held or not.  It is written when an object is made and
# when it goes, never on the way of acquire and release.
_locks: dict[int, ref[BaseLock]] = {}

# Objects that somebody dropped while they hold a lock.
_dropped: list[BaseLock] = []

# The waits that are under way, which have descriptors too.
_waits: dict[int, ref[waits.Wait]] = {}

# The threads that keep locks alive, which may run nothing of the user's: by their numbers, what
# Python calls them.
own_threads: dict[int, int] = {}

# What else must be made anew in a forked child.
_forgetters: list[Callable[[], object]] = []


def add(lock: BaseLock) -> None:
    """Remember a new lock object."""
    _locks[id(lock)] = ref(lock)


def discard(lock: BaseLock, locks: dict[int, ref[BaseLock]] = _locks) -> None:
    """Forget a lock object that goes away."""
    locks.pop(id(lock), None)


def keep(
    lock: BaseLock,
    locks: dict[int, ref[BaseLock]] = _locks,
    dropped: list[BaseLock] = _dropped,
    make: Callable[[BaseLock], ref[BaseLock]] = ref,
) -> None:
    """Keep an object that holds a lock and that nobody else refers to any more."""
    dropped.append(lock)
    locks[id(lock)] = make(lock)


def add_wait(wait: waits.Wait) -> None:
    """Remember a wait."""
    _waits[id(wait)] = ref(wait)


def discard_wait(wait: waits.Wait) -> None:
    """Forget a wait that is over."""
    _waits.pop(id(wait), None)


def all_locks() -> list[BaseLock]:
    """List the lock objects of this process."""
    return [lock for lock in (reference() for reference in list(_locks.values())) if lock]


def held_here(dev: int, ino: int) -> BaseLock | None:
    """Find the object of this process that holds the instance with this identity."""
    for lock in all_locks():
        native = lock._native
        if native.file.ino == ino and native.file.dev == dev and capi.holds(native):
            return lock
    return None


def on_fork(forget: Callable[[], object]) -> None:
    """Have a function called in every forked child."""
    _forgetters.append(forget)


_life = capi.life()


def follow_fork() -> None:
    """Forget what is the parent's, if this process has been forked off since the last time.

    Python's hook calls it at once, and what depends on it calls it too: a C library forks
    without a word to Python, and a signal can strike a hook.  The descriptors are C's to close.
    """
    global _life  # noqa: PLW0603 - for which of the processes that had this memory it is right
    life = capi.life()
    if life == _life:
        return
    _life = life
    for wait in [reference() for reference in list(_waits.values())]:
        if wait is not None:
            wait.forget()
    _waits.clear()
    for lock in all_locks():
        lock._forget_after_fork()
    for forget in _forgetters:
        forget()


def release_now(lock: BaseLock) -> None:
    """Let go of a lock however often it was acquired, without a word."""
    native = lock._native
    native.reentrant = 0
    capi.release_lock(native, capi.POOL)


# ---------------------------------------------------------------- the end
#
# What is idle is given up by the exit hooks: the kept claims.  A lock is not, whoever holds it:
# daemon threads go on when the hooks run, hooks that were registered before ours run after it,
# and so do destructors, and each of them may be inside.  The end of the process ends its locks;
# the kernel drops the witness, and who comes next finds the proof of death.
#
# Only where all of that is over does a lock go in an orderly way, for those who know no proof:
# when the interpreter is so far taken apart that no Python code of the program is left to run,
# and the process has no other thread that could be inside of a call into C.


def is_main() -> bool:
    """Tell the interpreter that began with the process from those that a program makes in it."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        module = __import__(name)
    except ImportError:
        return True  # PyPy has none
    return bool(module.get_current() == module.get_main())


def give_up_idle() -> None:
    """Give up what nobody holds, and keep nothing from now on: the process ends."""
    capi.POOL.keep = 0
    capi.drain_pool()
    sys.semlock_last.note_threads()  # type: ignore[attr-defined]


class _Last:
    """Lets go of what is still held when the interpreter has come to an end.

    The interpreter drops the contents of ``sys`` after all other modules, when no code but
    what this object itself refers to is left.
    """

    __slots__ = ("alone", "dropped", "locks", "own", "owner")

    def __init__(self) -> None:
        self.alone = False
        self.own = 0
        self.locks = _locks
        self.dropped = _dropped
        self.owner = os.getpid()

    def note_threads(self, frames: Callable[[], dict[int, Any]] = sys._current_frames) -> None:
        """Take note of whether this thread is the only one that runs the program's code."""
        others = frames().keys() - set(own_threads.values())
        self.own = len(own_threads)
        self.alone = len(others) == 1

    def __del__(
        self,
        ending: Callable[[], bool] = sys.is_finalizing,
        pid: Callable[[], int] = os.getpid,
        listdir: Callable[[str], list[str]] = os.listdir,
        release: Callable[[Any, Any], int] = capi.release_lock,
        pool: Any = capi.POOL,
    ) -> None:
        if not self.alone or not ending() or self.owner != pid():
            return
        try:
            if len(listdir("/proc/self/task")) > 1 + self.own:
                return
        except OSError:
            pass  # no such list here: what Python knows of must do
        for lock in [*self.dropped, *(reference() for reference in self.locks.values())]:
            if lock is not None and lock._native.held:
                lock._native.reentrant = 0
                release(lock._native, pool)


def _begin() -> None:
    # Nothing but ``sys`` refers to it: what a lock object keeps alive, such as this module's
    # names, may never go.
    sys.semlock_last = _Last()  # type: ignore[attr-defined]


_begin()
on_fork(_begin)

_finalizer_of = 0


def first_claim_kept() -> None:
    """Make sure that kept claims go even when the process ends without atexit.

    The children of multiprocessing leave by ``os._exit``, but run its own finalizers before,
    while threads of theirs may still be at work.
    """
    global _finalizer_of  # noqa: PLW0603 - one registration for each process
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return
    if _finalizer_of != os.getpid():
        _finalizer_of = os.getpid()
        util.Finalize(None, give_up_idle, exitpriority=0)


atexit.register(give_up_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=follow_fork)
