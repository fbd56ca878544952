"""What an acquire returns, what is logged, and errors that are raised together."""

from __future__ import annotations

from semlock._core import registry
from semlock._core.inside import unstruck

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import asyncio
    from typing import Any

_named: Any = None


def is_logged() -> bool:
    """Tell whether the program logs at level DEBUG, by filelock's logger."""
    global _named  # noqa: PLW0603 - there is one logger of this name
    if _named is None:
        logging = registry.imported("logging")
        if logging is None:
            return False
        _named = logging.getLogger("filelock")
    return bool(_named.isEnabledFor(10))


def debug(message: str, lock: Any) -> None:
    """Log at level DEBUG in filelock's words, if the program logs."""
    if is_logged():
        _named.debug(message, id(lock), lock.lock_file)


class AcquireReturnProxy:
    """What ``acquire()`` returns: a context manager that releases, without acquiring again."""

    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> Any:
        return self.lock

    @unstruck
    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.lock._release_in_context(error)  # noqa: SLF001 - a part of the lock


class AsyncAcquireReturnProxy:
    """What ``await acquire()`` gives: a context manager that releases."""

    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    async def __aenter__(self) -> Any:
        return self.lock

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        await self.lock._leave_block(error)  # noqa: SLF001 - a part of the lock


def raise_both(message: str, first: BaseException, second: BaseException) -> None:
    """Raise two errors together, where the interpreter has groups of them; else the second."""
    import builtins  # noqa: PLC0415 - when two things went wrong

    group: Any = getattr(builtins, "BaseExceptionGroup", None)
    if group is None:  # Python 3.10
        raise second
    if second.__context__ is first:
        second.__context__ = None
    raise group(message, [first, second]) from None


async def end_of(call: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a call has ended, however often the task is cancelled; give the first time."""
    import asyncio  # noqa: PLC0415 - its callers have it

    first: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as cancelled:  # noqa: PERF203
            first = first or cancelled
    return first
