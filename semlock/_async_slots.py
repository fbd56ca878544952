"""A counting semaphore of lock files for tasks: what it does is in its sync form."""

from __future__ import annotations

import sys

from semlock import _explain, _native
from semlock._async import AsyncLock, _this_task, deadlock_error
from semlock._async_holding import (
    HeldByTasks,
    Holding,
    OwnWins,
    is_held_by,
    task_here,
)
from semlock._engine import _OWN, _checked_timeout
from semlock._hub import waiter_here
from semlock._notice import notice_of
from semlock._slots import SlotLock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from types import FrameType
    from typing import Any

    from typing_extensions import Self

    from semlock._engine import Durability
    from semlock._errors import LockLostError
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath

_frame = sys._getframe


class AsyncSlotLock(HeldByTasks, SlotLock):
    """``SlotLock`` for tasks: at most so many holders at a time, each of them a task.

    :path:   where the slots are: slot 3 is the lock file ``PATH.3``
    :slots:  how many there are

    The other parameters are those of ``AsyncLock``.  It shares the slots with ``SlotLock``.
    One object serves many tasks, each of which holds one slot at most and lets go of it
    itself, or by the manager that ``await acquire()`` gave.
    """

    __slots__ = ()

    _one_slot = AsyncLock  # which knows the task that holds it

    def __init__(
        self,
        path: StrPath,
        slots: int,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        fair: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[AsyncSlotLock, LockLostError], object] | None = None,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        super().__init__(
            path,
            slots,
            tag=tag,
            timeout=timeout,
            policy=policy,
            durability=durability,
            mode=mode,
            fair=fair,
            heartbeat=heartbeat,
            on_lost=on_lost,  # type: ignore[arg-type]  # called with this very object
            on_wait=on_wait,
        )

    def acquire(  # type: ignore[override]  # this one is awaited
        self, timeout: float | None = _OWN
    ) -> Coroutine[Any, Any, AbstractAsyncContextManager[Self]]:
        """Take a slot, waiting for it; ``LockTimeoutError`` when the time is over."""
        limit = self.timeout if timeout is _OWN else timeout
        if limit is not None:
            limit = _checked_timeout(limit)
        return self._take_async(limit, _frame(1))

    async def _take_async(
        self, timeout: float | None, frame: FrameType, *, entered: bool = False
    ) -> Any:
        me = task_here()
        mine = self._mine(me)
        if mine is not None:
            raise deadlock_error(mine, frame)
        result = self if entered else Holding(self, me)
        head = self._head
        wins = OwnWins(self._locks)
        try:
            if not _native.must_make_way(head._native) and self._try_all(frame, None):
                return result
            locks = self._locks
            if timeout == 0:
                raise _explain.timeout_error(locks[self._last], 0.0)  # noqa: TRY301 - of the try
            self._lay_out()
            notice = notice_of(head, locks[self._last].status)
            waiter = waiter_here(
                locks, timeout, self.path, queue=head, record=locks[0]._record, notice=notice
            )
            try:
                while True:
                    wins.asleep()
                    in_time = await waiter.pause_async()
                    wins.awake()
                    if not in_time:
                        raise _explain.timeout_error(locks[waiter.which], waiter.waited)
                    if self._answer(waiter, frame):
                        break
            finally:
                waiter.end()
            _native.burst_began(head._native)
        except BaseException:
            wins.give_back()
            raise
        return result

    def _won(self, index: int) -> None:
        super()._won(index)
        slot: Any = self._locks[index]
        slot._holder = (slot._native.serial, task_here())

    def _mine(self, me: object = None) -> Any:
        if me is None:
            me = _this_task()
        slots: list[Any] = self._locks
        last = slots[self._last]
        if is_held_by(last, me):
            return last
        for slot in slots:
            # Only who it was won by last is asked more closely: there may be thousands.
            holder = slot._holder
            if holder is not None and holder[1] == me and is_held_by(slot, me):
                return slot
        return None
