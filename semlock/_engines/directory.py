"""A shared directory as an engine: ``file:///net/project/locks``, on NFS, SMB or a local disk.

No server takes part.  A line is in ``directory_line.py``, a client's lease, by which all its
entries stand, in ``directory_client.py``.  An entry counts while its client's lease lasts.  So the
renewal of a thousand locks of a process is one change of one file.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from functools import partial
from hashlib import sha256

from semlock._core import callbacks
from semlock._engines.directory_client import Lease, Others
from semlock._engines.directory_facts import mount_of
from semlock._engines.directory_line import (
    IDLE_PERIOD,
    Item,
    Lines,
    News,
    holders,
    make_directory,
    of_failure,
    sync_directory,
)
from semlock._engines.engine import GONE, HOLDS, WAITS, Away, Entry, Fact, Place, Refused, now

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import TypeVar

    from semlock._engines.address import Address
    from semlock._engines.directory_line import Line

    T = TypeVar("T")
    Change = Callable[[Line], tuple[list[Item] | None, T]]

# A lease is renewed by an acquire when this part of it has passed.
_SOON = 1 / 3
# Without events a waiter reads its line so often, should a letter be lost.
_LINE_PERIOD = 2.0
_SHORTEST, _LONGEST = 0.0005, 0.05


class DirectoryEngine:
    """An ``Engine`` on a directory."""

    def __init__(self, address: Address, *, ttl: float) -> None:
        if address.query:
            raise Refused(f"the address has options that a directory has not: "
                          f"{sorted(address.query)}")  # fmt: skip
        if address.ca or address.cert or address.key:
            raise Refused("ca, cert and key are for TLS")
        self._root = address.database
        self._ttl = ttl
        self._over = threading.Event()
        self._calls = callbacks.Calls()
        self._under_way: dict[Hashable, threading.Event] = {}
        self.mount = mount_of(self._root)
        mode = self._mode()
        name = address.prefix
        if len(name) > 200:
            name = sha256(name.encode()).hexdigest()
        self._place = os.path.join(self._root, f"{name}.locks")
        clients = os.path.join(self._place, "clients")
        self._lease = Lease(clients, ttl, mode)
        self._others = Others(clients, self.mount.slack, caches=not self.mount.local)
        lines = os.path.join(self._place, "lines")
        self._lines = Lines(lines, mode, caches=not self.mount.local)
        self._parts = (self._place, clients, lines)
        self._news = News(clients, local=self.mount.local)
        self._told = False  # a letter said that an entry was removed, or letters were lost
        # The entries of ours that hold: by which lease, and their numbers.
        self._held: dict[str, tuple[str, int]] = {}
        self._has_parts = False
        self._hearing = threading.Lock()

    def _mode(self) -> int:
        """Look at the directory: the mode for what is made in it."""
        seen = os.stat(self._root)  # it raises what is wrong
        if not os.path.isdir(self._root):
            raise Refused(f"{self._root} is not a directory")
        return (
            seen.st_mode & 0o2777
        )  # not sticky: each client may have to remove another's lease

    # ------------------------------------------------------------------ calls that end in time

    def _do(self, key: Hashable, within: float, function: Callable[[], T]) -> T:
        """Do something on the filesystem; on one of a file server, which may hang, in a thread."""
        if self.mount.local:
            return self._worded(function)
        answer: list[T | BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                answer.append(self._worded(function))
            except BaseException as error:  # noqa: BLE001 - raised where it belongs
                answer.append(error)
            done.set()

        end = now() + within
        earlier = self._under_way.get(key)
        if earlier is not None and not earlier.wait(within):
            raise Away(f"{self._root} gave no answer in time")
        self._under_way[key] = done
        if not self._calls.put(key, work) or not done.wait(max(0.0, end - now())):
            raise Away(f"{self._root} gave no answer in time")
        if isinstance(answer[0], BaseException):
            raise answer[0]
        return answer[0]

    def _worded(self, function: Callable[[], T]) -> T:
        try:
            return function()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and os.path.isdir(self._root):
                if os.path.dirname(str(error.filename)) == self._root:
                    raise Refused(f"nothing can be made in {self._root}") from None
                self._has_parts = False
                raise Away(f"{error.filename} was removed meanwhile") from None
            raise of_failure(error, self._root) from None
        except ValueError as error:  # NUL in the path
            raise Refused(f"{self._root!r:.100}: {error}") from None

    # ------------------------------------------------------------------ lines

    def _update(self, name: str, change: Change[T], within: float, *, lasts: bool = False) -> T:
        """Change a line: again if another client was faster.  Those that hold then are told."""
        end, pause, fresh = now() + within, _SHORTEST, not self.mount.local
        while True:
            line = self._lines.read(name, fresh=fresh)
            items, answer = change(line)
            if items is None:
                return answer
            if self._lines.replace(name, line, items, lasts=lasts):
                before = {item.token for item in holders(line.items)}
                for item in holders(items):
                    if item.token not in before and item.number <= line.version:
                        self._others.tell(item.client, item.token, item.number)
                return answer
            if now() > end:
                raise Away(f"other clients change the line of {name!r:.80} all the time")
            if line.version >= 0:
                threading.Event().wait(random.uniform(0, pause))  # noqa: S311 - to spread them
            pause = min(2 * pause, _LONGEST)

    def _living(self, items: Iterable[Item], token: str, own: str) -> list[Item]:
        """Leave out entries whose client is over, as far as this entry waits for them."""
        kept = list(items)
        lives: dict[str, bool] = {}
        while True:
            held = holders(kept)
            at = next((i for i, item in enumerate(kept) if item.token == token), len(kept))
            matter = (
                {item.client for item in [*held, *kept[:at][-1:]]} if at >= len(held) else set()
            )
            unknown = matter - lives.keys()
            for client in unknown:
                if client != own:
                    self._news.watch(client)  # before the look, so that no change is missed
                lives[client] = client == own or self._others.lives(client)
            if not unknown:
                self._news.stand_behind(token, matter - {own})
                return kept
            kept = [item for item in kept if lives.get(item.client, True)]

    def _place_of(self, items: Sequence[Item], token: str, since: float) -> Place:
        for item in holders(items):
            if item.token == token:
                self._news.forget(token)
                self._held[token] = item.client, item.number
                return Place(HOLDS, item.number, None, since)
        own = next((item for item in items if item.token == token), None)
        if own is None:
            self._forget(token)
            return Place(GONE)
        ends = [self._others.left(client) for client in self._news.before(token)]
        again = min((left + 0.01 for left in ends if left is not None), default=self._ttl)
        if not self._news.are_reported:
            again = min(again, _LINE_PERIOD)
        return Place(WAITS, own.number, again, since)

    def enter(
        self, name: str, token: str, record: bytes, room: int, *, waits: bool, within: float
    ) -> Place:
        self._do("lease", within, self._keep_lease)

        def change(line: Line) -> tuple[list[Item] | None, Place]:
            client, since = self._lease.claim
            known = [i for i in line.items if i.token != token or i.client == client]
            items = self._living(known, token, client)
            if not any(item.token == token for item in items):
                text = record.decode("utf-8", "surrogateescape")
                items.append(Item(token, line.version + 1, room, client, text))
            place = self._place_of(items, token, since)
            if place.state == WAITS and not waits:
                self._forget(token)
                if not any(item.token == token for item in line.items):
                    return None, Place(GONE)
                items = [item for item in items if item.token != token]
                place = Place(GONE)
            return None if tuple(items) == line.items else items, place

        return self._do(name, within, lambda: self._update(name, change, within, lasts=True))

    def leave(self, name: str, token: str, *, within: float) -> bool:
        self._forget(token)

        def change(line: Line) -> tuple[list[Item] | None, bool]:
            items = [item for item in line.items if item.token != token]
            there = len(items) < len(line.items)
            return (items if there else None), there

        return self._do(name, within, lambda: self._update(name, change, within))

    def remove(self, name: str, token: str, *, within: float) -> bool:
        removed: list[Item] = []

        def change(line: Line) -> tuple[list[Item] | None, bool]:
            removed[:] = [item for item in line.items if item.token == token]
            items = [item for item in line.items if item.token != token]
            return (items if removed else None), bool(removed)

        def work() -> bool:
            gone = self._update(name, change, within)
            for item in removed if gone else ():
                self._others.tell(item.client, item.token, 0)
            return gone

        return self._do(name, within, work)

    def renew(self, entries: Sequence[tuple[str, str]], *, within: float) -> list[Place]:
        """Renew the lease; lines are read of entries that wait, and of one that is asked for."""
        if not self._do("lease", within, self._lease.renew):
            return [Place(GONE)] * len(entries)
        client, since = self._lease.claim
        end = now() + within
        all_of_them, self._told = self._told or len(entries) == 1, False
        places = []
        for name, token in entries:
            held, number = self._held.get(token, ("", 0))
            if held != client or all_of_them:
                left = max(0.01, end - now())
                places.append(self._do(name, left, partial(self._look, name, token, left)))
            else:
                places.append(Place(HOLDS, number, None, since))
        return places

    def _look(self, name: str, token: str, within: float) -> Place:
        def change(line: Line) -> tuple[list[Item] | None, Place]:
            own = next((item for item in line.items if item.token == token), None)
            client, since = self._lease.claim
            if own is None or own.client != client:
                self._forget(token)
                return None, Place(GONE)
            items = self._living(line.items, token, client)
            place = self._place_of(items, token, since)
            return None if tuple(items) == line.items else items, place

        return self._update(name, change, within)

    def line(self, name: str, *, within: float) -> list[Entry]:
        return self._do(
            name,
            within,
            lambda: self._entries(self._lines.read(name, fresh=not self.mount.local)),
        )

    def _entries(self, line: Line) -> list[Entry]:
        own, renewed = self._lease.claim
        lives: dict[str, bool] = {own: True}
        for item in line.items:
            if item.client not in lives:
                lives[item.client] = self._others.lives(item.client, only_look=True)
        items = [item for item in line.items if lives[item.client]]
        held = holders(items)
        found = []
        for item in items:
            left = self._others.left(item.client)
            if item.client == own:
                left = max(0.0, renewed + self._ttl - now())
            record = item.record.encode("utf-8", "surrogateescape")
            found.append(Entry(item.token, item.number, item.room, record, item in held, left))
        return found

    def names(self, *, within: float) -> list[str]:
        return self._do(
            "names",
            within,
            lambda: [name for name, line in self._lines.all() if self._entries(line)],
        )

    def facts(self, *, within: float) -> list[Fact]:
        """Say what the directory's filesystem can do."""
        from semlock._engines.directory_facts import facts_of  # noqa: PLC0415 - for people

        return self._do("facts", within, lambda: facts_of(self._root, self.mount, self._ttl))

    # ------------------------------------------------------------------ this client

    def _keep_lease(self) -> None:
        """Have a lease of which enough is left."""
        if self._over.is_set():
            raise Refused("the space is closed")
        for _ in range(2):
            self._make_parts()
            if self._lease.make():
                own = self._lease.claim[0]
                self._news.listen(own)
                self._others.clear(own)
            if now() < self._lease.claim[1] + self._ttl * _SOON or self._lease.renew():
                return

    def _make_parts(self) -> None:
        if self._has_parts:
            return
        mode = self._mode()
        for part in self._parts:
            with suppress(FileExistsError):
                make_directory(part, mode)
                sync_directory(os.path.dirname(part))
        self._has_parts = True

    def _forget(self, token: str) -> None:
        self._news.forget(token)
        self._held.pop(token, None)

    # ------------------------------------------------------------------ news

    def hear(self, seconds: float) -> Sequence[tuple[str, int]] | None:
        """Wait for letters, and for the end of clients that others wait for."""
        with self._hearing:
            return self._hear(now() + seconds)

    def _hear(self, end: float) -> Sequence[tuple[str, int]] | None:
        found: list[tuple[str, int]] = []
        limit = max(0.05, self._ttl / 4)
        while not self._over.is_set():
            found += self._news.due()
            heard = self._do("letters", limit, self._lease.letters)
            if heard is None:
                self._told = True
                return None
            self._told |= any(number == 0 for _, number in heard)
            found += heard
            left = end - now()
            if found or left <= 0:
                return found
            found += self._news.sleep(min(left, limit))
        return found

    def close(self) -> None:
        """End the lease, and with it all that this client holds."""
        self._over.set()
        self._news.end()
        with suppress(Away, Refused):  # an event that ends hear()
            self._do("lease", min(1.0, self._ttl / 3), self._lease.forget)
        self._calls.end()
        if self._hearing.acquire(timeout=IDLE_PERIOD):
            self._news.close()
            self._hearing.release()


def connect(
    address: Address, *, ttl: float, client: str, within: float | None = None
) -> DirectoryEngine:
    """Look at a directory."""
    del client, within  # each lease has a name of its own, and nothing is asked of a server
    try:
        return DirectoryEngine(address, ttl=ttl)
    except OSError as error:
        raise of_failure(error, address.database) from None
    except ValueError as error:
        raise Refused(f"{address.database!r:.100}: {error}") from None
