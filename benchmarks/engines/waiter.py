"""A process that waits for a lock when it is told to, and says when it had it."""

from __future__ import annotations

import sys
import time

from benchmarks.engines import clients


def main() -> None:
    engine, key, url, name = sys.argv[1:]
    make = next(way[3] for way in clients.installed(engine) if way[0] == key)
    acquire, release = make(url, name)
    acquire()
    release()
    print("ready", flush=True)
    for _ in sys.stdin:
        print("waits", flush=True)
        acquire()
        at = time.monotonic_ns()
        release()
        print(at, flush=True)


def crowd() -> None:
    """Acquire and release a lock of one's own for so many seconds, and say how often."""
    engine, key, url, name, seconds = sys.argv[1:]
    make = next(way[3] for way in clients.installed(engine) if way[0] == key)
    acquire, release = make(url, name)
    print("ready", flush=True)
    sys.stdin.readline()
    count, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        acquire()
        release()
        count += 1
    print(count, flush=True)
