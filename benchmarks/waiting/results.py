"""What the waiting part has found, and how it stands against what was promised."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.measuring import Spread
from benchmarks.results import TIMES, Judged, number
from benchmarks.waiting.locks import REFERENCE

if TYPE_CHECKING:
    from benchmarks.waiting.locks import Entrant

HOLD_NS = 1_000_000
POSSIBLE = 1e9 / HOLD_NS  # hand-overs in a second

WAKE_RATIO = 1.5
FASTER_THAN_FILELOCK = 300
KERNEL_FASTER = 100
IDLE_PERCENT = 0.2
SHARE_OF_POSSIBLE = 0.93
JAIN = 0.99
CPU_US = 100
FAIR_SHARES = 5
ANY_RATIO = 2
TASK_BYTES = 4096
TASK_RATIO = 3


@dataclass
class Wakes:
    """How long one kind of lock took from hand to hand, round by round, in nanoseconds."""

    entrant: Entrant
    rounds: list[list[int]] = field(default_factory=list)
    cpu: list[int] = field(default_factory=list)  # of the waiter, for a whole wait

    @property
    def every(self) -> list[int]:
        return [sample for samples in self.rounds for sample in samples]

    @property
    def p50(self) -> float:
        return statistics.median(self.every)

    @property
    def p99(self) -> float:
        return percentile(self.every, 0.99)

    @property
    def middle(self) -> Spread:
        return Spread.of([float(sample) for sample in self.every])

    def ratio(self, against: Wakes) -> Spread:
        """Compare the medians of the rounds in which both were measured."""
        pairs = zip(self.rounds, against.rounds, strict=False)
        return spread([statistics.median(a) / statistics.median(b) for a, b in pairs])


def spread(samples: list[float]) -> Spread:
    """Give median and middle half, also of a single sample."""
    return Spread.of(samples * 2 if len(samples) == 1 else samples)


def percentile(samples: list[int], share: float) -> float:
    """Give the sample below which such a share of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True)
class Block:
    """One block of one kind of lock with so many processes."""

    changes: float  # of the holder, in a second
    acquisitions: float  # in a second
    hold_us: float  # the mean
    jain: float
    cpu_us: float  # for a change of the holder
    longest_ms: float
    shares: list[float]  # of each process, most first; 1 is as much as everybody should have
    overlaps: int


@dataclass
class Contest:
    """All blocks of one kind of lock with so many processes."""

    entrant: Entrant
    processes: int
    blocks: list[Block] = field(default_factory=list)

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(block, name) for block in self.blocks))

    @property
    def spread(self) -> Spread:
        return spread([block.changes for block in self.blocks])

    @property
    def longest_ms(self) -> float:
        """Give the longest wait of all blocks: a median would hide what it is about."""
        return max(block.longest_ms for block in self.blocks)

    @property
    def overlaps(self) -> int:
        return sum(block.overlaps for block in self.blocks)


@dataclass
class Idle:
    """CPU of processes that only wait, in percent of a core: window by window, for all."""

    entrant: Entrant
    waiters: int
    windows: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Give the mean: a median would hide work that is done now and then."""
        return statistics.fmean(self.windows)

    @property
    def each(self) -> float:
        return self.total / self.waiters


@dataclass(frozen=True)
class Tasks:
    """Tasks that wait, each for a lock of its own, in one process."""

    count: int
    wakes: list[int]
    sync_wakes: list[int]  # of another process, in turns with these
    threads: int
    traced: float  # bytes of Python for each
    resident: float
    idle_traced: float  # the same of tasks that wait for nothing but a future

    @property
    def ratio(self) -> float:
        return statistics.median(self.wakes) / statistics.median(self.sync_wakes)


@dataclass
class WaitingResults:
    """Everything that was measured; what could not be is missing, and noted."""

    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    handover: dict[str, Wakes] = field(default_factory=dict)
    kill: dict[str, Wakes] = field(default_factory=dict)
    idle: list[Idle] = field(default_factory=list)
    contests: list[Contest] = field(default_factory=list)  # held for a moment
    rushes: list[Contest] = field(default_factory=list)  # held for no time
    any: dict[int, Wakes] = field(default_factory=dict)  # by the number of locks
    costs: dict[int, dict[str, Spread]] = field(default_factory=dict)  # ns for each lock
    tasks: Tasks | None = None

    def judged(self) -> list[Judged]:
        """Hold every promise against what was measured."""
        return [
            *_judge_wakes("hand-over", self.handover),
            *_judge_wakes("SIGKILL of the holder to next in", self.kill),
            *_judge_idle(self.idle),
            *(found for contest in self.contests for found in _judge_contest(contest)),
            *_judge_rushes(self.rushes),
            *_judge_any(self.any),
            *_judge_tasks(self.tasks),
        ]


def _judge_wakes(what: str, wakes: dict[str, Wakes]) -> list[Judged]:
    found = []
    for own in (wake for wake in wakes.values() if wake.entrant.kind == "semlock"):
        said = f"{what}, p50, {own.entrant.label}"
        on_kept_file = own.entrant.key in ("kernel", "own FileLock")
        if REFERENCE in wakes and not on_kept_file:
            ratio = own.ratio(wakes[REFERENCE]).median
            bar = f"≤ {WAKE_RATIO} {TIMES} a wake by flock(2) on the holder's own file"
            found.append(Judged(said, bar, f"{number(ratio)} {TIMES}", ratio <= WAKE_RATIO))
        if what == "hand-over" and "FileLock" in wakes:
            faster = 1 / own.ratio(wakes["FileLock"]).median
            least = KERNEL_FASTER if on_kept_file else FASTER_THAN_FILELOCK
            bar = f"≥ {least} {TIMES} faster than filelock"
            met = faster >= least
            found.append(Judged(said, bar, f"{number(faster)} {TIMES} faster", met))
    return found


def _judge_idle(idle: list[Idle]) -> list[Judged]:
    return [
        Judged(
            f"CPU of each of {one.waiters} waiters, {one.entrant.label}"
            if one.waiters > 1
            else f"CPU of a waiter, {one.entrant.label}",
            f"≤ {IDLE_PERCENT:g} % of a core",
            f"{one.each:.4f} %",
            one.each <= IDLE_PERCENT,
        )
        for one in idle
        if one.entrant.kind == "semlock"
    ]


def _judge_contest(contest: Contest) -> list[Judged]:
    if contest.entrant.kind != "semlock":
        return []
    who = f"{contest.processes} processes holding 1 ms, {contest.entrant.label}"
    share = contest.median("changes") / POSSIBLE
    cpu = contest.median("cpu_us")
    found = [
        Judged(
            f"{who}: hand-overs",
            f"≥ {SHARE_OF_POSSIBLE} of what is possible",
            f"{share:.3f}",
            share >= SHARE_OF_POSSIBLE,
        ),
        Judged(f"{who}: CPU of each", f"≤ {CPU_US} µs", f"{cpu:.0f} µs", cpu <= CPU_US),
        Judged(
            f"{who}: overlaps", "none", f"{contest.overlaps or 'none'}", not contest.overlaps
        ),
    ]
    if contest.entrant.key == "fair":
        jain = contest.median("jain")
        found.append(Judged(f"{who}: Jain's index", f"≥ {JAIN}", f"{jain:.4f}", jain >= JAIN))
    else:
        longest, most = contest.longest_ms, FAIR_SHARES * contest.processes * HOLD_NS / 1e6
        found.append(
            Judged(
                f"{who}: longest wait",
                f"≤ {FAIR_SHARES} {TIMES} the fair share, {most:g} ms",
                f"{longest:.1f} ms",
                longest <= most,
            )
        )
    return found


def _judge_rushes(rushes: list[Contest]) -> list[Judged]:
    found = []
    for own in (rush for rush in rushes if rush.entrant.kind == "semlock"):
        who = f"{own.processes} processes holding no time, {own.entrant.label}"
        said = f"{own.overlaps or 'none'}"
        found.append(Judged(f"{who}: overlaps", "none", said, not own.overlaps))
        if own.entrant.key != "semlock":
            continue
        rate = own.median("acquisitions")
        for peer in rushes:
            if peer.processes == own.processes and peer.entrant.key in (
                "fasteners",
                "portalocker",
            ):
                other = peer.median("acquisitions")
                bar = f"≥ {peer.entrant.key}'s {other:,.0f} acquisitions/s"
                found.append(Judged(who, bar, f"{rate:,.0f}/s", rate >= other))
    return found


def _judge_any(wakes: dict[int, Wakes]) -> list[Judged]:
    if len(wakes) < 2:
        return []
    few, many = min(wakes), max(wakes)
    ratio = wakes[many].ratio(wakes[few]).median
    what = f"acquire_any over {many:,} held locks, p50"
    bar = f"≤ {ANY_RATIO} {TIMES} over {few}"
    return [Judged(what, bar, f"{number(ratio)} {TIMES}", ratio <= ANY_RATIO)]


def _judge_tasks(tasks: Tasks | None) -> list[Judged]:
    if tasks is None:
        return []
    who = f"{tasks.count:,} tasks waiting for as many locks"
    return [
        Judged(
            f"{who}: threads added", "none", f"{tasks.threads or 'none'}", not tasks.threads
        ),
        Judged(
            f"{who}: memory of each, with its task",
            f"≤ {TASK_BYTES} bytes of Python",
            f"{tasks.traced:.0f} bytes",
            tasks.traced <= TASK_BYTES,
        ),
        Judged(
            f"{who}: wake, p50",
            f"≤ {TASK_RATIO} {TIMES} that of a process",
            f"{number(tasks.ratio)} {TIMES}",
            tasks.ratio <= TASK_RATIO,
        ),
    ]
