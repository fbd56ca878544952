"""Several processes for a run of many tests, where pytest-xdist is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # on Windows no test waits for another
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

# More would only take longer to start, and some limits are those of a user.
MOST = 8


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_nested(config: pytest.Config) -> bool:
    """Whether another pytest has started this one: as a worker, or in a test."""
    names = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    return hasattr(config, "workerinput") or any(name in os.environ for name in names)


def _asks_for_many(config: pytest.Config) -> bool:
    """Whether folders of tests are to be run, and no few of them, nor with a debugger."""
    names = ("keyword", "lf", "stepwise", "collectonly", "usepdb", "trace", "setupshow")
    if any(config.getoption(name, False) for name in names):
        return False
    if config.getoption("capture") == "no" or config.getoption("markexpr") != "not stress":
        return False
    return any(os.path.isdir(name) for name in config.args)


def choose(config: pytest.Config) -> None:
    """Set how many processes there are, before pytest-xdist reads that.

    A number on the command line stays.  Two processes more than there are processors: tests sleep
    for half of their time, and more would only share the processors.  The processes begin with a
    part of the tests each, so that what a module makes for its tests is made once, and those that
    are done take tests from others.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or _is_nested(config):
        return
    if option.numprocesses is None and not (option.tx or option.distload):
        option.numprocesses = min(_processors() + 2, MOST) if _asks_for_many(config) else 0
    if option.numprocesses and option.dist == "no":
        option.dist = "worksteal"


def compile_share(config: pytest.Config) -> None:
    """Compile a share of the tests, before each of the processes collects all of them.

    In a fresh checkout each of them would compile all by itself, at the same time.
    """
    worker = getattr(config, "workerinput", None)
    loader = config.pluginmanager.rewrite_hook
    if worker is None or not hasattr(loader, "exec_module"):
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(Path(__file__).parent.rglob("test_*.py"))[number::count]:
        spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
        module = importlib.util.module_from_spec(spec)
        module.__dict__["__builtins__"] = {}  # it can't import anything, so nothing of it runs
        with contextlib.suppress(ImportError):
            loader.exec_module(module)


@contextlib.contextmanager
def turn(item: pytest.Item, factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run a test beside none of the same ``one_at_a_time``, in whatever processes they are."""
    groups = sorted({mark.args[0] for mark in item.iter_markers("one_at_a_time")})
    with contextlib.ExitStack() as stack:
        if fcntl is not None and "PYTEST_XDIST_WORKER" in os.environ:
            for group in groups:
                place = factory.getbasetemp().parent / f"{group}.turn"
                file = stack.enter_context(open(place, "wb"))
                fcntl.lockf(file, fcntl.LOCK_EX)  # which no forked child shares
        yield
