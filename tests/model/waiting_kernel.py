"""What the model of waiting needs of a kernel: calls that take several steps, and news of them.

The kernel tells the watchers of a file what happens to it, but not at the moment in which it
happens.  So a call is a list of steps here, and between two of them everybody else may go on:

=========  ===================================================
unlink     tell, forget the name
move       forget the name, tell
link       show the name, tell
close      tell, drop the witness
touch      tell
=========  ===================================================

A *late close* is one that no kernel has: it drops the witness first.  It is there to show
what the order of the real one costs.

The first three keep the directory locked from their first step to their last.  A path is
looked up without that lock, so it may still lead to a file whose removal has been told.
"""

from __future__ import annotations

from itertools import permutations
from typing import Final, NamedTuple

from explorer import quickly_replaced

NONE: Final = -1  # no file, no process
DEAD: Final = -2  # the owner of a file whose process is dead
FOREIGNER: Final = -3

# Calls that are under way.
UNLINK: Final = "unlink"
MOVE: Final = "move"
LINK: Final = "link"
CLOSE: Final = "close"
LATE_CLOSE: Final = "late close"
TOUCH: Final = "touch"

TELL: Final = "tell"
FORGET: Final = "forget"
SHOW: Final = "show"
DROP: Final = "drop"

STEPS: Final = {
    UNLINK: (TELL, FORGET),
    MOVE: (FORGET, TELL),
    LINK: (SHOW, TELL),
    CLOSE: (TELL, DROP),
    LATE_CLOSE: (DROP, TELL),
    TOUCH: (TELL,),
}
CLOSES: Final = frozenset({CLOSE, LATE_CLOSE})
LOCKS_DIRECTORY: Final = frozenset({UNLINK, MOVE, LINK})

# What watches tell of; without one of these, it is not in their mask.
NEWS: Final = frozenset({UNLINK, MOVE, LINK, CLOSE, LATE_CLOSE, TOUCH})


@quickly_replaced
class File(NamedTuple):
    """One inode: the process it belongs to, and whether its witness is taken."""

    owner: int
    witness: bool


@quickly_replaced
class Process(NamedTuple):
    """Where a process stands, and what it knows.

    ``mine``      the file that it has open for writing: its lock, or a kept claim
    ``watches``   the file of which it hears
    ``unread``    there is an event of that file to be read
    ``told``      an event has made it look, and no look was complete since
    ``recheck``   it will look again soon, whatever is told
    ``seen``      the file that its last look found at P
    ``judged``    the file that it has judged and lets be, in the life that it had then
    ``looks_at``  the file that the look under way has found
    ``judges``    its next try ends with judging the holder of P
    ``tries``     how often it has tried to watch, in the look under way
    ``follows``   the file of whose owner's process it wants to hear the end
    """

    at: str
    mine: int = NONE
    watches: int = NONE
    unread: bool = False
    told: bool = False
    recheck: bool = False
    seen: int = NONE
    judged: int = NONE
    looks_at: int = NONE
    judges: bool = False
    tries: int = 0
    follows: int = NONE


@quickly_replaced
class Call(NamedTuple):
    """A call in the kernel, and the number of its steps that are done."""

    kind: str
    file: int
    done: int
    by: int  # the process that is in it; ``DEAD`` for what the kernel closes after a death


@quickly_replaced
class State(NamedTuple):
    """One moment.  Files are numbered, and ``NONE`` at P means that it is free."""

    path: int
    files: tuple[File | None, ...]
    processes: tuple[Process, ...]
    calls: tuple[Call, ...] = ()
    foreign: int = NONE  # the foreigner's file, while it has the lock


def with_process(s: State, index: int, process: Process) -> State:
    """Give a state with one process replaced."""
    return s._replace(
        processes=(*s.processes[:index], process, *s.processes[index + 1 :]),
    )


def with_file(s: State, number: int, file: File) -> State:
    """Give a state with one file replaced."""
    return s._replace(files=(*s.files[:number], file, *s.files[number + 1 :]))


def with_new_file(s: State, file: File) -> tuple[State, int]:
    """Give a state with one more file, and the file's number."""
    for number, old in enumerate(s.files):
        if old is None:
            return with_file(s, number, file), number
    return s._replace(files=(*s.files, file)), len(s.files)


def directory_is_locked(s: State) -> bool:
    """Tell whether a call that changes names is under way."""
    return any(call.kind in LOCKS_DIRECTORY for call in s.calls)


def call_of(s: State, index: int) -> Call | None:
    """Find the call that a process is in."""
    return next((call for call in s.calls if call.by == index), None)


def begun(s: State, kind: str, file: int, by: int, hears: frozenset[str]) -> State:
    """Begin a call, with its first step done."""
    call = Call(kind, file, 0, by)
    s = s._replace(calls=(*s.calls, call))
    if kind not in CLOSES:
        # The file's time of change shows that it is no more what was judged.
        processes = (p._replace(judged=NONE) if p.judged == file else p for p in s.processes)
        s = s._replace(processes=tuple(processes))
    return advanced(s, call, hears)


def advanced(s: State, call: Call, hears: frozenset[str]) -> State:
    """Do the next step of a call, and take it off the list with the last one."""
    steps = STEPS[call.kind]
    step = steps[call.done]
    rest = list(s.calls)
    rest.remove(call)
    if call.done + 1 < len(steps):
        rest.append(call._replace(done=call.done + 1))
    s = s._replace(calls=tuple(sorted(rest)))
    if step == TELL:
        return _told(s, call.file) if call.kind in hears else s
    if step == FORGET:
        return s._replace(path=NONE)
    if step == SHOW:
        return s._replace(path=call.file)
    return with_file(s, call.file, File(DEAD, witness=False))


def _told(s: State, file: int) -> State:
    processes = (p._replace(unread=True) if p.watches == file else p for p in s.processes)
    return s._replace(processes=tuple(processes))


def watching(process: Process, file: int) -> Process:
    """Watch a file; what is to be read of another one is of no use any more."""
    return process._replace(watches=file, unread=process.unread and process.watches == file)


def canonical(s: State, fixed: int = 0) -> State:
    """Fold states that differ in the names of files and processes only.

    The first ``fixed`` processes keep their places.
    """
    count = len(s.processes)
    best = None
    for order in permutations(range(fixed, count)):
        folded = _renamed(s, (*range(fixed), *order))
        if best is None or _key(folded) < _key(best):
            best = folded
    assert best is not None
    return best


def _key(s: State) -> tuple[object, ...]:
    return (s.processes, s.path, tuple((f is None, f or ()) for f in s.files), s.calls)


def _renamed(s: State, order: tuple[int, ...]) -> State:
    """Put the processes in an order, and number the files as they are mentioned in it."""
    numbers: dict[int, int] = {NONE: NONE}

    def number(file: int) -> int:
        return numbers.setdefault(file, len(numbers) - 1)

    place = {old: new for new, old in enumerate(order)}
    path = number(s.path)
    processes = []
    for old in order:
        p = s.processes[old]
        processes.append(
            p._replace(
                mine=number(p.mine),
                watches=number(p.watches),
                seen=number(p.seen),
                judged=number(p.judged),
                looks_at=number(p.looks_at),
                follows=number(p.follows),
            )
        )
    calls = tuple(
        sorted(c._replace(file=number(c.file), by=place.get(c.by, c.by)) for c in s.calls)
    )
    foreign = number(s.foreign)
    files: list[File | None] = [None] * (len(numbers) - 1)
    for old, new in numbers.items():
        if new != NONE:
            file = s.files[old]
            assert file is not None
            files[new] = file._replace(owner=place.get(file.owner, file.owner))
    return State(path, tuple(files), tuple(processes), calls, foreign)
