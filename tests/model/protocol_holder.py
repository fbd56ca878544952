"""What a cooperator does to take a lock, to keep it and to let it go.

A program is a method for each place where a process can stand.  It gets the state, the
process's index in it and the process itself, and yields what that process can do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import protocol_places as at
from protocol_config import LOSS_SHOWS
from protocol_kernel import (
    NONE,
    PLACED,
    UNFINISHED,
    WHOLE,
    Inode,
    Process,
    moved,
    unguarded,
    with_inode,
    with_process,
    with_token,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from protocol_config import Config
    from protocol_kernel import Kernel, State

    Steps: TypeAlias = Iterator[tuple[str, State]]
    Program: TypeAlias = Callable[[State, int, Process], Steps]


class Holder:
    """The programs of creating, holding and releasing."""

    def __init__(self, config: Config, kernel: Kernel) -> None:
        self.config = config
        self.kernel = kernel

    def programs(self) -> dict[str, Program]:
        """List the programs by the place where a process must stand to run them."""
        return {
            at.MADE: self._made,
            at.KEPT_HALF: self._kept_half,
            at.KEPT_READY: self._kept_ready,
            at.PLACED_OPEN: self._placed_open,
            at.PLACED_GUARDED: self._placed_guarded,
            at.PLACED_CHECKED: self._placed_checked,
            at.PLACED_HALF: self._placed_half,
            at.PLACED_WRITTEN: self._placed_written,
            at.PLACED_FINISHED: self._placed_finished,
            at.HOLDS: self._holds,
            at.REFRESH_GUARDED: self._refresh_guarded,
            at.REFRESH_CHECKED: self._refresh_checked,
            at.REFRESH_HALF: self._refresh_half,
            at.REFRESH_WRITTEN: self._refresh_written,
            at.RELEASE_GUARDED: self._release_guarded,
            at.RELEASE_CHECKED: self._release_checked,
            at.RELEASE_KEPT: self._release_kept,
            at.BARE_HOLDS: self._bare_holds,
            at.BARE_OPEN: self._bare_open,
            at.BARE_GUARDED: self._bare_guarded,
            at.BARE_CHECKED: self._bare_checked,
        }

    # ------------------------------------------------------------------ creating

    def start(self, s: State, index: int, me: Process) -> Steps:
        """Begin to take the lock, as an idle process may."""
        if me.mine != NONE:
            yield from self._start_kept(s, index, me)
        elif s.path == NONE:
            # A file that no other process can see is made, guarded and written in one step.
            for ino in self.kernel.numbers_for_new_file(s):
                known, token = with_token(s, index)
                if self.config.whole:
                    after = with_inode(known, ino, Inode(token, 2 * token, 2 * token))
                    yield (
                        f"take: see P free; make unnamed file {ino}, take witness, write record",
                        with_process(after, index, Process(at.MADE, ino)),
                    )
                if self.config.in_place:
                    form = UNFINISHED if self.config.marks else PLACED
                    after = with_inode(known, ino, Inode(token, form=form))._replace(path=ino)
                    yield (
                        f"take in place: create P as file {ino}",
                        with_process(after, index, Process(at.PLACED_OPEN, ino)),
                    )

    def _start_kept(self, s: State, index: int, me: Process) -> Steps:
        after, token = with_token(s, index)
        inode = s.inodes[me.mine]
        if self.config.tears and self.kernel.others_have_it_open(s, me.mine, index):
            inode = inode._replace(life=token, first=2 * token)
            after = with_inode(after, me.mine, inode)
            yield (
                "take: write half a new record into the kept file",
                moved(after, index, me, at.KEPT_HALF),
            )
        else:
            inode = inode._replace(life=token, first=2 * token, second=2 * token)
            after = with_inode(after, me.mine, inode)
            yield (
                "take: write a new record into the kept file",
                moved(after, index, me, at.KEPT_READY),
            )
        yield "drop the kept claim", self.kernel.given_up(s, index, me)

    def _kept_half(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        after = with_inode(s, me.mine, inode._replace(second=inode.first))
        yield "write the other half into the kept file", moved(after, index, me, at.KEPT_READY)

    def _kept_ready(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            after = s._replace(path=me.mine)
            yield "link the kept file to P: holds", moved(after, index, me, at.HOLDS)
        else:
            yield "link the kept file to P: EEXIST", moved(s, index, me, at.IDLE)

    def _made(self, s: State, index: int, me: Process) -> Steps:
        if s.path != NONE and self.config.publishes_by_link:
            yield "link to P: EEXIST; close", with_process(s, index, Process(at.IDLE))
            if self.config.copied and not self.config.link_proven_by_path:
                yield (
                    "link to P: an error, but the file has one name more: holds",
                    moved(s, index, me, at.HOLDS),
                )
            return
        holder = Process(at.HOLDS, me.mine)
        what = "link to P: holds"
        if self.config.gives_up_descriptor:
            holder = Process(at.BARE_HOLDS, other=me.mine, life=s.inodes[me.mine].life)
            what = "link to P; close: holds"
        if not self.config.publishes_by_link:
            what = "rename to P: holds"
        yield what, with_process(s._replace(path=me.mine), index, holder)

    # ------------------------------------------------------------------ creating in place

    def _placed_open(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        if inode.guard != NONE:
            yield "guard: taken by a process; close", with_process(s, index, Process(at.IDLE))
            return
        after = with_inode(s, me.mine, inode._replace(guard=index))
        yield "guard, take witness", moved(after, index, me, at.PLACED_GUARDED)

    def _placed_guarded(self, s: State, index: int, me: Process) -> Steps:
        if s.path == me.mine or not self.config.creator_checks:
            yield (
                "P is still this file" if self.config.creator_checks else "go on unchecked",
                moved(s, index, me, at.PLACED_CHECKED),
            )
        else:
            yield "P is not this file any more; close", self.kernel.given_up(s, index, me)

    def _placed_checked(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        if self.config.tears:
            inode, then = inode._replace(first=2 * inode.life), at.PLACED_HALF
        else:
            both = 2 * inode.life
            inode, then = inode._replace(first=both, second=both), at.PLACED_WRITTEN
        after = with_inode(s, me.mine, inode)
        yield "write at P", moved(after, index, me, then)
        yield "the disk is full: unlink P, close", self._unplaced(s, index, me)

    def _placed_half(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        after = with_inode(s, me.mine, inode._replace(second=inode.first))
        yield "write the rest", moved(after, index, me, at.PLACED_WRITTEN)

    def _unplaced(self, s: State, index: int, me: Process) -> State:
        free = s._replace(path=NONE) if s.path == me.mine else s
        return self.kernel.given_up(free, index, me)

    def _placed_written(self, s: State, index: int, me: Process) -> Steps:
        after = with_inode(s, me.mine, s.inodes[me.mine]._replace(form=PLACED))
        yield (
            "clear the mark" if self.config.marks else "finish",
            moved(after, index, me, at.PLACED_FINISHED),
        )
        yield "the disk is full: unlink P, close", self._unplaced(s, index, me)

    def _placed_finished(self, s: State, index: int, me: Process) -> Steps:
        after = unguarded(s, me.mine, index)
        yield "unguard: holds", moved(after, index, me, at.HOLDS)

    # ------------------------------------------------------------------ holding

    def _holds(self, s: State, index: int, me: Process) -> Steps:
        config = self.config
        inode = s.inodes[me.mine]
        if config.loses_descriptor:
            bare = Process(at.BARE_HOLDS, other=me.mine, life=inode.life, robbed=me.robbed)
            yield "its program closes the descriptor", with_process(s, index, bare)
        if s.path != me.mine:
            yield (
                "check: P is not my file, the lock is lost",
                self.kernel.given_up(s, index, me),
            )
        if inode.guard == NONE or not config.release_guards:
            yield "release: guard", self._guarding(s, index, me, at.RELEASE_GUARDED)
        if (
            config.refreshes
            and not inode.first & 1
            and (inode.guard == NONE or not config.refresh_guards)
        ):
            yield "refresh: guard", self._guarding(s, index, me, at.REFRESH_GUARDED)

    def _guarding(self, s: State, index: int, me: Process, then: str) -> State:
        guards = self.config.release_guards
        if then == at.REFRESH_GUARDED:
            guards = self.config.refresh_guards
        if guards:
            s = with_inode(s, me.mine, s.inodes[me.mine]._replace(guard=index))
        return moved(s, index, me, then)

    def _refresh_guarded(self, s: State, index: int, me: Process) -> Steps:
        if s.path == me.mine or not self.config.refresh_checks:
            yield "P is still my file", moved(s, index, me, at.REFRESH_CHECKED)
        else:
            yield "P is not my file, the lock is lost", self.kernel.given_up(s, index, me)

    def _refresh_checked(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        if self.config.tears:
            inode, then = inode._replace(first=inode.first | 1), at.REFRESH_HALF
        else:
            both = inode.first | 1
            inode, then = inode._replace(first=both, second=both), at.REFRESH_WRITTEN
        after = moved(with_inode(s, me.mine, inode), index, me, then)
        if s.path != me.mine:
            after = self.config.broken(after, LOSS_SHOWS)
        yield "write at my file", after

    def _refresh_half(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.mine]
        after = with_inode(s, me.mine, inode._replace(second=inode.first))
        yield "write the rest", moved(after, index, me, at.REFRESH_WRITTEN)

    def _refresh_written(self, s: State, index: int, me: Process) -> Steps:
        after = unguarded(s, me.mine, index)
        yield "unguard", moved(after, index, me, at.HOLDS)

    def _release_guarded(self, s: State, index: int, me: Process) -> Steps:
        if s.path == me.mine or not self.config.release_checks:
            yield (
                "P is still my file" if self.config.release_checks else "go on unchecked",
                moved(s, index, me, at.RELEASE_CHECKED),
            )
        else:
            yield "P is not my file, the lock is lost", self.kernel.given_up(s, index, me)

    def _release_checked(self, s: State, index: int, me: Process) -> Steps:
        if s.path == NONE:
            yield "unlink P: ENOENT, the lock is lost", self.kernel.given_up(s, index, me)
            return
        free = s._replace(path=NONE)
        if s.path != me.mine:
            free = self.config.broken(free, LOSS_SHOWS)
        yield "unlink P, close: free", self.kernel.given_up(free, index, me)
        inode = s.inodes[me.mine]
        if self.config.keeps and inode.form == WHOLE:
            aside = with_inode(free, me.mine, inode._replace(kept=True))
            yield (
                "unlink P" if inode.kept else "rename P to the private name",
                with_process(aside, index, Process(at.RELEASE_KEPT, me.mine)),
            )
            if self.config.copied and not inode.kept and not self.config.release_looks_again:
                there = aside._replace(path=s.path)
                yield (
                    "rename P to the private name, which is a link of it: nothing is done",
                    with_process(there, index, Process(at.RELEASE_KEPT, me.mine)),
                )

    def _release_kept(self, s: State, index: int, me: Process) -> Steps:
        after = unguarded(s, me.mine, index)
        yield "unguard: free, the claim is kept", moved(after, index, me, at.IDLE)

    # ------------------------------------------------------------------ holding, no descriptor

    def _bare_holds(self, s: State, index: int, me: Process) -> Steps:
        same_number = s.path == me.other
        mine = same_number and (
            s.inodes[me.other].first >> 1 == me.life or not self.config.bare_checks_token
        )
        if mine:
            yield "release: open P, find my token", moved(s, index, me, at.BARE_OPEN)
            if self.config.loses_descriptor:
                holder = Process(at.HOLDS, me.other, robbed=me.robbed)
                yield (
                    "check: open P, find my token, take the witness again",
                    with_process(s, index, holder),
                )
        else:
            yield (
                "check or release: P is not my file, the lock is lost",
                with_process(s, index, Process(at.IDLE)),
            )

    def _bare_open(self, s: State, index: int, me: Process) -> Steps:
        inode = s.inodes[me.other]
        if inode.guard == NONE:
            after = with_inode(s, me.other, inode._replace(guard=index))
            yield "guard", moved(after, index, me, at.BARE_GUARDED)
        else:
            yield (
                "guard: taken by a process; close, still held",
                moved(s, index, me, at.BARE_HOLDS),
            )

    def _bare_guarded(self, s: State, index: int, me: Process) -> Steps:
        if s.path == me.other:
            yield "P is still my file", moved(s, index, me, at.BARE_CHECKED)
        else:
            yield "P is not my file, the lock is lost", self.kernel.closed(s, index, me)

    def _bare_checked(self, s: State, index: int, me: Process) -> Steps:
        after = self.kernel.closed(s._replace(path=NONE), index, me)
        if s.path == NONE:
            yield "unlink P: ENOENT, the lock is lost", after
            return
        if s.inodes[s.path].life != me.life:
            after = self.config.broken(after, LOSS_SHOWS)
        yield "unlink P, close: free", after
