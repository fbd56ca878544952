"""The one thread of a space: it renews all leases, hears all news, and tells of losses.

It runs while there are entries, and sleeps without an end while there are none.  No call of the
user's code runs in it.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import sleep

from semlock._core import callbacks, capi, registry
from semlock._engines.engine import GONE, HOLDS, WAITS, Away, Refused, now

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engines.engine import Engine
    from semlock._engines.ticket import Ticket

# Leases are renewed so often in the time of one lease.
_RENEWALS = 3
_PATIENCE = 5.0
_SHORTEST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Keeper:
    """The entries of a space, and the thread that keeps them alive."""

    __slots__ = (
        "_abandoned", "_idle", "_thread", "_wake", "closed", "engine", "failure", "patience",
        "tickets", "ttl",
    )  # fmt: skip

    def __init__(self, engine: Engine, ttl: float) -> None:
        self.engine = engine
        self.ttl = ttl
        # How long a request may take that has no other limit.
        self.patience = min(_PATIENCE, ttl / _RENEWALS)
        self.tickets: dict[str, Ticket] = {}
        self.closed = False
        self.failure: str | None = None  # why the last renewal failed
        # Entries to take out, and their names.  They stay here until the engine has answered:
        # where the connection or a lease of the process is the witness, they would not end
        # otherwise.  Appending is one step: interrupts can't break it.
        self._abandoned: dict[str, str] = {}
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = True

    def add(self, ticket: Ticket) -> None:
        """Keep an entry alive from now on."""
        self.tickets[ticket.token] = ticket
        if self._idle:
            self._start()

    def discard(self, ticket: Ticket) -> None:
        """Keep an entry no longer."""
        self.tickets.pop(ticket.token, None)

    def abandon(self, ticket: Ticket) -> None:
        """Take an entry out as soon as the engine can be reached."""
        self.tickets.pop(ticket.token, None)
        self._abandoned[ticket.token] = ticket.name
        ticket.asked = False  # no other call needs to take it out
        self._start()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            # Two threads that get here at once start two, of which one ends.
            self._thread = threading.Thread(target=self._run, name="semlock-space", daemon=True)
            self._thread.start()
        if self._idle:
            self._wake.put(None)

    def end(self) -> None:
        """Have the thread end; the engine is closed already, which ends its sleep."""
        self._wake.put(None)

    def close(self) -> None:
        """End the thread, and wait for that."""
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            with suppress(RuntimeError):  # another thread has made it, and not started it yet
                thread.join(self.patience)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        if sys.platform != "win32":
            # A program may fetch its signals one by one, as `semlock run` does.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        me = capi.this_thread()
        registry.own_threads[me] = threading.get_ident()
        pause = _SHORTEST_PAUSE
        renewed = now()
        try:
            while not self.closed and self._thread is threading.current_thread():
                if not self.tickets and not self._abandoned:
                    self._idle = True
                    if not self.tickets and not self._abandoned and not self.closed:
                        self._wake.get()
                    renewed = now()
                    continue
                self._idle = False
                with suppress(Empty):
                    while True:
                        self._wake.get_nowait()
                try:
                    if now() >= renewed + self.ttl / _RENEWALS:
                        self._renew()
                        renewed = now()
                    self._leave_abandoned()
                    if self._hear(renewed + self.ttl / _RENEWALS):
                        renewed = -self.ttl  # news may have been lost
                    pause = _SHORTEST_PAUSE
                    self.failure = None
                except Exception as error:  # noqa: BLE001 - a client's library may raise anything
                    if self.closed:
                        break
                    self.failure = str(error)
                    if not isinstance(error, (Away, Refused)):
                        _log("the thread of a space goes on after %r", error)
                    self._end_leases()
                    sleep(min(pause, self.ttl / 10, self._within()))
                    self._end_leases()
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    renewed = -self.ttl
        finally:
            registry.own_threads.pop(me, None)

    def _within(self) -> float:
        """Say how long a request may take, so that the end of a lease is noticed in time."""
        ends = [
            t.ends_at for t in list(self.tickets.values()) if t.state == HOLDS and not t.lost
        ]
        left = min(ends, default=now() + self.patience) - now()
        return max(0.01, min(self.patience, left))

    def _hear(self, until: float) -> bool:
        seconds = max(0.0, until - now())
        if self._abandoned:
            seconds = min(seconds, _SHORTEST_PAUSE)
        heard = self.engine.hear(seconds)
        for token, fence in heard or ():
            ticket = self.tickets.get(token)
            if ticket is None:
                continue
            if fence == 0 and ticket.state == HOLDS:
                self._renew([ticket])  # it may have been removed by force
            else:
                ticket.tell(fence)
        self._end_leases()
        return heard is None

    def _renew(self, some: list[Ticket] | None = None) -> None:
        kept = [
            t
            for t in (list(self.tickets.values()) if some is None else some)
            if t.state in (HOLDS, WAITS) and not t.lost
        ]
        if not kept:
            return
        # A ticket may win while this is under way, by another request.
        states = [ticket.state for ticket in kept]
        sent = now()
        places = self.engine.renew([(t.name, t.token) for t in kept], within=self._within())
        for ticket, before, place in zip(kept, states, places, strict=True):
            if ticket.token not in self.tickets:
                continue  # it was released meanwhile
            if before == HOLDS and (place.state != HOLDS or place.fence != ticket.fence):
                self._lose(ticket)
                continue
            ticket.take_in(place, sent)
            if before == WAITS and place.state != WAITS and ticket.wake is not None:
                ticket.wake()

    def _end_leases(self) -> None:
        """Give up what may be another's by now."""
        at = now()
        for ticket in list(self.tickets.values()):
            if ticket.state == HOLDS and not ticket.lost and at >= ticket.ends_at:
                self._lose(ticket)

    def _lose(self, ticket: Ticket) -> None:
        if ticket.token not in self.tickets or ticket.lost:
            return
        ticket.lost = now()
        ticket.state = GONE
        # The engine may still know it, where a connection is the witness.
        self._abandoned[ticket.token] = ticket.name
        if ticket.wake is not None:
            ticket.wake()
        lock = ticket.lock() if ticket.lock is not None else None
        if lock is not None and lock.holds_by(ticket):
            callbacks.call(lock.path, lock.tell_loss)

    def _leave_abandoned(self) -> None:
        for token, name in list(self._abandoned.items()):
            with suppress(Refused):  # nor would it be taken the next time
                self.engine.leave(name, token, within=self._within())
            self._abandoned.pop(token, None)


def _log(message: str, *values: object) -> None:
    import logging  # noqa: PLC0415 - only when something is wrong

    logging.getLogger("semlock").error(message, *values)
