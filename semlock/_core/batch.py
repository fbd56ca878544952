"""Many tries in one call of the core."""

from __future__ import annotations

from semlock._core import HELD
from semlock._core.capi import POOL
from semlock._core.compiled import ffi, lib

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence

    from semlock._core.compiled import semlock_lock


class Batch:
    """The outcomes of many tries in one call; their memory exists before the call begins."""

    __slots__ = ("_errors", "_locks", "_outcomes", "count")

    def __init__(self, locks: Sequence[semlock_lock]) -> None:
        self.count = len(locks)
        self._locks = ffi.new("semlock_lock *[]", locks)
        self._errors = ffi.new("int32_t[]", self.count)
        self._outcomes = ffi.new("char[]", bytes((HELD,)) * self.count)

    def run(self, *, anyway: bool = True) -> None:
        """Try all locks without the GIL; ``anyway`` ignores waiters, except for fair locks."""
        self._run(lib.SEMLOCK_ANYWAY if anyway else lib.SEMLOCK_IN_TURN)

    def look(self) -> bytes:
        """Look at all locks, and list FREE, HELD and LOOK."""
        self._run(lib.SEMLOCK_ONLY_LOOK)
        return self.outcomes

    def _run(self, how: int) -> None:
        lib.semlock_try_many(self._locks, self._outcomes, self._errors, self.count, how, POOL)

    @property
    def outcomes(self) -> bytes:
        """List the outcomes; 255 stands for an error."""
        return ffi.buffer(self._outcomes, self.count)[:]

    def error(self, index: int) -> int:
        """Give the native error of one try."""
        return self._errors[index]
