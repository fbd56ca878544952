"""``semlock.AsyncLock``: the default lock for tasks, which wait without holding up their loop."""

from __future__ import annotations

from semlock._locks.async_form import AsyncForm
from semlock._locks.lock import TextLock, called_by_its_name
from semlock._stores.async_file import InFilesForTasks

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from semlock._core.status import StrPath
    from semlock._locks.options import LockOptions


class AsyncFileForm(InFilesForTasks, AsyncForm):
    """What makes of a lock that is a file one for tasks."""

    __slots__ = ()


class AsyncLock(AsyncFileForm, TextLock):  # type: ignore[misc]  # it refuses what Lock does
    """``Lock`` for tasks: held exactly while a file exists at its path.

    :path:        the lock file; its directory must exist, or ``make_dirs`` be true
    :tag:         why it is held, for people; a line of text in the record
    :timeout:     seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :policy:      when a lock may be taken from its holder (see ``semlock.policy``)
    :retry:       the pauses of a wait (see ``semlock.retry``); by default it goes by events
    :durability:  what a power cut may do: ``"safe"``, ``"full"``, ``"data"`` or ``"none"``, as
                    for ``Lock``.  While a file is synced the loop stands still
    :mode:        the lock file's permissions, less the umask; its owner can always use it
    :exact_mode:  whether it gets them whatever the umask is, for a lock that users share
    :make_dirs:   whether missing directories of the path are made when the lock is taken
    :reentrant:   whether the task that holds may acquire again, and release as often
    :held_by:     ``"task"``: as above.  ``"object"``: the object holds, as for ``Lock``
    :fair:        whether this lock is taken only in turn
    :heartbeat:   seconds between refreshes of the record, by a thread; ``None`` for none
    :on_lost:     called with the lock and the error when a refresh finds it lost, by a thread
                    for such calls: it may wait, and holds up no other refresh
    :on_wait:     called in the loop with the ``LockStatus`` and the seconds waited so far
    :cancel_check:  called in the loop about every 50 ms of a wait; if it returns true, the wait
                    ends with ``LockCancelledError``

    Use it with ``async with``, as a decorator of coroutine functions, or by its methods.  It
    excludes ``Lock`` and all other holders, tasks that share one object too.  Only waiting is
    awaited: a try and a release take microseconds and are plain methods.

    It works in asyncio's loops and in trio's.
    """

    __slots__ = ("_holder",)

    if TYPE_CHECKING:

        def __init__(self, path: StrPath, **options: Unpack[LockOptions]) -> None: ...


called_by_its_name(AsyncLock, durability="safe")
