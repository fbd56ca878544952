"""Waiting as a picture: how long a hand-over takes, and who gets how much of a lock."""

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
    frame,
    line,
    rect,
    text,
)
from benchmarks.results import TIMES, number
from benchmarks.waiting.locks import REFERENCE
from benchmarks.waiting.results import (
    FAIR_SHARES,
    HOLD_NS,
    POSSIBLE,
    SHARE_OF_POSSIBLE,
    WAKE_RATIO,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.waiting.results import Contest, WaitingResults, Wakes

_TOP = 126
_ROW = 23
_BAR = 13
_TITLE = 42
_GAP = 30
_LEFT = 330

_WAKE_RIGHT = 765  # of the scale of times
_RATIO_AT, _TIME_AT = 896, WIDTH - MARGIN

_RATE_RIGHT = 560  # of the scale of hand-overs
_SHARES_LEFT, _SHARES_RIGHT = 590, 780
_RATE_AT, _LONGEST_AT = 868, WIDTH - MARGIN
_TALLEST = 2.0  # fair shares

_LEGEND = (
    ("semlock", "semlock"),
    ("kernel", "flock(2), without timeout, record or order"),
    ("peer", "other libraries"),
)


class _Time:
    """Where a time lies: a logarithmic scale of whole powers of ten, in nanoseconds."""

    def __init__(self, times: list[float]) -> None:
        self.low = math.floor(math.log10(min(times)))
        self.high = max(self.low + 1, math.ceil(math.log10(max(times))))

    def __call__(self, time: float) -> float:
        share = (math.log10(time) - self.low) / (self.high - self.low)
        return _LEFT + min(1.0, max(0.0, share)) * (_WAKE_RIGHT - _LEFT)

    def ticks(self) -> list[tuple[float, str]]:
        return [(self(10**p), _time_text(10**p)) for p in range(self.low, self.high + 1)]


def _time_text(nanoseconds: float) -> str:
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{nanoseconds:.0f} ns"


def _label(entrant_label: str, kind: str, y: float) -> str:
    weight = 600 if kind == "semlock" else 400
    return text(_LEFT - 14, y, entrant_label, anchor="end", weight=weight)


def _heads(y: float, heads: tuple[tuple[float, str], ...]) -> list[str]:
    return [text(at, y, words, size=11, anchor="end", fill=GREY) for at, words in heads]


def _grid(ticks: list[tuple[float, str]], top: float, rows: int) -> list[str]:
    parts = []
    for x, words in ticks:
        parts.append(line(x, top - 4, x, top + rows * _ROW + 4, GRID))
        parts.append(text(x, top - 8, words, size=10, anchor="middle", fill=FAINT))
    return parts


def _wakes(title: str, wakes: dict[str, Wakes], y: float) -> tuple[list[str], float]:
    """Draw a bar up to the median for each kind, and a thin line on to the 99th percentile."""
    reference = wakes.get(REFERENCE)
    scale = _Time([time for wake in wakes.values() for time in (wake.p50 / 2, wake.p99)])
    parts = [text(MARGIN, y + 14, title, size=15, weight=600)]
    parts += _heads(y + _TITLE - 9, ((_RATIO_AT, "to flock, own file"), (_TIME_AT, "p50")))
    y += _TITLE
    parts += _grid(scale.ticks(), y, len(wakes))
    for wake in wakes.values():
        middle, end = y + _ROW / 2, scale(wake.p50)
        colour = COLOURS[wake.entrant.kind]
        parts += [
            _label(wake.entrant.label, wake.entrant.kind, middle + 4),
            rect(_LEFT, middle - _BAR / 2, end - _LEFT, _BAR, colour, round_by=2),
            line(end, middle, scale(wake.p99), middle, INK, 1.4),
            text(_TIME_AT, middle + 4, _time_text(wake.p50), anchor="end", fill=GREY),
        ]
        if reference is not None:
            ratio = f"{number(wake.ratio(reference).median)} {TIMES}"
            parts.append(text(_RATIO_AT, middle + 4, ratio, anchor="end"))
            if wake.entrant.kind == "semlock":
                at = scale(WAKE_RATIO * reference.p50)
                parts.append(line(at, middle - 9, at, middle + 9, RED, 2.5))
        y += _ROW
    return parts, y + _GAP


def _shares(contest: Contest, y: float) -> list[str]:
    """Draw a column for each process, as high as its share of the lock."""
    # The block in the middle by its fairness: shares can't be averaged over blocks, in each
    # of which somebody else may be the one that has most.
    blocks = sorted(contest.blocks, key=lambda block: block.jain)
    shares = blocks[len(blocks) // 2].shares
    room, low = (_SHARES_RIGHT - _SHARES_LEFT) / len(shares), y + _ROW - 3
    high = _ROW - 6
    parts = []
    for i, share in enumerate(shares):
        tall = max(0.6, min(share, _TALLEST) / _TALLEST * high)
        x = _SHARES_LEFT + i * room
        colour = COLOURS[contest.entrant.kind] if share <= _TALLEST else RED
        parts.append(rect(x, low - tall, max(1.0, room - 1.5), tall, colour))
    fair = low - high / _TALLEST
    parts.append(line(_SHARES_LEFT, fair, _SHARES_RIGHT, fair, INK, 0.8))
    return parts


def _contest(contest: Contest, y: float, rate_at: Callable[[float], float]) -> list[str]:
    middle = y + _ROW / 2
    rate = contest.median("changes") / POSSIBLE
    own = contest.entrant.kind == "semlock"
    most = FAIR_SHARES * contest.processes * HOLD_NS / 1e6
    late = contest.longest_ms > most
    bar = rect(
        _LEFT,
        middle - _BAR / 2,
        rate_at(rate) - _LEFT,
        _BAR,
        COLOURS[contest.entrant.kind],
        round_by=2,
    )
    parts = [
        _label(contest.entrant.label, contest.entrant.kind, middle + 4),
        bar,
        *_shares(contest, y),
        text(_RATE_AT, middle + 4, f"{rate:.3f}", anchor="end", weight=600 if own else 400),
        text(
            _LONGEST_AT,
            middle + 4,
            f"{contest.longest_ms:,.0f} ms",
            anchor="end",
            fill=RED if late else GREY,
        ),
    ]
    if own:
        at = rate_at(SHARE_OF_POSSIBLE)
        parts.append(line(at, middle - 9, at, middle + 9, RED, 2.5))
    return parts


def _contests(contests: list[Contest], y: float) -> tuple[list[str], float]:
    parts = []

    def rate_at(rate: float) -> float:
        return _LEFT + min(1.0, rate) * (_RATE_RIGHT - _LEFT)

    for count in dict.fromkeys(contest.processes for contest in contests):
        rows = [contest for contest in contests if contest.processes == count]
        title = f"{count} processes on one lock, each holding for 1 ms"
        parts.append(text(MARGIN, y + 14, title, size=15, weight=600))
        parts += _heads(
            y + _TITLE - 9, ((_RATE_AT, "hand-overs"), (_LONGEST_AT, "longest wait"))
        )
        words = "share of each process; line: a fair one"
        parts.append(text(_SHARES_LEFT, y + _TITLE - 9, words, size=11, fill=GREY))
        y += _TITLE
        ticks = [(rate_at(share), f"{share:g}") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        parts += _grid(ticks, y, len(rows))
        for contest in rows:
            parts += _contest(contest, y, rate_at)
            y += _ROW
        y += _GAP
    return parts, y


def _legend(y: float) -> list[str]:
    parts = []
    x: float = MARGIN
    for kind, words in _LEGEND:
        parts += [rect(x, y - 10, 20, 11, COLOURS[kind], round_by=2), text(x + 27, y, words)]
        x += 27 + 6.9 * len(words) + 24
    parts += [line(x + 4, y - 13, x + 4, y + 4, RED, 2.5), text(x + 14, y, "semlock's bar")]
    x += 14 + 6.9 * 13 + 24
    parts += [rect(x, y - 10, 11, 11, RED), text(x + 18, y, "over two fair shares")]
    return parts


def svg(results: WaitingResults) -> str:
    """Draw hand-overs, and below them how the lock goes round."""
    head = [
        text(MARGIN, 42, "How locks change hands", size=22, weight=700),
        text(
            MARGIN,
            66,
            "From the release of a lock until the next one is in (thin line: up to the 99th "
            "percentile), and how it goes round among many who want it.",
            size=13,
            fill=GREY,
        ),
        *_legend(98),
    ]
    parts: list[str] = []
    y: float = _TOP
    for title, wakes in (
        ("release() to the next one in", results.handover),
        ("SIGKILL of the holder to the next one in", results.kill),
    ):
        if wakes:
            drawn, y = _wakes(title, wakes, y)
            parts += drawn
    drawn, y = _contests(results.contests, y)
    facts = results.facts
    foot = f"{facts['Date']} · {facts['Kernel']} · {facts['Python']} · {facts['Versions']}"
    return frame(
        "Hand-over times, and how fairly a lock goes round", [*head, *parts, *drawn], y, foot
    )
