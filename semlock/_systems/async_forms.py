"""The lock systems' forms for tasks."""

from __future__ import annotations

import sys

from semlock import feature, sema, semats, sidecar, task
from semlock._core.options import checked_timeout
from semlock._locks.async_form import AsyncFileForm
from semlock._locks.lock import called_by_its_name
from semlock._systems.system_lock import SystemLock
from semlock._systems.task_reclaim import checked_allow
from semlock._waiting.sleeping import crowded
from semlock._waiting.steps import run_async

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from typing import Any

    from semlock._systems.task_records import TaskInfo

_frame = sys._getframe


class AsyncSystemLock(AsyncFileForm, SystemLock):  # type: ignore[misc]  # it refuses what threads do
    """``SystemLock`` for tasks."""

    __slots__ = ("_holder",)


class SemaAsyncSemaphore(AsyncFileForm, sema.Semaphore):  # type: ignore[misc]
    """``sema.Semaphore`` for tasks: ``async with``; the options are the same."""

    __slots__ = ("_holder",)


class SematsAsyncSemaphore(AsyncFileForm, semats.Semaphore):  # type: ignore[misc]
    """``semats.Semaphore`` for tasks: ``async with``; the options are the same."""

    __slots__ = ("_holder",)

    def release(self, *, force: bool = False) -> None:
        """Release the lock; with ``force``, remove it also if another process holds it."""
        semats.Semaphore.release(self, force=force)
        if crowded:
            self._released()


class AsyncFeatureLock(AsyncFileForm, feature.FeatureLock):  # type: ignore[misc]
    """``FeatureLock`` for tasks: ``async with``; the options are the same."""

    __slots__ = ("_holder",)


class AsyncSidecarLock(AsyncFileForm, sidecar.SidecarLock):  # type: ignore[misc]
    """``SidecarLock`` for tasks: ``async with``; the callbacks may be coroutine functions."""

    __slots__ = ("_holder",)


class AsyncTaskLock(AsyncFileForm, task.TaskLock):  # type: ignore[misc]
    """``TaskLock`` for tasks: ``async with``; the options are the same."""

    __slots__ = ("_holder",)

    def reclaim(  # type: ignore[override]  # this one is awaited
        self, *, allow: str | Collection[str] = (), timeout: float | None = 0.0
    ) -> Coroutine[Any, Any, TaskInfo]:
        """Take the lock from its holder if there is a reason, as ``TaskLock.reclaim`` does."""
        limit = None if timeout is None else checked_timeout(timeout)
        steps = self._reclaiming(checked_allow(allow), limit, _frame(1))
        return run_async(steps, (self,))


def _maker(module: Any, kind: type[AsyncFileForm]) -> Callable[..., Any]:
    """Give what makes a system's lock for tasks from the path of its file."""
    return lambda path, **options: module.SYSTEM.lock(path, kind=kind, **options)


sema_at = _maker(sema, SemaAsyncSemaphore)
semats_at = _maker(semats, SematsAsyncSemaphore)
feature_at = _maker(feature, AsyncFeatureLock)
sidecar_at = _maker(sidecar, AsyncSidecarLock)
task_at = _maker(task, AsyncTaskLock)

# Names as users write them, in tracebacks.
for _module, _name, _kind in (
    (sema, "AsyncSemaphore", SemaAsyncSemaphore),
    (semats, "AsyncSemaphore", SematsAsyncSemaphore),
    (feature, "AsyncFeatureLock", AsyncFeatureLock),
    (sidecar, "AsyncSidecarLock", AsyncSidecarLock),
    (task, "AsyncTaskLock", AsyncTaskLock),
):
    _kind.__module__, _kind.__qualname__, _kind.__name__ = _module.__name__, _name, _name
    called_by_its_name(_kind)
    setattr(_module, _name, _kind)
del _module, _name, _kind
