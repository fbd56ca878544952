"""The one module that calls C: names for its calls and outcomes, and native errors as OSError.

What the calls do on disk is told in ``csrc/semlock.h``.  The structures of the core live
in cffi objects that Python owns; a call that wins a lock writes so into the structure that
the lock object already had, so that no exception between two bytecodes can lose it.
"""

from __future__ import annotations

import errno
import os
import sys

try:
    from semlock._core.compiled import ffi, lib
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "semlock's compiled core is missing. A source checkout has none until it is installed "
        "(pip install .), and then run Python from outside of the checkout; otherwise "
        "reinstall semlock."
    ) from error

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

OK: int = lib.SEMLOCK_OK
HELD: int = lib.SEMLOCK_HELD
LOOK: int = lib.SEMLOCK_LOOK
MINE: int = lib.SEMLOCK_MINE
FREE: int = lib.SEMLOCK_FREE
LOST: int = lib.SEMLOCK_LOST
CHANGED: int = lib.SEMLOCK_CHANGED
GUARDED: int = lib.SEMLOCK_GUARDED
ALIVE: int = lib.SEMLOCK_ALIVE
NESTED: int = lib.SEMLOCK_NESTED
KEPT: int = lib.SEMLOCK_KEPT
TURN: int = lib.SEMLOCK_TURN
ARMED: int = lib.SEMLOCK_ARMED
BLIND: int = lib.SEMLOCK_BLIND
TIME: int = lib.SEMLOCK_TIME
FORKED: int = lib.SEMLOCK_FORKED

WITNESSED: int = lib.SEMLOCK_WITNESSED

NO_TURNS: int = lib.SEMLOCK_NO_TURNS
TAKE_TURNS: int = lib.SEMLOCK_TAKE_TURNS
FAIR: int = lib.SEMLOCK_FAIR

REGULAR: int = lib.SEMLOCK_REGULAR
SYMLINK: int = lib.SEMLOCK_SYMLINK
DIRECTORY: int = lib.SEMLOCK_DIRECTORY

RUNS: int = lib.SEMLOCK_RUNS
EXISTS: int = lib.SEMLOCK_EXISTS
GONE: int = lib.SEMLOCK_GONE
RECYCLED: int = lib.SEMLOCK_RECYCLED
ZOMBIE: int = lib.SEMLOCK_ZOMBIE

TICKET_DEAD: int = lib.SEMLOCK_TICKET_DEAD
TICKET_WAITS: int = lib.SEMLOCK_TICKET_WAITS
TICKET_HOLDS: int = lib.SEMLOCK_TICKET_HOLDS
TICKET_NONE: int = lib.SEMLOCK_TICKET_NONE

RECORD_LIMIT: int = lib.SEMLOCK_RECORD_LIMIT
REWRITE_LIMIT: int = lib.SEMLOCK_REWRITE_LIMIT
DURABILITY = {
    "none": lib.SEMLOCK_SYNC_NONE,
    "data": lib.SEMLOCK_SYNC_DATA,
    "full": lib.SEMLOCK_SYNC_FULL,
}

# The two calls of the hot path, and what they share in this process.
try_lock = lib.semlock_try
try_anyway = lib.semlock_try_anyway
release_lock = lib.semlock_release
this_thread = lib.semlock_thread
now_ns = lib.semlock_now_ns
give_way = lib.semlock_yield
POOL: Any = ffi.new("semlock_pool *")

hold_of = lib.semlock_holds
forget_lock = lib.semlock_forget
refresh_lock = lib.semlock_refresh
check_lock = lib.semlock_check
start_lock_path = lib.semlock_set_path
probe = lib.semlock_probe
boot_time = lib.semlock_boot_time

_new_bytes = ffi.new_allocator(should_clear_after_alloc=False)


def new_lock() -> Any:
    """Make the structure that one lock object owns."""
    return ffi.new("semlock_lock *")


def address(data: bytes) -> Any:
    """Give C the address of a bytes object, which the result keeps alive."""
    return ffi.from_buffer(data)


def start_pool() -> None:
    """Give the pool what C doesn't: the source of tokens, and room for kept claims."""
    ffi.buffer(POOL.seed)[:] = os.urandom(16)
    POOL.keep = lib.SEMLOCK_POOL_SLOTS


def life() -> int:
    """Count the processes that have had this memory: another number after each fork.

    C notices a fork by itself, whoever made it, so this is how Python learns of one for which
    its own hooks did not run.
    """
    number: int = lib.semlock_life(POOL)
    return number


def holds(lock: Any) -> bool:
    """Tell whether this process holds something by this structure."""
    return bool(lib.semlock_holds(lock, POOL) == OK)


def detach_lock(lock: Any) -> int:
    """Leave what is held at its path, and forget it."""
    outcome: int = lib.semlock_detach(lock, POOL)
    return outcome


def drain_pool(directory: str | None = None) -> None:
    """Remove the kept claims of a directory, or all."""
    if directory is None:
        lib.semlock_pool_drain(POOL, ffi.NULL, 0)
    else:
        encoded = os.fsencode(directory)
        lib.semlock_pool_drain(POOL, encoded, len(encoded))


class Record:
    """What acquisitions shall write, kept in C's form; see ``semlock_record``."""

    __slots__ = ("_text", "cdata", "stamp_at", "text", "token_at", "witness_at")

    def __init__(
        self,
        text: bytes,
        *,
        stamp_at: int,
        token_at: int,
        witness_at: int,
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
        record.life = life()
        self.cdata = record


def token_of(lock: Any) -> bytes:
    """Read the token of the lock's last win."""
    token: bytes = ffi.buffer(lock.token, 32)[:]
    return token


class Batch:
    """The outcomes of many tries in one call, which exist before the call begins."""

    __slots__ = ("_errors", "_locks", "_outcomes", "count")

    def __init__(self, locks: Sequence[Any]) -> None:
        self.count = len(locks)
        self._locks = ffi.new("semlock_lock *[]", locks)
        self._errors = ffi.new("int32_t[]", self.count)
        self._outcomes = ffi.new("char[]", bytes((HELD,)) * self.count)

    def run(self, *, anyway: bool = True) -> None:
        """Try them all, without the GIL; those who wait are passed by unless a lock is fair."""
        lib.semlock_try_many(
            self._locks, self._outcomes, self._errors, self.count, anyway, POOL
        )

    @property
    def outcomes(self) -> bytes:
        """List the outcomes; 255 stands for an error."""
        found: bytes = ffi.buffer(self._outcomes, self.count)[:]
        return found

    def error(self, index: int) -> int:
        """Give the native error of one try."""
        code: int = self._errors[index]
        return code


class _Wait:
    """C's form of one wait: for any of some lock paths, in the order of one queue or of none.

    It has descriptors, and perhaps a place in a queue, from the first call until ``end``.
    """

    __slots__ = ("__weakref__", "_keep", "_place", "_waiting", "_watches", "asked", "count")

    def __init__(
        self,
        locks: Sequence[Any],
        queue: Any = None,
        record: Record | None = None,
        events: int | None = None,
        *,
        asked: int | None = None,
    ) -> None:
        self.count = len(locks)
        # The time of ``now_ns`` that says where it stands among those who wait.
        self.asked: int = now_ns() if asked is None else asked
        self._waiting = ffi.new("semlock_waiting *")
        self._watches = ffi.new("semlock_watch[]", self.count)
        self._place: Any = None
        self._keep: tuple[object, ...] = (locks,)
        for index, lock in enumerate(locks):
            self._watches[index].path = lock.path
        waiting = self._waiting
        waiting.watches = self._watches
        waiting.count = self.count
        if queue is not None:
            self.stand(queue, record)
        if events is not None:
            waiting.lent = 1
            waiting.events = events
        lib.semlock_waiting_start(waiting, POOL)

    def stand(self, queue: Any, record: Record | None, index: int = -1) -> None:
        """Stand in the queue of a lock from now on: for one of those waited for, or for all."""
        lib.semlock_waiting_leave(self._waiting, POOL)
        place = ffi.new("semlock_place *")
        place.path = queue.path
        place.directory_length = queue.directory_length
        place.directory_hash = queue.directory_hash
        place.name_hash = queue.name_hash
        place.asked = self.asked
        place.ticket.handle = place.mark = place.bell = -1
        if record is not None:
            place.record = record.cdata
        self._keep = (*self._keep, queue, record)
        self._place = place
        self._waiting.queued = index
        self._waiting.place = place

    def leave(self) -> None:
        """Stand in no queue any more."""
        lib.semlock_waiting_leave(self._waiting, POOL)
        self._place = None

    @property
    def blind(self) -> bool:
        """Whether no event can come, or not all of them."""
        return bool(self._waiting.blind)

    @property
    def events(self) -> int:
        """The event source, for a loop to listen to; -1 if there is none."""
        return int(self._waiting.events)

    @property
    def bell(self) -> int:
        """A descriptor that hangs up when the one before leaves the queue; -1 if there is none.

        It is another one after each call of ``wait`` or ``arm``, perhaps.
        """
        return -1 if self._place is None else int(self._place.bell)

    @property
    def look_at(self) -> int:
        """When to call ``wait`` again, by ``now_ns``, if nothing is told; 0 for never."""
        return int(self._waiting.look_at)

    @property
    def recheck_at(self) -> int:
        """When to look again for what was told and has not shown yet; 0 if there is nothing."""
        at: int = self._waiting.recheck_at if self._waiting.recheck else 0
        return at

    @property
    def path(self) -> bytes:
        """The path of the lock that the last outcome is about."""
        path: bytes = ffi.string(self._watches[self._waiting.which].path)
        return path

    @property
    def ahead(self) -> int:
        """How many stand before this wait in its queue."""
        return 0 if self._place is None else int(self._place.ahead)

    def in_turn(self, *, fair: bool) -> bool:
        """Tell whether a try now would overtake no waiter that came earlier."""
        return bool(lib.semlock_waiting_in_turn(self._waiting, fair))

    @property
    def which(self) -> int:
        """The index of the lock that the last outcome is about."""
        return int(self._waiting.which)

    @property
    def marks(self) -> list[int]:
        """What the event source calls the files that are watched now."""
        marks = [watch.mark for watch in self._watches]
        if self._place is not None:
            marks.append(self._place.mark)
        return [mark for mark in marks if mark >= 0]

    def wait(self, until: int) -> int:
        """Sleep until something can be done, or until a time of ``now_ns``."""
        outcome: int = lib.semlock_waiting_wait(self._waiting, POOL, until)
        return outcome

    def take(self, lock: Any, until: int) -> int:
        """Wait, and try as soon as that makes sense: what the wait or the try has to say."""
        outcome: int = lib.semlock_waiting_take(self._waiting, lock, POOL, until)
        return outcome

    def arm(self) -> int:
        """See to it that an event comes, without sleeping; or say what can be done now."""
        outcome: int = lib.semlock_waiting_arm(self._waiting, POOL)
        return outcome

    def sleep(self, until: int) -> int:
        """Sleep until any event, or until a time of ``now_ns``."""
        outcome: int = lib.semlock_waiting_sleep(self._waiting, POOL, until)
        return outcome

    def pace(self, *, by_caller: bool) -> None:
        """Say who pauses where no events come: the core, or a caller who is told BLIND."""
        self._waiting.unpaced = by_caller

    def later(self, index: int, seconds: float) -> None:
        """Say nothing for a while of a lock that is free, but for others first."""
        lib.semlock_waiting_later(self._waiting, index, int(seconds * 1e9))

    def due(self) -> None:
        """Have everything looked at again."""
        lib.semlock_waiting_due(self._waiting)

    def told(self, marks: Marks) -> bool:
        """Take in what an event source has told; whether any of it was of this wait."""
        return bool(lib.semlock_waiting_told(self._waiting, marks.room, marks.count))

    def doubt(self) -> None:
        """Have everything looked at again, and asked again whether the holder lives."""
        self.due()
        for watch in self._watches:
            watch.judged_ino = 0

    def judged(self, index: int, seen: Instance) -> None:
        """Skip an instance that was looked at and may not be removed, until it changes."""
        watch = self._watches[index]
        watch.judged_dev, watch.judged_ino, watch.judged_ctime_ns = seen.key

    def follow(self, pid: int, start: int) -> bool:
        """Hear of the end of a process too; ``False`` if it has ended."""
        return bool(lib.semlock_waiting_follow(self._waiting, pid, start) != LOOK)

    def end(self, won: Any = None) -> None:
        """Leave the queue and give everything back; more than once does no harm.

        ``won`` is the lock's structure, if the wait ended with it.
        """
        lib.semlock_waiting_end(self._waiting, POOL, won or ffi.NULL)
        if type(self) is Wait:
            # Python swallows what a signal handler raises in __del__, so there shall be none
            # for what has nothing to give back, which is nearly always.
            self.__class__ = _EndedWait  # type: ignore[assignment]

    def forget(self) -> None:
        """Forget what is the parent's, after a fork; C has closed the copies of it."""
        lib.semlock_waiting_forget(self._waiting)


class Wait(_Wait):
    """A wait that is not over, and ends at the latest when nobody refers to it any more."""

    __slots__ = ()

    def __del__(self) -> None:
        # An interrupt may have struck before there was anything to give back.
        if getattr(self, "_waiting", None) is not None:
            self.end()


class _EndedWait(_Wait):
    """A wait that is over."""

    __slots__ = ()


class Marks:
    """Room for what an event source has to tell."""

    __slots__ = ("count", "room")

    _LENGTH = 64

    def __init__(self) -> None:
        self.room = ffi.new("int64_t[]", self._LENGTH)
        self.count = 0

    def read(self, events: int) -> list[int]:
        """Read the marks of what has happened; -1 stands for all of them."""
        self.count = lib.semlock_events_read(events, self.room, self._LENGTH)
        return list(self.room[0 : self.count])


def take_events() -> int:
    """Take an event source that is lent to many waits; -1 if there is none to be had."""
    events: int = lib.semlock_events_take(POOL)
    return events


def give_events(events: int) -> None:
    """Give an event source back."""
    lib.semlock_events_give(POOL, events)


class Instance:
    """One file as it was found at a path, and no other: what it says, and how it is kept.

    With it in hand exactly this file can be confirmed, rewritten or removed.
    """

    __slots__ = ("content", "error", "view")

    def __init__(self, view: Any, content: bytes, error: int) -> None:
        self.view = view  # the core's own, for the calls of this module
        self.content = content
        self.error = error

    @property
    def identity(self) -> tuple[int, int]:
        """Name the file, whatever becomes of it."""
        return self.view.dev, self.view.ino

    @property
    def key(self) -> tuple[int, int, int]:
        """Name the file as it was: another after each change."""
        return self.view.dev, self.view.ino, self.view.ctime_ns

    @property
    def ctime_ns(self) -> int:
        """When anything about the file has changed last."""
        return int(self.view.ctime_ns)

    @property
    def written_at(self) -> float:
        """When it was last written to, in seconds since 1970."""
        return float(self.view.mtime_ns / 1e9)

    @property
    def kind(self) -> int:
        """What it is: REGULAR, SYMLINK, DIRECTORY or something else."""
        return int(self.view.kind)

    @property
    def mode(self) -> int:
        """Its permissions."""
        return int(self.view.mode)

    @property
    def local(self) -> bool:
        """Whether its filesystem is known to be this machine's own."""
        return bool(self.view.local)

    @property
    def unfinished(self) -> bool:
        """Whether it is marked as not yet complete."""
        return bool(self.view.unfinished)

    @property
    def witness(self) -> int:
        """What the kernel's lock on it says: 1 it is kept, 0 it is free, -1 not known."""
        return int(self.view.witness)

    @property
    def witnessed(self) -> bool:
        """Whether a process that lives keeps the kernel's lock on it."""
        return bool(self.view.witness == 1)


def look(path: bytes) -> Instance | None:
    """Look at a path; ``None`` if nothing is there.  An unreadable file comes with its error."""
    view = ffi.new("semlock_view *")
    room = 4096
    while True:
        data = _new_bytes("char[]", room)
        # A path that changes hands at every look is busy, which is not an error: after some
        # tries the last look will do, for whoever acts on it compares again under the guard.
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


def confirm(path: bytes, seen: Instance) -> bool:
    """Tell whether what was looked at is still at the path, unchanged."""
    return bool(lib.semlock_confirm(path, POOL, seen.view) == OK)


def remove(path: bytes, seen: Instance, *, despite_witness: bool) -> int:
    """Remove the instance that was looked at, and no other."""
    flags = lib.SEMLOCK_DESPITE_WITNESS if despite_witness else 0
    outcome: int = lib.semlock_remove(path, POOL, seen.view, seen.content, flags)
    return outcome


def rewrite(path: bytes, seen: Instance, text: bytes) -> int:
    """Write a text of at least the same length over the record that was looked at."""
    outcome: int = lib.semlock_rewrite(path, POOL, seen.view, seen.content, text, len(text))
    return outcome


def must_make_way(queue: Any, locks: Any = None) -> int:
    """Tell whether others stand in a queue who come first; see ``semlock_try``.

    OK if not, TURN if they do and one of the locks is free (``many`` makes C's form of
    them; without it is the queue's own), HELD if none is.
    """
    if locks is None:
        one: int = lib.semlock_must_make_way(queue, POOL)
        return one
    any_of: int = lib.semlock_must_make_way_to_any(queue, locks, len(locks), POOL)
    return any_of


def many(locks: Sequence[Any]) -> Any:
    """Give C's form of some locks, which must be kept as long as it."""
    return ffi.new("semlock_lock *[]", list(locks))


def burst_began(lock: Any) -> None:
    """Note that this process begins to take a lock, as if it had won it by waiting."""
    lib.semlock_burst_began(POOL, lock)


def burst_released(lock: Any) -> None:
    """Note that this process has let go of a lock."""
    lib.semlock_burst_released(POOL, lock)


def clean_ticket(path: bytes) -> bool:
    """Remove a ticket of a queue if its owner is dead; ``False`` if it is not."""
    outcome = lib.semlock_ticket_clean(path, POOL)
    if outcome < 0:
        raise_os_error(outcome, path)
    return bool(outcome == OK)


def ticket_state(path: bytes) -> int:
    """Say what is known of the owner of a ticket: one of the four from ``TICKET_DEAD`` on."""
    state: int = lib.semlock_ticket_state(path)
    return state


def set_safety(seconds: float) -> None:
    """Say about how often a waiter looks without news; 0 for the default."""
    POOL.safety = int(seconds * 1e9)


def identify() -> tuple[int, int, int, int, str]:
    """Say who this process is: pid, start, PID namespace, time namespace, boot."""
    process = ffi.new("semlock_process *")
    while (outcome := lib.semlock_identify(process)) == -errno.EINTR:
        pass
    if outcome < 0:
        raise_os_error(outcome, "/proc")
    boot = ffi.string(process.boot).decode("ascii", "replace")
    return process.pid, process.start, process.pidns, process.timens, boot


def start_time(pid: int) -> int:
    """Say when a process of this machine began, in the system's unit; 0 if it can't be told."""
    start = ffi.new("int64_t *")
    if lib.semlock_start_time(pid, start) != 0:
        return 0
    return int(start[0])


def os_error(code: int, path: bytes | str) -> OSError:
    """Turn a negative native code into the OSError that Python itself would raise."""
    name = os.fsdecode(path)
    if sys.platform == "win32":
        return OSError(None, ffi.getwinerror(-code)[1], name, -code)
    return OSError(-code, os.strerror(-code), name)


def raise_os_error(code: int, path: bytes | str) -> NoReturn:
    """Raise a negative native code as OSError, with the file's name."""
    raise os_error(code, path)


start_pool()
