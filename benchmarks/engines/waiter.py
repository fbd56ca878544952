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
