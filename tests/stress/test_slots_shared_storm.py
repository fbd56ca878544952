"""Storms on semaphores, on readers and writers, and on many locks at once.

Workers are killed and stopped at random instants.  What they wrote of their holds must fit
the promise: never more than so many at a time, never a reader beside a writer, never two of
those who take all.  Afterwards nothing that the dead left keeps any process out.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import semlock
from support import read_holds

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="processes are killed by signals"
)

HERE = Path(__file__).resolve().parent
LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
WORKERS = 6

HEAD = """
import random, sys, time
import semlock
from support import HoldRecord
path, log = sys.argv[1:3]
record = HoldRecord(log)

def hold(which):
    record.enter(which)
    time.sleep(random.random() * 0.002)
    record.leave(which)
"""

SLOTS = """
s = semlock.SlotLock(path, 3, durability="none", fair=random.random() < 0.5)
while True:
    try:
        with s.acquire(timeout=random.choice([None, 0.01, 1])):
            hold(0)
    except semlock.LockTimeoutError:
        pass
"""

SHARED = """
r = semlock.SharedLock(path, durability="none", fair=random.random() < 0.5)
while True:
    limit = random.choice([None, 0.01, 1])
    try:
        if random.random() < 0.7:
            with r.shared(timeout=limit):
                hold(0)
        else:
            with r.exclusive(timeout=limit):
                hold(1)
    except semlock.LockTimeoutError:
        pass
"""

ALL = """
locks = [semlock.Lock(path + str(number), durability="none") for number in range(4)]
while True:
    limit = random.choice([None, 0.01, 1])
    some = random.sample(locks, 3)
    try:
        if random.random() < 0.7:
            with semlock.acquire_all(some, timeout=limit):
                hold(0)
        else:
            won = semlock.acquire_any(some, timeout=limit)
            try:
                time.sleep(random.random() * 0.002)
            finally:
                won.release()
    except semlock.LockTimeoutError:
        pass
"""


class Storm:
    """Workers that come and go, until the time is over."""

    def __init__(self, directory, script):
        self.directory = directory
        self.path = os.path.join(directory, "the.lock")
        self.records = tempfile.mkdtemp(dir=os.path.dirname(directory))
        self.script = HEAD + script
        self.killed_at = {}
        self.running = []

    def start(self):
        log = os.path.join(self.records, str(len(self.killed_at) + len(self.running)))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *_own_path()])}
        command = [sys.executable, "-c", self.script, self.path, log]
        process = subprocess.Popen(command, env=env, cwd=tempfile.gettempdir())
        self.running.append((process, log))

    def kill(self, index):
        process, log = self.running.pop(index)
        assert process.poll() is None, f"a worker ended by itself: {process.returncode}"
        self.killed_at[log] = time.monotonic_ns()
        process.kill()
        process.wait()

    def rage(self, seconds):
        end = time.monotonic() + seconds
        for _ in range(WORKERS):
            self.start()
        # Once they are up: a storm over an empty sea shows nothing.
        while not all(os.path.exists(log) and os.path.getsize(log) for _, log in self.running):
            assert time.monotonic() < end + 60, "the workers never came to hold"
            time.sleep(0.01)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(random.random() * 0.05)
            index = random.randrange(WORKERS)
            if random.random() < 0.4:
                self.running[index][0].send_signal(signal.SIGSTOP)
                time.sleep(random.random() * 0.02)
                self.running[index][0].send_signal(signal.SIGCONT)
            else:
                self.kill(index)
                self.start()
        while self.running:
            self.kill(0)

    def holds(self):
        found = []
        for log, killed in self.killed_at.items():
            if os.path.exists(log):
                found += read_holds(log, killed)
        assert len(found) > 50, "none held"
        return found


def _own_path():
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def most_at_once(holds):
    """Say how many held at one time, at most; who leaves in the instant of a coming is gone."""
    events = sorted([(b, 1) for _, b, _ in holds] + [(e, -1) for _, _, e in holds])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def writers_with_company(holds):
    """Count the writers that held while any other did."""
    wrong, last = 0, {0: 0, 1: 0}
    for which, begin, end in sorted(holds, key=lambda hold: hold[1]):
        if begin < last[1] or (which == 1 and begin < last[0]):
            wrong += 1
        last[which] = max(last[which], end)
    return wrong


def left_clean(directory):
    """Clean up after the dead, and say what is left."""
    semlock.clean(directory)
    return os.listdir(directory)


LENGTHS = [
    "short",
    pytest.param("long", marks=[pytest.mark.stress, pytest.mark.timeout(LONG * 3 + 120)]),
]


@pytest.fixture
def place(tmp_path):
    directory = tmp_path / "locks"
    directory.mkdir()
    return str(directory)


@pytest.mark.parametrize("length", LENGTHS)
def test_never_more_than_so_many_hold_a_slot(place, length):
    storm = Storm(place, SLOTS)
    storm.rage(LONG if length == "long" else 0.4)
    most = most_at_once(storm.holds())
    assert most <= 3
    assert most > 1, "they never met"
    lock = semlock.SlotLock(storm.path, 3, timeout=5)
    with lock:
        pass
    assert left_clean(place) == []


@pytest.mark.parametrize("length", LENGTHS)
def test_never_a_reader_beside_a_writer(place, length):
    storm = Storm(place, SHARED)
    storm.rage(LONG if length == "long" else 0.4)
    holds = storm.holds()
    assert writers_with_company(holds) == 0
    assert any(which for which, _, _ in holds), "none wrote"
    assert most_at_once([hold for hold in holds if hold[0] == 0]) > 1, "none shared"
    lock = semlock.SharedLock(storm.path, timeout=5)
    with lock:
        pass
    with lock.shared():
        pass
    assert left_clean(place) == []


@pytest.mark.parametrize("length", LENGTHS)
def test_never_two_who_take_all(place, length):
    """Three of four locks: any two who take them have one in common at least."""
    storm = Storm(place, ALL)
    storm.rage(LONG if length == "long" else 0.4)
    assert most_at_once(storm.holds()) == 1
    with semlock.acquire_all(
        [semlock.Lock(storm.path + str(number)) for number in range(4)], timeout=5
    ):
        pass
    assert left_clean(place) == []
