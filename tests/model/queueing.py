"""The model of the queue: who stands where in it, and does everybody get the lock in the end?

Processes come, join the queue of P with the time of asking as their number, follow the ticket
before their own, take P when they are first, keep their ticket until they let go, give up, are
stopped for any time and killed, at any step, as in ``csrc/posix/place.c``.  One that sees P free
and the first of the queue stopped takes P before it, and passes by the tickets before its own:
they are renamed, and their owners give them the old names back when they run again.  What happens
at P itself is one step here: that a process that watches P is woken is shown by the model of
waiting, that the end of a ticket is told by the model of the bell, and that a dead holder's file
and no other is removed by the model of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple

from explorer import quickly_replaced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Steps: TypeAlias = Iterator[tuple[str, "State"]]

NONE: Final = -1  # no process, no ticket
DEAD: Final = -2
FOREIGNER: Final = -3

EXCLUSION: Final = "exclusion"
ORDER: Final = "order"
OWN_TICKETS: Final = "own tickets"

# Where a process stands.
IDLE: Final = "idle"
AWAY: Final = "away"
NO_QUEUE: Final = "saw no queue"
ALONE: Final = "waits for P without a ticket"
LOOK_FIRST: Final = "looks at P first"
CLEAR: Final = "removes a dead holder's file"
TRY_ANYWAY: Final = "tries out of turn"
MAKE_QUEUE: Final = "makes the queue"
MAKE_TICKET: Final = "makes a ticket"
OPEN_TICKET: Final = "opens its new ticket"
CHECK_TICKET: Final = "checks its new ticket"
SURVEY: Final = "looks who is before it"
PROBE: Final = "asks whether the one before lives"
PROBED: Final = "has found a dead one's ticket"
REMOVE: Final = "removes a dead one's ticket"
OVERTAKE: Final = "passes by the tickets before its own"
BEHIND: Final = "stands behind another"
FIRST: Final = "is first"
WON: Final = "has won"
HOLDS: Final = "holds"
LEAVE: Final = "looks at its ticket to leave"
UNLINK_TICKET: Final = "removes its ticket"
REMOVE_QUEUE: Final = "removes the queue if it is empty"

# Where it may make a ticket with a number that it has in mind.
JOINS: Final = frozenset({MAKE_TICKET, OPEN_TICKET, CHECK_TICKET})
# Where a process has a ticket of which others can know, and no lock.
STANDS: Final = frozenset({SURVEY, PROBE, PROBED, REMOVE, BEHIND, FIRST})
# Where it wants the lock and has not won it.
WANTS: Final = STANDS | {
    NO_QUEUE, ALONE, LOOK_FIRST, CLEAR, TRY_ANYWAY, MAKE_QUEUE, MAKE_TICKET, OPEN_TICKET,
    CHECK_TICKET,
}  # fmt: skip


@quickly_replaced
class Ticket(NamedTuple):
    """A file in the queue.

    ``named``   it still has its name
    ``late``    it was passed by, and has another name until its owner runs again
    ``owner``   the process that has it open, ``DEAD`` when it has been closed
    ``state``   "" before its owner has opened it, and when it is a dead one's; "waits"; "holds"
    ``prober``  another process that has the flock of it, to remove it
    ``tells``   its owner has told the one behind, as it left, that no other is before that one
    """

    number: int
    owner: int
    named: bool = True
    late: bool = False
    state: str = ""
    prober: int = NONE
    tells: bool = False


@quickly_replaced
class Process(NamedTuple):
    """Where a process stands, and what it knows.

    ``ticket``   the number of its ticket's place in the state
    ``other``    the same of the ticket that it asks, or follows
    ``asked``    when it asked for the lock, which is the number of its ticket
    ``number``   the ticket before its own
    ``holds``    it believes to hold the lock
    ``overtaken``  others took P before it because it did not use its turn
    ``passes``   it tries before those who do not use theirs
    ``is_next``  it has seen or been told that no ticket is before its own
    ``earlier``  those who may not come after it
    """

    at: str
    ticket: int = NONE
    other: int = NONE
    asked: int = 0
    number: int = 0
    holds: bool = False
    robbed: bool = False
    stopped: bool = False
    overtaken: bool = False
    passes: bool = False
    is_next: bool = False
    earlier: frozenset[int] = frozenset()


@quickly_replaced
class State(NamedTuple):
    """One moment."""

    path: int  # the process that holds P, ``DEAD``, ``FOREIGNER``, or ``NONE`` when P is free
    queue: bool  # the directory is there
    tickets: tuple[Ticket, ...]
    processes: tuple[Process, ...]
    broken: str = ""


@dataclass(frozen=True)
class Config:
    """What there is in a model: who takes part, and which mechanisms work."""

    processes: int = 2
    kills: bool = True
    dead: int = 1  # so many dead ones' tickets at once
    stops: bool = True
    leaves: bool = True  # waiters give up
    robs: bool = False  # a process removes P while its holder lives
    held_at_first: bool = False  # by a foreigner, who lets go at any time
    once: bool = False  # no process comes again that has left, let go or been killed
    alone: bool = False  # who sees no queue may wait for P at first, without a ticket
    tells: bool = False  # the first one tells the next, as it leaves
    barges: bool = False  # newcomers try although there is a queue, if they like
    order_from: str = "coming"  # or "publishing": which process another may not come before
    watched: frozenset[str] = frozenset({EXCLUSION, ORDER, OWN_TICKETS})
    spares_window: bool = True  # nothing comes between looking at a ticket and removing it

    # The mechanisms, each of which can be taken out.
    removes_dead: bool = True
    overtakes: bool = True
    surveys_on_wake: bool = True  # else the one that sees its predecessor gone is first
    asks_for_flock: bool = True  # so that it sees one who is about to remove its ticket
    asks_again: bool = True  # under the flock, whether the owner of a ticket lives
    comes_back: bool = True  # gives its ticket the old name back after others passed it by
    rejoins: bool = True  # makes its ticket anew after others removed it
    keeps_number: bool = True  # so that one that was only slow is not sent to the end
    checks_ticket: bool = True  # that the new ticket is still there when it is open
    looks_by_clock: bool = True  # at P, for a dead holder that the first one doesn't see
    tries_in_turn: bool = True  # also after it has removed a dead holder's file


class Queue:
    """The model, for the search."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.programs = {
            IDLE: self._idle,
            NO_QUEUE: self._no_queue,
            ALONE: self._alone,
            LOOK_FIRST: self._look_first,
            CLEAR: self._clear,
            TRY_ANYWAY: self._try_anyway,
            MAKE_QUEUE: self._make_queue,
            MAKE_TICKET: self._make_ticket,
            OPEN_TICKET: self._open_ticket,
            CHECK_TICKET: self._check_ticket,
            SURVEY: self._survey,
            PROBE: self._probe,
            PROBED: self._probed,
            REMOVE: self._remove,
            OVERTAKE: self._overtake,
            BEHIND: self._behind,
            FIRST: self._first,
            WON: self._won,
            HOLDS: self._holds,
            LEAVE: self._leave,
            UNLINK_TICKET: self._unlink_ticket,
            REMOVE_QUEUE: self._remove_queue,
        }

    def initial(self) -> State:
        """Begin without a queue, everybody idle, and P free or a foreigner's."""
        path = FOREIGNER if self.config.held_at_first else NONE
        return State(path, False, (), (Process(IDLE),) * self.config.processes)

    def successors(self, state: State) -> Steps:
        """List every step of every program, stops and deaths."""
        if state.broken:
            return
        for index, me in enumerate(state.processes):
            if me.at == AWAY:
                continue
            if not me.stopped:
                for what, after in self.programs[me.at](state, index, me):
                    yield f"{index}: {what}", after
            if me.at == IDLE:
                continue
            if self.config.kills and (
                me.ticket == NONE
                or sum(_is_there(t) and t.owner == DEAD for t in state.tickets)
                < self.config.dead
            ):
                yield f"{index} is killed", self._killed(state, index, me)
            if me.stopped:
                yield f"{index} goes on", _with(state, index, me._replace(stopped=False))
            elif self.config.stops:
                after = _with(state, index, me._replace(stopped=True))
                yield f"{index} is stopped", _not_before_others(after, index)
        if state.path == FOREIGNER:
            yield "the foreigner lets go of P", state._replace(path=NONE)
        if self.config.robs and state.path >= 0 and state.processes[state.path].at == HOLDS:
            holder = state.processes[state.path]
            after = _with(state, state.path, holder._replace(robbed=True))
            yield f"P is taken from {state.path}", after._replace(path=NONE)

    def violation(self, state: State) -> str | None:
        """Name the property that the last step broke."""
        if state.broken:
            return state.broken if state.broken in self.config.watched else None
        if sum(p.holds and not p.robbed for p in state.processes) > 1:
            return EXCLUSION
        return None

    def canonical(self, state: State) -> State:
        """Fold the names of processes, but of the first, and tickets that no process knows."""
        best = None
        for order in permutations(range(1, len(state.processes))):
            folded = _renamed(state, (0, *order))
            if best is None or folded < best[0]:
                best = (folded, folded)
        assert best is not None
        return best[1]

    def _at_once(self, what: str, s: State, index: int) -> Steps:
        """Do the step after a look in the same moment, if the window between is spared."""
        if not self.config.spares_window:
            yield what, s
            return
        me = s.processes[index]
        for then, after in self.programs[me.at](s, index, me):
            yield f"{what}; {then}", after

    @property
    def _rest(self) -> str:
        return AWAY if self.config.once else IDLE

    def _killed(self, s: State, index: int, me: Process) -> State:
        after = _not_before_others(_with(s, index, Process(self._rest)), index)
        if me.other != NONE and after.tickets[me.other].prober == index:
            ticket = after.tickets[me.other]._replace(prober=NONE)
            after = _with_ticket(after, me.other, ticket)
        if me.ticket != NONE:
            ticket = after.tickets[me.ticket]._replace(owner=DEAD, state="")
            after = _with_ticket(after, me.ticket, ticket)
        return after._replace(path=DEAD) if s.path == index else after

    # ------------------------------------------------------------------ coming

    def _idle(self, s: State, index: int, me: Process) -> Steps:
        now = me._replace(asked=_now(s))
        if self.config.order_from == "coming":
            now = now._replace(earlier=_standing(s, index))
        if s.queue or s.path != NONE:
            yield (
                "come, and see a queue or P held",
                _with(s, index, now._replace(at=LOOK_FIRST)),
            )
        if not s.queue or self.config.barges:
            yield "come, and try", _with(s, index, now._replace(at=NO_QUEUE))

    def _no_queue(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "link P", self._wins(s, index, me, HOLDS)
        else:
            yield "find P held", _with(s, index, me._replace(at=LOOK_FIRST))
            if self.config.alone:
                yield "find P held, and wait", _with(s, index, me._replace(at=ALONE))

    def _alone(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "link P", self._wins(s, index, me, HOLDS)
        yield "wait by turns from now on", _with(s, index, me._replace(at=LOOK_FIRST))

    def _look_first(self, s: State, index: int, me: Process) -> Steps:
        # Nothing that others do between a look at P and one at the queue makes a difference.
        if s.path == DEAD:
            yield "find P held by a dead one", _with(s, index, me._replace(at=CLEAR))
        else:
            yield from self._join(s, index, me)

    def _clear(self, s: State, index: int, me: Process) -> Steps:
        after = s._replace(path=NONE) if s.path == DEAD else s
        then = TRY_ANYWAY
        if self.config.tries_in_turn:
            then = LOOK_FIRST if me.ticket == NONE else SURVEY
        yield "remove a dead holder's file", _with(after, index, me._replace(at=then))

    def _try_anyway(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "link P out of turn", self._wins(s, index, me, WON)
        else:
            then = LOOK_FIRST if me.ticket == NONE else SURVEY
            yield "find P held", _with(s, index, me._replace(at=then, passes=False))

    def _wins(self, s: State, index: int, me: Process, then: str) -> State:
        unfair = me.earlier and not self.config.barges
        if me.ticket == NONE:
            then = HOLDS
        elif me.passes:
            then = OVERTAKE
        now = Process(then, ticket=me.ticket, asked=me.asked, holds=True, is_next=me.is_next)
        after = _not_before_others(_with(s, index, now)._replace(path=index), index)
        return _broken(after, ORDER) if unfair else after

    # ------------------------------------------------------------------ joining

    def _join(self, s: State, index: int, me: Process) -> Steps:
        if s.queue:
            yield "see a queue", _with(s, index, me._replace(at=MAKE_TICKET))
        else:
            yield "see no queue", _with(s, index, me._replace(at=MAKE_QUEUE))

    def _make_queue(self, s: State, index: int, me: Process) -> Steps:
        now = me._replace(at=MAKE_TICKET)
        yield "make the queue", _with(s, index, now)._replace(queue=True)

    def _make_ticket(self, s: State, index: int, me: Process) -> Steps:
        if not s.queue:
            yield "find the queue gone", _with(s, index, me._replace(at=LOOK_FIRST))
            return
        number = me.asked if self.config.keeps_number else _now(s)
        ticket = len(s.tickets)
        now = me._replace(at=OPEN_TICKET, ticket=ticket, asked=number)
        if self.config.order_from == "publishing":
            now = now._replace(earlier=_standing(s, index))
        after = s._replace(tickets=(*s.tickets, Ticket(number, index)))
        yield f"make ticket {number}", _with(after, index, now)

    def _open_ticket(self, s: State, index: int, me: Process) -> Steps:
        ticket = s.tickets[me.ticket]
        if not ticket.named:
            yield "find it removed", self._again(s, index, me)
        else:
            after = _with_ticket(s, me.ticket, ticket._replace(state="waits"))
            yield "open it", _with(after, index, me._replace(at=CHECK_TICKET))

    def _check_ticket(self, s: State, index: int, me: Process) -> Steps:
        ticket = s.tickets[me.ticket]
        prober = ticket.prober
        if prober != NONE and self.config.asks_for_flock and not s.processes[prober].stopped:
            return  # it is waited for, if it doesn't take too long
        if not _is_there(ticket) and self.config.checks_ticket:
            yield "find it removed", self._again(s, index, me)
        else:
            yield "find it in place", _with(s, index, me._replace(at=SURVEY))

    @staticmethod
    def _again(s: State, index: int, me: Process) -> State:
        ticket = s.tickets[me.ticket]._replace(owner=DEAD, state="", late=False)
        now = me._replace(at=MAKE_TICKET, ticket=NONE, number=0, overtaken=False)
        return _with(_with_ticket(s, me.ticket, ticket), index, now)

    # ------------------------------------------------------------------ standing

    def _survey(self, s: State, index: int, me: Process) -> Steps:
        mine = s.tickets[me.ticket]
        if mine.late and self.config.comes_back:
            after = _with_ticket(s, me.ticket, mine._replace(named=True, late=False))
            now = me._replace(overtaken=False, number=0)
            yield "give its ticket the old name back", _with(after, index, now)
            return
        if not mine.named and self.config.checks_ticket:
            if self.config.rejoins:
                yield "find its ticket removed", self._again(s, index, me)
            return
        before = max(
            (t.number for t in s.tickets if t.named and t.number < mine.number), default=0
        )
        is_next = self.config.tells and not before and not any(t.late for t in s.tickets)
        now = me._replace(at=PROBE if before else FIRST, number=before, is_next=is_next)
        after = s if before else _cleared(s)
        yield f"see {before or 'none'} before it", _with(after, index, now)

    def _probe(self, s: State, index: int, me: Process) -> Steps:
        place = _named(s, me.number)
        if place == NONE:
            yield "find the one before gone", _with(s, index, me._replace(at=SURVEY, number=0))
            return
        ticket = s.tickets[place]
        if ticket.state == "" and ticket.prober == NONE and self.config.removes_dead:
            after = _with_ticket(s, place, ticket._replace(prober=index))
            now = me._replace(at=PROBED, other=place, number=0)
            yield f"find ticket {ticket.number} a dead one's", _with(after, index, now)
            return
        number = 0 if self.config.surveys_on_wake else me.number
        other = place if self.config.tells else NONE
        now = me._replace(at=BEHIND, number=number, other=other)
        yield "the one before lives", _with(s, index, now)

    def _probed(self, s: State, index: int, me: Process) -> Steps:
        ticket = s.tickets[me.other]
        if ticket.state != "" and self.config.asks_again:
            yield "find that its owner lives", self._probe_ends(s, index, me)
        elif ticket.named:
            after = _with(s, index, me._replace(at=REMOVE))
            yield from self._at_once("find it a dead one's", after, index)
        else:
            yield "find it gone", self._probe_ends(s, index, me)

    @staticmethod
    def _probe_ends(s: State, index: int, me: Process) -> State:
        after = _with_ticket(s, me.other, s.tickets[me.other]._replace(prober=NONE))
        return _with(after, index, me._replace(at=SURVEY, other=NONE, number=0))

    def _remove(self, s: State, index: int, me: Process) -> Steps:
        after = _removed(s, s.tickets[me.other].number, me.other)
        yield "remove it", self._probe_ends(after, index, me)

    def _overtake(self, s: State, index: int, me: Process) -> Steps:
        after = s
        for place, ticket in enumerate(s.tickets):
            if not ticket.named or ticket.number >= me.asked:
                continue
            alive = ticket.state != ""
            after = _with_ticket(after, place, ticket._replace(named=False, late=alive))
            if ticket.owner >= 0:
                loser = after.processes[ticket.owner]._replace(overtaken=True)
                after = _with(after, ticket.owner, loser)
                after = _not_before_others(after, ticket.owner)
        yield (
            "pass by the tickets before its own",
            _with(after, index, after.processes[index]._replace(at=WON)),
        )

    def _unused(self, s: State, me: Process) -> bool:
        """Tell whether no process before it takes P, though it is free.

        The nearest to the head tries first, so one that runs comes before those behind it.
        """
        if s.path != NONE or not self.config.overtakes:
            return False
        before = [
            t for t in s.tickets if t.named and t.number < me.asked and t.state == "waits"
        ]
        return all(s.processes[t.owner].stopped for t in before)

    def _behind(self, s: State, index: int, me: Process) -> Steps:
        followed = me.other
        me = me._replace(other=NONE)
        if followed != NONE and s.tickets[followed].tells:
            now = me._replace(at=FIRST, is_next=True)
            yield "hear that it is the next", _with(s, index, now)
        if self.config.surveys_on_wake:
            yield "look again", _with(s, index, me._replace(at=SURVEY))
        elif _named(s, me.number) == NONE:
            yield "hear that the one before is gone", _with(s, index, me._replace(at=FIRST))
        else:
            yield "look at the one before again", _with(s, index, me._replace(at=PROBE))
        if self._unused(s, me):
            now = me._replace(at=TRY_ANYWAY, number=0, passes=True)
            yield "see that those before it leave P free", _with(s, index, now)
        if self.config.looks_by_clock and s.path == DEAD:
            yield "look at P by the clock", _with(s, index, me._replace(at=CLEAR))
        yield from self._gives_up(s, index, me)

    def _first(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "link P", self._wins(s, index, me, WON)
        elif s.path == DEAD:
            yield "remove a dead holder's file", s._replace(path=NONE)
        yield "look at the queue again", _with(s, index, me._replace(at=SURVEY))
        yield from self._gives_up(s, index, me)

    def _gives_up(self, s: State, index: int, me: Process) -> Steps:
        if self.config.leaves:
            now = Process(LEAVE, ticket=me.ticket, is_next=me.is_next)
            yield "give up", _not_before_others(_with(s, index, now), index)

    # ------------------------------------------------------------------ holding and leaving

    def _won(self, s: State, index: int, me: Process) -> Steps:
        ticket = s.tickets[me.ticket]
        after = _with_ticket(s, me.ticket, ticket._replace(state="holds"))
        yield "say by its ticket that it holds", _with(after, index, me._replace(at=HOLDS))
        # A process asks at that moment, or the process is short of descriptors.
        yield "keep its ticket as it is", _with(s, index, me._replace(at=HOLDS))
        yield "leave its ticket", _with(s, index, me._replace(at=LEAVE))

    def _holds(self, s: State, index: int, me: Process) -> Steps:
        after = s if me.robbed else s._replace(path=NONE)
        then = self._rest if me.ticket == NONE else LEAVE
        now = Process(then, ticket=me.ticket, is_next=me.is_next)
        yield "let go of P", _with(after, index, now)

    def _leave(self, s: State, index: int, me: Process) -> Steps:
        if _is_there(s.tickets[me.ticket]):
            after = _with(s, index, me._replace(at=UNLINK_TICKET))
            yield from self._at_once("find its ticket in place", after, index)
        else:
            yield "find its ticket gone", _with(s, index, me._replace(at=REMOVE_QUEUE))

    def _unlink_ticket(self, s: State, index: int, me: Process) -> Steps:
        after = _removed(s, s.tickets[me.ticket].number, me.ticket)
        # If others have just passed it by, it has the other name.
        ticket = after.tickets[me.ticket]
        tells = me.is_next and not ticket.late
        after = _with_ticket(after, me.ticket, ticket._replace(late=False, tells=tells))
        now = me._replace(at=REMOVE_QUEUE, is_next=False)
        yield "remove its ticket", _with(after, index, now)

    def _remove_queue(self, s: State, index: int, me: Process) -> Steps:
        empty = not any(_is_there(t) for t in s.tickets)
        ticket = s.tickets[me.ticket]._replace(owner=DEAD, state="")
        after = _with_ticket(s, me.ticket, ticket)._replace(queue=s.queue and not empty)
        now = me._replace(at=HOLDS if me.holds else self._rest, ticket=NONE)
        yield "remove the queue if it is empty", _with(after, index, now)


def waits_in_vain(state: State) -> bool:
    """Tell whether the first process may ask for the lock: it runs, and so does who holds it."""
    me = state.processes[0]
    if me.stopped or me.at not in WANTS:
        return False
    return state.path < 0 or not state.processes[state.path].stopped


def is_help(label: str) -> bool:
    """Tell whether a step may be hoped for by a process that waits.

    Not that others are killed, stopped or woken, nor that they give up or come.
    """
    ends = ("is killed", "is stopped", "goes on", "give up")
    return not (label.endswith(ends) or ": come" in label or label.startswith("P is taken"))


def first_process_holds(state: State) -> bool:
    """Tell whether the first process has the lock."""
    return state.processes[0].holds


# ---------------------------------------------------------------------- states


def _with(s: State, index: int, process: Process) -> State:
    return s._replace(processes=(*s.processes[:index], process, *s.processes[index + 1 :]))


def _with_ticket(s: State, place: int, ticket: Ticket) -> State:
    return s._replace(tickets=(*s.tickets[:place], ticket, *s.tickets[place + 1 :]))


def _named(s: State, number: int) -> int:
    return next((i for i, t in enumerate(s.tickets) if t.named and t.number == number), NONE)


def _removed(s: State, number: int, expected: int) -> State:
    """Unlink a ticket by its name, whichever file that leads to now."""
    place = _named(s, number)
    if place == NONE:
        return s
    ticket = s.tickets[place]
    after = _with_ticket(s, place, ticket._replace(named=False))
    if place != expected and ticket.owner >= 0 and ticket.state == "waits":
        return _broken(after, OWN_TICKETS)
    return after


def _is_there(ticket: Ticket) -> bool:
    return ticket.named or ticket.late


def _cleared(s: State) -> State:
    """Remove the tickets of dead owners that were passed by."""
    tickets = (t._replace(late=False) if t.owner == DEAD else t for t in s.tickets)
    return s._replace(tickets=tuple(tickets))


def _broken(s: State, prop: str) -> State:
    return s._replace(broken=prop)


def _now(s: State) -> int:
    """Give a number above all that are known: time goes on."""
    numbers = [t.number for t in s.tickets] + [p.asked for p in s.processes]
    return 1 + max(numbers, default=0)


def _standing(s: State, index: int) -> frozenset[int]:
    return frozenset(
        i
        for i, p in enumerate(s.processes)
        if i != index and p.at in STANDS and not p.stopped and not p.overtaken
    )


def _not_before_others(s: State, index: int) -> State:
    """Let everybody come before a process that has won, left, died, or lost its claim."""
    if not any(index in p.earlier for p in s.processes):
        return s
    gone = {index}
    processes = tuple(p._replace(earlier=p.earlier - gone) for p in s.processes)
    return s._replace(processes=processes)


def _renamed(s: State, order: tuple[int, ...]) -> State:
    """Put the processes in an order, sort the tickets, and close the gaps in their numbers."""
    place = {old: new for new, old in enumerate(order)}
    known = {p.ticket for p in s.processes} | {p.other for p in s.processes}
    kept = [i for i, t in enumerate(s.tickets) if _is_there(t) or i in known]
    tickets = [
        s.tickets[i]._replace(
            owner=place.get(s.tickets[i].owner, s.tickets[i].owner),
            prober=place.get(s.tickets[i].prober, s.tickets[i].prober),
        )
        for i in kept
    ]
    # A ticket that has lost its name has a number only for those who may still use it.
    used = {p.ticket for p in s.processes} | {p.other for p in s.processes}
    tickets = [
        t if _is_there(t) or i in used else t._replace(number=0)
        for i, t in zip(kept, tickets, strict=True)
    ]
    mentioned = (
        {t.number for t in tickets}
        | {p.number for p in s.processes}
        | {p.asked for p in s.processes}
        | {0}
    )
    numbers = {number: now for now, number in enumerate(sorted(mentioned))}
    ranked = sorted(range(len(kept)), key=lambda i: (tickets[i], i))
    index = {kept[i]: new for new, i in enumerate(ranked)}
    index[NONE] = NONE
    processes = []
    for old in order:
        p = s.processes[old]
        earlier = p.earlier
        processes.append(
            p._replace(
                ticket=index[p.ticket],
                other=index[p.other],
                asked=numbers[p.asked],
                number=numbers[p.number],
                earlier=frozenset(place[i] for i in earlier) if earlier else earlier,
            )
        )
    return State(
        place.get(s.path, s.path),
        s.queue,
        tuple(tickets[i]._replace(number=numbers[tickets[i].number]) for i in ranked),
        tuple(processes),
        s.broken,
    )
