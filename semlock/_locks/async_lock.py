"""``semlock.AsyncLock``: the default lock for tasks, which wait without holding up their loop."""

from __future__ import annotations

from semlock._locks.async_form import AsyncFileForm
from semlock._locks.lock import SAFE, TextLock, called_by_its_name


class AsyncLock(AsyncFileForm, TextLock):  # type: ignore[misc]  # it refuses what Lock does
    """``Lock`` for tasks: held exactly while a file exists at its path.

    The options are those of ``Lock``, with these differences:

    :durability:  while a file is synced the loop stands still
    :reentrant:   whether the task that holds may acquire again, and release as often
    :held_by:     ``"task"``, or ``"object"``: the object holds, as for ``Lock``
    :on_wait:     called in the loop, as is ``cancel_check``

    Use it with ``async with``, as a decorator of coroutine functions, or by its methods.  It
    excludes ``Lock`` and all other holders, tasks that share one object too.  Only waiting is
    awaited: a try and a release take microseconds and are plain methods.

    It works in asyncio's loops and in trio's.
    """

    __slots__ = ("_holder",)

    _defaults = SAFE


called_by_its_name(AsyncLock)
