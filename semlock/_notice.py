"""Telling people about a wait: a callback, now and then, and one line in the log."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._engine import BaseLock
    from semlock._status import LockStatus

_FIRST_GAP = 1.0
_LONGEST_GAP = 60.0
_GROWTH = 2.0

_INFO = 20


def _logger() -> Any:
    """Give the logger, if the program has logging at all: nobody listens where it hasn't."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    logger = logging.getLogger("semlock")
    return logger if logger.isEnabledFor(_INFO) else None


class Notice:
    """What one wait tells: at its beginning, and then after growing gaps."""

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
        # When to tell next, on the clock of the wait; infinity for never again.
        self.due = 0.0

    def tell(self, now: float) -> None:
        """Tell what is to be told by now."""
        if now < self.due:
            return
        if self._began is None:
            self._began = now
        try:
            found = self._status()
        except OSError:
            found = None  # whoever tries next will say what is wrong
        self.due = now + self._gap if self._call is not None else float("inf")
        if found is None or found.state == "free":
            return
        self._gap = min(self._gap * _GROWTH, _LONGEST_GAP)
        if self._logger is not None:
            self._logger.info("waiting for %s, held by %s", found.path, found.holder)
            self._logger = None
        if self._call is not None:
            self._call(found, now - self._began)


def notice_of(lock: BaseLock, status: Callable[[], LockStatus] | None = None) -> Notice | None:
    """Say what a wait for this lock has to tell, if anybody wants to hear it."""
    logger = _logger()
    if lock._on_wait is None and logger is None:
        return None
    return Notice(status or lock.status, lock._on_wait, logger)
