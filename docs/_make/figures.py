"""Put the benchmarks' figures into the sentences of the README and the docs that state them.

``python docs/_make/figures.py`` does it by hand, ``python -m benchmarks`` whenever it writes its
page; ``tests/docs/test_figures.py`` compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/benchmarks.md"

# One table of the page: its heading (the beginning), a row (its first cells), and a column.
Place = tuple[str, tuple[str, ...], str]

_HAND_OVER = "Hand-over: release() to the next one in"
_PAIR = "Acquire + release, "
_NO_HOLD = "Contests, each holding for no time"
_OWN, _FAIR = "semlock.Lock", "semlock.Lock, fair=True"


def cell(page: str, place: Place) -> float:
    """Read a number of the benchmarks' page."""
    heading, row, column = place
    found = re.search(
        rf"^####? {re.escape(heading)}.*?\n\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise LookupError(f"{PAGE} has no table {heading!r}")
    lines = [
        [text.strip().strip("*") for text in line.strip("|").split("|")]
        for line in found[1].splitlines()
    ]
    at = lines[0].index(column)
    for line in lines[2:]:
        if tuple(line[: len(row)]) == row:
            return float(re.sub(r"[^0-9.]", "", line[at]))
    raise LookupError(f"{PAGE} has no row {row} under {heading!r}")


def _us(value: float) -> str:
    return f"{float(format(value, '.2g')):g}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}"


def _hand_over(page: str) -> str:
    return _us(cell(page, (_HAND_OVER, (_OWN,), "p50 µs")))


def _to_the_floor(page: str) -> str:
    row = ("semlock, Lock used again",)
    return f"{cell(page, (f'{_PAIR}tmpfs, no fsync', row, 'to the floor')):.2f}"


def _without_fsync(page: str) -> str:
    row = ("semlock, Lock used again",)
    synced = cell(page, (f"{_PAIR}on disk, fsync", row, "median µs"))
    return f"{synced / cell(page, (f'{_PAIR}on disk, no fsync', row, 'median µs')):.0f}"


def _in_order(processes: str) -> Callable[[str], str]:
    def share(page: str) -> str:
        column = "acquisitions/s"
        fair = cell(page, (_NO_HOLD, (_FAIR, processes), column))
        return _percent(fair, cell(page, (_NO_HOLD, (_OWN, processes), column)))

    return share


def _burst(page: str) -> str:
    return f"{cell(page, (_NO_HOLD, (_OWN, '8'), 'acquisitions/s')) / 1000:.0f}"


def _longest(page: str) -> str:
    return f"{cell(page, (_NO_HOLD, (_OWN, '8'), 'longest wait, ms')):.0f}"


def _task(page: str) -> str:
    heading = "Tasks of one process, each waiting for a lock of its own"
    after = page[page.index(f"#### {heading}") :]
    (found,) = re.findall(r"^\| for a lock \| ([0-9]+) \|", after, re.MULTILINE)
    return f"{int(found) / 1024:.1f}"


def _price(engine: str, least: str) -> Callable[[str], str]:
    def price(page: str) -> str:
        own = cell(page, (engine, ("semlock",), "pair"))
        return f"{own / cell(page, (engine, (least,), 'pair')):.1f}"

    return price


_ENGINES = "docs/engines.md"

# A page, a sentence with the place of a figure in parentheses, and what the figure is.
FIGURES: list[tuple[str, str, Callable[[str], str]]] = [
    ("README.md", r"wakes some (\S+)\s+microseconds later", _hand_over),
    ("README.md", r"again takes (\S+) of the\s+time in which a C program", _to_the_floor),
    ("docs/waiting.md", r"A waiter needs some (\S+) microseconds\s+to wake", _hand_over),
    ("docs/waiting.md", r"strict order\s+leaves (\d+) % of the throughput", _in_order("2")),
    ("docs/waiting.md", r"with two\s+processes, (\d+) % with eight", _in_order("8")),
    ("docs/waiting.md", r"with eight and (\d+) % with thirty-two", _in_order("32")),
    ("docs/waiting.md", r"a burst of a millisecond is some (\d+)\s+acquisitions", _burst),
    ("docs/waiting.md", r"eight of them waited (\d+) milliseconds\s+at most", _longest),
    ("docs/async.md", r"take (\S+) KiB each", _task),
    (
        "docs/howto/build-tool.md",
        r"an acquisition takes a\s+(\d+)th of the time",
        _without_fsync,
    ),
    (
        _ENGINES,
        r"take (\S+) times as long on etcd",
        _price("etcd", "least requests by http.client"),
    ),
    (_ENGINES, r"(\S+) times on Redis", _price("redis", "least requests by redis-py")),
    (_ENGINES, r"(\S+) times on PostgreSQL", _price("postgresql", "advisory locks by psycopg")),
]


def with_figures(name: str, text: str, page: str) -> str:
    """Give a page with the figures that the benchmarks' page has."""
    for where, sentence, figure in FIGURES:
        if where != name:
            continue
        found = re.search(sentence, text)
        if found is None:
            raise LookupError(f"{name} has no sentence {sentence!r}")
        text = text[: found.start(1)] + figure(page) + text[found.end(1) :]
    return text


def main() -> None:
    """Write the pages anew."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for name in sorted({name for name, _, _ in FIGURES}):
        path = ROOT / name
        path.write_text(with_figures(name, path.read_text(encoding="utf-8"), page), "utf-8")


if __name__ == "__main__":
    main()
