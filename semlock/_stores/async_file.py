"""The file store for tasks: their waits, and the line of the waiters of one loop."""

from __future__ import annotations

from semlock._core import FAIR, NO_TURNS, TAKE_TURNS
from semlock._waiting.async_waiter import AsyncWaiter
from semlock._waiting.hub import hub_here, released_here
from semlock._waiting.sleeping import crowded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core import capi
    from semlock._core.verdicts import Policy
    from semlock._waiting.waiter import Schedule


class InFilesForTasks:
    """The file store's part for tasks; it comes before ``AsyncForm`` in the bases."""

    __slots__ = ()

    if TYPE_CHECKING:
        path: str
        _native: Any
        _policy: Policy | None
        _retry: Schedule | None
        _record: capi.Record | None

        def _try(self) -> int:
            """Try once."""

    # ------------------------------------------------------------------ waiting

    def _line_name(self) -> tuple[object, ...] | None:
        """Name the line in which tasks of one loop wait for this lock; ``None``: in no line.

        The first task in line judges the holder for all of them, so they share a line only if
        their policies are the same.  A task with a schedule of retries stands in none.
        """
        if self._retry is not None:
            return None
        policy = self._policy
        rules = None if policy is None else rules_of(policy)
        return self.path, self._native.turns, rules

    def _waiter(self, timeout: float | None, asked: int) -> AsyncWaiter:
        native = self._native
        fair = native.turns == FAIR
        waiter = AsyncWaiter(
            hub_here(),
            (native,),
            timeout,
            schedule=self._retry,
            queue=native if native.turns else None,
            record=self._record,
            line=self._line_name(),
            fair=fair,
            stands=fair,
            asked=asked,
            of=self,
            news=True,
        )
        if self._policy is not None:
            waiter.judge = None  # by the clock of the lock, from the beginning
        return waiter

    def _try_in_turn(self, waiter: AsyncWaiter) -> int:
        if waiter.stands or not self._native.turns:
            outcome: int = super()._try_in_turn(waiter)  # type: ignore[misc]
            return outcome
        return self._try()  # not before the waiters in the queue

    # ------------------------------------------------------------------ letting go

    def release(self) -> None:
        """Release the lock; the errors are those of ``Lock.release``."""
        super().release()  # type: ignore[misc]
        if crowded:
            self._released()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[misc]
        if crowded:
            self._released()

    def _released(self) -> None:
        """Wake the first waiter for this lock in this loop."""
        turns = (NO_TURNS, TAKE_TURNS, FAIR)
        rules = {None, None if self._policy is None else rules_of(self._policy)}
        released_here(*((self.path, each, rule) for each in turns for rule in rules))


def rules_of(policy: Policy | None) -> object:
    """Name a policy: those that are equal share a line."""
    try:
        hash(policy)
    except TypeError:
        return id(policy)
    return policy
