"""What a run has found, and how it stands against what was promised."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.measuring import FLOOR

if TYPE_CHECKING:
    from benchmarks.measuring import Group

TIMES = "\N{MULTIPLICATION SIGN}"


def number(value: float) -> str:
    """Give a number with about three digits that say something."""
    return f"{value:.{3 if value < 2 else 2 if value < 10 else 1 if value < 100 else 0}f}"


@dataclass(frozen=True)
class Judged:
    """A promise, and what came of it."""

    what: str
    bar: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Limit:
    """One promise about the ratio of two contenders of one group."""

    group: str
    key: str
    against: str
    ratio: float  # at most
    what: str

    @property
    def of_floor(self) -> bool:
        return self.against == FLOOR

    @property
    def bar(self) -> str:
        """Say it as people do: how much of the floor's time, how much faster than a peer."""
        if self.of_floor:
            return f"≤ {self.ratio:.2g} {TIMES} the C floor"
        return f"≥ {1 / self.ratio:.3g} {TIMES} faster than {self.against}"

    def judge(self, groups: dict[str, Group]) -> Judged | None:
        """Hold it against what was measured; ``None`` if a contender was missing."""
        found = groups[self.group].ratio(self.key, self.against)
        if found is None:
            return None
        ratio = found.median
        said = (
            f"{number(ratio)} {TIMES}"
            if self.of_floor
            else f"{number(1 / ratio)} {TIMES} faster"
        )
        return Judged(self.what, self.bar, said, ratio <= self.ratio)


_REUSED = "acquire + release, Lock used again"
_NEW = "acquire + release, new Lock each time"
_FIRST = f"{_NEW}, nothing kept"
_TRY = "failed try on a held lock"

LIMITS = (
    Limit("tmpfs", "reused", FLOOR, 0.85, _REUSED),
    Limit("tmpfs", "reused", "fasteners", 1 / 1.7, _REUSED),
    Limit("tmpfs", "reused", "portalocker", 1 / 1.7, _REUSED),
    Limit("tmpfs", "reused", "SoftFileLock", 1 / 13, _REUSED),
    Limit("tmpfs", "new", FLOOR, 1.7, _NEW),
    Limit("tmpfs", "first", FLOOR, 1.7, _FIRST),
    Limit("synced", "reused", FLOOR, 0.6, f"{_REUSED}, fsync"),
    Limit("synced", "new", FLOOR, 1.0, f"{_NEW}, fsync"),
    Limit("synced", "first", FLOOR, 1.0, f"{_FIRST}, fsync"),
    Limit("default", "reused", FLOOR, 0.75, f"{_REUSED}, on disk by default"),
    Limit("default", "first", FLOOR, 2.0, f"{_FIRST}, on disk by default"),
    Limit("default", "reused", "FileLock", 1 / 8, f"{_REUSED}, on disk by default"),
    Limit("disk", "kernel", "FileLock", 1 / 5, "pair of `semlock.KernelLock`, used again"),
    Limit("disk", "own FileLock", "FileLock", 1 / 5, "pair of `semlock.filelock`, used again"),
    Limit("tries", "try", FLOOR, 1.0, _TRY),
    Limit("tries", "try", "SoftFileLock", 1 / 80, _TRY),
    Limit("many", "batch", FLOOR, 0.5, "batch try of 1,000 held locks, for each"),
)

IMPORT_MS = 6.0
BYTES = 1024
DESCRIPTORS = 1


@dataclass(frozen=True)
class Results:
    """Everything that was measured in one run."""

    groups: dict[str, Group]
    starts: dict[str, list[float]]  # milliseconds; "" is a bare Python
    weights: dict[str, dict[str, float]]  # by library, for each held lock
    facts: dict[str, str]

    def import_ms(self, module: str) -> tuple[float, float]:
        """Give the median and the least time that an import adds to a bare start."""
        bare, full = self.starts[""], self.starts[module]
        return statistics.median(full) - statistics.median(bare), min(full) - min(bare)

    def judged(self) -> list[Judged]:
        """Hold every promise against what was measured."""
        found = [limit.judge(self.groups) for limit in LIMITS]
        what = "`import semlock` beyond a bare Python"
        own, _ = self.import_ms("semlock")
        found.append(Judged(what, f"≤ {IMPORT_MS:g} ms", f"{own:.1f} ms", own <= IMPORT_MS))
        if "filelock" in self.starts:
            other, _ = self.import_ms("filelock")
            bar = f"less than filelock's {other:.1f} ms"
            found.append(Judged(what, bar, f"{own:.1f} ms", own < other))
            what, bar = "`import semlock.filelock`", f"≤ 1/3 of filelock's {other:.1f} ms"
            own, _ = self.import_ms("semlock.filelock")
            found.append(Judged(what, bar, f"{own:.1f} ms", own <= other / 3))
        traced = self.weights["semlock"]["traced"]
        descriptors = self.weights["semlock"]["descriptors"]
        found += [
            Judged(
                "memory of a held lock",
                f"≤ {BYTES} bytes of Python",
                f"{traced:.0f} bytes",
                traced <= BYTES,
            ),
            Judged(
                "descriptors of a held lock",
                f"≤ {DESCRIPTORS}",
                f"{descriptors:g}",
                descriptors <= DESCRIPTORS,
            ),
        ]
        return [judged for judged in found if judged is not None]
