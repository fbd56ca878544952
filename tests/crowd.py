"""Crowds of waiters, forked by one process: stopped, killed or blocked while they wait."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import Child, wait_until

# A live contender gets a free lock within 0.3 s.  A loaded machine needs longer for every
# step of that, so a try counts that was in time, and none may be far from it.
BOUND = 0.35
NEVER = 3.0
TRIES = 5

FORK = """
import os, signal, time, semlock
from semlock._core import capi

def crowd(count, take, before=""):
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                exec(before)
                take()
            finally:
                os._exit(0)
        pids.append(pid)
    return pids
"""


def tickets(path):
    """List the tickets of those who wait."""
    name = "[0-9a-f]" * 16
    return sorted(glob.glob(os.path.join(os.path.dirname(path), ".semlock-*.queue", name)))


def standing(path):
    """List the tickets whose owners have them open.

    Between creating a FIFO and opening it, its owner looks dead: if it is stopped there, the ticket
    is removed as a dead one's.  On Windows a ticket exists as long as it is open.
    """
    if sys.platform == "win32":
        return tickets(path)
    return [ticket for ticket in tickets(path) if _has_owner(ticket)]


def _has_owner(ticket):
    try:
        fd = os.open(ticket, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def owner_of(ticket):
    """Say which process waits, by the file that says so to people."""
    who = Path(f"{ticket}.who")
    wait_until(lambda: who.exists() and "pid=" in who.read_text(), "it is told who waits")
    return int(who.read_text().split("pid=")[1].split()[0])


def passed_by(path):
    """List the tickets that were passed by and whose owners have not run since."""
    return sorted(glob.glob(os.path.join(os.path.dirname(path), ".semlock-*.queue", "*.late")))


@contextlib.contextmanager
def crowd_that_waits(path, count, take, *, before="", setup="", env=None):
    """Give a process whose children wait, and stand in the queue."""
    with Child(FORK + setup, env=env) as parent:
        try:
            parent.run(f"pids = crowd({count}, lambda: {take}, {before!r})")
            wait_until(lambda: len(standing(path)) == count, f"{count} stand in the queue")
            yield parent
        finally:
            signal_all(parent, "SIGKILL")


@contextlib.contextmanager
def threads_that_wait(path, count, *, before=""):
    """Give a process whose threads stand in the queue: all stop with it."""
    with Child() as child:
        child.run(before)
        child.run(
            "import threading\n"
            "def wait():\n"
            f"    with semlock.Lock({path!r}, fair=True): pass\n"
            f"threads = [threading.Thread(target=wait, daemon=True) for _ in range({count})]\n"
            "for thread in threads: thread.start()\n"
        )
        wait_until(lambda: len(standing(path)) == count, f"{count} stand in the queue")
        yield child


def waiters(stack, path, *timeouts, fair=True):
    """Have processes wait for a lock that is held, one after the other."""
    found = []
    for number, timeout in enumerate(timeouts):
        found.append(stack.enter_context(Child()))
        found[-1].send(
            f"lock = semlock.Lock({path!r}, fair={fair}); lock.acquire({timeout}); None"
        )
        wait_until(lambda n=number: len(standing(path)) == n + 1, "it waits")
    return found


def signal_all(parent, name):
    """Send all of a crowd a signal."""
    parent.run(
        f"for pid in pids: os.kill(pid, signal.{name})\n"
        f"if {name!r} == 'SIGKILL':\n"
        "    for pid in pids: os.waitpid(pid, 0)\n"
        "    pids = []\n"
    )


@pytest.fixture
def bound(tmp_path):
    """The same directory, seen through FUSE."""
    if shutil.which("bindfs") is None or os.getuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("it needs bindfs")
    below, above = tmp_path / "below", tmp_path / "above"
    below.mkdir()
    above.mkdir()
    if subprocess.run(["bindfs", below, above], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield os.path.join(above, "the.lock")
    subprocess.run(["umount", "-l", above], check=True)


def in_time(attempt):
    """See an attempt succeed within the bound; ``attempt`` gives the seconds that it took."""
    took = []
    for _ in range(TRIES):
        took.append(attempt())
        assert took[-1] < NEVER, took
        if took[-1] <= BOUND:
            return
    raise AssertionError(f"a free lock was had after {took} s")


def timed(work):
    """Say how many seconds something takes, which must not give ``False``."""
    begin = time.monotonic()
    assert work() is not False
    return time.monotonic() - begin
