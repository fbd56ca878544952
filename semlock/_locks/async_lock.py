"""``semlock.AsyncLock``: the default lock for tasks, which wait without holding up their loop."""

from __future__ import annotations

from semlock._locks.async_form import AsyncForm
from semlock._locks.lock import TextLock, called_by_its_name
from semlock._stores.async_file import InFilesForTasks

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._core.errors import LockLostError
    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy
    from semlock._locks.options import Durability
    from semlock._waiting.waiter import Schedule


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
    :durability:  what is on the disk before the lock is visible: ``"full"``, ``"data"`` or
                    ``"none"``.  The loop stands still until it is
    :mode:        the lock file's permissions, less the umask; its owner can always use it
    :make_dirs:   whether missing directories of the path are made when the lock is taken
    :reentrant:   whether the task that holds may acquire again, and release as often
    :fair:        whether this lock is taken only in turn
    :heartbeat:   seconds between refreshes of the record, by a thread; ``None`` for none
    :on_lost:     called with the lock and the error when a refresh finds it lost, by a thread
                    for such calls: it may wait, and holds up no other refresh
    :on_wait:     called in the loop with the ``LockStatus`` and the seconds waited so far

    Use it with ``async with``, as a decorator of coroutine functions, or by its methods.  It
    excludes ``Lock`` and all other holders, tasks that share one object too.  Only waiting is
    awaited: one try, and letting go, take microseconds and are plain methods.

    It works in asyncio's loops and in trio's.
    """

    __slots__ = ("_holder",)

    if TYPE_CHECKING:
        # The engine's own parameters, with the type that on_lost sees here.
        def __init__(
            self,
            path: StrPath,
            *,
            tag: str | None = None,
            timeout: float | None = None,
            policy: Policy | None = None,
            retry: Schedule | None = None,
            durability: Durability = "full",
            mode: int = 0o644,
            make_dirs: bool = False,
            reentrant: bool = False,
            fair: bool = False,
            heartbeat: float | None = None,
            on_lost: Callable[[AsyncLock, LockLostError], object] | None = None,
            on_wait: Callable[[LockStatus, float], object] | None = None,
        ) -> None: ...


called_by_its_name(AsyncLock)
