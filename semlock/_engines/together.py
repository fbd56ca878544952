"""``acquire_any`` for locks on an engine: it stands in the line of each of them at once."""

from __future__ import annotations

import sys
import threading
from time import monotonic

from semlock._core import explain
from semlock._core.outcomes import OK
from semlock._core.seconds import checked_timeout
from semlock._engines.lock import EngineLock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable


def distinct(locks: Iterable[EngineLock]) -> list[EngineLock]:
    """Check that these are locks for threads on engines, of different names."""
    chosen = list(locks)
    for lock in chosen:
        if not isinstance(lock, EngineLock) or hasattr(lock, "_holder"):
            raise TypeError(f"each of the locks is a Lock of the space, not {lock!r}")
    if not chosen:
        raise ValueError("there is no lock to wait for")
    paths = [lock.path for lock in chosen]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path} is there twice, and would wait for itself")
    return chosen


def acquire_any(locks: Iterable[EngineLock], timeout: float | None = None) -> EngineLock:
    """Take the first of some locks that gets free, and return it."""
    chosen = distinct(locks)
    limit = None if timeout is None else checked_timeout(timeout)
    frame = sys._getframe(2)  # the user's call of the space's method
    for lock in chosen:
        if lock.try_acquire():
            return lock
    if limit == 0:
        raise explain.timeout_error(chosen[0], 0.0)
    if all(lock.is_mine() for lock in chosen):
        raise explain.deadlock_error(chosen[0], frame)
    began = monotonic()
    waits = [lock.begin_waiting(limit) for lock in chosen]
    event = threading.Event()
    won = None
    try:
        while True:
            left = None if limit is None else limit - (monotonic() - began)
            pauses = [] if left is None else [left]
            for lock, wait in zip(chosen, waits, strict=True):
                pause = wait.step(event.set)
                if wait.outcome == OK:
                    won = lock
                    return lock
                if pause is not None:
                    pauses.append(pause)
            if left is not None and left <= 0:
                raise explain.timeout_error(  # noqa: TRY301 - as always
                    chosen[0], monotonic() - began
                )
            event.wait(max(0.0, min(pauses)) if pauses else None)
            event.clear()
    except BaseException:
        for lock, wait in zip(chosen, waits, strict=True):
            if lock.holds_by(wait.ticket):
                lock.release()
        raise
    finally:
        for lock, wait in zip(chosen, waits, strict=True):
            if lock is not won:
                wait.end()
