"""Many readers or one writer, for tasks: what they do is in the sync form."""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic

from semlock import _native
from semlock._async import AsyncLock, _this_task, deadlock_error
from semlock._async_holding import (
    Entering,
    HeldByTasks,
    Holding,
    is_held_by,
    task_here,
)
from semlock._engine import _OWN
from semlock._errors import LockTimeoutError
from semlock._hub import waiter_here
from semlock._notice import notice_of
from semlock._shared import (
    SharedLock,
    _reading,
    names_of_readers,
    reader_at,
    reader_left,
    wait_for_readers,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import FrameType
    from typing import Any

    from typing_extensions import Self

    from semlock._engine import Durability
    from semlock._lock import Lock
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath

_frame = sys._getframe


class AsyncSharedLock(HeldByTasks, SharedLock):
    """``SharedLock`` for tasks: many of them may share it as readers, or one may write.

    :path:  the writer's lock file; readers are files in ``PATH.readers`` beside it

    The other parameters are those of ``AsyncLock``.  ``async with lock.shared():`` is for
    readers, ``async with lock:`` for the writer.  It excludes ``SharedLock`` and everybody
    else.  One object serves many tasks, each as a reader or as the writer.
    """

    __slots__ = ()

    def __init__(
        self,
        path: StrPath,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        fair: bool = False,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        self._begin(
            AsyncLock(
                path,
                tag=tag,
                timeout=timeout,
                policy=policy,
                durability=durability,
                mode=mode,
                fair=fair,
                on_wait=on_wait,
            )
        )

    # ------------------------------------------------------------------ the writer

    def acquire(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = _OWN
    ) -> Coroutine[Any, Any, AbstractAsyncContextManager[Self]]:
        """Take the lock for oneself, waiting for all others; ``LockTimeoutError`` at the end."""
        return self._take_async(self._limit(timeout), _frame(1))

    def exclusive(  # type: ignore[override]  # for async with
        self, timeout: float | None = _OWN
    ) -> AbstractAsyncContextManager[Self]:
        """Hold the lock for oneself in an ``async with`` block."""
        return Entering(self, self._take_async, self._limit(timeout))

    def try_acquire(self) -> bool:
        """Take the lock for oneself if nobody has it in any way; ``False`` if somebody has."""
        frame = _frame(1)
        me = task_here()
        self._refuse_to_wait_for_oneself(frame)
        writer = self._writer
        try:
            if not writer.try_acquire():
                return False
            writer._won_by(frame)
            wait_for_readers(writer, 0, frame)
        except BaseException as error:
            self._give_up_writing(me)
            if isinstance(error, LockTimeoutError):
                return False
            raise
        return True

    async def _take_async(
        self, timeout: float | None, frame: FrameType, *, entered: bool = False
    ) -> Any:
        me = task_here()
        self._refuse_to_wait_for_oneself(frame)
        result = self if entered else Holding(self, me)
        try:
            began = monotonic()
            await self._writer._win(timeout, frame, None)
            left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
            await self._wait_for_readers(left, frame)
        except BaseException:
            self._give_up_writing(me)
            raise
        return result

    def _give_up_writing(self, me: object) -> None:
        # It was not this task's before, so if it is now, then it was won in this call.
        if self._writes(me):
            self._writer._end(self._writer._native.endings)

    async def _wait_for_readers(self, timeout: float | None, frame: FrameType) -> None:
        began = monotonic()
        for name in names_of_readers(self._directory):
            left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
            await self._wait_for_reader(os.path.join(self._directory, name), left, frame)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    async def _wait_for_reader(
        self, path: str, timeout: float | None, frame: FrameType
    ) -> None:
        reader = reader_at(self._writer, path)
        notice = notice_of(self._writer, reader.status)
        waiter = waiter_here((reader,), timeout, self._directory, notice=notice)
        try:
            while os.path.lexists(path):  # noqa: ASYNC240 - one look, as everywhere here
                in_time = await waiter.pause_async()
                if reader_left(reader, waiter, frame, in_time=in_time):
                    break
        finally:
            waiter.end()

    # ------------------------------------------------------------------ readers

    def acquire_shared(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = _OWN
    ) -> Coroutine[Any, Any, AbstractAsyncContextManager[Self]]:
        """Take the lock as a reader, waiting for a writer; ``LockTimeoutError`` at the end."""
        return self._share_async(self._limit(timeout), _frame(1))

    def shared(  # type: ignore[override]  # for async with
        self, timeout: float | None = _OWN
    ) -> AbstractAsyncContextManager[Self]:
        """Hold the lock as a reader in an ``async with`` block."""
        return Entering(self, self._share_async, self._limit(timeout))

    async def _share_async(
        self, timeout: float | None, frame: FrameType, *, entered: bool = False
    ) -> Any:
        me = task_here()
        self._refuse_to_wait_for_oneself(frame)
        result = self if entered else Holding(self, me)
        # Nobody else tries by this reader, so it goes whatever happens in which sleep.
        reader = self._readers[me] = _reading[me, self.path] = self._new_reader()
        try:
            head = self._writer._native
            if _native.must_make_way(head) or not self._enter(reader, frame):
                await self._wait_for_writer_async(reader, timeout, frame)
                _native.burst_began(head)
        except BaseException:
            self._withdraw(reader)
            self._readers.pop(me, None)
            _reading.pop((me, self.path), None)
            raise
        return result

    async def _wait_for_writer_async(
        self, reader: Lock, timeout: float | None, frame: FrameType
    ) -> None:
        if timeout == 0:
            self._wait_for_writer(reader, timeout, frame)  # which doesn't sleep then
            return
        writer = self._writer
        waiter = waiter_here(
            (writer,),
            timeout,
            self.path,
            queue=writer,
            record=reader._record,
            notice=notice_of(writer),
        )
        try:
            while True:
                in_time = await waiter.pause_async()
                if self._answer(reader, waiter, frame, in_time=in_time):
                    return
        finally:
            waiter.end()

    # ------------------------------------------------------------------ both

    def _me(self) -> Any:
        return task_here()

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = _this_task()
        return None if me is None else super()._mine(me)

    def _writes(self, me: object) -> bool:
        return is_held_by(self._writer, me)

    def _refuse_to_wait_for_oneself(self, frame: FrameType) -> None:
        mine = self._mine() or _reading.get((_this_task(), self.path))
        if mine is not None and mine._native.held:
            raise deadlock_error(mine, frame)
