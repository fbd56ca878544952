"""sema: the text format of the Rust tool and of everybody who follows its protocol 1.0.

A lock is stale by age alone, strictly older than ``stale_timeout`` seconds, whether its
holder lives or not: that is the protocol's rule, and why ``semlock.Lock`` has another one.
Locks of semlock processes that are proven dead are taken over at once besides.
"""

from __future__ import annotations

from semlock import _dialects, policy, retry
from semlock._lock import TextLock
from semlock._records import decode_text

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._engine import Durability
    from semlock._errors import LockLostError
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath
    from semlock._waiting import Schedule

__all__ = ["STALE_TIMEOUT", "Semaphore", "decode", "stale", "status"]

STALE_TIMEOUT = 3600.0
RETRY_INTERVAL = 0.1

decode = decode_text


def stale(stale_timeout: float | None = STALE_TIMEOUT) -> Policy:
    """Give sema's rule: stale by age; ``None`` or 0 switches it off."""
    return policy.ProofOfDeath() | policy.Age(stale_timeout)


class Semaphore(TextLock):
    """A lock by sema's protocol.

    :stale_timeout:   seconds after which a lock counts as stale; 0 or ``None``: never
    :retry_interval:  seconds between two tries of a wait
    :timeout:         seconds that ``acquire`` waits: ``None`` for ever, 0 one try

    The other options are those of ``semlock.Lock``; ``policy`` and ``retry`` replace the two
    that are made of the numbers above.  Refresh a lock that is held for longer than others'
    ``stale_timeout``, or let ``heartbeat`` do so.
    """

    __slots__ = ()

    def __init__(
        self,
        path: StrPath,
        *,
        stale_timeout: float | None = STALE_TIMEOUT,
        retry_interval: float = RETRY_INTERVAL,
        timeout: float | None = None,
        tag: str | None = None,
        policy: Policy | None = None,
        retry: Schedule | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        reentrant: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[Semaphore, LockLostError], object] | None = None,
    ) -> None:
        super().__init__(
            path,
            tag=tag,
            timeout=timeout,
            policy=policy or stale(stale_timeout),
            retry=retry or _every(retry_interval),
            durability=durability,
            mode=mode,
            reentrant=reentrant,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )


_every = retry.Every


def status(path: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT) -> LockStatus:
    """Say who holds the lock at this path by sema's rules."""
    return _dialects.status(path, decode, stale(stale_timeout))
