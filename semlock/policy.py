"""Policies: small values that say when a lock may be taken from its holder.

Pass one to any lock as ``policy=``.  ``|`` takes the lock if either side permits it, ``&`` if
both do; a plain function of a ``LockStatus`` can stand on either side::

    from semlock.policy import Age, Gone, ProofOfDeath

    Lock(path, policy=ProofOfDeath() | Age(3600))           # even from a live holder, after an hour
    Lock(path, policy=ProofOfDeath() | (Gone() & Age(60)))  # trusts foreign process numbers

A policy other than ``ProofOfDeath`` may take a lock from a live holder.  The holder finds out at
its next ``check``, ``refresh`` or ``release``.  An age is never reached too early: see ``older``.
"""

from __future__ import annotations

from os import fsencode
from time import time

from semlock._core import capi
from semlock._core.identity import ALIVE, DEAD, process_is_gone
from semlock._core.options import checked_age
from semlock._core.verdicts import GRACE, proof_of_death

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy as PolicyFunction

__all__ = [
    "Age", "All", "Any", "Gone", "LeftByKernelLock", "Policy", "ProofOfDeath", "Unreadable",
    "never",
]  # fmt: skip


class Policy:
    """The base of policies: called with a status, it returns a reason or ``None``."""

    __slots__ = ()

    def __call__(self, status: LockStatus) -> str | None:
        """Give the reason why the lock may be taken, or ``None``."""
        raise NotImplementedError

    def due_in(self, status: LockStatus) -> float | None:
        """Seconds until it permits the lock, 0 for now; ``None`` if time alone isn't enough."""
        return 0.0 if self(status) else None

    def __or__(self, other: PolicyFunction) -> Any:
        return Any(self, other)

    def __ror__(self, other: PolicyFunction) -> Any:
        return Any(other, self)

    def __and__(self, other: PolicyFunction) -> All:
        return All(self, other)

    def __rand__(self, other: PolicyFunction) -> All:
        return All(other, self)

    def __repr__(self) -> str:
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        return f"{type(self).__name__}({', '.join(repr(getattr(self, n)) for n in names)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def due_in(policy: PolicyFunction, status: LockStatus) -> float | None:
    """Ask any policy for these seconds; a plain function can only be asked about now."""
    if isinstance(policy, Policy):
        return policy.due_in(status)
    return 0.0 if policy(status) else None


def _words(answer: object) -> str | None:
    if not answer:
        return None
    return answer if isinstance(answer, str) else "the policy permits it"


class Any(Policy):
    """Permits what at least one of several policies permits."""

    __slots__ = ("policies",)

    def __init__(self, *policies: PolicyFunction) -> None:
        self.policies = policies

    def __call__(self, status: LockStatus) -> str | None:
        """Return the first reason."""
        for policy in self.policies:
            reason = _words(policy(status))
            if reason is not None:
                return reason
        return None

    def due_in(self, status: LockStatus) -> float | None:
        """Return the time of the first that permits it."""
        times = [due_in(policy, status) for policy in self.policies]
        return min((time for time in times if time is not None), default=None)


class All(Policy):
    """Permits what all of several policies permit."""

    __slots__ = ("policies",)

    def __init__(self, *policies: PolicyFunction) -> None:
        self.policies = policies

    def __call__(self, status: LockStatus) -> str | None:
        """Return all reasons, if none is missing."""
        reasons = []
        for policy in self.policies:
            reason = _words(policy(status))
            if reason is None:
                return None
            reasons.append(reason)
        return " and ".join(reasons) or None

    def due_in(self, status: LockStatus) -> float | None:
        """Return the time of the last that permits it, if time is enough for all."""
        times = [due_in(policy, status) for policy in self.policies]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None


class ProofOfDeath(Policy):
    """Permits the lock of a dead process: the default of every lock."""

    __slots__ = ()

    def __call__(self, status: LockStatus) -> str | None:
        """Return the evidence of death."""
        return proof_of_death(status)


# The rounding error between two floats of the same present time, with a margin.
_ROUNDING = 1e-6


def older(since: float, limit: float, now: float, *, ticks: int | None = None) -> bool:
    """Tell whether a time stamp is older than a limit: strictly, and never too early.

    A stamp in whole seconds (an ``int``) may be almost a second older than its time.  So the
    clock is read in whole seconds too, and the limit is rounded up.  ``ticks`` is the number of
    ticks in a second for other units; without it, a float is exact.
    """
    if ticks is None:
        if not isinstance(since, int):
            return now - since > limit
        ticks = 1
    counted = (now + _ROUNDING) * ticks // 1 - (since + _ROUNDING) * ticks // 1
    return counted - 1 >= limit * ticks


class Age(Policy):
    """Permits a lock that is older than so many seconds by its record; ``None`` or 0 never.

    Most records have whole seconds: then a fraction is rounded up, see ``older``.  A file
    without a readable record has no age: see ``Unreadable``.  With ``or_file=True`` the file's
    modification time is used if the record has no time.
    """

    __slots__ = ("seconds", "or_file")

    def __init__(self, seconds: float | None, *, or_file: bool = False) -> None:
        self.seconds = None if seconds is None else checked_age(seconds, "an age is")
        self.or_file = or_file

    def _since(self, status: LockStatus) -> float | None:
        since = None if status.info is None else status.info.timestamp
        return status.written_at if since is None and self.or_file else since

    def __call__(self, status: LockStatus) -> str | None:
        """Say how old it is, if that is too old."""
        since, now = self._since(status), time()
        if not self.seconds or since is None or may_be_cut(status):
            return None
        if not older(since, self.seconds, now):
            return None
        return f"it is {now - since:.0f} s old, more than {self.seconds:g} s"

    def due_in(self, status: LockStatus) -> float | None:
        """Give the time until it is old enough."""
        since = self._since(status)
        if not self.seconds or since is None:
            return None
        if self(status):
            return 0.0
        exact = 1.0 if isinstance(since, int) else 0.0
        return max(0.0, since + self.seconds + exact - time())


# A time since 2001 and until 2286 has ten digits; one with fewer was cut off, or is very old.
_TEN_DIGITS = 1_000_000_000


def may_be_cut(status: LockStatus) -> bool:
    """Tell whether a time may be incomplete because a foreign program is still writing it.

    Cut off, a present time looks decades old.  So a time with fewer digits is believed only if
    the file was unchanged for the grace time.
    """
    look = status.instance
    since = None if status.info is None else status.info.timestamp
    if look is None or since is None or since >= _TEN_DIGITS:
        return False
    if look.content.endswith((b"\n", b"}")):
        return False  # complete: text ends with a newline, JSON with a brace
    return status.unchanged_for(time()) < GRACE


class Gone(Policy):
    """Permits a lock whose process number doesn't exist on this machine.

    Most foreign records don't say on which machine or in which container their process runs,
    and this trusts them; one that names another host is not taken.  An existing process counts
    as the holder, even if it reuses the number.
    """

    __slots__ = ()

    def __call__(self, status: LockStatus) -> str | None:
        """Say which process doesn't exist."""
        if status.verdict == DEAD:
            return status.evidence
        info = status.info
        if info is None or info.pid is None or not process_is_gone(info):
            return None
        return f"process {info.pid} does not exist here"


class Unreadable(Policy):
    """Permits a file that is no record and was unchanged for so many seconds.

    Foreign programs create the file first and write later: the time keeps their lock safe.
    """

    __slots__ = ("grace",)

    def __init__(self, grace: float = GRACE) -> None:
        self.grace = grace

    def __call__(self, status: LockStatus) -> str | None:
        """Say for how long it has been no record."""
        look = status.instance
        if status.info is not None or look is None:
            return None
        if look.kind != capi.REGULAR or look.error == _NO_PERMISSION:
            return None
        unchanged = status.unchanged_for(time())
        if unchanged < self.grace:
            return None
        return f"it has been no readable record for {unchanged:.0f} s"


_NO_PERMISSION = -13


class LeftByKernelLock(Policy):
    """Permits an empty file that no program locks, and that was unchanged for so many seconds.

    filelock, flock(1) and fasteners leave such a file.  It goes only if the kernel has no lock on
    it, neither of flock(2) nor of fcntl(2), of any process of this machine.  A program that has
    opened it and locks it later would lock a file that is gone: use this only where no program
    locks the path like that any more, and ``semlock.KernelLock`` where one does.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = checked_age(seconds, "an age is")

    def _may_be_left(self, status: LockStatus) -> bool:
        look = status.instance
        return look is not None and look.kind == capi.REGULAR and status.is_empty

    def __call__(self, status: LockStatus) -> str | None:
        """Say that no program locks it, and for how long it has been there."""
        unchanged = status.unchanged_for(time())
        if not self._may_be_left(status) or unchanged < self.seconds:
            return None
        if status.verdict == ALIVE or capi.kernel_locked(fsencode(status.path), anyhow=True):
            return None
        return f"it is empty, no program locks it, and it was unchanged for {unchanged:.0f} s"

    def due_in(self, status: LockStatus) -> float | None:
        """Give the time until it is old enough."""
        if self(status):
            return 0.0
        left = self.seconds - status.unchanged_for(time())
        return left if left > 0 and self._may_be_left(status) else None


def never(status: LockStatus) -> None:  # noqa: ARG001 - a policy is asked with a status
    """Permit nothing, not even proof of death."""
    return
