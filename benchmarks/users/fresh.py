"""A process that waits once, right after its start: how soon it has the lock."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING

from benchmarks import facts
from benchmarks.floor import Floor
from benchmarks.results import TIMES, Judged, number
from benchmarks.waiting.locks import ENTRANTS, REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ("semlock", "fair", "own", "kept", "FileLock", "fasteners", "portalocker")
OURS = ("semlock", "fair")
IDLE, BUSY, BACKGROUND = "idle", "one core busy", "background work on each core"
MODES = (IDLE, BUSY, BACKGROUND)
RELEASE, KILL = "release() to in", "SIGKILL of the holder to in"
BAR = 1.25
# The waiter begins to wait, and the lock stays held for a time between these; for a library that
# polls, for one that ends at any moment between two of its looks.
_LEAST, _MOST = 0.03, 0.05
_ROUNDS_OF_PEERS = 4  # they poll: of so many rounds they take part in one
_GIVES_WAY = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
_SPIN = "while True: pass"


@dataclass
class Kind:
    """The hand-overs of one kind of lock, in nanoseconds."""

    key: str
    times: list[int] = field(default_factory=list)

    def at(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass
class FreshResults:
    """Everything that was measured."""

    facts: dict[str, str] = field(default_factory=dict)
    found: dict[tuple[str, str], dict[str, Kind]] = field(default_factory=dict)

    def judged(self) -> list[Judged]:
        judged = []
        for (what, mode), kinds in self.found.items():
            for key in OURS:
                for name, share in (("p50", 0.5), ("p90", 0.9)):
                    ratio = kinds[key].at(share) / kinds[REFERENCE].at(share)
                    judged.append(
                        Judged(
                            f"{what}, {mode}, {ENTRANTS[key].label}, {name}",
                            f"≤ {BAR:g} {TIMES} flock(2) on the holder's own file",
                            f"{number(ratio)} {TIMES}",
                            ratio <= BAR,
                        )
                    )
        return judged


@contextlib.contextmanager
def _machine(mode: str) -> Iterator[None]:
    """Keep the cores as busy as that."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = {IDLE: [], BUSY: cores[:1], BACKGROUND: cores}[mode]

    program = (_GIVES_WAY if mode == BACKGROUND else "") + _SPIN
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in wanted]
    try:
        time.sleep(0.3 if wanted else 0)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _hand_over(key: str, path: str, library: str, what: str) -> int:
    """Measure one: nanoseconds from the release, or the kill, until the waiter was in."""
    begun, begin = os.pipe()
    goes, go = os.pipe()
    left, leave = os.pipe()
    entered, enter = os.pipe()

    def hold() -> None:
        lock = ENTRANTS[key].make(path, library)
        lock.enter()
        os.write(begin, b".")
        os.read(goes, 1)
        os.write(leave, b"%d" % lock.leave())

    def wait() -> None:
        lock = ENTRANTS[key].make(path, library)
        os.write(enter, b"%d" % lock.enter())
        lock.leave()

    try:
        holder = _child(hold)
        os.read(begun, 1)
        waiter = _child(wait)
        time.sleep(random.uniform(_LEAST, _MOST + ENTRANTS[key].pause))
        if what == KILL:
            from_ = monotonic_ns()
            os.kill(holder, signal.SIGKILL)
        else:
            os.write(go, b".")
            from_ = int(os.read(left, 32))
        until = int(os.read(entered, 32))
        os.waitpid(holder, 0)
        os.waitpid(waiter, 0)
    finally:
        for number_ in (begun, begin, goes, go, left, leave, entered, enter):
            os.close(number_)
    return until - from_


def measure_fresh(memory: str, rounds: int, say: Callable[[str], None]) -> FreshResults:
    """Measure in this directory in memory; each process is forked from this one."""
    run = facts.Run()
    found = FreshResults()
    keys = [key for key in KINDS if not ENTRANTS[key].missing()]
    with tempfile.TemporaryDirectory() as build:
        library = Floor(build).path
        for key in keys:  # what is loaded now needs not be loaded in each child
            ENTRANTS[key].make(os.path.join(memory, "first.lock"), library)
        gc.freeze()
        count = 0
        for what in (RELEASE, KILL):
            for mode in MODES:
                say(f"Fresh processes, {what}, {mode} …")
                kinds = found.found[what, mode] = {key: Kind(key) for key in keys}
                with _machine(mode):
                    for round_ in range(rounds):
                        for key in random.sample(keys, len(keys)):
                            if ENTRANTS[key].kind == "peer" and round_ % _ROUNDS_OF_PEERS:
                                continue
                            count += 1
                            path = os.path.join(memory, f"fresh-{count}.lock")
                            kinds[key].times.append(_hand_over(key, path, library, what))
        gc.unfreeze()
    peers = -(-rounds // _ROUNDS_OF_PEERS)
    found.facts = run.facts(memory, Rounds=f"{rounds}, for each library that polls {peers}")
    return found


def middle(kind: Kind) -> float:
    """Give the median in nanoseconds."""
    return statistics.median(kind.times)
