"""Many readers or one writer, for tasks."""

from __future__ import annotations

import sys

from semlock._core import inside
from semlock._core.errors import LockTimeoutError
from semlock._locks import mine
from semlock._locks.async_form import this_task
from semlock._locks.async_holding import SharedByTasks, is_held_by, task_here
from semlock._locks.async_lock import AsyncLock
from semlock._locks.lock import called_by_its_name
from semlock._locks.readers import ReaderWait, readers_leaving
from semlock._locks.shared import SharedLock
from semlock._waiting.async_waiter import waiter_here
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from semlock._locks.lock import Lock
    from semlock._waiting.async_waiter import AsyncWaiter
    from semlock._waiting.steps import Steps

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
