"""filelock's locks for tasks.

They wait in the event loop by events.  No executor is needed: ``executor`` and ``run_in_executor``
serve a subclass with a backend of its own, and ``loop`` is accepted.
"""

from __future__ import annotations

import sys
from time import monotonic

from semlock._filelock.aio_base import BaseAsyncFileLock
from semlock._filelock.held import WAIT_ENDED, HeldBySemlock
from semlock._filelock.native import NativeFileLock, UnixFileLock, WindowsFileLock, options_of
from semlock._filelock.soft import SoftFileLock, SoftLock
from semlock._locks.async_form import AsyncFileForm

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._filelock.making import Wait
    from semlock._filelock.said import Context


class _AsyncHeld(BaseAsyncFileLock, HeldBySemlock):
    """A lock for tasks whose backend is one of semlock's."""

    _ends_with_context = False

    async def _obtain_async(self, context: Context, wait: Wait) -> None:
        if self._has_own_backend():
            await super()._obtain_async(context, wait)
            return
        try:
            inner = self._try_or_prepare(context, wait)
            if inner is not None:
                try:
                    await inner.acquire(None if wait.limit < 0 else wait.limit)
                finally:
                    self._stop_asking(inner, wait)
                self._won(context, inner)
        except WAIT_ENDED as error:
            self._explain(context, error, wait)
            await super()._obtain_async(context, wait)

    def _unit(self) -> str:
        return "lock object of this task"

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


class _AsyncNative(_AsyncHeld, NativeFileLock):
    """The kernel's lock for tasks."""

    def _new_inner(self, context: Context, path: str) -> Any:
        from semlock._locks.async_kernel import AsyncKernelLock  # noqa: PLC0415

        self._refuse_to_lock(path)
        return AsyncKernelLock(path, **options_of(context))

    async def _obtain_async(self, context: Context, wait: Wait) -> None:
        began = monotonic()
        try:
            await super()._obtain_async(context, wait)
        except OSError as error:
            self._become_soft(context, wait, error, began, AsyncSoftFileLock)
            await self._obtain_async(context, wait)


class AsyncUnixFileLock(_AsyncNative, UnixFileLock):
    """``UnixFileLock`` for tasks."""


class AsyncWindowsFileLock(_AsyncNative, WindowsFileLock):
    """``WindowsFileLock`` for tasks."""


if sys.platform == "win32":
    AsyncFileLock = AsyncWindowsFileLock
else:
    AsyncFileLock = AsyncUnixFileLock
