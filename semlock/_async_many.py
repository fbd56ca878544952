"""Many locks, slots, and readers with a writer, for tasks: what they do is in the sync forms.

What differs is who waits and who holds.  A task holds, and not its thread; and whatever is
won while a task sleeps was won by another one, so a task that is cancelled in its sleep has
nothing to give back but its place.
"""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic

from semlock import _explain, _native
from semlock._async import AsyncLock, _this_task
from semlock._engine import _OWN, _checked_timeout
from semlock._errors import LockDeadlockError, LockTimeoutError
from semlock._hub import AsyncWaiter, LoopWait, hub_here
from semlock._many import AllAcquired, _AnyOf, _distinct, _try_any
from semlock._notice import notice_of
from semlock._shared import (
    SharedLock,
    _reading,
    names_of_readers,
    reader_at,
    reader_left,
    wait_for_readers,
)
from semlock._slots import SlotLock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager
    from types import FrameType, TracebackType
    from typing import Any, NoReturn, ParamSpec, TypeVar
    from weakref import ref

    from typing_extensions import Self

    from semlock._engine import Durability
    from semlock._errors import LockLostError
    from semlock._hub import Hub
    from semlock._lock import Lock
    from semlock._notice import Notice
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath

    P = ParamSpec("P")
    T = TypeVar("T")

_frame = sys._getframe


# ---------------------------------------------------------------------------- who waits


class _Ears:
    """What a waiter asks of its hub, and what it was told last."""

    __slots__ = ("_hub", "said")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.said = _native.TIME

    async def hear(self, wait: _native.Wait, until: int | None, *, news: bool = False) -> int:
        self.said = await self._hub.hear(wait, until, news=news)
        return self.said

    async def rest(self, seconds: float) -> None:
        await self._hub.rest(seconds)


class _ManyWaiter(AsyncWaiter):
    """One task's wait of which it matters what the core said."""

    __slots__ = ("_ears",)

    def __init__(
        self,
        hub: Hub,
        timeout: float | None,
        wait: LoopWait,
        about: str,
        notice: Notice | None = None,
    ) -> None:
        self._ears = ears = _Ears(hub)
        super().__init__(ears, timeout, wait=wait, notice=notice, about=about)  # type: ignore[arg-type]
        # Whether it stands in a queue is its owner's business: no news but what it can act on.
        self._stands = True

    async def pause_async(self) -> bool:
        """Wait until something may have changed; ``False`` if the time is over."""
        self._ears.said = _native.TIME
        goes_on = await super().pause_async()
        self.said = self._ears.said
        return goes_on


# ---------------------------------------------------------------------------- who holds


def _task() -> ref[Any]:
    task = _this_task()
    if task is None:
        raise RuntimeError("a task holds this kind of lock, and no task runs here")
    return task


def _is_mine(lock: Any) -> bool:
    """Tell whether this very task holds a lock."""
    if not isinstance(lock, AsyncLock) or not lock.held or lock._holder is None:
        return False
    serial, task = lock._holder
    return serial == lock._native.serial and task == _this_task()


def _deadlock_error(holder: Any, frame: FrameType) -> LockDeadlockError:
    return LockDeadlockError(
        f"{holder.path} is held by this very task, which would wait for itself for ever: it "
        f"acquired the lock at {_explain.where(holder._place)} and would wait for it at "
        f"{_explain.where((frame.f_code, frame.f_lasti))}. Release it first",
        path=holder.path,
    )


def _limit(timeout: float | None) -> float | None:
    return timeout if timeout is None else _checked_timeout(timeout)


def _serials(locks: Iterable[Any]) -> list[int]:
    return [lock._native.serial for lock in locks]


def _undo(locks: list[Any], before: list[int]) -> None:
    for lock, serial in zip(locks, before, strict=True):
        lock._undo(serial)


class _Holding:
    """What an acquisition gives: a context manager that only releases.

    It knows whose the acquisition is, which need not be the task that leaves the block: some
    event loops' timeouts run what they guard in a task of its own.
    """

    __slots__ = ("_lock", "_me")

    def __init__(self, lock: Any, me: object) -> None:
        self._lock = lock
        self._me = me

    async def __aenter__(self) -> Any:
        return self._lock

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock._leave(self._me, kind, error, traceback)


class _Entering:
    """A context manager that acquires when it is entered, for the task that enters it."""

    __slots__ = ("_limit", "_lock", "_take")

    def __init__(self, lock: Any, take: Callable[..., Any], limit: float | None) -> None:
        self._lock = lock
        self._take = take
        self._limit = limit

    def __aenter__(self) -> Any:
        return self._take(self._limit, _frame(1), entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock._leave(_this_task(), kind, error, traceback)


def _decorate(lock: Any, function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    import functools  # noqa: PLC0415 - only for those who decorate
    import inspect  # noqa: PLC0415

    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{function.__qualname__} is no coroutine function, so it can't wait for the lock: "
            "use the form of the lock that is for threads"
        )

    @functools.wraps(function)
    async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
        async with lock:
            return await function(*args, **kwargs)

    return locked


def _refuse_enter(lock: object) -> NoReturn:
    raise TypeError(f"{lock!r} is for tasks: use it with `async with`")


# ---------------------------------------------------------------------------- slots


class AsyncSlotLock(SlotLock):
    """``SlotLock`` for tasks: at most so many holders at a time, each of them a task.

    :path:   where the slots are: slot 3 is the lock file ``PATH.3``
    :slots:  how many there are

    The other parameters are those of ``AsyncLock``.  It shares the slots with ``SlotLock``.
    One object serves many tasks, each of which holds one slot at most and lets go of it
    itself, or by the manager that ``await acquire()`` gave.
    """

    __slots__ = ("_holders",)

    def __init__(
        self,
        path: StrPath,
        slots: int,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        fair: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[AsyncSlotLock, LockLostError], object] | None = None,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        # Each task's slot, and which win made it so.
        self._holders: dict[object, tuple[int, int]] = {}
        super().__init__(
            path,
            slots,
            tag=tag,
            timeout=timeout,
            policy=policy,
            durability=durability,
            mode=mode,
            fair=fair,
            heartbeat=heartbeat,
            on_lost=on_lost,  # type: ignore[arg-type]  # called with this very object
            on_wait=on_wait,
        )

    def acquire(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = _OWN
    ) -> Coroutine[Any, Any, AbstractAsyncContextManager[Self]]:
        """Take a slot, waiting for it; ``LockTimeoutError`` when the time is over."""
        limit = self.timeout if timeout is _OWN else _limit(timeout)
        return self._take_async(limit, _frame(1))

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._take_async(self.timeout, _frame(1), entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(_this_task(), kind, error, traceback)

    def __enter__(self) -> NoReturn:
        _refuse_enter(self)

    async def _take_async(
        self, timeout: float | None, frame: FrameType, *, entered: bool = False
    ) -> Any:
        me = _task()
        mine = self._mine(me)
        if mine is not None:
            raise _deadlock_error(mine, frame)
        result = self if entered else _Holding(self, me)
        head = self._head._native
        asleep = False
        before = self._serials()
        try:
            if not _native.must_make_way(head) and self._try_all(frame, None):
                return result
            locks = self._locks
            if timeout == 0:
                raise _explain.timeout_error(locks[self._last], 0.0)  # noqa: TRY301 - of the try
            self._lay_out()
            hub = hub_here()
            wait = LoopWait(hub, [lock._native for lock in locks], head, locks[0]._record)
            notice = notice_of(self._head, locks[self._last].status)
            waiter = _ManyWaiter(hub, timeout, wait, self.path, notice)
            try:
                while True:
                    asleep = True
                    goes_on = await waiter.pause_async()
                    before = self._serials()
                    asleep = False
                    if not goes_on:
                        raise _explain.timeout_error(locks[waiter.which], waiter.waited)
                    if self._answer(waiter, frame):
                        break
            finally:
                waiter.end()
            _native.burst_began(head)
        except BaseException:
            if not asleep:
                self._undo(before)
                self._tidy(me)
            raise
        return result

    def _won(self, index: int) -> None:
        super()._won(index)
        self._holders[_task()] = (index, self._locks[index]._native.serial)

    def _mine(self, me: object = None) -> Lock | None:
        index, serial = self._holders.get(_this_task() if me is None else me, (0, -1))
        lock = self._locks[index]
        return lock if lock._native.held and lock._native.serial == serial else None

    def release(self) -> None:
        """Let go of this task's slot; the errors are those of ``AsyncLock.release``."""
        try:
            super().release()
        finally:
            self._tidy(_this_task())

    def _leave(
        self,
        me: object,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super()._leave(me, kind, error, traceback)
        finally:
            self._tidy(me)

    def _tidy(self, me: object) -> None:
        if self._mine(me) is None:
            self._holders.pop(me, None)

    def __call__(  # it decorates what SlotLock refuses
        self, function: Callable[P, Awaitable[T]]
    ) -> Callable[P, Awaitable[T]]:
        """Decorate a coroutine function, which then runs while a slot is held."""
        return _decorate(self, function)


# ---------------------------------------------------------------------------- readers, a writer


class AsyncSharedLock(SharedLock):
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
        return _Entering(self, self._take_async, self._limit(timeout))

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._take_async(self.timeout, _frame(1), entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(_this_task(), kind, error, traceback)

    def __enter__(self) -> NoReturn:
        _refuse_enter(self)

    def try_acquire(self) -> bool:
        """Take the lock for oneself if nobody has it in any way; ``False`` if somebody has."""
        frame = _frame(1)
        me = _task()
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
        me = _task()
        self._refuse_to_wait_for_oneself(frame)
        result = self if entered else _Holding(self, me)
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
        hub = hub_here()
        wait = LoopWait(hub, (reader._native,))
        notice = notice_of(self._writer, reader.status)
        waiter = _ManyWaiter(hub, timeout, wait, self._directory, notice)
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
        return _Entering(self, self._share_async, self._limit(timeout))

    async def _share_async(
        self, timeout: float | None, frame: FrameType, *, entered: bool = False
    ) -> Any:
        me = _task()
        self._refuse_to_wait_for_oneself(frame)
        result = self if entered else _Holding(self, me)
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
        hub = hub_here()
        wait = LoopWait(hub, (writer._native,), writer._native, reader._record)
        waiter = _ManyWaiter(hub, timeout, wait, self.path, notice_of(writer))
        try:
            while True:
                in_time = await waiter.pause_async()
                if self._answer(reader, waiter, frame, in_time=in_time):
                    return
        finally:
            waiter.end()

    # ------------------------------------------------------------------ both

    def _me(self) -> Any:
        return _task()

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = _this_task()
        return None if me is None else super()._mine(me)

    def _writes(self, me: object) -> bool:
        native, holder = self._writer._native, self._writer._holder
        return bool(native.held) and holder == (native.serial, me)

    def _refuse_to_wait_for_oneself(self, frame: FrameType) -> None:
        mine = self._mine() or _reading.get((_this_task(), self.path))
        if mine is not None and mine._native.held:
            raise _deadlock_error(mine, frame)

    def __call__(  # it decorates what SharedLock refuses
        self, function: Callable[P, Awaitable[T]]
    ) -> Callable[P, Awaitable[T]]:
        """Decorate a coroutine function, which then runs as the writer."""
        return _decorate(self, function)


# ---------------------------------------------------------------------------- any of them


def acquire_any_async(
    locks: Iterable[AsyncLock], timeout: float | None = None
) -> Coroutine[Any, Any, AsyncLock]:
    """Take whichever of some locks is free first, and wait for it: ``acquire_any`` for tasks.

    Gives the lock that was taken.  ``LockTimeoutError`` when the time is over.
    """
    return _take_any(_distinct(locks, AsyncLock), _limit(timeout), _frame(1))


async def _take_any(locks: list[Any], timeout: float | None, frame: FrameType) -> AsyncLock:
    asleep = False
    before = _serials(locks)
    try:
        won: AsyncLock | None = _try_any(locks, timeout, frame)
        if won is None:
            hub = hub_here()
            wait = LoopWait(hub, [lock._native for lock in locks])
            waiter = _ManyWaiter(hub, timeout, wait, locks[0].path)
            any_of = _AsyncAnyOf(locks, wait, waiter)
            try:
                while (won := any_of.next(frame)) is None:
                    asleep = True
                    goes_on = await waiter.pause_async()
                    before = _serials(locks)
                    asleep = False
                    if not goes_on:
                        raise _explain.timeout_error(locks[waiter.which], waiter.waited)
            finally:
                waiter.end()
        won._won_by(frame)
    except BaseException:
        if not asleep:
            _undo(locks, before)
        raise
    return won


class _AsyncAnyOf(_AnyOf):
    """What a task's wait for any of some locks knows."""

    __slots__ = ()

    _is_mine = staticmethod(_is_mine)
    _deadlock_error = staticmethod(_deadlock_error)


# ---------------------------------------------------------------------------- all of them


class AsyncAllAcquired(AllAcquired):
    """What ``await acquire_all_async()`` gives: a context manager that releases all of them."""

    __slots__ = ()

    _is_mine = staticmethod(_is_mine)

    async def __aenter__(self) -> tuple[Any, ...]:
        return self.locks

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __enter__(self) -> NoReturn:
        _refuse_enter(self)

    def _try_rest(self, frame: FrameType) -> Any:
        before = _serials(self._locks)
        missing = super()._try_rest(frame)
        for lock, serial in zip(self._locks, before, strict=True):
            # Nothing else of this thread runs meanwhile, so these were won just now.
            if lock._native.serial != serial and lock._native.owner == _native.this_thread():
                lock._won_by(frame)
        return missing

    async def _take_async(self, timeout: float | None, frame: FrameType) -> None:
        asleep = False
        before = _serials(self._locks)
        steps = self._steps(timeout, frame)
        try:
            step = next(steps, None)
            while step is not None:
                missing, limit = step
                late = None
                asleep = True
                try:
                    await missing._win(limit, frame, None)
                except LockTimeoutError as error:
                    late = error
                before = _serials(self._locks)
                asleep = False
                step = next(steps, None) if late is None else steps.throw(late)
        except BaseException:
            self._let_go()
            if not asleep:
                _undo(self._locks, before)
            raise


def acquire_all_async(
    locks: Iterable[AsyncLock], timeout: float | None = None
) -> Coroutine[Any, Any, AsyncAllAcquired]:
    """Take all of some locks or none, waiting for them: ``acquire_all`` for tasks.

    ``async with await acquire_all_async(locks):`` releases them.  ``LockTimeoutError`` when
    the time is over; then none is held.
    """
    return _take_all(_distinct(locks, AsyncLock), _limit(timeout), _frame(1))


async def _take_all(
    locks: list[Any], timeout: float | None, frame: FrameType
) -> AsyncAllAcquired:
    for lock in locks:
        if _is_mine(lock):
            raise _deadlock_error(lock, frame)
    acquired = AsyncAllAcquired(locks)
    await acquired._take_async(timeout, frame)
    return acquired
