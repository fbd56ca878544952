"""Locks of several holders for tasks: slots, and many readers or one writer."""

from __future__ import annotations

import sys

from semlock._core import inside
from semlock._core.errors import LockTimeoutError
from semlock._locks import mine
from semlock._locks.async_form import rules_of, this_task
from semlock._locks.async_holding import HeldByTasks, SharedByTasks, is_held_by, task_here
from semlock._locks.async_lock import AsyncLock
from semlock._locks.lock import called_by_its_name
from semlock._locks.readers import ReaderWait, readers_leaving
from semlock._locks.shared import SharedLock
from semlock._locks.slots import SlotLock
from semlock._waiting.async_waiter import waiter_here
from semlock._waiting.hub import released_here
from semlock._waiting.sleeping import crowded
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from semlock._locks.lock import Lock
    from semlock._waiting.async_waiter import AsyncWaiter
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Waiter


class AsyncSlotLock(HeldByTasks, SlotLock):  # type: ignore[misc]  # its words are awaited
    """``SlotLock`` for tasks: at most so many holders at a time, each of them a task.

    :path:   where the slots are: slot 3 is the lock file ``PATH.3``
    :slots:  how many there are
    :system: the lock system of the slots' files, as for ``SlotLock``

    The other parameters are those of ``AsyncLock``.  It shares the slots with ``SlotLock``.
    One object serves many tasks.  Each holds one slot at most, and releases it itself or by the
    context manager that ``await acquire()`` gave.
    """

    __slots__ = ()

    _one_slot = AsyncLock  # which knows the task that holds it

    def _wins(self) -> tuple[Sequence[Any], None]:
        return self._locks, None

    def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._acquiring(timeout, frame)

    def _refuse_to_wait_for_oneself(self, frame: FrameType, timeout: float | None) -> None:
        mine.refuse_task_all(self._locks, this_task(), frame, timeout)

    def _waiter(self, timeout: float | None, asked: int) -> AsyncWaiter:
        locks = self._locks
        return waiter_here(
            locks,
            timeout,
            self.path,
            schedule=self._retry,
            queue=self._head,
            record=inside.record(locks[0]),
            line=self._line_name(),
            asked=asked,
            of=self._head,
            status=locks[self._last].status,
            tries=None if inside.is_composed_anew(locks[0]) else self._natives,
        )

    def _line_name(self) -> tuple[object, ...] | None:
        """Name the line in which tasks of one loop wait for these slots, if they do in one."""
        if self._retry is not None:
            return None
        rules = rules_of(inside.policy(self._locks[0]))
        return self.path, inside.native(self._head).turns, rules, self.slots

    def _left(self, me: object, mine: Any) -> None:
        super()._left(me, mine)
        if crowded:
            released_here(self._line_name())

    def _try_all(self, frame: FrameType, waiter: Waiter | None) -> bool:
        task_here()  # an error outside of tasks
        return super()._try_all(frame, waiter)

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = this_task()
        slots: list[Any] = self._locks
        last = slots[self._last]
        if is_held_by(last, me):
            return last
        return next((slot for slot in slots if is_held_by(slot, me)), None)


called_by_its_name(AsyncSlotLock)


_frame = sys._getframe


class _TaskReaderWait(ReaderWait):
    """How a task waits for a reader."""

    yields = True

    @staticmethod
    def refuse(reader: Lock, frame: FrameType) -> None:
        """Raise ``LockDeadlockError`` if this task is that reader."""
        mine.refuse_task_all((reader,), this_task(), frame)

    @staticmethod
    def waiter(  # a task's
        reader: Lock, timeout: float | None, about: str, writer: Any
    ) -> AsyncWaiter:
        """Begin to wait."""
        return waiter_here((reader,), timeout, about, of=writer, status=reader.status)


class AsyncSharedLock(SharedByTasks, SharedLock):  # type: ignore[misc]  # its words are awaited
    """``SharedLock`` for tasks: many of them may share it as readers, or one may write.

    :path:    the writer's lock file; readers are files in ``PATH.readers`` beside it
    :system:  the lock system of the writer's file, as for ``SharedLock``

    The other parameters are those of ``AsyncLock``.  ``async with lock.shared():`` is for
    readers, ``async with lock:`` for the writer.  It excludes ``SharedLock`` and all
    other holders.  One object serves many tasks, each as a reader or as the writer.
    """

    __slots__ = ()

    _reader_wait = _TaskReaderWait
    _one_writer = AsyncLock

    # ------------------------------------------------------------------ the writer

    def try_acquire(self) -> bool:
        """Take the lock as the writer if it has no holder; ``False`` if it has one."""
        frame = _frame(1)
        me = task_here()
        writer = self._writer
        if self._nests(writer, frame):
            return True
        self._refuse_to_wait_for_oneself(frame)
        try:
            if not writer.try_acquire():
                return False
            inside.won_by(writer, frame)
            run(readers_leaving(writer, 0, frame, ReaderWait))  # which never sleeps
        except BaseException as error:
            if self._writes(me):
                inside.end(writer)
            if isinstance(error, LockTimeoutError):
                return False
            raise
        return True

    def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._writing(timeout, frame)

    def _wins(self) -> tuple[Sequence[Any], Any]:
        return (self._writer,), self

    def _part_here(self) -> tuple[Any, Any]:
        me = this_task()
        return me, self._readers.get(me)

    # ------------------------------------------------------------------ readers

    def _reading(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._sharing(timeout, frame)

    def _line_name(self) -> tuple[object, ...] | None:
        return inside.line_name(self._writer)

    def _refuse_to_read(self, frame: FrameType) -> None:
        mine.refuse_task_all((self._writer,), this_task(), frame)
        mine.refuse_reading_task(self.path, this_task(), frame)

    def _waiter(  # a task's
        self, before: Lock | None, timeout: float | None, asked: int
    ) -> AsyncWaiter:
        del before  # its reader is made when it is its turn
        writer = self._writer
        return waiter_here(
            (writer,),
            timeout,
            self.path,
            schedule=inside.schedule(writer),
            queue=writer,
            by=self,
            line=self._line_name(),
            asked=asked,
            of=writer,
        )

    @property
    def _record(self) -> Any:
        """What a waiting reader's ticket says: as a reader's file."""
        return inside.record(self._new_reader())

    # ------------------------------------------------------------------ both

    def _me(self) -> Any:
        return this_task() if inside.native(self._writer).by_object else task_here()

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = this_task()
        by_object = inside.native(self._writer).by_object
        return None if me is None and not by_object else super()._mine(me)

    def _writes(self, me: object) -> bool:
        return is_held_by(self._writer, me)


called_by_its_name(AsyncSharedLock)
