"""The one place where code of locks reports what happens: each request, win, wait, loss and end.

``sink`` is ``None`` while there is no listener.  Then each acquire and each release pays for one
test of it, and nothing else.  What a sink does with a report, ``semlock/_events`` says; this
module knows neither locks nor listeners, only what the ones tell the others.
"""

from __future__ import annotations

from semlock._core import inside
from semlock._core.capi import POOL, release_lock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol

    from semlock._core.status import LockStatus
    from semlock._locks.base import BaseLock

    class Sink(Protocol):
        """What is reported.  Times are nanoseconds of the monotonic clock."""

        def acquiring(
            self, lock: BaseLock, steps: Generator[Any, Any, None]
        ) -> Generator[Any, Any, None]:
            """Do the steps of an acquire, and report its request, its win or its failure."""

        def tried(self, lock: BaseLock, asked: int, *, won: bool) -> None:
            """Report the result of a try that began at this time."""

        def failed(self, lock: BaseLock, asked: int, error: BaseException) -> None:
            """Report a try that ended with an error."""

        def won(self, lock: BaseLock) -> None:
            """Report a lock that was won as one of several."""

        def waits(self, lock: BaseLock) -> None:
            """Report that an acquire begins to wait."""

        def release(self, lock: BaseLock, let_go: Callable[[], int]) -> int:
            """Release a lock by this call, and report the end of the hold: the call's outcome."""

        def lost(self, lock: BaseLock) -> None:
            """Report that a hold was found to be lost."""

        def refreshed(self, lock: BaseLock) -> None:
            """Report a refresh."""

        def removed(self, found: LockStatus, *, robs: bool) -> None:
            """Report that a lock file was removed, perhaps from a holder that lives."""

        def tell(self, event: str, path: str, fields: dict[str, Any]) -> None:
            """Report what has no lock of its own, such as a wait for several locks."""


sink: Sink | None = None


def release(lock: BaseLock) -> int:
    """Release a lock by the core, and report that if there is a listener: the core's outcome."""
    now, native = sink, inside.native(lock)
    if now is not None:
        return now.release(lock, lambda: int(release_lock(native, POOL)))
    outcome: int = release_lock(native, POOL)
    return outcome


def tell(event: str, path: str, **fields: Any) -> None:
    """Report what has no lock of its own, if there is a listener."""
    now = sink
    if now is not None:
        now.tell(event, path, fields)
