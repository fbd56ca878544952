"""What crowds cost, as a part of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.crowds.plot import PICTURE
from benchmarks.report import judged_table, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.crowds.results import Crowd, CrowdResults, Stopped

_HOW_TO_READ = """\
So many wait for one lock that a process holds. While they only wait, the CPU of all of them is
read. Then the lock is let go of, and each one that has it lets go at once: *through* is the time
from the release until the last one had it.

- *inotify*: each process has an event source, as the limit of the user allows (128 by default).
  *4 instances for all*: the user may have no more, so nearly all hear only of the one before
  them in the queue. *no events*: through bindfs, where nothing is told of the lock's file.
- *late* counts those who were in before one that had asked earlier: for processes at least
  50 ms earlier, since a process says when it asked before it has its number.
- *Longest step* is the CPU time in which the loop did nothing else, as a task sees it that wakes
  all 2 ms: while tasks begin to wait (a hundred in each step), go through and are cancelled.
- *Behind the stopped*: processes in the queue of the lock are stopped by a signal, and it is let
  go of. The time is from then until a live process has it.
"""


def _crowds(crowds: list[Crowd]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            "who",
            "kind",
            "events",
            "waiters",
            "CPU of all",
            "through, ms",
            "ms for each",
            "late",
            "longest step, ms: begin",
            "through",
            "cancel",
        )
    ]
    for crowd in crowds:
        inside = "" if crowd.inside == crowd.count else f" ({crowd.inside:,} of them)"
        rows.append(
            (
                crowd.who,
                crowd.kind,
                crowd.events,
                f"{crowd.count:,}",
                f"{crowd.idle:.3f} %",
                f"{crowd.through:,.1f}{inside}",
                f"{crowd.each:.3f}",
                f"{crowd.late}",
                *(
                    f"{crowd.lags[name]:.1f}" if name in crowd.lags else ""
                    for name in ("begin", "through", "cancel")
                ),
            )
        )
    yield from table(rows, right=3)


def _stopped(stopped: list[Stopped]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("kind", "way", "stopped", "median ms", "most ms")]
    rows += [
        (one.kind, one.way, f"{one.count}", f"{one.middle:.0f}", f"{max(one.times):.0f}")
        for one in stopped
    ]
    yield from table(rows, right=2)


def crowds(results: CrowdResults) -> str:
    """Write the part about crowds."""
    lines = [
        "## When many wait",
        "",
        *(f"- {name}: {value}" for name, value in results.facts.items()),
        *(f"- Note: {note}" for note in dict.fromkeys(results.notes)),
        "",
        f"![What a crowd that waits for one lock costs]({PICTURE})",
        "",
        "### How crowds were measured",
        "",
        _HOW_TO_READ,
        "### What is promised of crowds, and what was measured",
        "",
        *judged_table(results.judged()),
        "",
        "### All measurements of crowds",
        "",
        *_crowds(results.crowds),
        "",
        "#### Behind the stopped",
        "",
        *_stopped(results.stopped),
        "",
    ]
    return "\n".join(lines)
