"""What was measured of crowds, and how it stands against what was promised."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.crowds.tasks import BARE
from benchmarks.results import Judged

IDLE_PERCENT = 0.2  # of a core, for this many waiters
IDLE_WAITERS = 100
BLIND_PERCENT = 1.0  # of a core, for each that hears of nothing
THROUGH_MS = 2.0  # for each waiter
LAG_MS = 20.0
STOPPED_MS = 300.0

HEARS, FEW, NOTHING = "inotify", "4 instances for all", "no events"


@dataclass(frozen=True)
class Crowd:
    """So many that wait for one lock."""

    who: str  # processes, or the kind of loop in which they are tasks
    kind: str  # the kind of lock
    events: str
    count: int
    idle: float  # percent of a core, of all
    through: float  # ms from the release until the last one was in
    inside: int  # how many were in at all
    late: int  # how many were in before one that had asked well before them
    lags: dict[str, float] = field(default_factory=dict)  # ms, by what went on

    @property
    def label(self) -> str:
        return f"{self.count:,} {self.who}, {self.kind}, {self.events}"

    @property
    def each(self) -> float:
        return self.through / self.count


@dataclass(frozen=True)
class Stopped:
    """How long a free lock was not to be had behind so many that are stopped."""

    kind: str
    way: str
    count: int
    times: list[float]  # ms

    @property
    def middle(self) -> float:
        return statistics.median(self.times)


@dataclass
class CrowdResults:
    """Everything that was measured of crowds."""

    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)

    def judged(self) -> list[Judged]:
        """Hold every promise against what was measured."""
        found = []
        for crowd in self.crowds:
            if crowd.kind == BARE:
                continue
            if crowd.count >= IDLE_WAITERS:
                found += _judge(crowd)
            elif crowd.count == 1 and crowd.events != HEARS:
                found.append(_judge_idle(crowd))
        for stopped in self.stopped:
            found.append(
                Judged(
                    f"a free lock behind {stopped.count} stopped, {stopped.kind}, {stopped.way}",
                    f"≤ {STOPPED_MS:.0f} ms",
                    f"{max(stopped.times):.0f} ms at most",
                    max(stopped.times) <= STOPPED_MS,
                )
            )
        return found


def allowed(crowd: Crowd) -> float:
    """Say how much of a core a crowd may use while it waits, in percent."""
    return BLIND_PERCENT if crowd.count == 1 else IDLE_PERCENT * crowd.count / IDLE_WAITERS


def _judge_idle(crowd: Crowd) -> Judged:
    limit = allowed(crowd)
    return Judged(
        f"{crowd.label}: CPU of all while they wait",
        f"≤ {limit:g} % of a core",
        f"{crowd.idle:.3f} %",
        crowd.idle <= limit,
    )


def _judge(crowd: Crowd) -> list[Judged]:
    missing = "" if crowd.inside == crowd.count else f", {crowd.inside:,} of them"
    found = [
        _judge_idle(crowd),
        Judged(
            f"{crowd.label}: release until all were through",
            f"≤ {THROUGH_MS:g} ms for each",
            f"{crowd.each:.3f} ms{missing}",
            crowd.each <= THROUGH_MS and not missing,
        ),
    ]
    if crowd.kind.startswith("fair"):
        found.append(
            Judged(
                f"{crowd.label}: before one that asked earlier",
                "none",
                f"{crowd.late or 'none'}",
                not crowd.late,
            )
        )
    if crowd.lags:
        worst = max(crowd.lags, key=lambda name: crowd.lags[name])
        found.append(
            Judged(
                f"{crowd.label}: longest step of the loop",
                f"≤ {LAG_MS:g} ms",
                f"{crowd.lags[worst]:.1f} ms ({worst})",
                crowd.lags[worst] <= LAG_MS,
            )
        )
    return found
