"""What a wait does for others: it reports itself, to a callback and the log, and ends when told so.

``cancel`` ends the waits of a lock from elsewhere: another thread, another task, a signal handler.
Each wait is entered here by a weak reference: one that is interrupted before its ``end`` leaves its
queue with the last reference.  A wait looks whether it was stopped before each sleep, and a sleep
that is under way ends.
"""

from __future__ import annotations

import sys
from math import inf
from weakref import ref

from semlock._core import explain, inside, registry

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._core.status import LockStatus

_FIRST_GAP = 1.0
_LONGEST_GAP = 60.0
_GROWTH = 2.0

_DEBUG = 10
_INFO = 20

# A wait is logged after this many seconds, at level INFO once for each lock in a while: a crowd of
# waiters gives one line.  Further ones are at level DEBUG.
_LOGGED_AFTER = 1.0
_SILENCE = 60.0
_MOST_PATHS = 256

_logged: dict[str, float] = {}

_named: Any = None


def _logger() -> Any:
    """Give the logger; ``None`` if the program has none, or wants no such level."""
    global _named  # noqa: PLW0603 - there is one logger of this name
    if _named is None:
        try:
            _named = sys.modules["logging"].getLogger("semlock")  # kept: getLogger takes a lock
        except AttributeError:  # a thread is just importing it
            return None
    return _named if _named.isEnabledFor(_INFO) else None


class Notice:
    """What one wait reports: at its beginning, and then at growing intervals."""

    __slots__ = ("_began", "_call", "_gap", "_logger", "_status", "due")

    def __init__(
        self,
        status: Callable[[], LockStatus],
        call: Callable[[LockStatus, float], object] | None,
        logger: Any,
    ) -> None:
        self._status = status
        self._call = call
        self._logger = logger
        self._began: float | None = None
        self._gap = _FIRST_GAP
        # When to report next, on the clock of the wait; infinity for never.
        self.due = 0.0

    def tell(self, now: float) -> None:
        """Report what is due."""
        if now < self.due:
            return
        began = self._began
        if began is None:
            began = self._began = now
        waited = now - began
        logs = self._logger is not None and waited >= _LOGGED_AFTER
        if self._call is None and not logs:
            self.due = began + _LOGGED_AFTER
            return
        try:
            found = self._status()
        except OSError:
            found = None  # the next try will say what is wrong
        self.due = now + self._gap if self._call is not None else inf
        if found is None or found.state == "free":
            if self._logger is not None and self._call is None:
                self.due = now + self._gap
            return
        self._gap = min(self._gap * _GROWTH, _LONGEST_GAP)
        if logs:
            level = _level(found.path, now)
            self._logger.log(level, "waiting for %s, held by %s", found.path, found.holder)
            self._logger = None
        if self._call is not None:
            self._call(found, waited)


class Cancellable(Notice):
    """A notice of a wait that also asks whether the wait is to end."""

    __slots__ = ("_asked_at", "_check", "_every", "_lock", "_notice")

    def __init__(self, lock: Any, notice: Notice | None) -> None:
        # Of a notice it has only the method and the time; what is told is another one.
        self._lock = lock
        self._notice = notice
        self._check, self._every = inside.cancel(lock) or (bool, inf)
        self._asked_at = -inf
        self.due = 0.0

    def tell(self, now: float) -> None:
        """Raise the error that ends the wait, or report what is due."""
        if now >= self._asked_at + self._every:
            if self._check():
                raise explain.cancelled_error(self._lock)
            self._asked_at = now
        self.due = self._asked_at + self._every
        if self._notice is not None:
            self._notice.tell(now)
            self.due = min(self.due, self._notice.due)


def _level(path: str, now: float) -> int:
    """Give the level of the log line: INFO for the first one about a path in a while."""
    last = _logged.get(path)
    if last is not None and 0 <= now - last < _SILENCE:
        return _DEBUG
    if len(_logged) >= _MOST_PATHS:
        _logged.clear()
    _logged[path] = now
    return _INFO


# ---------------------------------------------------------------- ending a wait

_under_way: set[ref[Stoppable]] = set()
_forget = _under_way.discard  # one step, in whatever thread drops the last reference
registry.on_fork(_under_way.clear)


class Stoppable:
    """What all kinds of waits share: it is of a lock, whose ``cancel`` ends it."""

    __slots__ = ("__weakref__", "_notice", "of", "stopped")

    _notice: Notice | None

    def begin(self, lock: Any, status: Callable[[], LockStatus] | None = None) -> Notice | None:
        """Enter the wait, if it is of one lock: its notice, if there is anything to tell or ask.

        ``status`` looks at what is waited for, if that is not the lock.
        """
        self.of = lock
        self.stopped = False
        if lock is None:
            return None
        _under_way.add(ref(self, _forget))
        call = inside.on_wait(lock)
        logger = _logger() if "logging" in sys.modules else None
        notice = None if call is logger is None else Notice(status or lock.status, call, logger)
        return notice if inside.cancel(lock) is None else Cancellable(lock, notice)

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        raise NotImplementedError

    def report(self, now: float) -> None:
        """End the wait if it was stopped, or report what is due."""
        if self.stopped:
            self.end_if_stopped()
        if self._notice is not None:
            self._notice.tell(now)

    def end_if_stopped(self) -> None:
        """Raise the error of a wait that was stopped."""
        if self.stopped:
            raise explain.cancelled_error(self.of, "cancel()")


def cancel(lock: Any) -> int:
    """End the waits for a lock that are under way: how many there were."""
    count = 0
    for reference in list(_under_way):
        wait = reference()
        if wait is not None and wait.of is lock:
            wait.stop()
            count += 1
    return count
