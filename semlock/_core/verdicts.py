"""When a lock may be taken from its holder.

A policy is a callable: given a ``LockStatus`` it returns a reason why the lock may be removed, or
a false value.  The default is proof of death.
"""

from __future__ import annotations

from time import time

from semlock._core.identity import DEAD

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from semlock._core.status import LockStatus

    Policy: TypeAlias = Callable[[LockStatus], object]

# How long an unfinished file must be unchanged before it counts as abandoned.  Its creator
# doesn't hold it yet, so a removal takes it from no holder; the time only spares a slow creator a
# new start.
GRACE = 2.0


def proof_of_death(status: LockStatus) -> str | None:
    """Permit removal when the holder is known to be dead, and say how that is known."""
    return status.evidence if status.verdict == DEAD else None


def reason_to_remove(status: LockStatus, policy: Policy | None) -> str | None:
    """Ask a policy (``None`` for the default) for its reason, as text."""
    if status.unfinished and status.unchanged_for(time()) >= GRACE:
        return "it was never finished by the process that began to create it"
    answer = (policy or proof_of_death)(status)
    if not answer:
        return None
    return answer if isinstance(answer, str) else "the policy permits it"
