"""``BaseAsyncFileLock``: what filelock's locks for tasks have in common."""

from __future__ import annotations

import asyncio
import os
from time import monotonic

from semlock._filelock import making as opt
from semlock._filelock.base import BaseFileLock
from semlock._filelock.making import FileLockMeta
from semlock._filelock.reporting import (
    AsyncAcquireReturnProxy,
    Timeout,
    debug,
    end_of,
    raise_both,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from typing import Any, NoReturn

    from typing_extensions import Self

    from semlock._filelock.making import CloseErrorPolicy, ContextErrorPolicy
    from semlock._filelock.said import Context

_DEFAULTS = {
    **opt.DEFAULTS,
    "thread_local": False,
    "loop": None,
    "run_in_executor": True,
    "executor": None,
}


class AsyncFileLockMeta(FileLockMeta):
    """Makes locks for tasks."""

    _frames = 1  # _give below

    def _give(cls, lock_file: Any, *arguments: Any, **given: Any) -> Any:  # noqa: N805 - a metaclass
        """Make a lock object, or give the one that exists for this path."""
        thread_local = arguments[2] if len(arguments) > 2 else given.get("thread_local", False)
        if thread_local and given.get("run_in_executor", True):
            raise ValueError("run_in_executor is not supported when thread_local is True")
        return super()._give(lock_file, *arguments, **given)

    if not TYPE_CHECKING:
        __call__ = _give

    def _defaults(cls) -> dict[str, Any]:  # noqa: N805 - a metaclass
        return _DEFAULTS


class BaseAsyncFileLock(BaseFileLock, metaclass=AsyncFileLockMeta):
    """The base of all locks for tasks; ``_acquire`` and ``_release`` may be coroutine functions.

    The parameters are those of ``BaseFileLock``, and:

    :param loop: accepted; the lock works in each loop that awaits it
    :param run_in_executor: whether a backend that is no coroutine function runs in the executor
    :param executor: that executor; the loop's own by default
    """

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = opt.UNSET_MODE,
        thread_local: bool = False,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        run_in_executor: bool = True,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(
            lock_file,
            timeout,
            mode,
            thread_local,
            blocking=blocking,
            is_singleton=is_singleton,
            poll_interval=poll_interval,
            lifetime=lifetime,
            context_error_policy=context_error_policy,
            close_error_policy=close_error_policy,
            fallback_to_soft=fallback_to_soft,
            preserve_lock_file=preserve_lock_file,
            on_acquired=on_acquired,
        )
        self._gate = None
        self._loop = loop
        self._run_in_executor = run_in_executor
        self._executor = executor
        # Tasks that acquire or release take turns; each loop has a gate of its own.
        self._turns: tuple[object, asyncio.Lock] | None = None

    @property
    def run_in_executor(self) -> bool:
        """Whether a backend that is no coroutine function runs in the executor."""
        return self._run_in_executor

    @property
    def executor(self) -> Executor | None:
        """The executor; ``None`` for the loop's own."""
        return self._executor

    @executor.setter
    def executor(self, value: Executor | None) -> None:
        self._executor = value

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that was given."""
        return self._loop

    # ------------------------------------------------------------------ acquiring

    def _turn(self) -> asyncio.Lock:
        here = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not here:
            self._turns = here, asyncio.Lock()
        return self._turns[1]

    async def acquire(  # type: ignore[override]  # this one is awaited
        self,
        timeout: float | None = None,
        poll_interval: float | None = None,
        *,
        blocking: bool | None = None,
        cancel_check: Callable[[], bool] | None = None,
    ) -> AsyncAcquireReturnProxy:
        """Take the lock, waiting for it; ``Timeout`` when the time is over."""
        context = self._context
        wait = self._wait_of(context, timeout, poll_interval, None, blocking, cancel_check)
        proxy = AsyncAcquireReturnProxy(self)
        gate = self._turn()
        if gate.locked():
            await self._wait_for_turn(gate, wait)
        else:
            await gate.acquire()
        try:
            await self._enter_async(context, wait)
        finally:
            gate.release()
        return proxy

    async def _wait_for_turn(self, gate: asyncio.Lock, wait: opt.Wait) -> None:
        """Wait until no other task acquires or releases by this object."""
        end = monotonic() + wait.limit
        while True:
            if not wait.blocking or wait.is_cancelled():
                raise Timeout(self.lock_file)
            pause = None if wait.limit < 0 else max(0.0, end - monotonic())
            if wait.cancel_check is not None:
                pause = wait.interval if pause is None else min(wait.interval, pause)
            try:
                await asyncio.wait_for(gate.acquire(), pause)
            except (TimeoutError, asyncio.TimeoutError):
                if wait.limit >= 0 and monotonic() >= end:
                    raise Timeout(self.lock_file) from None
            else:
                if wait.limit >= 0:
                    wait.limit = max(0.0, end - monotonic())
                return

    async def _enter_async(self, context: Context, wait: opt.Wait) -> None:
        if context.lock_file_fd is not None:
            self._check_nested(context)
            context.lock_counter += 1
            return
        try:
            context.lock_counter += 1
            debug("Attempting to acquire lock %s on %s", self)
            await self._obtain_async(context, wait)
            self._holds[id(context)] = context
            debug("Lock %s acquired on %s", self)
            if self._on_acquired is not None and context.lock_counter == 1:
                assert context.lock_file_fd is not None
                await self._finish(self._call(self._on_acquired, context.lock_file_fd))
        except BaseException as error:
            context.lock_counter = max(0, context.lock_counter - 1)
            if context.lock_counter == 0 and self._has_won(context):
                await self._give_back_async(context, error)
            raise

    async def _give_back_async(self, context: Context, error: BaseException) -> None:
        """Release what a failed call has won, however often its task is cancelled meanwhile."""
        try:
            await self._finish(self._call(self._release))
        except BaseException as failure:  # noqa: BLE001 - raised below
            if context.lock_file_fd is not None:
                context.lock_counter = 1
                self._holds[id(context)] = context
            if not isinstance(failure, asyncio.CancelledError):
                raise_both("lock body and release both failed", error, failure)
        if context.lock_file_fd is None:
            self._holds.pop(id(context), None)

    async def _obtain_async(self, context: Context, wait: opt.Wait) -> None:
        """Try until the lock is held: for backends that have no events."""
        end = monotonic() + wait.limit
        if parent := os.path.dirname(context.lock_file):
            os.makedirs(parent, exist_ok=True)
        while True:
            await self._finish(self._call(self._acquire))
            if context.lock_file_fd is not None:
                return
            left = end - monotonic()
            if self._gives_up(wait, in_time=wait.limit < 0 or left > 0):
                raise Timeout(context.lock_file)
            debug("Lock %s not acquired on %s, waiting ...", self)
            await asyncio.sleep(wait.interval if wait.limit < 0 else min(wait.interval, left))

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of the backend, in the executor if it is no coroutine function."""
        if asyncio.iscoroutinefunction(function):
            return await function(*arguments)
        if not self._run_in_executor or self._is_thread_local:
            result = function(*arguments)
            return await result if hasattr(result, "__await__") else result
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)

    async def _finish(self, steps: Any) -> Any:
        """Let a call of the backend end before a cancellation: what it wins must not be lost."""
        task = asyncio.ensure_future(steps)
        cancelled = await end_of(task)
        if cancelled is None:
            return task.result()
        error = None if task.cancelled() else task.exception()
        if error is None:
            raise cancelled
        before = error.__context__
        if self._context_error_policy == "group":
            if type(before) is type(error) and before.args == error.args:
                error.__context__ = None  # a group as the error itself, with the same errors
            raise_both("a cancellation and the call that it met both failed", cancelled, error)
        # The error is raised in the context of the cancellation, and that in the error's own.
        cancelled.__context__, error.__context__ = before, cancelled
        raise error

    # ------------------------------------------------------------------ releasing

    async def release(self, force: bool = False) -> None:  # type: ignore[override]
        """Release the lock once; with ``force`` as often as it is held."""
        context = self._context
        if context.lock_file_fd is None:
            return
        async with self._turn():
            if context.lock_file_fd is None or self._pid != os.getpid():
                return
            if context.lock_counter > 1 and not force:
                context.lock_counter -= 1
                return
            debug("Attempting to release lock %s on %s", self)
            try:
                await self._release_async()
            finally:
                self._left(context)
            debug("Lock %s released on %s", self)

    async def _release_async(self) -> None:
        await self._finish(self._call(self._release))

    async def _leave_block(self, error: BaseException | None) -> None:
        try:
            await self.release()
        except BaseException as failure:
            if error is None or self._context_error_policy == "chain":
                raise
            raise_both("lock body and release both failed", error, failure)

    def _refuse_with(self) -> NoReturn:
        raise NotImplementedError(
            "Use `async with`: acquire and release of this lock are awaited"
        )

    def __enter__(self) -> NoReturn:
        self._refuse_with()

    def __exit__(self, *_: object) -> NoReturn:
        self._refuse_with()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        await self._leave_block(error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a coroutine function, which then runs under the lock."""
        from functools import wraps  # noqa: PLC0415 - for those who decorate

        @wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return locked

    def _end_all(self) -> None:
        if asyncio.iscoroutinefunction(self._release):
            return  # only its own loop could run that
        for context in list(self._holds.values()):
            if self._is_thread_local:
                self._state.context = context
            self._release()
            self._left(context)
