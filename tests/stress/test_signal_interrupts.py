"""Storms of real signals: a lock is held or free after each, and nothing else."""

import os
import signal
import sys
from pathlib import Path

import pytest

import semlock
import semlock.policy
from semlock._core import inside
from support import Child

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)

# The storms run in a process of their own: pytest's time limit uses the same timer.
_STORM = """
import os, random, signal, sys, threading, time
import semlock

sys.path.insert(0, {tests!r})
import support

class Bolt(BaseException):
    pass

def strike(number, frame):
    raise Bolt

path = {path!r}
directory = os.path.dirname(path)
dice = random.Random({seed})
lock = semlock.Lock(path, durability="none", reentrant={reentrant})
counts = dict(struck=0, held=0, free=0)

def cycle():
    with lock:
        if {reentrant}:
            with lock.acquire():
                lock.check()
        lock.refresh()

def judge():
    assert lock.held == os.path.exists(path), (lock.held, os.listdir(directory))
    counts["held" if lock.held else "free"] += 1
    for _ in range(3):
        if lock.held:
            lock.check()
            lock.release()
    assert not lock.held
    assert not os.path.exists(path)
"""

_ALARMS = """
signal.signal(signal.SIGALRM, strike)
for _ in range({rounds}):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(2e-5, 4e-4))
        while True:
            cycle()
    except Bolt:
        counts["struck"] += 1
    judge()
"""

# The interrupts come from another thread, as they come from a terminal: at any instant, and
# only when the last one has been dealt with.
_INTERRUPTS = """
signal.signal(signal.SIGINT, strike)
ready, over = threading.Event(), False

def send():
    while ready.wait() and not over:
        ready.clear()
        end = time.perf_counter() + dice.uniform(0, 4e-4)
        while time.perf_counter() < end:
            pass
        os.kill(os.getpid(), signal.SIGINT)

sender = threading.Thread(target=send)
sender.start()
for _ in range({rounds}):
    try:
        ready.set()
        while True:
            cycle()
    except Bolt:
        counts["struck"] += 1
    judge()
over = True
ready.set()
sender.join()
"""

_END = """
semlock.clean(directory)
counts, support.files_open_in(directory) + os.listdir(directory)
"""


needs_timers = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="there are no signals by the clock"
)


@needs_timers
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", [_ALARMS, _INTERRUPTS], ids=["alarms", "interrupts"])
def test_a_storm_of_signals_leaves_the_lock_held_or_free_and_nothing_else(
    tmp_path, way, reentrant
):
    rounds = 600
    values = {
        "tests": str(Path(__file__).resolve().parent.parent),
        "path": str(tmp_path / "the.lock"),
        "seed": 1,
        "reentrant": reentrant,
        "rounds": rounds,
    }
    with Child() as child:
        child.run(_STORM.format(**values))
        child.run(way.format(**values))
        counts, left = child.run(_END.format(**values))
    assert counts["struck"] == rounds
    assert left == []


@needs_timers
def test_a_signal_ends_a_wait_at_once_and_leaves_nothing(tmp_path):
    path = str(tmp_path / "the.lock")
    with semlock.Lock(path), Child() as child:
        child.run(f"""
import signal
class Bolt(BaseException):
    pass
def strike(number, frame):
    raise Bolt
signal.signal(signal.SIGALRM, strike)
signal.signal(signal.SIGINT, strike)
lock = semlock.Lock({path!r})
def wait(number, timer):
    if timer:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        lock.acquire()
    except Bolt:
        return lock.held
""")
        assert child.run("wait(signal.SIGALRM, True)") is False
        child.send("wait(signal.SIGINT, False)")
        while not child.answered(0.01):
            # It may not yet be waiting; then it is struck where it is, and says the same.
            child.process.send_signal(2)
            if child.answered(0.5):
                break
        assert child.receive() is False
        assert os.listdir(tmp_path) == ["the.lock"]
        assert child.run("lock.try_acquire()") is False


@needs_timers
@pytest.mark.leaves("queue")  # the child ends with the lock, and with its ticket
def test_a_handler_that_returns_does_not_end_a_wait(tmp_path):
    path = str(tmp_path / "the.lock")
    with Child() as child:
        with semlock.Lock(path):
            child.run(f"""
import signal
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
lock = semlock.Lock({path!r})
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
""")
            child.send(
                "lock.acquire(timeout=60); signal.setitimer(signal.ITIMER_REAL, 0); len(ticks)"
            )
            assert not child.answered(0.1)
        assert child.receive() > 0
        assert child.run("lock.held")


def test_a_function_that_is_compiled_to_machine_code_stays_as_it_is():
    """Nuitka and Cython compile whole programs; the code of such a function can't be replaced."""
    assert inside.unstruck(len) is len
