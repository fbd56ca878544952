"""What a cooperator does to look at a lock, to judge it and to remove it.

The programs have the form that is told in ``protocol_holder``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import protocol_places as at
from protocol_config import (
    ABANDONED,
    AGE,
    DEATH,
    EXACT,
    GRACE,
    NO_ROBBERY,
    WHOLE_RECORDS,
    WHOLE_REFRESH,
    WINDOW,
)
from protocol_kernel import (
    FOREIGNER,
    NOBODY,
    NONE,
    UNFINISHED,
    Process,
    moved,
    with_inode,
    with_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol_config import Config
    from protocol_holder import Program, Steps
    from protocol_kernel import Inode, Kernel, State


class Remover:
    """The programs of looking, judging and removing."""

    def __init__(self, config: Config, kernel: Kernel) -> None:
        self.config = config
        self.kernel = kernel

    def programs(self) -> dict[str, Program]:
        """List the programs by the place where a process must stand to run them."""
        return {
            at.LOOK_OPEN: self._look_open,
            at.LOOK_HALF: self._look_half,
            at.LOOK_READ: self._look_read,
            at.LOOK_SEEN: self._look_seen,
            at.LOOK_HALF_AGAIN: self._look_half_again,
            at.LOOK_AGAIN: self._look_again,
            at.JUDGED: self._judged,
            at.REMOVE_OPEN: self._remove_open,
            at.REMOVE_GUARDED: self._remove_guarded,
            at.REMOVE_HALFWAY: self._remove_halfway,
            at.REMOVE_READY: self._remove_ready,
            at.CORE_OPEN: self._core_open,
            at.CORE_FREE: self._core_free,
            at.CORE_HALF: self._core_half,
            at.CORE_READ: self._core_read,
            at.CORE_DEAD: self._core_dead,
            at.CORE_GUARDED: self._core_guarded,
            at.CORE_SAME: self._core_same,
        }

    # ------------------------------------------------------------------ looking and judging

    def start(self, s: State, index: int, me: Process) -> Steps:
        """Begin to look at what is at the path, as an idle process may."""
        if s.path != NONE:
            inode = s.inodes[s.path]
            mark = self.config.marks and inode.form == UNFINISHED
            seen = Process(at.LOOK_OPEN, me.mine, s.path, mark=mark, life=inode.life)
            yield "look: open P, fstat", with_process(s, index, seen)
            if self.config.core_judges and not mark:
                opened = seen._replace(at=at.CORE_OPEN)
                yield "core: open P, fstat", with_process(s, index, opened)

    def _look_open(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if self.config.tears and self._may_be_written(s, me.other):
            seen = me._replace(at=at.LOOK_HALF, first=inode.first)
            yield "look: read half", with_process(s, index, seen)
        else:
            seen = self._has_read(me, inode.first, inode.second)
            yield "look: read", with_process(s, index, seen)

    def _look_half(self, s: State, index: int, me: Process) -> Steps:
        seen = self._has_read(me, me.first, s.inodes[me.other].second)
        yield "look: read the rest", with_process(s, index, seen)

    def _has_read(self, me: Process, first: int, second: int) -> Process:
        # A whole record names its instance by its token, so the life is no longer needed.
        whole = first >> 1 == second >> 1 != 0 and not me.mark
        life = 0 if whole else me.life
        then = at.LOOK_READ
        if not self.config.look_checks_path:
            then = at.LOOK_SEEN if self.config.look_reads_twice else at.LOOK_AGAIN
        return me._replace(at=then, first=first, second=second, life=life)

    def _look_read(self, s: State, index: int, me: Process) -> Steps:
        if s.path == me.other:
            then = at.LOOK_SEEN if self.config.look_reads_twice else at.LOOK_AGAIN
            yield "look: P is still this file", moved(s, index, me, then)
        else:
            yield "look: P changed hands; close", self.kernel.closed(s, index, me)

    def _look_seen(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if inode.first != me.first:
            yield "look: read something else; close", self.kernel.closed(s, index, me)
        elif self.config.tears and self._may_be_written(s, me.other):
            yield "look: read half the same again", moved(s, index, me, at.LOOK_HALF_AGAIN)
        else:
            yield from self._look_half_again(s, index, me)

    def _look_half_again(self, s: State, index: int, me: Process) -> Steps:
        if s.inodes[me.other].second == me.second:
            yield "look: read the same", moved(s, index, me, at.LOOK_AGAIN)
        else:
            yield "look: read something else; close", self.kernel.closed(s, index, me)

    def _look_again(self, s: State, index: int, me: Process) -> Steps:
        """Ask for the witness, close, and judge."""
        broken = self._broken_by_reading(s, me)
        if broken is not None:
            yield "look: take this for a record", self.config.broken(s, broken)
        for cause in self._causes(s, me):
            life = me.first >> 1 if cause in (DEATH, AGE) else me.life
            stale = me._replace(at=at.JUDGED, cause=cause, life=life)
            yield f"look: close; stale by {cause}", with_process(s, index, stale)
        yield "look: close; held", self.kernel.closed(s, index, me)

    def _broken_by_reading(self, s: State, me: Process) -> str | None:
        """Say what is wrong if this reading would pass for a record of a cooperator."""
        if me.mark:
            return None  # it says of itself that it is unfinished
        tokens = {half >> 1 for half in (me.first, me.second) if half}
        if all(s.owners[token - 1] == FOREIGNER for token in tokens):
            return None
        whole = me.first != 0 and me.second != 0
        if (len(tokens) > 1) or (self.config.marks and not whole):
            return WHOLE_RECORDS
        if whole and me.first != me.second and WHOLE_REFRESH in self.config.watched:
            return WHOLE_REFRESH
        return None

    def _causes(self, s: State, me: Process) -> Iterator[str]:
        """List the reasons for which the policies of this model may call a file stale."""
        config = self.config
        if me.mark:
            if config.unfinished_removable:
                yield ABANDONED
            return
        token = me.first >> 1
        if token == 0 or token != me.second >> 1:
            if config.judges_unreadable:
                yield GRACE
            return
        if s.owners[token - 1] != FOREIGNER and config.death_provable:
            if config.asks_process:
                dead = s.owners[token - 1] == NOBODY
            else:
                dead = not self._witness_taken(s, me.other)
            if dead:
                yield DEATH
        if config.robs_living:
            yield AGE

    # ------------------------------------------------------------------ both, in the core

    def _core_open(self, s: State, index: int, me: Process) -> Steps:
        """Ask for the witness."""
        if self.config.witness and self._witness_taken(s, me.other):
            yield "core: held; close", self.kernel.closed(s, index, me)
        else:
            yield "core: the witness is free", moved(s, index, me, at.CORE_FREE)

    def _core_free(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if self.config.tears and self._may_be_written(s, me.other):
            seen = me._replace(at=at.CORE_HALF, first=inode.first)
            yield "core: read half", with_process(s, index, seen)
        else:
            seen = me._replace(at=at.CORE_READ, first=inode.first, second=inode.second)
            yield "core: read", with_process(s, index, seen)

    def _core_half(self, s: State, index: int, me: Process) -> Steps:
        seen = me._replace(at=at.CORE_READ, second=s.inodes[me.other].second)
        yield "core: read the rest", with_process(s, index, seen)

    def _core_read(self, s: State, index: int, me: Process) -> Steps:
        """Ask for the process."""
        if DEATH in self._causes(s, me):
            dead = me._replace(at=at.CORE_DEAD, cause=DEATH, life=me.first >> 1)
            yield "core: dead", with_process(s, index, dead)
        else:
            yield "core: held; close", self.kernel.closed(s, index, me)

    def _core_dead(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if not self.config.core_guards:
            yield from self._core_guarded(s, index, me)
        elif inode.guard == NONE:
            after = with_inode(s, me.other, inode._replace(guard=index))
            yield "core: guard", moved(after, index, me, at.CORE_GUARDED)
        else:
            yield "core: guard taken by a process; close", self.kernel.closed(s, index, me)

    def _core_guarded(self, s: State, index: int, me: Process) -> Steps:
        yield from self._compare_file(s, index, me, at.CORE_SAME)

    def _core_same(self, s: State, index: int, me: Process) -> Steps:
        if self.config.core_checks_path:
            yield from self._compare_path(s, index, me, at.REMOVE_READY)
        else:
            yield "core: ready", moved(s, index, me, at.REMOVE_READY)

    # ------------------------------------------------------------------ removing

    def _judged(self, s: State, index: int, me: Process) -> Steps:
        if s.path != me.other:
            yield (
                "remove: what is at P is not what was judged",
                with_process(s, index, Process(at.IDLE, me.mine)),
            )
        else:
            yield "remove: open P", moved(s, index, me, at.REMOVE_OPEN)

    def _remove_open(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if not self.config.removal_guards:
            yield from self._remove_guarded(s, index, me)
        elif inode.guard == NONE:
            after = with_inode(s, me.other, inode._replace(guard=index))
            yield "remove: guard", moved(after, index, me, at.REMOVE_GUARDED)
        else:
            yield "remove: guard taken by a process; close", self.kernel.closed(s, index, me)

    def _remove_guarded(self, s: State, index: int, me: Process) -> Steps:
        if self.config.path_before_bytes:
            yield from self._compare_path(s, index, me, at.REMOVE_HALFWAY)
        else:
            yield from self._compare_file(s, index, me, at.REMOVE_HALFWAY)

    def _remove_halfway(self, s: State, index: int, me: Process) -> Steps:
        if self.config.path_before_bytes:
            yield from self._compare_file(s, index, me, at.REMOVE_READY)
        else:
            yield from self._compare_path(s, index, me, at.REMOVE_READY)

    def _compare_path(self, s: State, index: int, me: Process, then: str) -> Steps:
        if s.path == me.other or not self.config.removal_checks_path:
            yield "remove: P is still this file", moved(s, index, me, then)
        else:
            yield "remove: P is another file; close", self.kernel.closed(s, index, me)

    def _compare_file(self, s: State, index: int, me: Process, then: str) -> Steps:
        config = self.config
        inode = s.inodes[me.other]
        changed = None
        if config.bytes_compared and not (
            self._same_bytes(s, me.first, inode.first)
            and self._same_bytes(s, me.second, inode.second)
        ):
            changed = "the bytes are others"
        elif config.mark_compared and me.mark != (inode.form == UNFINISHED):
            changed = "the mark is gone or new"
        elif config.ctime_compared and me.cause in (AGE, GRACE) and me.life != inode.life:
            # The clock of ctime is coarse.  What was judged by its age was old, so a newer
            # file shows; what was judged by anything else may have the same ctime.
            changed = "ctime is another"
        elif (
            config.witness_asked_again
            and config.witness
            and me.cause in (DEATH, GRACE)  # an unfinished file's creator may well live
            and self._witness_taken(s, me.other)
        ):
            changed = "its witness is taken"
        if changed is None:
            yield "remove: it is what was judged", moved(s, index, me, then)
        else:
            yield f"remove: {changed}; close", self.kernel.closed(s, index, me)

    def _remove_ready(self, s: State, index: int, me: Process) -> Steps:
        """Unlink P, and the private name of a dead holder; close.  Then see what that did."""
        gone = s.path
        if gone == NONE:
            yield "remove: unlink P: ENOENT; close", self.kernel.closed(s, index, me)
            return
        inode = s.inodes[gone]
        after = s._replace(path=NONE)
        if gone == me.other:
            after = with_inode(after, gone, inode._replace(kept=False))
        after = self.kernel.closed(after, index, me)
        exact = gone == me.other and inode.life == me.life
        if me.cause == AGE:  # then a refresh counts as a sign of life
            exact = exact and (inode.first, inode.second) == (me.first, me.second)
        if me.cause == ABANDONED and inode.form == UNFINISHED:
            exact = True  # no instance yet, whichever of them it is: its creator begins again
        if not exact:
            foreign = s.owners[me.life - 1] == FOREIGNER
            after = self.config.broken(after, WINDOW if foreign and gone != me.other else EXACT)
        yield "remove: unlink P; close", self._robbed(s, after, inode, me, exact=exact)

    def _robbed(
        self, s: State, after: State, inode: Inode, me: Process, *, exact: bool
    ) -> State:
        """Note who lost a lock that it believes to hold, and whether that was permitted."""
        foreigner = s.foreigner
        if foreigner.at != at.AWAY and not foreigner.robbed and foreigner.life == inode.life:
            if exact and me.cause in (AGE, GRACE):
                robbed = foreigner._replace(robbed=True)
                return after._replace(foreigner=robbed)
            return self.config.broken(after, after.broken or NO_ROBBERY)
        for index, process in enumerate(s.processes):
            if process.at not in at.BELIEVES or process.robbed:
                continue
            life = process.life if process.at in at.BARE else s.inodes[process.mine].life
            if life == inode.life:
                if exact and me.cause == AGE:
                    return with_process(after, index, process._replace(robbed=True))
                return self.config.broken(after, after.broken or NO_ROBBERY)
        return after

    def _witness_taken(self, state: State, ino: int) -> bool:
        return any(p.mine == ino and p.at != at.PLACED_OPEN for p in state.processes)

    def _may_be_written(self, state: State, ino: int) -> bool:
        foreigner = state.foreigner
        return any(p.mine == ino for p in state.processes) or (
            foreigner.ino == ino and foreigner.at == at.CREATED
        )

    def _same_bytes(self, state: State, a: int, b: int) -> bool:
        if self.config.token or a == 0 or b == 0 or a == b:
            return a == b
        owner = state.owners[(a >> 1) - 1]
        return owner >= 0 and owner == state.owners[(b >> 1) - 1]
