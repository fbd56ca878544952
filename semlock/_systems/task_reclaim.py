"""When a task lock may be taken from its holder: the decision tree, and its messages.

The tree gives possible reasons.  Expiry is one that takes the lock from no valid holder, and so
is proof of death, which the tree doesn't know.  The other three take it from a live holder, so
the caller must name them.
"""

from __future__ import annotations

import time

from semlock._core.errors import LockHeldError, LockRecordError
from semlock._core.identity import ALIVE, DEAD
from semlock._core.json_records import iso_time
from semlock._core.records import decode_text
from semlock._core.status import status_by
from semlock._systems.task_owner import LockOwner
from semlock._systems.task_records import TaskInfo, decode, is_number, shown_owner
from semlock.policy import Policy, ProofOfDeath

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, Literal, TypeAlias

    from semlock._core.status import LockStatus

    Reason: TypeAlias = Literal[
        "LOCK_EXPIRED", "SAME_USER", "HIGHER_PRIVILEGE", "EMERGENCY_OVERRIDE", "LOCK_HELD"
    ]
    Priority: TypeAlias = Literal["high", "medium", "low"]

LOCK_EXPIRED: Reason = "LOCK_EXPIRED"
SAME_USER: Reason = "SAME_USER"
HIGHER_PRIVILEGE: Reason = "HIGHER_PRIVILEGE"
EMERGENCY_OVERRIDE: Reason = "EMERGENCY_OVERRIDE"
LOCK_HELD: Reason = "LOCK_HELD"

# The reason in the record if the holder is dead, which the tree doesn't know.
HOLDER_DEAD = "HOLDER_DEAD"
BY_POLICY = "POLICY"

# Reasons that take the lock from a live holder, so that the caller must name them.
BY_NAME: tuple[Reason, ...] = (SAME_USER, HIGHER_PRIVILEGE, EMERGENCY_OVERRIDE)

_PRIORITIES: dict[str, Priority] = {
    LOCK_EXPIRED: "high",
    HOLDER_DEAD: "high",
    SAME_USER: "medium",
    HIGHER_PRIVILEGE: "medium",
    EMERGENCY_OVERRIDE: "high",
    LOCK_HELD: "low",
}

# The last second of a JavaScript Date.
_LAST_MOMENT = 8_640_000_000_000

# From the highest to the lowest; other environments can't be compared.
_PRIVILEGES = ("ci", "cloud", "local")


class ReclaimDecision:
    """The answer of the decision tree: whether a lock may be reclaimed, and why."""

    __slots__ = ("can_reclaim", "priority", "reason")

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        self.can_reclaim = reason != LOCK_HELD
        self.priority: Priority = _PRIORITIES[reason]

    def __bool__(self) -> bool:
        return self.can_reclaim

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReclaimDecision):
            return NotImplemented
        return self.reason == other.reason

    def __hash__(self) -> int:
        return hash(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReclaimDecision, (self.reason,)

    def __repr__(self) -> str:
        return (
            f"ReclaimDecision(can_reclaim={self.can_reclaim}, reason={self.reason!r}, "
            f"priority={self.priority!r})"
        )


class ReclaimDeniedError(LockHeldError):
    """A lock was not reclaimed; ``decision`` is the tree's answer."""

    decision: ReclaimDecision


def decide(
    existing: TaskInfo, owner: LockOwner | str | Mapping[str, Any], *, now: float | None = None
) -> ReclaimDecision:
    """Ask the decision tree about an owner and an existing lock.

    This takes nothing: see ``TaskLock.reclaim``.
    """
    info, moment = _checked(existing, now)
    return ReclaimDecision(next(_reasons(info, LockOwner.of(owner), moment), LOCK_HELD))


def _checked(existing: object, now: float | None) -> tuple[TaskInfo, float]:
    if not isinstance(existing, TaskInfo):
        raise TypeError(
            "an existing lock is a TaskInfo, such as task.status(path).info or "
            f"task.decode(content), not {existing!r:.60}"
        )
    if now is not None and not _is_moment(now):
        raise ValueError(f"now is None or seconds since 1970, not {now!r:.60}")
    return existing, time.time() if now is None else now


def _is_moment(now: Any) -> bool:
    return is_number(now) and abs(now) <= _LAST_MOMENT


def _reasons(existing: TaskInfo, owner: LockOwner, now: float) -> Iterator[Reason]:
    """Give all reasons, in the order of the tree."""
    if existing.expired(now):
        yield LOCK_EXPIRED
    theirs, ours = existing.metadata, owner.metadata
    user = ours.get("user_identity")
    if user and theirs.get("user_identity") == user:
        yield SAME_USER
    if _rank(ours) < _rank(theirs) and _rank(ours) >= 0:
        yield HIGHER_PRIVILEGE
    if owner.purpose == "emergency":
        yield EMERGENCY_OVERRIDE


def _rank(metadata: dict[str, Any]) -> int:
    environment = metadata.get("environment")
    return _PRIVILEGES.index(environment) if environment in _PRIVILEGES else -1


def permitted(
    found: LockStatus, owner: LockOwner, allowed: Collection[str], now: float
) -> str | None:
    """Give the first reason for which this lock may be taken, or ``None``."""
    info = found.info
    if isinstance(info, TaskInfo):
        reasons = list(_reasons(info, owner, now))
        if LOCK_EXPIRED in reasons:
            return LOCK_EXPIRED
        if found.verdict == DEAD:
            return HOLDER_DEAD
        return next((reason for reason in reasons if reason in allowed), None)
    # There is no record for the tree to decide about.
    return BY_POLICY if found.unfinished and found.reason is not None else None


def why_it_made_way(found: LockStatus, now: float) -> str:
    """Name the reason for which a policy has permitted to take a lock."""
    if isinstance(found.info, TaskInfo) and found.info.expired(now):
        return LOCK_EXPIRED
    return HOLDER_DEAD if found.verdict == DEAD else BY_POLICY


def holder_of(found: LockStatus) -> tuple[object, ...]:
    """Identify a holder, even if the next one's file has the same inode number."""
    look, info = found.instance, found.info
    assert look is not None
    owner = info.owner if isinstance(info, TaskInfo) else None
    return *look.identity, owner, None if info is None else info.token


def taken_from(info: TaskInfo, reason: str) -> tuple[str, str]:
    """Give the fields of the next record about the holder that lost the lock."""
    return shown_owner(info.owner), reason


def priority_of(reason: str) -> Priority | None:
    """Give the tree's priority of a reason."""
    return _PRIORITIES.get(reason)


def checked_allow(allow: str | Collection[str]) -> frozenset[str]:
    """Return the reasons that a caller names; an unknown name is an error."""
    try:
        named = frozenset((allow,) if isinstance(allow, str) else allow)
    except TypeError:
        named = frozenset(("",))  # neither a text nor a collection of texts
    if named.difference(BY_NAME, (LOCK_EXPIRED,)):
        raise ValueError(f"allow names one or more of {', '.join(BY_NAME)}, not {allow!r:.60}")
    return named


def checked_clock(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock if it can be called."""
    if not callable(clock):
        raise TypeError(f"clock is a function that gives seconds since 1970, not {clock!r:.60}")
    return clock


class Expired(Policy):
    """Permits a task lock whose time is over, whether its holder lives or not.

    A file that is no record of a task lock never expires.
    """

    __slots__ = ("clock",)

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = checked_clock(clock)

    def __call__(self, status: LockStatus) -> str | None:
        """Say for how long its time has been over."""
        info, now = status.info, self._now()
        if not isinstance(info, TaskInfo) or not info.expired(now):
            return None
        return f"its {info.ttl:g} s were over {info.seconds_held(now) - info.ttl:.0f} s ago"

    def due_in(self, status: LockStatus) -> float | None:
        """Return what is left of its time."""
        info, now = status.info, self._now()
        if not isinstance(info, TaskInfo):
            return None
        return 0.0 if info.expired(now) else max(0.001, info.ttl - info.seconds_held(now))

    def _now(self) -> float:
        now = self.clock()
        if not _is_moment(now):
            raise TypeError(f"the clock gives {now!r:.60}, and not seconds since 1970")
        return now


def stale(clock: Callable[[], float] = time.time) -> Policy:
    """Give the task lock's rule: expiry, or proof of death."""
    return ProofOfDeath() | Expired(clock)


# ---------------------------------------------------------------- messages


def held_message(info: TaskInfo, path: str, *, now: float | None = None) -> str:
    """Say who holds a lock, since when, for how long, and what can be done."""
    info, moment = _checked(info, now)
    since = info.timestamp or 0.0
    held = max(0, int((moment - since) // 60))
    left = int((since + info.ttl - moment) // 60)
    ends = f"expires in {left} minutes" if not info.expired(moment) else "has expired"
    return (
        f"{path} is locked by {shown_owner(info.owner)} since {_shown_time(since)}. Lock held for "
        f"{held} minutes, {ends}. Wait until it is released or expires; "
        "reclaim() takes it then, or before if a reason is named"
    )


def _shown_time(seconds: float) -> str:
    try:
        return iso_time(seconds)
    except LockRecordError:
        return "a time that no calendar has"


_DENIED: dict[str, str] = {
    LOCK_HELD: "Cannot reclaim: lock is still active and held by another owner",
    SAME_USER: "Cannot reclaim: you already own this lock, by another process or session. To "
    'take it from there, ask for it: reclaim(allow="SAME_USER")',
    HIGHER_PRIVILEGE: "Cannot reclaim: lock is still active. Your privilege is higher; to use "
    'it, ask for it: reclaim(allow="HIGHER_PRIVILEGE")',
    EMERGENCY_OVERRIDE: "Cannot reclaim: lock is still active. Emergency override must be asked "
    'for: reclaim(allow="EMERGENCY_OVERRIDE")',
}


def denied_message(reason: str) -> str:
    """Say why a lock was not reclaimed."""
    return _DENIED.get(reason, f"Cannot reclaim lock: {reason}")


def explain(found: LockStatus, path: str, now: float) -> str:
    """Say who holds a lock, or what is wrong with its record."""
    if isinstance(found.info, TaskInfo):
        message = held_message(found.info, path, now=now)
        return f"{message} (its holder is {found.verdict}: {found.evidence})"
    look = found.instance
    if look is None:
        return f"{path} was held until just now"
    own = status_by(path, decode_text)
    if own.info is not None and own.info.pid is not None:
        return f"{path} is no task lock: it is held by {own.holder}"
    wrong = found.evidence
    if not look.error and not found.unfinished:
        try:
            decode(look.content)
        except LockRecordError as error:
            wrong = str(error)
    held = f"{path} counts as held, because its file is no readable record: {wrong}"
    if found.verdict == ALIVE:
        return f"{held}; its holder lives"
    return (
        f"{held}. If you know that no program holds it, remove it with "
        "semlock.remove(path, force=True), or semlock break in a shell"
    )


def denied_error(
    found: LockStatus, path: str, owner: LockOwner, now: float
) -> ReclaimDeniedError:
    """Make the error for a lock that was not reclaimed."""
    info = found.info
    decision = ReclaimDecision(LOCK_HELD)
    if isinstance(info, TaskInfo):
        decision = decide(info, owner, now=now)
    error = ReclaimDeniedError(
        f"{denied_message(decision.reason)}. {explain(found, path, now)}",
        path=path,
        status=found,
    )
    error.decision = decision
    return error
