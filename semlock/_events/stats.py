"""Counters: how often locks were acquired, waited for, lost and so on, and for how long.

Counting begins with the first ``stats()``.  The numbers are those of one process; a forked child
begins at zero.  ``prometheus`` and ``register`` export them.
"""

from __future__ import annotations

from _thread import RLock
from importlib import import_module
from time import time

from semlock._core import registry
from semlock._events import tap

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from semlock._events.tap import Fields

# The upper bounds of the histograms' buckets: powers of two, from a microsecond to a quarter of
# an hour, and one more for what lasted longer.
_BUCKETS = 31
BOUNDS: tuple[float, ...] = tuple(2**power / 1e6 for power in range(_BUCKETS))

# Bounded, because a program may lock a new path for each job; later paths share one entry.
PATHS_LIMIT = 1000
OTHERS = "(others)"


class Histogram:
    """How often something took how long.

    ``buckets[i]`` counts what took at most ``BOUNDS[i]`` seconds and more than the bound
    before; the last one what took longer than all bounds.
    """

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (_BUCKETS + 1)
        self.count = 0
        self.seconds = 0.0

    def add(self, nanoseconds: int) -> None:
        """Count a duration."""
        whole = max(0, -(-nanoseconds // 1000) - 1)  # microseconds, rounded up, less one
        self.buckets[min(whole.bit_length(), _BUCKETS)] += 1
        self.count += 1
        self.seconds += nanoseconds / 1e9

    def quantile(self, part: float) -> float | None:
        """Give the bound, in seconds, that this part of all stays within; ``None`` if empty."""
        needed = part * self.count
        seen = 0
        bounds: tuple[float, ...] = (*BOUNDS, float("inf"))
        for bound, number in zip(bounds, self.buckets, strict=True):
            seen += number
            if number and seen >= needed:
                return bound
        return None

    def copy(self) -> Histogram:
        """Give what is counted by now."""
        other = Histogram()
        other.buckets = self.buckets[:]
        other.count = self.count
        other.seconds = self.seconds
        return other

    def __repr__(self) -> str:
        if not self.count:
            return "<Histogram: empty>"
        return f"<Histogram: {self.count}, half within {self.quantile(0.5):g} s>"

    def as_dict(self) -> dict[str, Any]:
        """Give count, sum and the buckets that are not empty, by their upper bounds."""
        bounds = (*map(str, BOUNDS), "inf")
        return {
            "count": self.count,
            "seconds": self.seconds,
            "buckets": {b: n for b, n in zip(bounds, self.buckets, strict=True) if n},
        }


# What counts which event.
_COUNTED = {
    "acquire": "acquired",
    "wait": "waited",
    "release": "released",
    "refresh": "refreshed",
    "reclaim": "reclaimed",
    "lost": "lost",
    "timeout": "timeouts",
    "refused": "refused",
    "failed": "failed",
}


class Counts:
    """The numbers of one lock, or of all.

    :acquired:    how often it was acquired, and ``released``, ``refreshed``
    :waited:      how often an acquire had to wait
    :timeouts:    how often the time was over before it was acquired
    :refused:     how often a try found it held
    :failed:      how often an acquire ended with another error, Ctrl-C for one
    :reclaimed:   how often a dead holder's lock was removed
    :lost:        how often a holder found that its lock was removed by another program
    :wait:        how long it took to have it, with or without a wait
    :held:        how long each hold lasted
    """

    __slots__ = (*_COUNTED.values(), "held", "wait")

    acquired: int
    waited: int
    released: int
    refreshed: int
    reclaimed: int
    lost: int
    timeouts: int
    refused: int
    failed: int

    def __init__(self) -> None:
        for name in _COUNTED.values():
            setattr(self, name, 0)
        self.wait = Histogram()
        self.held = Histogram()

    def note(self, event: str, fields: Fields) -> None:
        """Count an event."""
        name = _COUNTED.get(event)
        if name is None:
            return
        setattr(self, name, getattr(self, name) + 1)
        if event == "acquire":
            self.wait.add(fields["waited"])
        held = fields.get("held")
        if held is not None:
            self.held.add(held)

    def copy(self) -> Counts:
        """Give what is counted by now."""
        other = Counts()
        for name in _COUNTED.values():
            setattr(other, name, getattr(self, name))
        other.wait = self.wait.copy()
        other.held = self.held.copy()
        return other

    def __repr__(self) -> str:
        numbers = {name: getattr(self, name) for name in _COUNTED.values()}
        told = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
        return f"<Counts: {told or 'nothing yet'}>"

    def as_dict(self) -> dict[str, Any]:
        """Give all numbers by name."""
        numbers: dict[str, Any] = {name: getattr(self, name) for name in _COUNTED.values()}
        return numbers | {"wait": self.wait.as_dict(), "held": self.held.as_dict()}


class Stats:
    """What was counted until ``stats()`` was called.

    :total:  the ``Counts`` of all locks together
    :locks:  the ``Counts`` by path; paths beyond the first thousand are ``"(others)"``
    :since:  when counting began, in seconds since 1970
    """

    __slots__ = ("locks", "since", "total")

    def __init__(self, total: Counts, locks: dict[str, Counts], since: float) -> None:
        self.total = total
        self.locks = locks
        self.since = since

    def as_dict(self) -> dict[str, Any]:
        """Give all numbers by name, as JSON can hold them."""
        return {
            "since": self.since,
            "total": self.total.as_dict(),
            "locks": {path: counts.as_dict() for path, counts in self.locks.items()},
        }

    def prometheus(self, *, by_lock: bool = False) -> str:
        """Give the text that Prometheus reads: of all locks, or of each by its path."""
        return prometheus(self, by_lock=by_lock)

    def __repr__(self) -> str:
        total = self.total
        return f"<Stats: {total.acquired} acquired, {total.waited} waited, {len(self.locks)} paths>"


class _Counter:
    """The listener that counts."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Reentrant, because a signal handler may take it again in the same thread.
        self._mutex = RLock()
        self._total = Counts()
        self._locks: dict[str, Counts] = {}
        self._since = time()

    def __call__(self, event: str, path: str, _at: int, fields: Fields) -> None:
        with self._mutex:
            counts = self._locks.get(path)
            if counts is None:
                name = path if len(self._locks) < PATHS_LIMIT else OTHERS
                counts = self._locks.setdefault(name, Counts())
            counts.note(event, fields)
            self._total.note(event, fields)

    def snapshot(self) -> Stats:
        with self._mutex:
            locks = {path: counts.copy() for path, counts in self._locks.items()}
            return Stats(self._total.copy(), locks, self._since)


_counter: _Counter | None = None


def current() -> Stats:
    """Give the numbers by now; counting begins with the first call."""
    global _counter  # noqa: PLW0603 - one for each process
    counter = _counter
    if counter is None:
        with tap.changing:
            counter = _counter
            if counter is None:
                counter = _counter = _Counter()
                tap.listen(counter)
    return counter.snapshot()


def stop() -> None:
    """Count no more, and forget what was counted."""
    global _counter
    with tap.changing:
        counter, _counter = _counter, None
        if counter is not None:
            tap.unlisten(counter)


def _forget() -> None:
    if _counter is not None:
        _counter.reset()


registry.on_fork(_forget)


# The attribute of Counts, and what it says in either system.
_COUNTERS = {
    "acquired": "Locks that were acquired.",
    "released": "Locks that were released.",
    "refreshed": "Records of locks that were refreshed.",
    "waited": "Acquisitions that had to wait.",
    "timeouts": "Acquisitions whose time was over before the lock was free.",
    "refused": "Tries that found the lock held.",
    "failed": "Acquisitions that ended with another error.",
    "reclaimed": "Locks of dead holders that were removed.",
    "lost": "Locks whose holders found them removed by another program.",
}
_HISTOGRAMS = {
    "wait": "Seconds from asking for a lock to having it.",
    "held": "Seconds for which a lock was held.",
}


def prometheus(stats: Stats, *, by_lock: bool) -> str:
    """Lay out the text format, version 0.0.4."""
    series: list[tuple[str, Counts]] = [("", stats.total)]
    if by_lock:
        series = [(f'lock="{_escape(path)}"', counts) for path, counts in stats.locks.items()]
    lines = []
    for name, text in _COUNTERS.items():
        lines += _head(f"semlock_{name}_total", text, "counter")
        for label, counts in series:
            lines.append(f"semlock_{name}_total{_braces(label)} {getattr(counts, name)}")
    for name, text in _HISTOGRAMS.items():
        lines += _head(f"semlock_{name}_seconds", text, "histogram")
        for label, counts in series:
            lines += _histogram(f"semlock_{name}_seconds", label, getattr(counts, name))
    return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _braces(*labels: str) -> str:
    told = ",".join(label for label in labels if label)
    return f"{{{told}}}" if told else ""


def _histogram(name: str, label: str, histogram: Histogram) -> Iterator[str]:
    below = 0
    for bound, number in zip((*map(str, BOUNDS), "+Inf"), histogram.buckets, strict=True):
        below += number
        le = f'le="{bound}"'
        yield f"{name}_bucket{_braces(label, le)} {below}"
    yield f"{name}_sum{_braces(label)} {histogram.seconds:.9f}"
    yield f"{name}_count{_braces(label)} {histogram.count}"


def _escape(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def register(meter: Any = None) -> Callable[[], None]:
    """Make the instruments of OpenTelemetry; see ``semlock.otel``."""
    try:
        metrics = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ImportError(
            "semlock.otel needs OpenTelemetry's API, which is not installed: "
            "pip install semlock[otel]"
        ) from error
    current()
    meter = meter or metrics.get_meter("semlock")
    for name, text in _COUNTERS.items():
        meter.create_observable_counter(
            f"semlock.{name}",
            callbacks=[_observer(metrics.Observation, name)],
            description=text,
        )
    histograms = {
        name: meter.create_histogram(
            f"semlock.{name}.duration",
            unit="s",
            description=text,
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        for name, text in _HISTOGRAMS.items()
    }

    def listener(event: str, _path: str, _at: int, fields: Fields) -> None:
        if event == "acquire":
            histograms["wait"].record(fields["waited"] / 1e9)
        if "held" in fields:
            histograms["held"].record(fields["held"] / 1e9)

    tap.listen(listener)
    return lambda: tap.unlisten(listener)


def _observer(observation: Any, name: str) -> Callable[[object], Iterable[Any]]:
    return lambda _: [observation(getattr(current().total, name))]
