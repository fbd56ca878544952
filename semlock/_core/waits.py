"""The core's form of a wait, and the event sources that waits share."""

from __future__ import annotations

from semlock._core.capi import LOOK, POOL, now_ns
from semlock._core.compiled import ffi, lib

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence

    from semlock._core.capi import Instance, Record
    from semlock._core.compiled import semlock_lock, semlock_place


class _Wait:
    """C's form of one wait: for any of some lock paths, in the order of one queue or of none.

    It has descriptors, and perhaps a place in a queue, from the first call until ``end``.
    """

    __slots__ = ("__weakref__", "_keep", "_place", "_waiting", "_watches", "asked", "count")

    def __init__(
        self,
        locks: Sequence[semlock_lock],
        queue: semlock_lock | None = None,
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
        self._place: semlock_place | None = None
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

    def stand(self, queue: semlock_lock, record: Record | None, index: int = -1) -> None:
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
        return self._waiting.events

    @property
    def bell(self) -> int:
        """A descriptor that hangs up when the one before leaves the queue; -1 if there is none.

        It is another one after each call of ``wait`` or ``arm``, perhaps.
        """
        return -1 if self._place is None else self._place.bell

    @property
    def look_at(self) -> int:
        """When to call ``wait`` again, by ``now_ns``, if nothing is told; 0 for never."""
        return self._waiting.look_at

    @property
    def recheck_at(self) -> int:
        """When to look again for what was told and has not shown yet; 0 if there is nothing."""
        return self._waiting.recheck_at if self._waiting.recheck else 0

    @property
    def path(self) -> bytes:
        """The path of the lock that the last outcome is about."""
        return ffi.string(self._watches[self._waiting.which].path)

    @property
    def ahead(self) -> int:
        """How many stand before this wait in its queue."""
        return 0 if self._place is None else self._place.ahead

    def in_turn(self, *, fair: bool) -> bool:
        """Tell whether a try now would overtake no waiter that came earlier."""
        return bool(lib.semlock_waiting_in_turn(self._waiting, fair))

    @property
    def which(self) -> int:
        """The index of the lock that the last outcome is about."""
        return self._waiting.which

    @property
    def marks(self) -> list[int]:
        """What the event source calls the files that are watched now."""
        marks = [watch.mark for watch in self._watches]
        if self._place is not None:
            marks.append(self._place.mark)
        return [mark for mark in marks if mark >= 0]

    def wait(self, until: int) -> int:
        """Sleep until something can be done, or until a time of ``now_ns``."""
        return lib.semlock_waiting_wait(self._waiting, POOL, until)

    def take(self, lock: semlock_lock, until: int) -> int:
        """Wait, and try as soon as that makes sense: what the wait or the try has to say."""
        return lib.semlock_waiting_take(self._waiting, lock, POOL, until)

    def arm(self) -> int:
        """See to it that an event comes, without sleeping; or say what can be done now."""
        return lib.semlock_waiting_arm(self._waiting, POOL)

    def sleep(self, until: int) -> int:
        """Sleep until any event, or until a time of ``now_ns``."""
        return lib.semlock_waiting_sleep(self._waiting, POOL, until)

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
        return lib.semlock_waiting_follow(self._waiting, pid, start) != LOOK

    def end(self, won: semlock_lock | None = None) -> None:
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
    return lib.semlock_events_take(POOL)


def give_events(events: int) -> None:
    """Give an event source back."""
    lib.semlock_events_give(POOL, events)
