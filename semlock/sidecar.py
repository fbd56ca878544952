"""sidecar: the lock in a JSON file beside its target, as ``@openclaw/fs-safe`` has it.

::

    from semlock import sidecar

    with sidecar.acquire_file_lock("state.json", timeout=5):
        ...

A stale lock, one that is older than ``stale`` seconds and whose holder is not known to live,
is an error and stays (``"fail-closed"``), unless the caller says otherwise and vouches for it
(``"remove-if-unchanged"``).  Locks that fs-safe 0.3 and 0.21 write are read, and ours by them.

Each call has an async form, which waits in the event loop and takes coroutine functions as
callbacks.
"""

from __future__ import annotations

import sys

from semlock._systems.sidecar_held import FileLockHandle, HeldEntry
from semlock._systems.sidecar_lock import SidecarLock
from semlock._systems.sidecar_manager import Acquisition, FileLockManager, with_async, with_sync
from semlock._systems.sidecar_record import (
    RECLAIM_SUFFIX,
    SUFFIX,
    decode,
    default_payload,
    normalize,
    restamp,
)
from semlock._systems.sidecar_terms import (
    STALE,
    FileLockStaleError,
    FileLockTimeoutError,
    ReclaimQuestion,
    RetryOptions,
    Stale,
    StaleSnapshot,
)
from semlock.systems import System, for_tasks, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar, overload

    from typing_extensions import Unpack

    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy
    from semlock._systems.sidecar_manager import FileLockOptions

    T = TypeVar("T")

__all__ = [
    "STALE", "AsyncSidecarLock", "FileLockHandle", "FileLockManager", "FileLockStaleError",
    "FileLockTimeoutError", "HeldEntry", "ReclaimQuestion", "RetryOptions", "SidecarLock",
    "StaleSnapshot", "acquire_file_lock", "acquire_file_lock_async",
    "create_file_lock_manager", "decode", "default_payload", "stale", "status",
    "with_file_lock", "with_file_lock_async",
]  # fmt: skip

_frame = sys._getframe

REFRESH_INTERVAL = 10.0  # of a lock that the command holds


def create_file_lock_manager(key: str) -> FileLockManager:
    """Give the manager of a key, for a program that wants to see and end the locks it holds."""
    return FileLockManager(key)


def acquire_file_lock(
    target: StrPath, *, manager_key: str | None = None, **options: Unpack[FileLockOptions]
) -> FileLockHandle:
    """Lock a target by the file ``<target>.lock``; all times are in seconds.

    :payload:                   gives the JSON object of the record, anew for each try
    :manager_key:               whose table the lock is entered in; by default the target's
    :lock_path:                 another place for the lock file
    :stale:                     the age after which a lock is stale, 30; ``None``: never
    :timeout:                   how long to wait: ``None`` for ever, 0 for one try
    :retry:                     the number of tries and the pauses between them
    :stale_recovery:            ``"fail-closed"``: a stale lock is an error;
                                ``"remove-if-unchanged"``: it is removed if the caller agrees
    :allow_reentrant:           join a lock that the same manager holds already
    :should_reclaim:            asked with a ``ReclaimQuestion`` instead of the age rule
    :should_remove_stale_lock:  asked with a ``StaleSnapshot``; without it none is removed
    :metadata:                  shown by ``held_entries``

    The other options are those of ``SidecarLock``.  The target's own directory is made in any
    case.

    Raises ``FileLockTimeoutError`` or ``FileLockStaleError``.
    """
    return Acquisition(manager_key, target, _frame(1), **options).run()


async def acquire_file_lock_async(
    target: StrPath, *, manager_key: str | None = None, **options: Unpack[FileLockOptions]
) -> FileLockHandle:
    """Lock a target as ``acquire_file_lock`` does, and wait in the event loop.

    The callbacks may be coroutine functions.  When the task is cancelled nothing is held.
    """
    return await Acquisition(manager_key, target, _frame(1), **options).run_async()


def with_file_lock(
    target: StrPath,
    function: Callable[[], T],
    *,
    manager_key: str | None = None,
    **options: Unpack[FileLockOptions],
) -> T:
    """Call a function under the lock of a target, and give its result."""
    return with_sync(Acquisition(manager_key, target, _frame(1), **options), function)


if TYPE_CHECKING:

    @overload
    async def with_file_lock_async(
        target: StrPath,
        function: Callable[[], Awaitable[T]],
        *,
        manager_key: str | None = None,
        **options: Unpack[FileLockOptions],
    ) -> T: ...
    @overload
    async def with_file_lock_async(
        target: StrPath,
        function: Callable[[], T],
        *,
        manager_key: str | None = None,
        **options: Unpack[FileLockOptions],
    ) -> T: ...


async def with_file_lock_async(
    target: StrPath,
    function: Callable[[], Any],
    *,
    manager_key: str | None = None,
    **options: Unpack[FileLockOptions],
) -> Any:
    """Call a function or coroutine function under the lock of a target."""
    return await with_async(Acquisition(manager_key, target, _frame(1), **options), function)


def stale(seconds: float | None = STALE) -> Policy:
    """Give the age rule as a policy: older than so many seconds, and not known to live."""
    return Stale(seconds)


def status(
    target: StrPath, *, lock_path: StrPath | None = None, stale: float | None = STALE
) -> LockStatus:
    """Say who holds the lock of a target, and whether it is stale by age."""
    path = normalize(target) + SUFFIX if lock_path is None else lock_path
    return SYSTEM.status(path, Stale(stale))


def _lock_at(
    path: str,
    *,
    stale: float | None = STALE,
    kind: type[SidecarLock] = SidecarLock,
    **options: Any,
) -> SidecarLock:
    """Make the lock of which this is the file."""
    return kind(path.removesuffix(SUFFIX), lock_path=path, stale=stale or None, **options)


SYSTEM = System(
    "sidecar",
    decode=decode,
    stale=stale,
    fails_closed=True,
    weak=True,  # any JSON object may be a record
    claims=later("semlock._systems.claims", "sidecar"),
    guard=RECLAIM_SUFFIX,
    restamp=lambda content, _, now: restamp(content, int(now)),
    refresh=lambda _: REFRESH_INTERVAL,
    lock=_lock_at,
    options=("stale",),
    async_lock=later("semlock._systems.async_forms", "sidecar_at"),
)


# Names as users write them, in tracebacks and in pickles.
for _name in __all__:
    if isinstance(globals().get(_name), type):
        globals()[_name].__module__ = __name__
del _name

if TYPE_CHECKING:
    from semlock._systems.async_forms import AsyncSidecarLock
else:
    __getattr__ = for_tasks(__name__, AsyncSidecarLock="AsyncSidecarLock")
