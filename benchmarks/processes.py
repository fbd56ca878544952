"""Other processes: those that hold locks, those that are weighed, and those that only start."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "holder.py")


def environment() -> dict[str, str]:
    """Give what a child needs to find what this process found, and not the checkout in its place.

    It may keep compiled modules: a program that has to compile them first is another one.
    """
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


@contextlib.contextmanager
def holder(
    locks: Mapping[str, Sequence[str]], *, weigh: bool = False, trace: bool = False
) -> Iterator[dict[str, float]]:
    """Have another process hold these paths, given by library, inside of the block."""
    process = subprocess.Popen(
        [sys.executable, _HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        every = {name: list(paths) for name, paths in locks.items()}
        request = {"locks": every, "weigh": weigh, "trace": trace}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that was to hold the locks has ended")
        yield json.loads(answer)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def weigh(library: str, paths: Sequence[str]) -> dict[str, float]:
    """Say what holding costs for each lock: bytes and descriptors."""
    with holder({library: paths}, weigh=True) as weight:
        pass
    with holder({library: paths}, weigh=True, trace=True) as traced:
        # Tracing takes memory itself: only what it counted is of use.
        return {**weight, "traced": traced["traced"]}


def starts(modules: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Measure in turn, in milliseconds, a bare Python (as ``""``) and one that imports each.

    Without site, so that what an installation hangs into every start (the finder of an
    editable one, for instance) is neither in the bare start nor in the import.
    """
    places = dict.fromkeys(_place(name) for name in (*modules, "_cffi_backend"))
    places.pop("", None)
    # `site` by name brings what every normal start has loaded already.
    bare = f"import os, site, sys; sys.path += {list(places)!r}"
    programs = {
        "": bare,
        **{name: f"{bare}; import {name}" for name in modules},
    }
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(rounds + 2):
        for name, program in programs.items():
            begin = time.perf_counter_ns()
            subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
            spent = (time.perf_counter_ns() - begin) / 1e6
            if turn >= 2:  # the first ones fill the caches
                samples[name].append(spent)
    return samples


def _place(module: str) -> str:
    """Find the directory that has to be on the path for this module."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return ""
    directory = os.path.dirname(spec.origin)
    return os.path.dirname(directory) if spec.submodule_search_locations else directory
