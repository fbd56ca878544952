"""Steps: each way to acquire is one generator, which a thread or a task of an event loop drives.

The generator tries, and yields a ``Sleep`` when it has to wait: an object that knows what to
wait for, and how a thread and a task do that.  What it gives is sent back; what goes wrong in
it, an interrupt or the end of a cancelled task, is raised where the generator stands.
"""

from __future__ import annotations

import time

from semlock._core import capi, inside

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence
    from typing import Any, Protocol, TypeAlias, TypeVar

    T = TypeVar("T")

    class Sleep(Protocol):
        """What a generator yields."""

        def pause(self) -> Any:
            """Sleep in this thread."""

        def pause_async(self) -> Awaitable[Any]:
            """Sleep in the event loop, which goes on."""

    Steps: TypeAlias = Generator[Sleep, Any, T]

# How long one who asks once waits to see whether those who are first use their turn.
_INSIST = 0.25
_FIRST_INSIST = 0.0005
_LONGEST_INSIST = 0.01


def run(steps: Steps[T]) -> T:
    """Carry out all steps in this thread."""
    try:
        try:
            sleep = next(steps)
            while True:
                try:
                    answer = sleep.pause()
                except BaseException as error:  # noqa: BLE001, PERF203 - raised where it belongs
                    sleep = steps.throw(error)
                else:
                    sleep = steps.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            # A traceback that is kept would keep a suspended generator, and what it has.
            steps.close()
    except BaseException:
        steps.close()  # an interrupt may have struck before the other one had begun
        raise


async def run_async(steps: Steps[Any], wins: Wins, result: Any = None) -> Any:
    """Carry out all steps in the event loop.

    It gives ``result`` where there is one, which was made before: behind the win nothing may
    come in which a signal could still strike.  Else it gives what the generator does.
    """
    try:
        try:
            wins.awake()
            sleep = next(steps)
            while True:
                wins.asleep()
                try:
                    answer = await sleep.pause_async()
                except BaseException as error:  # noqa: BLE001 - raised where it belongs
                    wins.awake()
                    sleep = steps.throw(error)
                else:
                    wins.awake()
                    sleep = steps.send(answer)
        except StopIteration as end:
            return end.value if result is None else result
        finally:
            steps.close()
    except BaseException:
        steps.close()
        wins.give_back()
        raise


class Wins:
    """What a task's call has won so far, to be given back if the call fails.

    Whatever is won while the task sleeps was won by another one.  So one that is cancelled in
    its sleep has nothing to give back but its place in the queue.
    """

    __slots__ = ("_before", "_locks")

    def __init__(self, locks: Sequence[Any]) -> None:
        self._locks = locks
        self._before: list[int] | None = None

    def asleep(self) -> None:
        """Take note that the task is about to sleep."""
        self._before = None

    def awake(self) -> None:
        """Take note that it goes on, and that all wins from now on are its own."""
        self._before = [inside.native(lock).serial for lock in self._locks]

    def give_back(self) -> None:
        """Let go of what was won since then."""
        if self._before is not None:
            for lock, serial in zip(self._locks, self._before, strict=True):
                inside.undo(lock, serial)


class Pause:
    """So many seconds, whatever happens."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def pause(self) -> bool:
        """Sleep in this thread."""
        time.sleep(self.seconds)
        return False

    async def pause_async(self) -> bool:
        """Sleep in the event loop, which goes on."""
        from semlock._waiting.hub import hub_here  # noqa: PLC0415 - those who get here have it

        await hub_here().rest(self.seconds)
        return False


class Call:
    """A function of the caller's; its result is sent back.  For tasks it may be awaited."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function = function
        self.arguments = arguments

    def pause(self) -> object:
        """Call it in this thread."""
        result = self.function(*self.arguments)
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()  # or Python would complain that it was never awaited
            raise TypeError(
                f"{self.function!r} must be awaited: use the form of the call that ends in _async"
            )
        return result

    async def pause_async(self) -> object:
        """Call it in the event loop."""
        return await as_awaited(self.function(*self.arguments))


async def as_awaited(result: Awaitable[T] | T) -> T:
    """Wait for what a function gave, if that is something to be awaited."""
    return await result if hasattr(result, "__await__") else result


def insisting(attempt: Callable[[], int]) -> Steps[int]:
    """Try, and again while the lock is free and others are first, who may be stopped.

    One who asks once must not fail because of them.  It ends when they use their turn, or when
    the core has seen that they don't, which takes it ``SEMLOCK_STOPPED_NS``.
    """
    pause = _FIRST_INSIST
    end = time.monotonic() + _INSIST
    while (outcome := attempt()) == capi.TURN and time.monotonic() < end:
        yield Pause(pause)
        pause = min(2 * pause, _LONGEST_INSIST)
    return outcome
