"""``AsyncReadWriteLock``: filelock's lock for readers and writers, for tasks.

Its wait is SQLite's, which blocks a thread: one of an executor.  Tasks that share a lock wait for
each other in the event loop and get it in turn, also those of several event loops.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic

from semlock._filelock.read_write import ReadWriteLock
from semlock._filelock.reporting import AsyncAcquireReturnProxy, Timeout, end_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from concurrent.futures import Executor, Future
    from typing import Any, Literal, TypeAlias

    Mode: TypeAlias = Literal["read", "write"]


class Hold:
    """What one task holds: the mode, and how often it acquired by each wrapper of the lock."""

    __slots__ = ("levels", "mode")

    def __init__(self, mode: Literal["read", "write"]) -> None:
        self.mode = mode
        self.levels: dict[object, int] = {}

    def __repr__(self) -> str:
        return "a task's hold"


class _Place:
    """Where a task waits."""

    __slots__ = ("admitted", "loop", "mode", "woken")

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.loop = asyncio.get_running_loop()
        self.woken = self.loop.create_future()
        self.admitted = False

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Line:
    """Readers together or one writer; a waiting writer goes before the readers that come later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = ""
        self._inside = 0
        self._waiting: deque[_Place] = deque()
        # What each task holds that is inside.
        self.holds: dict[asyncio.Task[Any], Hold] = {}

    def _admit(self, mode: str) -> bool:
        if self._inside and not mode == self._mode == "read":
            return False
        self._mode = mode
        self._inside += 1
        return True

    async def enter(self, mode: str, seconds: float, path: str, *, blocking: bool) -> None:
        """Wait until the task may take the lock; ``seconds`` is negative for no limit."""
        with self._lock:
            if not self._waiting and self._admit(mode):
                return
            if not blocking or seconds == 0:
                raise Timeout(path)
            place = _Place(mode)
            self._waiting.append(place)
        try:
            await asyncio.wait({place.woken}, timeout=None if seconds < 0 else seconds)
        except BaseException:
            self._go_away(place)
            if place.admitted:
                self.leave()
            raise
        self._go_away(place)
        if not place.admitted:
            raise Timeout(path)

    def _go_away(self, place: _Place) -> None:
        with self._lock:
            if not place.admitted:
                self._waiting.remove(place)
                self._admit_next()

    def leave(self) -> None:
        """Let the next ones in."""
        with self._lock:
            self._inside -= 1
            self._admit_next()

    def _admit_next(self) -> None:
        while self._waiting and self._admit(self._waiting[0].mode):
            place = self._waiting.popleft()
            place.admitted = True
            try:
                place.loop.call_soon_threadsafe(place.wake)
            except RuntimeError:  # its loop is closed, and the task will never go on
                self._inside -= 1


class AsyncAcquireReadWriteReturnProxy(AsyncAcquireReturnProxy):
    """What ``await acquire_read()`` gives: a context manager that releases."""


class AsyncReadWriteLock:
    """Many readers or one writer, in the file of a SQLite database that is the lock's alone.

    The parameters are those of ``ReadWriteLock``, and:

    :param loop: accepted; the lock works in each loop that awaits it
    :param executor: where SQLite waits; by default a thread of the lock's own, until ``close()``

    A hold belongs to the task that took it, and to the object by which it did.
    """

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._lock: ReadWriteLock = ReadWriteLock(
            lock_file, timeout, blocking=blocking, is_singleton=is_singleton
        )
        if self._lock.line is None:
            self._lock.line = Line()
        self._line: Line = self._lock.line
        self._is_shared = is_singleton
        self._loop = loop
        self._owns_executor = executor is None
        self._executor = executor or ThreadPoolExecutor(1, "semlock-read-write")
        self._running: set[Future[Any]] = set()
        self._closed = False
        self._pid = os.getpid()

    @property
    def lock_file(self) -> str:
        """The path of the database."""
        return self._lock.lock_file

    @property
    def timeout(self) -> float:
        """How many seconds an acquire waits by default."""
        return self._lock.timeout

    @property
    def blocking(self) -> bool:
        """Whether an acquire waits by default."""
        return self._lock.blocking

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that was given."""
        return self._loop

    @property
    def executor(self) -> Executor:
        """Where SQLite waits."""
        return self._executor

    # ------------------------------------------------------------------ acquiring

    async def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Take the lock as a reader; ``Timeout`` when the time is over."""
        return await self._acquire("read", timeout, blocking)

    async def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncAcquireReadWriteReturnProxy:
        """Take the lock as the writer; ``Timeout`` when the time is over."""
        return await self._acquire("write", timeout, blocking)

    async def _acquire(
        self, mode: Mode, timeout: float | None, blocking: bool | None
    ) -> AsyncAcquireReadWriteReturnProxy:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError(f"{self.lock_file} can only be acquired inside an asyncio task")
        limit, blocking = self._lock.limits(timeout, blocking)
        self._refuse_if_closed()
        proxy = AsyncAcquireReadWriteReturnProxy(self)
        hold = self._hold_of(task)
        if hold is not None:
            if hold.mode != mode:
                direction = "downgrade" if mode == "read" else "upgrade"
                raise RuntimeError(
                    f"Cannot acquire {mode} lock on {self.lock_file}: already holding a "
                    f"{hold.mode} lock ({direction} not allowed)"
                )
            hold.levels[self] = hold.levels.get(self, 0) + 1
            return proxy
        end = monotonic() + limit
        await self._line.enter(mode, limit, self.lock_file, blocking=blocking)
        hold = Hold(mode)
        hold.levels[self] = 1
        self._line.holds[task] = hold
        try:
            self._refuse_if_closed()
            left = limit if limit < 0 else max(0.0, end - monotonic())
            await self._take(mode, left, hold, blocking)
        except BaseException:
            self._drop(task, hold)
            raise
        return proxy

    def _refuse_if_closed(self) -> None:
        self._lock.refuse_if_unusable()
        if self._closed:
            from sqlite3 import ProgrammingError  # noqa: PLC0415 - when it is used wrongly

            raise ProgrammingError("Cannot operate on a closed database.")

    def _hold_of(self, task: asyncio.Task[Any] | None) -> Hold | None:
        """Give what a task holds.  What a forced release of a thread has ended is dropped."""
        if task is None or (hold := self._line.holds.get(task)) is None:
            return None
        if not self._lock.is_held_by(hold):
            self._drop(task, hold)
            return None
        return hold

    def _drop(self, task: asyncio.Task[Any], hold: Hold) -> None:
        if self._line.holds.get(task) is hold:
            del self._line.holds[task]
            self._line.leave()

    async def _take(self, mode: Mode, limit: float, hold: Hold, blocking: bool) -> None:
        """Take the lock in the executor; a cancelled task waits until that has given up."""
        is_cancelled = False

        def take() -> None:
            self._lock.take(
                mode, limit, hold, blocking=blocking, is_cancelled=lambda: is_cancelled
            )

        call = self._start(take)
        try:
            await asyncio.wait({call})
            call.result()
        except asyncio.CancelledError:
            is_cancelled = True
            await end_of(call)
            if call.cancelled():  # by the executor
                raise asyncio.CancelledError from None
            if call.exception() is None:
                await self._give(hold)
            raise

    async def _give(self, hold: Hold) -> None:
        call = self._start(lambda: self._lock.give(hold))
        cancelled = await end_of(call)
        call.result()
        if cancelled is not None:
            raise cancelled

    def _start(self, function: Callable[[], object]) -> asyncio.Future[Any]:
        future = self._executor.submit(function)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return asyncio.wrap_future(future)

    # ------------------------------------------------------------------ releasing

    async def release(self, *, force: bool = False) -> None:
        """Release the lock once; with ``force`` as often as this task acquired it here."""
        if self._pid != os.getpid():
            return
        task = asyncio.current_task()
        hold = self._hold_of(task)
        if hold is None or task is None or self not in hold.levels:
            if force:
                return
            where = "by this task" if hold is None else "by this task through this wrapper"
            raise RuntimeError(
                f"Cannot release a lock on {self.lock_file} that is not held {where}"
            )
        await self._leave(task, hold, hold.levels[self] if force else 1)

    async def _leave_block(self, error: BaseException | None) -> None:
        del error
        await self.release()

    async def _leave(self, task: asyncio.Task[Any], hold: Hold, levels: int) -> None:
        if levels < hold.levels[self]:
            hold.levels[self] -= levels
            return
        if len(hold.levels) == 1 and self._lock.is_held_by(hold):
            try:
                await self._give(hold)
            finally:
                if not self._lock.is_held_by(hold):
                    self._drop(task, hold)
            return
        del hold.levels[self]
        if not hold.levels:
            self._drop(task, hold)

    async def close(self) -> None:
        """Release what was acquired by this object, by all tasks; it can't be used any more.

        An acquire that is under way ends first.
        """
        if self._pid != os.getpid() or self._closed:
            return
        self._closed = True
        closing = asyncio.ensure_future(self._close())
        cancelled = await end_of(closing)
        closing.result()
        if cancelled is not None:
            raise cancelled

    async def _close(self) -> None:
        running = [asyncio.wrap_future(future) for future in list(self._running)]
        await asyncio.gather(*running, return_exceptions=True)
        try:
            if not self._is_shared:
                await self._start(self._lock.close)
            for task, hold in list(self._line.holds.items()):
                if self in hold.levels:
                    await self._leave(task, hold, hold.levels[self])
        finally:
            if self._owns_executor:
                self._executor.shutdown()

    def __del__(self) -> None:
        if self.__dict__.get("_owns_executor") and self._pid == os.getpid():
            self._executor.shutdown(wait=False)

    # ------------------------------------------------------------------ blocks

    @asynccontextmanager
    async def read_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncGenerator[None, None]:
        """Hold the lock as a reader in an ``async with`` block."""
        async with await self.acquire_read(timeout, blocking=blocking):
            yield

    @asynccontextmanager
    async def write_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AsyncGenerator[None, None]:
        """Hold the lock as the writer in an ``async with`` block."""
        async with await self.acquire_write(timeout, blocking=blocking):
            yield
