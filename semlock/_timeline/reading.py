"""``semlock timeline``: what a trace shows, as a picture and in words.

This module combines the events of ``semlock.trace`` to holds and waits.  It reads as much of a
trace as possible: lines may be incomplete and processes may have been killed at any point.  A
hold or wait without an end is marked as such.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from statistics import median

from semlock._core.errors import LockRecordError
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from semlock._core.status import StrPath

    Event = dict[str, Any]

# Clocks that differ by less (in nanoseconds) count as the same, read at two times.
_SAME_CLOCK = 1_000_000_000


@dataclass(slots=True, eq=False)
class Process:
    """A process of the trace: its number, its program, and when it was seen."""

    pid: int
    number: int
    command: str
    begin: int
    end: int
    exited: bool = False

    @property
    def name(self) -> str:
        """Name it for people."""
        return f"{self.command} {self.pid}".strip()


@dataclass(slots=True, eq=False)
class Span:
    """A hold or a wait: the lock, the process, the times, and how it ended.

    ``ended`` is the event that ended it; ``"killed"`` if the lock was taken from a holder that
    never released it, and ``"open"`` if the trace has no end.
    """

    lock: str
    process: Process
    worker: str
    begin: int
    end: int
    holds: bool
    tag: str
    ended: str = "open"
    behind: int | None = None  # the PID of the holder when a wait began, if known
    token: str | None = None  # of a hold

    @property
    def length(self) -> int:
        """How long it lasted, in nanoseconds."""
        return self.end - self.begin

    @property
    def who(self) -> str:
        """The process, and the thread or task if it isn't the main one."""
        return f"{self.process.name} {self.worker}".strip()


@dataclass(slots=True, eq=False)
class Mark:
    """A single event: a reclaim, a loss, a refresh, a timeout."""

    kind: str
    lock: str
    process: Process
    worker: str
    at: int
    text: str

    @property
    def said(self) -> str:
        """What is said of it where its lock is named already."""
        return printable(f"{self.process.name} {self.text}")


class Trace:
    """The contents of a trace file.  Times are nanoseconds since its first event."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.locks: list[str] = []
        self.holds: list[Span] = []
        self.waits: list[Span] = []
        self.marks: list[Mark] = []
        self.events = 0
        self.skipped = 0
        self.end = 0
        self.began_at = 0.0  # in seconds since 1970


# -------------------------------------------------------------------- reading


def _usable(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    for name in ("t", "mono", "pid", "thread"):
        value = event.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            return None
    for name in ("lock", "tag", "task", "token", "command", "clock"):
        if not isinstance(event.get(name, ""), str):
            return None
    return event


def read(path: StrPath) -> Trace:
    """Read a trace file."""
    trace = Trace()
    events = []
    with open(path, "rb") as file:
        for line in file:
            event = _usable(line)
            if event is not None:
                events.append(event)
            elif line.strip():
                trace.skipped += 1
    _align(events)
    # By time and not by line: a release is written later than it happened.
    events.sort(key=lambda event: event["at"])
    if events:
        first = events[0]["at"]
        trace.began_at = events[0]["t"] / 1e9
        for event in events:
            event["at"] -= first
        trace.end = events[-1]["at"]
    trace.events = len(events)
    _Reader(trace).read(events)
    return trace


def _align(events: list[Event]) -> None:
    """Convert all times to one clock.

    Monotonic clocks are exact but start again at each boot.  Those of different machines and
    boots are aligned by the time of day.
    """
    clocks: dict[int, str] = {}
    offsets: dict[str, list[int]] = {}
    for event in events:
        clock = clocks.setdefault(event["pid"], "")
        if event["event"] == "start":
            clock = clocks[event["pid"]] = event.get("clock", "")
        event["clock"] = clock
        offsets.setdefault(clock, []).append(event["t"] - event["mono"])
    if not offsets:
        return
    usual = {clock: int(median(found)) for clock, found in offsets.items()}
    known = max((clock for clock in usual if clock), key=lambda c: len(offsets[c]), default="")
    reference = usual[known]
    for clock, offset in usual.items():
        if abs(offset - reference) < _SAME_CLOCK:
            usual[clock] = reference
    for event in events:
        event["at"] = event["mono"] + usual[event["clock"]]


class _Reader:
    """Combines events, in the order of their times."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._processes: dict[int, Process] = {}
        self._locks: set[str] = set()
        self._asked: dict[tuple[int, str, str], Event] = {}
        self._waits: dict[tuple[int, str, str], Span] = {}
        self._holds: dict[str, Span] = {}  # at most one for each lock
        # Holds that a later hold has cut off, by token: if clocks differ a little, the end of a
        # hold may come after the beginning of the next one.
        self._cut: dict[str, Span] = {}

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            process = self._process(event)
            process.end = max(process.end, event["at"])
            kind = event["event"]
            if kind == "exit":
                self._exit(process, event["at"])
            elif event.get("lock"):
                if event["lock"] not in self._locks:
                    self._locks.add(event["lock"])
                    self._trace.locks.append(event["lock"])
                self._put(event, process, kind)
        for span in [*self._waits.values(), *self._holds.values()]:
            span.end = self._trace.end
        self._trace.holds.sort(key=lambda span: span.begin)
        self._trace.waits.sort(key=lambda span: span.begin)

    def _process(self, event: Event) -> Process:
        pid = event["pid"]
        process = self._processes.get(pid)
        starts = event["event"] == "start"
        if process is None or (starts and not self._goes_on(process, event)):
            if process is not None:
                self._exit(process, process.end)
            command = event.get("command", "") if starts else ""
            number = len(self._trace.processes)
            process = self._processes[pid] = Process(
                pid, number, command, event["at"], event["at"]
            )
            self._trace.processes.append(process)
        elif starts:
            process.command = event.get("command", "")
            process.exited = False
        return process

    @staticmethod
    def _goes_on(process: Process, event: Event) -> bool:
        """Tell whether this is a second trace of one process, and no reuse of its number."""
        # The command is unknown if the line of the start is incomplete.
        same = process.command in ("", event.get("command", ""))
        return same and (process.exited or process.end == process.begin)

    def _exit(self, process: Process, at: int) -> None:
        process.exited = True
        for waits in list(self._waits):
            if self._waits[waits].process is process:
                self._end(self._waits.pop(waits), at, "exit")
        for lock in list(self._holds):
            if self._holds[lock].process is process:
                self._end(self._holds.pop(lock), at, "exit")

    @staticmethod
    def _end(span: Span, at: int, ended: str) -> None:
        span.end = max(span.begin, at)
        span.ended = ended

    def _put(self, event: Event, process: Process, kind: str) -> None:
        lock, at = event["lock"], event["at"]
        worker = _worker(event)
        key = (process.number, worker, lock)
        if kind == "request":
            self._asked[key] = event
        elif kind == "wait":
            asked = self._asked.get(key, event)
            began = asked["at"]
            span = Span(lock, process, worker, began, began, holds=False, tag=_tag(event))
            holder = event.get("holder")
            span.behind = holder if isinstance(holder, int) else None
            if key in self._waits:
                self._end(self._waits[key], at, "open")
            self._waits[key] = span
            self._trace.waits.append(span)
        elif kind == "waited":
            self._stop_waiting(key, at, kind)
        elif kind == "acquire":
            self._stop_waiting(key, at, kind)
            self._stop_holding(lock, at, "killed")
            span = Span(lock, process, worker, at, at, holds=True, tag=_tag(event))
            span.token = event.get("token")
            self._holds[lock] = span
            self._trace.holds.append(span)
        elif kind in ("release", "lost"):
            self._stop_holding(lock, at, kind, event)
        elif kind in ("timeout", "failed"):
            self._stop_waiting(key, at, kind)
        elif kind in ("reclaim", "remove"):
            self._stop_holding(lock, at, "killed")
        words = _words(kind, event)
        if words:
            self._trace.marks.append(Mark(kind, lock, process, worker, at, words))

    def _stop_waiting(self, key: tuple[int, str, str], at: int, ended: str) -> None:
        self._asked.pop(key, None)
        span = self._waits.pop(key, None)
        if span is not None:
            self._end(span, at, ended)

    def _stop_holding(self, lock: str, at: int, ended: str, event: Event | None = None) -> None:
        token = None if event is None else event.get("token")
        cut = self._cut.pop(token, None) if token else None
        if cut is not None:
            cut.ended = ended
            return
        span = self._holds.get(lock)
        if span is None or (event is not None and token != span.token):
            return  # the end of another hold, which began before the trace
        if event is None and span.token:
            self._cut[span.token] = span
        del self._holds[lock]
        self._end(span, at, ended)


_MARKS = {
    "lost": "found its lock removed by another program",
    "timeout": "gave up: its time was over",
    "refresh": "refreshed",
}


def _words(kind: str, event: Event) -> str:
    """Describe a single event; empty if it is the end of a span."""
    if kind in ("reclaim", "remove"):
        did = "took it from" if kind == "reclaim" else "removed the lock of"
        return f"{did} process {event.get('from', '?')}: {event.get('why', '')}"
    if kind == "failed":
        return f"gave up: {event.get('error', '')}"
    return _MARKS.get(kind, "")


def _worker(event: Event) -> str:
    if event.get("task"):
        return str(event["task"])
    return "" if event["thread"] == event["pid"] else f"thread {event['thread']}"


def _tag(event: Event) -> str:
    return str(event.get("tag", ""))


# -------------------------------------------------------------------- the command


def drawn(trace_path: StrPath, output_path: StrPath | None) -> Trace:
    """Read a trace, and draw it if a picture is asked for.

    The suffix selects the form: ``.svg``, ``.html``, or ``.json`` for Chrome's format, which
    Perfetto opens.  ``ValueError`` for another suffix, or if the picture would replace the trace.
    """
    draw = None
    if output_path is not None:
        draw = _drawer(os.fspath(output_path))
        # By device and inode, which finds links and other spellings too.
        if os.path.exists(output_path) and os.path.samefile(trace_path, output_path):
            raise ValueError(
                f"{os.fsdecode(output_path)!r} is the trace itself, which the picture would "
                "replace: name another file"
            )
    trace = read(trace_path)
    if trace.skipped and not trace.events:
        raise LockRecordError(
            f"{os.fsdecode(trace_path)} is no trace: none of its lines is an "
            "event. A program writes one if it is started with SEMLOCK_TRACE=FILE",
            path=os.fsdecode(trace_path),
        )
    if draw is not None and output_path is not None:
        text = draw(trace, os.path.basename(os.fspath(trace_path)))
        with open(output_path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    return trace


def _drawer(path: Any) -> Any:
    ending = os.path.splitext(os.fsdecode(path))[1].lower()
    if ending == ".svg":
        from semlock._timeline.svg import svg as draw  # noqa: PLC0415
    elif ending in (".html", ".htm"):
        from semlock._timeline.writing import html as draw  # noqa: PLC0415
    elif ending == ".json":
        from semlock._timeline.writing import chrome as draw  # noqa: PLC0415
    else:
        raise ValueError(
            f"{os.fsdecode(path)!r} names no form of a timeline: it ends in .svg, .html or .json"
        )
    return draw
