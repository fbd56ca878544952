"""One thread that refreshes all locks of a process that ask for it, and reports their loss.

It sleeps on the monotonic clock and refreshes whatever is due when it wakes, so that after a
suspend every lock is refreshed at once, once, and a lock that was taken meanwhile is noticed.
Nothing that it meets, not even an error in a user's callback, ends it or the process.
"""

from __future__ import annotations

import threading
from time import monotonic
from weakref import ref

from semlock import _process
from semlock._errors import LockLostError, NotHeldError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engine import BaseLock

_condition = threading.Condition()
_due: dict[int, tuple[float, float, ref[BaseLock]]] = {}
_thread: threading.Thread | None = None


def watch(lock: BaseLock, interval: float) -> None:
    """Refresh a lock every so often, for as long as it is held."""
    global _thread  # noqa: PLW0603 - one for each process
    with _condition:
        _due[id(lock)] = (monotonic() + interval, interval, ref(lock))
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="semlock-heartbeat", daemon=True)
            _thread.start()
        _condition.notify()


def _forget() -> None:
    # The thread did not come along, and the condition may have been taken when it forked.
    global _condition, _thread  # noqa: PLW0603
    _condition = threading.Condition()
    _due.clear()
    _thread = None


def _run() -> None:
    while True:
        with _condition:
            now = monotonic()
            ready = [key for key, (at, _, _) in _due.items() if at <= now]
            if not ready:
                # An idle thread waits without an end: watch() wakes it.
                nearest = min((at for at, _, _ in _due.values()), default=None)
                _condition.wait(None if nearest is None else nearest - now)
                continue
            entries = [(key, _due.pop(key)) for key in ready]
        for key, (_, interval, reference) in entries:
            lock = reference()
            if lock is not None and _beat(lock):
                with _condition:
                    _due.setdefault(key, (monotonic() + interval, interval, reference))
            del lock  # or this thread would keep it alive until the next beat


def _beat(lock: BaseLock) -> bool:
    """Refresh one lock; ``False`` when there is no more to do for it."""
    if not lock.held:
        return False
    try:
        lock.refresh()
    except LockLostError as error:
        _report(lock, error)
        return False
    except NotHeldError:
        return False
    except Exception:  # noqa: BLE001 - a full disk now may be well at the next beat
        _log("a heartbeat of %s failed; it is tried again", lock.path)
    return True


def _report(lock: BaseLock, error: LockLostError) -> None:
    if lock._on_lost is None:
        _log("%s", error)
        return
    try:
        lock._on_lost(lock, error)
    except Exception:  # noqa: BLE001 - it is the user's, and must not end the heartbeat
        _log("the on_lost function of %s failed", lock.path)


def _log(message: str, *values: object) -> None:
    import logging  # noqa: PLC0415 - only when something is wrong
    import sys  # noqa: PLC0415

    logging.getLogger("semlock").error(message, *values, exc_info=sys.exc_info()[1] is not None)


_process.on_fork(_forget)
