"""How a thread or a task sleeps until something happens to a path; it knows no lock object.

Its own names are what a wait reports of itself, to a callback and the log, and what it asks
meanwhile.
"""

from __future__ import annotations

from semlock._core import explain, inside

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._core.status import LockStatus


inf = float("inf")  # `math` would be one more file to load
_FIRST_GAP = 1.0
_LONGEST_GAP = 60.0
_GROWTH = 2.0

_DEBUG = 10
INFO = 20

# A wait is logged after this many seconds, at level INFO once for each lock in a while: a crowd of
# waiters gives one line.  Further ones are at level DEBUG.
_LOGGED_AFTER = 1.0
_SILENCE = 60.0
_MOST_PATHS = 256

_logged: dict[str, float] = {}


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


def notice_of(
    lock: Any,
    status: Callable[[], LockStatus],
    call: Callable[[LockStatus, float], object] | None,
    logger: Any,
) -> Notice:
    """Give the notice of a wait for a lock that has something to tell or to ask."""
    if inside.cancel(lock) is None:
        return Notice(status, call, logger)
    return Cancellable(lock, None if call is logger is None else Notice(status, call, logger))


def _level(path: str, now: float) -> int:
    """Give the level of the log line: INFO for the first one about a path in a while."""
    last = _logged.get(path)
    if last is not None and 0 <= now - last < _SILENCE:
        return _DEBUG
    if len(_logged) >= _MOST_PATHS:
        _logged.clear()
    _logged[path] = now
    return INFO
