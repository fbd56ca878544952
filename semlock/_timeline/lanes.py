"""The lanes of a timeline, by lock and by process, for all forms of the picture."""

from __future__ import annotations

from dataclasses import dataclass, field

from semlock._core.records import printable
from semlock._timeline.report import blocker, convoys, depths, duration, longest_waits, names_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._timeline.reading import Mark, Process, Span, Trace
    from semlock._timeline.report import Convoy

# The colours of processes; white text is readable on them in both colour schemes.
_COLOURS = (
    "#3b78c2", "#d07028", "#3b9353", "#c64c5a", "#8560c0", "#2b9097", "#a87b22", "#bd5899",
    "#66788a", "#718f26",
)  # fmt: skip

_ENDS = {
    "acquire": "then acquired it",
    "release": "released",
    "lost": "lost: another program removed it",
    "killed": "never released: another process took it over",
    "open": "no end was seen",
    "exit": "until the process ended",
    "timeout": "not acquired: its time was over",
    "failed": "not acquired",
}


class LockLane:
    """A lock: its holds, the number of its waiters over time, and its convoys."""

    __slots__ = ("convoys", "depths", "holds", "lock", "marks", "most", "name")

    def __init__(self, lock: str, name: str, trace: Trace) -> None:
        self.lock = lock
        self.name = name
        self.holds = [hold for hold in trace.holds if hold.lock == lock]
        self.depths = depths([wait for wait in trace.waits if wait.lock == lock])
        self.most = max((depth for _, depth in self.depths), default=0)
        self.convoys: list[Convoy] = []
        self.marks = [
            mark
            for mark in trace.marks
            if mark.lock == lock and mark.kind in ("reclaim", "remove", "lost")
        ]


@dataclass(slots=True)
class Row:
    """The waits and holds of one lock by one thread or task."""

    label: str
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(slots=True)
class ProcessLane:
    """A process, with a row for each lock that one of its threads or tasks uses."""

    process: Process
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)


class Lanes:
    """All lanes.  ``longest`` has the longest waits, with the holds that they waited for."""

    __slots__ = ("convoys", "locks", "longest", "names", "processes", "trace")

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = names_of(trace.locks)
        self.locks = [LockLane(lock, self.names[lock], trace) for lock in trace.locks]
        self.locks.sort(key=lambda lane: lane.name)
        self.convoys = convoys(trace)
        by_lock = {lane.lock: lane for lane in self.locks}
        for convoy in self.convoys:
            by_lock[convoy.lock].convoys.append(convoy)
        lanes = [ProcessLane(process) for process in trace.processes]
        for span in sorted([*trace.waits, *trace.holds], key=lambda span: span.begin):
            self._row(lanes, span.process, span.worker, span.lock).spans.append(span)
        for mark in trace.marks:
            if mark.kind != "refresh":
                self._row(lanes, mark.process, mark.worker, mark.lock).marks.append(mark)
        self.processes = [lane for lane in lanes if lane.rows]
        self.longest = [(wait, blocker(trace, wait)) for wait in longest_waits(trace)]

    def _row(self, lanes: list[ProcessLane], process: Process, worker: str, lock: str) -> Row:
        label = self.names[lock] if not worker else f"{printable(worker)} · {self.names[lock]}"
        return lanes[process.number].rows.setdefault((worker, lock), Row(label))


def summary(trace: Trace) -> str:
    """Summarize a trace in a line."""
    numbers = (
        (len(trace.processes), "processes"),
        (len(trace.locks), "locks"),
        (len(trace.holds), "holds"),
        (len(trace.waits), "waits"),
    )
    return " · ".join([duration(trace.end), *(f"{number} {what}" for number, what in numbers)])


def colour(process: Process) -> str:
    """Give the colour of a process."""
    number = process.number
    if number < len(_COLOURS):
        return _COLOURS[number]
    # Further processes get hues that differ as much as possible from each other.
    return f"hsl({number * 137.508 % 360:.0f} 45% 45%)"


def words(span: Span, names: dict[str, str]) -> str:
    """Describe a bar."""
    what = "held" if span.holds else "waited for"
    text = f"{printable(span.who)} {what} {names[span.lock]} for {duration(span.length)}"
    if span.tag:
        text += f" ({printable(span.tag)})"
    return f"{text} from +{duration(span.begin)}; {_ENDS.get(span.ended, '')}"


def ticks(end: int, most: int) -> list[int]:
    """Choose round times for an axis."""
    step = 1
    while end / step > most:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            if end / step > most:
                step = int(step * factor)
    return list(range(0, end + 1, step))
