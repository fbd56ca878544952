"""``LockSet``: many locks of which a program wants those that get free.

A poll costs what has changed, and not how many locks there are; ``candidates`` tells how that is
known.  A lock is taken by creating its file, like always.
"""

from __future__ import annotations

import sys
from time import sleep
from weakref import WeakSet

from semlock._core import capi, inside, registry
from semlock._core.capi import HELD, TURN, now_ns
from semlock._core.options import FOREVER, checked_timeout
from semlock._locks import mine
from semlock._locks.base import BaseLock
from semlock._locks.candidates import Candidates

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType
    from typing import Any, Generic, TypeVar

    L = TypeVar("L")
else:

    class Generic:
        __slots__ = ()
        __class_getitem__ = classmethod(lambda cls, _: cls)

    L = None

# A sleeping thread looks so often whether another one has left it something.
_SLICE = 0.1


class LockSet(Candidates, Generic[L]):
    """A set of locks, of which ``try_acquire`` takes those that have become free.

    :param locks: locks of any kind that has a file: ``Lock``, ``SlotLock``, ``SharedLock`` (as the
        writer) and those of other lock systems; all of threads, or all of tasks

    Threads may share it, and ``add`` and ``discard`` locks while others use it.  It has one
    descriptor, which ``close`` or the garbage collector gives back.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, locks: Iterable[L] = ()) -> None:
        super().__init__()
        for lock in locks:
            self.add(lock)
        _sets.add(self)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, lock: object) -> bool:
        return lock in self._members

    def __iter__(self) -> Iterator[L]:
        return iter(list(self._members))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} locks>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{self!r} can't be copied or pickled: make another set of its locks")

    # ------------------------------------------------------------------ acquiring

    def try_acquire(self, limit: int | None = None) -> list[L]:
        """Take the locks that are free, in the order in which they became so.

        :param limit: how many at most
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit is a number from 1 on, or None for all, not {limit!r}")
        self._hear()
        if not self._ready:
            return []
        return self._take(limit, sys._getframe(1))

    def _take(self, limit: int | None, frame: FrameType) -> list[Any]:
        won: list[Any] = []
        before: list[Any] = []  # of each: what tells whether this call has won it
        try:
            for _ in range(len(self._ready)):
                if limit is not None and len(won) >= limit:
                    break
                with self._mutex:
                    lock = next(iter(self._ready), None)
                    if lock is None:
                        break
                    # It is in this list before it is no candidate any more, so that no interrupt
                    # loses it.
                    won.append(lock)
                    told = self._ready.pop(lock)
                before.append(
                    inside.native(lock).serial if isinstance(lock, BaseLock) else lock.held
                )
                try:
                    if type(lock).try_acquire is not BaseLock.try_acquire:
                        outcome = capi.OK if lock.try_acquire() else HELD
                    elif (outcome := inside.try_once(lock)) != HELD and not (
                        outcome == TURN and inside.is_fair(lock)
                    ):
                        outcome = capi.OK if inside.has_won(lock, outcome, frame) else HELD
                except OSError:
                    self._tried_later(lock, told=told)
                    won.pop()
                    if won:
                        break
                    raise
                if outcome == capi.OK:
                    self._again.pop(lock, None)
                    continue
                if told or outcome == TURN:
                    self._check_again(lock, outcome)
                won.pop()
                before.pop()
        except BaseException:
            for lock in won:
                self._told(lock)
            for lock, mark in zip(won, before, strict=False):
                if isinstance(lock, BaseLock):
                    inside.undo(lock, mark)
                elif lock.held and not mark:
                    lock.release()
            raise
        return won

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a lock may be free: ``True``, or ``False`` when the time is over.

        Then ``try_acquire`` tells whether it can be had: another process may be faster.
        """
        if self._for_tasks:
            raise TypeError("these are locks of tasks: await locks.wait_async()")
        limit = FOREVER if timeout is None else checked_timeout(timeout)
        end = now_ns() + int(min(limit, FOREVER) * 1e9)
        refused = False
        while not self._may_have():
            left = (end - now_ns()) / 1e9
            if left <= 0:
                return False
            if not refused and timeout is None:
                self._refuse(sys._getframe(1))
                refused = True
            self._sleep(min(left, self._pause()))
        return True

    def _may_have(self) -> bool:
        if not self._members:
            raise ValueError("there is no lock to wait for")
        self._hear()
        return bool(self._ready)

    def _refuse(self, frame: FrameType) -> None:
        """Raise ``LockDeadlockError`` if this thread holds all of the locks."""
        plain = [lock for lock in self._members if isinstance(lock, BaseLock)]
        if len(plain) == len(self._members):
            holder = mine.all_mine(plain, mine.is_of_thread)
            if holder is not None:
                mine.refuse(holder, frame)

    def _pause(self) -> float:
        """Say for how many seconds to sleep without a report."""
        return min(max(0.0, (self._due - now_ns()) / 1e9), _SLICE)

    def _source(self) -> int:
        """Give the descriptor to sleep on; -1 if no directory is watched."""
        changes = self._changes
        return -1 if changes is None or not self._marks else changes.events

    def _sleep(self, seconds: float) -> None:
        source = self._source()
        if source < 0 or seconds < 0.001:
            sleep(seconds)
            return
        if sys.platform != "win32":  # where no directory is watched
            from select import POLLIN, poll  # noqa: PLC0415 - for those who wait

            poller = poll()
            poller.register(source, POLLIN)
            poller.poll(max(1, int(seconds * 1000)))

    # ------------------------------------------------------------------ for tasks

    async def wait_async(self, timeout: float | None = None) -> bool:
        """Sleep in the event loop until a lock may be free; see ``wait``."""
        limit = FOREVER if timeout is None else checked_timeout(timeout)
        end = now_ns() + int(min(limit, FOREVER) * 1e9)
        while not self._may_have():
            left = (end - now_ns()) / 1e9
            if left <= 0:
                return False
            await _listen(self._source(), min(left, self._pause()))
        return True

    def __aiter__(self) -> LockSet[L]:
        return self

    async def __anext__(self) -> L:
        """Take the next lock that gets free, and give it; it ends when the set is empty."""
        while self._members:
            for lock in self.try_acquire(1):
                return lock
            await self.wait_async()
        raise StopAsyncIteration


# A second task that listens to a descriptor, and one whose loop can't, look so often.
_SHORT = 0.01

_listening: set[tuple[int, int]] = set()


async def _listen(descriptor: int, seconds: float) -> None:
    """Sleep so long, or until the descriptor is readable; -1 is never readable."""
    import asyncio  # noqa: PLC0415 - for those who have a loop

    from semlock._waiting.hub import hub_here, trio_here  # noqa: PLC0415

    key = (id(hub_here()), descriptor)
    if descriptor < 0 or seconds < 0.001 or key in _listening:
        await hub_here().rest(min(seconds, _SHORT) if descriptor >= 0 else seconds)
        return
    _listening.add(key)
    try:
        trio: Any = trio_here()
        if trio is not None:
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(descriptor)
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(descriptor, readable.set)
        except NotImplementedError:
            await asyncio.sleep(min(seconds, _SHORT))
            return
        try:
            await asyncio.wait_for(readable.wait(), seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)
    finally:
        _listening.discard(key)


_sets: WeakSet[LockSet[Any]] = WeakSet()


def _forget() -> None:
    for locks in list(_sets):
        inside.forget_after_fork(locks)


registry.on_fork(_forget)
