"""What was measured on servers, as a part of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import facts, plot
from benchmarks.engines.run import median
from benchmarks.report import ratio_text, table, time_text
from benchmarks.results import TIMES

if TYPE_CHECKING:
    from benchmarks.engines.run import Found

_QUIET = 1.5  # the load of a machine on which times mean something
_BAR = 1.25  # a pair, to the bare requests
_HOW_TO_READ = """\
Each server runs on this machine and is reached by the loopback address, without TLS: one member of
etcd, Redis with `appendonly` and without fsync, PostgreSQL and ZooKeeper without fsync. ZooKeeper
is there for kazoo: semlock has no engine on it. A pair is an acquire and
a release by one client, and all contenders of an engine take turns. The *bare* requests are the
least that such a lock needs: one that sets a key if there is none and one that deletes it, or an
advisory lock of PostgreSQL; they know no order, no waiting, no fence and no record of the holder. A
hand-over is the time from the call of a release to the moment when another process, which waited,
has the lock. `etcdctl lock` and `semlock run` are whole commands, with the start of their process.
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
    load = facts.load()
    noisy = ": the machine was busy, so the times are noisy" if float(load) > _QUIET else ""
    lines += [f"- Load: {load} after{noisy}"]
    lines += [f"- Servers: {', '.join(one.version for one in found.values())}", ""]
    lines += [_HOW_TO_READ, f"![Acquire and release on servers]({PICTURE})", ""]
    for name, one in found.items():
        lines += [f"### {name}", ""]
        rows: list[tuple[str, ...]] = [("", "pair", "to the bare requests", "hand-over")]
        waits = {each.label: f"{median(each):.2f} ms" for each in one.hand_overs}
        for contender in one.pairs.contenders:
            ratio = one.pairs.ratio(contender.key)
            assert ratio is not None
            label = contender.label
            rows.append(
                (
                    f"**{label}**" if contender.kind == "semlock" else label,
                    time_text(contender),
                    ratio_text(ratio),
                    waits.get(label, ""),
                )
            )
        lines += [*table(rows, right=1), ""]
        ratio = one.pairs.ratio("semlock")
        if ratio is not None:
            met = "met" if ratio.median <= _BAR else "**not met**"
            lines += [f"A pair of at most {_BAR} {TIMES} the bare requests: {met}.", ""]
    return "\n".join(lines)
