"""Whether a wait would be for oneself: what this thread and its tasks hold, by any object.

Which object of this process holds a lock, its store knows.  It is asked on the way into a wait,
never before: nothing is written down when a lock is taken.

A thread that sleeps holds up all that it would have to go on with, so a wait of a thread is
for itself if the thread holds the lock or one of its tasks does.  A wait of a task is for
itself if the task holds the lock.  Of a form for threads that is held in an event loop's
thread it isn't known which task took it, and any task there may let go of it.  A worker thread
of an executor runs one job after another: a lock that an earlier job took may be released by
any other thread.  So these are waited for, and the log says once what may be wrong.
"""

from __future__ import annotations

import sys
from time import sleep

from semlock._core import capi, explain, inside, registry
from semlock._stores.holders import same_path

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from semlock._locks.base import BaseLock

# How long to wait for an object's owner to be known while a heartbeat has it.
_PATIENCE = 200
_PAUSE = 0.0001


# ---------------------------------------------------------------- who reads

# By thread or task and then by path, the readers of shared locks: each is a lock of its own,
# whose path doesn't tell who it is.  One thread writes to what is of one thread or task.
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
    """Find the reader by which somebody reads a path of just this spelling."""
    reader = _reading.get(me, _NO_READERS).get(path)
    return reader if reader is not None and reader.held else None


_NO_READERS: dict[str, BaseLock] = {}


# ---------------------------------------------------------------- whose it is


def is_of_thread(lock: Any) -> bool:
    """Tell whether this thread holds a lock, or a task of it does."""
    native = inside.native(lock)
    for _ in range(_PATIENCE):
        owner = native.owner
        if owner >= 0 or not lock.held:
            return bool(lock.held) and owner == capi.this_thread()
        sleep(_PAUSE)  # a heartbeat has it for a moment, or somebody lets go
    return False


def is_of_task(lock: Any, task: Any) -> bool:
    """Tell whether a task, which runs in this thread now, holds a lock."""
    holder = getattr(lock, "_holder", None)
    native = inside.native(lock)
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
    """Refuse that this thread waits for a lock that it holds itself, and that doesn't end."""
    holder = inside.holder_here(lock)
    if holder is not None:
        refuse_if_own(holder, lock, frame, timeout)


def refuse_if_own(
    holder: BaseLock, lock: BaseLock, frame: FrameType, timeout: float | None
) -> None:
    """Refuse so, where an object of this process is known to hold the lock."""
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
    """Refuse that this thread waits for what it holds itself, unless an earlier job holds it."""
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
    if "threading" not in sys.modules:
        return False
    me, main = sys.modules["threading"].get_ident(), sys.modules["threading"].main_thread()
    step: FrameType | None = frame if me != main.ident else None  # a worker process has one job
    while step is not None:
        if step.f_globals.get("__name__") in _EXECUTORS:
            return True
        step = step.f_back
    return False


def refuse_task(lock: BaseLock, task: Any, frame: FrameType) -> None:
    """Refuse that a task waits for a lock that it holds itself."""
    refuse_task_all((lock,), task, frame)


def refuse_task_all(locks: Sequence[Any], task: Any, frame: FrameType) -> None:
    """Refuse that a task waits for any of some locks if it holds all of them itself."""
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
    """Say once for each pair of places that this may be a wait for oneself."""
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
    """Refuse that this thread waits for a writer, who may be waiting for what it reads."""
    for readers in list(_reading.values()):
        for own, reader in list(readers.items()):
            if is_of_thread(reader) and same_path(own, path):
                raise explain.deadlock_error(reader, frame)


def refuse_reading_task(path: str, task: Any, frame: FrameType) -> None:
    """Refuse that a task waits for a writer, who may be waiting for what it reads."""
    if task is None:
        return
    for me in (task, capi.this_thread()):
        for own, reader in list(_reading.get(me, _NO_READERS).items()):
            if same_path(own, path):
                if is_of_task(reader, task):
                    raise explain.deadlock_error(reader, frame, "task")
                if _is_of_loop(reader):
                    _warn(reader, frame, _BY_LOOP)


def all_mine(locks: Sequence[Any], is_mine: Callable[[Any], bool]) -> Any:
    """Give the first of some locks' holders if all of them are held by oneself."""
    first = None
    for lock in locks:
        holder = inside.holder_here(lock)
        if holder is None or not is_mine(holder):
            return None
        first = first or holder
    return first
