"""What all locks of this process share: the list of them, and what happens at fork and exit."""

from __future__ import annotations

import atexit
import os
import sys
from _weakref import ref

from semlock._core import capi, events, identity, inside, waits
from semlock._core.paths import PREFIX

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._stores.file import InFiles

# Every lock object of this process, held or not.  It changes when an object is made or deleted,
# never in acquire and release.
_locks: dict[int, ref[InFiles]] = {}

# Objects that were dropped while they held a lock.
_dropped: list[InFiles] = []

# The heartbeat threads, which run no code of the user: the core's numbers of them and Python's.
own_threads: dict[int, int] = {}

# Functions that reset other modules in a forked child.
_forgetters: list[Callable[[], object]] = []


def add(lock: InFiles) -> None:
    """Add a new lock object."""
    _locks[id(lock)] = ref(lock)


def discard(lock: InFiles, locks: dict[int, ref[InFiles]] = _locks) -> None:
    """Remove a lock object that is being deleted."""
    locks.pop(id(lock), None)


def keep(
    lock: InFiles,
    locks: dict[int, ref[InFiles]] = _locks,
    dropped: list[InFiles] = _dropped,
    make: Callable[[InFiles], ref[InFiles]] = ref,
) -> None:
    """Keep an object alive that holds a lock and has no other reference."""
    dropped.append(lock)
    locks[id(lock)] = make(lock)


def all_locks() -> list[InFiles]:
    """List the lock objects of this process."""
    return [lock for lock in (reference() for reference in list(_locks.values())) if lock]


# Counts the lock objects of this process.
count: Callable[[], int] = _locks.__len__


def held_here(dev: int, ino: int) -> InFiles | None:
    """Find the object of this process that holds the file with this identity."""
    for reference in list(_locks.values()):
        lock = reference()
        if lock is None:
            continue
        native = inside.native(lock)
        if native.file.ino == ino and native.file.dev == dev and capi.holds(native):
            return lock
    return None


def on_fork(forget: Callable[[], object]) -> None:
    """Have a function called in every forked child."""
    _forgetters.append(forget)


def follow_fork() -> None:
    """Forget the parent's state, if this process was forked since the last call.

    Python's fork hook calls it, and so does code that depends on it: C code forks without
    running the hooks, and a signal can interrupt a hook.  The core closes the descriptors.
    """
    life = capi.life()
    if life == waits.life:
        return
    waits.life = life
    waits.forget_all()
    for lock in all_locks():
        inside.forget_after_fork(lock)
    for forget in _forgetters:
        forget()


identity.follow_fork = follow_fork


def release_now(lock: InFiles) -> None:
    """Release a lock completely, however often it was acquired, without errors."""
    inside.native(lock).reentrant = 0
    events.release(lock)


# ---------------------------------------------------------------- leftovers

_swept: set[str] = set()
_SWEPT_LIMIT = 1000
# A forked child sweeps anew: otherwise the children of a server, each of which keeps a file and
# ends by os._exit, would leave more and more of them.
on_fork(_swept.clear)

_loads = False


def sweep(directory: str) -> None:
    """Remove dead processes' temporary files in a directory, once for each directory.

    What removes them is loaded when there may be some.  Errors are ignored, as the caller wants
    something else: after chroot() or without a descriptor the module can't be loaded.
    """
    global _loads  # noqa: PLW0603 - there is one such module
    # A child that is forked while another thread loads it would wait for that thread's import
    # for ever.  In such a child this stays true, and nothing is swept.
    if directory in _swept or _loads:
        return
    if len(_swept) >= _SWEPT_LIMIT:
        _swept.clear()
    _swept.add(directory)
    try:
        # One name is that of the file that was just kept.
        if sum(name.startswith(PREFIX) for name in os.listdir(directory)) < 2:
            return
        try:
            _loads = True
            from semlock._core import cleaning  # noqa: PLC0415 - most directories need none
        finally:
            _loads = False
        cleaning.sweep(directory)
    except (OSError, ImportError):
        return  # ImportError also while the interpreter is ending


# ---------------------------------------------------------------- the end
#
# The exit hooks remove kept claims only.  Locks stay held: daemon threads, hooks that were
# registered earlier and destructors still run after these hooks and may be inside a lock.  The end
# of the process ends its locks: the kernel drops the witness, and the next process finds the proof
# of death.
#
# For programs that can't use that proof, locks are released at one later moment: when the
# interpreter is taken apart so far that no Python code of the program is left, and no other thread
# is left that could be inside a call into C.


def is_main() -> bool:
    """Tell whether this is the main interpreter, and no subinterpreter."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        module = __import__(name)
    except ImportError:
        return True  # PyPy has none
    return bool(module.get_current() == module.get_main())


def give_up_idle() -> None:
    """Remove kept claims, and keep none from now on: the process ends."""
    capi.POOL.keep = 0
    capi.drain_pool()
    sys.semlock_last.note_threads()  # type: ignore[attr-defined]


class _Last:
    """Releases what is still held when the interpreter has ended.

    The interpreter clears ``sys`` after all other modules, when only what this object itself
    refers to is left.
    """

    __slots__ = ("alone", "dropped", "locks", "own", "owner")

    def __init__(self) -> None:
        self.alone = False
        self.own = 0
        self.locks = _locks
        self.dropped = _dropped
        self.owner = os.getpid()

    def note_threads(self, frames: Callable[[], dict[int, Any]] = sys._current_frames) -> None:
        """Note whether this is the only thread that runs code of the program."""
        others = frames().keys() - set(own_threads.values())
        self.own = len(own_threads)
        self.alone = len(others) == 1

    def __del__(
        self,
        ending: Callable[[], bool] = sys.is_finalizing,
        pid: Callable[[], int] = os.getpid,
        listdir: Callable[[str], list[str]] = os.listdir,
        native: Callable[[Any], Any] = inside.native,
        release: Callable[[Any, Any], int] = capi.release_lock,
        pool: Any = capi.POOL,
    ) -> None:
        if not self.alone or not ending() or self.owner != pid():
            return
        try:
            if len(listdir("/proc/self/task")) > 1 + self.own:
                return
        except OSError:
            pass  # no /proc here: Python's own list has to do
        for lock in [*self.dropped, *(reference() for reference in self.locks.values())]:
            if lock is not None and native(lock).held:
                native(lock).reentrant = 0
                release(native(lock), pool)


def _begin() -> None:
    # Only ``sys`` refers to it.  Names of this module would not do: a lock object that is never
    # deleted keeps them alive.
    sys.semlock_last = _Last()  # type: ignore[attr-defined]


_begin()
on_fork(_begin)

_finalizer_of = 0


def imported(name: str) -> Any:
    """Give a module if the program has imported it; ``None`` while a thread is still doing so.

    Such a module is in ``sys.modules`` already, and has only some of its attributes.
    """
    module = sys.modules.get(name)
    unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if unfinished else module


def first_claim_kept() -> None:
    """Register the removal of kept claims at the end of a process without atexit.

    Children of multiprocessing end by ``os._exit`` after multiprocessing's own finalizers,
    while other threads of theirs may still run.
    """
    global _finalizer_of  # noqa: PLW0603 - one registration for each process
    util = imported("multiprocessing.util")
    process = imported("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return
    if _finalizer_of != os.getpid():
        _finalizer_of = os.getpid()
        util.Finalize(None, give_up_idle, exitpriority=0)


atexit.register(give_up_idle)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=follow_fork)
