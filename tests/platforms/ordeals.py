"""What locks go through on a filesystem: a storm of kills, faults of system calls, and waits.

As a program, ``ordeals.py NAME JSON`` puts the current directory through one of them and
prints a report; what a report must say is the tests' business.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import actors
import semlock
from semlock._core.verdicts import GRACE
from support import Child

TESTS = Path(__file__).resolve().parents[1]


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


def faults(shim: str, errors: list[str], *operations: str) -> dict:
    """Do some operations with each fault at each of their system calls."""

    def report(name: str) -> dict:
        os.mkdir(name)
        order = json.dumps([name, os.path.abspath(name), errors])
        done = subprocess.run(
            [sys.executable, TESTS / "faultops.py"], input=order,
            env=actors.preloaded(Path(shim)), stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(operations, pool.map(report, operations), strict=True))
    return {
        "problems": [f"{name}: {one}" for name in reports for one in reports[name]["problems"]],
        "cases": sum(one["cases"] for one in reports.values()),
    }


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
    report: dict[str, object] = {}

    def child(path: str, options: str = "") -> Child:
        return Child(SETUP.format(path=path, options=options))

    def ends(name: str, what) -> None:
        """Let a process wait until it must have seen the lock held, then end that."""
        path = os.path.abspath(f"{name}.lock")
        with child(path) as holder, child(path) as waiter:
            holder.run("lock.acquire(); None")
            waiter.send("wait_for_it()")
            assert not waiter.answered(0.3), "it got a lock that is held"
            ended = time.monotonic()
            what(holder, path)
            report[name] = waiter.receive() - ended
            waiter.run("lock.check(); lock.release(); None")

    def die(holder: Child, path: str) -> None:
        holder.process.kill()
        holder.process.wait()

    def stand_in_order() -> None:
        """The order among those who ask one after the other, each known to wait before the next."""
        path = os.path.abspath("in order.lock")
        with child(path) as holder:
            holder.run("lock.acquire(); None")
            waiters = []
            for _ in range(3):
                waiters.append(child(path, "fair=True"))
                waiters[-1].send("wait_in_turn()")
                assert not waiters[-1].answered(0.5), "it got a lock that is held"
            holder.run("lock.release(); None")
            times = [waiter.receive() for waiter in waiters]
            report["in order"] = times == sorted(times)
            for waiter in waiters:
                waiter.close()

    def run_out_of_time() -> None:
        path = os.path.abspath("timeout.lock")
        with child(path) as holder:
            holder.run("lock.acquire(); None")
            began = time.monotonic()
            try:
                semlock.Lock(path).acquire(timeout=0.4)
            except semlock.LockTimeoutError:
                report["timeout"] = time.monotonic() - began

    # They mostly sleep, so all at a time.
    with ThreadPoolExecutor() as pool:
        done = [
            pool.submit(
                ends, "release", lambda holder, path: holder.run("lock.release(); None")
            ),
            pool.submit(ends, "removal by name", lambda holder, path: os.unlink(path)),
            pool.submit(ends, "death", die),
            pool.submit(stand_in_order),
            pool.submit(run_out_of_time),
        ]
        for one in done:
            one.result()
    return report


ORDEALS = {"storm": storm, "faults": faults, "waits": waits}


if __name__ == "__main__":
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else []
    ordeal = ORDEALS[sys.argv[1]]
    print(json.dumps(ordeal(**options) if isinstance(options, dict) else ordeal(*options)))
