"""A timeline as one SVG file, with a light and a dark colour scheme."""

from __future__ import annotations

from html import escape

from semlock._core.records import printable
from semlock._timeline.lanes import Lanes, colour, summary, ticks, words
from semlock._timeline.report import convoy_in_words, duration, wait_in_words

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable

    from semlock._timeline.lanes import LockLane, ProcessLane
    from semlock._timeline.reading import Mark, Process, Span, Trace

_WIDTH = 1280
_LEFT = 230  # where time begins
_RIGHT = _WIDTH - 28
_HOLD = 20  # the height of a hold in the lane of its lock
_QUEUE = 26  # the height of the longest queue
_ROW = 14
_GAP = 4
_LETTER = 6.1  # the width of a letter, about
_TICKS = 10

# Narrower spans at one place are drawn as one.
_NARROW = 1.0
# Narrower spans have no tooltip, as a mouse can't hit them.
_POINTED = 2.0

_STYLE = """
svg { --back: #ffffff; --text: #1d2330; --soft: #667085; --line: #e4e7ec; --band: #f7f8fa;
  --queue: #98a2b3; --alarm: #b42318; color-scheme: light dark;
  font: 12px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --back: #12151c; --text: #e6e9ef;
  --soft: #98a2b3; --line: #2a303c; --band: #181c25; --queue: #5d6b82; --alarm: #f97066; } }
.back { fill: var(--back); } .band { fill: var(--band); }
text { fill: var(--text); } .soft { fill: var(--soft); } .small { font-size: 11px; }
.title { font-size: 18px; font-weight: 600; } .head { font-size: 13px; font-weight: 600; }
.name { font-weight: 600; } .inside { fill: #fff; font-size: 10.5px; }
.grid { stroke: var(--line); } .queue { fill: var(--queue); opacity: .55; }
.convoy { stroke: var(--alarm); stroke-width: 2; fill: none; }
.alarm { fill: var(--alarm); } .arrow { stroke: var(--text); stroke-width: 1.1; fill: none;
  opacity: .75; } .tip { fill: var(--text); }
.badge { fill: var(--text); } .number { fill: var(--back); font-size: 10px; font-weight: 700; }
.cut { stroke: var(--alarm); stroke-width: 2.5; }
"""


def svg(trace: Trace, name: str) -> str:
    """Draw a trace."""
    return _Drawing(trace).draw(name)


class _Drawing:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._lanes = Lanes(trace)
        self._parts: list[str] = []
        self._y = 0.0
        self._scale = (_RIGHT - _LEFT) / max(1, trace.end)
        # The vertical position of each span, for the arrows.
        self._rows: dict[int, float] = {}

    def _x(self, at: int) -> float:
        return round(_LEFT + at * self._scale, 2)

    def draw(self, name: str) -> str:
        trace, lanes = self._trace, self._lanes
        self._y = 34
        self._text(20, self._y, printable(name), "title")
        self._y += 20
        self._text(20, self._y, summary(trace), "soft")
        self._legend(self._y)
        self._y += 34
        top = self._y
        self._heading("Locks: who holds, and how many wait")
        for lock_lane in lanes.locks:
            self._lock(lock_lane)
        self._y += 12
        self._heading("Processes: when each waits and holds")
        for process_lane in lanes.processes:
            self._process(process_lane)
        for number, (wait, hold) in enumerate(lanes.longest, 1):
            self._longest(number, wait, hold)
        grid = self._grid(top, self._y + 4)
        self._words()
        height = self._y + 16
        size = f'width="{_WIDTH}" height="{height:.0f}"'
        return "".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" ',
                f'viewBox="0 0 {_WIDTH} {height:.0f}">\n',
                f"<title>{escape(printable(name))}</title>\n<style>{_STYLE}</style>\n",
                self._definitions(),
                f'<rect class="back" {size}/>\n',
                grid,
                *self._parts,
                "</svg>\n",
            ]
        )

    # ---------------------------------------------------------------- the parts

    def _definitions(self) -> str:
        patterns = [
            f'<pattern id="w{process.number}" width="5" height="5" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            f'<rect width="5" height="5" fill="{colour(process)}" opacity=".22"/>'
            f'<rect width="1.6" height="5" fill="{colour(process)}" opacity=".75"/></pattern>\n'
            for process in self._trace.processes
        ]
        tip = (
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path class="tip" d="M0 0.8 8 4 0 7.2z"/></marker>\n'
        )
        return f"<defs>{''.join(patterns)}{tip}</defs>\n"

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "") -> None:
        extra = f' class="{kind}"' if kind else ""
        extra += f' text-anchor="{anchor}"' if anchor else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>\n')

    def _heading(self, text: str) -> None:
        self._y += 14
        self._text(20, self._y, text, "head")
        self._y += 12

    def _legend(self, y: float) -> None:
        process = self._trace.processes[0] if self._trace.processes else None
        shade = colour(process) if process else "#888"
        x = _RIGHT - 330
        for fill, words_ in ((shade, "holds"), ("url(#w0)", "waits")):
            self._parts.append(
                f'<rect x="{x}" y="{y - 10}" width="26" height="12" rx="2" fill="{fill}"/>\n'
            )
            self._text(x + 32, y, words_, "soft small")
            x += 80
        self._parts.append(f'<path class="queue" d="M{x} {y + 2}v-6h8v-6h10v6h8v6z"/>\n')
        self._text(x + 32, y, "queue", "soft small")
        x += 80
        self._parts.append(f'<path class="convoy" d="M{x} {y - 1}v-5h26v5"/>\n')
        self._text(x + 32, y, "convoy", "soft small")

    def _grid(self, top: float, bottom: float) -> str:
        parts = []
        for at in ticks(self._trace.end, _TICKS):
            x = self._x(at)
            parts.append(f'<path class="grid" d="M{x} {top:.0f}V{bottom:.0f}"/>\n')
            label = duration(at) if at else "0"
            parts += [
                f'<text class="soft small" x="{x}" y="{y:.0f}" text-anchor="middle">'
                f"{label}</text>\n"
                for y in (top - 5, bottom + 13)
            ]
        self._y = bottom + 24
        return "".join(parts)

    def _lock(self, lane: LockLane) -> None:
        if lane.convoys:
            self._y += 8
        top = self._y
        self._text(_LEFT - 10, top + 14, _shortened(lane.name), "name", "end")
        for convoy in lane.convoys:
            begin, end = self._x(convoy.begin), self._x(convoy.end)
            self._parts.append(
                f'<path class="convoy" d="M{begin} {top - 1.5:.1f}v-5H{end:.1f}v5">'
                f"<title>{escape(convoy_in_words(convoy, self._lanes.names))}</title></path>\n"
            )
        self._spans(lane.holds, top, _HOLD, by_process=True)
        self._y = top + _HOLD
        if lane.most:
            self._queue(lane)
            self._text(_LEFT - 10, self._y + 13, f"up to {lane.most} wait", "soft small", "end")
            self._y += _QUEUE
        for mark in lane.marks:
            self._mark(mark, top, _HOLD)
        self._y += 12

    def _queue(self, lane: LockLane) -> None:
        most = max(other.most for other in self._lanes.locks)
        top = self._y + 2
        path = [f"M{_LEFT} {top:.1f}"]
        last = (0.0, 0)
        for at, depth in lane.depths:
            x = self._x(at)
            if x - last[0] < _NARROW / 2 and depth < last[1]:
                continue  # too narrow to see; it must not replace the maximum
            path.append(f"H{x}V{top + depth * (_QUEUE - 4) / most:.1f}")
            last = (x, depth)
        path.append(f"V{top:.1f}z")
        self._parts.append(f'<path class="queue" d="{"".join(path)}"/>\n')

    def _process(self, lane: ProcessLane) -> None:
        process = lane.process
        height = 18 + len(lane.rows) * (_ROW + _GAP)
        self._parts.append(
            f'<rect class="band" x="12" y="{self._y:.1f}" width="{_WIDTH - 24}" '
            f'height="{height:.1f}" rx="4"/>\n'
            f'<rect x="12" y="{self._y:.1f}" width="4" height="{height:.1f}" rx="2" '
            f'fill="{colour(process)}"/>\n'
        )
        self._text(24, self._y + 13, _shortened(printable(process.name)), "name")
        self._y += 17
        for row in lane.rows.values():
            self._text(_LEFT - 10, self._y + 11, _shortened(row.label), "soft small", "end")
            self._spans(row.spans, self._y, _ROW, by_process=False)
            for mark in row.marks:
                self._mark(mark, self._y, _ROW)
            self._y += _ROW + _GAP
        self._y += 7

    def _spans(
        self, spans: Iterable[Span], top: float, height: float, *, by_process: bool
    ) -> None:
        seen = -1.0  # the end of the last narrow span that was drawn
        for span in spans:
            begin, end = self._x(span.begin), self._x(span.end)
            self._rows[id(span)] = self._rows.get(id(span), 0.0) if by_process else top
            if end - begin < _NARROW and end <= seen:
                continue
            width = max(end - begin, _NARROW)
            seen = begin + width
            fill = colour(span.process) if span.holds else f"url(#w{span.process.number})"
            rounded = ' rx="2"' if width > 6 else ""
            self._parts.append(
                f'<rect x="{begin}" y="{top:.1f}" width="{width:.2f}" height="{height}"{rounded} '
                f'fill="{fill}"{self._ending(span, width)}\n'
            )
            if span.holds and span.ended in ("killed", "lost", "open"):
                self._parts.append(
                    f'<path class="cut" d="M{end} {top - 2:.1f}V{top + height + 2:.1f}"/>\n'
                )
            text = _inside(span, width, by_process=by_process) if span.holds else ""
            if text:
                y = top + height / 2 + 3.8
                self._text(begin + 4, y, text, "inside")

    def _ending(self, span: Span, width: float) -> str:
        if width < _POINTED:
            return "/>"
        return f"><title>{escape(words(span, self._lanes.names))}</title></rect>"

    def _mark(self, mark: Mark, top: float, height: float) -> None:
        x = self._x(mark.at)
        y = top + height
        self._parts.append(
            f'<path class="alarm" d="M{x - 4} {y + 1:.1f}h8l-4 -7z">'
            f"<title>{escape(mark.said)}</title></path>\n"
        )

    def _longest(self, number: int, wait: Span, hold: Span | None) -> None:
        y = self._rows.get(id(wait), 0.0) + _ROW / 2
        if hold is not None and self._rows.get(id(hold)):
            # From the release of one hold to the beginning of the next.
            before = self._rows[id(hold)] + _ROW / 2
            begin, end = self._x(min(hold.end, wait.end)), self._x(wait.end)
            edge = (_ROW / 2 + 1) * (1 if before > y else -1)
            start, stop = before - edge, y + edge
            middle = (start + stop) / 2
            self._parts.append(
                f'<path class="arrow" marker-end="url(#tip)" d="M{begin} {start:.1f}'
                f'C{begin} {middle:.1f} {end} {middle:.1f} {end} {stop:.1f}"/>\n'
            )
        x = (self._x(wait.begin) + self._x(wait.end)) / 2
        self._parts.append(f'<circle class="badge" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>\n')
        self._text(x, y + 3.6, str(number), "number", "middle")

    def _words(self) -> None:
        lanes = self._lanes
        if lanes.longest:
            self._heading("The longest waits")
            for number, (wait, _) in enumerate(lanes.longest, 1):
                y = self._y + 4
                self._parts.append(f'<circle class="badge" cx="30" cy="{y}" r="7.5"/>\n')
                self._text(30, y + 3.6, str(number), "number", "middle")
                self._text(46, y + 4, wait_in_words(self._trace, wait, lanes.names))
                self._y += 20
        if lanes.convoys:
            self._heading("Convoys")
            for convoy in lanes.convoys[:5]:
                y = self._y + 4
                self._parts.append(f'<path class="convoy" d="M22 {y + 3}v-5h16v5"/>\n')
                self._text(46, y + 4, convoy_in_words(convoy, lanes.names))
                self._y += 20


def _inside(span: Span, width: float, *, by_process: bool) -> str:
    """Choose the text of a bar."""
    process: Process = span.process
    tag = printable(span.tag)
    texts = [tag, duration(span.length)]
    if by_process:
        name = printable(process.name)
        texts = [f"{name}: {tag}" if tag else name, name, str(process.pid)]
    for text in texts:
        if text and len(text) * _LETTER + 8 <= width:
            return text
    return ""


def _shortened(text: str, most: int = 32) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"
