"""The requests of a space: each is repeated with its token, bounded in time, and put into words.

``Client`` is what lock objects ask.  It has the engine, and the keeper of their entries.
``status_of`` shows an entry that holds as a status.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import start_new_thread
from contextlib import suppress
from time import monotonic
from weakref import ref

from semlock._core import LOST, OK, callbacks, registry
from semlock._core.capi import this_thread
from semlock._core.errors import LockEngineError
from semlock._core.identity import ALIVE
from semlock._core.records import decode_text
from semlock._core.status import LockStatus
from semlock._engines.engine import GONE, HOLDS, Away, Refused, now
from semlock._engines.keeper import Keeper

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from semlock._core.identity import Verdict
    from semlock._core.records import LockInfo
    from semlock._engines.address import Address
    from semlock._engines.engine import Engine, Entry
    from semlock._engines.ticket import Ticket

    T = TypeVar("T")

# How long an interrupted or cancelled call tries to take its entry out before it leaves that to
# the thread of the space.
_SHORT = 0.25

# The clients of the parent process: their connections must not be closed by the child.
_parents: list[Client] = []
_mine: dict[int, ref[Client]] = {}
# Those with an object that was deleted while it held: they go on until the process ends.
_kept: set[Client] = set()


class Client:
    """The connection of a space, and what its locks ask of it."""

    closed = True  # until it is made

    def __init__(
        self, engine: Engine, address: Address, ttl: float, timeout: float | None = None
    ) -> None:
        self.engine = engine
        self.address = address
        self.ttl = ttl
        self.guard = threading.RLock()
        self.keeper = Keeper(engine, ttl)
        # How long a call may take that has no other limit.  A renewal has the keeper's.
        self.patience = self.keeper.patience if timeout is None else timeout
        self._pid = os.getpid()
        self.calls = callbacks.Calls()  # what tasks ask for
        self._dropped: list[Any] = []  # objects that were deleted while they held
        self.closed = False
        _mine[id(self)] = ref(self)

    # ------------------------------------------------------------------ names and words

    def path_of(self, name: str) -> str:
        """Give a lock's address, which is its path in messages, events and traces."""
        return self.address.path_of(name)

    def is_parents(self) -> bool:
        """Tell whether this process was forked off after the space was connected."""
        return self._pid != os.getpid()

    def forked_error(self, path: str | None = None) -> LockEngineError:
        """Make the error of a space that is used in a child process."""
        return self.failed(
            f"{self.address.shown} was connected before this process was forked off, and the "
            "connection is its parent's. Connect again in the child: semlock.connect(...)",
            path,
        )

    def error(self, what: str, failure: Exception, path: str, tried: float) -> LockEngineError:
        """Say what could not be done, and why."""
        for_long = f" within {tried:.1f} s" if tried >= 0.05 else ""
        return self.failed(
            f"{path} could not be {what}{for_long}: {failure} ({self.address.shown})", path
        )

    def failed(self, message: str, path: str | None) -> LockEngineError:
        return LockEngineError(message, path=path, address=self.address.shown)

    # ------------------------------------------------------------------ requests

    def call(
        self,
        what: str,
        path: str,
        request: Callable[..., T],
        *arguments: Any,
        timeout: float | None = None,
    ) -> T:
        """Make a request, and again if there was no answer, until the time is over."""
        self._refuse()
        began = monotonic()
        limit = self.patience if timeout is None else timeout
        pause = 0.02
        while True:
            left = limit - (monotonic() - began)
            try:
                return request(*arguments, within=max(0.01, min(left, self.keeper.patience)))
            except Refused as failure:
                raise self.error(what, failure, path, monotonic() - began) from None
            except Away as failure:
                left = limit - (monotonic() - began)
                if left <= pause:
                    raise self.error(what, failure, path, monotonic() - began) from None
            threading.Event().wait(pause)
            pause = min(2 * pause, 0.5)

    def _refuse(self) -> None:
        if self.is_parents():
            raise self.forked_error()
        if self.closed:
            raise self.failed(f"this space of {self.address.shown} is closed", None)

    def ask(self, ticket: Ticket, *, waits: bool, within: float | None = None) -> None:
        """Put an entry in its line, or ask how it stands: once, ``Away`` if there is no answer.

        Without ``waits`` it is repeated for a while, and ``LockEngineError`` is the end.
        """
        self._refuse()
        path = self.path_of(ticket.name)
        arguments = ticket.name, ticket.token, ticket.record, ticket.room
        try:
            ticket.busy = this_thread()
            if ticket.dropped:
                return  # a task that was cancelled before its request was begun
            ticket.asked = True
            self.keeper.add(ticket)
            sent = now()

            def enter(*, within: float) -> Any:
                nonlocal sent
                sent = now()
                return self.engine.enter(*arguments, waits=waits, within=within)

            if waits:
                limit = self.keeper.patience
                if within is not None:
                    limit = max(0.01, min(limit, within))
                try:
                    place = enter(within=limit)
                except Refused as failure:
                    raise self.error("acquired", failure, path, now() - sent) from None
            else:
                place = self.call("acquired", path, enter)
            ticket.take_in(place, sent)
            if place.state == GONE:
                ticket.asked = False
            if self.closed:  # meanwhile, by another thread
                self._end(ticket)
                self._refuse()
        finally:
            ticket.busy = 0
        if ticket.dropped:
            self.drop(ticket)

    def drop(self, ticket: Ticket, *, in_loop: bool = False) -> None:
        """Take an entry out that is not wanted any more; nothing if it was never there."""
        ticket.dropped = True  # before the look: a request that begins now sees it
        if ticket.busy not in (0, this_thread()):
            return  # the thread of that request takes it out
        self.keeper.discard(ticket)
        if not ticket.asked or self.is_parents():
            return
        if in_loop:
            self.calls.put(ticket.name, lambda: self._take_out(ticket))
        else:
            self._take_out(ticket)

    def _take_out(self, ticket: Ticket) -> None:
        try:
            self.engine.leave(ticket.name, ticket.token, within=min(_SHORT, self.patience))
        except (Away, Refused):
            self.keeper.abandon(ticket)
        except BaseException:
            self.keeper.abandon(ticket)
            raise
        ticket.state = GONE
        ticket.asked = False

    def leave(self, ticket: Ticket, *, lost: bool) -> int:
        """Release an entry that held: OK, or LOST if it may have been another's meanwhile."""
        try:
            self.keeper.discard(ticket)
            ticket.state = GONE
            if lost and self.keeper.failure is not None:  # it is away, and the thread asks it
                self.keeper.abandon(ticket)
                return LOST
            was_there = self.engine.leave(ticket.name, ticket.token, within=self.patience)
        except (Away, Refused) as failure:
            # Its lease was good until now.  The engine hears of the release later, or the lease
            # ends.
            self.keeper.abandon(ticket)
            if lost:
                self.keeper.failure = str(failure)  # so that the error asks no more
            return LOST if lost else OK
        except BaseException:
            self._take_out(ticket)
            raise
        ticket.asked = False
        return OK if was_there and not lost else LOST

    def renew(self, ticket: Ticket) -> None:
        """Ask the engine whether an entry still holds."""
        sent = now()
        place = self.call("checked", self.path_of(ticket.name), self._renew_one, ticket)
        if place.state != HOLDS or place.fence != ticket.fence:
            ticket.lost = now()
        else:
            ticket.take_in(place, sent)

    def _renew_one(self, ticket: Ticket, *, within: float) -> Any:
        return self.engine.renew([(ticket.name, ticket.token)], within=within)[0]

    def line(self, name: str) -> list[Entry]:
        """List the entries of a name that live."""
        return self.call("looked at", self.path_of(name), self.engine.line, name)

    # ------------------------------------------------------------------ whose it is

    def holder_here(self, name: str) -> Any:
        """Find an object of this process that holds a name by itself."""
        for ticket in list(self.keeper.tickets.values()):
            if ticket.name == name and ticket.state == HOLDS and ticket.lock is not None:
                lock = ticket.lock()
                if lock is not None and lock.holds_by(ticket):
                    return lock
        return None

    @staticmethod
    def holder_by(token: str) -> Any:
        """Find an object of this process that holds by an entry, in any of its spaces."""
        for one in tuple(_mine.values()):  # others may close meanwhile
            client = one()
            ticket = None if client is None else client.keeper.tickets.get(token)
            lock = None if ticket is None or ticket.lock is None else ticket.lock()
            if lock is not None and lock.holds_by(ticket):
                return lock
        return None

    def keep(self, lock: Any) -> None:
        """Keep an object that was dropped while it held."""
        self._dropped.append(lock)
        _kept.add(self)
        ticket = lock.ticket
        if ticket is not None:
            ticket.lock = lambda: lock

    def close(self) -> None:
        """Take out what still stands in lines, and close the connections."""
        if self.closed or self.is_parents():
            return
        self.closed = True
        for ticket in list(self.keeper.tickets.values()):
            self._end(ticket)
        self.keeper.tickets.clear()
        self.keeper.closed = True
        self.engine.close()
        self.keeper.close()
        self.calls.end()
        _mine.pop(id(self), None)
        _kept.discard(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter the names of this module may be gone.
        if is_finalizing() or self.closed or self.is_parents():
            return
        if any(ticket.state == HOLDS for ticket in list(self.keeper.tickets.values())):
            _kept.add(self)  # it was dropped in a circle with a lock, whose turn comes later
            return
        self.closed = self.keeper.closed = True
        _mine.pop(id(self), None)
        # Closing may wait for the engine, and this thread may be any.
        with suppress(RuntimeError):
            start_new_thread(_close, (self.engine, self.keeper, self.calls))
        from warnings import warn  # noqa: PLC0415 - for those who close nothing

        warn(f"the space {self.address.shown} was not closed", ResourceWarning, 1, source=self)

    def _end(self, ticket: Ticket) -> None:
        ticket.end()
        with suppress(Away, Refused):
            self.engine.leave(ticket.name, ticket.token, within=_SHORT)
        # So that a wait asks, and is told that the space is closed.
        if ticket.wake is not None:
            ticket.wake()


def _close(engine: Engine, keeper: Keeper, calls: callbacks.Calls) -> None:
    """Close what a space has used that was dropped."""
    with suppress(Exception):
        engine.close()
    keeper.end()
    calls.end()


def _forget() -> None:
    """Keep the parent's connections as they are: to close one here could end the parent's."""
    _parents.extend(client for one in _mine.values() if (client := one()) is not None)
    _mine.clear()
    _kept.clear()


registry.on_fork(_forget)


class Found:
    """One entry that holds: an ``Instance``."""

    __slots__ = (
        "content", "ctime_ns", "entry", "error", "key", "unfinished", "witnessed",
        "written_at",
    )  # fmt: skip

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.key = (entry.fence,)
        self.content = entry.record
        self.error = 0
        self.unfinished = self.witnessed = False
        self.written_at = 0.0
        self.ctime_ns = 0

    def evidence(self, info: LockInfo | None) -> tuple[Verdict, str]:
        """Say how it is known that the holder lives: by its lease or its connection."""
        del info
        left = self.entry.left
        if left is None:
            return ALIVE, "its connection is open"
        return ALIVE, f"its lease lasts {max(0.0, left):.1f} s more unless it is renewed"

    def keeper(self, path: str) -> str | None:
        """Name no user: all that may use the engine may remove."""
        del path
        return None


def status_of(path: str, entry: Entry | None) -> LockStatus:
    """Describe an entry that holds, or that none does."""
    if entry is None:
        return LockStatus(path, None, None)
    found: Any = Found(entry)
    try:
        info = decode_text(entry.record)
    except ValueError:
        info = None
    if info is not None and info.timestamp is not None:
        found.written_at = info.timestamp
        found.ctime_ns = int(info.timestamp * 1e9)
    return LockStatus(path, found, info)
