"""Many locks worked by six processes under kills: each in turn, none lost, none twice."""

import os
import random
import subprocess
import sys
import time

import pytest

import semlock
from support import KILL

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills are for POSIX")

LOCKS = 1000
WORKERS = 6

# A worker that holds a lock makes a file of the lock's number, and beside it a link with its own
# PID; it removes both before the release.  A killed worker leaves them.  If the next holder finds
# a link to a process that lives, the lock was had twice.
WORKER = """
import os, sys, random, time, semlock
count, directory = int(sys.argv[1]), sys.argv[2]
order = list(range(count))
random.shuffle(order)
locks = [semlock.Lock(os.path.join(directory, f"{n}.lock"), durability="none") for n in order]
if sys.argv[3] == "set":
    locks = semlock.LockSet(locks)
    pause = lambda: locks.wait(0.02)
else:
    pause = lambda: time.sleep(random.choice((0, 0.002, 0.02)))


def won():
    if sys.argv[3] == "set":
        return locks.try_acquire(limit=random.choice((1, 4, 50, None)))
    won = [lock for lock in semlock.try_acquire_many(locks) if lock]
    if won:  # for some time nothing changes in the directory
        time.sleep(random.choice((0, 0, 0.05)))
    return won


inside, log = os.path.join(directory, "inside"), os.open(
    os.path.join(directory, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
while True:
    for lock in won():
        number = os.path.basename(lock.path).partition(".")[0]
        place = os.path.join(inside, number)
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            owner = os.readlink(place + ".who") if os.path.lexists(place + ".who") else "0"
            if owner != "0" and os.path.exists(f"/proc/{owner}/exe"):
                os.write(log, f"twice {number} {owner} {os.getpid()}\\n".encode())
        try:
            os.unlink(place + ".who")
        except FileNotFoundError:
            pass
        os.symlink(str(os.getpid()), place + ".who")
        os.write(log, f"held {number}\\n".encode())
        os.unlink(place + ".who")
        os.unlink(place)
        lock.release()
    pause()
"""


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("set", 60),
        pytest.param("set", LOCKS, marks=pytest.mark.stress),
        pytest.param("many", LOCKS, marks=pytest.mark.stress),
    ],
)
def test_locks_under_kills(tmp_path, way, count):
    seconds = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "20")) if count == LOCKS else 2.0
    (tmp_path / "inside").mkdir()

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(count), str(tmp_path), way],
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline()
        return process

    workers = [start() for _ in range(WORKERS if count == LOCKS else 2)]
    kills = 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(random.uniform(0.02, 0.3))
            index = random.randrange(len(workers))
            workers[index].send_signal(KILL)
            workers[index].wait()
            workers[index].stdout.close()
            workers[index] = start()
            kills += 1
    finally:
        for worker in workers:
            worker.send_signal(KILL)
            worker.wait()
            worker.stdout.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert kills > 2
    assert not [line for line in lines if line.startswith("twice")]
    held = {line.split()[1] for line in lines if line.startswith("held")}
    assert len(held) == count, "some locks were never had"
    # All are dead: each lock is had by one more, and none is lost.
    locks = [
        semlock.Lock(tmp_path / f"{number}.lock", durability="none") for number in range(count)
    ]
    last = semlock.LockSet(locks)
    got = set()
    end = time.monotonic() + 30
    while len(got) < count and time.monotonic() < end:
        if way == "many":
            got.update(filter(None, semlock.try_acquire_many(locks)))
        elif last.wait(1):
            got.update(last.try_acquire())
    assert len(got) == count
    for lock in got:
        lock.release()
    semlock.clean(tmp_path)
