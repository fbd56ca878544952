"""Locks of an engine with more than one holder: readers beside each other, and slots.

Each thread that holds has an entry of its own, by a lock object of its own.
"""

from __future__ import annotations

import sys

from semlock._core import explain
from semlock._core.capi import this_thread
from semlock._core.errors import LockTimeoutError
from semlock._engines.engine import READERS
from semlock._engines.found import status_of
from semlock._engines.lock import EngineLock
from semlock._locks.options import OWN_TIMEOUT
from semlock._locks.reading import Entering, Holding

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType
    from typing import Any, Literal

    from typing_extensions import Self

    from semlock._core.status import LockStatus
    from semlock._engines.client import Client

_frame = sys._getframe
_MOST = 10_000


class PartPerThread:
    """What both kinds share: the lock object by which each thread holds."""

    _rooms: tuple[int, ...]

    def __init__(self, client: Client, name: str, room: int, **options: Any) -> None:
        on_lost = options.pop("on_lost", None)
        if on_lost is not None:
            options["on_lost"] = lambda _, error: on_lost(self, error)
        self._client = client
        self._room = room
        self._options = options
        self._parts: dict[int, EngineLock] = {}
        first = EngineLock(client, name, room=room, **options)  # it checks the options
        self.name = name
        self.path = first.path
        self.tag = first.tag
        self.timeout = first.timeout

    def _mine(self) -> EngineLock | None:
        part = self._parts.get(this_thread())
        return part if part is not None and part.token is not None else None

    @property
    def part(self) -> EngineLock | None:
        """The lock object by which this thread holds; ``None`` while it does not."""
        return self._mine()

    def _held(self) -> EngineLock:
        part = self._parts.get(this_thread())
        if part is None:
            part = EngineLock(self._client, self.name, room=self._room, **self._options)
            raise explain.not_held_error(part)
        return part

    def _take_part(self, room: int, timeout: float | None, frame: FrameType) -> None:
        mine = self._mine()
        if mine is not None:
            raise explain.deadlock_error(mine, frame, reentrant=False)
        part = EngineLock(self._client, self.name, room=room, **self._options)
        me = this_thread()
        self._parts[me] = part
        try:
            part.acquire(self.timeout if timeout is OWN_TIMEOUT else timeout)
        except BaseException:
            self._parts.pop(me, None)
            raise

    def cancel(self) -> int:
        """End the waits of this object, as ``Lock.cancel`` does."""
        return sum(part.cancel() for part in list(self._parts.values()))

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        self._take_part(self._room, timeout, frame)

    def acquire(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Take it, waiting; ``LockTimeoutError`` when the time is over."""
        holding = Holding(self)
        self._take(timeout, _frame(1))
        return holding

    def __enter__(self) -> Self:
        self._take(OWN_TIMEOUT, _frame(1))
        return self

    def try_acquire(self) -> bool:
        """Take it if that is possible at once."""
        if self._mine() is not None:
            return False
        try:
            self._take(0.0, _frame(1))
        except LockTimeoutError:
            return False
        return True

    def release(self) -> None:
        """Release what this thread holds."""
        part = self._held()
        try:
            part.release()
        finally:
            if part.token is None:
                self._parts.pop(this_thread(), None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        part = self._held()
        try:
            part.__exit__(kind, error, traceback)
        finally:
            if part.token is None:
                self._parts.pop(this_thread(), None)

    def check(self) -> None:
        """Ask the engine whether this thread still holds: ``LockLostError`` if not."""
        self._held().check()

    def left(self) -> float:
        """Say for how many seconds this thread certainly holds, by this machine's clock."""
        mine = self._mine()
        return 0.0 if mine is None else mine.left()

    @property
    def count(self) -> int:
        """How often this thread holds it through this object; 0 while it does not."""
        mine = self._mine()
        return 0 if mine is None else mine.count

    @property
    def fence(self) -> int | None:
        """The number of this thread's acquisition; ``None`` while it holds none."""
        mine = self._mine()
        return None if mine is None else mine.fence

    def _holders(self) -> list[LockStatus]:
        line = self._client.line(self.name)
        return [status_of(self.path, entry) for entry in line if entry.holds]

    def __repr__(self) -> str:
        state = "not held" if self._mine() is None else "held"
        return f"<{type(self).__name__} {self.path!r}, {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(f"{self!r} can't be pickled: make one in the other process")


class SharedEngineLock(PartPerThread):
    """A lock on an engine that many readers may share, or one writer may hold alone.

    They stand in one line, so neither starves.  ``with lock.shared():`` is for readers, ``with
    lock:`` for the writer.  One object serves many threads.
    """

    def __init__(self, client: Client, name: str, **options: Any) -> None:
        super().__init__(client, name, 1, **options)

    def acquire_shared(
        self, timeout: float | None = OWN_TIMEOUT
    ) -> AbstractContextManager[Self]:
        """Take the lock as a reader, waiting for writers that came before."""
        holding = Holding(self)
        self._share(timeout, _frame(1))
        return holding

    def shared(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Hold the lock as a reader in a ``with`` block."""
        return Entering(self, self._share, timeout)

    def exclusive(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Hold the lock as the writer in a ``with`` block."""
        return Entering(self, self._take, timeout)

    def try_acquire_shared(self) -> bool:
        """Take the lock as a reader if that is possible at once."""
        if self._mine() is not None:
            return False
        try:
            self._share(0.0, _frame(1))
        except LockTimeoutError:
            return False
        return True

    def _share(self, timeout: float | None, frame: FrameType) -> None:
        self._take_part(READERS, timeout, frame)

    @property
    def held(self) -> Literal["shared", "exclusive"] | None:
        """How this thread holds the lock."""
        mine = self._mine()
        if mine is None:
            return None
        return "shared" if mine.room == READERS else "exclusive"

    def status(self) -> LockStatus:
        """Ask the engine for the writer."""
        line = self._client.line(self.name)
        writer = next((e for e in line if e.holds and e.room != READERS), None)
        return status_of(self.path, writer)

    def readers(self) -> list[LockStatus]:
        """Ask the engine for the readers."""
        line = self._client.line(self.name)
        return [status_of(self.path, e) for e in line if e.holds and e.room == READERS]


class SlotEngineLock(PartPerThread):
    """At most so many holders at a time, on an engine.  Each thread holds one slot at most."""

    def __init__(self, client: Client, name: str, *, slots: int, **options: Any) -> None:
        if type(slots) is not int or not 1 <= slots <= _MOST:
            raise ValueError(f"slots is a number from 1 to {_MOST}, not {slots!r:.60}")
        super().__init__(client, name, slots, **options)
        self.slots = slots

    @property
    def held(self) -> bool:
        """Whether this thread holds a slot."""
        return self._mine() is not None

    def status(self) -> list[LockStatus]:
        """Ask the engine for all that hold a slot."""
        return self._holders()
