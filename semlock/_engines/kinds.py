"""Locks of an engine with more than one holder, readers and slots; and several locks at once.

Each thread or task that holds has an entry of its own, by a lock object of its own: its part.
"""

from __future__ import annotations

import sys
from time import monotonic_ns

from semlock._core import NESTED, events, explain, inside
from semlock._core.capi import this_thread
from semlock._core.inside import found, unstruck
from semlock._core.options import refuse_unknown, told_of
from semlock._engines.client import status_of
from semlock._engines.engine import READERS
from semlock._engines.lock import EngineLock
from semlock._engines.wait import Wait, first_of
from semlock._locks.base import Acquirable
from semlock._locks.reading import Sharable
from semlock._locks.together import Several
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any, Literal, TypeVar

    from typing_extensions import Unpack

    from semlock._core.options import EngineOptions
    from semlock._core.status import LockStatus
    from semlock._engines.client import Client
    from semlock._waiting.steps import Steps

    L = TypeVar("L", bound=EngineLock)

_frame = sys._getframe
_MOST = 10_000


class InParts(Acquirable):
    """What both kinds share: the lock object by which each thread or task holds."""

    _who: Literal["thread", "task"] = "thread"
    _one_part: Any = EngineLock
    _refused_options = EngineLock._refused_options  # noqa: SLF001 - it is made of such locks

    def __init__(
        self, client: Client, name: str, room: int, **options: Unpack[EngineOptions]
    ) -> None:
        refuse_unknown(self, options)
        self._client = client
        self.name = name
        self._room = room
        self._options = told_of(self, options)
        self._parts: dict[Any, Any] = {}
        first = self._new_part(room)  # it checks the options
        self.path = first.path
        self.tag = first.tag
        self.timeout = first.timeout

    def _new_part(self, room: int) -> Any:
        return self._one_part(self._client, self.name, room=room, **self._options)

    def _me(self) -> Any:
        """Identify the caller that acquires or releases."""
        return this_thread()

    def _mine(self) -> Any:
        part = self._parts.get(self._me())
        return part if part is not None and part.held else None

    @property
    def part(self) -> EngineLock | None:
        """The lock object by which the caller holds; ``None`` while it does not."""
        mine: EngineLock | None = self._mine()
        return mine

    def _held(self, me: object = None) -> Any:
        part = self._parts.get(self._me() if me is None else me)
        if part is None:
            raise explain.not_held_error(self._new_part(self._room))
        return part

    def _begun(self, room: int, frame: FrameType) -> Any:
        """Make the part of a call that acquires."""
        mine = self._mine()
        if mine is not None:
            raise explain.deadlock_error(mine, frame, self._who, reentrant=False)
        # Entered before it is won, so that an interrupt can't lose it.
        part = self._parts[self._me()] = self._new_part(room)
        return part

    def _taking(self, room: int, timeout: float | None, frame: FrameType) -> Steps[None]:
        yield from inside.acquiring(self._begun(room, frame), timeout, frame)

    def _trying(self, room: int, frame: FrameType) -> Steps[bool]:
        won: bool = yield from self._begun(room, frame).trying(frame)
        if not won:
            self._parts.pop(self._me(), None)
        return won

    def _carry_out(self, steps: Steps[Any]) -> Any:
        me = self._me()
        before = self._parts.get(me)
        try:
            return run(steps)
        except BaseException:
            self._give_back(me, before)
            raise

    def _give_back(self, me: object, before: object) -> None:
        """Release the part of a call that failed, if it has one."""
        part = self._parts.get(me)
        if part is not None and part is not before:
            inside.undo(part, 0)
            self._parts.pop(me, None)

    def cancel(self) -> int:
        """End the waits of this object, as ``Lock.cancel`` does."""
        return sum(part.cancel() for part in list(self._parts.values()))

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        self._carry_out(self._taking(self._room, timeout, frame))

    def try_acquire(self) -> bool:
        """Take it if that is possible at once."""
        return self._try(self._room, _frame(1))

    def _try(self, room: int, frame: FrameType) -> bool:
        if self._mine() is not None:
            return False
        won: bool = self._carry_out(self._trying(room, frame))
        return won

    @unstruck
    def release(self) -> None:
        """Release what the caller holds."""
        part = self._to_release()
        try:
            part.release()
        finally:
            self._left(self._me(), part)

    @unstruck
    def __exit__(self, *error: object) -> None:
        part = self._to_release()
        try:
            part.__exit__(*error)
        finally:
            self._left(self._me(), part)

    @unstruck
    def _to_release(self) -> Any:
        part = found(lambda: self._parts.get(self._me()))
        return self._held() if part is None else part

    def _left(self, me: object, part: Any) -> None:
        if not part.held and self._parts.get(me) is part:
            self._parts.pop(me, None)

    def check(self) -> None:
        """Ask the engine whether the caller still holds: ``LockLostError`` if not."""
        self._held().check()

    def left(self) -> float:
        """Say for how many seconds the caller certainly holds, by this machine's clock."""
        mine = self._mine()
        left: float = 0.0 if mine is None else mine.left()
        return left

    @property
    def count(self) -> int:
        """How often the caller holds it through this object; 0 while it does not."""
        mine = self.part
        return 0 if mine is None else mine.count

    @property
    def fence(self) -> int | None:
        """The number of the caller's acquisition; ``None`` while it holds none."""
        mine = self.part
        return None if mine is None else mine.fence

    def _holders(self) -> list[LockStatus]:
        line = self._client.line(self.name)
        return [status_of(self.path, entry) for entry in line if entry.holds]

    def __repr__(self) -> str:
        state = "not held" if self._mine() is None else "held"
        return f"<{type(self).__name__} {self.path!r}, {state}>"


class SharedEngineLock(InParts, Sharable):
    """A lock on an engine that many readers may share, or one writer may hold alone.

    They stand in one line, so neither starves.  ``with lock.shared():`` is for readers, ``with
    lock:`` for the writer.  One object serves many threads.
    """

    def __init__(self, client: Client, name: str, **options: Unpack[EngineOptions]) -> None:
        super().__init__(client, name, 1, **options)

    def try_acquire_shared(self) -> bool:
        """Take the lock as a reader if that is possible at once."""
        return self._try(READERS, _frame(1))

    def _share(self, timeout: float | None, frame: FrameType) -> None:
        self._carry_out(self._taking(READERS, timeout, frame))

    @property
    def held(self) -> Literal["shared", "exclusive"] | None:
        """How the caller holds the lock."""
        mine = self.part
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


class SlotEngineLock(InParts):
    """At most so many holders at a time, on an engine.  Each thread holds at most one."""

    def __init__(
        self, client: Client, name: str, *, slots: int, **options: Unpack[EngineOptions]
    ) -> None:
        if type(slots) is not int or not 1 <= slots <= _MOST:
            raise ValueError(f"slots is a number from 1 to {_MOST}, not {slots!r:.60}")
        super().__init__(client, name, slots, **options)
        self.slots = slots

    @property
    def held(self) -> bool:
        """Whether the caller holds a slot."""
        return self._mine() is not None

    def status(self) -> list[LockStatus]:
        """Ask the engine for all that hold a slot."""
        return self._holders()


def distinct(locks: Iterable[L], *, for_tasks: bool) -> list[L]:
    """Check that these are locks on engines, of different names, for tasks or for threads."""
    chosen = list(locks)
    form = "an AsyncLock" if for_tasks else "a Lock"
    for lock in chosen:
        if not isinstance(lock, EngineLock) or inside.is_for_tasks(lock) != for_tasks:
            raise TypeError(f"each of the locks is {form} of the space, not {lock!r}")
    if not chosen:
        raise ValueError("there is no lock to wait for")
    paths: set[str] = set()
    for lock in chosen:
        if lock.path in paths:
            raise ValueError(f"{lock.path} is there twice, and would wait for itself")
        paths.add(lock.path)
    return chosen


def taking_any(
    locks: list[Any],
    timeout: float | None,
    frame: FrameType,
    refuse: Callable[[list[Any], float | None, FrameType], None],
) -> Steps[Any]:
    """Stand in the line of each of some locks at once, until one of them is won."""
    for lock in locks:
        if inside.is_mine(lock) and inside.try_once(lock) == NESTED:
            return lock
    waits: list[Wait] = []
    won: Any = None
    if timeout != 0:
        refuse(locks, timeout, frame)
    try:
        for lock in locks:
            waits.append(Wait(lock, timeout))
            if (yield from waits[-1].entering()):
                won = waits[-1]
                break
        else:
            if timeout == 0:
                raise (yield from waits[0].ending())
            won = yield from first_of(waits)
        lock = locks[waits.index(won)]
        inside.has_won(lock, won.outcome, frame)
        return lock
    finally:
        for wait in waits:
            wait.end()


class SeveralOnEngine(Several):
    """Some locks that are taken together; each try is a request."""

    __slots__ = ()

    def trying_rest(self, frame: FrameType) -> Steps[Any]:
        """Try those that are not held yet: the first that can't be taken, or ``None``."""
        for lock in self.locks:
            if self.is_mine(lock):
                continue
            asked = monotonic_ns()
            won = yield from lock.trying(frame)
            if (sink := events.sink) is not None:
                sink.tried(lock, asked, won=won)
            if not won:
                return lock
        return None
