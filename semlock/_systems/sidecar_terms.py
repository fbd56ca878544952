"""The options and errors of the sidecar lock, and the arguments of its callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from time import time

from semlock import policy
from semlock._core import explain
from semlock._core.errors import LockHeldError, LockTimeoutError
from semlock._core.identity import ALIVE
from semlock._core.options import checked_age, function_error
from semlock.retry import Growing

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal, NoReturn, TypeAlias

    from semlock._core.identity import Verdict
    from semlock._core.status import LockStatus
    from semlock._systems.sidecar_waiting import Waiting
    from semlock._waiting.waiter import Schedule

    StaleRecovery: TypeAlias = Literal["fail-closed", "remove-if-unchanged"]

STALE = 30.0
FAIL_CLOSED: StaleRecovery = "fail-closed"
REMOVE_IF_UNCHANGED: StaleRecovery = "remove-if-unchanged"

_MIN_TIMEOUT = 0.05
_MAX_TIMEOUT = 1.0

# JavaScript's times, such as createdAt, are milliseconds.
_TICKS = 1000

# Node's timers make at least this of a pause of 0.
_SHORTEST_PAUSE = 0.001


class FileLockTimeoutError(LockTimeoutError):
    """The time or the retries are used up; its ``code`` is ``"file_lock_timeout"``."""

    code = "file_lock_timeout"
    lock_path: str | None = None
    normalized_target_path: str | None = None


class FileLockStaleError(LockHeldError):
    """The lock is stale and must stay; its ``code`` is ``"file_lock_stale"``."""

    code = "file_lock_stale"
    lock_path: str | None = None
    normalized_target_path: str | None = None


def timeout_error(lock: Waiting, waited: float) -> FileLockTimeoutError:
    """Make the error that names the holder for the given time."""
    told = explain.timeout_error(lock, waited, of_empty=lock.of_empty)
    error = FileLockTimeoutError(str(told), path=lock.path, status=told.status)
    error.lock_path = lock.path
    error.normalized_target_path = lock.normalized_target_path
    return error


def stale_error(lock: Waiting, found: LockStatus, recovery: str) -> FileLockStaleError:
    """Make the error that says why the lock is stale, and why it stays."""
    why = found.reason or "should_reclaim says so"
    if recovery == FAIL_CLOSED:
        left = f"stale_recovery is {FAIL_CLOSED!r}"
    elif found.verdict == ALIVE:
        left = "its holder lives"
    elif found.instance is not None and found.instance.error:
        left = "it can't be read whole"
    else:
        left = "should_remove_stale_lock did not allow to remove it"
    error = FileLockStaleError(
        f"{lock.path} is stale: {why}. It is held by {found.holder}, and is left alone because "
        f"{left}. Make sure that its holder can't still be writing, and remove it with "
        "semlock.remove(path, force=True)",
        path=lock.path,
        status=found,
    )
    error.lock_path = lock.path
    error.normalized_target_path = lock.normalized_target_path
    return error


class RetryOptions:
    """How often and how fast to try again.  All times are in seconds.

    ``retries``      tries after the first one; ``None`` for no end, 0 for one try
    ``factor``       how much longer each pause is than the one before
    ``min_timeout``  the first pause: 0.05, or ``max_timeout`` if that is shorter
    ``max_timeout``  the longest pause: 1, or ``min_timeout`` if that is longer
    ``randomize``    make each pause up to twice as long, by chance

    It is a retry schedule, so every lock takes it as ``retry=``.
    """

    __slots__ = ("factor", "max_timeout", "min_timeout", "randomize", "retries")

    def __init__(
        self,
        retries: int | None = None,
        factor: float = 2.0,
        min_timeout: float | None = None,
        max_timeout: float | None = None,
        randomize: bool = False,
    ) -> None:
        # True as one more try is hardly meant.
        whole = isinstance(retries, int) and not isinstance(retries, bool)
        if retries is not None and (not whole or retries < 0):
            raise ValueError(
                f"retries is None or a whole number from 0 on, not {retries!r:.60}"
            )
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not number or not factor >= 0:
            raise ValueError(f"factor is a number from 0 on, not {factor!r:.60}")
        if randomize not in (True, False):
            raise ValueError(f"randomize is True or False, not {randomize!r:.60}")
        shortest = None if min_timeout is None else checked_age(min_timeout, "min_timeout is")
        longest = None if max_timeout is None else checked_age(max_timeout, "max_timeout is")
        # A number that the caller gave is kept, and the other one's default is adapted to it.
        if shortest is None:
            shortest = _MIN_TIMEOUT if longest is None else min(_MIN_TIMEOUT, longest)
        if longest is None:
            longest = max(_MAX_TIMEOUT, shortest)
        if shortest > longest:
            raise ValueError(
                "pauses begin with min_timeout and end with max_timeout, not "
                f"{min_timeout!r} … {max_timeout!r}"
            )
        self.retries = retries
        self.factor = factor
        self.min_timeout = shortest
        self.max_timeout = longest
        self.randomize = randomize

    @classmethod
    def of(cls, retry: Schedule | Mapping[str, Any]) -> Schedule:
        """Make a schedule of ``retry``, which may be a dict of the options."""
        if callable(retry) or retry is None:
            return retry
        if not isinstance(retry, Mapping):
            raise function_error("retry", retry)
        unknown = [repr(name) for name in retry if name not in cls.__slots__]
        if unknown:
            raise TypeError(
                f"retry has no {', '.join(unknown)}: its options are "
                "RetryOptions(retries, factor, min_timeout, max_timeout, randomize), with times "
                "in seconds"
            )
        return cls(**retry)

    def __call__(self) -> Iterator[float]:
        """Give the pauses of one wait."""
        return Growing(
            max(self.min_timeout, _SHORTEST_PAUSE),
            factor=max(self.factor, 1.0),
            longest=max(self.max_timeout, _SHORTEST_PAUSE),
            retries=self.retries,
            randomize=self.randomize,
        )()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryOptions) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return (
            f"RetryOptions(retries={self.retries!r}, factor={self.factor!r}, "
            f"min_timeout={self.min_timeout!r}, max_timeout={self.max_timeout!r}, "
            f"randomize={self.randomize!r})"
        )


DEFAULT_RETRY = RetryOptions()


class Stale(policy.Policy):
    """The age rule: older than so many seconds by ``createdAt``, or else by the file's time.

    The lock of a holder that is known to be alive is never stale.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float | None) -> None:
        self.seconds = None if seconds is None else checked_age(seconds, "stale is None or")

    def __call__(self, status: LockStatus) -> str | None:
        """Say how old it is, if that is too old."""
        since = None if status.info is None else status.info.timestamp
        if since is None:
            since = status.written_at
        if self.seconds is None or since is None or status.verdict == ALIVE:
            return None
        now = time()
        if not policy.older(since, self.seconds, now, ticks=_TICKS):
            return None
        return f"it is {now - since:.1f} s old, more than {self.seconds:g} s"


class _Told:
    """An argument of a callback, which is read-only."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, **facts: Any) -> None:
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{type(self).__name__} has no {name}: it has {', '.join(self.__slots__)}, with times "
            "in seconds"
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} can't be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} can't be changed")

    def __repr__(self) -> str:
        told = (f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(told)})"


class ReclaimQuestion(_Told):
    """The argument of ``should_reclaim``, which decides whether a lock is stale.

    ``payload``               the record, or ``None`` if it is no JSON object
    ``stale``                 the option of this name, in seconds
    ``now``                   seconds since 1970
    ``held_by_this_process``  whether the same manager holds it
    ``verdict``               ``"alive"`` if the kernel shows that the holder lives, else
    ``"unknown"``
    """

    __slots__ = (
        "lock_path", "normalized_target_path", "payload", "stale", "now",
        "held_by_this_process", "verdict",
    )  # fmt: skip

    lock_path: str
    normalized_target_path: str
    payload: dict[str, Any] | None
    stale: float | None
    now: float
    held_by_this_process: bool
    verdict: Verdict


class StaleSnapshot(_Told):
    """The argument of ``should_remove_stale_lock``, which decides about exactly this lock.

    ``raw`` is the file's text, ``payload`` the object in it or ``None``.
    """

    __slots__ = ("lock_path", "normalized_target_path", "raw", "payload")

    lock_path: str
    normalized_target_path: str
    raw: str
    payload: dict[str, Any] | None
