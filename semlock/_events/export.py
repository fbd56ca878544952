"""The counters for monitoring: the text of Prometheus, and OpenTelemetry."""

from __future__ import annotations

from importlib import import_module

from semlock._events import tap
from semlock._events.stats import BOUNDS, current

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from semlock._events.stats import Counts, Histogram, Stats
    from semlock._events.tap import Fields

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
