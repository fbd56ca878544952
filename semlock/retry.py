"""Retry schedules: small values that say how a lock's wait pauses between its tries.

Pass one to any lock as ``retry=``.  Called, it gives the pauses of one wait in seconds; after the
last one the wait ends as if its timeout had passed.
"""

from __future__ import annotations

from semlock._core.options import checked_pause
from semlock._waiting.steps import chance as _chance

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Every", "Growing"]


class Every:
    """Pause for the same time before each try; ``retries`` bounds their number."""

    __slots__ = ("retries", "seconds")

    def __init__(self, seconds: float, *, retries: int | None = None) -> None:
        self.seconds = checked_pause(seconds, "a pause")
        self.retries = _checked_retries(retries)

    def __call__(self) -> Iterator[float]:
        """Give the pauses of one wait."""
        done = 0
        while self.retries is None or done < self.retries:
            yield self.seconds
            done += 1

    def __repr__(self) -> str:
        return f"Every({self.seconds!r}, retries={self.retries!r})"


class Growing:
    """Pause longer before each try: ``first``, then ``factor`` times as long, up to ``longest``.

    With ``randomize`` each pause is up to twice as long, so that waiters which began together
    are spread.
    """

    __slots__ = ("factor", "first", "longest", "randomize", "retries")

    def __init__(
        self,
        first: float = 0.05,
        *,
        factor: float = 2.0,
        longest: float = 1.0,
        retries: int | None = None,
        randomize: bool = False,
    ) -> None:
        if not _is_above(first, 0) or not (_is_above(longest, 0) and first <= longest):
            raise ValueError(
                f"pauses begin above 0 and end at `longest`, not {first!r} … {longest!r}"
            )
        if not isinstance(factor, (int, float)) or not factor >= 1:
            raise ValueError(f"factor is a number from 1 on, not {factor!r}")
        self.first = first
        self.factor = factor
        self.longest = longest
        self.retries = _checked_retries(retries)
        self.randomize = randomize

    def __call__(self) -> Iterator[float]:
        """Give the pauses of one wait."""
        pause = self.first
        done = 0
        while self.retries is None or done < self.retries:
            yield min(pause * (1 + _chance() if self.randomize else 1), self.longest)
            pause = min(pause * self.factor, self.longest)
            done += 1

    def __repr__(self) -> str:
        return (
            f"Growing({self.first!r}, factor={self.factor!r}, longest={self.longest!r}, "
            f"retries={self.retries!r}, randomize={self.randomize!r})"
        )


def _is_above(number: object, limit: float) -> bool:
    return isinstance(number, (int, float)) and number > limit


def _checked_retries(retries: int | None) -> int | None:
    if retries is not None and (not isinstance(retries, int) or retries < 0):
        raise ValueError(f"retries is None or a number from 0 on, not {retries!r}")
    return retries
