"""Children whose witness is kept or left, and what is true of their locks."""

import os
import subprocess
import time
from pathlib import Path

import pytest

import semlock
from support import Child

resource = pytest.importorskip("resource")


TESTS = str(Path(__file__).resolve().parent)


AT_ONCE = 1.0


# Every child can do this: acquire without the kernel's witness, as a process does that is
# near its limit of descriptors, and fork.
SETUP = f"""
import gc, logging, os, resource, select, signal, sys, threading, time, warnings
import semlock
sys.path.insert(0, {TESTS!r})
import support

def without_witness(lock):
    semlock._core.capi.drain_pool()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, hard))
    lock.acquire()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lock.info.witness == "left", lock.info
"""


WITNESSED = "lock.acquire(); None"


UNWITNESSED = "without_witness(lock)"


def child(path=None, **options) -> Child:
    setup = SETUP if path is None else SETUP + f"\nlock = semlock.Lock({path!r})\n"
    return Child(setup, **options)


def need(*command: str) -> None:
    """Skip where the system doesn't permit it; where all is tested, that is a failure."""
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = f"not permitted here: {' '.join(command)}: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def assert_held(path: str, verdict: str = "alive") -> None:
    """See that the lock is not to be had, and that its holder is judged so."""
    found = semlock.status(path)
    assert found.verdict == verdict, found
    assert found.state == "held"
    assert not semlock.Lock(path).try_acquire()


def assert_taken_at_once(path: str) -> None:
    """See that a dead holder's lock is acquired by the next one, with no time to spare."""
    begin = time.monotonic()
    lock = semlock.Lock(path, timeout=AT_ONCE, durability="none")
    with lock:
        lock.check()
    assert time.monotonic() - begin < AT_ONCE


def rewrite(path: str, **fields: str) -> None:
    """Change fields of a record in place, leaving the file and its inode as they are."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    names = [line.partition("=")[0] for line in lines]
    for name, value in fields.items():
        lines[names.index(name)] = f"{name}={value}"
    with open(path, "r+", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.truncate()
