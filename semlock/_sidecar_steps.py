"""Steps: what an acquisition asks of the world around it, in a thread or in an event loop.

The functions that a caller passes in may be coroutine functions, and a wait must not stop the
event loop.  So an acquisition is written once, as a generator of steps, and carried out here in
either of two ways.  It holds nothing while a step is under way.
"""

from __future__ import annotations

import time

from semlock import _waiting

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from typing import Any, TypeAlias, TypeVar

    T = TypeVar("T")
    Steps: TypeAlias = "Generator[Call | Pause, Any, T]"


class Alone:
    """What a lock asks of the manager that it belongs to; this one stands for none."""

    __slots__ = ()

    def join(self) -> bool:
        """Become one more holder of a lock that the manager has; ``True`` if that is done."""
        return False

    def blocks(self) -> bool:
        """Tell whether the manager holds the target by another lock file."""
        return False

    def holds(self) -> bool:
        """Tell whether the manager holds the target."""
        return False


ALONE = Alone()


class Call:
    """A function of the caller's; its result is sent back."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function = function
        self.arguments = arguments

    def carry_out(self) -> object:
        """Call it in this thread."""
        result = self.function(*self.arguments)
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()  # or Python would complain that it was never awaited
            raise TypeError(
                f"{self.function!r} must be awaited: use the form of the call that ends in _async"
            )
        return result

    async def carry_out_async(self) -> object:
        """Call it in the event loop."""
        return await as_awaited(self.function(*self.arguments))


class Pause:
    """So many seconds before the next try, or less: ``True`` if the lock is free meanwhile.

    Without the lock's structure, and in the event loop, it is always the whole time.
    """

    __slots__ = ("lock", "seconds")

    def __init__(self, seconds: float, lock: Any = None) -> None:
        self.seconds = seconds
        self.lock = lock

    def carry_out(self) -> bool:
        """Sleep in this thread."""
        if self.lock is not None:
            return _waiting.sleep_while_held(self.lock, self.seconds)
        time.sleep(self.seconds)
        return False

    async def carry_out_async(self) -> bool:
        """Sleep in the event loop, which goes on."""
        import asyncio  # noqa: PLC0415 - whoever gets here has it

        await asyncio.sleep(self.seconds)
        return False


async def as_awaited(result: Awaitable[T] | T) -> T:
    """Wait for what a function gave, if that is something to be awaited."""
    return await result if hasattr(result, "__await__") else result


def run(steps: Steps[T]) -> T:
    """Carry out all steps in this thread."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = step.carry_out()


async def run_async(steps: Steps[T]) -> T:
    """Carry out all steps in the event loop."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = await step.carry_out_async()
