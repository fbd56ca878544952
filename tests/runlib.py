"""``semlock run`` as tests watch it: its processes, and what a second contender gets."""

from __future__ import annotations

import os
import shutil

import pytest

import semlock
from clilib import PATIENCE

# A command that says that it runs, goes on until it is given a line, and ends with 7.
WORKING = ("sh", "-c", "echo ready; read x; exit 7")

# What is started in it is the first process of a PID namespace, which ends with it.
IN_CONTAINER = ("unshare", "-pf", "--mount-proc", "--kill-child")

proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="the children of a process are seen in /proc"
)
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="changing users and namespaces needs root",
)


def needs(program):
    """Skip a test where a program is missing."""
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=f"{program} is not installed"
    )


def ready(process):
    """Wait until the command says that it runs."""
    assert process.stdout.readline() == "ready\n"


def child_of(pid):
    """Give the first child of a process."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])


def free(path):
    """Tell whether a second contender gets the lock."""
    lock = semlock.Lock(path)
    if not lock.try_acquire():
        return False
    lock.release()
    return True


def comes_free(path):
    """Wait for the lock as a contender does."""
    with semlock.Lock(path, timeout=PATIENCE):
        pass
