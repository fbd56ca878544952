"""What locks go through on a filesystem: a storm of kills, faults of system calls, and waits.

As a program, ``ordeals.py NAME JSON`` puts the current directory through one of them and
prints a report; what a report must say is the tests' business.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import faultlib
import semlock
from semlock._policy import GRACE
from support import Child

TESTS = Path(__file__).resolve().parents[1]

# One of each sort that the core tells apart; on a local filesystem it meets all of them.
ERRORS = ["ENOSPC", "EIO", "EINTR", "EACCES"]


def storm(**changes) -> dict:
    """Let the nursery raise, stop and kill workers here, and give its report."""
    os.mkdir("locks")
    here = os.getcwd()
    # The evidence is not entrusted to what is on trial.
    records = changes.pop("records", f"{here}/records")
    os.mkdir(records)
    plan = {
        "directory": f"{here}/locks",
        "records": records,
        "wrong": f"{records}/wrong",
        "locks": [f"{here}/locks/{i}.lock" for i in range(changes.pop("locks", 2))],
        "workers": 6,
        "shells": 0,
        "in_place": False,
        "durability": "none",
        "seconds": 1.5,
        "round": 0.5,
        "patience": 1.0,
        "kills": 50,
        "kills_per_second": 200,
        "seed": random.getrandbits(32),
        **changes,
    }
    done = subprocess.run(
        [sys.executable, TESTS / "stress" / "nursery.py"],
        input=json.dumps(plan), stdout=subprocess.PIPE, check=True, text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    report = json.loads(done.stdout)
    if os.listdir("locks"):
        # A file that was made under a temporary name and got no record proves nothing until
        # its grace time is over.
        time.sleep(GRACE + 0.1)
        semlock.clean("locks")
    report["left"] = sorted(os.listdir("locks"))
    return report


def faults(*operations: str) -> dict:
    """Do some operations with each fault at each of their system calls."""
    shim = faultlib.build_shim(Path.cwd())
    problems = []
    cases = 0
    for name in operations:
        os.mkdir(name)
        order = json.dumps([name, os.path.abspath(name), ERRORS])
        done = subprocess.run(
            [sys.executable, TESTS / "faultops.py"], input=order,
            env=faultlib.preloaded(shim), stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        report = json.loads(done.stdout)
        problems += [f"{name}: {problem}" for problem in report["problems"]]
        cases += report["cases"]
    return {"problems": problems, "cases": cases}


SETUP = """
import time, semlock
lock = semlock.Lock({path!r}, {options})

def wait_for_it():
    lock.acquire(timeout=30)
    return time.monotonic()

def wait_in_turn():
    with lock.acquire(timeout=30):
        return time.monotonic()
"""


def waits() -> dict:
    """Wait for a release, a death and a removal by name, and stand in a queue."""
    path = os.path.abspath("the.lock")
    report: dict[str, object] = {}
    child = functools.partial(Child, SETUP.format(path=path, options=""))

    def ends(name: str, what) -> None:
        """Let somebody wait until it can't but have seen the lock held, then end that."""
        with child() as holder, child() as waiter:
            holder.run("lock.acquire(); None")
            waiter.send("wait_for_it()")
            assert not waiter.answered(0.3), "it got a lock that is held"
            ended = time.monotonic()
            what(holder)
            report[name] = waiter.receive() - ended
            waiter.run("lock.check(); lock.release(); None")

    ends("release", lambda holder: holder.run("lock.release(); None"))
    ends("removal by name", lambda holder: os.unlink(path))

    def die(holder: Child) -> None:
        holder.process.kill()
        holder.process.wait()

    ends("death", die)

    # The order among those who ask one after the other, each known to wait before the next.
    with child() as holder:
        holder.run("lock.acquire(); None")
        waiters = []
        for _ in range(3):
            waiters.append(Child(SETUP.format(path=path, options="fair=True")))
            waiters[-1].send("wait_in_turn()")
            assert not waiters[-1].answered(0.5), "it got a lock that is held"
        holder.run("lock.release(); None")
        times = [waiter.receive() for waiter in waiters]
        report["in order"] = times == sorted(times)
        for waiter in waiters:
            waiter.close()

    with child() as holder:
        holder.run("lock.acquire(); None")
        began = time.monotonic()
        try:
            semlock.Lock(path).acquire(timeout=0.4)
        except semlock.LockTimeoutError:
            report["timeout"] = time.monotonic() - began
    return report


ORDEALS = {"storm": storm, "faults": faults, "waits": waits}


if __name__ == "__main__":
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else []
    ordeal = ORDEALS[sys.argv[1]]
    print(json.dumps(ordeal(**options) if isinstance(options, dict) else ordeal(*options)))
