"""How a client of a shared directory hears: of letters, and of the end of those it waits for.

On one machine the kernel reports both.  What other machines do, no kernel reports: then letters
are looked for at intervals.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress

from semlock._core.changes import Changes
from semlock._engines.clock import now
from semlock._engines.directory_client import LETTERS

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable

# How often letters are looked for while this client waits, and while it does not.
WAITING_PERIOD = 0.1
IDLE_PERIOD = 1.0
# After an event the kernel's proof of a death may take a moment.
_RECHECKS = (0.001, 0.01, 0.1)


class News:
    """What the kernel reports of the directories of clients."""

    def __init__(self, place: str, *, local: bool) -> None:
        self._place = os.fsencode(place)
        self._changes = Changes() if local and sys.platform != "win32" else None
        self._own = -1
        self._marks: dict[int, str] = {}
        # Of each entry of ours that waits: the clients before it, which it watches.
        self._behind: dict[str, frozenset[str]] = {}
        self._again: deque[tuple[float, str]] = deque()
        self._stir = threading.Event()  # ends a sleep without events

    @property
    def are_reported(self) -> bool:
        """Whether the kernel reports letters."""
        return self._own >= 0 and self._changes is not None and self._changes.events >= 0

    def listen(self, client: str) -> None:
        """Have letters to this client be reported."""
        if self._changes is not None:
            self._own = self._changes.watch(os.path.join(self._place, client.encode()))
        self._stir.set()

    def watch(self, client: str) -> None:
        """Have the end of a client be reported from now on."""
        if self._changes is not None and client not in self._marks.values():
            mark = self._changes.watch(os.path.join(self._place, client.encode()))
            if mark >= 0:
                self._marks[mark] = client

    def stand_behind(self, token: str, clients: Iterable[str]) -> None:
        """Note which clients an entry waits for."""
        self._behind[token] = frozenset(clients)
        wanted = set().union(*list(self._behind.values()))
        for mark, client in list(self._marks.items()):
            if client not in wanted and self._changes is not None:
                self._marks.pop(mark, None)
                self._changes.unwatch(mark)
        if not self.are_reported:
            self._stir.set()

    def before(self, token: str) -> frozenset[str]:
        """Give the clients that an entry waits for."""
        return self._behind.get(token, frozenset())

    def forget(self, token: str) -> None:
        """Note that an entry waits no longer."""
        self._behind.pop(token, None)

    def due(self) -> list[tuple[str, int]]:
        """Give the entries that are to be asked for again now."""
        found = []
        for at, token in list(self._again):
            if at <= now():
                with suppress(ValueError):
                    self._again.remove((at, token))
                found.append((token, 0))
        return found

    def sleep(self, seconds: float) -> list[tuple[str, int]]:
        """Sleep until something happens, or it is time to look."""
        for at, _ in list(self._again):
            seconds = min(seconds, max(0.0, at - now()))
        changes = self._changes
        if sys.platform == "win32" or changes is None or not self.are_reported:
            self._stir.wait(min(seconds, WAITING_PERIOD if self._behind else IDLE_PERIOD))
            self._stir.clear()
            return []
        ready = select.poll()
        ready.register(changes.events, select.POLLIN)
        ready.poll(min(seconds, IDLE_PERIOD) * 1000)
        ended: set[str] = set()
        while (count := changes.count()) > 0:
            for mark, _, _, name in changes.read(count):
                if mark < 0:  # too many at once
                    ended = set().union(*list(self._behind.values()))
                elif name != LETTERS.encode():
                    ended.add(self._marks.get(mark, ""))
        if count < 0:
            self._own = -1  # the program has closed it
        told = [token for token, clients in list(self._behind.items()) if clients & ended]
        for pause in _RECHECKS:
            self._again.extend((now() + pause, token) for token in told)
        return [(token, 0) for token in told]

    def end(self) -> None:
        """End a sleep; that with events is ended by the removal of the lease."""
        self._stir.set()

    def close(self) -> None:
        """Listen no longer."""
        if self._changes is not None:
            self._changes.close()
