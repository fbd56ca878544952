"""What waiting costs, as a part of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import judged_table, table
from benchmarks.results import TIMES, number
from benchmarks.waiting.locks import REFERENCE
from benchmarks.waiting.results import POSSIBLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.waiting.results import Contest, Idle, Tasks, WaitingResults, Wakes

PICTURE = "benchmarks-waiting.svg"

_HOW_TO_READ = """\
The fastest way to wake a waiter is a blocking `flock(2)`, where the kernel itself ends the wait.
For a fair comparison each holder has a lock file of its own there, as with semlock, and a waiter
creates its own when it is woken: *flock(2) on the holder's own file*. Hand-overs are compared with
that, written in Python. It has no timeout, no record and no order.

- All kinds take turns, block by block, in a new order each round, in one run. Workers are
  processes forked from one that has everything loaded. The workers themselves note the times, on
  `CLOCK_MONOTONIC`: when `release()` is called and when `acquire()` has returned.
  A ratio is the median of the ratios of the rounds' medians.
- A *hand-over* has one waiter, which has waited for 3 to 30 ms; for a library that polls, for a
  time that covers each moment between two of its looks. *CPU of a wait* is that of the whole wait.
- In a *contest* each process acquires the lock, holds it for a millisecond, releases it and asks
  again at once. It sleeps for 0.8 ms of the millisecond and spins for the rest, so that two cores
  are enough and the hold is exact; the table has the mean. The intervals in which the lock was held
  are compared afterwards: they must not overlap. *Hand-overs* counts how often the lock went to
  another process than the one before, of at most 1,000 a second. *CPU of each* is the CPU time of
  all processes for one hand-over, without the CPU time of the holds.
  Jain's index is 1 if all processes acquired the lock equally often, and 1/n if one process
  always did. The longest wait includes waits that had not ended at the end of their block.
- Waiters *that only wait* have waited for a while before their CPU time is read. The table has the
  mean of all windows, so that work which is done only now and then is included.
- All libraries wait with their defaults; semlock with `durability="none"`, since no other library
  calls fsync. portalocker gives up after 5 s, and is asked again.
- Of 32 processes each takes its turn with cold caches. What semlock does for a turn, some 50 system
  calls and 20 calls of Python, needs 97 µs of CPU with two processes and 214 with 32 (each releases
  after a sleep of 0.9 ms; without what the contest adds). That is so for any work: in a ring of
  pipes, in which each reads a byte, sleeps and writes it on, a turn needs 10 µs and 24.
- In the picture, each process of a contest is a column as high as its share of the lock. The line
  through the columns is a fair share; a column of more than two fair shares is red and cut off.
"""


def _us(nanoseconds: float) -> str:
    return number(nanoseconds / 1000)


def _name(label: str, kind: str) -> str:
    return f"**{label}**" if kind == "semlock" else label


def _wakes(wakes: dict[str, Wakes]) -> Iterator[str]:
    reference = wakes.get(REFERENCE)
    rows: list[tuple[str, ...]] = [
        ("", "p50 µs", "middle half", "p99 µs", "CPU of a wait, µs", "to flock, own file")
    ]
    for wake in wakes.values():
        middle = wake.middle
        rows.append(
            (
                _name(wake.entrant.label, wake.entrant.kind),
                _us(wake.p50),
                f"{_us(middle.low)} to {_us(middle.high)}",
                _us(wake.p99),
                _us(sorted(wake.cpu)[len(wake.cpu) // 2]),
                f"{number(wake.ratio(reference).median)} {TIMES}" if reference else "",
            )
        )
    yield from table(rows, right=1)


def _idle(idle: list[Idle]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("", "waiters", "CPU of each", "of all", "window by window, of all")
    ]
    rows += [
        (
            _name(one.entrant.label, one.entrant.kind),
            f"{one.waiters}",
            f"{one.each:.4f} %",
            f"{one.total:.3f} %",
            ", ".join(f"{window:.3f}" for window in one.windows),
        )
        for one in idle
    ]
    yield from table(rows, right=1)


def _contests(contests: list[Contest]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            "",
            "processes",
            "hand-overs/s",
            "middle half",
            "of possible",
            "acquisitions/s",
            "mean hold, µs",
            "Jain's index",
            "CPU of each, µs",
            "longest wait, ms",
            "overlaps",
        )
    ]
    rows += [
        (
            _name(contest.entrant.label, contest.entrant.kind),
            f"{contest.processes}",
            f"{contest.median('changes'):,.0f}",
            f"{contest.spread.low:,.0f} to {contest.spread.high:,.0f}",
            f"{contest.median('changes') / POSSIBLE:.3f}",
            f"{contest.median('acquisitions'):,.0f}",
            f"{contest.median('hold_us'):,.0f}",
            f"{contest.median('jain'):.3f}",
            f"{contest.median('cpu_us'):,.0f}",
            f"{contest.longest_ms:,.1f}",
            f"{contest.overlaps}",
        )
        for contest in contests
    ]
    yield from table(rows, right=1)


def _rushes(rushes: list[Contest]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            "",
            "processes",
            "acquisitions/s",
            "changes of holder/s",
            "Jain's index",
            "longest wait, ms",
            "overlaps",
        )
    ]
    rows += [
        (
            _name(rush.entrant.label, rush.entrant.kind),
            f"{rush.processes}",
            f"{rush.median('acquisitions'):,.0f}",
            f"{rush.median('changes'):,.0f}",
            f"{rush.median('jain'):.3f}",
            f"{rush.longest_ms:,.1f}",
            f"{rush.overlaps}",
        )
        for rush in rushes
    ]
    yield from table(rows, right=1)


def _any(wakes: dict[int, Wakes]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("held locks", "p50 µs", "middle half", "p99 µs")]
    rows += [
        (
            f"{count:,}",
            _us(wake.p50),
            f"{_us(wake.middle.low)} to {_us(wake.middle.high)}",
            _us(wake.p99),
        )
        for count, wake in wakes.items()
    ]
    yield from table(rows, right=0)


def _costs(results: WaitingResults) -> Iterator[str]:
    labels = dict.fromkeys(label for costs in results.costs.values() for label in costs)
    rows: list[tuple[str, ...]] = [
        ("µs for each lock", *(f"{count:,} locks" for count in results.costs))
    ]
    rows += [
        (
            f"semlock, {label}",
            *(
                _us(costs[label].median) if label in costs else ""
                for costs in results.costs.values()
            ),
        )
        for label in labels
    ]
    yield from table(rows, right=1)


def _tasks(tasks: Tasks) -> Iterator[str]:
    wakes, sync = (sorted(found) for found in (tasks.wakes, tasks.sync_wakes))
    rows: list[tuple[str, ...]] = [("", "p50 µs", "p99 µs")]
    rows += [
        (label, _us(found[len(found) // 2]), _us(found[int(0.99 * len(found))]))
        for label, found in (
            (f"one of {tasks.count:,} tasks", wakes),
            ("a process that waits for one lock, in turns with them", sync),
        )
    ]
    yield from table(rows, right=1)
    yield ""
    rows = [("for each waiting task", "bytes of Python", "resident bytes")]
    rows += [
        ("for a lock", f"{tasks.traced:.0f}", f"{tasks.resident:.0f}"),
        ("for nothing but a future", f"{tasks.idle_traced:.0f}", ""),
    ]
    yield from table(rows, right=1)


def _sections(results: WaitingResults) -> Iterator[tuple[str, Iterator[str]]]:
    if results.handover:
        yield "Hand-over: release() to the next one in, tmpfs", _wakes(results.handover)
    if results.kill:
        yield "SIGKILL of the holder to the next one in, tmpfs", _wakes(results.kill)
    if results.idle:
        yield "Waiters that only wait", _idle(results.idle)
    if results.contests:
        yield "Contests, each holding for 1 ms, tmpfs", _contests(results.contests)
    if results.rushes:
        yield "Contests, each holding for no time, tmpfs", _rushes(results.rushes)
    if results.any:
        yield "acquire_any(): release() of one of them to in, tmpfs", _any(results.any)
    if results.costs:
        yield "Many locks together, tmpfs", _costs(results)
    if results.tasks:
        yield "Tasks of one process, each waiting for a lock of its own", _tasks(results.tasks)


def waiting(results: WaitingResults) -> str:
    """Write the part about waiting."""
    lines = [
        "## When processes wait",
        "",
        *(f"- {name}: {value}" for name, value in results.facts.items()),
        *(f"- Note: {note}" for note in results.notes),
        "",
        f"![Hand-over times, and how fairly a lock goes round]({PICTURE})",
        "",
        "### How waiting was measured",
        "",
        _HOW_TO_READ,
        "### What is promised of waiting, and what was measured",
        "",
        *judged_table(results.judged()),
        "",
        "### All measurements of waiting",
        "",
    ]
    for title, section in _sections(results):
        lines += [f"#### {title}", "", *section, ""]
    return "\n".join(lines)
