"""The report of a timeline: locks, the longest waits, convoys, and holds without an end."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from semlock._timeline.reading import Span, Trace

LONGEST = 5  # how many waits are listed
_CONVOYS = 5

# A convoy: this many wait all the time, except for gaps shorter than a usual hold ...
_QUEUE = 2
# ... and this many at once, or over this many changes of the holder.
_BEHIND = 3
_HAND_OVERS = 3

# Events that stand out, and the end of a hold that was not released.
_ODD = ("reclaim", "remove", "lost")
_UNENDED = ("open", "exit")


def duration(nanoseconds: float) -> str:
    """Write a duration with the unit that fits."""
    for unit, size in (("min", 60e9), ("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return (
                f"{nanoseconds / size:.3g} {unit}"
                if nanoseconds < 1000 * size
                else (f"{nanoseconds / size:.0f} {unit}")
            )
    return f"{nanoseconds / 1e3:.3g} µs"


def names_of(locks: list[str]) -> dict[str, str]:
    """Give each lock the shortest end of its path that is unique."""
    names: dict[str, str] = {}
    for path in locks:
        parts = path.replace(os.sep, "/").split("/")
        ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[path] = next((end for end in ends if _is_own(end, path, locks)), path)
    return {path: printable(name) for path, name in names.items()}


def _is_own(end: str, path: str, locks: list[str]) -> bool:
    return not any(
        other != path and other.replace(os.sep, "/").endswith("/" + end) for other in locks
    )


def longest_waits(trace: Trace, count: int = LONGEST) -> list[Span]:
    """Give the longest waits, the longest first."""
    return sorted(trace.waits, key=lambda span: (-span.length, span.begin))[:count]


def blocker(trace: Trace, wait: Span) -> Span | None:
    """Find the hold during which a wait lasted longest."""
    found = [
        hold
        for hold in trace.holds
        if hold.lock == wait.lock and hold.begin < wait.end and hold.end > wait.begin
    ]
    return max(
        found,
        key=lambda hold: min(hold.end, wait.end) - max(hold.begin, wait.begin),
        default=None,
    )


@dataclass(slots=True, eq=False)
class Convoy:
    """A time in which at least two waited for a lock."""

    lock: str
    begin: int
    end: int
    most: int
    waiters: int = 0
    holds: int = 0
    held: int = 0
    longest: Span | None = None

    @property
    def length(self) -> int:
        """How long it lasted, in nanoseconds."""
        return self.end - self.begin


def depths(waits: list[Span]) -> list[tuple[int, int]]:
    """Give the number of waiters over time: (time, number), in order."""
    steps: dict[int, int] = {}
    for wait in waits:
        steps[wait.begin] = steps.get(wait.begin, 0) + 1
        steps[wait.end] = steps.get(wait.end, 0) - 1
    depth = 0
    found = []
    for at in sorted(steps):
        if steps[at]:
            depth += steps[at]
            found.append((at, depth))
    return found


def convoys(trace: Trace) -> list[Convoy]:
    """Find the convoys, the longest first.

    A convoy is a time in which at least two waited for one lock, if there were three or more at
    once, or if the lock changed hands three times or more.  A short gap after a release, before
    the others ask again, doesn't end it.
    """
    found: list[Convoy] = []
    for lock in trace.locks:
        waits = [wait for wait in trace.waits if wait.lock == lock]
        holds = [hold for hold in trace.holds if hold.lock == lock]
        usual = _middle([hold.length for hold in holds])
        holds_within, waits_within = _Within(holds), _Within(waits)
        for convoy in _stretches(lock, waits, usual):
            within = holds_within(convoy.begin, convoy.end)
            parts = [min(h.end, convoy.end) - max(h.begin, convoy.begin) for h in within]
            convoy.holds = len(within)
            convoy.held = sum(parts)
            if convoy.most < _BEHIND and convoy.holds <= _HAND_OVERS:
                continue
            if within:
                convoy.longest = within[parts.index(max(parts))]
            waiters = waits_within(convoy.begin, convoy.end)
            convoy.waiters = len({(wait.process.number, wait.worker) for wait in waiters})
            found.append(convoy)
    return sorted(found, key=lambda convoy: (-convoy.length, convoy.begin))


class _Within:
    """Finds the spans that overlap a time."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans  # sorted by beginning
        self._begins = [span.begin for span in spans]
        # The latest end of all spans up to each one: no earlier span reaches beyond it.
        self._ends = list(accumulate((span.end for span in spans), max))

    def __call__(self, begin: int, end: int) -> list[Span]:
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        return [span for span in self._spans[first:last] if span.end > begin]


def _stretches(lock: str, waits: list[Span], usual: int) -> list[Convoy]:
    found: list[Convoy] = []
    begin, most = None, 0
    for at, depth in depths(waits):
        if depth >= _QUEUE:
            begin = at if begin is None else begin
            most = max(most, depth)
        elif begin is not None:
            if found and begin - found[-1].end < usual:
                found[-1].end = at
                found[-1].most = max(most, found[-1].most)
            else:
                found.append(Convoy(lock, begin, at, most))
            begin, most = None, 0
    return found


def _middle(lengths: list[int]) -> int:
    return sorted(lengths)[len(lengths) // 2] if lengths else 0


def report(trace: Trace, name: str) -> str:
    """Describe what stands out."""
    names = names_of(trace.locks)
    of = _count(len(trace.processes), "process", "processes")
    events = f"{_count(trace.events, 'event')} of {of} and {_count(len(trace.locks), 'lock')}"
    lines = [f"{printable(name)}: {duration(trace.end)}, {events}"]
    if trace.skipped:
        lines.append(f"{_count(trace.skipped, 'line')} can't be read and were left out.")
    lines += ["", *_table(trace, names), "", *_waits(trace, names), "", *_convoys(trace, names)]
    odd = _odd(trace, names)
    if odd:
        lines += ["", *odd]
    return "\n".join(lines) + "\n"


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _lengths(trace: Trace, lock: str) -> tuple[list[int], list[int]]:
    """Give how long a lock was held and waited for, each time."""
    held = [hold.length for hold in trace.holds if hold.lock == lock]
    return held, [wait.length for wait in trace.waits if wait.lock == lock]


def _table(trace: Trace, names: dict[str, str]) -> list[str]:
    rows = [("Lock", "holds", "busy", "median hold", "waits", "median wait", "longest wait")]
    for lock in sorted(trace.locks, key=lambda path: names[path]):
        held, waited = _lengths(trace, lock)
        rows.append(
            (
                names[lock],
                str(len(held)),
                f"{100 * sum(held) / max(1, trace.end):.0f} %",
                duration(_middle(held)) if held else "-",
                str(len(waited)),
                duration(_middle(waited)) if waited else "-",
                duration(max(waited)) if waited else "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _waits(trace: Trace, names: dict[str, str]) -> list[str]:
    found = longest_waits(trace)
    if not found:
        return ["No process waited."]
    return ["The longest waits"] + [
        f"{number}. {wait_in_words(trace, wait, names)}" for number, wait in enumerate(found, 1)
    ]


def facts(trace: Trace, name: str) -> Iterator[dict[str, Any]]:
    """Give the same for programs: a summary, then locks, waits, convoys and odd events."""
    yield {
        "trace": name,
        "seconds": trace.end / 1e9,
        "events": trace.events,
        "skipped": trace.skipped,
        "processes": len(trace.processes),
        "locks": len(trace.locks),
    }
    for lock in trace.locks:
        held, waited = _lengths(trace, lock)
        yield {
            "lock": lock,
            "holds": len(held),
            "held": sum(held) / 1e9,
            "median_hold": _middle(held) / 1e9 if held else None,
            "waits": len(waited),
            "median_wait": _middle(waited) / 1e9 if waited else None,
            "longest_wait": max(waited) / 1e9 if waited else None,
        }
    for wait in longest_waits(trace):
        hold = blocker(trace, wait)
        yield {
            "wait": wait.length / 1e9,
            "path": wait.lock,
            "at": wait.begin / 1e9,
            "pid": wait.process.pid,
            "command": wait.process.command,
            "worker": wait.worker,
            "ended": wait.ended,
            "behind": wait.behind if hold is None else hold.process.pid,
            "behind_command": None if hold is None else hold.process.command,
            "behind_tag": None if hold is None else hold.tag,
        }
    for convoy in convoys(trace):
        longest = convoy.longest
        yield {
            "convoy": convoy.length / 1e9,
            "path": convoy.lock,
            "at": convoy.begin / 1e9,
            "most": convoy.most,
            "waiters": convoy.waiters,
            "holds": convoy.holds,
            "held": convoy.held / 1e9,
            "longest_hold": None if longest is None else longest.length / 1e9,
            "pid": None if longest is None else longest.process.pid,
        }
    for mark in trace.marks:
        if mark.kind in _ODD:
            yield {
                "odd": mark.kind,
                "path": mark.lock,
                "at": mark.at / 1e9,
                "pid": mark.process.pid,
                "message": mark.text,
            }
    for hold in trace.holds:
        if hold.ended in _UNENDED:
            yield {
                "odd": "unreleased",
                "path": hold.lock,
                "at": hold.begin / 1e9,
                "pid": hold.process.pid,
                "message": f"{hold.who} has not released it",
            }


_ENDS = {
    "timeout": "in vain: its time was over",
    "failed": "in vain",
    "open": "and no end was seen",
    "exit": "until it ended",
}


def wait_in_words(trace: Trace, wait: Span, names: dict[str, str]) -> str:
    """Describe a wait: the lock, the process, the holder, and how it ended."""
    words = f"{duration(wait.length)} for {names[wait.lock]} at +{duration(wait.begin)}: "
    words += printable(wait.who)
    if wait.ended in _ENDS:
        words += f", {_ENDS[wait.ended]}"
    hold = blocker(trace, wait)
    if hold is not None:
        behind = min(hold.end, wait.end) - max(hold.begin, wait.begin)
        words += f"; {duration(behind)} of it behind {printable(hold.who)}"
        if hold.tag:
            words += f" ({printable(hold.tag)})"
    elif wait.behind is not None:
        words += f"; behind process {wait.behind}, of which there is no trace"
    return words


def _convoys(trace: Trace, names: dict[str, str]) -> list[str]:
    found = convoys(trace)
    if not found:
        return ["No convoys: nowhere did two or more wait for one lock for long."]
    lines = ["Convoys, in which two or more waited for a lock all the time"]
    for number, convoy in enumerate(found[:_CONVOYS], 1):
        lines.append(f"{number}. {convoy_in_words(convoy, names)}")
    if len(found) > _CONVOYS:
        lines.append(f"   and {len(found) - _CONVOYS} shorter ones")
    return lines


def convoy_in_words(convoy: Convoy, names: dict[str, str]) -> str:
    """Describe a convoy: the lock, the time, and its waits and holds."""
    words = (
        f"{duration(convoy.length)} at {names[convoy.lock]} from +{duration(convoy.begin)}: "
        f"up to {convoy.most} of {convoy.waiters} waited behind {_count(convoy.holds, 'hold')}"
    )
    idle = convoy.length - convoy.held
    if convoy.length and convoy.held:
        words += f"; it was held {100 * convoy.held / convoy.length:.0f} % of the time"
        if idle > 0 and convoy.holds > 1:
            words += f", and changed hands in {duration(idle / convoy.holds)}"
    if convoy.longest is not None:
        words += f"; the longest hold: {duration(convoy.longest.length)} by "
        words += printable(convoy.longest.who)
        if convoy.longest.tag:
            words += f" ({printable(convoy.longest.tag)})"
    return words


def _odd(trace: Trace, names: dict[str, str]) -> list[str]:
    lines = [
        f"+{duration(mark.at)} {names[mark.lock]}: {printable(mark.process.name)} "
        f"{printable(mark.text)}"
        for mark in trace.marks
        if mark.kind in _ODD
    ]
    lines += [
        f"+{duration(hold.begin)} {names[hold.lock]}: {printable(hold.who)} has not released it"
        for hold in trace.holds
        if hold.ended in _UNENDED
    ]
    return ["What else stands out", *lines] if lines else []
