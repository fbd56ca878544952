"""The model of semlock's protocol on POSIX, as ``csrc/semlock.h`` tells it.

Each step is one system call, or several in a row whose middle no process can see; the
README says which and why.  A process that is killed is replaced by a new one, any number of
times, and can be killed at every step.  Every mechanism of the protocol is a switch of
``Config``, so that a test can take it out and see which property fails without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import protocol_places as at
from explorer import can_reach
from protocol_config import EXCLUSION
from protocol_holder import Holder
from protocol_kernel import (
    FOREIGNER,
    NONE,
    Foreigner,
    Inode,
    Kernel,
    Process,
    State,
    with_inode,
    with_token,
)
from protocol_remover import Remover

if TYPE_CHECKING:
    from explorer import Exploration
    from protocol_config import Config
    from protocol_holder import Program, Steps

_NAMES = "ABCDEFGH"


class Protocol:
    """The model that ``explorer.explore`` searches."""

    def __init__(self, config: Config) -> None:
        self.config = config
        judging = at.REMOVING | at.CORE_REMOVING | {at.JUDGED}
        looking = at.LOOKING | at.CORE_READING
        self.kernel = Kernel(
            idle=at.IDLE,
            resting=looking | judging | {at.IDLE},
            pinning=looking | at.REMOVING | at.CORE_REMOVING | at.BARE_OPENED,
            remembering=frozenset({at.JUDGED, at.BARE_HOLDS}),
            reading=looking if config.token else looking | judging,
            owners_matter=config.asks_process or not config.token,
            foreign_away=at.AWAY,
            foreign_pinning=frozenset({at.CREATED}),
        )
        self._holder = Holder(config, self.kernel)
        self._remover = Remover(config, self.kernel)
        self.programs: dict[str, Program] = {
            at.IDLE: self._idle,
            **self._holder.programs(),
            **self._remover.programs(),
        }

    # ------------------------------------------------------------------ what a search needs

    def initial(self) -> State:
        """Begin with nothing at the path and everybody idle."""
        people = (Process(at.IDLE),) * self.config.processes
        return State(NONE, (), people, (), Foreigner(at.AWAY), "")

    def canonical(self, state: State) -> State:
        """Fold states together that differ only in numbers."""
        return self.kernel.canonical(state)

    def successors(self, state: State) -> Steps:
        """Let every process do its next step or be killed, and the foreigner act."""
        if state.broken:
            return
        for index, process in enumerate(state.processes):
            name = _NAMES[index]
            for what, after in self.programs[process.at](state, index, process):
                yield f"{name}: {what}", after
            idle = process.at == at.IDLE and process.mine == NONE and index not in state.owners
            if self.config.crashes and not idle:
                yield f"{name}: is killed", self.kernel.after_death(state, index)
        if self.config.foreigner:
            for what, after in self._foreign_steps(state):
                yield f"foreigner: {what}", after

    def violation(self, state: State) -> str | None:
        """Name the property that is broken: by the last step, or by who believes to hold."""
        if state.broken:
            return state.broken
        believers = sum(p.at in at.BELIEVES and not p.robbed for p in state.processes)
        believers += state.foreigner.at != at.AWAY and not state.foreigner.robbed
        return EXCLUSION if believers > 1 and EXCLUSION in self.config.watched else None

    def _idle(self, s: State, index: int, me: Process) -> Steps:
        yield from self._remover.start(s, index, me)
        yield from self._holder.start(s, index, me)

    # ------------------------------------------------------------------ the foreigner

    def _foreign_steps(self, s: State) -> Steps:
        foreigner = s.foreigner
        if foreigner.at == at.AWAY:
            if s.path == NONE:
                for ino in self.kernel.numbers_for_new_file(s):
                    after, token = with_token(s, FOREIGNER)
                    after = with_inode(after, ino, Inode(token))
                    yield (
                        f"create P as file {ino}",
                        after._replace(path=ino, foreigner=Foreigner(at.CREATED, ino, token)),
                    )
            return
        if foreigner.at == at.CREATED:
            both = 2 * foreigner.life
            inode = s.inodes[foreigner.ino]._replace(first=both, second=both)
            wrote = foreigner._replace(at=at.WROTE, ino=foreigner.ino)
            yield (
                "write and close",
                with_inode(s, foreigner.ino, inode)._replace(foreigner=wrote),
            )
        mine = s.path == foreigner.ino and s.inodes[s.path].life == foreigner.life
        if not mine:
            yield "find its file gone", s._replace(foreigner=Foreigner(at.AWAY))
        elif not (self.config.spares_window and self._in_window(s, foreigner.ino)):
            yield "unlink P", s._replace(path=NONE, foreigner=Foreigner(at.AWAY))

    def _in_window(self, s: State, ino: int) -> bool:
        return any(
            p.other == ino and p.at in (at.REMOVE_HALFWAY, at.REMOVE_READY) for p in s.processes
        )


class Alone(Protocol):
    """The same model with one more process, and only that one moves and is never killed."""

    def start(self, state: State) -> State:
        """Add a fresh process to a state of the whole model."""
        return state._replace(processes=(*state.processes, Process(at.IDLE)))

    def canonical(self, state: State) -> State:
        """Fold inode numbers and tokens, and leave every process in its place."""
        return self.kernel.canonical(state, anonymous=False)

    def successors(self, state: State) -> Steps:
        """Let the last process do its next step."""
        if state.broken:
            return
        last = len(state.processes) - 1
        process = state.processes[last]
        for what, after in self.programs[process.at](state, last, process):
            yield f"newcomer: {what}", after


def find_wedge(found: Exploration[State], config: Config) -> State | None:
    """Find a state in which everybody is idle or dead and a newcomer can't take the lock.

    Every state leads to such a one, since everybody can be killed at any step; so if there is
    no wedge, then from every state there is a way to a new holder.
    """
    alone = Alone(config)
    known = set()
    for state in found.parents:
        if not everybody_rests(state):
            continue
        start = alone.canonical(alone.start(state))
        if start not in known:
            known.add(start)
            if not can_reach(alone, start, newcomer_holds):
                return state
    return None


def everybody_rests(state: State) -> bool:
    """Tell whether all processes are idle, as all dead ones are, and no foreigner holds."""
    return state.foreigner.at == at.AWAY and all(p.at == at.IDLE for p in state.processes)


def newcomer_holds(state: State) -> bool:
    """Tell whether the process that ``Alone`` added has the lock."""
    return state.processes[-1].at in at.BELIEVES


def one_holds(state: State) -> bool:
    """Tell whether any cooperator believes to hold the lock."""
    return any(p.at in at.BELIEVES for p in state.processes)
