"""Polls of many held locks, and a ``LockSet``."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
import tracemalloc
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING

import semlock
from benchmarks import facts
from benchmarks.contenders import Places
from benchmarks.floor import Floor
from benchmarks.results import TIMES, Judged, number
from benchmarks.users.holding import Holder, make, room

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCKS = 4
_KILLED = 1000
_PATIENCE = 30.0

POLL_BAR, WORST_BAR = 0.6, 3.0


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    counts: tuple[int, ...]
    rounds: dict[float, int]  # of each contender, by the pause in seconds between two polls
    times: int  # of what is measured by single events


FULL = Plan((200, 2000, 10_000), {0: 400, 0.01: 200, 0.2: 40, 1: 16}, 300)
QUICK = Plan((200, 2000), {0: 40, 0.01: 40, 0.2: 8}, 30)


@dataclass(frozen=True)
class Poll:
    """Polls of so many locks with such a pause between them; nanoseconds."""

    count: int
    pause: float
    floor: list[float]  # of each round, by C's failing open
    as_long: list[float]  # the same of so few that a round takes as long as the next ones
    rounds: list[float]  # by try_acquire_many

    @property
    def label(self) -> str:
        pause = f"{self.pause * 1000:g} ms" if self.pause < 1 else f"{self.pause:g} s"
        return f"{self.count:,} locks, {pause}"

    @property
    def each(self) -> float:
        return statistics.mean(self.rounds) / self.count

    @property
    def floor_each(self) -> float:
        return statistics.mean(self.floor) / self.count

    @property
    def ratio(self) -> float:
        return self.each / self.floor_each

    @property
    def worst(self) -> float:
        return max(self.rounds) / statistics.mean(self.rounds)

    @property
    def worst_floor(self) -> float:
        return max(self.as_long) / statistics.mean(self.as_long)


@dataclass(frozen=True)
class Row:
    """Something that a set does, beside what it is compared with."""

    what: str
    found: str
    beside: str
    bar: str
    met: bool


@dataclass
class PollResults:
    """Everything that was measured of polls."""

    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def judged(self) -> list[Judged]:
        found = []
        for poll in self.polls:
            found += [
                Judged(
                    f"try_acquire_many, {poll.label} between two polls, for each lock",
                    f"≤ {POLL_BAR:g} {TIMES} C's failing open",
                    f"{number(poll.ratio)} {TIMES}",
                    poll.ratio <= POLL_BAR,
                ),
                Judged(
                    f"try_acquire_many, {poll.label}: the longest round",
                    f"≤ {WORST_BAR:g} {TIMES} the mean",
                    f"{number(poll.worst)} {TIMES} (C: {number(poll.worst_floor)} {TIMES})",
                    poll.worst <= WORST_BAR,
                ),
            ]
        found += [
            Judged(f"LockSet, {row.what}", row.bar, row.found, row.met) for row in self.rows
        ]
        return found


def _timed(do: Callable[[], object]) -> int:
    began = monotonic_ns()
    do()
    return monotonic_ns() - began


def _rounds(poll: Callable[[], float], pause: float, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        if pause:
            time.sleep(pause)
        found.append(poll())
    return found[1:]  # the first comes after what the other contender did


def _poll(floor: Floor, paths: list[str], pause: float, rounds: int) -> Poll:
    create = floor.loop("failing_create", paths)
    few = 1

    def of_floor() -> float:
        return float(create(len(paths)))

    def of_semlock() -> float:
        return float(_timed(lambda: semlock.try_acquire_many(locks)))

    def as_long() -> float:
        return float(create(few))

    locks = make(paths)
    for _ in range(3):  # the holders are judged now
        semlock.try_acquire_many(locks)
        time.sleep(0.15)
    gc.collect()
    found = Poll(len(paths), pause, [], [], [])
    for _ in range(_BLOCKS):
        count = 1 + rounds // _BLOCKS
        found.floor.extend(_rounds(of_floor, pause, count))
        found.rounds.extend(_rounds(of_semlock, pause, count))
        # An interruption adds as much to a short round as to a long one.
        few = max(1, round(len(paths) * found.ratio))
        found.as_long.extend(_rounds(as_long, pause, count))
    return found


# ---------------------------------------------------------------------- LockSet


def _us(nanoseconds: float) -> str:
    return f"{number(nanoseconds / 1000)} µs"


def _compared(what: str, found: list[int], beside: list[int], name: str, bar: float) -> Row:
    one, other = statistics.median(found), statistics.median(beside)
    return Row(
        what,
        f"{_us(one)}, {number(one / other)} {TIMES}",
        f"{name}: {_us(other)}",
        f"≤ {bar:g} {TIMES} {name}",
        one / other <= bar,
    )


def _settled(some: semlock.LockSet[semlock.Lock]) -> None:
    """Poll until the reports of what came before are through."""
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        if some.wait(0.06):
            some.try_acquire()


def _making(paths: list[str]) -> tuple[Row, Row]:
    locks = make(paths)
    took = [_timed(lambda: semlock.LockSet(locks)) for _ in range(5)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    some = semlock.LockSet(locks)
    weight = (tracemalloc.get_traced_memory()[0] - before) / len(locks)
    tracemalloc.stop()
    some.close()
    milliseconds = statistics.median(took) / 1e6
    return (
        Row(
            f"made of {len(paths):,} locks", f"{number(milliseconds)} ms", "", "≤ 50 ms",
            milliseconds <= 50,
        ),
        Row(
            "memory of each lock, beside the lock itself", f"{weight:.0f} bytes", "",
            "≤ 1024 bytes", weight <= 1024,
        ),
    )  # fmt: skip


def _idle(paths: list[str], few: int, times: int) -> Row:
    large = semlock.LockSet(make(paths))
    small = semlock.LockSet(make(paths[:few]))
    found: dict[int, list[int]] = {len(large): [], few: []}
    for some in (large, small):
        _settled(some)
    for _ in range(times):
        for some in (large, small):
            some.try_acquire()
            found[len(some)].append(_timed(some.try_acquire))
    one, other = (statistics.median(found[count]) for count in (len(large), few))
    for some in (large, small):
        some.close()
    return Row(
        f"idle poll of {len(paths):,} held locks",
        _us(one),
        f"of {few}: {_us(other)}",
        "≤ 2 µs",
        one <= 2000,
    )


def _released(paths: list[str], holder: Holder, times: int) -> tuple[Row, Row]:
    """Poll a set, or try one lock, that was just released; and wait for it."""
    locks = make(paths)
    some = semlock.LockSet(locks)
    single = make(paths)
    _settled(some)
    by_set, by_try, woken, alone = [], [], [], []
    for number_ in range(times):
        index = number_ % len(paths)
        for way in ("set", "try", "wait", "acquire"):
            if way in ("set", "try"):
                holder.release(index)
                if way == "set":
                    by_set.append(_timed(some.try_acquire))
                    mine = locks[index]
                else:
                    mine = single[index]
                    by_try.append(_timed(mine.try_acquire))
            else:
                holder.tell(f"r{index}")
                if way == "wait":
                    mine = locks[index]
                    while not mine.held and some.wait(_PATIENCE):
                        some.try_acquire()
                else:
                    mine = single[index]
                    mine.acquire()
                at = monotonic_ns()
                (woken if way == "wait" else alone).append(at - holder.answer())
            if not mine.held:
                raise RuntimeError(f"{way}: {mine.path} was not taken")
            mine.release()
            holder.acquire(index)
            time.sleep(0.003)
            while some.wait(0):
                for lock in some.try_acquire():
                    lock.release()
    some.close()
    return (
        _compared(
            f"one of {len(paths):,} released, then a poll that takes it",
            by_set, by_try, "try_acquire of that lock", 1.5,
        ),
        _compared(
            f"wait on {len(paths):,} locks, release() to taken",
            woken, alone, "acquire of that lock", 3.0,
        ),
    )  # fmt: skip


def _killed(directory: str, rounds: int) -> Row:
    """Kill a holder of many, and take them all; and take as many that are free."""
    by_death, free = [], []
    for number_ in range(rounds):
        place = os.path.join(directory, f"killed{number_}")
        os.mkdir(place)
        paths = [os.path.join(place, f"{n}.lock") for n in range(_KILLED)]
        some = semlock.LockSet(make(paths))
        began = monotonic_ns()
        taken = some.try_acquire()
        free.append(monotonic_ns() - began)
        for lock in taken:
            lock.release()
        holder = Holder(paths)
        _settled(some)
        holder.kill()
        began = monotonic_ns()
        count = 0
        while count < _KILLED and some.wait(_PATIENCE):
            count += len(some.try_acquire())
        by_death.append(monotonic_ns() - began)
        if count < _KILLED:
            raise RuntimeError(f"only {count} of {_KILLED} locks of a killed holder were taken")
        for lock in some:
            lock.release()
        some.close()
    return _compared(
        f"holder of {_KILLED:,} killed, until all are taken", by_death, free,
        f"taking {_KILLED:,} free ones", 1.5,
    )  # fmt: skip


def measure_polls(memory: str, plan: Plan, say: Callable[[str], None]) -> PollResults:
    """Measure in this directory in memory."""
    run = facts.Run()
    found = PollResults()
    with tempfile.TemporaryDirectory() as build:
        floor = Floor(build)
        place = tempfile.mkdtemp(dir=memory)  # the other parts number their directories too
        places = Places(place)
        for count in plan.counts:
            if not room(count):
                found.notes.append(f"{count:,} locks are left out: too few descriptors")
                continue
            paths = places.paths(count)
            holder = Holder(paths)
            try:
                for pause, rounds in plan.rounds.items():
                    say(f"Polls of {count:,} locks, {pause:g} s between two …")
                    found.polls.append(_poll(floor, paths, pause, rounds))
                if count == max(plan.counts):
                    say("LockSet …")
                    found.rows += _making(paths)
                    found.rows.append(_idle(paths, 10, plan.times * 10))
                    found.rows += _released(paths, holder, plan.times)
            finally:
                holder.kill()
        found.rows.append(_killed(place, max(3, plan.times // 20)))
    found.facts = run.facts(memory)
    return found
