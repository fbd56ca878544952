"""Fresh processes and polls, as parts of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import judged_table, table
from benchmarks.results import TIMES, number
from benchmarks.users.plot import FRESH_PICTURE, POLLS_PICTURE
from benchmarks.waiting.locks import ENTRANTS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.users.fresh import FreshResults
    from benchmarks.users.polls import PollResults

_FRESH = """\
Most programs wait once, right after their start. A process takes the lock, another one is started
and waits, and after 30 to 50 ms (for a library that polls, up to one of its pauses more) the lock
is released, or its holder is killed. The holder and the waiter are forked for each measurement from
a process that has everything loaded, and make their lock themselves. The kinds take turns, in a new
order each round.

- *Idle*: nothing else is started. What others did on the machine meanwhile is in the load above.
- *One core busy*: another process computes on one of the cores. *Background work on each core*: on
  each core a process computes with the policy `SCHED_IDLE`, which gives way to all others.
- A killed holder of a library that polls is noticed at the library's next look.
- inotify reports the removal of the lock file while the releasing process still has the directory
  locked in the kernel. So the waiter has the name of the file open, and the removal does not stop
  midway to dispose of it. On a kernel that preempts inside of calls (`preempt=full`, `voluntary`)
  the waiter may still sleep once more, in its own link(2), until the releaser sleeps or ends.
- With background work, p90 has the length of the scheduler's tick, 4 ms. Where the releaser closes
  the file that it has removed, the kernel drops the waiter's inotify mark, and a kernel thread
  tidies up after that. If it comes to the waiter's core just after the wake, it interrupts the
  waiter, which has by then used microseconds more than its share; so the scheduler (EEVDF) goes on
  with the `SCHED_IDLE` process there, until the next tick. In a trace the interruption came 24 µs
  after the wake, and the waiter ran again after 1.6 ms. flock(2) has no mark. A file that is kept
  for the next acquisition is not closed; the first release in a directory keeps none.
- Where the releaser and the waiter have one core, the waiter runs when the releaser sleeps or has
  ended; the end of a Python takes a millisecond. That is so with flock(2) too.
"""

_POLLS = """\
Another process holds all of the locks, and each poll finds them held. C's failing open is
`open(O_CREAT | O_EXCL)` of each path; both have the same pauses between two polls, in blocks of
rounds that take turns. *Each* is the mean of all rounds, so that what is done only now and then is
included, as the check whether the holders live. The longest round is compared with the mean, for C
that of rounds of so few locks that they take as long as semlock's.
"""


def _head(title: str, results: FreshResults | PollResults) -> list[str]:
    return [f"## {title}", "", *(f"- {k}: {v}" for k, v in results.facts.items())]


def _fresh_tables(results: FreshResults) -> Iterator[str]:
    for (what, mode), kinds in results.found.items():
        yield f"#### Fresh processes, {what}, {mode}"
        yield ""
        rows: list[tuple[str, ...]] = [("", "p50 µs", "p90 µs", "p50, to flock(2)", "p90")]
        reference = kinds[REFERENCE]
        for key, kind in kinds.items():
            label = ENTRANTS[key].label
            at = [kind.at(share) for share in (0.5, 0.9)]
            ratios = [kind.at(share) / reference.at(share) for share in (0.5, 0.9)]
            rows.append(
                (
                    f"**{label}**" if ENTRANTS[key].kind == "semlock" else label,
                    *(f"{number(value / 1000)}" for value in at),
                    *(f"{number(ratio)} {TIMES}" for ratio in ratios),
                )
            )
        yield from table(rows, right=1)
        yield ""


def fresh(results: FreshResults) -> str:
    """Write the part about processes that wait once."""
    lines = [
        *_head("When a fresh process waits", results),
        "",
        f"![Hand-over to a fresh process]({FRESH_PICTURE})",
        "",
        "### How fresh processes were measured",
        "",
        _FRESH,
        "### What is promised of fresh processes, and what was measured",
        "",
        *judged_table(results.judged()),
        "",
        "### All measurements of fresh processes",
        "",
        *_fresh_tables(results),
    ]
    return "\n".join(lines)


def polls(results: PollResults) -> str:
    """Write the part about many locks that are polled."""
    rows: list[tuple[str, ...]] = [
        ("locks, pause", "each µs", "C's failing open, µs", "ratio", "longest round", "of C")
    ]
    rows += [
        (
            poll.label,
            number(poll.each / 1000),
            number(poll.floor_each / 1000),
            f"{number(poll.ratio)} {TIMES}",
            f"{number(poll.worst)} {TIMES}",
            f"{number(poll.worst_floor)} {TIMES}",
        )
        for poll in results.polls
    ]
    of_set: list[tuple[str, ...]] = [("", "LockSet", "beside it")]
    of_set += [(row.what, row.found, row.beside) for row in results.rows]
    lines = [
        *_head("When many locks are polled", results),
        *(f"- Note: {note}" for note in results.notes),
        "",
        f"![Polls of held locks as a ratio to C]({POLLS_PICTURE})",
        "",
        "### How polls were measured",
        "",
        _POLLS,
        "### What is promised of polls, and what was measured",
        "",
        *judged_table(results.judged()),
        "",
        "### All measurements of polls",
        "",
        "#### try_acquire_many() of held locks",
        "",
        *table(rows, right=1),
        "",
        "#### LockSet",
        "",
        *table(of_set, right=1),
        "",
    ]
    return "\n".join(lines)
