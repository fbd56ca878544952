"""filelock's locks for tasks.

They wait in the event loop by events.  No executor is needed: ``executor`` and ``run_in_executor``
serve a subclass with a backend of its own, and ``loop`` is accepted.
"""

from __future__ import annotations

from semlock._core import inside
from semlock._core.errors import (
    LockCancelledError,
    LockDeadlockError,
    LockPathError,
    LockTimeoutError,
)
from semlock._filelock.aio_base import AsyncAcquireReturnProxy, BaseAsyncFileLock
from semlock._filelock.errors import Timeout
from semlock._filelock.held import HeldBySemlock, os_error
from semlock._filelock.native import UnixFileLock, options_of, refuse_directory
from semlock._filelock.reporting import debug
from semlock._filelock.soft import SoftFileLock, SoftLock
from semlock._locks.async_lock import AsyncFileForm

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._filelock.context import Context


class _AsyncHeld(BaseAsyncFileLock, HeldBySemlock):
    """A lock for tasks whose backend is one of semlock's."""

    _ends_with_context = False

    async def _obtain_async(
        self,
        context: Context,
        limit: float,
        blocking: bool,
        interval: float,
        cancel_check: Callable[[], bool] | None,
    ) -> None:
        kind = type(self)
        if kind._acquire is not HeldBySemlock._acquire:  # noqa: SLF001 - its subclasses
            await super()._obtain_async(context, limit, blocking, interval, cancel_check)
            return
        try:
            inner = self._inner(context)
            self._before_try(context, inner)
            if not blocking or limit == 0:
                if not inner.try_acquire():
                    debug("Failed to immediately acquire lock %s on %s", self)
                    raise Timeout(context.lock_file, self._unseen_holder(context))
            else:
                if cancel_check is not None:
                    inside.cancel_by(inner, cancel_check, interval)
                try:
                    await inner.acquire(None if limit < 0 else limit)
                finally:
                    if cancel_check is not None:
                        inside.cancel_by(inner, None, interval)
            self._won(context, inner)
        except LockTimeoutError as error:
            debug("Timeout on acquiring lock %s on %s", self)
            self._refuse(context, error)
        except LockCancelledError as error:
            debug("Cancellation requested for lock %s on %s", self)
            self._refuse(context, error)
        except LockDeadlockError as error:
            if limit < 0:
                raise RuntimeError(
                    f"Deadlock: lock '{context.lock_file}' is already held by another lock object "
                    "of this task. One object for both, as is_singleton=True gives, can be "
                    "acquired again"
                ) from error
            await super()._obtain_async(context, limit, blocking, interval, cancel_check)
        except LockPathError as error:
            raise os_error(error, context.lock_file) from None

    async def _release_async(self) -> None:
        if type(self)._release is HeldBySemlock._release:  # noqa: SLF001 - its subclasses
            self._release()
        else:
            await super()._release_async()


class _AsyncSoftLock(AsyncFileForm, SoftLock):  # type: ignore[misc]  # as AsyncLock
    """The lock of a soft one, for tasks."""

    __slots__ = ("_holder",)


class AsyncSoftFileLock(_AsyncHeld, SoftFileLock):
    """``SoftFileLock`` for tasks."""

    _inner_kind = _AsyncSoftLock


class AsyncUnixFileLock(_AsyncHeld, UnixFileLock):
    """``FileLock`` for tasks."""

    def _new_inner(self, context: Context, path: str) -> Any:
        from semlock._locks.async_kernel import AsyncKernelLock  # noqa: PLC0415

        refuse_directory(path)
        return AsyncKernelLock(path, **options_of(context))

    async def _obtain_async(
        self,
        context: Context,
        limit: float,
        blocking: bool,
        interval: float,
        cancel_check: Callable[[], bool] | None,
    ) -> None:
        try:
            await super()._obtain_async(context, limit, blocking, interval, cancel_check)
        except OSError as error:
            if not self._may_become_soft(error):
                raise
            self._become_soft(context, AsyncSoftFileLock)
            await self._obtain_async(context, limit, blocking, interval, cancel_check)


AsyncWindowsFileLock = AsyncUnixFileLock
AsyncFileLock = AsyncUnixFileLock
__all__ = [
    "AsyncAcquireReturnProxy",
    "AsyncFileLock",
    "AsyncSoftFileLock",
    "AsyncUnixFileLock",
    "AsyncWindowsFileLock",
    "BaseAsyncFileLock",
]
