"""Start the servers, and measure pairs in turns and hand-overs between two processes."""

from __future__ import annotations

import glob
import os
import re
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import processes
from benchmarks.engines import clients
from benchmarks.measuring import Contender, Group, measure

if TYPE_CHECKING:
    from benchmarks.engines.clients import Way

_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CROWD = 4  # processes that acquire and release at a time, each its own lock
_CROWD_SECONDS = 2.0
_WAITS = 0.15  # seconds until a process that was told to wait does so


class HandOver(NamedTuple):
    """How long after a release the process that waited had the lock."""

    label: str
    kind: str
    milliseconds: list[float]


class Found(NamedTuple):
    """What was measured on one engine."""

    pairs: Group
    per_second: dict[str, float]  # pairs of several processes, by the way's key
    hand_overs: list[HandOver]
    version: str


def _pair(way: Way) -> Any:
    acquire, release = way

    def loop(count: int) -> int:
        began = time.perf_counter_ns()
        for _ in range(count):
            acquire()
            release()
        return time.perf_counter_ns() - began

    return loop


def _start(function: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process of the benchmark's, and wait until it is ready."""
    # The checkout comes last, so that it does not hide the installed semlock.
    program = (
        f"import sys; sys.path.append({_CHECKOUT!r}); "
        f"from benchmarks.engines.waiter import {function}; {function}()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd="/", env=processes.environment(),
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def _per_second(engine: str, key: str, url: str) -> float:
    """Say how many pairs several processes make in a second together."""
    crowd = [
        _start("crowd", engine, key, url, f"crowd-{key}-{number}", str(_CROWD_SECONDS))
        for number in range(CROWD)
    ]
    for process in crowd:
        assert process.stdin
        print("go", file=process.stdin, flush=True)
    return sum(int(process.communicate()[0]) for process in crowd) / _CROWD_SECONDS


def _hand_over(engine: str, key: str, make: Any, url: str, rounds: int) -> list[float]:
    name = f"hand-over-{key}"
    acquire, release = make(url, name)
    process = _start("main", engine, key, url, name)
    assert process.stdin
    assert process.stdout
    found = []
    with process:
        for _ in range(rounds):
            acquire()
            print("go", file=process.stdin, flush=True)
            assert process.stdout.readline() == "waits\n"
            time.sleep(_WAITS)
            began = time.monotonic_ns()
            release()
            found.append((int(process.stdout.readline()) - began) / 1e6)
        process.stdin.close()
    return found


def measure_engines(seconds: float, rounds: int) -> dict[str, Found]:
    """Measure on each engine whose server and client are here."""
    sys.path.insert(0, os.path.join(_CHECKOUT, "tests"))
    import servers
    from benchmarks.engines.zookeeper import ZooKeeper

    found = {}
    kinds: dict[str, Any] = {
        "etcd": servers.Etcd, "redis": servers.Redis, "postgresql": servers.PostgreSQL,
        "zookeeper": ZooKeeper,
    }  # fmt: skip
    for engine, kind in kinds.items():
        if engine == "zookeeper" and not (ZooKeeper.is_here() and clients.installed(engine)):
            print("zookeeper: it is not installed", file=sys.stderr)
            continue
        print(f"{engine} …", file=sys.stderr, flush=True)
        with servers.running(kind) as server:
            url = clients.url_of(engine, server)
            ways = clients.installed(engine)
            contenders = [
                Contender(key, label, kind, _pair(make(url, f"pair-{key}")))
                for key, label, kind, make in ways
            ]
            pairs = measure(f"Acquire + release on {engine}", contenders, seconds)
            crowds = {
                key: _per_second(engine, key, url)
                for key in ("floor", "semlock")
                if engine != "zookeeper"
            }
            hand_overs = [
                HandOver(label, kind, _hand_over(engine, key, make, url, rounds))
                for key, label, kind, make in ways
                if (engine, key) not in clients.NO_WAITS and key not in clients.COMMANDS
            ]
            found[engine] = Found(pairs, crowds, hand_overs, f"{engine} {_version(server)}")
    return found


def _version(server: Any) -> str:
    if hasattr(server, "JAR"):
        said = max(glob.glob(server.JAR.replace(".jar", "-[0-9]*.jar")), default="")
    else:
        words = [server.path, "--version"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+(\.\d+)+", said)
    return number[0] if number else "?"


def median(hand_over: HandOver) -> float:
    """Give the median of a hand-over, in milliseconds."""
    return statistics.median(hand_over.milliseconds)
