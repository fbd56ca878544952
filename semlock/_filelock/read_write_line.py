"""Tasks that share one ``ReadWriteLock`` get it in turn, also those of several event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from semlock._filelock.errors import Timeout

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal


class Hold:
    """What one task holds: the mode, and how often it acquired by each wrapper of the lock."""

    __slots__ = ("levels", "mode")

    def __init__(self, mode: Literal["read", "write"]) -> None:
        self.mode = mode
        self.levels: dict[object, int] = {}

    def __repr__(self) -> str:
        return "a task's hold"


class _Place:
    """Where a task waits."""

    __slots__ = ("admitted", "loop", "mode", "woken")

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.loop = asyncio.get_running_loop()
        self.woken = self.loop.create_future()
        self.admitted = False

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Line:
    """Readers together or one writer; a waiting writer goes before the readers that come later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = ""
        self._inside = 0
        self._waiting: deque[_Place] = deque()
        # What each task holds that is inside.
        self.holds: dict[asyncio.Task[Any], Hold] = {}

    def _admit(self, mode: str) -> bool:
        if self._inside and not mode == self._mode == "read":
            return False
        self._mode = mode
        self._inside += 1
        return True

    async def enter(self, mode: str, seconds: float, path: str, *, blocking: bool) -> None:
        """Wait until the task may take the lock; ``seconds`` is negative for no limit."""
        with self._lock:
            if not self._waiting and self._admit(mode):
                return
            if not blocking or seconds == 0:
                raise Timeout(path)
            place = _Place(mode)
            self._waiting.append(place)
        try:
            await asyncio.wait({place.woken}, timeout=None if seconds < 0 else seconds)
        except BaseException:
            self._go_away(place)
            if place.admitted:
                self.leave()
            raise
        self._go_away(place)
        if not place.admitted:
            raise Timeout(path)

    def _go_away(self, place: _Place) -> None:
        with self._lock:
            if not place.admitted:
                self._waiting.remove(place)
                self._admit_next()

    def leave(self) -> None:
        """Let the next ones in."""
        with self._lock:
            self._inside -= 1
            self._admit_next()

    def _admit_next(self) -> None:
        while self._waiting and self._admit(self._waiting[0].mode):
            place = self._waiting.popleft()
            place.admitted = True
            try:
                place.loop.call_soon_threadsafe(place.wake)
            except RuntimeError:  # its loop is closed, and the task will never go on
                self._inside -= 1
