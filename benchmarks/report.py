"""The results as a page of Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.limits import limits
from benchmarks.measuring import Spread
from benchmarks.results import LIMITS, TIMES, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measuring import Contender, Group
    from benchmarks.results import Judged, Results

PICTURE = "benchmarks.svg"
PAGE = "benchmarks.md"

ALONE, FRESH, POLLS = "alone", "fresh", "polls"
WAITING, CROWDS, COMMAND, ENGINES = "waiting", "crowds", "command", "engines"
_PARTS = (ALONE, FRESH, POLLS, WAITING, CROWDS, COMMAND, ENGINES)
_MARK = re.compile(r"^<!-- part: (\w+) -->\n", re.MULTILINE)

_HOW_TO_READ = """\
The *C floor* of each group is the simplest lock file there can be, as a loop in C: it has no
record, no proof of death and no exact removal, and needs no interpreter. Every bar of the picture
is a ratio to that floor: a bar to the left of the line is faster than the C loop, one to the right
is slower, and each grid line stands for twice the time of the one before it. The thin line at the
end of a bar is the middle half of all rounds. A red notch is the ratio that semlock should stay
below.

All contenders of a group take turns in blocks of a millisecond or a few operations, in a new
order each round, in one run. A ratio is the median over all rounds of the contender's time divided
by the floor's time in the same round. So it can differ a little from the ratio of the two median
times. The times are those of one shared machine: compare the ratios and not the microseconds.

- The *C loops of the system calls of semlock* show how much of the time the kernel needs; the rest
  is Python's.
- *Used again* is one object, acquired and released all the time; *new each time* makes the
  object too. A process that takes locks in one directory again and again keeps the finished
  file of a released one (see `csrc/semlock.h`); *nothing kept* is the cost for a program that
  takes a lock once.
- *On disk by default* is with `durability="safe"`. The bars are for filesystems with a journal. On
  an ext4 without one, as in many virtual machines, that is an fsync for each acquire, and the rows
  are as slow as those with fsync. `--disk` chooses the directory.
- The other libraries run with their defaults. All but `SoftFileLock` take a kernel lock on a file
  that stays, and neither create nor remove a file. None of them calls fsync, so the table with
  fsync has none of them.
- A *failed try* is one of a lock that another process holds through the same library.
- Imports are timed in programs that start without `site`, so that packages which an installation
  imports at every start are not counted. That of semlock brings `semlock.Lock` with all that
  its methods need.
- The batch is in its steady state: semlock checks about once a second whether the holder of
  each lock still lives, and more often while a holder is new to it.
"""


def _us(nanoseconds: float) -> str:
    return number(nanoseconds / 1000)


def spread_of(contender: Contender) -> Spread:
    """Give a contender's time for one operation, in nanoseconds."""
    return Spread.of(contender.samples)


def time_text(contender: Contender) -> str:
    """Give a contender's median time as it is printed everywhere."""
    return f"{_us(spread_of(contender).median)} µs"


def ratio_text(ratio: Spread) -> str:
    """Give a ratio as it is printed everywhere."""
    return f"{number(ratio.median)} {TIMES}"


def met_text(met: bool) -> str:
    """Say whether a promise was kept."""
    return "met" if met else "**not met**"


def table(rows: list[tuple[str, ...]], right: int) -> Iterator[str]:
    """Lay out a table whose columns from ``right`` on are numbers."""
    yield "| " + " | ".join(rows[0]) + " |"
    yield "|" + "|".join("---" if i < right else "---:" for i in range(len(rows[0]))) + "|"
    for row in rows[1:]:
        yield "| " + " | ".join(row) + " |"


def _group(name: str, group: Group) -> Iterator[str]:
    yield f"#### {group.title}"
    yield ""
    limits = {limit.key: limit for limit in LIMITS if limit.group == name and limit.of_floor}
    rows: list[tuple[str, ...]] = [("", "median µs", "middle half", "to the floor", "bar", "")]
    for contender in group.contenders:
        spread, ratio = spread_of(contender), group.ratio(contender.key)
        assert ratio is not None
        limit = limits.get(contender.key)
        label = contender.label
        rows.append(
            (
                f"**{label}**" if contender.kind == "semlock" else label,
                _us(spread.median),
                f"{_us(spread.low)} to {_us(spread.high)}",
                ratio_text(ratio),
                f"≤ {limit.ratio:g}" if limit else "",
                met_text(ratio.median <= limit.ratio) if limit else "",
            )
        )
    yield from table(rows, right=1)
    yield ""


def judged_table(judged: list[Judged]) -> Iterator[str]:
    """Lay out what was promised beside what was measured, and what limits the rest."""
    rows: list[tuple[str, ...]] = [("what", "bar", "measured", "")]
    rows += [(j.what, j.bar, j.measured, met_text(j.met)) for j in judged]
    yield from table(rows, right=4)
    yield from limits(judged)


def _starts(results: Results) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("beyond a bare Python", "median ms", "least ms")]
    for module in results.starts:
        if module:
            median, least = results.import_ms(module)
            rows.append((f"`import {module}`", f"{median:.1f}", f"{least:.1f}"))
    yield from table(rows, right=1)


def _weights(results: Results) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("for each held lock", "bytes of Python", "resident bytes", "descriptors")
    ]
    rows += [
        (name, f"{w['traced']:.0f}", f"{w['resident']:.0f}", f"{w['descriptors']:g}")
        for name, w in results.weights.items()
    ]
    yield from table(rows, right=1)
    yield ""
    yield "Bytes of Python are those that `tracemalloc` counts; resident bytes are the growth of"
    yield "the whole process, with what C allocates, in whole pages."


def alone(results: Results) -> str:
    """Write the part about locks for which nobody waits."""
    lines = [
        "## When no process waits",
        "",
        *(f"- {name}: {value}" for name, value in results.facts.items()),
        "",
        f"![Time of each contender as a ratio to a C loop]({PICTURE})",
        "",
        "### How to read it",
        "",
        _HOW_TO_READ,
        "### What is promised, and what was measured",
        "",
        *judged_table(results.judged()),
        "",
        "`tests/fault/test_cost.py` asserts that a failed try is one system call, and how many",
        "system calls and instructions a pair may need. No test asserts times.",
        "",
        "### All measurements",
        "",
    ]
    for name, group in results.groups.items():
        lines += _group(name, group)
    lines += ["#### Starting", "", *_starts(results), ""]
    lines += ["#### Weight", "", *_weights(results), ""]
    return "\n".join(lines)


def page(parts: dict[str, str], before: str = "") -> str:
    """Write the whole page: the parts that were measured now, and the others as they were."""
    pieces = _MARK.split(before)
    parts = {**dict(zip(pieces[1::2], pieces[2::2], strict=True)), **parts}
    lines = [
        "# Benchmarks",
        "",
        "Made by `python -m benchmarks`. Each part says when and on which machine it was measured;",
        "a run replaces only the parts that it has measured.",
        "",
    ]
    for name in _PARTS:
        if name in parts:
            lines += [f"<!-- part: {name} -->", "", parts[name].strip("\n"), ""]
    return "\n".join(lines)
