"""One run of everything."""

from __future__ import annotations

import sys
import tempfile

from benchmarks import contenders, facts
from benchmarks.floor import Floor
from benchmarks.measuring import Contender, Group, measure
from benchmarks.processes import holder, starts, weigh
from benchmarks.results import Results

_HELD = 1000


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _groups(memory: str, disk: str, seconds: float) -> dict[str, Group]:
    """Measure what is measured in blocks, in turns."""
    in_memory, on_disk = contenders.Places(memory), contenders.Places(disk)
    groups: dict[str, Group] = {}

    def run(key: str, title: str, found: list[Contender]) -> None:
        _say(f"{title} …")
        groups[key] = measure(title, found, seconds)

    held = {key: [in_memory.path()] for key in ("semlock", *contenders.peers())}
    crowd = in_memory.paths(_HELD)
    with tempfile.TemporaryDirectory() as build:
        floor = Floor(build)
    with holder(held), holder({"semlock": crowd}):
        many = contenders.many_tries(floor, crowd)
        for contender in many:  # from here on semlock watches their holder
            contender.loop(contender.step)
        for key, title, places, durability in (
            ("tmpfs", "Acquire + release, tmpfs, no fsync", in_memory, "none"),
            ("synced", "Acquire + release, on disk, fsync", on_disk, "full"),
            ("disk", "Acquire + release, on disk, no fsync", on_disk, "none"),
            ("default", "Acquire + release, on disk, by default", on_disk, "safe"),
        ):
            run(key, title, contenders.pairs(floor, places, durability))
        run("tries", "Failed try on a held lock, tmpfs", contenders.failed_tries(floor, held))
        run("many", f"Failed try on each of {_HELD:,} held locks, tmpfs", many)
    return groups


def measure_everything(memory: str, disk: str, seconds: float, rounds: int) -> Results:
    """Measure for so many seconds in each group, and start so many processes of each kind."""
    began = facts.Run()
    installed = contenders.installed()
    missing = [name for name in contenders.MODULES if name not in installed]
    for name in missing:
        _say(f"{name} is not installed: it does not take part")
    groups = _groups(memory, disk, seconds)
    _say("Starting …")
    started = starts(["semlock", "semlock.filelock", *installed], rounds)
    _say("Weight …")
    places = contenders.Places(tempfile.mkdtemp(dir=memory))
    weights = {
        key: weigh(key, places.paths(_HELD + 1)) for key in ("semlock", *contenders.peers())
    }
    rounds_of = ", ".join(f"{len(g.contenders[0].samples)} ({k})" for k, g in groups.items())
    about = began.facts(memory, disk, Rounds=rounds_of)
    if missing:
        about["Not installed"] = ", ".join(missing)
    return Results(groups, started, weights, about)
