"""The core's form of a wait, and the event sources that waits share."""

from __future__ import annotations

from _weakref import ref

from semlock._core import identity
from semlock._core.capi import LOOK, POOL, life_of, now_ns
from semlock._core.compiled import ffi, lib

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._core.capi import Instance, Record
    from semlock._core.compiled import semlock_lock, semlock_place

# The calls in which a thread waits: until there is something to do, or with its next try.
try_or_wait = lib.semlock_try_or_wait
wait = lib.semlock_waiting_wait
take = lib.semlock_waiting_take
again = lib.semlock_waiting_again

# In which of the processes that had this memory ``identity.follow_fork`` was called.
life = life_of(POOL)

# The waits that are under way: they have descriptors.
under_way: dict[int, ref[_Wait]] = {}


class _Wait:
    """One wait for some lock paths, perhaps with a place in one queue.

    It has descriptors, and perhaps a ticket, until ``end``.  Before the next one to try sleeps, it
    makes the file of the lock that it ``prepares``.  With ``tries``, C's array of all these locks,
    the file is for the one that gets free, and ``take`` tries that one.  A ``fair`` wait asks the
    queue before each try, as one that prepares a fair lock does.
    In an event loop it uses the event source of the loop's ``hub``, and tells it when it ends.
    """

    __slots__ = (
        "__weakref__", "_hub", "_keep", "_place", "_watches", "asked", "cdata", "count",
    )  # fmt: skip

    def __init__(
        self,
        locks: Sequence[semlock_lock],
        queue: semlock_lock | None = None,
        record: Record | None = None,
        *,
        hub: Any = None,
        asked: int | None = None,
        prepares: semlock_lock | None = None,
        tries: Any = None,
        fair: bool = False,
    ) -> None:
        if life_of(POOL) != life:
            identity.follow_fork()  # later, it would forget this wait too
        self._hub: Any = None
        self.count = len(locks)
        # When the wait began, by ``now_ns``: its rank in a queue.
        self.asked: int = now_ns() if asked is None else asked
        self.cdata = ffi.new("semlock_waiting *")
        self._watches = ffi.new("semlock_watch[]", self.count)
        self._place: semlock_place | None = None
        self._keep: tuple[object, ...] = (locks, tries, prepares)
        for index, lock in enumerate(locks):
            watch = self._watches[index]
            watch.path = lock.path
            watch.kernel, watch.lent, watch.vouched = lock.kernel, lock.lent, lock.vouched
        waiting = self.cdata
        waiting.watches = self._watches
        waiting.count = self.count
        if prepares is not None:
            waiting.lock = prepares
        waiting.fair = fair
        if tries is not None:
            waiting.locks = tries
        if queue is not None:
            self.stand(queue, record)
        if hub is not None:
            waiting.lent = 1
            waiting.events = hub.events
        lib.semlock_waiting_start(waiting, POOL)
        under_way[id(self)] = ref(self)
        if hub is not None:
            self._hub = hub
            hub.waits.add(id(self))

    def stand(self, queue: semlock_lock, record: Record | None, index: int = -1) -> None:
        """Join the queue of a lock: the lock at ``index``, or one queue for all (-1)."""
        lib.semlock_waiting_leave(self.cdata, POOL)
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
        self.cdata.queued = index
        self.cdata.place = place

    def leave(self) -> None:
        """Leave the queue."""
        lib.semlock_waiting_leave(self.cdata, POOL)
        self._place = None

    @property
    def blind(self) -> bool:
        """Whether events may be missing for some of the paths."""
        return bool(self.cdata.blind)

    @property
    def unseen(self) -> bool:
        """Whether FREE was said because of an event, without a look at the lock."""
        return bool(self.cdata.tried)

    @property
    def look_at(self) -> int:
        """When to call ``wait`` again without an event, by ``now_ns``; 0 for never."""
        return self.cdata.look_at

    @property
    def recheck_at(self) -> int:
        """When to check again after an event without visible effect; 0 for never."""
        return self.cdata.recheck_at if self.cdata.recheck else 0

    @property
    def path(self) -> bytes:
        """The path of the last outcome's lock."""
        return ffi.string(self._watches[self.cdata.which].path)

    @property
    def ahead(self) -> int:
        """How many waiters are before this one in its queue."""
        return 0 if self._place is None else self._place.ahead

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        """Tell whether a try now would overtake no earlier waiter.

        ``anew`` checks for a fair lock that no older ticket has come back since the queue was read.
        """
        return bool(lib.semlock_waiting_in_turn(self.cdata, fair, POOL if anew else ffi.NULL))

    @property
    def which(self) -> int:
        """The index of the last outcome's lock."""
        return self.cdata.which

    def sources(self) -> tuple[list[int], int, int]:
        """Say what wakes a loop's wait; each call of ``wait`` may change it.

        The event source's names of the watched files; a descriptor that hangs up when the waiter
        before this one leaves the queue, or -1; and ``look_at``.
        """
        place, waiting = self._place, self.cdata
        marks = [watch.mark for watch in self._watches if watch.mark >= 0]
        if place is None:
            return marks, -1, waiting.look_at
        if place.mark >= 0:
            marks.append(place.mark)
        return marks, place.bell, waiting.look_at

    def wait(self, until: int) -> int:
        """Block until there is something to do, or until a time of ``now_ns``."""
        return lib.semlock_waiting_wait(self.cdata, POOL, until)

    def arm(self) -> int:
        """Prepare for an event without blocking; or return what can be done at once."""
        return lib.semlock_waiting_arm(self.cdata, POOL)

    def sleep(self, until: int) -> int:
        """Block until any event, or until a time of ``now_ns``."""
        return lib.semlock_waiting_sleep(self.cdata, POOL, until)

    def pace(self, *, by_caller: bool) -> None:
        """Choose who pauses without events: the core, or a caller who gets BLIND."""
        self.cdata.unpaced = by_caller

    def later(self, index: int, seconds: float) -> None:
        """Skip a lock for a while that is free, but for other waiters."""
        lib.semlock_waiting_later(self.cdata, index, int(seconds * 1e9))

    def due(self) -> None:
        """Have all paths checked again."""
        lib.semlock_waiting_due(self.cdata)

    def told(self, marks: Marks) -> bool:
        """Hand over events; ``True`` if one of them concerns this wait."""
        return bool(lib.semlock_waiting_told(self.cdata, marks.room, marks.count))

    def doubt(self) -> None:
        """Have all paths checked and all holders judged again."""
        self.due()
        for watch in self._watches:
            watch.judged_ino = 0

    def spare_look(self) -> None:
        """Join the queue without a look at the holder."""
        self.cdata.looked = 1

    def judged(self, index: int, seen: Instance) -> None:
        """Skip this instance, which was judged and must stay, until it changes."""
        watch = self._watches[index]
        watch.judged_dev, watch.judged_ino, watch.judged_ctime_ns = seen.key

    def follow(self, pid: int, start: int) -> bool:
        """Report the end of a process as an event; ``False`` if it has ended already."""
        return lib.semlock_waiting_follow(self.cdata, pid, start) != LOOK

    def stop(self) -> None:
        """Have the thread that waits sleep no more; any thread may call it."""
        lib.semlock_waiting_stop(self.cdata)

    def end(self, won: semlock_lock | None = None) -> None:
        """Leave the queue and free all resources; it may be called twice.

        ``won`` is the lock's structure, if the wait has won it.
        """
        under_way.pop(id(self), None)
        lib.semlock_waiting_end(self.cdata, POOL, won or ffi.NULL)
        # Python discards what a signal handler raises in __del__.  So a finished wait, which has
        # nothing to free, has no __del__.
        self.__class__ = EndedWait
        if self._hub is not None:
            self._hub.left(self)

    def forget(self) -> None:
        """Forget the parent's resources after a fork; C has closed the copies of descriptors."""
        lib.semlock_waiting_forget(self.cdata)


class Wait(_Wait):
    """A wait that is under way; it ends at the latest with its last reference."""

    __slots__ = ()

    def __del__(self) -> None:
        # __init__ may have been interrupted before there was anything to free.
        if getattr(self, "cdata", None) is not None:
            self.end()


class EndedWait(_Wait):
    """A finished wait."""

    __slots__ = ()


class Nothing(Wait):
    """A wait for nothing, which can only end."""

    __slots__ = ()

    def __init__(self) -> None:
        self.cdata = ffi.new("semlock_waiting *")
        self._hub = None


class Marks:
    """A buffer for events."""

    __slots__ = ("count", "room")

    _LENGTH = 64

    def __init__(self) -> None:
        self.room = ffi.new("int64_t[]", self._LENGTH)
        self.count = 0

    def read(self, events: int) -> list[int]:
        """Read the marks of changed files; -1 means that any may have changed."""
        self.count = lib.semlock_events_read(events, self.room, self._LENGTH)
        return list(self.room[0 : self.count])


def forget_all() -> None:
    """Forget the parent's waits after a fork."""
    for wait in [reference() for reference in list(under_way.values())]:
        if wait is not None:
            wait.forget()
    under_way.clear()


# Take an event source of the pool for a loop, -1 if none is available; and give one back.
take_events = lib.semlock_events_take
give_events = lib.semlock_events_give
