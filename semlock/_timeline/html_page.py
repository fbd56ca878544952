"""A timeline as a page in one file, which can be zoomed and shows details."""

from __future__ import annotations

import json
from html import escape
from pkgutil import get_data

from semlock._core.records import printable
from semlock._timeline.lanes import Lanes, colour, summary, words
from semlock._timeline.report import convoy_in_words, wait_in_words

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._timeline.reading import Span, Trace
    from semlock._timeline.report import Convoy


def html(trace: Trace, name: str) -> str:
    """Make the page."""
    lanes = Lanes(trace)
    data = json.dumps(_data(trace, lanes), ensure_ascii=True, separators=(",", ":"))
    told = summary(trace)
    page = (get_data("semlock", "_timeline/page.html") or b"").decode("utf-8")
    page = page.replace("@NAME@", escape(printable(name))).replace("@TOLD@", escape(told))
    # The data may contain the tag that ends a script.
    return page.replace("@DATA@", data.replace("<", "\\u003c"))


def _data(trace: Trace, lanes: Lanes) -> dict[str, Any]:
    """Give what the script draws: lanes with bars of [begin, end, kind, process, text, label]."""
    where: dict[int, int] = {}
    rows: list[dict[str, Any]] = [
        {
            "name": lane.name,
            "bars": [_bar(span, lanes, by_process=True) for span in lane.holds],
            "marks": [[mark.at, mark.said] for mark in lane.marks],
            "convoys": [_convoy(convoy, lanes) for convoy in lane.convoys],
            "queue": lane.depths,
            "most": lane.most,
        }
        for lane in lanes.locks
    ]
    for process_lane in lanes.processes:
        rows.append(
            {
                "head": printable(process_lane.process.name),
                "colour": process_lane.process.number,
            }
        )
        for row in process_lane.rows.values():
            for span in row.spans:
                where[id(span)] = len(rows)
            rows.append(
                {
                    "label": row.label,
                    "bars": [_bar(span, lanes, by_process=False) for span in row.spans],
                    "marks": [[mark.at, mark.said] for mark in row.marks],
                    "colour": process_lane.process.number,
                }
            )
    waits = []
    for wait, hold in lanes.longest:
        arrow = None
        if hold is not None and id(hold) in where:
            arrow = [where[id(hold)], min(hold.end, wait.end)]
        text = wait_in_words(trace, wait, lanes.names)
        waits.append([wait.begin, wait.end, where[id(wait)], text, arrow])
    return {
        "end": max(1, trace.end),
        "rows": rows,
        "colours": [colour(process) for process in trace.processes],
        "waits": waits,
        "convoys": [_convoy(convoy, lanes) for convoy in lanes.convoys],
    }


def _bar(span: Span, lanes: Lanes, *, by_process: bool) -> list[Any]:
    kind = 0
    if span.holds:
        kind = 2 if span.ended in ("killed", "lost", "open") else 1
    label = printable(span.tag)
    if by_process:
        name = printable(span.process.name)
        label = f"{name}: {label}" if label else name
    number = span.process.number
    return [span.begin, span.end, kind, number, words(span, lanes.names), label]


def _convoy(convoy: Convoy, lanes: Lanes) -> list[Any]:
    return [convoy.begin, convoy.end, convoy_in_words(convoy, lanes.names)]
