"""What ``acquire()`` gives a task: to be awaited, or entered at once with ``async with``."""

from __future__ import annotations

from collections.abc import Coroutine

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Any, Generic, TypeVar

    T_co = TypeVar("T_co", covariant=True)

    class _Base(Coroutine[Any, Any, AbstractAsyncContextManager[T_co]], Generic[T_co]):
        """The types, which nothing needs at run time."""

else:

    class _Base(Coroutine):
        """The same without types: subscribing one would import ``typing``."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls


class Acquiring(_Base["T_co"]):
    """A coroutine that is a context manager as well.

    ``await lock.acquire(timeout=1)`` gives a context manager that releases;
    ``async with lock.acquire(timeout=1):`` acquires, and releases at the end.
    """

    __slots__ = ("_coroutine", "_entered")

    def __init__(
        self, coroutine: Coroutine[Any, Any, AbstractAsyncContextManager[T_co]]
    ) -> None:
        self._coroutine = coroutine
        self._entered: AbstractAsyncContextManager[T_co] | None = None

    def __await__(self) -> Generator[Any, Any, AbstractAsyncContextManager[T_co]]:
        return self._coroutine.__await__()

    # A task that is made of it drives it by these.

    def send(self, value: Any) -> Any:
        """Go on, as a coroutine does."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Go on with an exception, as a coroutine does."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End, as a coroutine does."""
        self._coroutine.close()

    async def __aenter__(self) -> T_co:
        self._entered = await self._coroutine
        return await self._entered.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._entered is not None
        return await self._entered.__aexit__(kind, error, traceback)
