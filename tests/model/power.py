"""What is on the disk after a power cut, and what is made of it: the model of the boot mark.

Two processes take, keep and release one lock.  What they do is in memory at first.  Names and
attributes come to the disk in their order, or in any order; contents come at any time.  A cut
leaves what is on the disk, and ends all processes.  The next boot judges what is at the path.
A user may write into the file or put a copy of it at the path, another program may empty it, and
a process may have a boot number of its own, as in a container.

Removing is one step here: what can happen between its calls is in the model of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_WEDGE = "no wedge"
NO_ROBBERY = "no robbery"
USERS = "files of users stay"

LONGEST = 3  # names and attributes wait for the disk, and then the processes wait for it
FOREIGN_BOOT = 9  # the boot number that a container shows its processes
NOTHING, RECORD, CONTENT = "nothing", "a record", "content"


@dataclass(frozen=True)
class Config:
    """What is taken out or changed."""

    marks: bool = True
    marks_first: bool = True  # before the link
    ordered: bool = True  # how the filesystem brings names and attributes to the disk
    syncs: bool = False  # content and inode are synced before the link
    sealed: bool = True  # a mark is valid for its inode alone
    boot_compared: bool = True
    times_compared: bool = True
    content_respected: bool = True  # a mark tells nothing of a file with content
    witnessed: bool = True  # a holder keeps the kernel's lock on its file
    empties: bool = True  # another program may empty the file
    cuts: int = 2


@dataclass(frozen=True)
class File:
    """An inode: what is in memory, and what of it is on the disk."""

    content: str = NOTHING
    mark: int = 0  # the boot that the attribute names, 0 none
    copied: bool = False  # the attribute is that of another inode
    boot: int = 0  # in which it was changed last
    named: int = 0  # the boot that its record names
    users: bool = False
    disk_content: str = NOTHING
    disk_mark: int = 0


@dataclass(frozen=True)
class Process:
    """Where a process stands, its file, and the number by which it knows the boot."""

    at: str = "idle"
    file: int = -1
    foreign: bool = False


@dataclass(frozen=True)
class State:
    """All of it.  ``log`` has what is not on the disk yet: (what, file)."""

    boot: int = 1
    path: int = -1
    disk_path: int = -1
    files: tuple[File, ...] = ()
    log: tuple[tuple[str, int], ...] = ()
    processes: tuple[Process, ...] = (Process(), Process(foreign=True))
    broken: str | None = None


class Power:
    """The model; see ``explorer.Model``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        return State()

    def violation(self, state: State) -> str | None:
        return state.broken

    def canonical(self, state: State) -> State:
        """Number the files in the order in which the state mentions them; forget the others."""
        order: list[int] = []
        mentioned = [state.path, state.disk_path, *(file for _, file in state.log)]
        for number in [*mentioned, *(process.file for process in state.processes)]:
            if number >= 0 and number not in order:
                order.append(number)
        new = {old: number for number, old in enumerate(order)} | {-1: -1}
        return replace(
            state,
            path=new[state.path],
            disk_path=new[state.disk_path],
            files=tuple(state.files[number] for number in order),
            log=tuple((what, new[file]) for what, file in state.log),
            processes=tuple(replace(p, file=new[p.file]) for p in state.processes),
        )

    # ------------------------------------------------------------------ what happens

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        if len(state.log) < LONGEST:
            for number in range(len(state.processes)):
                yield from self.act(state, number)
        yield from self.disk(state)
        yield from self.others(state)
        if state.boot <= self.config.cuts:
            yield from self.cuts(state)

    def act(self, state: State, who: int) -> Iterator[tuple[str, State]]:
        """One step of a process."""
        process = state.processes[who]
        name = f"process {who}"
        boot = FOREIGN_BOOT if process.foreign else state.boot
        if process.at == "idle":
            if state.path >= 0:
                yield from self.judge(state, who, name)
            made = File(RECORD, boot=state.boot, named=boot)
            after = self.go(state, who, "made", len(state.files), (*state.files, made))
            yield f"{name}: make file {len(state.files)}", after
        elif process.at == "made":
            file = state.files[process.file]
            after = state
            if self.config.marks and self.config.marks_first and not file.mark:
                after = self.set_mark(after, process.file, boot)
            if self.config.syncs:
                after = self.sync(after, process.file)
            yield f"{name}: mark or sync", self.go(after, who, "ready", process.file)
        elif process.at == "ready" and state.path < 0:
            after = replace(state, path=process.file, log=(*state.log, ("link", process.file)))
            yield f"{name}: link", self.go(after, who, "holds", process.file)
        elif process.at == "holds":
            after = state
            if self.config.marks and not state.files[process.file].mark:
                marked = self.set_mark(state, process.file, boot)
                yield f"{name}: mark", marked
            if state.path == process.file:
                after = replace(state, path=-1, log=(*state.log, ("unlink", process.file)))
                kept = self.change(after, process.file, content=RECORD, boot=state.boot)
                yield f"{name}: release, keep", self.go(kept, who, "made", process.file)
            yield f"{name}: release", self.go(after, who, "idle", -1)

    def judge(self, state: State, who: int, name: str) -> Iterator[tuple[str, State]]:
        """Look at the file at the path, and remove it if its holder is dead."""
        if not self.is_dead(state, state.path, foreign=state.processes[who].foreign):
            return
        broken = state.broken
        if state.files[state.path].users:
            broken = USERS
        elif any(p.at == "holds" and p.file == state.path for p in state.processes):
            broken = NO_ROBBERY
        log = (*state.log, ("unlink", state.path))
        yield f"{name}: remove the dead", replace(state, path=-1, log=log, broken=broken)

    def is_dead(self, state: State, number: int, *, foreign: bool = False) -> bool:
        """Judge by the record, and where there is none by the mark."""
        file = state.files[number]
        mine = FOREIGN_BOOT if foreign else state.boot
        if self.config.witnessed and any(
            p.at == "holds" and p.file == number for p in state.processes
        ):
            return False
        old = file.boot < state.boot or not self.config.times_compared
        if file.content == RECORD:
            return file.named != mine and file.boot < state.boot
        if file.content == CONTENT and self.config.content_respected:
            return False
        if not file.mark or (file.copied and self.config.sealed):
            return False
        return old and (file.mark != mine or not self.config.boot_compared)

    def others(self, state: State) -> Iterator[tuple[str, State]]:
        """What users and other programs do to the path."""
        if state.path < 0:
            return
        file = state.files[state.path]
        if self.config.empties and not file.users and file.content != NOTHING:
            emptied = self.change(state, state.path, content=NOTHING, boot=state.boot)
            yield "another program empties the file", emptied
        if not file.users and not any(p.file == state.path for p in state.processes):
            mine = self.change(state, state.path, content=CONTENT, boot=state.boot, users=True)
            yield "a user writes into the file", self.sync(mine, state.path)
            if file.mark and file.content == NOTHING:  # of a record, its boot tells
                copy = File(
                    file.content, file.mark, copied=True, boot=state.boot,
                    named=file.named, users=True,
                )  # fmt: skip
                after = replace(
                    state,
                    path=len(state.files),
                    files=(*state.files, copy),
                    log=(*state.log, ("unlink", state.path), ("mark", len(state.files)),
                         ("link", len(state.files))),
                )  # fmt: skip
                yield "a user puts a copy there", after

    # ------------------------------------------------------------------ memory and disk

    def go(
        self, state: State, who: int, at: str, file: int, files: tuple[File, ...] | None = None
    ) -> State:
        processes = list(state.processes)
        processes[who] = replace(processes[who], at=at, file=file)
        return replace(state, processes=tuple(processes), files=files or state.files)

    def change(self, state: State, number: int, **what: object) -> State:
        files = list(state.files)
        files[number] = replace(files[number], **what)  # type: ignore[arg-type]
        return replace(state, files=tuple(files))

    def set_mark(self, state: State, number: int, boot: int) -> State:
        after = self.change(state, number, mark=boot)
        return replace(after, log=(*after.log, ("mark", number)))

    def sync(self, state: State, number: int) -> State:
        """Bring a file with its attributes to the disk, as fsync does."""
        file = state.files[number]
        log = tuple(entry for entry in state.log if entry != ("mark", number))
        after = self.change(state, number, disk_content=file.content, disk_mark=file.mark)
        return replace(after, log=log)

    def disk(self, state: State) -> Iterator[tuple[str, State]]:
        """Something comes to the disk by itself."""
        for number, file in enumerate(state.files):
            if file.disk_content != file.content:
                after = self.change(state, number, disk_content=file.content)
                yield f"the content of file {number} is written", after
        for at in range(min(1, len(state.log)) if self.config.ordered else len(state.log)):
            what, number = state.log[at]
            after = replace(state, log=state.log[:at] + state.log[at + 1 :])
            if what == "mark":
                after = self.change(after, number, disk_mark=state.files[number].mark)
            elif what == "link":
                after = replace(after, disk_path=number)
            elif after.disk_path == number:
                after = replace(after, disk_path=-1)
            yield f"{what} of file {number} is written", after

    def cuts(self, state: State) -> Iterator[tuple[str, State]]:
        """Cut the power: what is on the disk is there, and no process lives."""
        files = tuple(
            replace(file, content=file.disk_content, mark=file.disk_mark)
            for file in state.files
        )
        after = State(
            boot=state.boot + 1, path=state.disk_path, disk_path=state.disk_path, files=files
        )
        number = after.path
        if number >= 0 and not files[number].users and not self.is_dead(after, number):
            # Of a record that is there, and of content of others, the model says nothing new.
            after = replace(after, broken=NO_WEDGE)
        yield "the power is cut", after
