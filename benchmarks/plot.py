"""The results as a picture: an SVG written by hand."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from benchmarks.report import ratio_text, time_text
from benchmarks.results import LIMITS, TIMES

if TYPE_CHECKING:
    from benchmarks.measuring import Contender, Group
    from benchmarks.results import Results

_WIDTH = 1000
_MARGIN = 28
_LEFT, _RIGHT = 372, 802  # of the scale
_RATIO_AT, _TIME_AT = 896, _WIDTH - _MARGIN  # right ends of the columns of numbers
_TOP = 126
_ROW = 23
_BAR = 13
_TITLE = 42
_GAP = 30

_COLOURS = {"floor": "#24292f", "c": "#8a94a0", "semlock": "#0b7a75", "peer": "#e3a857"}
_LEGEND = (
    ("semlock", "semlock"),
    ("c", "C, the system calls of semlock"),
    ("peer", "other libraries"),
)
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


class _Scale:
    """Where a ratio lies: a logarithmic scale of whole powers of two."""

    def __init__(self, ratios: list[float]) -> None:
        self.low = math.floor(min(-1.0, math.log2(min(ratios))))
        self.high = math.ceil(max(2.0, math.log2(max(ratios))))

    def __call__(self, ratio: float) -> float:
        share = (math.log2(ratio) - self.low) / (self.high - self.low)
        return _LEFT + min(1.0, max(0.0, share)) * (_RIGHT - _LEFT)

    def ticks(self) -> list[tuple[float, str]]:
        return [
            (self(2.0**power), (f"{2**power}" if power >= 0 else f"1/{2**-power}") + TIMES)
            for power in range(self.low, self.high + 1)
        ]


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start",
          fill: str = "#24292f", weight: int = 400) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{fill}" font-weight="{weight}">{escape(text)}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, *, round_by: float = 0,
          stroke: str = "none") -> str:  # fmt: skip
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{round_by}" fill="{fill}" stroke="{stroke}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{stroke}" stroke-width="{width}"/>'
    )


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
        _text(_LEFT - 14, baseline, contender.label, anchor="end", weight=weight),
        _text(_RATIO_AT, baseline, ratio_text(ratio), anchor="end", weight=weight),
        _text(_TIME_AT, baseline, time_text(contender), anchor="end", fill="#57606a"),
    ]
    if contender.kind == "floor":
        parts.append(f'<circle cx="{one:.1f}" cy="{middle:.1f}" r="5" fill="#24292f"/>')
        return parts
    colour = _COLOURS[contender.kind]
    left = min(one, end)
    parts.append(_rect(left, middle - _BAR / 2, abs(end - one), _BAR, colour, round_by=2))
    parts.append(_line(scale(ratio.low), middle, scale(ratio.high), middle, "#24292f", 1.4))
    limit = _limit(name, contender)
    if limit is not None:
        at = scale(limit)
        parts.append(_line(at, middle - 9, at, middle + 9, "#cf222e", 2.5))
    return parts


def _legend(y: float) -> list[str]:
    parts = []
    x: float = _MARGIN
    for kind, text in _LEGEND:
        parts += [_rect(x, y - 10, 20, 11, _COLOURS[kind], round_by=2), _text(x + 27, y, text)]
        x += 27 + 6.9 * len(text) + 24
    parts += [
        f'<circle cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="5" fill="#24292f"/>',
        _text(x + 18, y, "C floor"),
    ]
    x += 18 + 6.9 * 7 + 24
    parts += [
        _line(x + 4, y - 13, x + 4, y + 4, "#cf222e", 2.5),
        _text(x + 14, y, "what semlock is to stay left of"),
    ]
    return parts


def svg(results: Results) -> str:
    """Draw the groups one below the other, on one scale."""
    ratios = [
        found.median
        for group in results.groups.values()
        for found in (group.ratio(c.key) for c in group.contenders)
        if found is not None
    ]
    scale = _Scale([*ratios, *(limit.ratio for limit in LIMITS if limit.of_floor)])
    body: list[str] = []
    y: float = _TOP
    for name, group in results.groups.items():
        rows = len(group.contenders) * _ROW
        body.append(_text(_MARGIN, y + 14, group.title, size=15, weight=600))
        body += [
            _text(at, y + _TITLE - 9, text, size=11, anchor="end", fill="#57606a")
            for at, text in ((_RATIO_AT, "to the floor"), (_TIME_AT, "median"))
        ]
        y += _TITLE
        for x, label in scale.ticks():
            body.append(_line(x, y - 4, x, y + rows + 4, "#d8dee4"))
            body.append(_text(x, y - 8, label, size=10, anchor="middle", fill="#6e7781"))
        body.append(_line(scale(1), y - 4, scale(1), y + rows + 4, "#24292f", 1.4))
        for contender in group.contenders:
            body += _row(name, group, contender, y, scale)
            y += _ROW
        y += _GAP
    facts = results.facts
    head = [
        _text(_MARGIN, 42, "semlock beside C and beside its peers", size=22, weight=700),
        _text(
            _MARGIN,
            66,
            "Time of one operation as a ratio to the C floor of the same run, on a logarithmic "
            "scale: left of the line is faster than C.",
            size=13,
            fill="#57606a",
        ),
        *_legend(98),
    ]
    foot = f"{facts['Date']} · {facts['Kernel']} · {facts['Python']} · {facts['Versions']}"
    height = round(y) + 14
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">',
            "<title>Time of each contender as a ratio to a C loop</title>",
            _rect(0.5, 0.5, _WIDTH - 1, height - 1, "#fbfcfd", round_by=10, stroke="#d0d7de"),
            *head,
            *body,
            _text(_MARGIN, height - 16, foot, size=11, fill="#6e7781"),
            "</svg>",
            "",
        ]
    )
