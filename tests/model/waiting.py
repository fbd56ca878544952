"""The model of waiting: does a sleeping process get woken by what happens at P?

Processes take P, hold it, let it go or keep its file for the next time, and are killed; a
foreigner does as foreigners do.  A process that finds P held waits for it as
``csrc/posix/look.c`` and the engine do: it watches, looks, judges and sleeps.  It never looks
by the clock, except after news that changed nothing that it could see.

A wake is *lost* when a process sleeps, nothing under way will wake it, and P is free or its
holder is dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from waiting_kernel import (
    CLOSE,
    DEAD,
    FOREIGNER,
    LINK,
    MOVE,
    NEWS,
    NONE,
    TOUCH,
    UNLINK,
    File,
    Process,
    State,
    advanced,
    begun,
    call_of,
    canonical,
    directory_is_locked,
    watching,
    with_file,
    with_new_file,
    with_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    Steps: TypeAlias = Iterator[tuple[str, State]]

LOST_WAKE: Final = "lost wake"

# Where a process stands.  The last few are steps of a look at P.
IDLE: Final = "idle"
LINKING: Final = "links its file to P"
HOLDS: Final = "holds"
RELEASING: Final = "takes its file from P"
CLOSING: Final = "closes its file"
TRY: Final = "tries"
JUDGE: Final = "judges"
FOLLOW: Final = "follows the holder"
REMOVING: Final = "removes what it judged"
WATCH: Final = "watches"
BARRIER: Final = "waits for removals"
WATCH_AGAIN: Final = "watches again"
LOOK: Final = "looks"
ASK: Final = "asks for the witness"
ARMED: Final = "has looked"
SLEEP: Final = "sleeps"

WAITS: Final = frozenset(
    {TRY, JUDGE, FOLLOW, REMOVING, WATCH, BARRIER, WATCH_AGAIN, LOOK, ASK, ARMED, SLEEP}
)


@dataclass(frozen=True)
class Config:
    """What there is in a model: who takes part, and which mechanisms work."""

    processes: int = 2
    waiters: int = 2  # so many of them wait; the others try, and leave it at that
    kills: bool = True
    keeps: bool = False  # the file of a released lock may be kept and used again
    witness: bool = True  # else no holder has its file open, and only its process tells
    touches: bool = False  # holders change their files' attributes
    foreigner: bool = False
    collides: bool = False  # files are taken for the process's own until they are judged
    watch_tries: int = 2  # in one look; 0 for as many as it takes

    # The mechanisms, each of which can be taken out.
    watches_before: bool = True  # else it looks first, and watches what it saw
    barrier: bool = True
    watches_twice: bool = True
    hears: frozenset[str] = NEWS
    close: str = CLOSE
    rechecks: bool = True  # after news that changed nothing
    rechecks_first: bool = True  # a file that is newly watched is looked at once more
    rechecks_busy: bool = True  # so is one that could not be watched for certain
    rechecks_judged: bool = True  # judging a file doesn't make up for looking at it once more
    last_asks: bool = True  # the last of such looks asks for the witness, too
    judges_watched: bool = True  # a file that is newly watched is judged anew
    tries_unread: bool = False  # news that were not read yet are answered by a try
    reads_after_try: bool = True  # and read when the try has failed
    follow_fails_loudly: bool = True  # a process that is gone already is judged anew


def _matters(s: State, file: int, index: int) -> bool:
    """Tell whether any process but its owner knows a file, or can come to know it."""
    return s.path == file or any(
        file in (p.judged, p.looks_at, p.follows, p.watches)
        for i, p in enumerate(s.processes)
        if i != index
    )


class Waiting:
    """The model, for the search."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.programs = {
            IDLE: self._idle,
            HOLDS: self._holds,
            TRY: self._try,
            JUDGE: self._judge,
            FOLLOW: self._follow,
            WATCH: self._watch,
            BARRIER: self._barrier,
            WATCH_AGAIN: self._watch_again,
            LOOK: self._look,
            ASK: self._ask,
            ARMED: self._armed,
            SLEEP: self._sleep,
        }
        # Those that wait and those that don't are not alike, so they keep their places.
        self.fixed = config.waiters if config.waiters < config.processes else 0

    def initial(self) -> State:
        """Begin with P free and everybody idle."""
        return State(NONE, (), (Process(IDLE),) * self.config.processes)

    def canonical(self, state: State) -> State:
        """Fold the names of files and processes."""
        return canonical(state, self.fixed)

    def successors(self, state: State) -> Steps:
        """List every step of every program, of the kernel, of death and of the foreigner."""
        for index, process in enumerate(state.processes):
            if call_of(state, index) is None:
                for what, after in self.programs[process.at](state, index, process):
                    yield f"{index}: {what}", after
                if self.config.kills and process != Process(IDLE) and len(state.calls) < 2:
                    yield f"{index} is killed", self._killed(state, index, process)
        for call in state.calls:
            after = advanced(state, call, self.config.hears)
            if call.by >= 0 and call_of(after, call.by) is None:
                after = self._returned(after, call.by, after.processes[call.by])
            yield f"kernel: go on with {call.kind} of file {call.file}", after
        if self.config.foreigner and not any(c.by == FOREIGNER for c in state.calls):
            yield from self._foreign_steps(state)

    def violation(self, state: State) -> str | None:
        """Find a process that sleeps although it could go on, with nothing to wake it."""
        if state.calls:
            return None
        if state.path != NONE:
            file = state.files[state.path]
            assert file is not None
            if file.owner != DEAD:
                return None
        for process in state.processes:
            if process.at == SLEEP and not self._will_wake(state, process):
                return LOST_WAKE
        return None

    def _will_wake(self, s: State, process: Process) -> bool:
        return (
            process.recheck
            or process.unread
            or (process.follows != NONE and self._owner(s, process.follows) == DEAD)
        )

    @staticmethod
    def _owner(s: State, number: int) -> int:
        file = s.files[number]
        assert file is not None
        return file.owner

    # ------------------------------------------------------------------ taking and letting go

    def _idle(self, s: State, index: int, me: Process) -> Steps:
        if s.path != NONE:
            if index < self.config.waiters:
                yield (
                    "find P held, and begin to wait",
                    with_process(s, index, me._replace(at=WATCH)),
                )
        elif not directory_is_locked(s):
            yield from self._take(s, index, me)
        if me.mine != NONE:
            yield "drop its kept claim", self._closed(s, index, me)

    def _take(self, s: State, index: int, me: Process) -> Steps:
        file = me.mine
        if file == NONE:
            s, file = with_new_file(s, File(index, self.config.witness))
        # Whatever it knew of the wait is given back with the wait.
        after = with_process(s, index, Process(LINKING, mine=file))
        yield f"link file {file} to P", begun(after, LINK, file, index, self.config.hears)

    def _holds(self, s: State, index: int, me: Process) -> Steps:
        hears = self.config.hears
        yield (
            "unlink P",
            begun(
                with_process(s, index, me._replace(at=RELEASING)), UNLINK, me.mine, index, hears
            ),
        )
        if self.config.touches:
            yield "touch P", begun(s, TOUCH, me.mine, index, hears)
        if self._keeps(index):
            after = with_process(s, index, me._replace(at=RELEASING))
            yield "move P to a private name", begun(after, MOVE, me.mine, index, hears)

    def _keeps(self, index: int) -> bool:
        return self.config.keeps and (index >= self.config.waiters or self.fixed == 0)

    def _closed(self, s: State, index: int, me: Process) -> State:
        if not self.config.witness or not _matters(s, me.mine, index):
            return with_process(s, index, Process(IDLE))
        after = with_process(s, index, me._replace(at=CLOSING))
        return begun(after, self.config.close, me.mine, index, self.config.hears)

    def _returned(self, s: State, index: int, me: Process) -> State:
        """Say where a process stands after a call that is over."""
        if me.at == LINKING:
            return with_process(s, index, me._replace(at=HOLDS))
        if me.at == REMOVING:
            return with_process(s, index, me._replace(at=TRY))
        if me.at == CLOSING:
            return with_process(s, index, Process(IDLE))
        if self._keeps(index):
            return with_process(s, index, me._replace(at=IDLE))
        return self._closed(s, index, me)

    def _killed(self, s: State, index: int, me: Process) -> State:
        after = with_process(s, index, Process(IDLE))
        if me.mine == NONE or not _matters(s, me.mine, index):
            return after
        if not self.config.witness:
            return with_file(after, me.mine, File(DEAD, witness=False))
        return begun(after, self.config.close, me.mine, DEAD, self.config.hears)

    # ------------------------------------------------------------------ the engine

    def _try(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            if not directory_is_locked(s):
                yield from self._take(s, index, me)
        elif me.judges:
            yield "try: P is held", with_process(s, index, me._replace(at=JUDGE))
        else:
            yield "try: P is held", with_process(s, index, me._replace(at=WATCH))

    def _judge(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "judge: P is free", with_process(s, index, me._replace(at=TRY))
            return
        file = s.files[s.path]
        assert file is not None
        if file.owner == DEAD and not file.witness:
            # The guard and the comparisons are the other model's business.
            if not directory_is_locked(s):
                after = with_process(s, index, me._replace(at=REMOVING))
                yield (
                    "judge: the holder is dead; unlink P",
                    begun(after, UNLINK, s.path, index, self.config.hears),
                )
            return
        now = me._replace(at=WATCH, judged=s.path, judges=False)
        if not self.config.witness and file.owner != FOREIGNER:
            now = now._replace(at=FOLLOW)
        yield "judge: let it be", with_process(s, index, now)

    def _follow(self, s: State, index: int, me: Process) -> Steps:
        # What was judged may have changed since, but not the process that its record named.
        named = me.judged if me.judged != NONE else s.path
        now = me._replace(at=WATCH)
        if named == NONE or self._owner(s, named) == DEAD:
            if self.config.follow_fails_loudly:
                now = now._replace(judged=NONE)
            yield "follow: the process is gone", with_process(s, index, now)
        else:
            now = now._replace(follows=named)
            yield "follow the holder's process", with_process(s, index, now)

    # ------------------------------------------------------------------ one look at P

    def _free(self, s: State, index: int, me: Process) -> State:
        now = me._replace(at=TRY, tries=0, looks_at=NONE, judges=False)
        return with_process(s, index, now)

    def _watch(self, s: State, index: int, me: Process) -> Steps:
        if not self.config.watches_before and me.looks_at == NONE:
            yield from self._look(s, index, me)
        elif s.path == NONE:
            yield "watch P: it is free", self._free(s, index, me)
        else:
            fresh = me.watches != s.path
            now = watching(me, s.path)
            if fresh and self.config.rechecks_first:
                now = now._replace(recheck=True)
            if fresh and self.config.judges_watched:
                now = now._replace(judged=NONE)
            then = (
                BARRIER
                if self.config.barrier
                else WATCH_AGAIN
                if self.config.watches_twice
                else LOOK
                if self.config.watches_before
                else ARMED
            )
            now = now._replace(at=then)
            yield f"watch P, which is file {s.path}", with_process(s, index, now)

    def _barrier(self, s: State, index: int, me: Process) -> Steps:
        if directory_is_locked(s):
            return
        if s.path == NONE:
            yield "see that P is free", self._free(s, index, me)
        else:
            then = WATCH_AGAIN if self.config.watches_twice else LOOK
            yield "see that P exists", with_process(s, index, me._replace(at=then))

    def _watch_again(self, s: State, index: int, me: Process) -> Steps:
        then = LOOK if self.config.watches_before else ARMED
        if s.path == NONE:
            yield "watch P again: it is free", self._free(s, index, me)
        elif me.watches == s.path:
            now = me._replace(at=then, tries=0)
            yield "watch P again: the same file", with_process(s, index, now)
        elif self.config.watch_tries == 0:
            yield "watch P again: another file", with_process(s, index, me._replace(at=WATCH))
        elif me.tries + 1 < self.config.watch_tries:
            now = me._replace(at=WATCH, tries=me.tries + 1)
            yield "watch P again: another file", with_process(s, index, now)
        else:
            now = me._replace(at=then, tries=0)
            if self.config.rechecks_busy:
                now = now._replace(recheck=True, told=True)
            yield "watch P again: another file, and enough of it", with_process(s, index, now)

    def _look(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "look: P is free", self._free(s, index, me)
        else:
            now = me._replace(at=ASK, looks_at=s.path)
            yield f"look: P is file {s.path}", with_process(s, index, now)

    def _ask(self, s: State, index: int, me: Process) -> Steps:
        then = ARMED if self.config.watches_before else WATCH
        fine = me._replace(at=then)
        judge = me._replace(at=TRY, judges=True, looks_at=NONE, tries=0, told=False)
        if not self.config.rechecks_judged:
            judge = judge._replace(recheck=False)
        if self.config.collides and me.judged != me.looks_at:
            yield "take it for its own", with_process(s, index, judge)
            return
        if me.judged == me.looks_at and not me.told:
            yield "let it be, as judged", with_process(s, index, fine)
        elif s.path == NONE:
            yield "ask for the witness: P is free", with_process(s, index, judge)
        else:
            file = s.files[s.path]
            assert file is not None
            after = with_process(s, index, fine if file.witness else judge)
            yield "ask for the witness", after

    def _armed(self, s: State, index: int, me: Process) -> Steps:
        # Whatever was told of has shown: there is another file.  But news of that one may
        # have been told before it was watched.
        recheck = me.recheck
        if not self.config.rechecks_first and (not me.told or me.seen != me.looks_at):
            recheck = False
        now = me._replace(
            at=SLEEP,
            told=False,
            recheck=recheck and self.config.rechecks,
            seen=NONE if self.config.rechecks_first else me.looks_at,
            looks_at=NONE,
        )
        yield "sleep", with_process(s, index, now)

    def _sleep(self, s: State, index: int, me: Process) -> Steps:
        if me.unread and self.config.tries_unread and not directory_is_locked(s):
            # A try that fails changes nothing: the news are read next.
            if s.path == NONE:
                yield from self._take(s, index, me)
            elif not self.config.reads_after_try:
                yield (
                    "try, and forget the news",
                    with_process(s, index, me._replace(unread=False)),
                )
        if me.unread:
            now = me._replace(at=WATCH, unread=False, told=True, recheck=True)
            yield "hear news", with_process(s, index, now)
        if me.recheck:
            # The kernel takes less time for the rest of a call than it goes on looking again.
            last = not s.calls
            told = not last or self.config.last_asks
            now = me._replace(at=WATCH, told=told, recheck=not last)
            yield "look again", with_process(s, index, now)
        if me.follows != NONE and self._owner(s, me.follows) == DEAD:
            now = me._replace(at=TRY, judges=True, recheck=True, follows=NONE)
            yield "hear that the holder has ended", with_process(s, index, now)

    # ------------------------------------------------------------------ the foreigner

    def _foreign_steps(self, s: State) -> Steps:
        if directory_is_locked(s):
            return
        if s.path == NONE:
            after, file = with_new_file(s, File(FOREIGNER, witness=False))
            yield (
                f"foreigner: create P as file {file}",
                after._replace(path=file, foreign=file),
            )
        elif s.path == s.foreign:
            gone = s._replace(foreign=NONE)
            yield (
                "foreigner: unlink P",
                begun(gone, UNLINK, s.path, FOREIGNER, self.config.hears),
            )
            yield (
                "foreigner: move P away",
                begun(gone, MOVE, s.path, FOREIGNER, self.config.hears),
            )
