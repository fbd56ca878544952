"""etcd: a line is the keys below ``prefix/name/``, in the order of their create revisions.

The number of an entry is its key's create revision, which etcd gives once and never again.  All
entries of a space have one lease, so one renewal keeps them all.  A waiter watches only the key
whose deletion it needs: of the entry before it, or of the last one that must leave.

=============================  ====================================================
key                            value
=============================  ====================================================
``prefix/NAME/TOKEN``          ``room session``, a line feed, and the holder's record
``prefix//SESSION/epoch``      a number: requests with another one are not carried out
``prefix//SESSION/TOKEN``      written by ``remove``: the entry was taken out by force
=============================  ====================================================

A request without an answer may still be under way, in a member that is paused, and be carried
out after its entry was taken out again: then nothing would ever release it.  So each request that
puts an entry compares the epoch of its session, and after a missing answer the epoch is raised
first.
"""

from __future__ import annotations

import threading
from time import monotonic

from semlock._engines.engine import GONE, HOLDS, WAITS, Away, Place
from semlock._engines.etcd_lines import read_key
from semlock._engines.etcd_news import Mine, Watches, holds
from semlock._engines.etcd_stream import encoded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._engines.address import Address
    from semlock._engines.etcd_lines import Key

_TRIES = 5
_MOST_OPERATIONS = 128  # in one transaction, by etcd's default
_GONE = Place(GONE)


def connect(address: Address, *, ttl: float, client: str, within: float | None = None) -> Etcd:
    """Connect to an etcd, and see that it answers."""
    del client  # a session has its lease's number as its name
    engine = Etcd(address, ttl)
    try:
        engine.names(within=min(5.0, max(2.0, ttl)) if within is None else within)
    except BaseException:
        engine.close()
        raise
    return engine


class Etcd(Watches):
    """An ``Engine``."""

    # ------------------------------------------------------------------ entries

    def enter(
        self, name: str, token: str, record: bytes, room: int, *, waits: bool, within: float
    ) -> Place:
        """Put an entry at the end of a line, or ask for one that is there."""
        until = monotonic() + within
        key = self.key(name, token)
        for _ in range(_TRIES):
            lease = self.session.ready(until)
            self.watch_session()
            mine = self.mine.get(token)
            seen = self._line_before(name, room, None if mine is None else mine.fence)
            compare: list[dict[str, Any]] = [_absent(key), self.session.is_of(lease)]
            if not waits and room == 1:
                compare.append(_absent(*self.bounds(name)))
            value = f"{room} {lease.name}\n".encode() + record
            put = {"key": encoded(key), "value": encoded(value), "lease": lease.number}
            newest = self._line_before(name, room, 0)
            answer = self.session.put_entry(
                lease,
                {
                    "compare": compare,
                    "success": [{"request_put": put}, {"request_range": newest}],
                    "failure": [{"request_range": seen}, {"request_range": lease.read_epoch}],
                },
                until,
            )
            if answer is None:
                continue  # the lease is over
            revision, found = int(answer["header"]["revision"]), answer["responses"]
            kvs = found[-1 if answer.get("succeeded") else 0]["response_range"].get("kvs", [])
            entries = sorted(read_key(kv) for kv in kvs)
            place = next((i for i, e in enumerate(entries) if e.key == key), None)
            if place is None:
                if not self.session.confirm(lease, found[-1]["response_range"].get("kvs", [])):
                    continue
                self.forget(token)
                return _GONE  # others are in the line
            return self._settle(token, name, room, entries[: place + 1], revision, waits, until)
        raise Away("etcd ends the lease of this space again and again")

    def _settle(
        self,
        token: str,
        name: str,
        room: int,
        line: list[Key],
        revision: int,
        waits: bool,
        until: float,
    ) -> Place:
        """Act on where an entry stands: at the end of this part of its line."""
        fence = line[-1].number
        with self.guard:
            mine = self.mine.get(token)
            if mine is None:
                mine = self.mine[token] = Mine(name, fence, room)
            mine.fence = fence
            mine.sure = True
            mine.before = [(entry.key, entry.room) for entry in line[:-1]]
            mine.holds = holds(mine)
        if mine.holds:
            self.watch(token, mine, (), revision, until)
            return Place(HOLDS, fence)
        if not waits:
            self.leave(name, token, within=max(0.0, until - monotonic()))
            return _GONE
        # All with a room of 1 before it must leave, and all if its own is 1: hear of the last of
        # them.  Otherwise some must, whichever they are.
        last = next((k for k, r in reversed(mine.before) if 1 in (r, room)), None)
        awaited = [key for key, _ in mine.before] if last is None else [last]
        self.watch(token, mine, awaited, revision, until)
        return Place(WAITS, fence)

    def leave(self, name: str, token: str, *, within: float) -> bool:
        until = monotonic() + within
        self.session.settle(until)  # nothing that is under way can put it there again
        fields = {"key": encoded(self.key(name, token))}
        answer = self.gateway.call("kv/deleterange", fields, until - monotonic())
        self.forget(token)
        return int(answer.get("deleted", 0)) > 0

    def renew(self, entries: Sequence[tuple[str, str]], *, within: float) -> list[Place]:
        """Renew the lease, and say where entries stand."""
        until = monotonic() + within
        if not self.session.renew(until):
            self.forget_all()
            return [_GONE] * len(entries)
        self.watch_session()
        if threading.get_ident() != self.hearer:
            # A check: what was told of removals may not yet have been heard.
            for _, token in entries:
                if (mine := self.mine.get(token)) is not None:
                    mine.sure = False
        self._ask_for_awaited([token for _, token in entries], until)
        return [self._place(name, token, until) for name, token in entries]

    def _place(self, name: str, token: str, until: float) -> Place:
        with self.guard:
            mine = self.mine.get(token)
            if mine is not None and mine.sure:
                return Place(HOLDS if mine.holds else WAITS, mine.fence)
        fields = {"key": encoded(self.key(name, token)), "keys_only": True}
        answer = self.gateway.call("kv/range", fields, until - monotonic())
        if not answer.get("kvs"):
            self.forget(token)
            return _GONE
        fence = int(answer["kvs"][0]["create_revision"])
        with self.guard:
            mine = self.mine.get(token)
            if mine is None or mine.fence != fence:
                return Place(WAITS, fence, 0.0)
            mine.sure = True
            return Place(HOLDS, fence) if mine.holds else Place(WAITS, fence, 0.0)

    def _ask_for_awaited(self, tokens: list[str], until: float) -> None:
        """Tell of ends that no watch has told: look whether what waiters wait for is there."""
        asked = []
        for token in tokens:
            mine = self.mine.get(token)
            if mine is not None and not mine.holds and len(mine.awaits) == 1:
                asked.append((token, *mine.awaits))
        for start in range(0, len(asked), _MOST_OPERATIONS):
            some = asked[start : start + _MOST_OPERATIONS]
            reads = [
                {"request_range": {"key": encoded(key), "count_only": True}} for _, key in some
            ]
            answer = self.gateway.call("kv/txn", {"success": reads}, until - monotonic())
            for (token, _), found in zip(some, answer["responses"], strict=True):
                if not int(found["response_range"].get("count", 0)):
                    with self.guard:
                        self.news.append((token, 0))

    def close(self) -> None:
        """Close the connections; the lease ends at once if nothing stands in a line by it."""
        with self.guard:
            entries = list(self.mine.values())
        for mine in entries:
            self.drop_stream(mine)
        self.session.close(revoke=not entries)
        self.gateway.close()
        self.close_watches()

    # ------------------------------------------------------------------ keys

    def _line_before(self, name: str, room: int, fence: int | None) -> dict[str, Any]:
        """Ask for an entry and those before it: the newest, if its number is 0; else all."""
        start, end = self.bounds(name)
        fields: dict[str, Any] = {"key": encoded(start), "range_end": encoded(end)}
        if room == 1:  # only which one is before it, and whether that one is the first
            fields |= {"keys_only": True, "sort_order": "DESCEND", "sort_target": "CREATE"}
            if fence is not None:
                fields["limit"] = "3"
        if fence:
            fields["max_create_revision"] = str(fence)
        return fields


def _absent(key: str, end: str = "") -> dict[str, Any]:
    """Give the condition that there is no such key, or none in a range."""
    fields = {
        "key": encoded(key),
        "target": "CREATE",
        "result": "EQUAL",
        "create_revision": "0",
    }
    return fields | {"range_end": encoded(end)} if end else fields
