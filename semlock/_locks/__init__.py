"""Lock objects and the ways to acquire them: one, any, all, slots, readers and writer.

Its own names are what ``acquire()`` of a thread takes by default, and what it gives.
"""

from __future__ import annotations

import sys

from semlock._core.inside import unstruck

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

_frame = sys._getframe


class _FromLock:
    """The default of ``acquire(timeout=...)``: the lock's own timeout."""

    def __repr__(self) -> str:
        return "the lock's own timeout"


OWN_TIMEOUT: Any = _FromLock()


class Acquired:
    """What ``acquire()`` returns: a context manager that releases, without acquiring again."""

    # Set by the caller: an ``__init__`` would be a call more in each acquire.
    __slots__ = ("lock",)

    lock: Any

    def __enter__(self) -> Any:
        if not self.lock.held:
            self.lock.check()  # an error that says why
        return self.lock

    @unstruck
    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(*error)

    def __repr__(self) -> str:
        return f"<{self.lock!r}, acquired>"


class Decorates:
    """A context manager that decorates functions, which then run in its block."""

    __slots__ = ()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, which then runs under the lock."""
        from semlock._locks import decorating  # noqa: PLC0415 - only for those who decorate

        decorated: Callable[P, T] = decorating.decorate(self, function)
        return decorated


class Entering(Decorates, Acquired):
    """A context manager that acquires when it is entered."""

    __slots__ = ("_limit", "_take")

    def __init__(
        self, lock: Any, take: Callable[[float | None, FrameType], None], limit: float | None
    ) -> None:
        self.lock = lock
        self._take = take
        self._limit = limit

    def __enter__(self) -> Any:
        self._take(self._limit, _frame(1))
        return self.lock

    def __repr__(self) -> str:
        return f"<{self.lock!r}, to be entered>"
