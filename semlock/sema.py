"""sema: the text format of the Rust tool and of other programs with its protocol 1.0.

A lock is stale by age alone, strictly older than ``stale_timeout`` seconds, whether its
holder lives or not: that is the protocol's rule, and why ``semlock.Lock`` has another one.
Locks of semlock processes that are proven dead are taken over at once besides.
"""

from __future__ import annotations

from semlock import policy, retry
from semlock._core.options import or_else
from semlock._core.records import decode_text, restamp_text
from semlock._locks.lock import TextLock
from semlock.systems import System, for_tasks, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy

__all__ = ["STALE_TIMEOUT", "AsyncSemaphore", "Semaphore", "decode", "stale", "status"]

STALE_TIMEOUT = 3600.0
RETRY_INTERVAL = 0.1
REFRESH_INTERVAL = 600.0  # of a lock that the command holds: several times in an hour

decode = decode_text


def stale(stale_timeout: float | None = STALE_TIMEOUT) -> Policy:
    """Give sema's rule: stale by age; ``None`` or 0 switches it off."""
    return policy.ProofOfDeath() | policy.Age(stale_timeout)


class Semaphore(TextLock):
    """A lock by sema's protocol.

    :stale_timeout:   seconds after which a lock counts as stale; 0 or ``None``: never.
                        Records count whole seconds, so a fraction is rounded up
    :retry_interval:  seconds between two tries of a wait
    :timeout:         seconds that ``acquire`` waits: ``None`` for ever, 0 one try

    The other options are those of ``semlock.Lock``; ``policy`` and ``retry`` replace the two
    that are made of the numbers above.  Refresh a lock that is held for longer than others'
    ``stale_timeout``, or let ``heartbeat`` do so.
    """

    __slots__ = ()
    _strict = True

    def __init__(
        self,
        path: StrPath,
        *,
        stale_timeout: float | None = STALE_TIMEOUT,
        retry_interval: float = RETRY_INTERVAL,
        **options: Unpack[LockOptions],
    ) -> None:
        or_else(options, policy=stale(stale_timeout), retry=retry.Every(retry_interval))
        super().__init__(path, **options)


def status(path: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT) -> LockStatus:
    """Say who holds the lock at this path by sema's rules."""
    return SYSTEM.status(path, stale(stale_timeout))


def _lock_at(
    path: StrPath,
    *,
    stale: float | None = STALE_TIMEOUT,
    kind: type[Semaphore] = Semaphore,
    **options: Any,
) -> Semaphore:
    return kind(path, stale_timeout=stale, **options)


SYSTEM = System(
    "sema",
    decode=decode,
    stale=stale,
    recognises=lambda info: info.token is None,
    claims=later("semlock._systems.claims", "sema"),
    restamp=restamp_text,
    refresh=lambda _: REFRESH_INTERVAL,
    lock=_lock_at,
    options=("stale",),
    async_lock=later("semlock._systems.async_forms", "sema_at"),
)

if TYPE_CHECKING:
    from semlock._systems.async_forms import SemaAsyncSemaphore as AsyncSemaphore
else:
    __getattr__ = for_tasks(__name__, AsyncSemaphore="SemaAsyncSemaphore")
