"""What ``acquire()`` of a thread takes by default, and what it gives."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from semlock._locks.base import BaseLock


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
