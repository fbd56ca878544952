"""What a space in etcd hears: which entries of its own wait, for which keys, and by which watch."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from time import monotonic

from semlock._engines.engine import Away, Refused
from semlock._engines.etcd_lines import Lines, token_of
from semlock._engines.etcd_session import Session
from semlock._engines.etcd_stream import decoded, encoded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from semlock._engines.address import Address
    from semlock._engines.etcd_stream import Stream


_EPOCH = "epoch"
_PATIENCE = 5.0


class Mine:
    """One entry of this space.

    ``before`` are the keys of those before it as far as they matter, each with its room, and
    ``awaits`` the keys of which the deletion of one is news.
    """

    __slots__ = (
        "awaits", "before", "fence", "holds", "local", "name", "room", "stream", "sure",
    )  # fmt: skip

    def __init__(self, name: str, fence: int, room: int) -> None:
        self.name = name
        self.fence = fence
        self.room = room
        self.holds = False
        self.sure = True  # nothing was heard that makes its state doubtful
        self.before: list[tuple[str, int]] = []
        self.awaits: frozenset[str] = frozenset()
        self.stream: Stream | None = None
        self.local = ""  # the entry of this space for whose end it waits


class Watches(Lines):
    """The part of an ``Engine`` that hears."""

    def __init__(self, address: Address, ttl: float) -> None:
        super().__init__(address, ttl)
        self.session = Session(
            self.gateway, self.prefix, ttl, close=self._close, ended=self._doubt_all
        )
        self.guard = threading.Lock()
        self.mine: dict[str, Mine] = {}
        self._local: dict[str, str] = {}  # an entry of this space, and who waits for its end
        self.news: list[tuple[str, int]] = []
        self._all_doubtful = False
        self._hearing = threading.Lock()
        self.hearer = 0  # the thread that hears, and renews by itself
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, "")

    # ------------------------------------------------------------------ news

    def hear(self, seconds: float) -> Sequence[tuple[str, int]] | None:
        """Wait for deletions of the keys that are watched, and for removals by force."""
        self.hearer = threading.get_ident()
        with self.guard:
            news, self.news = self.news, []
            doubtful, self._all_doubtful = self._all_doubtful, False
        if doubtful:
            return None
        for key, _ in self._ready(0.0 if news else max(0.0, seconds)):
            token = key.data
            if key.fileobj is self._bell:
                with suppress(OSError):
                    self._bell.recv(4096)
                if self.gateway.closed:
                    return news
            elif token is None:
                if not self._hear_session(key.fileobj, news):
                    return None
            else:
                self._hear_stream(token, key.fileobj, news)
        with self.guard:
            news += self.news
            self.news = []
        return news

    def _ready(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        with self._hearing:
            if self.gateway.closed:
                raise Away("the space is closed")
            return self._selector.select(seconds)

    def _hear_stream(self, token: str, stream: Any, news: list[tuple[str, int]]) -> None:
        try:
            deleted = _deleted_keys(stream.read())
        except (Away, Refused):
            with self.guard:
                mine = self.mine.get(token)
            if mine is not None and mine.stream is stream:
                self.drop_stream(mine)
                news.append((token, 0))
            return
        with self.guard:
            mine = self.mine.get(token)
            for key in deleted:
                if mine is not None and not mine.holds and key in mine.awaits:
                    told = self._deleted(token, key)
                    if mine.holds or len(mine.awaits) == 1:
                        news.append(told)
        if mine is not None and mine.holds:
            self.drop_stream(mine)

    def _deleted(self, token: str, key: str) -> tuple[str, int]:
        """Note that an entry before this one is gone; give its number if it holds now."""
        mine = self.mine[token]
        mine.before = [entry for entry in mine.before if entry[0] != key]
        mine.holds = mine.holds or holds(mine)
        return token, mine.fence if mine.holds else 0

    def _hear_session(self, stream: Any, news: list[tuple[str, int]]) -> bool:
        """Hear which entries were removed by force; ``False`` if all are doubtful."""
        try:
            events = [e for message in stream.read() for e in message.get("events", ())]
        except (Away, Refused):
            self.session.drop_stream(stream)
            self._doubt_all()
            return False
        for event in events:
            token = decoded(event["kv"]["key"]).rpartition("/")[2]
            if event.get("type") == "DELETE":
                if token == _EPOCH:  # with the lease
                    return False
                continue
            with self.guard:
                after = self._local.pop(token, None)
                if after in self.mine:
                    news.append((after, 0))
                mine = self.mine.get(token)
                if mine is not None:
                    mine.sure = False
                    news.append((token, 0))
        return True

    def _doubt_all(self) -> None:
        with self.guard:
            for mine in self.mine.values():
                mine.sure = False

    def watch_session(self) -> None:
        """Hear of removals by force, by the watch that the session has begun."""
        stream = self.session.new_stream()
        if stream is not None:
            self._doubt_all()  # it tells only of what happens from now on
            with self.guard:
                self._all_doubtful = bool(self.mine)
            self._selector.register(stream, selectors.EVENT_READ, None)
            self._ring()

    def watch(
        self, token: str, mine: Mine, keys: Iterable[str], revision: int, until: float
    ) -> None:
        """Hear of deletions of these keys since a revision, and of nothing else."""
        wanted = frozenset(keys)
        single = token_of(next(iter(wanted))) if len(wanted) == 1 else ""
        with self.guard:
            if mine.local:
                self._local.pop(mine.local, None)
            elif mine.stream is not None and wanted == mine.awaits:
                return
            mine.awaits = wanted
            mine.local = single if single in self.mine else ""
            if local := mine.local:
                self._local[local] = token  # its end is known here at once
        self.drop_stream(mine)
        if local or not wanted:
            return
        fields: dict[str, Any] = {"start_revision": str(revision + 1), "filters": ["NOPUT"]}
        if len(wanted) == 1:
            fields["key"] = encoded(next(iter(wanted)))
        else:
            start, end = self.bounds(mine.name)
            fields |= {"key": encoded(start), "range_end": encoded(end)}
        stream = self.gateway.stream(fields, until - monotonic())
        with self.guard:
            if self.mine.get(token) is mine:
                mine.stream = stream
                self._selector.register(stream, selectors.EVENT_READ, token)
                if stream.early:
                    self.news.append((token, 0))
                self._ring()
                return
        stream.close()

    def drop_stream(self, mine: Mine) -> None:
        """Close the watch of an entry."""
        with self.guard:
            stream, mine.stream = mine.stream, None
        if stream is not None:
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        # In this order: a number that is free may be another stream's at once.
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream)
        stream.close()

    def _ring(self) -> None:
        with suppress(OSError):
            self._ringer.send(b"\0")

    def close_watches(self) -> None:
        """Hear nothing any more, and end the sleep of the thread that hears."""
        self._ring()
        if self._hearing.acquire(timeout=_PATIENCE):  # before, nothing would end that sleep
            self._hearing.release()
        self._selector.close()
        self._bell.close()
        self._ringer.close()

    # ------------------------------------------------------------------ forgetting

    def forget(self, token: str) -> None:
        """Know an entry no longer, and tell who waits for its end here."""
        with self.guard:
            mine = self.mine.pop(token, None)
            after = self._local.pop(token, None)
            if after in self.mine:
                self.news.append(
                    self._deleted(after, self.key(mine.name, token) if mine else "")
                )
                self._ring()
        if mine is not None:
            self.drop_stream(mine)

    def forget_all(self) -> None:
        """Know no entry: the lease is over."""
        for token in list(self.mine):
            self.forget(token)


def holds(mine: Mine) -> bool:
    """Tell whether an entry holds, with those before it."""
    return len(mine.before) < min([mine.room, *(room for _, room in mine.before)])


def _deleted_keys(messages: list[dict[str, Any]]) -> list[str]:
    return [
        decoded(event["kv"]["key"])
        for message in messages
        for event in message.get("events", ())
        if event.get("type") == "DELETE"
    ]
