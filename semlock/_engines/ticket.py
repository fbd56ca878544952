"""One entry of a line, as the client that made it knows it; and who holds a lock by one.

``Hold`` stands for the C structure that locks on files have.
"""

from __future__ import annotations

import os
from threading import RLock
from time import time

from semlock._core import FAIR
from semlock._core.identity import this_process
from semlock._core.records import clean_tag
from semlock._engines.engine import GONE, HOLDS, WAITS, now

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._core.identity import Process
    from semlock._engines.engine import Place


class Hold:
    """A ``Hold`` of ``_stores/store.py``: owner, depth, and what counts wins and releases."""

    __slots__ = (
        "by_object", "depth", "endings", "held", "owner", "reentrant", "serial", "ticket",
        "turns",
    )  # fmt: skip

    def __init__(self, *, reentrant: bool) -> None:
        self.owner = self.depth = self.held = self.serial = self.endings = 0
        self.reentrant = int(reentrant)
        self.by_object = 0
        self.turns = FAIR
        self.ticket: Ticket | None = None  # the entry that holds

    def win(self, ticket: Ticket, owner: int) -> None:
        """Note the win of an entry; an interrupt leaves it noted, or not begun.

        The serial number comes last: a call that sees it raised sees all of the win.
        """
        before = self.serial
        try:
            self.ticket = ticket
            self.depth = self.held = 1
            self.owner = owner
            self.serial = before + 1
        except BaseException:
            if self.serial == before:
                self.depth = self.held = self.owner = 0
            raise

    def nest(self) -> None:
        """Note one more acquisition by the thread that holds."""
        before, depth = self.serial, self.depth
        try:
            self.depth = depth + 1
            self.serial = before + 1
        except BaseException:
            if self.serial == before:
                self.depth = depth
            raise

    def unnest(self) -> None:
        """Note a release that is not the last one."""
        before, depth = self.endings, self.depth
        try:
            self.depth = depth - 1
            self.endings = before + 1
        except BaseException:
            if self.endings == before:
                self.depth = depth
            raise

    def end(self) -> None:
        """Note the last release."""
        before, owner = self.endings, self.owner
        try:
            self.depth = self.owner = self.held = 0
            self.endings = before + 1
        except BaseException:
            if self.endings == before:
                self.depth, self.owner, self.held = 1, owner, 1
            raise


# How fast a clock of a computer may run in comparison with another one's: leases are taken for
# shorter than the engine takes them, by this part.
_DRIFT = 0.001
# Seconds that it takes to tell a loss, which is done before another client can have the lock.
_TELLING = 0.02


class Ticket:
    """A request for a lock: its token, and how it stands.

    :state:     HOLDS, WAITS or GONE by the last answer; 0 as long as there was none
    :confirmed: from when on its lease counts: when the last request was sent that the engine has
        answered, or earlier if it says so
    :again_at:  when to ask again if there is no news; ``None`` for never
    """

    __slots__ = (
        "_answered", "_asks", "_mutex", "_told", "again_at", "asked", "busy", "confirmed",
        "dropped", "fence", "lock", "lost", "name", "record", "room", "state", "token", "ttl",
        "wake",
    )  # fmt: skip

    def __init__(
        self,
        lock: Any,
        name: str,
        room: int,
        ttl: float,
        tag: str | None,
        owner: Process | None = None,
    ) -> None:
        self.lock = lock
        self.name = name
        self.room = room
        self.ttl = ttl * (1 - _DRIFT) - _TELLING
        self.token = os.urandom(16).hex()
        self.record = compose(self.token, tag, owner or this_process())
        self.state = 0
        self.fence = 0
        self.confirmed = self._answered = now()
        self.again_at: float | None = None
        self.wake: Callable[[], object] | None = None
        # News may come before the answer to the request that took the entry in.  A signal's
        # handler may close the space in the midst of it.
        self._mutex = RLock()
        self._told = 0
        self._asks = False
        self.asked = False  # whether the engine may have its entry, whatever ``state`` is
        self.busy = 0  # the thread in which a request for it is under way
        self.dropped = False  # its owner gave it up meanwhile
        self.lost = 0.0  # since when it is known to hold no more, unreleased; 0: it is not

    @property
    def ends_at(self) -> float:
        """When its lease ends for certain not before, by this machine's clock."""
        return self.confirmed + self.ttl

    def take_in(self, place: Place, sent: float) -> None:
        """Take note of an answer to a request that was sent at this time."""
        with self._mutex:  # the space's thread and the one that waits may both have answers
            if not self.dropped:
                self._take_in(place, sent)

    def end(self) -> None:
        """Give the entry up for ever: an answer that is still under way counts no more."""
        with self._mutex:
            if self.state == HOLDS:
                self.lost = now()
            self.dropped = True
            self.state, self.asked = GONE, False

    def _take_in(self, place: Place, sent: float) -> None:
        if sent < self._answered and self.state:
            return  # a later one was answered already
        held, known = self.state == HOLDS, self.fence
        if place.state != GONE:
            self._answered = sent
            self.confirmed = sent if place.since is None else min(sent, place.since)
            self.fence = place.fence
        self.again_at = None if place.again is None else sent + place.again
        if place.state == WAITS and (
            self._told == place.fence or (held and known == place.fence)
        ):
            self.state = HOLDS  # as is known by now: what holds never waits again
            return
        if place.state == WAITS and self._asks:
            self.again_at = 0.0
        self._asks = False
        self.state = place.state

    def tell(self, fence: int) -> None:
        """Take note of news: it holds now, with this number; 0 if only a question can tell."""
        with self._mutex:
            if not fence:
                self._asks = True
                self.again_at = 0.0
            else:
                self._told = fence
                if self.state == WAITS and self.fence == fence and now() < self.ends_at:
                    self.state = HOLDS
        wake = self.wake
        if wake is not None:
            wake()


def compose(token: str, tag: str | None, me: Process) -> bytes:
    """Lay out what an entry says of its holder, in the text format of semlock's files."""
    fields = {
        "pid": me.pid, "timestamp": int(time()), "tag": None if tag is None else clean_tag(tag),
        "host": clean_tag(me.host) or None, "start": me.start or None, "boot": me.boot or None,
        "pidns": me.pidns or None, "timens": me.timens or None, "token": token,
    }  # fmt: skip
    text = "".join(f"{key}={value}\n" for key, value in fields.items() if value is not None)
    return text.encode("utf-8", "replace")
