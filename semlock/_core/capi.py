"""The one module that calls C: names for its calls and outcomes, and native errors as OSError.

What the calls do on disk is described in ``csrc/semlock.h``.  Python owns the core's structures
as cffi objects.  A call that wins a lock records the win in the structure that the lock object
already had, so that an exception between two bytecodes can't lose it.
"""

from __future__ import annotations

import errno
import os
import sys

try:
    from semlock._core.compiled import ffi, lib
except ModuleNotFoundError as error:  # pragma: no cover - only in a broken installation
    if error.name != "semlock._core.compiled":
        raise
    raise ImportError(
        "semlock's compiled core is missing. A source checkout has none until it is installed "
        "(pip install .), and then run Python from outside of the checkout; otherwise "
        "reinstall semlock."
    ) from error

from semlock._core import *  # noqa: F403 - they are C's too
from semlock._core import CHANGED, FREE, OK

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from semlock._core.compiled import Array, Bytes, semlock_lock, semlock_view
    from semlock._core.identity import Verdict
    from semlock._core.records import LockInfo

WITNESSED = lib.SEMLOCK_WITNESSED
REGULAR = lib.SEMLOCK_REGULAR
SYMLINK = lib.SEMLOCK_SYMLINK
DIRECTORY = lib.SEMLOCK_DIRECTORY

EXCLUSIVE = lib.SEMLOCK_EXCLUSIVE
SHARED = lib.SEMLOCK_SHARED

RUNS = lib.SEMLOCK_RUNS
EXISTS = lib.SEMLOCK_EXISTS
GONE = lib.SEMLOCK_GONE
RECYCLED = lib.SEMLOCK_RECYCLED
ZOMBIE = lib.SEMLOCK_ZOMBIE

TICKET_DEAD = lib.SEMLOCK_TICKET_DEAD
TICKET_WAITS = lib.SEMLOCK_TICKET_WAITS

BURSTS = lib.SEMLOCK_BURSTS
EXACT = lib.SEMLOCK_EXACT
RECORD_LIMIT = lib.SEMLOCK_RECORD_LIMIT
REWRITE_LIMIT = lib.SEMLOCK_REWRITE_LIMIT
DURABILITY = {
    "none": lib.SEMLOCK_SYNC_NONE,
    "data": lib.SEMLOCK_SYNC_DATA,
    "full": lib.SEMLOCK_SYNC_FULL,
    "safe": lib.SEMLOCK_SYNC_SAFE,
}

# The two calls of the hot path, and what they share in this process.
try_lock = lib.semlock_try
try_anyway = lib.semlock_try_anyway
release_lock = lib.semlock_release
this_thread = lib.semlock_thread
now_ns = lib.semlock_now_ns
give_way = lib.semlock_yield
POOL = ffi.new("semlock_pool *")

hold_of = lib.semlock_holds
life_of = lib.semlock_life
forget_lock = lib.semlock_forget
refresh_lock = lib.semlock_refresh
check_lock = lib.semlock_check
start_lock_path = lib.semlock_set_path
probe = lib.semlock_probe
boot_time = lib.semlock_boot_time

_LARGEST_FILE = 1 << 26  # that read_file() reads whole
_new_bytes = ffi.new_allocator(should_clear_after_alloc=False)


def new_lock() -> semlock_lock:
    """Make the structure of one lock object."""
    return ffi.new("semlock_lock *")


def address(data: bytes) -> Bytes:
    """Give the address of a bytes object for C; the result keeps the object alive."""
    return ffi.from_buffer(data)


def start_pool() -> None:
    """Set what C can't set itself: the seed of tokens, and how many claims may be kept."""
    ffi.buffer(POOL.seed)[:] = os.urandom(16)
    POOL.keep = lib.SEMLOCK_POOL_SLOTS


def life() -> int:
    """Give a number that differs between a process and its forked children.

    The core notices every fork.  Python's fork hooks don't run for a fork made in C code.
    """
    return lib.semlock_life(POOL)


def holds(lock: semlock_lock) -> bool:
    """Tell whether this process holds a lock by this structure."""
    return lib.semlock_holds(lock, POOL) == OK


def may_hold(ino: int) -> bool:
    """Tell whether this process may hold a file with this number; ``False`` is certain."""
    return bool(POOL.holding[ino % BURSTS])


def kernel_locked(path: bytes, lent: int | None = None, *, anyhow: bool = False) -> bool:
    """Ask whether a file, or what is open, is locked by flock; by fcntl too: ``anyhow``."""
    lock, memory = new_lock(), address(path)
    start_lock_path(lock, memory, len(path))
    lock.kernel = lib.SEMLOCK_BY_FILE if anyhow else EXCLUSIVE
    lock.lent = 0 if lent is None else lent + 1
    return bool(lib.semlock_kernel_locked(lock, POOL))


def detach_lock(lock: semlock_lock) -> int:
    """Leave the held file at its path, and forget it."""
    return lib.semlock_detach(lock, POOL)


def drain_pool(directory: str | None = None) -> None:
    """Remove the kept claims of one directory, or all of them."""
    if directory is None:
        lib.semlock_pool_drain(POOL, ffi.NULL, 0)
    else:
        encoded = os.fsencode(directory)
        lib.semlock_pool_drain(POOL, encoded, len(encoded))


class Record:
    """The record that an acquire writes, in C's form; it has no room for a field at -1."""

    __slots__ = ("_text", "cdata", "stamp_at", "text", "token_at", "witness_at")

    def __init__(
        self,
        text: bytes,
        *,
        stamp_at: int = -1,
        token_at: int = -1,
        witness_at: int = -1,
        mode: int,
        durability: int,
        in_place: bool = False,
        detached: bool = False,
        head: int = 0,
    ) -> None:
        self.text = text
        self.stamp_at = stamp_at
        self.token_at = token_at
        self.witness_at = witness_at
        self._text = ffi.from_buffer(text)
        record = ffi.new("semlock_record *")
        record.text = self._text
        record.length = len(text)
        record.stamp_at = stamp_at
        record.token_at = token_at
        record.witness_at = witness_at
        record.head = head
        record.mode = mode
        record.durability = durability
        record.in_place = in_place
        record.detached = detached
        record.life = life_of(POOL)
        self.cdata = record


def token_of(lock: semlock_lock) -> bytes:
    """Read the token of the lock's last win."""
    return ffi.buffer(lock.token, 32)[:]


class Instance:
    """One file that was found at a path: its content, its metadata and its identity.

    The calls that take it act on exactly this file, never on one that has replaced it.
    """

    __slots__ = (
        "boot_mark", "content", "ctime_ns", "error", "identity", "key", "kind", "local", "mode",
        "unfinished", "view", "witness", "witnessed", "written_at",
    )  # fmt: skip

    def __init__(self, view: semlock_view, content: bytes, error: int) -> None:
        self.view = view  # C's form, which nothing changes
        self.content = content
        self.error = error
        dev, ino = view.dev, view.ino
        # When the content or the metadata last changed.
        self.ctime_ns = changed = view.ctime_ns
        # The file's device and number, which changes of its content don't change.
        self.identity = dev, ino
        # With the time of its last change: a new key after each change.
        self.key = dev, ino, changed
        # When the content last changed, in seconds since 1970.
        self.written_at = view.mtime_ns / 1e9
        # REGULAR, SYMLINK, DIRECTORY or another number.
        self.kind = view.kind
        self.mode = view.mode
        # Whether its filesystem is known to be local to this machine.
        self.local = bool(view.local)
        # Whether its creator has not finished it.
        self.unfinished = bool(view.unfinished)
        # The state of the kernel's lock on it: 1 taken, 0 free, -1 unknown.
        self.witness = view.witness
        self.witnessed = view.witness == 1
        # The number of the boot that made a file of semlock whose record is missing; 0 if unknown.
        self.boot_mark = view.boot_mark

    def evidence(self, info: LockInfo | None) -> tuple[Verdict, str]:
        """Say whether its holder lives, and how that is known."""
        from semlock._core.identity import judge  # noqa: PLC0415 - it calls this module

        return judge(info, self)

    def keeper(self, path: str) -> str | None:
        """Name the user who alone may remove it, beside root; ``None`` if this one may too."""
        from semlock._core.verdicts import keeper_of  # noqa: PLC0415 - for stale ones only

        return keeper_of(path, self)


def look(path: bytes) -> Instance | None:
    """Inspect a path; ``None`` if nothing is there.  An unreadable file is given with its error."""
    view = ffi.new("semlock_view *")
    room = 4096
    while True:
        data = _new_bytes("char[]", room)
        # If the file changes at each look, the lock is busy, which is no error.  The last look is
        # good enough: it is compared again before anything is removed.
        for _ in range(100):
            outcome = lib.semlock_inspect(path, POOL, view, data, room)
            if outcome not in (CHANGED, -errno.EINTR):
                break
        if outcome == FREE:
            return None
        if outcome in (-errno.EFBIG, -223) and room < RECORD_LIMIT:
            room = RECORD_LIMIT
            continue
        if outcome < 0:
            if view.ino == 0:
                raise_os_error(outcome, path)
            return Instance(view, ffi.buffer(data, view.length)[:], outcome)
        return Instance(view, ffi.buffer(data, view.length)[:], 0)


def read_file(path: str, room: int = 16384) -> str:
    """Read a file of the system in one call, in which an interrupt leaves nothing open."""
    encoded = os.fsencode(path)
    while True:
        data = _new_bytes("char[]", room)
        length = lib.semlock_read_file(encoded, POOL, data, room)
        if length < 0 and length != -errno.EINTR:
            raise_os_error(length, path)
        if length >= 0 and (length < room or room > _LARGEST_FILE):
            return ffi.buffer(data, length)[:].decode("utf-8", "replace")
        room *= 4


def confirm(path: bytes, seen: Instance) -> bool:
    """Tell whether this instance is still at the path, unchanged."""
    return lib.semlock_confirm(path, POOL, seen.view) == OK


def remove(path: bytes, seen: Instance, *, despite_witness: bool) -> int:
    """Remove this instance, and no other."""
    flags = lib.SEMLOCK_DESPITE_WITNESS if despite_witness else 0
    return lib.semlock_remove(path, POOL, seen.view, seen.content, flags)


def rewrite(path: bytes, seen: Instance, text: bytes) -> int:
    """Overwrite this instance's record with a text that is at least as long."""
    return lib.semlock_rewrite(path, POOL, seen.view, seen.content, text, len(text))


def must_make_way(queue: semlock_lock, locks: Array[semlock_lock] | None = None) -> int:
    """Tell whether waiters in a queue come first: OK, TURN or HELD; see ``semlock_try``.

    TURN says that they do and that one of the locks is free.  ``locks`` is made by ``many``;
    without it the queue's own lock is meant.
    """
    if locks is None:
        return lib.semlock_must_make_way(queue, POOL)
    return lib.semlock_must_make_way_to_any(queue, locks, len(locks), POOL)


def many(locks: Sequence[semlock_lock]) -> Array[semlock_lock]:
    """Give an array of pointers to some locks, which the caller must keep alive."""
    return ffi.new("semlock_lock *[]", list(locks))


def burst_began(lock: semlock_lock) -> None:
    """Note that this process begins to use a lock, as after a wait (see ``common/turns.c``)."""
    lib.semlock_burst_began(POOL, lock)


def burst_released(lock: semlock_lock) -> None:
    """Note that this process has released a lock."""
    lib.semlock_burst_released(POOL, lock)


def clean_ticket(path: bytes) -> bool:
    """Remove a ticket of a queue; ``False`` if its owner is not dead."""
    outcome = lib.semlock_ticket_clean(path, POOL)
    if outcome < 0:
        raise_os_error(outcome, path)
    return outcome == OK


def ticket_state(path: bytes) -> int:
    """Give the state of a ticket's owner: one of the TICKET constants."""
    return lib.semlock_ticket_state(path)


def set_safety(seconds: float) -> None:
    """Set how often a waiter looks without events; 0 for the default."""
    POOL.safety = int(seconds * 1e9)


def identify() -> tuple[int, int, int, int, str]:
    """Identify this process: PID, start time, PID namespace, time namespace, boot."""
    process = ffi.new("semlock_process *")
    while (outcome := lib.semlock_identify(process)) == -errno.EINTR:
        pass
    if outcome < 0:
        raise_os_error(outcome, "/proc")
    boot = ffi.string(process.boot).decode("ascii", "replace")
    # The name comes last: the core judges records of this boot as soon as it has one.
    POOL.boot, POOL.pidns = lib.semlock_boot_number(process.boot), process.pidns
    POOL.boot_id = process.boot
    return process.pid, process.start, process.pidns, process.timens, boot


def start_time(pid: int) -> int:
    """Give the start time of a process, in the system's unit; 0 if it is unknown."""
    start = ffi.new("int64_t *")
    return start[0] if lib.semlock_start_time(pid, start) == 0 else 0


def spawn(
    lock: semlock_lock,
    places: list[str],
    words: Sequence[str],
    numbers: tuple[int, int],
    signals: tuple[int, int, int],
) -> tuple[int, int]:
    """Start a command that is the holder of a held lock: its process, and 0 or why it doesn't run.

    ``signals`` are those that it has blocked, ignored and with their default, each in one number.
    """
    texts = [ffi.new("char[]", os.fsencode(text)) for text in (*places, "/bin/sh", *words)]
    command, pid = ffi.new("semlock_command *"), ffi.new("int64_t *")
    kept = [
        ffi.new("char *[]", [*part, ffi.NULL])
        for part in (texts[: len(places)], texts[len(places) :])
    ]
    command.places, command.words = kept
    command.number, command.otherwise = numbers
    command.blocked, command.ignored, command.defaults = signals
    outcome = lib.semlock_spawn(command, lock, pid)
    return pid[0], outcome


def os_error(code: int, path: bytes | str) -> OSError:
    """Turn a negative native code into the OSError that Python would raise."""
    name = os.fsdecode(path)
    if sys.platform == "win32":
        return OSError(None, ffi.getwinerror(-code)[1], name, -code)
    return OSError(-code, os.strerror(-code), name)


def raise_os_error(code: int, path: bytes | str) -> NoReturn:
    """Raise a negative native code as OSError, with the file's name."""
    raise os_error(code, path)


start_pool()
