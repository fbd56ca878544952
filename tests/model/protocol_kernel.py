"""What the protocol's model needs of a kernel: names, inodes, descriptors, guards and death.

Everything is a tuple, so that a state can be a key of a dictionary.  Inodes, processes and
tokens are small numbers whose only meaning is which of them are the same; ``canonical``
gives them their numbers in the order in which a state mentions them, so that states which
differ in nothing else fall together.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Final, NamedTuple

from explorer import quickly_replaced

NONE: Final = -1  # no inode, no process
NOBODY: Final = -1  # the owner of a token whose process is dead
FOREIGNER: Final = -2  # the owner of a token that the foreign program wrote

# How an inode came to its path, and how far its creator got.
WHOLE: Final = 0  # it was finished before it had the path, by a link
UNFINISHED: Final = 1  # created at the path, and it carries the mark (the sticky bit)
PLACED: Final = 2  # created at the path, without the mark: finished, or there are no marks


@quickly_replaced
class Inode(NamedTuple):
    """One file.  A number that a process remembers but that is free again is ``FREE``.

    ``life``           the acquisition that it serves; processes can't read this, but a clock
                       that is fine enough shows it as a change of ctime
    ``first, second``  the record in two halves, so that it can be seen half written; 0 is
                       empty, else twice the token, plus one once it was refreshed
    ``form``           ``WHOLE``, ``UNFINISHED`` or ``PLACED``
    ``kept``           whether it has a private name besides
    ``guard``          the process that has the guard
    """

    life: int = 0
    first: int = 0
    second: int = 0
    form: int = WHOLE
    kept: bool = False
    guard: int = NONE


FREE: Final = Inode()
_IDLE_CLAIM: Final = Inode(kept=True)


@quickly_replaced
class Process(NamedTuple):
    """One cooperator.

    ``at``             the step that it has reached
    ``mine``           the file that it made, with descriptor and witness
    ``other``          another file: open, or only its number remembered, as ``at`` says
    ``first, second``  the record that it read there
    ``mark``           whether it saw the mark there
    ``life``           the life of that inode when it looked: what it judges.  For a holder
                       that gave up its descriptor: the token that it knows its file by
    ``cause``          why it found the file stale
    ``robbed``         whether a policy took its lock; it can't know yet
    """

    at: str
    mine: int = NONE
    other: int = NONE
    first: int = 0
    second: int = 0
    mark: bool = False
    life: int = 0
    cause: str = ""
    robbed: bool = False


@quickly_replaced
class Foreigner(NamedTuple):
    """A program that creates with O_EXCL, writes later, and unlinks; it knows no guard."""

    at: str
    ino: int = NONE
    life: int = 0
    robbed: bool = False


@quickly_replaced
class State(NamedTuple):
    """All that there is: the path, the inodes, the processes, and who wrote which token.

    ``broken`` names the property that the last step broke, if it broke one.
    """

    path: int
    inodes: tuple[Inode, ...]
    processes: tuple[Process, ...]
    owners: tuple[int, ...]
    foreigner: Foreigner
    broken: str


class Kernel:
    """The rules of names and descriptors, for programs whose steps have certain names.

    ``idle``             where a process stands that does nothing
    ``resting``          the steps at which ``mine`` is a claim that waits to be used again
    ``pinning``          the steps at which the descriptor of ``other`` is open
    ``remembering``      the steps at which only the number of ``other`` is known
    ``reading``          the steps at which the owner of a record that was read still matters
    ``owners_matter``    whether any step asks which process wrote a record
    ``foreign_away``     where the foreigner stands that does nothing
    ``foreign_pinning``  the steps at which the foreigner has its file open
    """

    def __init__(
        self,
        *,
        idle: str,
        resting: frozenset[str],
        pinning: frozenset[str],
        remembering: frozenset[str],
        reading: frozenset[str],
        owners_matter: bool,
        foreign_away: str,
        foreign_pinning: frozenset[str],
    ) -> None:
        self.idle = idle
        self.resting = resting
        self.pinning = pinning
        self.remembering = remembering
        self.reading = reading
        self.owners_matter = owners_matter
        self.foreign_away = foreign_away
        self.foreign_pinning = foreign_pinning

    def is_free(self, state: State, ino: int) -> bool:
        """Tell whether the filesystem may give this number to a new file.

        It may when no name leads to the inode and no descriptor is open on it.
        """
        if ino == state.path or state.inodes[ino].kept:
            return False
        for process in state.processes:
            if process.mine == ino or (process.other == ino and process.at in self.pinning):
                return False
        foreigner = state.foreigner
        return foreigner.ino != ino or foreigner.at not in self.foreign_pinning

    def numbers_for_new_file(self, state: State) -> list[int]:
        """List the numbers that a new file may get, as far as they make a difference.

        One that no process has ever seen stands for all of its kind.  A number that was freed
        makes a difference only if a process still remembers it.
        """
        numbers = [len(state.inodes)]
        for process in state.processes:
            ino = process.other
            if (
                process.at in self.remembering
                and ino not in numbers
                and self.is_free(state, ino)
            ):
                numbers.append(ino)
        return numbers

    def others_have_it_open(self, state: State, ino: int, me: int) -> bool:
        """Tell whether another process has a descriptor on an inode."""
        for index, process in enumerate(state.processes):
            if index != me and (
                process.mine == ino or (process.other == ino and process.at in self.pinning)
            ):
                return True
        return False

    def after_death(self, state: State, index: int) -> State:
        """Kill a process; another one takes its place, with nothing in its memory.

        The kernel closes its descriptors, which drops guard and witness and takes the file
        that has no name.  Names stay.  What it wrote is from now on the record of a dead
        process.
        """
        inodes = tuple(
            inode._replace(guard=NONE) if inode.guard == index else inode
            for inode in state.inodes
        )
        owners = tuple(NOBODY if owner == index else owner for owner in state.owners)
        processes = put(state.processes, index, Process(self.idle))
        return state._replace(inodes=inodes, processes=processes, owners=owners)

    def given_up(self, state: State, index: int, me: Process) -> State:
        """Close a process's own file, remove its private name, and let the process idle."""
        if me.mine != NONE:
            inode = state.inodes[me.mine]
            guard = NONE if inode.guard == index else inode.guard
            state = with_inode(state, me.mine, inode._replace(kept=False, guard=guard))
        return with_process(state, index, Process(self.idle))

    def closed(self, state: State, index: int, me: Process) -> State:
        """Close the other file, which drops the guard on it, and let the process idle."""
        state = unguarded(state, me.other, index)
        return with_process(state, index, Process(self.idle, me.mine))

    # ------------------------------------------------------------------ folding

    def canonical(self, state: State, *, anonymous: bool = True) -> State:
        """Give the state that stands for all that differ in numbers only.

        Processes run the same program, so which of them does what makes no difference; with
        ``anonymous`` false they keep their places all the same.  They are put in the order
        of what they do; only where that leaves several orders are all of them tried.
        """
        count = len(state.processes)
        if not anonymous:
            return self._renumbered(state, tuple(range(count)))
        path = state.path
        keys = [
            (
                process.at,
                process.mine != NONE,
                process.mine == path,
                process.other == path,
                process.cause,
                process.robbed,
                process.mark,
            )
            for process in state.processes
        ]
        order = sorted(range(count), key=keys.__getitem__)
        groups: list[list[int]] = []
        for index in order:
            if groups and keys[groups[-1][0]] == keys[index]:
                groups[-1].append(index)
            else:
                groups.append([index])
        if len(groups) == count:
            return self._renumbered(state, tuple(order))
        return min(
            self._renumbered(state, tuple(index for group in choice for index in group))
            for choice in product(*map(permutations, groups))
        )

    def _renumbered(self, state: State, order: tuple[int, ...]) -> State:
        inodes, processes, owners = state.inodes, state.processes, state.owners
        foreigner = state.foreigner
        numbers = {NONE: NONE}
        if state.path != NONE:
            numbers[state.path] = 0
        in_use = {state.path}
        for index in order:
            process = processes[index]
            mine, other = process.mine, process.other
            if mine != NONE:
                numbers.setdefault(mine, len(numbers) - 1)
                if process.at not in self.resting:
                    in_use.add(mine)
            if other != NONE:
                numbers.setdefault(other, len(numbers) - 1)
                if process.at in self.pinning:
                    in_use.add(other)
        if foreigner.ino != NONE:
            numbers.setdefault(foreigner.ino, len(numbers) - 1)
            if foreigner.at in self.foreign_pinning:
                in_use.add(foreigner.ino)
        places = {NONE: NONE}
        for new, old in enumerate(order):
            places[old] = new

        # An inode that is not mentioned has no name but a private one and no descriptor: a
        # dead process's claim, of which nothing but a sweep ever makes use.
        tokens = {0: 0}
        readable = set()
        listed = []
        for ino in numbers:
            if ino == NONE:
                continue
            inode = inodes[ino]
            if ino not in in_use:
                # A claim that waits is written anew before any process can read it again.
                listed.append(_IDLE_CLAIM if inode.kept else FREE)
                continue
            first, second, life = inode.first, inode.second, inode.life
            if first:
                readable.add(first >> 1)
                first = tokens.setdefault(first >> 1, len(tokens)) << 1 | first & 1
            if second:
                readable.add(second >> 1)
                second = tokens.setdefault(second >> 1, len(tokens)) << 1 | second & 1
            readable.add(life)  # it may not have been written yet
            life = tokens.setdefault(life, len(tokens))
            guard = places[inode.guard]
            listed.append(Inode(life, first, second, inode.form, inode.kept, guard))
        people = []
        for index in order:
            process = processes[index]
            first, second, life = process.first, process.second, process.life
            if first:
                if process.at in self.reading:
                    readable.add(first >> 1)
                first = tokens.setdefault(first >> 1, len(tokens)) << 1 | first & 1
            if second:
                if process.at in self.reading:
                    readable.add(second >> 1)
                second = tokens.setdefault(second >> 1, len(tokens)) << 1 | second & 1
            if life:
                life = tokens.setdefault(life, len(tokens))
            at, mine, other, _, _, mark, _, cause, robbed = process
            mine, other = numbers[mine], numbers[other]
            people.append(Process(at, mine, other, first, second, mark, life, cause, robbed))
        if foreigner.at != self.foreign_away:
            life = tokens.setdefault(foreigner.life, len(tokens))
            ino = numbers[foreigner.ino]
            foreigner = Foreigner(foreigner.at, ino, life, foreigner.robbed)

        # Who wrote a record matters only while a process can still judge it by that.
        named = []
        for token in tokens:
            if token:
                owner = owners[token - 1]
                if owner >= 0:
                    known = self.owners_matter and token in readable
                    owner = places[owner] if known else NOBODY
                named.append(owner)
        return State(
            numbers[state.path],
            tuple(listed),
            tuple(people),
            tuple(named),
            foreigner,
            state.broken,
        )


def put(processes: tuple[Process, ...], index: int, process: Process) -> tuple[Process, ...]:
    """Replace one process of a tuple of them."""
    return (*processes[:index], process, *processes[index + 1 :])


def with_process(state: State, index: int, process: Process) -> State:
    """Replace one process of a state."""
    return state._replace(processes=put(state.processes, index, process))


def moved(state: State, index: int, process: Process, at: str) -> State:
    """Let a process go to another place, with all that it knows."""
    return with_process(state, index, process._replace(at=at))


def with_inode(state: State, ino: int, inode: Inode) -> State:
    """Replace one inode of a state, or add the next one."""
    inodes = state.inodes
    return state._replace(inodes=(*inodes[:ino], inode, *inodes[ino + 1 :]))


def unguarded(state: State, ino: int, index: int) -> State:
    """Drop a process's guard on an inode, if it has it."""
    inode = state.inodes[ino]
    return with_inode(state, ino, inode._replace(guard=NONE)) if inode.guard == index else state


def with_token(state: State, owner: int) -> tuple[State, int]:
    """Make a token that no process has, and give it with the state that knows who wrote it."""
    return state._replace(owners=(*state.owners, owner)), len(state.owners) + 1
