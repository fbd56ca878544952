"""Kill storms without fork: whatever is killed at whatever instant, one holder at most.

Half of the workers are killed from outside at a random time, half end themselves at a random
call of the core.  Each round ends with the death of all; then the lock is taken at once, and a
cleaning leaves an empty directory.
"""

import os
import random
import subprocess
import sys
import tempfile
import time

import pytest

import semlock
import windows_calls
from semlock._core import verdicts
from support import wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "win32", reason="other systems have test_kill_storm"
)

LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
WORKERS = 4

# Each writes down whether it was alone, by a lock of the kernel's on another file, which goes
# with the process as its lock does.  A death may drop the one just after the other.
WORKER = """
import msvcrt, os, random, time, semlock, windows_calls
from faultlib import KILL_BEFORE, Fault, new_lock
from semlock._core.identity import this_process

path, beside, in_place, calls_to_live = sys.argv[1:]
chance = random.random()
lock = new_lock(path, durability="none", fair=chance < 0.3, in_place=in_place == "True")
bailiff = os.open(os.path.join(beside, "bailiff"), os.O_RDWR | os.O_CREAT)
this_process()

def alone():
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.lseek(bailiff, 0, 0)
            msvcrt.locking(bailiff, msvcrt.LK_NBLCK, 1)
            return True
        except OSError:
            time.sleep(0.002)
    return False

def note(what):
    os.close(os.open(os.path.join(beside, f"{what}.{os.getpid()}"), os.O_WRONLY | os.O_CREAT))

if int(calls_to_live):
    calls = windows_calls.Calls()
    calls.arm(Fault(KILL_BEFORE, nth=int(calls_to_live)))
while True:
    if chance > 0.8:
        semlock.clean(os.path.dirname(path))
        semlock.status(path)
    try:
        lock.acquire(timeout=0.02 if chance > 0.6 else None)
    except semlock.LockTimeoutError:
        continue
    note("holds")
    if not alone():
        note("wrong")
    if random.random() < 0.3:
        lock.refresh()
    time.sleep(random.random() * 0.01)
    lock.check()
    os.lseek(bailiff, 0, 0)
    msvcrt.locking(bailiff, msvcrt.LK_UNLCK, 1)
    os.unlink(os.path.join(beside, f"holds.{os.getpid()}"))
    note("held")
    lock.release()
"""


def storm(tmp_path, *, seconds: float, least: int, in_place: bool = False) -> None:
    """Let a storm pass, and see nothing wrong with it.

    It goes on until so many were killed, so many ended themselves and so many had the lock.
    """
    locks, beside = tmp_path / "locks", tmp_path / "beside"
    locks.mkdir()
    beside.mkdir()
    path = str(locks / "the.lock")
    seed = random.getrandbits(32)
    chance = random.Random(seed)
    workers: list[subprocess.Popen] = []
    killed = ended = rounds = 0

    def notes(kind: str) -> int:
        return sum(name.startswith(kind) for name in os.listdir(beside))

    def raise_one() -> subprocess.Popen:
        to_live = chance.randrange(1, 400) if chance.random() < 0.5 else 0
        return subprocess.Popen(
            windows_calls.python(WORKER, path, str(beside), str(in_place), str(to_live)),
            stdin=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
        )

    def take_over() -> None:
        with semlock.Lock(path, timeout=15 + (verdicts.GRACE if in_place else 0)):
            pass
        # What its makers have left unfinished goes after the grace time.
        wait_until(
            lambda: [semlock.clean(locks), os.listdir(locks)][1] == [],
            "what the dead have left is gone",
        )

    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end or min(killed, ended, notes("held")) < least:
            round_ends = time.monotonic() + min(seconds, 5)
            while time.monotonic() < round_ends:
                for worker in [one for one in workers if one.poll() is not None]:
                    # Nothing but its own order ends it, no error least of all.
                    assert worker.returncode == windows_calls.KILLED
                    workers.remove(worker)
                    ended += 1
                workers += [raise_one() for _ in range(WORKERS - len(workers))]
                time.sleep(chance.random() * 0.2)
                if chance.random() < 0.3:
                    victim = chance.choice(workers)
                    victim.kill()
                    victim.wait()
                    workers.remove(victim)
                    killed += 1
            for worker in workers:
                worker.kill()
                worker.wait()
            killed += len(workers)
            workers.clear()
            take_over()
            rounds += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    strength = (
        f"{killed} killed, {ended} ended, {notes('held')} had held, {notes('holds')} held"
    )
    print(f"seed {seed}: {strength}, {rounds} rounds")
    assert notes("wrong") == 0


def test_of_workers_that_are_killed_at_any_call_one_holds_at_most(tmp_path):
    storm(tmp_path, seconds=3, least=2)


@pytest.mark.stress
@pytest.mark.timeout(LONG * 5 + 120)
@pytest.mark.parametrize("in_place", [False, True], ids=["renamed", "in place"])
def test_a_long_storm(tmp_path, in_place):
    storm(tmp_path, seconds=LONG, least=int(LONG / 5), in_place=in_place)
