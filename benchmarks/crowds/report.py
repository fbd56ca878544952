"""What crowds cost, as a part of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.crowds.plot import PICTURE
from benchmarks.report import judged_table, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.crowds.results import Crowd, CrowdResults, Stopped

_HOW_TO_READ = """\
Many processes, threads or tasks wait for one lock that a process holds. A lock that is fair is
asked for by one after the other, each when the one before it stands in the queue. When all have
waited for 4 seconds (tasks half a second), the CPU time that all of them use is read. Then the lock
is released, and each waiter that acquires it releases it at once: *through* is the time from the
first release until the last waiter has acquired the lock.

- *inotify*: each process has an event source, as the limit of the user allows (128 by default).
  *4 instances for all*: the user may have no more, so nearly all processes are woken only by the
  one before them in the queue. *no events*: through bindfs, where processes can't rely on events
  and look by the clock too, and tasks hear nothing. Each call is a request to bindfs there, whose
  own CPU is not counted.
- *late* counts the waiters that acquired the lock right after one that had asked later.
- *Longest step* is the longest CPU time in which the loop ran no other task, measured by a task
  that wakes every 2 ms: while tasks begin to wait (a hundred in each step), acquire the lock one
  after the other, and are cancelled. *no lock, an Event* is what as many tasks cost that wait for
  an `Event` of the loop's own. Other tasks' steps in those 2 ms are a part of it. Most of the
  rest is a pass of Python's garbage collector over all objects of the program. It comes when so
  many have been made, in any of the three. A task that waits for a lock has 13 to 17 of them, one
  that waits for an `Event` 8; in trio 17 to 21, and 13. Each that was cancelled keeps about 20
  until its error is dropped, of an `Event` 9; in trio about 30, and 24.
- *Behind the stopped*: processes in the queue of the lock are stopped by a signal, and the lock is
  released. The time is from the release until a process that runs has acquired it.
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
