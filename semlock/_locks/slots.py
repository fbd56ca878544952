"""A counting semaphore of lock files: so many slots, each a lock of its own."""

from __future__ import annotations

import os
import sys

from semlock._core import capi, explain, inside, waits
from semlock._core.capi import HELD, LOOK, MINE, OK, POOL, try_anyway
from semlock._core.errors import LockPathError
from semlock._core.options import made_by, refuse_unknown, told_of
from semlock._locks.lock import SAFE, Lock
from semlock._locks.parts import InParts
from semlock._waiting.steps import insisting
from semlock._waiting.waiter import Waiter, run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus, StrPath
    from semlock._waiting.steps import Steps
    from semlock.systems import System

_frame = sys._getframe
_MOST = 10_000


class SlotLock(InParts):
    """At most so many holders at a time: a counting semaphore made of lock files.

    :path:   where the slots are: slot 3 is the lock file ``PATH.3``, a lock like any other,
             with its own record, so that ``semlock status PATH.3`` names its holder
    :slots:  how many there are
    :system: the lock system of the slots' files, such as ``semlock.systems.find("sema")``;
               semlock's own by default

    The other parameters are those of ``Lock``.  A dead holder's slot is taken over, and all
    waiters stand in one queue.

    The slots are numbered, and a lock with ``slots=N`` uses the first N.  So processes with
    different numbers agree about the slots that they share, and there are never more holders
    than the highest number in use.  The number can be raised or lowered while others work, and
    applies to each process from its next acquisition on.

    One object serves many threads, each of which holds one slot at most.  With
    ``held_by="object"`` the object holds: any thread releases the slot that another one took, and
    each acquisition takes one more, unless it is ``reentrant``.
    """

    __slots__ = (
        "__weakref__", "_fair", "_head", "_last", "_locks", "_natives", "_retry", "path", "slots",
        "timeout",
    )  # fmt: skip

    _one_slot: Any = Lock  # the class of each slot
    _defaults = SAFE

    def __init__(
        self,
        path: StrPath,
        slots: int,
        *,
        system: System | None = None,
        **options: Unpack[LockOptions],
    ) -> None:
        refuse_unknown(self, options)
        make = made_by(self._one_slot, system, for_tasks=self._who == "task")
        if type(slots) is not int or not 1 <= slots <= _MOST:
            raise ValueError(f"slots is a number from 1 to {_MOST}, not {slots!r}")
        # Never acquired: its path names the queue, and it has the options of the wait.
        of_head = {k: v for k, v in options.items() if k != "held_by" or v == "object"}
        self._head = head = Lock(path, **of_head)  # type: ignore[arg-type]
        self.path = head.path
        self.slots = slots
        self.timeout = head.timeout
        self._fair = inside.is_fair(head)
        self._retry = inside.schedule(head)
        self._last = 0
        of_each = told_of(self, options)
        try:
            self._locks: list[Lock] = [
                make(f"{self.path}.{number}", **of_each) for number in range(1, slots + 1)
            ]
        except LockPathError as error:  # the lock system has names of its own
            raise LockPathError(
                f"{self.path} can't have slots, which are files with a number behind its name: "
                f"{error}",
                path=self.path,
            ) from None
        if system is not None:
            inside.lay_out(self._locks[0])  # an error if it has no record before it is acquired
        for lock in self._locks:
            inside.native(lock).turns = capi.NO_TURNS  # the semaphore has one queue for all
        self._natives = capi.many([inside.native(lock) for lock in self._locks])

    # ------------------------------------------------------------------ acquiring

    def try_acquire(self) -> bool:
        """Take a slot if one is free or its holder is dead; ``False`` if there is none."""
        frame = _frame(1)
        before = self._serials()
        try:
            if (again := self._again(frame)) is not None:
                return again
            way = self._way(0)
            if way == capi.TURN and self._patient:
                way = run(insisting(self._way, 0))
            return way == OK and self._try_all(frame, None)
        except BaseException:
            self._undo(before)
            raise

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        before = self._serials()
        try:
            run(self._acquiring(timeout, frame))
        except BaseException:
            self._undo(before)
            raise

    def _acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Take a slot, or wait for one; a task behind others in line doesn't try first."""
        in_line, asked, early = self._into_line(timeout)
        if early is not None:
            yield early
            del early
        again = self._again(frame)
        if again:
            return
        if again is not None:
            raise explain.deadlock_error(self._held(), frame, self._who)
        if not in_line:
            way = self._way(timeout)
            if timeout == 0 and way == capi.TURN:
                way = yield from insisting(self._way, 0)
            if way == OK and self._try_all(frame, None):
                return
        if timeout == 0:
            raise explain.timeout_error(self._locks[self._last], 0.0)
        self._refuse_to_wait_for_oneself(frame, timeout)
        self._lay_out()
        waiter = self._waiter(timeout, asked)
        won = None
        try:
            while not self._answer(waiter, frame, in_time=(yield waiter)):
                pass
            won = inside.native(self._locks[self._last])
            waiter.served()
        finally:
            waiter.end(won)

    def _again(self, frame: FrameType) -> bool | None:
        """Hold once more what is held: whether that may be; ``None``: a slot is to be taken."""
        mine = self._mine()
        if mine is None:
            return None
        native = inside.native(mine)
        if native.reentrant and inside.has_won(mine, inside.try_anyway(mine), frame):
            return True
        return None if native.by_object else False

    def _waiter(self, timeout: float | None, asked: int) -> Waiter:
        del asked  # a thread asks when it begins to wait
        locks, head = self._locks, self._head
        # The core tries by itself unless each try needs a new record.
        by_core = not inside.is_composed_anew(locks[0])
        wait = waits.Wait(
            [inside.native(lock) for lock in locks],
            inside.native(head),
            inside.record(locks[0]),
            tries=self._natives if by_core else None,
            fair=self._fair,
        )
        return Waiter(
            timeout,
            self._retry,
            wait=wait,
            lock=inside.native(locks[0]) if by_core else None,
            queue=inside.native(head),
            of=head,
            status=locks[self._last].status,
            about=self.path,
        )

    def _refuse_to_wait_for_oneself(self, frame: FrameType, timeout: float | None) -> None:
        """Refuse to wait if this thread holds all slots, by any objects, and none expires."""
        from semlock._locks import mine as _mine  # noqa: PLC0415 - only for those who wait

        holder = _mine.all_mine(self._locks, _mine.is_of_thread, timeout)
        if holder is not None:
            raise explain.deadlock_error(holder, frame, reentrant=False)

    def _answer(self, waiter: Waiter, frame: FrameType, *, in_time: bool = True) -> bool:
        """Act on the end of a pause; ``True`` if that has won a slot."""
        if not in_time:
            raise explain.timeout_error(self._locks[waiter.which], waiter.waited)
        if waiter.outcome is not None:  # the core has tried the slot that was free
            self._last = waiter.which
            return inside.has_won(self._locks[self._last], waiter.outcome, frame)
        native = inside.native(self._locks[0])
        if native.by_object and native.reentrant and self._again(frame):
            return True  # another thread has won a slot by this object, which is held once more
        looked = waiter.said == LOOK
        # Later waiters judge too: the first one may be a stopped process.
        if looked and not inside.judge(
            self._locks[waiter.which], frame, may_wait=False, waiter=waiter
        ):
            return False
        if waiter.said == capi.FREE:
            self._last = waiter.which
        return waiter.in_turn(fair=self._fair, anew=looked) and self._try_all(frame, waiter)

    def _try_all(self, frame: FrameType, waiter: Waiter | None) -> bool:
        """Try the slot that was used last, and then the others."""
        self._lay_out()
        locks, first = self._locks, self._last
        for step in range(len(locks)):
            index = (first + step) % len(locks)
            lock = locks[index]
            native = inside.native(lock)
            # A reentrant one of tasks knows which of them holds; another may need a new record.
            by_core = not (native.reentrant or inside.is_composed_anew(lock))
            outcome = try_anyway(native, POOL) if by_core else inside.try_anyway(lock)
            if outcome == HELD or (outcome == LOOK and waiter is not None):
                continue  # during a wait the core says which slot to judge
            if outcome not in (MINE, HELD) and inside.has_won(lock, outcome, frame):
                self._last = index
                return True
        return False

    def _lay_out(self) -> None:
        # No file is made at the path itself, so no system call refuses a link there.  Who names
        # what it leads to would count other slots.
        if inside.record(self._locks[0]) is None and os.path.islink(self.path):
            raise explain.link_error(self.path)
        inside.lay_out(*self._locks)

    def _serials(self) -> list[int]:
        return [inside.native(lock).serial for lock in self._locks]

    def _undo(self, before: list[int]) -> None:
        for lock, serial in zip(self._locks, before, strict=True):
            inside.undo(lock, serial)

    # ------------------------------------------------------------------ holding

    def _parts(self) -> list[Lock]:
        return self._locks

    def _left(self, me: object, mine: Any) -> None:
        del me
        if not mine.held:
            capi.burst_released(inside.native(self._head))

    def _mine(self, me: object = None) -> Lock | None:
        """Find the slot that this thread or this object holds; only the core's structures know."""
        if me is None:
            me = capi.this_thread()
        for lock in (self._locks[self._last], *self._locks):
            native = inside.native(lock)
            if (native.owner == me or native.by_object) and lock.held:
                return lock
        return None

    @property
    def held(self) -> bool:
        """Whether this thread holds a slot through this object."""
        return self._mine() is not None

    @property
    def slot(self) -> int | None:
        """The number of the slot that this thread holds, from 1 on."""
        mine = self._mine()
        return None if mine is None else self._locks.index(mine) + 1

    @property
    def info(self) -> LockInfo | None:
        """What the record of this thread's slot says; ``None`` while it holds none."""
        mine = self._mine()
        return None if mine is None else mine.info

    def status(self) -> list[LockStatus]:
        """Look at all slots, in the order of their numbers."""
        return [lock.status() for lock in self._locks]

    def __repr__(self) -> str:
        slot = self.slot
        state = "not held" if slot is None else f"slot {slot} held"
        return f"<{type(self).__name__} {self.path!r}, {self.slots} slots, {state}>"
