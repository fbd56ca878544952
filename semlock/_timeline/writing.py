"""A timeline as a file: a page that can be zoomed, or Chrome's trace-event format for Perfetto.

There each lock is a thread of an artificial process, with its holds and a counter of its waiters.
Below are the real processes, with a thread for each lock that a thread or task uses, since spans
in one lane must not overlap.  Arrows lead from each hold to the wait that its release ended.
"""

from __future__ import annotations

import json
from html import escape
from pkgutil import get_data

from semlock._core.records import printable
from semlock._timeline.lanes import Lanes, colour, summary, words
from semlock._timeline.report import convoy_in_words, wait_in_words

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from semlock._timeline.reading import Span, Trace
    from semlock._timeline.report import Convoy

# Larger than the process numbers of any system.
_LOCKS = 2**31 - 2


def chrome(trace: Trace, name: str) -> str:
    """Lay out a trace: an object a line, so that it can be searched as text."""
    lanes = Lanes(trace)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in _events(trace, lanes))
    other = json.dumps(
        {"trace": printable(name), "began": trace.began_at, "made by": "semlock"}
    )
    head = f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":['
    return f"{head}\n{lines}\n]}}\n"


def _events(trace: Trace, lanes: Lanes) -> Iterator[dict[str, Any]]:
    yield from _named("process", _LOCKS, 0, "locks", 0)
    for number, lane in enumerate(lanes.locks, 1):
        yield from _named("thread", _LOCKS, number, lane.name, number)
        for hold in lane.holds:
            what = printable(hold.who)
            yield _slice(
                hold, f"{what}: {printable(hold.tag)}" if hold.tag else what, _LOCKS, number
            )
        for at, depth in lane.depths:
            yield {
                "name": f"waiting for {lane.name}", "ph": "C", "ts": at / 1000, "pid": _LOCKS,
                "tid": number, "args": {"waiting": depth},
            }  # fmt: skip
    places: dict[int, tuple[int, int]] = {}
    pids: set[int] = set()
    for order, process_lane in enumerate(lanes.processes, 1):
        process = process_lane.process
        pid = process.pid
        while pid in pids:  # a reused process number
            pid += 10_000_000
        pids.add(pid)
        yield from _named("process", pid, 0, printable(process.command or "process"), order)
        for tid, row in enumerate(process_lane.rows.values(), 1):
            yield from _named("thread", pid, tid, row.label, tid)
            for span in row.spans:
                places[id(span)] = (pid, tid)
                verb = "hold" if span.holds else "wait for"
                yield _slice(span, f"{verb} {lanes.names[span.lock]}", pid, tid)
            for mark in row.marks:
                yield {
                    "name": printable(mark.text), "cat": mark.kind, "ph": "i", "s": "t",
                    "ts": mark.at / 1000, "pid": pid, "tid": tid,
                }  # fmt: skip
    yield from _arrows(trace, places)


def _named(kind: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    for what, value in (
        (f"{kind}_name", {"name": name}),
        (f"{kind}_sort_index", {"sort_index": order}),
    ):
        yield {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": value}


def _slice(span: Span, name: str, pid: int, tid: int) -> dict[str, Any]:
    told: dict[str, Any] = {"lock": printable(span.lock), "ended": span.ended}
    if span.tag:
        told["tag"] = printable(span.tag)
    return {
        "name": name, "cat": "hold" if span.holds else "wait", "ph": "X",
        "ts": span.begin / 1000, "dur": span.length / 1000, "pid": pid, "tid": tid, "args": told,
    }  # fmt: skip


def _arrows(trace: Trace, places: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Connect each hold with the next one, if that had waited for it."""
    waited = {
        (wait.process.number, wait.worker, wait.lock, wait.end)
        for wait in trace.waits
        if wait.ended == "acquire"
    }
    last: dict[str, Span] = {}
    for number, hold in enumerate(trace.holds, 1):
        before = last.get(hold.lock)
        last[hold.lock] = hold
        key = (hold.process.number, hold.worker, hold.lock, hold.begin)
        if before is None or key not in waited:
            continue
        for phase, span, at in (("s", before, before.end), ("f", hold, hold.begin)):
            pid, tid = places[id(span)]
            # Just inside the hold that the arrow starts from, or it would have no start.
            ts = max(span.begin, at - 1) / 1000 if phase == "s" else at / 1000
            event = {
                "name": "hand-over", "cat": "hand-over", "ph": phase, "id": number, "ts": ts,
                "pid": pid, "tid": tid,
            }  # fmt: skip
            yield event | {"bp": "e"} if phase == "f" else event


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
