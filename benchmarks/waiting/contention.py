"""Many processes on one lock: how often it changes hands, in what order, and at what cost."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.waiting.crew import Crew
from benchmarks.waiting.results import HOLD_NS, Block, Contest

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from benchmarks.waiting.crew import Member
    from benchmarks.waiting.field import Field
    from benchmarks.waiting.locks import Entrant

SIZES = (2, 8, 32)

_KEYS = ("semlock", "fair", "own", "kept", "FileLock", "fasteners", "portalocker")
_HEAD_START = 30_000_000
# A starving process has to get the lock once more before it sees that the block is over.
_DRAIN = 30.0


def contests(field: Field) -> tuple[list[Contest], list[Contest]]:
    """Let processes hold a lock for a millisecond each, and for no time at all."""
    entrants = field.entrants(_KEYS)
    held: list[Contest] = []
    rushed: list[Contest] = []
    with Crew(field.nursery, max(SIZES)) as crew:
        for count in SIZES:
            field.say(f"{count} processes on one lock …")
            held += _contest(field, crew, entrants, count, field.plan.contention, HOLD_NS)
            rushed += _contest(field, crew, entrants, count, field.plan.rush, 0)
    return held, rushed


def _contest(
    field: Field, crew: Crew, entrants: list[Entrant], count: int, seconds: float, hold: int
) -> list[Contest]:
    found = {entrant.key: Contest(entrant, count) for entrant in entrants}

    def block(entrant: Entrant) -> None:
        measured = _block(field, crew.members[:count], entrant, seconds, hold)
        if measured.overlaps:
            field.note(f"{entrant.label} let {measured.overlaps} holders overlap")
        found[entrant.key].blocks.append(measured)

    field.in_turns(entrants, field.plan.contention_rounds, f"a contest of {count}", crew, block)
    return [contest for contest in found.values() if contest.blocks]


def _block(
    field: Field, members: Sequence[Member], entrant: Entrant, seconds: float, hold: int
) -> Block:
    start = time.monotonic_ns() + _HEAD_START
    stop = start + round(seconds * 1e9)
    path = field.path()
    for member in members:
        member.tell("contend", entrant.key, path, field.library, start, stop, hold)
    answers = [member.answer(seconds + _DRAIN) for member in members]
    counts = [len(intervals) // 2 for intervals, *_ in answers]
    changes, overlaps = _changes(answer[0] for answer in answers)
    cpu = sum(used - held_cpu for _, used, held_cpu, _ in answers)
    held = sum(sum(intervals[1::2]) - sum(intervals[::2]) for intervals, *_ in answers)
    return Block(
        changes=changes / seconds,
        acquisitions=sum(counts) / seconds,
        hold_us=held / 1000 / max(1, sum(counts)),
        jain=jain(counts),
        # Where the lock never changes hands, all that it costs bought one change at most.
        cpu_us=cpu / 1000 / max(1, changes),
        longest_ms=max(longest for *_, longest in answers) / 1e6,
        shares=_shares(counts),
        overlaps=overlaps,
    )


def _changes(every: Iterable[array[int]]) -> tuple[int, int]:
    """Count how often another process came in, and how often before the last one was out."""
    holds = sorted(
        (intervals[i], intervals[i + 1], who)
        for who, intervals in enumerate(every)
        for i in range(0, len(intervals), 2)
    )
    changes = overlaps = 0
    latest = 0
    for (_, left, before), (entered, _, after) in pairwise(holds):
        latest = max(latest, left)
        changes += before != after
        overlaps += entered < latest
    return changes, overlaps


def jain(counts: Sequence[int]) -> float:
    """Give Jain's index: 1 if all had as much, 1/n if one had everything."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def _shares(counts: list[int]) -> list[float]:
    fair = sum(counts) / len(counts)
    return [count / fair if fair else 0.0 for count in sorted(counts, reverse=True)]
