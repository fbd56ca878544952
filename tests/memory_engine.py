"""An engine in memory: it shows what a space needs of an engine, and counts the requests.

A ``Server`` has the lines; each ``MemoryEngine`` is a client's connection to it.  The server can be
away, lose answers, and forget entries, as real ones do.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from queue import Empty, SimpleQueue

from semlock._engines.address import Address
from semlock._engines.client import Client
from semlock._engines.engine import GONE, HOLDS, WAITS, Away, Entry, Fact, Place
from semlock._engines.space import Space


class Row:
    """One entry, as the server has it."""

    def __init__(self, token, number, record, room, engine):
        self.token, self.number, self.record, self.room = token, number, record, room
        self.engine = engine
        self.ends = 0.0
        self.told = False


class Server:
    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.lines: dict[str, list[Row]] = {}
        self.numbers = itertools.count(1)
        self.requests: Counter[str] = Counter()
        self.news = 0
        self.away = False
        self.loses_answers = 0  # so many requests are done and not answered
        self.takes = 0.0  # seconds until a request is begun

    def settle(self, name: str) -> None:
        """Take out entries whose lease is over, and tell those that hold now."""
        now = time.monotonic()
        line = self.lines.get(name, [])
        line[:] = [row for row in line if row.ends > now]
        if not line:
            self.lines.pop(name, None)
        for row in self.holders(name):
            if not row.told:
                row.told = True
                self.news += 1
                row.engine.news.put((row.token, row.number))

    def holders(self, name: str) -> list[Row]:
        held, most = [], float("inf")
        for row in self.lines.get(name, ()):
            most = min(most, row.room)
            if len(held) + 1 > most:
                break
            held.append(row)
        return held

    def place(self, name: str, row: Row) -> Place:
        if row in self.holders(name):
            row.told = True
            return Place(HOLDS, row.number)
        line = self.lines[name]
        before = line[: line.index(row)]
        return Place(
            WAITS, row.number, max(0.0, min(r.ends for r in before) - time.monotonic())
        )


class MemoryEngine:
    def __init__(self, server: Server, ttl: float) -> None:
        self.server, self.ttl = server, ttl
        self.news: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.cut = False  # this client alone can't reach the server

    def _request(self, kind: str, within: float, do):
        if self.cut or self.server.away:
            time.sleep(min(within, 0.01))
            raise Away("the server in memory is away")
        time.sleep(self.server.takes)
        with self.server.guard:
            self.server.requests[kind] += 1
            answer = do()
            if self.server.loses_answers:
                self.server.loses_answers -= 1
                raise Away("the answer was lost")
            return answer

    def _find(self, name, token):
        return next((r for r in self.server.lines.get(name, ()) if r.token == token), None)

    def enter(self, name, token, record, room, *, waits, within):
        def do():
            self.server.settle(name)
            row = self._find(name, token)
            if row is None:
                row = Row(token, next(self.server.numbers), record, room, self)
                self.server.lines.setdefault(name, []).append(row)
            row.ends = time.monotonic() + self.ttl
            place = self.server.place(name, row)
            if place.state == WAITS and not waits:
                self.server.lines[name].remove(row)
                return Place(GONE)
            return place

        return self._request("enter", within, do)

    def leave(self, name, token, *, within):
        def do():
            row = self._find(name, token)
            if row is not None:
                self.server.lines[name].remove(row)
            self.server.settle(name)
            return row is not None

        return self._request("leave", within, do)

    def renew(self, entries, *, within):
        def do():
            places = []
            for name, token in entries:
                row = self._find(name, token)
                if row is not None and row.ends > time.monotonic():
                    row.ends = time.monotonic() + self.ttl
                self.server.settle(name)
                row = self._find(name, token)
                places.append(Place(GONE) if row is None else self.server.place(name, row))
            return places

        return self._request("renew", within, do)

    def hear(self, seconds):
        end = time.monotonic() + seconds
        if self.cut or self.server.away:
            time.sleep(min(seconds, 0.01))
            raise Away("the server in memory is away")
        heard = []
        while not heard and (left := end - time.monotonic()) > 0:
            try:
                heard.append(self.news.get(timeout=min(left, 0.05)))
            except Empty:
                if self.cut or self.server.away:
                    raise Away("the server in memory is away") from None
        return heard

    def line(self, name, *, within):
        def do():
            self.server.settle(name)
            holders = self.server.holders(name)
            return [
                Entry(
                    r.token, r.number, r.room, r.record, r in holders, r.ends - time.monotonic()
                )
                for r in self.server.lines.get(name, ())
            ]

        return self._request("line", within, do)

    def names(self, *, within):
        return self._request("names", within, lambda: list(self.server.lines))

    def remove(self, name, token, *, within):
        def do():
            row = self._find(name, token)
            if row is None:
                return False
            self.server.lines[name].remove(row)
            row.engine.news.put((token, 0))
            self.server.settle(name)
            return True

        return self._request("remove", within, do)

    def facts(self, *, within):
        return self._request("facts", within, lambda: [Fact("version", "1")])

    def close(self):
        self.cut = True  # which ends the sleep in hear()


def space_on(server: Server, ttl: float = 15.0) -> Space:
    """Connect to a server in memory."""
    address = Address("redis://memory")
    return Space(Client(MemoryEngine(server, ttl), address, ttl))
