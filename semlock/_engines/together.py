"""``acquire_any`` and ``acquire_all`` for locks on an engine, for threads and for tasks."""

from __future__ import annotations

from time import monotonic_ns

from semlock._core import NESTED, events, inside
from semlock._engines.lock import EngineLock
from semlock._engines.wait import Wait, first_of
from semlock._locks.together import Several

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any, TypeVar

    from semlock._waiting.steps import Steps

    L = TypeVar("L", bound=EngineLock)


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
