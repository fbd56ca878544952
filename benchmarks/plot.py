"""The results as a picture: an SVG written by hand."""

from __future__ import annotations

import math
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
    dot,
    frame,
    line,
    rect,
    text,
)
from benchmarks.report import ratio_text, time_text
from benchmarks.results import LIMITS, TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measuring import Contender, Group
    from benchmarks.results import Results

_LEFT, _RIGHT = 372, 802  # of the scale
_RATIO_AT, _TIME_AT = 896, WIDTH - MARGIN  # right ends of the columns of numbers
_TOP = 126
_ROW = 23
_BAR = 13
_TITLE = 42
_GAP = 30

_LEGEND = (
    ("semlock", "semlock"),
    ("c", "C, the system calls of semlock"),
    ("peer", "other libraries"),
)


class _Scale:
    """Where a ratio lies: a logarithmic scale of whole powers of two."""

    def __init__(self, ratios: list[float]) -> None:
        self.low = math.floor(min(-1.0, math.log2(min(ratios))))
        self.high = math.ceil(max(2.0, math.log2(max(ratios))))

    def __call__(self, ratio: float) -> float:
        share = (math.log2(ratio) - self.low) / (self.high - self.low)
        return _LEFT + min(1.0, max(0.0, share)) * (_RIGHT - _LEFT)

    def ticks(self) -> list[tuple[float, str]]:
        step = 1 + (self.high - self.low) // 9
        return [
            (self(2.0**power), (f"{2**power}" if power >= 0 else f"1/{2**-power}") + TIMES)
            for power in range(self.low, self.high + 1)
            if power % step == 0
        ]


def _limit(group: str, contender: Contender) -> float | None:
    for limit in LIMITS:
        if limit.of_floor and (limit.group, limit.key) == (group, contender.key):
            return limit.ratio
    return None


def _row(name: str, group: Group, contender: Contender, y: float, scale: _Scale) -> list[str]:
    ratio = group.ratio(contender.key)
    assert ratio is not None
    own = contender.kind == "semlock"
    weight = 600 if own else 400
    middle = y + _ROW / 2
    baseline = middle + 4
    one, end = scale(1), scale(ratio.median)
    parts = [
        text(_LEFT - 14, baseline, contender.label, anchor="end", weight=weight),
        text(_RATIO_AT, baseline, ratio_text(ratio), anchor="end", weight=weight),
        text(_TIME_AT, baseline, time_text(contender), anchor="end", fill=GREY),
    ]
    if contender.kind == "floor":
        parts.append(dot(one, middle))
        return parts
    colour = COLOURS[contender.kind]
    left = min(one, end)
    parts.append(rect(left, middle - _BAR / 2, abs(end - one), _BAR, colour, round_by=2))
    parts.append(line(scale(ratio.low), middle, scale(ratio.high), middle, INK, 1.4))
    limit = _limit(name, contender)
    if limit is not None:
        at = scale(limit)
        parts.append(line(at, middle - 9, at, middle + 9, RED, 2.5))
    return parts


def _legend(
    y: float, legend: Sequence[tuple[str, str]], floor: str, *, bars: bool
) -> list[str]:
    parts = []
    x: float = MARGIN
    for kind, words in legend:
        parts += [rect(x, y - 10, 20, 11, COLOURS[kind], round_by=2), text(x + 27, y, words)]
        x += 27 + 6.9 * len(words) + 24
    parts += [
        dot(x + 6, y - 4),
        text(x + 18, y, floor),
    ]
    x += 18 + 6.9 * len(floor) + 24
    if bars:
        parts += [
            line(x + 4, y - 13, x + 4, y + 4, RED, 2.5),
            text(x + 14, y, "what semlock is to stay left of"),
        ]
    return parts


def svg(results: Results) -> str:
    """Draw what was measured on one process alone."""
    how = (
        "Time of one operation as a ratio to the C floor of the same run, on a logarithmic "
        "scale: left of the line is faster than C."
    )
    limits = [limit.ratio for limit in LIMITS if limit.of_floor]
    title = "semlock beside C and beside its peers"
    legend = _legend(98, _LEGEND, "C floor", bars=True)
    return draw(results.groups, results.facts, title, how, legend, limits)


def svg_of_engines(groups: dict[str, Group], facts: dict[str, str]) -> str:
    """Draw pairs on servers."""
    how = (
        "Time of an acquire and a release as a ratio to the same requests by the bare client, in "
        "the same run, on a logarithmic scale."
    )
    legend = _legend(98, (_LEGEND[0], _LEGEND[2]), "the same requests", bars=False)
    return draw(groups, facts, "Locks on servers", how, legend, [])


def draw(
    groups: dict[str, Group],
    facts: dict[str, str],
    title: str,
    how: str,
    legend: list[str],
    limits: list[float],
) -> str:
    """Draw the groups one below the other, on one scale."""
    ratios = [
        found.median
        for group in groups.values()
        for found in (group.ratio(c.key) for c in group.contenders)
        if found is not None
    ]
    scale = _Scale([*ratios, *limits])
    body: list[str] = []
    y: float = _TOP
    for name, group in groups.items():
        rows = len(group.contenders) * _ROW
        body.append(text(MARGIN, y + 14, group.title, size=15, weight=600))
        body += [
            text(at, y + _TITLE - 9, words, size=11, anchor="end", fill=GREY)
            for at, words in ((_RATIO_AT, "to the floor"), (_TIME_AT, "median"))
        ]
        y += _TITLE
        for x, label in scale.ticks():
            body.append(line(x, y - 4, x, y + rows + 4, GRID))
            body.append(text(x, y - 8, label, size=10, anchor="middle", fill=FAINT))
        body.append(line(scale(1), y - 4, scale(1), y + rows + 4, INK, 1.4))
        for contender in group.contenders:
            body += _row(name, group, contender, y, scale)
            y += _ROW
        y += _GAP
    head = [
        text(MARGIN, 42, title, size=22, weight=700),
        text(MARGIN, 66, how, size=13, fill=GREY),
        *legend,
    ]
    foot = f"{facts['Date']} · {facts['Kernel']} · {facts['Python']} · {facts['Versions']}"
    return frame(title, [*head, *body], y, foot)
