"""Crowds as a picture: what they cost by their number, while they wait and going through."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.crowds.results import FEW, HEARS, IDLE_PERCENT, IDLE_WAITERS, THROUGH_MS
from benchmarks.crowds.tasks import BARE, THREADS
from benchmarks.drawing import FAINT, GREY, GRID, INK, MARGIN, RED, WIDTH, frame, line, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.crowds.results import Crowd, CrowdResults

PICTURE = "benchmarks-crowds.svg"

_TOP, _HIGH = 118, 300
_LEFTS = (MARGIN + 62, WIDTH / 2 + 62)
_WIDE = WIDTH / 2 - MARGIN - 84
_COLOURS = ("#0b7a75", "#5b8def", "#a05195", "#d45087", "#e3a857", "#8a94a0", INK, "#665191")
_FOOT = 30
_LEGEND_ROW = 20


class _Scale:
    """Where a value lies: powers of ten, from one end to the other."""

    def __init__(self, values: list[float], low: float, high: float) -> None:
        self._from = math.floor(math.log10(min(values)))
        self._to = max(self._from + 1, math.ceil(math.log10(max(values))))
        self._low, self._high = low, high

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._from) / (self._to - self._from)
        return self._low + min(1.0, max(0.0, share)) * (self._high - self._low)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._from, self._to + 1)]


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, crowd: Crowd) -> str:
    """Draw a piece of a line: a dashed one for tasks and threads."""
    drawn = line(x1, y1, x2, y2, colour, 2)
    return (
        drawn if crowd.who == "processes" else drawn.replace("/>", ' stroke-dasharray="6 3"/>')
    )


def _panel(
    left: float,
    title: str,
    series: dict[str, list[Crowd]],
    value: Callable[[Crowd], float],
    allowed: Callable[[float], float],
    since: float = 1.0,
) -> list[str]:
    """Draw one line for each kind of crowd, and the bar as a red one, from some number on."""
    every = [crowd for crowds in series.values() for crowd in crowds]
    counts = [float(crowd.count) for crowd in every]
    least = min(allowed(count) for count in counts)
    most = max(allowed(count) for count in counts)
    values = [max(value(crowd), least / 10) for crowd in every]
    x = _Scale(counts, left, left + _WIDE)
    y = _Scale([*values, least, most], _TOP + _HIGH, _TOP)
    parts = [text(left - 50, _TOP - 14, title, size=14, weight=600)]
    for tick in x.ticks():
        parts.append(line(x(tick), _TOP, x(tick), _TOP + _HIGH, GRID))
        words = f"{tick:,.0f}"
        parts.append(
            text(x(tick), _TOP + _HIGH + 16, words, size=10, anchor="middle", fill=FAINT)
        )
    middle = left + _WIDE / 2
    words = "waiters"
    parts.append(text(middle, _TOP + _HIGH + 32, words, size=11, anchor="middle", fill=FAINT))
    for tick in y.ticks():
        parts.append(line(left, y(tick), left + _WIDE, y(tick), GRID))
        parts.append(
            text(left - 8, y(tick) + 4, f"{tick:g}", size=10, anchor="end", fill=FAINT)
        )
    low, high = max(min(counts), since), max(counts)
    parts.append(line(x(low), y(allowed(low)), x(high), y(allowed(high)), RED, 2))
    for colour, crowds in zip(_COLOURS * 3, series.values(), strict=False):
        points = [(x(crowd.count), y(max(value(crowd), least / 10))) for crowd in crowds]
        parts += [_stroke(*start, *end, colour, crowds[0]) for start, end in pairwise(points)]
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points
        ]
    return parts


def _series(crowds: list[Crowd]) -> dict[str, list[Crowd]]:
    found: dict[str, list[Crowd]] = {}
    for crowd in sorted(crowds, key=lambda crowd: crowd.count):
        if crowd.who == "processes":
            label = f"processes, {crowd.kind}, {crowd.events}"
        elif crowd.who == THREADS and crowd.events == HEARS:
            label = f"threads, {crowd.kind}"
        elif crowd.who == "tasks in asyncio" and crowd.events == HEARS and crowd.kind != BARE:
            label = f"tasks, {crowd.kind}"
        else:
            continue
        found.setdefault(label, []).append(crowd)
    order = (HEARS, FEW)
    return dict(
        sorted(
            found.items(), key=lambda item: (item[0][0] == "t", item[1][0].events not in order)
        )
    )


def svg(results: CrowdResults) -> str:
    """Draw the CPU of those who wait, and the time until all are through, by their number."""
    series = _series(results.crowds)
    parts = [
        text(MARGIN, 42, "What a crowd costs", size=22, weight=700),
        text(
            MARGIN,
            66,
            "So many wait for one lock. Red: what is promised, which grows with the number.",
            size=13,
            fill=GREY,
        ),
    ]
    parts += _panel(
        _LEFTS[0],
        "CPU of all while they wait, percent of a core",
        series,
        lambda crowd: crowd.idle,
        lambda count: IDLE_PERCENT * max(count, 1) / IDLE_WAITERS,
        IDLE_WAITERS,
    )
    parts += _panel(
        _LEFTS[1],
        "from the release until all were through, ms",
        series,
        lambda crowd: crowd.through,
        lambda count: THROUGH_MS * count,
    )
    y: float = _TOP + _HIGH + 64
    for number, (colour, label) in enumerate(zip(_COLOURS * 3, series, strict=False)):
        at = MARGIN + (number % 3) * (WIDTH - 2 * MARGIN) / 3
        row = y + number // 3 * _LEGEND_ROW
        crowd = series[label][0]
        parts += [
            _stroke(at, row - 4, at + 22, row - 4, colour, crowd),
            text(at + 30, row, label),
        ]
    y += (len(series) + 2) // 3 * _LEGEND_ROW + _FOOT
    facts = results.facts
    foot = f"{facts['Date']} · {facts['Kernel']} · {facts['Python']}"
    return frame("What a crowd that waits for one lock costs", parts, y, foot)
