"""Locks on an engine: the methods of ``Store`` by entries of a line.

Interrupts: a ticket is made before the first request, and each call that fails takes its entry
out again.  What is not sure to have been taken out then is left to the space's thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic_ns
from weakref import ref

from semlock._core import FORKED, FREE, HELD, LOST, MINE, NESTED, OK, OTHER_THREAD, events
from semlock._core.capi import this_thread
from semlock._core.errors import LockLostError
from semlock._core.options import EngineOptions, all_but, taken
from semlock._core.records import decode_text
from semlock._engines.client import status_of
from semlock._engines.engine import HOLDS, READERS, now
from semlock._engines.ticket import Hold, Ticket
from semlock._engines.wait import Wait
from semlock._locks.base import BaseLock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.errors import HowLost
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._engines.client import Client
    from semlock._waiting.steps import Steps


_REFUSED = all_but(
    EngineOptions,
    "it is no file, and the server keeps its line and its lease",
    held_by="its entry in the line is of the thread or task that took it",
)


class EngineLock(BaseLock):
    """A lock on an engine.  ``Space.Lock`` makes it.

    :name:     the lock's name; text of any kind
    :on_lost:  called with the lock and the error as soon as it is certain that it may be lost

    The other options are those of ``semlock.Lock``.
    """

    __slots__ = ("_room", "client", "name", "owner")
    _refused_options = _REFUSED

    def __init__(
        self, client: Client, name: str, *, room: int = 1, **options: Unpack[EngineOptions]
    ) -> None:
        given = taken(self, options)
        super().__init__(client.path_of(name), given)
        self.client = client
        self.name = name
        self._room = room
        # The process that the lock is for; None: this one.
        self.owner: Process | None = None
        self._native = Hold(reentrant=given["reentrant"])

    # ------------------------------------------------------------------ what an engine adds

    @property
    def room(self) -> int:
        """How many may hold beside each other, this one included."""
        return self._room

    @property
    def fence(self) -> int | None:
        """The number of this acquisition, larger than that of each holder before; or ``None``."""
        ticket: Ticket | None = self._native.ticket
        return ticket.fence if ticket is not None and self.held else None

    def left(self) -> float:
        """Say for how many seconds no other client can have it, by this machine's clock.

        It counts from before the last renewal that the engine has confirmed; 0 if it is not held
        or may be lost.
        """
        ticket: Ticket | None = self._native.ticket
        if ticket is None or not self.held:
            return 0.0
        return max(0.0, ticket.ends_at - now())

    # ------------------------------------------------------------------ acquiring

    def new_ticket(self) -> Ticket:
        """Make a request of this lock's, which the engine doesn't know yet."""
        return Ticket(ref(self), self.name, self._room, self.client.ttl, self.tag, self.owner)

    @property
    def ticket(self) -> Ticket | None:
        """The entry by which it is held, or was held last."""
        return self._native.ticket

    def _hold_state(self) -> int:
        """Say what this object's own state allows: OK to ask the engine."""
        state = self._native
        if self.client.is_parents():
            return FORKED
        if not state.owner:
            return OK
        if state.owner != this_thread():
            return HELD
        if not state.reentrant:
            return MINE
        if self._is_lost():
            return HELD
        state.nest()
        return NESTED

    def _try(self) -> int:
        outcome = self._hold_state()
        if outcome != OK:
            return outcome
        ticket = self.new_ticket()
        try:
            self.client.ask(ticket, waits=False)
            if ticket.state == HOLDS and self.win(ticket):
                return OK
            self.client.drop(ticket)
        except BaseException:
            if not self.holds_by(ticket):
                self.client.drop(ticket)
            raise
        return HELD

    _try_again = _try

    def holds_by(self, ticket: Ticket) -> bool:
        """Tell whether this object holds by this entry."""
        state = self._native
        return bool(state.held) and state.ticket is ticket

    def win(self, ticket: Ticket) -> bool:
        """Hold by an entry that holds; ``False`` if another thread was faster."""
        state = self._native
        with self.client.guard:
            if state.owner or ticket.lost or now() >= ticket.ends_at:
                return False
            state.win(ticket, this_thread())
            return True

    def trying(self, frame: FrameType) -> Steps[bool]:
        """Ask for it once; ``True`` if it is won."""
        wait = Wait(self, 0)
        try:
            if (yield from wait.entering()):
                self._settle(OK, frame)
                return True
            return False
        finally:
            wait.end()

    def taking(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Take it, from the first request to the end of the wait."""
        if self._is_mine():
            yield from self._waiting(self._try(), timeout, frame)
            return
        if self.client.is_parents():
            self._follow_fork()
        wait = Wait(self, timeout)
        try:
            if (yield from wait.entering()):
                self._settle(OK, frame)
            elif timeout == 0:
                raise (yield from wait.ending())
            else:
                yield from self._waiting(HELD, timeout, frame, waiter=wait)
        finally:
            wait.end()

    def _acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        steps = self.taking(timeout, frame)
        sink = events.sink
        return steps if sink is None else sink.acquiring(self, steps)

    def _waiter(self, timeout: float | None, asked: int) -> Wait:
        del asked
        return Wait(self, timeout)

    def _try_in_turn(self, waiter: Any) -> int:
        del waiter
        return HELD  # the wait has asked

    # ------------------------------------------------------------------ releasing

    def _let_go(self) -> int:
        if (sink := events.sink) is not None:
            return sink.release(self, self._give_back)
        return self._give_back()

    def _give_back(self) -> int:
        ticket = self._native.ticket
        try:
            outcome, ended = self.give_back_here()
            return outcome if ended is None else self.client.leave(ended, lost=outcome == LOST)
        except BaseException:
            if ticket is not None and not self.holds_by(ticket):
                self.client.drop(ticket)
            raise

    def give_back_reported(self) -> tuple[int, Ticket | None]:
        """Do that, and report the end of the hold."""
        sink = events.sink
        if sink is None:
            return self.give_back_here()
        ticket = None

        def give() -> int:
            nonlocal ticket
            outcome, ticket = self.give_back_here()
            return outcome

        return sink.release(self, give), ticket

    def give_back_here(self) -> tuple[int, Ticket | None]:
        """Hold no longer as far as this process goes: the outcome, and the entry to take out."""
        state = self._native
        with self.client.guard:
            if not state.held:
                return FREE, None
            if self.client.is_parents():
                return FORKED, None
            if state.reentrant and not self._for_tasks and state.owner != this_thread():
                return OTHER_THREAD, None
            if state.depth > 1:
                state.unnest()
                return NESTED, None
            lost = self._is_lost()
            state.end()
            return LOST if lost else OK, state.ticket

    def _is_lost(self) -> bool:
        ticket = self._native.ticket
        return ticket is None or bool(ticket.lost) or now() >= ticket.ends_at

    def _rewrite(self) -> int:
        return self._confirm()

    def _confirm(self) -> int:
        state = self._native
        ticket = state.ticket
        if not state.held or ticket is None:
            return FREE
        if self.client.is_parents():
            return FORKED
        if not self._is_lost():
            self.client.renew(ticket)
        return LOST if self._is_lost() else OK

    def _lost(self, *, at_once: bool = False) -> LockLostError:
        """Make the error that the lock may be another's; ``at_once``: ask the engine nothing."""
        if (sink := events.sink) is not None:
            sink.lost(self)
        found = None
        if not at_once and self.client.keeper.failure is None:  # else it would wait in vain
            with suppress(OSError):
                found = self.status()
        if found is None:
            who = "it is not known who has it now"
        elif found.state == "free":
            who = "no client has it now"
        else:
            who = f"it is held by {found.holder} now"
        failure = self.client.keeper.failure
        why = f" The last renewal failed: {failure}." if failure else ""
        return LockLostError(
            f"{self.path} was held here, and its lease ended before it was renewed, or it was "
            f"removed; {who}.{why} Another client may have held it since then: check what was "
            "written under it, or give the fence to the storage that it protects",
            path=self.path,
            status=found,
            reason=self._how_lost(found),
        )

    def _was_removed(self) -> bool:
        """Tell whether its loss was seen before its lease had ended."""
        ticket = self._native.ticket
        return ticket is not None and (ticket.lost or now()) < ticket.ends_at

    def _how_lost(self, found: LockStatus | None) -> HowLost:
        if self._was_removed():
            return "removed" if found is None or found.state == "free" else "replaced"
        return "unreachable" if self.client.keeper.failure else "expired"

    def tell_loss(self) -> None:
        """Report the loss to the user's function, in a thread for such calls."""
        # An engine that is away is not asked first: another client may have the lock by then.
        error = self._lost(at_once=not self._was_removed())
        function = self._on_lost
        if function is None:
            import logging  # noqa: PLC0415 - only when something is wrong

            logging.getLogger("semlock").error("%s", error)
            return
        try:
            function(self, error)
        except BaseException:
            import logging  # noqa: PLC0415

            logging.getLogger("semlock").exception(
                "the on_lost function of %s failed", self.path
            )

    def _holds(self) -> int:
        if not self._native.held:
            return FREE
        if self.client.is_parents():
            return FORKED
        return FREE if self._is_lost() else OK

    def _is_of_thread(self) -> bool:
        return bool(self._native.owner == this_thread())

    # ------------------------------------------------------------------ what it says

    def _token(self) -> str:
        ticket = self._native.ticket
        return "" if ticket is None else str(ticket.token)

    def _record_held(self) -> LockInfo | None:
        ticket = self._native.ticket
        return None if ticket is None else decode_text(ticket.record)

    def status(self) -> LockStatus:
        """Ask the engine who holds the lock."""
        return status_of(
            self.path, next((e for e in self.client.line(self.name) if e.holds), None)
        )

    def _holder_here(self) -> BaseLock | None:
        holder: Any = self.client.holder_here(self.name)
        # Of several slots, another holder's may be released.
        if holder is not None and 1 < min(self.room, holder.room) < READERS:
            return None
        found: BaseLock | None = holder
        return found

    def _holder_of(self, seen: Any) -> BaseLock | None:
        del seen
        return self._holder_here()

    # ------------------------------------------------------------------ what the engine does itself

    def _clear(self, found: LockStatus, *, robs: bool) -> bool | None:
        del found, robs
        return None  # the engine itself takes out entries whose lease is over

    def _store_time(self) -> int:
        return monotonic_ns()

    def _look_again_later(self, key: tuple[int, ...]) -> int:
        del key
        return monotonic_ns() + 1_000_000_000

    def _look_is_due(self) -> bool:
        return False

    def _mend(self, outcome: int) -> int:
        raise self._error(outcome)

    def _error(self, outcome: int) -> Exception:
        return OSError(-outcome, os.strerror(-outcome), self.path)

    def _give_way(self) -> None:
        pass

    def _place_kept(self) -> int:
        return id(self.client)

    def _follow_fork(self) -> None:
        raise self.client.forked_error(self.path)

    def _dropped(self) -> bool:
        state = self._native
        if not state.held or self.client.is_parents():
            return False
        self.client.keep(self)
        return not self._is_lost()
