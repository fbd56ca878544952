"""A counting semaphore of lock files, for tasks."""

from __future__ import annotations

from semlock._core import inside
from semlock._locks import mine
from semlock._locks.async_form import rules_of, this_task
from semlock._locks.async_holding import HeldByTasks, is_held_by, task_here
from semlock._locks.async_lock import AsyncLock
from semlock._locks.lock import called_by_its_name
from semlock._locks.slots import SlotLock
from semlock._waiting.async_waiter import waiter_here
from semlock._waiting.hub import released_here
from semlock._waiting.sleeping import crowded

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from semlock._waiting.async_waiter import AsyncWaiter
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Waiter


class AsyncSlotLock(HeldByTasks, SlotLock):  # type: ignore[misc]  # its words are awaited
    """``SlotLock`` for tasks: at most so many holders at a time, each of them a task.

    :path:   where the slots are: slot 3 is the lock file ``PATH.3``
    :slots:  how many there are
    :system: the lock system of the slots' files, as for ``SlotLock``

    The other parameters are those of ``AsyncLock``.  It shares the slots with ``SlotLock``.
    One object serves many tasks.  Each holds one slot at most, and releases it itself or by the
    context manager that ``await acquire()`` gave.
    """

    __slots__ = ()

    _one_slot = AsyncLock  # which knows the task that holds it

    def _wins(self) -> tuple[Sequence[Any], None]:
        return self._locks, None

    def _steps(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        return self._acquiring(timeout, frame)

    def _refuse_to_wait_for_oneself(self, frame: FrameType, timeout: float | None) -> None:
        mine.refuse_task_all(self._locks, this_task(), frame, timeout)

    def _waiter(self, timeout: float | None, asked: int) -> AsyncWaiter:
        locks = self._locks
        return waiter_here(
            locks,
            timeout,
            self.path,
            schedule=self._retry,
            queue=self._head,
            record=inside.record(locks[0]),
            line=self._line_name(),
            asked=asked,
            of=self._head,
            status=locks[self._last].status,
        )

    def _line_name(self) -> tuple[object, ...] | None:
        """Name the line in which tasks of one loop wait for these slots, if they do in one."""
        if self._retry is not None:
            return None
        rules = rules_of(inside.policy(self._locks[0]))
        return self.path, inside.native(self._head).turns, rules, self.slots

    def _left(self, me: object, mine: Any) -> None:
        super()._left(me, mine)
        if crowded:
            released_here(self._line_name())

    def _try_all(self, frame: FrameType, waiter: Waiter | None) -> bool:
        task_here()  # an error outside of tasks
        return super()._try_all(frame, waiter)

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = this_task()
        slots: list[Any] = self._locks
        last = slots[self._last]
        if is_held_by(last, me):
            return last
        return next((slot for slot in slots if is_held_by(slot, me)), None)


called_by_its_name(AsyncSlotLock)
