"""Calling users' functions on separate threads, so that a slow one delays no refresh.

A callback may block for ever, and so may a logging handler.  There are as many threads as
callbacks block at a time, up to a limit.  Calls with the same key, such as one lock's, run in
order.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, sleep

from semlock._core import registry

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

# If this many callbacks block, further ones wait.
_MOST = 32
_LINE_LIMIT = 10_000
_PATIENCE = 0.5
_IDLE = 10.0  # seconds until an unused thread ends


class Calls:
    """Threads that make calls: those with the same key in order, and others beside them."""

    __slots__ = ("_idle", "_lines", "_mutex", "_ready", "_threads", "dropped")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._lines: dict[Hashable, deque[Callable[[], object]]] = {}
        self._ready: SimpleQueue[Hashable | None] = SimpleQueue()  # None ends a thread
        self._threads = 0
        self._idle = 0
        self.dropped = 0

    def put(self, key: Hashable, function: Callable[[], object]) -> bool:
        """Queue a call behind those of its key; ``False`` if too many are queued."""
        with self._mutex:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = deque()
                self._ready.put(key)
            elif len(line) >= _LINE_LIMIT:
                self.dropped += 1
                return False
            line.append(function)
            needed = self._idle < self._ready.qsize() and self._threads < _MOST
            self._threads += needed
        if needed:
            try:
                threading.Thread(
                    target=self._work, name="semlock-callback", daemon=True
                ).start()
            except RuntimeError:  # no thread available: the next call tries again
                with self._mutex:
                    self._threads -= 1
        return True

    def _work(self) -> None:
        while True:
            with self._mutex:
                self._idle += 1
            try:
                key = self._ready.get(timeout=_IDLE)
            except Empty:
                with self._mutex:
                    self._idle -= 1
                    if self._ready.empty():
                        self._threads -= 1
                        return
                continue
            with self._mutex:
                self._idle -= 1
                self._threads -= key is None
            if key is None:
                return
            while (function := self._next(key)) is not None:
                with suppress(BaseException):  # the callback reports its own errors
                    function()
                del function

    def end(self) -> None:
        """End idle threads, and give running callbacks a moment to finish."""
        with self._mutex:
            count = self._threads
        for _ in range(count):
            self._ready.put(None)
        end = monotonic() + _PATIENCE
        while self._threads and monotonic() < end:
            sleep(0.001)

    def _next(self, key: Hashable) -> Callable[[], object] | None:
        with self._mutex:
            line = self._lines[key]
            if line:
                return line.popleft()
            del self._lines[key]
            return None


_calls = Calls()


def call(key: Hashable, function: Callable[[], object]) -> bool:
    """Call a function soon on another thread, after earlier calls with this key."""
    return _calls.put(key, function)


def _forget() -> None:
    # The threads don't exist in the child, and the mutex may have been locked.
    global _calls  # noqa: PLW0603 - one for each process
    _calls = Calls()


def _end() -> None:
    # A subinterpreter can't end while it has a thread.
    if not registry.is_main():
        _calls.end()


registry.on_fork(_forget)
atexit.register(_end)
