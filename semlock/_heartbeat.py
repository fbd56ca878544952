"""One thread that refreshes all locks of a process that ask for it, and reports their loss.

It sleeps on the monotonic clock and refreshes whatever is due when it wakes, so that after a
suspend every lock is refreshed at once, once, and a lock that was taken meanwhile is noticed.
Nothing that it meets, not even an error in a user's callback, ends it or the process.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from weakref import ref

from semlock import _process
from semlock._errors import LockLostError, NotHeldError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engine import BaseLock

# Wakes the thread.  No lock is taken on the way of the user's threads: an interrupt between
# taking it and entering its block would keep it taken for ever.  A put is one step.
_wake: SimpleQueue[None] = SimpleQueue()
_due: dict[int, tuple[float, float, ref[BaseLock]]] = {}
_thread: threading.Thread | None = None
_NOTHING: tuple[None, None, None] = (None, None, None)
_AGAIN = 0.1
_LONGEST_SLEEP = 3600.0  # a beat may be further off than any wait can be told


def watch(lock: BaseLock, interval: float) -> None:
    """Refresh a lock every so often, for as long as it is held."""
    global _thread  # noqa: PLW0603 - one for each process
    key = id(lock)

    def forget(reference: ref[BaseLock]) -> None:
        # Runs in whatever thread drops the object, so it takes no lock: one pop is one step.
        if _due.get(key, _NOTHING)[2] is reference:
            _due.pop(key, None)

    at = monotonic() + interval
    sooner = at < min((due for due, _, _ in list(_due.values())), default=at + 1)
    _due[key] = (at, interval, ref(lock, forget))
    if _thread is None or not _thread.is_alive():
        # Two threads that get here at once start two, which share the work.
        _thread = threading.Thread(target=_run, name="semlock-heartbeat", daemon=True)
        _thread.start()
    elif sooner:
        _wake.put(None)


def _forget() -> None:
    # The thread did not come along, and the queue may have been in use when it forked.
    global _wake, _thread  # noqa: PLW0603
    _wake = SimpleQueue()
    _due.clear()
    _thread = None


def _run() -> None:
    while True:
        now = monotonic()
        waiting = list(_due.items())
        ready = [key for key, (at, _, _) in waiting if at <= now]
        if not ready:
            # An idle thread waits without an end: watch() wakes it.
            nearest = min((at for _, (at, _, _) in waiting), default=None)
            with suppress(Empty):
                _wake.get(
                    timeout=None if nearest is None else min(nearest - now, _LONGEST_SLEEP)
                )
            continue
        entries = [(key, entry) for key in ready if (entry := _due.pop(key, None))]
        for key, (_, interval, reference) in entries:
            lock = reference()
            pause = None if lock is None else _beat(lock, interval)
            del lock  # or this thread would keep it alive until the next beat
            if pause is not None:
                _due.setdefault(key, (monotonic() + pause, interval, reference))


def _beat(lock: BaseLock, interval: float) -> float | None:
    """Refresh one lock: seconds until its next beat, or ``None`` if there is none."""
    if not lock.held:
        return None
    try:
        if not lock._refresh(patience=0.0):
            # Somebody sits on the guard, which must not hold up the others' beats.
            return min(interval, _AGAIN)
    except LockLostError as error:
        _report(lock, error)
        return None
    except NotHeldError:
        return None
    except BaseException:  # noqa: BLE001 - a full disk now may be well at the next beat
        _log("a heartbeat of %s failed; it is tried again", lock.path)
    return interval


def _report(lock: BaseLock, error: LockLostError) -> None:
    if lock._on_lost is None:
        _log("%s", error)
        return
    try:
        lock._on_lost(lock, error)
    except BaseException:  # noqa: BLE001 - sys.exit() here would end all other locks' heartbeat
        _log("the on_lost function of %s failed", lock.path)


def _log(message: str, *values: object) -> None:
    import logging  # noqa: PLC0415 - only when something is wrong
    import sys  # noqa: PLC0415

    logging.getLogger("semlock").error(message, *values, exc_info=sys.exc_info()[1] is not None)


_process.on_fork(_forget)
