"""A process that holds locks while others try them, or that weighs what holding costs.

It is run as a script: one JSON request on standard input, one JSON answer on standard output,
and it holds until its standard input ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import tracemalloc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_DESCRIPTORS = 8192

# How to make a lock of each library that waits for nobody.
_MAKERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "semlock": ("semlock", "Lock", {"durability": "none"}),
    "FileLock": ("filelock", "FileLock", {}),
    "SoftFileLock": ("filelock", "SoftFileLock", {}),
    "fasteners": ("fasteners", "InterProcessLock", {}),
    "portalocker": ("portalocker", "Lock", {}),
}


def hold(library: str, paths: list[str]) -> list[Any]:
    """Acquire a lock of this library at each path."""
    module, name, options = _MAKERS[library]
    make = getattr(importlib.import_module(module), name)
    locks = [make(path, **options) for path in paths]
    for lock in locks:
        lock.acquire()
    return locks


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    request = json.loads(sys.stdin.readline())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _DESCRIPTORS:
        limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    held = []
    answer: dict[str, float] = {}
    for library, paths in request["locks"].items():
        held += hold(library, paths[:1])  # what comes once for the process
        if request["trace"]:
            tracemalloc.start()
        descriptors, resident = _descriptors(), _resident()
        held += hold(library, paths[1:])
        if request["weigh"]:
            count = len(paths) - 1
            answer["descriptors"] = (_descriptors() - descriptors) / count
            answer["resident"] = (_resident() - resident) / count
            if request["trace"]:
                answer["traced"] = tracemalloc.get_traced_memory()[0] / count
    print(json.dumps(answer), flush=True)
    sys.stdin.read()
    for lock in held:
        lock.release()


if __name__ == "__main__":
    main()
