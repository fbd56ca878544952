"""Deadlocks within one thread or task: a wait for a lock that the waiter itself holds.

The store finds the object of this process that holds a lock.  It is asked only when a wait
begins, so taking a free lock costs nothing more.

A thread that sleeps runs none of its tasks, so its wait is a deadlock if the thread or one of its
tasks holds the lock.  A task's wait is one if that task holds the lock.  Two cases are uncertain:
a lock for threads that is held in an event loop's thread, because any task there may release it,
and a lock that an earlier job of an executor's worker thread took, because any other thread may
release it.  These are waited for, and the log says once what may be wrong.
"""

from __future__ import annotations

from time import sleep

from semlock._core import capi, explain, inside, registry
from semlock._stores import same_path

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from semlock._locks.base import BaseLock

# How often to look again for an object's owner while a heartbeat holds it.
_PATIENCE = 200
_PAUSE = 0.0001


# ---------------------------------------------------------------- who reads

# The readers of shared locks, by thread or task and then by path: each reader is a lock of its
# own with a random path.  Only one thread changes the entries of one thread or task.
_reading: dict[Any, dict[str, BaseLock]] = {}
_whose: dict[int, Any] = {}  # by the reader's identity
registry.on_fork(_reading.clear)
registry.on_fork(_whose.clear)


def begin_reading(me: Any, path: str, reader: BaseLock) -> None:
    """Remember a reader, before it is one."""
    _whose[id(reader)] = me
    _reading.setdefault(me, {})[path] = reader


def end_reading(me: Any, path: str) -> None:
    """Forget a reader."""
    mine = _reading.get(me)
    if mine is not None:
        reader = mine.pop(path, None)
        if reader is not None:
            _whose.pop(id(reader), None)
        if not mine:
            _reading.pop(me, None)


def reader_of(me: Any, path: str) -> BaseLock | None:
    """Find the reader of a thread or task for a path in exactly this spelling."""
    reader = _reading.get(me, _NO_READERS).get(path)
    return reader if reader is not None and reader.held else None


_NO_READERS: dict[str, BaseLock] = {}


# ---------------------------------------------------------------- whose it is


def is_of_thread(lock: Any) -> bool:
    """Tell whether this thread holds a lock, or a task of it does; not by an object for all."""
    native = inside.native(lock)
    if native.by_object:
        return False  # another one may release it
    for _ in range(_PATIENCE):
        owner = native.owner
        if owner >= 0 or not lock.held:
            return bool(lock.held) and owner == capi.this_thread()
        sleep(_PAUSE)  # a heartbeat has it for a moment, or it is being released
    return False


def is_of_task(lock: Any, task: Any) -> bool:
    """Tell whether a task, which runs in this thread now, holds a lock."""
    holder = getattr(lock, "_holder", None)
    native = inside.native(lock)
    if native.by_object:
        return False
    if holder is not None:
        return bool(lock.held) and holder == (native.serial, task)
    reads = _whose.get(id(lock))
    if reads is not None and not isinstance(reads, int):  # not a thread's number
        return bool(lock.held) and reads == task
    return False


def _is_of_loop(lock: Any) -> bool:
    """Tell whether this thread, which runs tasks, holds a lock by a form for threads."""
    if hasattr(lock, "_holder") or not isinstance(_whose.get(id(lock), 0), int):
        return False
    return is_of_thread(lock)


# ---------------------------------------------------------------- refusing to wait


def refuse_thread(lock: BaseLock, frame: FrameType, timeout: float | None = None) -> None:
    """Refuse a wait of this thread for its own lock, if that does not expire in time."""
    holder = inside.holder_here(lock)
    if holder is not None:
        refuse_if_own(holder, lock, frame, timeout)


def refuse_if_own(
    holder: BaseLock, lock: BaseLock, frame: FrameType, timeout: float | None
) -> None:
    """Do so for a known holder of this process."""
    if is_of_thread(holder) and not inside.ends_in_time(lock, holder, timeout):
        refuse(holder, frame)


# The modules whose worker threads run jobs of others, one after another: concurrent.futures (so
# asyncio.to_thread too), multiprocessing.pool, anyio, trio, Twisted.
_EXECUTORS = frozenset(
    (
        "concurrent.futures.thread",
        "multiprocessing.pool",
        "anyio._backends._asyncio",
        "trio._core._thread_cache",
        "twisted._threads._threadworker",
    )
)


def refuse(holder: BaseLock, frame: FrameType) -> None:
    """Refuse a wait of this thread for its own lock; warn if an earlier job may hold it."""
    if not _runs_jobs(frame):
        raise explain.deadlock_error(holder, frame)
    _warn(
        holder,
        frame,
        "%s is held by a job of this worker thread, which acquired it at %s, and a job of the "
        "same thread waits for it at %s. If that is the same job, it waits for ever: release "
        "the lock first, or use one lock object with reentrant=True",
    )


def _runs_jobs(frame: FrameType) -> bool:
    threading = registry.imported("threading")
    if threading is None:
        return False
    me, main = threading.get_ident(), threading.main_thread()
    step: FrameType | None = frame if me != main.ident else None  # a worker process has one job
    while step is not None:
        if step.f_globals.get("__name__") in _EXECUTORS:
            return True
        step = step.f_back
    return False


def refuse_task(
    lock: Any, holder: Any, task: Any, frame: FrameType, timeout: float | None
) -> None:
    """Refuse a task's wait for a lock that it holds by this object and that stays held."""
    if task is None:
        return
    if is_of_task(holder, task):
        if not inside.ends_in_time(lock, holder, timeout):
            raise explain.deadlock_error(holder, frame, "task")
    elif _is_of_loop(holder):
        _warn(holder, frame, _BY_LOOP)


def refuse_task_all(
    locks: Sequence[Any], task: Any, frame: FrameType, timeout: float | None = None
) -> None:
    """Refuse a task's wait for any of some locks if it holds all of them, and none expires."""
    if task is None:
        return
    doubtful = first = None
    for lock in locks:
        holder = inside.holder_here(lock)
        if holder is None:
            return
        if not is_of_task(holder, task):
            if not _is_of_loop(holder):
                return
            doubtful = holder
        elif inside.ends_in_time(lock, holder, timeout):
            return
        first = first or holder
    if doubtful is not None:
        _warn(doubtful, frame, _BY_LOOP)
    elif first is not None:
        raise explain.deadlock_error(first, frame, "task")


_BY_LOOP = (
    "%s is held by the thread of this event loop, which acquired it at %s by a form for "
    "threads, and a task waits for it at %s. If the task that waits is the one that "
    "acquired it, it waits for ever: use the form for tasks there"
)


def _warn(holder: BaseLock, frame: FrameType, words: str) -> None:
    """Log a possible deadlock, once for each pair of places."""
    places = inside.place(holder), (frame.f_code, frame.f_lasti)
    if places in _warned:
        return
    if len(_warned) >= _WARNED_LIMIT:
        _warned.clear()
    _warned.add(places)
    import logging  # noqa: PLC0415 - only when something may be wrong

    logging.getLogger("semlock").warning(
        words, holder.path, explain.where(places[0]), explain.where(places[1])
    )


_WARNED_LIMIT = 256
_warned: set[tuple[Any, Any]] = set()


def refuse_reading_thread(path: str, frame: FrameType) -> None:
    """Refuse a wait of this thread for a writer if it reads: the writer waits for it."""
    for readers in list(_reading.values()):
        for own, reader in list(readers.items()):
            if is_of_thread(reader) and same_path(own, path):
                raise explain.deadlock_error(reader, frame)


def refuse_reading_task(path: str, task: Any, frame: FrameType) -> None:
    """Refuse a task's wait for a writer if it reads: the writer waits for it."""
    if task is None:
        return
    for me in (task, capi.this_thread()):
        for own, reader in list(_reading.get(me, _NO_READERS).items()):
            if same_path(own, path):
                if is_of_task(reader, task):
                    raise explain.deadlock_error(reader, frame, "task")
                if _is_of_loop(reader):
                    _warn(reader, frame, _BY_LOOP)


def all_mine(
    locks: Sequence[Any], is_mine: Callable[[Any], bool], timeout: float | None = None
) -> Any:
    """Give the first of some locks' holders if the caller holds all of them, and none expires."""
    first = None
    for lock in locks:
        holder = inside.holder_here(lock)
        if holder is None or not is_mine(holder):
            return None
        if inside.ends_in_time(lock, holder, timeout):
            return None
        first = first or holder
    return first
