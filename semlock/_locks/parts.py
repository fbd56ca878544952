"""Locks of several holders: each thread or task that holds has a lock of its own, its part."""

from __future__ import annotations

from semlock._core import capi, explain, inside
from semlock._core.inside import found, unstruck
from semlock._locks.base import Acquirable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from semlock._core.identity import Process
    from semlock._waiting.steps import Sleep


class InParts(Acquirable):
    """What slots and readers have in common: one queue, and what is done with the part held."""

    __slots__ = ()

    _who: Literal["thread", "task"] = "thread"
    _patient = True  # whether a single try may sleep while the first waiter acts
    _natives: Any = None  # the parts' structures, if more than one may be free

    if TYPE_CHECKING:
        path: str
        _head: Any  # the lock whose queue it is, and whose options are those of the wait

        def _parts(self) -> Sequence[Any]:
            """List all parts of this object."""

        def _mine(self, me: object = None) -> Any:
            """Find the part that the caller holds; only the core's structures know."""

        def _left(self, me: object, mine: Any) -> None:
            """Note that a part was released."""

    # ------------------------------------------------------------------ acquiring

    def _into_line(self, timeout: float | None) -> tuple[bool, int, Sleep | None]:
        """Tell whether others in line come first, when the caller asked, and a sleep before."""
        del timeout
        return False, 0, None

    def _way(self, timeout: float | None) -> int:
        """Tell whether others come first: OK, TURN if it is free for them, or HELD.

        With no time, only a fair lock asks.
        """
        if timeout == 0 and not inside.is_fair(self._head):
            return capi.OK
        return capi.must_make_way(inside.native(self._head), self._natives)

    def cancel(self) -> int:
        """End the waits of this object, as ``Lock.cancel`` does."""
        return int(self._head.cancel())

    # ------------------------------------------------------------------ holding, letting go

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Name another process in all records of this object; see ``BaseLock``."""
        for part in self._parts():
            inside.leave_to(part, owner, guarded=guarded)

    def _held(self) -> Any:
        mine = self._mine()
        if mine is None:
            raise explain.not_held_error(self._head)
        return mine

    @unstruck
    def release(self) -> None:
        """Release what the caller holds; the errors are those of ``Lock.release``."""
        mine = found(self._mine)
        if mine is None:
            raise explain.not_held_error(self._head)
        try:
            mine.release()
        finally:
            self._left(None, mine)

    @unstruck
    def __exit__(self, *error: object) -> None:
        self._leave(None, *error)

    @unstruck
    def _leave(self, me: object, *error: Any) -> None:
        mine = found(self._mine, me)
        if mine is None:
            if any(map(inside.forked, self._parts())):
                return  # the parent process entered the block, and still holds it
            raise explain.not_held_error(self._head)
        try:
            mine.__exit__(*error)
        finally:
            self._left(me, mine)

    def refresh(self) -> None:
        """Write the present time into the record of what the caller holds."""
        self._held().refresh()

    def check(self) -> None:
        """Make sure that it is still held; ``LockLostError`` if it was removed."""
        self._held().check()

    @property
    def count(self) -> int:
        """How often the caller, or this object, holds it; 0 while it does not."""
        mine = self._mine()
        if mine is not None and inside.native(mine).by_object:
            return sum(part.count for part in self._parts())
        return 0 if mine is None else int(mine.count)
