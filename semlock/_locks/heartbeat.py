"""Threads that refresh the locks of a process that ask for it, and report their loss.

There is one for each filesystem: one that doesn't answer must not delay refreshes elsewhere.
The user's code (callbacks, logging handlers, traces) runs in other threads (``_callbacks``).  A
thread sleeps on the monotonic clock and refreshes all locks that are due when it wakes, so after
a suspend each lock is refreshed once at once, and a lock that was taken meanwhile is noticed.  No
exception, not even one of a user's callback, ends the thread or the process.
"""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from weakref import ref

from semlock._core import callbacks, capi, inside, registry
from semlock._core.errors import LockLostError, NotHeldError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Hashable

    from semlock._locks.base import BaseLock


class _Lane:
    """The locks that one thread refreshes, one after the other."""

    __slots__ = ("running", "started", "wake")

    def __init__(self) -> None:
        # Wakes the thread; True ends it.  A put is one step.  The user's threads take no mutex: an
        # interrupt between acquiring one and entering its block would leave it locked for ever.
        self.wake: SimpleQueue[bool] = SimpleQueue()
        self.started: threading.Thread | None = None  # the last one
        # Of several that were started at once one enters itself here, which is one step, and runs.
        self.running: dict[str, threading.Thread] = {}

    def threads(self) -> list[threading.Thread]:
        """Give those that are alive: the running one, and one that is only starting or ending."""
        threads = {self.started, *self.running.copy().values()}
        return [thread for thread in threads if thread is not None and thread.is_alive()]


# When the next beat of a lock is due, how far apart they are, whose it is, and in which lane.
_due: dict[int, tuple[float, float, ref[BaseLock], _Lane]] = {}
_lanes: dict[Hashable, _Lane] = {}
_LANES_LIMIT = 32
_NOTHING: tuple[None, None, None, None] = (None, None, None, None)
_AGAIN = 0.1
_PATIENCE = 0.5  # a thread may hang in a filesystem that does not answer
_LONGEST_SLEEP = 3600.0  # a beat may be due later than the longest possible timeout


def watch(lock: BaseLock, interval: float) -> None:
    """Refresh a lock at this interval while it is held."""
    key = id(lock)

    def forget(reference: ref[BaseLock]) -> None:
        # Runs in the thread that drops the object, so it takes no mutex: one pop is one step.
        if _due.get(key, _NOTHING)[2] is reference:
            _due.pop(key, None)

    lane = _lane_of(lock)
    at = monotonic() + interval
    sooner = at < min(
        (due for due, _, _, its in list(_due.values()) if its is lane), default=at + 1
    )
    _due[key] = (at, interval, ref(lock, forget), lane)
    if not lane.running and not lane.threads():
        # Two threads that get here at once start two, of which one ends at once.
        lane.started = thread = threading.Thread(
            target=_run_alone, args=(lane,), name="semlock-heartbeat", daemon=True
        )
        thread.start()
    elif sooner:
        lane.wake.put(False)


def _lane_of(lock: BaseLock) -> _Lane:
    # A clock that the user gave is the user's code and may block, so it has a lane of its own.
    key = (inside.place_kept(lock), getattr(lock, "_clock", None))
    lane = _lanes.get(key)
    if lane is None:
        if len(_lanes) >= _LANES_LIMIT:
            lanes = list(_lanes.values())
            return lanes[hash(key) % len(lanes)]
        lane = _lanes.setdefault(key, _Lane())
    return lane


def _forget() -> None:
    # After a fork: threads are not copied, and a queue may have been in use.
    _due.clear()
    _lanes.clear()
    registry.own_threads.clear()


def _run_alone(lane: _Lane) -> None:
    this = threading.current_thread()
    if lane.running.setdefault("thread", this) is this:
        try:
            _run(lane)
        finally:
            lane.running.clear()


def _run(lane: _Lane) -> None:
    registry.own_threads[capi.this_thread()] = threading.get_ident()
    while True:
        now = monotonic()
        # Copied in one step: making items can collect garbage, and so drop locks and their entries.
        due = _due.copy()
        waiting = [(key, entry[0]) for key, entry in due.items() if entry[3] is lane]
        ready = [key for key, at in waiting if at <= now]
        if not ready:
            # An idle thread waits without an end: watch() wakes it.
            nearest = min((at for _, at in waiting), default=None)
            with suppress(Empty):
                if lane.wake.get(
                    timeout=None if nearest is None else min(nearest - now, _LONGEST_SLEEP)
                ):
                    break
            continue
        for key in ready:
            # Popped in one step: the lock may have been dropped, or acquired anew.
            entry = _due.pop(key, None)
            if entry is None:
                continue
            _, interval, reference, its = entry
            if its is not lane:
                _due.setdefault(key, entry)
                its.wake.put(False)
                continue
            lock = reference()
            pause = None if lock is None else _beat(lock, interval)
            del lock  # else this thread would keep the object alive until the next beat
            if pause is not None:
                _due.setdefault(key, (monotonic() + pause, interval, reference, lane))
    registry.own_threads.pop(capi.this_thread(), None)


def _end() -> None:
    """End the threads that have nothing to do, when the interpreter ends.

    A subinterpreter can't end while it has a thread: there, all of them end.  In the main one
    a thread of the program may still hold a lock, which is refreshed until the end.
    """
    busy = {id(entry[3]) for entry in list(_due.values())} if registry.is_main() else set()
    ending = [
        (lane, threads)
        for lane in list(_lanes.values())
        if id(lane) not in busy and (threads := lane.threads())
    ]
    for lane, _ in ending:
        lane.wake.put(True)
    for _, threads in ending:
        for thread in threads:
            thread.join(_PATIENCE)


def _beat(lock: BaseLock, interval: float) -> float | None:
    """Refresh one lock: seconds until its next beat, or ``None`` if there is none."""
    if not lock.held:
        return None
    try:
        if not inside.refresh(lock, patience=0.0):
            # Another process has the guard, which must not delay the other locks.
            return min(interval, _AGAIN)
    except LockLostError as error:
        _report(lock, error)
        return None
    except NotHeldError:
        return None
    except BaseException as error:  # noqa: BLE001 - a full disk now may be well at the next beat
        path, cause = lock.path, error
        callbacks.call(
            lock.path,
            lambda: _log("a heartbeat of %s failed; it is tried again", path, cause=cause),
        )
    return interval


def _report(lock: BaseLock, error: LockLostError) -> None:
    def report() -> None:
        on_lost = inside.on_lost(lock)
        if on_lost is None:
            _log("%s", error)
            return
        try:
            on_lost(lock, error)
        except BaseException as failure:  # noqa: BLE001 - sys.exit() ends nothing here
            _log("the on_lost function of %s failed", lock.path, cause=failure)

    callbacks.call(lock.path, report)


def _log(message: str, *values: object, cause: BaseException | None = None) -> None:
    import logging  # noqa: PLC0415 - only when something is wrong

    logging.getLogger("semlock").error(message, *values, exc_info=cause)


registry.on_fork(_forget)
atexit.register(_end)
