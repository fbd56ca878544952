"""Fresh processes and polls as pictures: bars of ratios on one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.drawing import (
    COLOURS,
    FAINT,
    GREY,
    GRID,
    INK,
    MARGIN,
    RED,
    WIDTH,
    frame,
    line,
    rect,
    text,
)
from benchmarks.results import TIMES, number
from benchmarks.users.fresh import BAR, OURS
from benchmarks.users.polls import POLL_BAR
from benchmarks.waiting.locks import ENTRANTS, REFERENCE

if TYPE_CHECKING:
    from benchmarks.users.fresh import FreshResults
    from benchmarks.users.polls import PollResults

FRESH_PICTURE, POLLS_PICTURE = "benchmarks-fresh.svg", "benchmarks-polls.svg"

_LEFT, _RIGHT = 330, 800
_RATIO_AT, _TIME_AT = 896, WIDTH - MARGIN
_TOP, _TITLE, _ROW, _BAR_HIGH, _GAP = 96, 42, 23, 13, 30


@dataclass(frozen=True)
class _Bar:
    label: str
    kind: str
    ratio: float
    tip: float  # the end of the thin line
    time: str
    limit: float | None


def _picture(title: str, under: str, groups: dict[str, list[_Bar]], foot: str) -> str:
    """Draw groups of bars one below the other, on one logarithmic scale."""
    ratios = [r for bars in groups.values() for bar in bars for r in (bar.ratio, bar.tip)]
    low = math.floor(min(-1.0, math.log2(min(ratios))))
    high = math.ceil(max(2.0, math.log2(max(ratios))))
    step = max(1, (high - low) // 8)

    def x(ratio: float) -> float:
        return _LEFT + (math.log2(ratio) - low) / (high - low) * (_RIGHT - _LEFT)

    parts = [
        text(MARGIN, 42, title, size=22, weight=700),
        text(MARGIN, 66, under, size=13, fill=GREY),
    ]
    y: float = _TOP
    for heading, bars in groups.items():
        rows = len(bars) * _ROW
        parts.append(text(MARGIN, y + 14, heading, size=15, weight=600))
        y += _TITLE
        for power in range(low, high + 1, step):
            at = x(2.0**power)
            words = (f"{2**power}" if power >= 0 else f"1/{2**-power}") + TIMES
            parts.append(line(at, y - 4, at, y + rows + 4, GRID))
            parts.append(text(at, y - 8, words, size=10, anchor="middle", fill=FAINT))
        parts.append(line(x(1), y - 4, x(1), y + rows + 4, INK, 1.4))
        for bar in bars:
            weight = 600 if bar.kind == "semlock" else 400
            left, right = sorted((x(1), x(bar.ratio)))
            middle = y + _ROW / 2
            parts += [
                text(_LEFT - 14, middle + 4, bar.label, anchor="end", weight=weight),
                rect(left, middle - _BAR_HIGH / 2, max(1.0, right - left), _BAR_HIGH,
                     COLOURS[bar.kind], round_by=2),
                line(x(bar.ratio), middle, x(bar.tip), middle, INK, 1.4),
                text(_RATIO_AT, middle + 4, f"{number(bar.ratio)} {TIMES}", anchor="end",
                     weight=weight),
                text(_TIME_AT, middle + 4, bar.time, anchor="end", fill=GREY),
            ]  # fmt: skip
            if bar.limit is not None:
                at = x(bar.limit)
                parts.append(line(at, middle - 9, at, middle + 9, RED, 2.5))
            y += _ROW
        y += _GAP
    return frame(title, parts, y, foot)


def _foot(facts: dict[str, str]) -> str:
    return f"{facts['Date']} · {facts['Kernel']} · {facts['Python']}"


def fresh_svg(results: FreshResults) -> str:
    """Draw the hand-overs to fresh processes."""
    groups = {}
    for (what, mode), kinds in results.found.items():
        reference = kinds[REFERENCE]
        groups[f"{what}, {mode}"] = [
            _Bar(
                ENTRANTS[key].label.replace(" on the holder's own file, Python", ", own file")
                .replace(" on a file that stays, Python", ", a file that stays"),
                ENTRANTS[key].kind,
                kind.at(0.5) / reference.at(0.5),
                kind.at(0.9) / reference.at(0.5),
                f"{number(kind.at(0.5) / 1000)} µs",
                BAR if key in OURS else None,
            )
            for key, kind in kinds.items()
        ]  # fmt: skip
    return _picture(
        "The first wait of a fresh process",
        "Median time to the next one in, as a ratio to flock(2) on the holder's own file; "
        "the thin line ends at p90.",
        groups,
        _foot(results.facts),
    )


def polls_svg(results: PollResults) -> str:
    """Draw the polls."""
    groups: dict[str, list[_Bar]] = {}
    for poll in results.polls:
        groups.setdefault(f"{poll.count:,} held locks", []).append(
            _Bar(
                f"{poll.label.split(', ')[-1]} between two polls",
                "semlock",
                poll.ratio,
                max(poll.rounds) / poll.count / poll.floor_each,
                f"{number(poll.each / 1000)} µs",
                POLL_BAR,
            )
        )
    return _picture(
        "Polling many held locks with try_acquire_many()",
        "Mean time for each lock as a ratio to C's failing open; the thin line ends at the "
        "longest round.",
        groups,
        _foot(results.facts),
    )
