"""What all locks can be told, and what ``acquire()`` gives a thread."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Literal, TypeAlias, TypedDict

    from semlock._core.errors import LockLostError
    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy
    from semlock._locks.base import BaseLock
    from semlock._waiting.waiter import Schedule

    Durability: TypeAlias = Literal["safe", "full", "data", "none"]
    HeldBy: TypeAlias = Literal["thread", "task", "object"]

    class PlainOptions(TypedDict, total=False):
        """What every lock can be told, without ``retry``, which some take in another form too."""

        tag: str | None
        timeout: float | None
        policy: Policy | None
        durability: Durability
        mode: int
        exact_mode: bool
        make_dirs: bool
        reentrant: bool
        held_by: HeldBy | None
        fair: bool
        heartbeat: float | None
        on_lost: Callable[[Any, LockLostError], object] | None
        on_wait: Callable[[LockStatus, float], object] | None
        cancel_check: Callable[[], object] | None

    class LockOptions(PlainOptions, total=False):
        """What every lock can be told; ``semlock.Lock`` says what it means."""

        retry: Schedule | None


class _FromLock:
    """The default of ``acquire(timeout=...)``: the lock's own timeout."""

    def __repr__(self) -> str:
        return "the lock's own timeout"


OWN_TIMEOUT: Any = _FromLock()


class Acquired:
    """What ``acquire()`` returns: a context manager that releases, without acquiring again."""

    # Set by the caller: an ``__init__`` would be a call more in each acquire.
    __slots__ = ("lock",)

    lock: BaseLock

    def __enter__(self) -> BaseLock:
        return self.lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.lock.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<{self.lock!r}, acquired>"
