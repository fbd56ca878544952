"""Steps: each way to acquire is one generator, which a thread or a task of an event loop drives.

The generator tries, and yields a ``Sleep`` when it has to wait: an object that says what to wait
for, and how a thread and a task do that.  The result of the sleep is sent into the generator.  An
exception in the sleep, such as an interrupt or a cancellation, is raised at the ``yield``.

``cancel`` ends waits.  And a lock keeps its wait for the next one: a process that waits for a
crowded lock runs with cold caches, where each object and call of Python costs several times as much
as in a loop.  So the wait of a thread for one lock without special options is one call into the
core, by the object that was kept.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from _weakref import ref

from semlock._core import capi, explain, inside, registry, waits
from semlock._core.capi import OK, POOL, now_ns
from semlock._waiting import INFO, notice_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
    from typing import Any, Protocol, TypeAlias, TypeVar

    from semlock._core.capi import Record
    from semlock._core.compiled import semlock_lock
    from semlock._core.status import LockStatus
    from semlock._waiting import Notice

    T = TypeVar("T")

    class Sleep(Protocol):
        """What a generator yields."""

        def pause(self) -> Any:
            """Sleep in this thread."""

        def pause_async(self) -> Awaitable[Any]:
            """Sleep in the event loop, which goes on."""

    Steps: TypeAlias = Generator[Sleep, Any, T]

# How long a single try waits to see whether the first waiter uses its turn.
_INSIST = 0.25
_FIRST_INSIST = 0.0005
_LONGEST_INSIST = 0.01

# The pauses of a wait without events.
FIRST_PAUSE = 0.0005
LONGEST_PAUSE = 0.05
PAUSE_GROWTH = 1.6


async def run_async(
    steps: Steps[Any], locks: Sequence[Any], of: Any = None, result: Any = None
) -> Any:
    """Carry out all steps in the event loop; what the call won is lost if it fails.

    It wins some of the locks, or a part ``of`` one.  A win of a lock while the task sleeps is
    another task's.  So a task that is cancelled in its sleep gives back only its place in the
    queue.

    It returns ``result`` if there is one.  That is made before the win, because a signal that
    arrives after it could leave the lock held.  Else it returns the generator's result.
    """
    # The serial numbers when the task went on; None while it sleeps.  It keeps no object that is
    # not needed then: thousands may sleep, and the garbage collector walks over all of them.
    before: list[int] | None = None
    me = part = None
    try:
        try:
            before = [inside.native(lock).serial for lock in locks]
            if of is not None:
                me, part = inside.part_here(of)
            sleep = next(steps)
            while True:
                before = None
                try:
                    answer = await sleep.pause_async()
                except BaseException as error:  # noqa: BLE001 - raised where it belongs
                    before = [inside.native(lock).serial for lock in locks]
                    sleep = steps.throw(error)
                else:
                    before = [inside.native(lock).serial for lock in locks]
                    sleep = steps.send(answer)
        except StopIteration as end:
            return end.value if result is None else result
        finally:
            steps.close()
    except BaseException:
        steps.close()
        if before is not None:
            for lock, serial in zip(locks, before, strict=True):
                inside.undo(lock, serial)
        if of is not None:
            inside.give_back(of, me, part)
        raise


class Pause:
    """A pause of so many seconds, without events."""

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


class PauseWhileHeld(Pause):
    """So many seconds, or less: ``True`` if nothing is at the lock's path meanwhile.

    It is for lock systems that judge and try by their own schedule.  In the
    event loop it is always the whole time.
    """

    __slots__ = ("lock",)

    def __init__(self, seconds: float, lock: Any) -> None:
        super().__init__(seconds)
        self.lock = lock

    def pause(self) -> bool:
        """Sleep in this thread."""
        return sleep_while_held(self.lock, self.seconds)


class Parked:
    """A step for tasks: sleep until another task of the loop ends it."""

    __slots__ = ("_parked",)

    def __init__(self, parked: Any) -> None:
        self._parked = parked

    def pause_async(self) -> Any:
        """Give what the task awaits."""
        return self._parked

    def pause(self) -> Any:
        """Refuse, as no thread waits this way."""
        raise NotImplementedError


def sleep_while_held(lock: Any, seconds: float) -> bool:
    """Sleep so long, or until nothing is at the lock's path, which gives ``True``."""
    end = capi.now_ns() + int(seconds * 1e9)
    wait = waits.Wait((lock,))
    try:
        while (outcome := wait.wait(end)) not in (capi.TIME, capi.FREE):
            if outcome == capi.BLIND:
                time.sleep(max(0, end - capi.now_ns()) / 1e9)
                return False
            if outcome == capi.LOOK:
                seen = capi.look(wait.path)
                if seen is None:
                    return True
                wait.judged(0, seen)
            elif outcome != -errno.EINTR:
                capi.raise_os_error(outcome, wait.path)
        return bool(outcome == capi.FREE)
    finally:
        wait.end()


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


def insisting(attempt: Callable[..., int], *arguments: object) -> Steps[int]:
    """Try again while the lock is free and an earlier waiter comes first, which may be stopped.

    A single try must not fail because of a stopped process.  It ends when the waiter uses its
    turn, or when the core has seen that it doesn't, after ``SEMLOCK_STOPPED_NS``.
    """
    pause = _FIRST_INSIST
    end = time.monotonic() + _INSIST
    while (outcome := attempt(*arguments)) == capi.TURN and time.monotonic() < end:
        yield Pause(pause)
        pause = min(2 * pause, _LONGEST_INSIST)
    return outcome


def chance() -> float:
    """Draw a number from 0 on and below 1."""
    # os.urandom and not the random module: importing that costs more than the wait.
    try:
        drawn = int.from_bytes(os.urandom(2), "big")
    except OSError:
        # PyPy opens a file for it, and a wait needs no descriptor to spare.
        drawn = time.monotonic_ns() % 65536
    return drawn / 65536


def growing_pauses(chance: Callable[[], float] = chance) -> Iterable[float]:
    """Give pauses that grow, that never end, and that no two waiters share."""
    pause = FIRST_PAUSE
    while True:
        yield pause * (0.5 + chance())
        pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE)


_CORE_LOOKS = sys.platform != "win32"
_FOREVER = 1 << 60  # nanoseconds: longer than any wait
_again = waits.again
_PLAIN = (None, None, None, None, None, False)

# The waits that ``cancel`` can end, each by a weak reference: one that is interrupted before its
# ``end`` leaves its queue with the last reference.
_under_way: set[ref[Stoppable]] = set()
_forget = _under_way.discard  # one step, in whatever thread drops the last reference
registry.on_fork(_under_way.clear)

_named: Any = None


class Stoppable:
    """What all kinds of waits share: it is of a lock, whose ``cancel`` ends it."""

    __slots__ = ("__weakref__", "_notice", "of", "stopped")

    _notice: Notice | None
    of: Any

    def begin(self, lock: Any, status: Callable[[], LockStatus] | None = None) -> Notice | None:
        """Enter the wait, if it is of one lock: its notice, if there is anything to tell or ask.

        ``status`` looks at what is waited for, if that is not the lock.
        """
        global _named  # noqa: PLW0603 - there is one logger of this name
        self.of = lock
        self.stopped = False
        if lock is None:
            return None
        _under_way.add(ref(self, _forget))
        if _named is None and (find := getattr(sys.modules.get("logging"), "getLogger", None)):
            _named = find("semlock")  # kept: getLogger takes a lock
        logger = _named if _named is not None and _named.isEnabledFor(INFO) else None
        call, check = inside.on_wait(lock), inside.cancel(lock)
        if call is logger is check is None:
            return None
        return notice_of(lock, status or lock.status, call, logger)

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        raise NotImplementedError

    def report(self, now: float) -> None:
        """End the wait if it was stopped, or report what is due."""
        if self.stopped:
            self.end_if_stopped()
        if self._notice is not None:
            self._notice.tell(now)

    def end_if_stopped(self) -> None:
        """Raise the error of a wait that was stopped."""
        if self.stopped:
            raise explain.cancelled_error(self.of, "cancel()")


def cancel(lock: Any) -> int:
    """End the waits for a lock that are under way: how many there were."""
    count = 0
    for reference in list(_under_way):
        wait = reference()
        if wait is not None and wait.of is lock:
            wait.stop()
            count += 1
    return count


class KeptWait(Stoppable):
    """One wait for one lock; after it has won, one thread can begin it again.

    ``heir`` is what goes on with it, if the core could not end it.
    """

    __slots__ = ("heir", "listed", "record", "wait")

    def __init__(self, native: semlock_lock, record: Record | None) -> None:
        self.of = None
        self.stopped = False
        self.heir: Stoppable | None = None
        self.record = record
        self.wait: Any = waits.Wait((native,), native, record, prepares=native)
        self.listed: tuple[int, Any] = id(self.wait), ref(self.wait)
        _under_way.add(ref(self, _forget))

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        self.stopped = True
        self.wait.stop()
        if self.heir is not None:
            self.heir.stop()


def may_keep(lock: Any, native: semlock_lock) -> bool:
    """Tell whether a lock may wait so: it is a file with a queue, without special options."""
    global _named  # noqa: PLW0603 - there is one logger of this name
    if not native.turns or native.kernel or not _CORE_LOOKS:
        return False
    if inside.special(lock) != _PLAIN:
        return False
    if _named is None and (find := getattr(sys.modules.get("logging"), "getLogger", None)):
        _named = find("semlock")  # kept: getLogger takes a lock
    return _named is None or not _named.isEnabledFor(INFO)


def take(
    lock: Any,
    native: semlock_lock,
    record: Record | None,
    kept: list[KeptWait],
    timeout: float | None,
) -> tuple[int, KeptWait, int] | None:
    """Wait for a lock until it is won, with a wait that it has kept, or with a new one.

    If the wait must go on in another way: what the core said, the wait, which ``cancel`` still
    finds, and when it began.  That is so if the holder must be judged, the time is over, or no
    events come.
    """
    began = now_ns()
    end = began + (_FOREVER if timeout is None else min(int(timeout * 1e9), _FOREVER))
    try:
        mine = kept.pop()
    except IndexError:
        mine = KeptWait(native, record)
    if mine.record is not record or mine.stopped:
        mine = KeptWait(native, record)
    key, listed = mine.listed
    wait = mine.wait
    try:
        mine.of = lock
        wait.__class__ = waits.Wait
        waits.under_way[key] = listed
        outcome = _again(wait.cdata, native, POOL, end)
        while outcome == -errno.EINTR:  # Python's handlers have run meanwhile
            mine.end_if_stopped()
            outcome = waits.take(wait.cdata, native, POOL, end)
        if outcome == OK:
            mine.of = None
            # As its end() does; the core has ended it.
            waits.under_way.pop(key, None)
            wait.__class__ = waits.EndedWait
    except BaseException:
        mine.of = None
        wait.end()
        raise
    if outcome != OK:
        return outcome, mine, began
    if not kept:
        kept.append(mine)
    return None
