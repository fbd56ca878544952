"""What was measured on servers, as a part of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import facts, plot
from benchmarks.engines.run import CROWD, median
from benchmarks.report import ratio_text, table, time_text
from benchmarks.results import TIMES

if TYPE_CHECKING:
    from benchmarks.engines.run import Found

# Of a pair and of a hand-over, to the same requests by the bare client.
_PAIR, _HAND_OVER = 1.25, 1.5
_HOW_TO_READ = """\
Each server runs on this machine and is reached by the loopback address, without TLS: one member of
etcd, Redis with `appendonly` and without fsync, PostgreSQL and ZooKeeper without fsync. ZooKeeper
is there for kazoo: semlock has no engine on it. A pair is an acquire and
a release by one client, and all contenders of an engine take turns. A hand-over is the time from
the call of a release to the moment when another process, which waited, has the lock.

*The same requests* are those that semlock sends for a pair, recorded and repeated word by word by
the server's bare client, which does nothing else: the ratio to them is what semlock itself takes.
In a hand-over the bare client hears by one watch, subscription or notification, as semlock does.
*Least requests* are others: one that sets a key if there is none and one that deletes it, or an
advisory lock of PostgreSQL; they know no order, no fence and no record of the holder, so what they
take less is the price of those. `etcdctl lock` and `semlock run` are whole commands, with the start
of their process.
"""


PICTURE = "benchmarks-engines.svg"


def picture(found: dict[str, Found]) -> str:
    """Draw the pairs."""
    load = f"load {facts.load()} after"
    told = {
        "Date": facts.today(), "Kernel": facts.kernel(), "Python": facts.python(),
        "Versions": ", ".join([*(one.version for one in found.values()), load]),
    }  # fmt: skip
    return plot.svg_of_engines({name: one.pairs for name, one in found.items()}, told)


def engines(found: dict[str, Found]) -> str:
    """Write the part about engines."""
    lines = ["## Engines", "", f"- Date: {facts.today()}", f"- Kernel: {facts.kernel()}"]
    lines += [f"- Python: {facts.python()}", f"- Processor: {facts.processor()}"]
    lines += [f"- Load: {facts.load_after()}"]
    lines += [f"- Servers: {', '.join(one.version for one in found.values())}", ""]
    lines += [_HOW_TO_READ, f"![Acquire and release on servers]({PICTURE})", ""]
    for name, one in found.items():
        lines += [f"### {name}", ""]
        bare = "the least" if one.pairs.find("semlock") is None else "the same"
        rows: list[tuple[str, ...]] = [
            ("", "pair", f"to {bare} requests", "hand-over", f"to {bare} requests")
        ]
        waits = {each.label: median(each) for each in one.hand_overs}
        floor = waits.get(one.pairs.contenders[0].label)
        for contender in one.pairs.contenders:
            ratio = one.pairs.ratio(contender.key)
            assert ratio is not None
            label = contender.label
            wait = waits.get(label)
            rows.append(
                (
                    f"**{label}**" if contender.kind == "semlock" else label,
                    time_text(contender),
                    ratio_text(ratio),
                    "" if wait is None else f"{wait:.2f} ms",
                    "" if wait is None or floor is None else f"{wait / floor:.3g} {TIMES}",
                )
            )
        lines += [*table(rows, right=1), ""]
        ratio = one.pairs.ratio("semlock")
        if ratio is not None and floor is not None:
            handed = waits["semlock"] / floor
            pair = f"A pair of at most {_PAIR} {TIMES} the same requests: "
            hand_over = f" A hand-over of at most {_HAND_OVER} {TIMES}: "
            pair += _met(ratio.median <= _PAIR)
            lines += [pair + hand_over + _met(handed <= _HAND_OVER), ""]
            mine, bare_clients = one.per_second["semlock"], one.per_second["floor"]
            crowd = f"{CROWD} processes, each with a lock of its own, make together"
            crowd += f" {mine:,.0f} pairs a second; with the bare client {bare_clients:,.0f}."
            lines += [crowd, ""]
    return "\n".join(lines)


def _met(is_so: bool) -> str:
    return "met." if is_so else "**not met**."
