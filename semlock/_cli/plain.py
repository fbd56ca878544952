"""Locks of semlock's own that are free or the caller's: taken and released by the core alone.

``starting.py`` says what for.  What is odd is left to ``holding.py`` and ``running.py``.
"""

from __future__ import annotations

import os
import sys

from semlock._cli import OK, asks_only
from semlock._core import BY_PROOF, TAKE_TURNS, capi
from semlock._core.identity import other_process, this_process
from semlock._core.paths import READERS, absolute
from semlock._core.records import decode_text, encode_text

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._cli import Options
    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo

# Whether the core starts commands here.
_SPAWNS = sys.platform.startswith(("linux", "android"))


class _Plain:
    """A lock as ``semlock.Lock(path, tag=tag)`` takes it, without that object."""

    __slots__ = ("_kept", "native", "path")

    def __init__(self, path: str, owner: Process, tag: str | None, *, guarded: bool) -> None:
        self.path = absolute(path)
        encoded = os.fsencode(self.path)
        address = capi.address(encoded)
        record = encode_text(
            owner, tag, mode=0o644, durability=capi.DURABILITY["safe"], detached=not guarded
        )
        native = capi.new_lock()
        capi.start_lock_path(native, address, len(encoded))
        native.turns = TAKE_TURNS
        native.vouched = BY_PROOF
        native.fleeting = 1  # this process ends, and takes no lock again
        native.record = record.cdata
        self._kept = record, address  # the structure refers to them
        self.native = native

    def take(self) -> bool:
        """Try once; ``False`` if it is held, or shared, or can't be taken."""
        if capi.try_lock(self.native, capi.POOL) != OK:
            return False
        if os.path.lexists(f"{self.path}{READERS}"):
            self.end()
            return False
        return True

    def end(self) -> int:
        """Release it, if it is held: the core's outcome."""
        return int(capi.release_lock(self.native, capi.POOL)) if self.native.held else OK


def readable(text: str) -> str:
    """Make a tag of words from the command line, which may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def run(options: Options) -> int:
    """Hold the locks while the command runs, and give its exit code."""
    plain = follows = asks_only(options, "timeout", "tag", "quiet")
    if not plain:
        from semlock._cli import running  # noqa: PLC0415 - it has all of the verb

        follows = running.follows(options)
    from semlock._cli import passing  # noqa: PLC0415 - for those who run a command

    passing.interruptible()
    if plain and _SPAWNS:
        code = _run_at_once(options, this_process(), lambda lock: _as_holder(options, lock))
        if code is not None:
            return code
    from semlock._cli import child  # noqa: PLC0415 - not for a lock that is free

    # The core is there before the fork: after it each page that is written to is copied first.
    command = child.Child(options.command)
    try:
        owner = None
        if follows and command.pid is not None:
            owner = other_process(command.pid)
            if plain and not _SPAWNS:
                code = _run_at_once(
                    options, owner, lambda lock: command.run(lambda: None, inherited([lock]))
                )
                if code is not None:
                    return code
        from semlock._cli import running  # noqa: PLC0415 - it has all of the verb

        return running.hold(options, command.run, owner)
    finally:
        command.end()


def _run_at_once(
    options: Options, owner: Process, run: Callable[[semlock_lock], int | None]
) -> int | None:
    """Run a command under a lock that is free: its exit code; ``None`` if the lock isn't."""
    tag = readable(options.tag if options.tag is not None else options.command[0])
    lock = _Plain(options.lock, owner, tag, guarded=True)
    try:
        if not lock.take():
            return None
        knows = bool(lock.native.file.witness)
        code = run(lock.native)
        outcome = lock.end()
    except BaseException:
        lock.end()
        raise
    if code is not None and outcome != OK:
        from semlock._cli import running  # noqa: PLC0415 - it was lost, most likely

        return running.ended(options, lock.native, outcome, code, knows=knows)
    return code


def _as_holder(options: Options, lock: semlock_lock) -> int | None:
    """Run the command as the holder of a lock that this process has taken, if that is possible.

    Should semlock be killed meanwhile, the kernel's lock shows that the lock has a holder.
    """
    from semlock._cli import passing  # noqa: PLC0415 - it is there already

    if sys.platform == "win32":
        return None
    if lock.file.witness != capi.WITNESSED or lock.file.length > capi.REWRITE_LIMIT:
        return None
    return passing.run_as_holder(options.command, lock)


def inherited(locks: list[semlock_lock]) -> list[int]:
    """Give the descriptors of lock files for their owner to inherit.

    The owner's descriptor keeps the kernel's lock, so the file can't be kept for another acquire.
    """
    numbers = []
    for native in locks:
        if native.file.witness or native.kernel:
            native.fleeting = 1
            numbers.append(native.file.handle)
    return numbers


def attempt(options: Options) -> int:
    """Take the lock for its owner, if it is free."""
    silent = options.quiet or sys.stderr is None or not sys.stderr.isatty()
    if silent and asks_only(options, "tag", "owner_pid", "quiet"):
        tag = None if options.tag is None else readable(options.tag)
        lock = _Plain(options.lock, living_owner(options), tag, guarded=False)
        try:
            if lock.take():
                capi.detach_lock(lock.native)
                return OK
        except BaseException:
            lock.end()
            raise
    from semlock._cli import holding  # noqa: PLC0415 - it has all of the verb

    return holding.attempt(options)


def release(options: Options) -> int:
    """Remove the lock, if it is the owner's."""
    if asks_only(options, "owner_pid", "quiet") and _released_at_once(options):
        return OK
    from semlock._cli import holding  # noqa: PLC0415 - it has all of the verb

    return holding.release(options)


def _released_at_once(options: Options) -> bool:
    """Remove a whole record of semlock's own that names the owner; ``False`` if it isn't that."""
    path = os.fsencode(absolute(options.lock))
    seen = capi.look(path)
    if seen is None or seen.kind != capi.REGULAR or seen.error or seen.unfinished:
        return False
    try:
        info = decode_text(seen.content)
    except ValueError:  # LockRecordError, too
        return False
    if info.token is None or stranger(info, options) is not None:
        return False
    return capi.remove(path, seen, despite_witness=True) == OK


# ---------------------------------------------------------------- whose they are


def near_owner(options: Options) -> list[Process]:
    """Identify the callers that are passed over by the text that they run now, and the owner."""
    if options.owner_pid:
        return [other_process(options.owner_pid)]
    from semlock._cli import owners  # noqa: PLC0415 - only where it is to be found

    return [other_process(pid) for pid in owners.way()]


def owner_of(options: Options) -> Process:
    """Identify the owner of the lock."""
    return near_owner(options)[-1]


def living_owner(options: Options) -> Process:
    """Identify the process to take a lock for."""
    owner = owner_of(options)
    refuse_dead(owner)
    return owner


def refuse_dead(owner: Process) -> None:
    """Raise ``ValueError`` if a process that is to hold a lock has ended."""
    if capi.probe(owner.pid, owner.start) in (capi.GONE, capi.ZOMBIE, capi.RECYCLED):
        raise ValueError(
            f"there is no process {owner.pid} that could hold a lock. Name one that runs with "
            "--owner-pid"
        )


def stranger(info: LockInfo | None, options: Options) -> Process | None:
    """Identify the owner if the record doesn't name it; ``None`` if it does.

    The record may name this process: a shell runs the last command of a subshell in its own
    process, which was the owner before.
    """
    me = this_process()
    if me.start and _names(info, me):
        return None
    # It may be the lock of a caller that is passed over by the text that it runs now.
    near = near_owner(options)
    owner = near[-1]
    if not options.owner_pid:
        from semlock._cli import owners  # noqa: PLC0415 - only where it is to be found

        near += map(other_process, owners.of_pipelines())
    return None if any(_names(info, process) for process in near) else owner


def _names(info: LockInfo | None, owner: Process) -> bool:
    me = this_process()
    return (
        info is not None
        and info.pid == owner.pid
        and (info.boot, info.pidns or 0) in ((me.boot, me.pidns), (None, 0))
        # A record without a start time is foreign; another start time is another process.
        and (not info.start or not owner.start or info.start == owner.start)
    )
