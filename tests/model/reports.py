"""The model of a set of locks: is each lock that gets free noticed?

Two locks lie in one directory, which the set watches.  Processes take them, also with the file
that they had at the other lock, release them and are killed.  The set watches, looks, reads the
reports of the kernel and tries, as ``semlock/_locks/candidates.py`` does.  It never looks by the
clock, except again at what was reported and seemed held, as long as a call is under way, and once
more at all locks when the calls are over that were under way when it began to watch.

The kernel reports a name that was made after it is there, a name that goes before or after it is
gone (old and new kernels), and the close of a dead holder's file before its witness is dropped.
A close names the file by its number, and all others the name.

A report is *lost* when nothing is under way, nothing is to be read or tried, and a lock is free or
its holder is dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from explorer import quickly_replaced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Steps: TypeAlias = Iterator[tuple[str, "State"]]

LOST_REPORT: Final = "lost report"

FREE: Final = -1  # no file is at the name
SETS: Final = -2  # the set holds it
NAMES: Final = (0, 1)
ALL: Final = frozenset(NAMES)

MADE: Final = "made"
GONE: Final = "gone"
CLOSED: Final = "closed"
OVERFLOW: Final = "overflow"
OVER: Final = "watch over"


@dataclass(frozen=True)
class Config:
    """What there is in a model, and which mechanisms work."""

    processes: int = 1
    kills: int = 1  # so many of them; another process takes the place of a killed one
    tells_before: bool = True  # an unlink is reported before the name is gone
    interrupts: bool = False  # a poll may end after it has read the reports
    moves: bool = False  # the directory may be moved away once, and made again
    knows: bool = False  # the set has begun, and has asked for the number of a held file
    releases: bool = True  # what the set has taken
    room: int = 2  # so many reports are kept

    # The mechanisms, each of which can be taken out.
    watches_first: bool = True  # else it looks, and watches after that
    looks: bool = True  # when it has begun to watch
    looks_twice: bool = True  # and when what was under way then is over
    hears: frozenset[str] = frozenset({GONE, CLOSED, OVERFLOW, OVER})
    asks_anew: bool = True  # for the number of each name that was made since
    checks_again: bool = True  # what was reported and seems held
    notes_interrupts: bool = True
    judges_anew: bool = True  # the holders of all locks, when it looks at all


@quickly_replaced
class File(NamedTuple):
    """One inode that a process has open, or had; its number is its place in the list."""

    owner: int
    dead: bool = False
    witness: bool = True


@quickly_replaced
class Call(NamedTuple):
    """A call in the kernel whose second half is still to come."""

    kind: str  # of its report
    name: int
    file: int


@quickly_replaced
class State(NamedTuple):
    """One moment."""

    names: tuple[int, ...] = (FREE, FREE)  # the file of each
    files: tuple[File | None, ...] = (None, None, None)
    calls: tuple[Call, ...] = ()
    queue: tuple[tuple[str, int], ...] = ()
    watched: bool = False  # the directory that is there
    moved: bool = False
    killed: int = 0
    # What the set knows.
    to_look: frozenset[int] = ALL  # names at which it will look before it reads
    begun: bool = False  # it believes to watch
    before: tuple[Call, ...] | None = (
        None  # under way when it began; None: no second look is due
    )
    ready: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    judged: frozenset[int] = frozenset()  # whose holders it need not ask for
    unnumbered: frozenset[int] = ALL
    numbers: frozenset[tuple[int, int]] = frozenset()  # files and their names


class Reports:
    """The model, for the search."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        """Begin with free locks and a new set; or with one that knows the number of a file."""
        if not self.config.knows:
            return State()
        return State(
            (0, FREE), (File(0), None, None), watched=True, begun=True, to_look=frozenset(),
            judged=frozenset({0}), ready=frozenset({1}), unnumbered=frozenset(),
            numbers=frozenset({(0, 0)}),
        )  # fmt: skip

    def canonical(self, state: State) -> State:
        """Give the state itself: to fold the names takes longer than the search."""
        return state

    def successors(self, s: State) -> Steps:
        """List each step of the processes, of the kernel and of the set."""
        for number in range(self.config.processes):
            yield from self._process(s, number)
        for call in s.calls:
            yield f"kernel: the rest of {call.kind}", self._rest(s, call)
        yield from self._set(s)
        if self.config.moves and not s.moved and not s.calls and s.begun:
            files = tuple(None if n in s.names else f for n, f in enumerate(s.files))
            after = s._replace(
                names=(FREE, FREE), files=files, queue=(), watched=False, moved=True
            )
            if OVER in self.config.hears:
                after = after._replace(queue=((OVER, 0),))
            yield "the directory is moved away, and made again", after

    def violation(self, s: State) -> str | None:
        """Find a lock that could be had, and a set that will not try it."""
        busy = s.calls or s.queue or s.ready or s.again or s.to_look or s.before is not None
        if busy or not s.begun:
            return None
        return LOST_REPORT if any(self._can_be_had(s, name) for name in NAMES) else None

    # ------------------------------------------------------------------ the others

    def _process(self, s: State, number: int) -> Steps:
        mine = next((n for n, f in enumerate(s.files) if f == File(number)), None)
        if any(call.file == mine for call in s.calls if mine is not None):
            return
        at = s.names.index(mine) if mine in s.names else None
        if at is not None:
            if self.config.tells_before:
                told = self._told(s, GONE, at)
            else:
                told = self._named(s, at, FREE)
            rest = Call(GONE, at, mine if mine is not None else FREE)
            yield f"{number} removes name {at}", told._replace(calls=(*told.calls, rest))
        else:
            for name in NAMES:
                room = mine is not None or None in s.files
                if room and s.names[name] == FREE and not self._is_locked(s):
                    file = mine if mine is not None else s.files.index(None)
                    now = self._with_file(s, file, File(number))
                    now = self._named(now, name, file)
                    now = now._replace(calls=(*now.calls, Call(MADE, name, file)))
                    yield f"{number} takes name {name} with file {file}", now
        if s.killed < self.config.kills and mine is not None:
            now = self._with_file(s, mine, File(number, dead=True))._replace(
                killed=s.killed + 1
            )
            now = self._told(now, CLOSED, mine)
            yield (
                f"{number} is killed",
                now._replace(calls=(*now.calls, Call(CLOSED, FREE, mine))),
            )

    @staticmethod
    def _is_locked(s: State) -> bool:
        return any(call.kind != CLOSED for call in s.calls)

    @staticmethod
    def _named(s: State, name: int, file: int) -> State:
        return s._replace(names=tuple(file if n == name else f for n, f in enumerate(s.names)))

    @staticmethod
    def _with_file(s: State, number: int, file: File | None) -> State:
        return s._replace(
            files=tuple(file if n == number else f for n, f in enumerate(s.files))
        )

    def _told(self, s: State, kind: str, what: int) -> State:
        """Queue a report; the last place is for the word that some were lost."""
        if not s.watched or (kind in (GONE, CLOSED) and kind not in self.config.hears):
            return s
        if len(s.queue) < self.config.room:
            return s._replace(queue=(*s.queue, (kind, what)))
        if s.queue[-1][0] != OVERFLOW:
            return s._replace(queue=(*s.queue, (OVERFLOW, 0)))
        return s

    def _rest(self, s: State, call: Call) -> State:
        s = s._replace(calls=tuple(other for other in s.calls if other is not call))
        if call.kind == MADE:
            return self._told(s, MADE, call.name)
        if call.kind == GONE:
            if not self.config.tells_before:
                return self._told(s, GONE, call.name)
            return self._named(s, call.name, FREE)
        if call.file not in s.names:
            return self._with_file(s, call.file, None)  # no name, and not open: it is no more
        file = s.files[call.file]
        assert file is not None
        return self._with_file(s, call.file, file._replace(witness=False))

    @staticmethod
    def _can_be_had(s: State, name: int) -> bool:
        if s.names[name] in (FREE, SETS):
            return s.names[name] == FREE
        file = s.files[s.names[name]]
        return file is not None and not file.witness

    # ------------------------------------------------------------------ the set

    def _set(self, s: State) -> Steps:
        for name in NAMES:
            mine = self.config.releases and s.names[name] == SETS
            if mine and not self._is_locked(s):
                yield (
                    f"the set releases {name}",
                    self._told(self._named(s, name, FREE), GONE, name),
                )
        if not s.begun and (self.config.watches_first or not s.to_look):
            looks = ALL if self.config.looks and self.config.watches_first else frozenset()
            now = s._replace(begun=True, watched=True, to_look=looks)
            yield "the set watches", self._twice(now)
        elif s.to_look:
            for name in s.to_look:
                yield f"the set looks at {name}", self._looked(s, name)
        elif s.queue:
            yield "the set reads", self._heard(s._replace(queue=()), s.queue)
            if self.config.interrupts:
                now = s._replace(queue=())
                if self.config.notes_interrupts:
                    now = self._twice(self._all_anew(now))
                yield "the set is interrupted when it has read", now
        else:
            for name in s.ready | s.again:
                yield f"the set tries {name}", self._tried(s, name)
            if s.before is not None and not set(s.before) & set(s.calls):
                yield "the set looks once more", self._all_anew(s)._replace(before=None)

    def _twice(self, s: State) -> State:
        return s._replace(before=s.calls) if self.config.looks_twice else s

    def _looked(self, s: State, name: int) -> State:
        s = s._replace(to_look=s.to_look - {name})
        if s.names[name] != FREE and name in s.judged:
            return s
        if self._can_be_had(s, name):
            return s._replace(ready=s.ready | {name})
        return s._replace(judged=s.judged | {name})

    def _all_anew(self, s: State) -> State:
        judged = frozenset() if self.config.judges_anew else s.judged
        return s._replace(to_look=ALL, unnumbered=ALL, judged=judged)

    def _heard(self, s: State, queue: tuple[tuple[str, int], ...]) -> State:
        for kind, what in queue:
            if kind == OVER:
                s = self._all_anew(s._replace(begun=False))
            elif kind == OVERFLOW:
                s = self._twice(self._all_anew(s)) if OVERFLOW in self.config.hears else s
            elif kind == MADE:
                s = s._replace(ready=s.ready - {what}, again=s.again - {what})
                if self.config.asks_anew or what not in {name for _, name in s.numbers}:
                    s = s._replace(unnumbered=s.unnumbered | {what})
            elif kind == GONE:
                s = s._replace(ready=s.ready | {what}, judged=s.judged - {what})
            else:
                s = self._closed(s, what)
        return s

    def _closed(self, s: State, file: int) -> State:
        known = dict(s.numbers)
        if self.config.asks_anew or file not in known:
            known |= {s.names[name]: name for name in s.unnumbered if s.names[name] >= 0}
            s = s._replace(unnumbered=frozenset())
        name = known.pop(file, None)
        s = s._replace(numbers=frozenset(known.items()))
        if name is None:
            return s
        return s._replace(ready=s.ready | {name}, judged=s.judged - {name})

    def _tried(self, s: State, name: int) -> State:
        told = name in s.ready
        s = s._replace(ready=s.ready - {name})
        if self._can_be_had(s, name) and not self._is_locked(s):
            file = s.names[name]
            s = self._named(s, name, SETS)
            if file != FREE:
                s = self._told(self._with_file(s, file, None), GONE, name)
            return self._told(s._replace(again=s.again - {name}), MADE, name)
        if (told or s.calls) and self.config.checks_again:
            return s._replace(again=s.again | {name})
        return s._replace(again=s.again - {name})
