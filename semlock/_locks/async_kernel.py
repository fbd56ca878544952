"""``semlock.AsyncKernelLock``: the kernel's lock for tasks."""

from __future__ import annotations

from semlock._core import capi
from semlock._locks.async_form import AsyncFileForm
from semlock._locks.kernel import KernelLock
from semlock._locks.lock import called_by_its_name
from semlock._waiting.hub import released_here

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from semlock._core.options import KernelOptions
    from semlock._core.status import StrPath


class AsyncKernelLock(AsyncFileForm, KernelLock):  # type: ignore[misc]  # it refuses what KernelLock does
    """``KernelLock`` for tasks: the parameters are the same.

    Use it with ``async with``, as a decorator of coroutine functions, or by its methods, as
    ``AsyncLock``.  It works in asyncio's loops and in trio's.
    """

    __slots__ = ("_holder",)

    if TYPE_CHECKING:

        def __init__(
            self, path: StrPath, *, shared: bool = False, **options: Unpack[KernelOptions]
        ) -> None: ...

    def _line_name(self) -> tuple[object, ...] | None:
        # Readers and writers stand in lines of their own: the first of a line asks the kernel for
        # all, and for one kind of lock.
        name = super()._line_name()
        return name if name is None else (*name, self._native.kernel, self._native.lent)

    def _released(self) -> None:
        released_here(
            *(
                (self.path, turns, None, kernel, self._native.lent)
                for turns in (capi.NO_TURNS, capi.TAKE_TURNS, capi.FAIR)
                for kernel in (capi.EXCLUSIVE, capi.SHARED)
            )
        )


called_by_its_name(AsyncKernelLock)
