"""The heartbeat: one thread that keeps all locks of a process fresh and reports their loss.

Nothing here waits for a time to pass.  A beat puts something into a queue, and the tests wait
for that, or for the next beat of another lock when they want to see that nothing came.
"""

import gc
import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

import semlock
from semlock._core.status import GUARD_PATIENCE
from semlock._locks import heartbeat
from support import PATIENCE, Child, content_of, set_time, wait_until

TESTS = str(Path(__file__).resolve().parent.parent)
OFTEN = 0.005


class Watched(semlock.Lock):
    """A lock that tells of each refresh: when it came, and from which thread."""

    __slots__ = ("beats", "troubles")

    def __init__(self, path, **options) -> None:
        super().__init__(path, durability="none", **options)
        self.beats = queue.Queue()
        self.troubles = []

    def _refresh(self, *how, **named):
        if self.troubles:
            trouble = self.troubles.pop()
            self.beats.put(trouble)
            raise trouble
        done = super()._refresh(*how, **named)
        if done:
            self.beats.put(threading.get_ident())
        return done


def await_beats(lock: Watched, count: int) -> list:
    return [lock.beats.get(timeout=PATIENCE) for _ in range(count)]


@pytest.fixture
def new_lock(tmp_path):
    """Make watched locks that are let go of in the end, lost or not."""
    made = []

    def make(name="the.lock", *, heartbeat=OFTEN, **options) -> Watched:
        made.append(Watched(tmp_path / name, heartbeat=heartbeat, **options))
        return made[-1]

    yield make
    for lock in made:
        if lock.held:
            try:
                lock.release()
            except semlock.LockLostError:
                pass


def rounds_pass(new_lock, count: int = 3) -> None:
    """See the heartbeat come round some more times, by the beats of a lock of its own."""
    pacemaker = new_lock(f"pacemaker-{time.monotonic_ns()}")
    with pacemaker:
        await_beats(pacemaker, count)


def heartbeats():
    return {thread for thread in threading.enumerate() if thread.name == "semlock-heartbeat"}


def test_several_locks_are_kept_fresh_by_one_thread(new_lock):
    before = heartbeats()  # of other filesystems and clocks
    locks = [new_lock(f"{number}.lock") for number in range(5)]
    for lock in locks:
        lock.acquire()
    idents = {ident for lock in locks for ident in await_beats(lock, 4)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents
    assert len(heartbeats() - before) <= 1
    for lock in locks:
        lock.check()
        lock.release()


def test_of_threads_that_are_started_at_once_one_runs(tmp_path):
    """A signal's handler, or another thread, acquires a lock while the first thread is started."""
    with Child(_SETUP) as child:
        child.run(f"""
first, second = [Watched({str(tmp_path)!r} + f"/{{n}}", heartbeat=0.002) for n in (1, 2)]
start, threads = threading.Thread.start, []

def start_in_between(thread):
    if not threads:
        threads.append(thread)
        second.acquire()
    else:
        threads.append(thread)
    start(thread)

threading.Thread.start = start_in_between
first.acquire()
threading.Thread.start = start
None
""")
        wait_until(lambda: child.run("sum(t.is_alive() for t in threads)") == 1, "one")
        for lock in ("first", "second"):
            wait_until(lambda lock=lock: child.run(f"len({lock}.beats)") >= 3, "it beats")
        assert child.run("len(threads)") == 2
        child.run("first.release(); second.release()")


def test_a_beat_writes_the_time_into_the_record_and_nothing_else(new_lock, monkeypatch):
    lock = new_lock(tag="kept fresh")
    lock.acquire()
    before = lock.info
    set_time(monkeypatch, lambda: 2_000_000_000.7)
    while not lock.beats.empty():
        lock.beats.get()
    await_beats(lock, 2)
    found = semlock.status(lock.path).info
    assert found.timestamp == lock.info.timestamp == 2_000_000_000
    expected = {**before.as_dict(), "timestamp": 2_000_000_000}
    assert found.as_dict() == expected
    lock.release()


def test_a_lock_without_a_heartbeat_has_none(new_lock):
    lock = new_lock(heartbeat=None)
    lock.acquire()
    rounds_pass(new_lock)
    assert lock.beats.empty()


def test_a_released_lock_is_left_alone_and_beats_again_when_it_is_acquired_again(new_lock):
    lock = new_lock()
    with lock:
        await_beats(lock, 1)
    while not lock.beats.empty():
        lock.beats.get()
    rounds_pass(new_lock)
    assert lock.beats.empty()
    with lock:
        await_beats(lock, 2)


def test_a_loss_is_reported_once_to_on_lost(new_lock):
    losses = queue.Queue()
    lock = new_lock(on_lost=lambda *what: losses.put(what))
    lock.acquire()
    await_beats(lock, 1)
    semlock.remove(lock.path, force=True)
    who, error = losses.get(timeout=PATIENCE)
    assert who is lock
    assert isinstance(error, semlock.LockLostError)
    assert error.path == lock.path
    rounds_pass(new_lock)
    assert losses.empty()
    assert id(lock) not in heartbeat._due
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert not lock.held


def test_a_loss_to_a_successor_leaves_the_successors_lock_alone(new_lock):
    losses = queue.Queue()
    lock = new_lock(on_lost=lambda *what: losses.put(what))
    lock.acquire()
    semlock.remove(lock.path, force=True)
    successor = semlock.Lock(lock.path)
    with successor:
        record = content_of(lock.path)
        losses.get(timeout=PATIENCE)
        rounds_pass(new_lock)
        assert content_of(lock.path) == record
        successor.check()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_in_on_lost_ends_neither_the_heartbeat_nor_the_process(new_lock, error, log):
    other = new_lock("other.lock")
    other.acquire()

    def fail(*_):
        raise error("on purpose")

    lock = new_lock(on_lost=fail)
    lock.acquire()
    semlock.remove(lock.path, force=True)
    record = log.get(timeout=PATIENCE)
    assert "on_lost" in record.getMessage()
    assert lock.path in record.getMessage()
    assert isinstance(record.exc_info[1], error)
    while not other.beats.empty():
        other.beats.get()
    await_beats(other, 3)


@pytest.fixture
def log():
    """What is said to the logger "semlock", in a queue."""
    records = queue.SimpleQueue()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.put(record)

    handler = Handler()
    logger = logging.getLogger("semlock")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_a_loss_that_no_callback_asked_for_is_said_to_the_logger(new_lock, log):
    lock = new_lock()
    lock.acquire()
    semlock.remove(lock.path, force=True)
    record = log.get(timeout=PATIENCE)
    assert record.name == "semlock"
    assert record.levelno == logging.ERROR
    assert lock.path in record.getMessage()
    assert "removed" in record.getMessage()
    rounds_pass(new_lock)
    assert log.empty()


def test_a_beat_that_fails_is_said_and_tried_again(new_lock, log):
    lock = new_lock()
    lock.troubles += [OSError(28, "no space"), RuntimeError("of another kind")]
    lock.acquire()
    kinds = [type(beat) for beat in await_beats(lock, 4)]
    assert kinds == [RuntimeError, OSError, int, int]
    assert isinstance(log.get(timeout=PATIENCE).exc_info[1], RuntimeError)
    record = log.get(timeout=PATIENCE)
    assert isinstance(record.exc_info[1], OSError)
    assert lock.path in record.getMessage()
    lock.check()


@pytest.mark.parametrize("interval", [1e12, float("inf")])
def test_a_beat_that_is_too_far_off_to_wait_for_keeps_no_other_from_coming(new_lock, interval):
    heartbeat._due.clear()
    lock = new_lock("seldom.lock", heartbeat=interval)
    with lock:
        rounds_pass(new_lock)
        wait_until(lambda: len(heartbeat._due) == 1, "the thread has only this to wait for")
        rounds_pass(new_lock)
    assert lock.beats.empty()


def test_a_process_that_keeps_one_locks_guard_holds_up_no_other_beat(new_lock):
    fcntl = pytest.importorskip("fcntl")
    stuck, other = new_lock("stuck.lock"), new_lock("other.lock")
    stuck.acquire()
    other.acquire()
    await_beats(stuck, 1)
    with open(stuck.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        while not other.beats.empty():
            other.beats.get()
        begin = time.monotonic()
        await_beats(other, 5)
        assert time.monotonic() - begin < GUARD_PATIENCE
        while not stuck.beats.empty():
            stuck.beats.get()
    # And when they have gone it is refreshed as before.
    await_beats(stuck, 2)


def test_after_a_long_sleep_of_the_machine_each_lock_is_refreshed_once(new_lock, monkeypatch):
    ahead = [0.0]
    monkeypatch.setattr(heartbeat, "monotonic", lambda: time.monotonic() + ahead[0])
    # It beats often, so the thread looks at the clock often, as it does when it wakes.
    pacemaker = new_lock("pacemaker.lock")
    pacemaker.acquire()
    locks = [new_lock(f"{number}.lock", heartbeat=1000) for number in range(3)]
    for lock in locks:
        lock.acquire()
    await_beats(pacemaker, 3)
    assert all(lock.beats.empty() for lock in locks)
    for jump in (1_000_000, 1001):
        # The next one is due an interval after the waking, and not at once.
        ahead[0] += jump
        for lock in locks:
            await_beats(lock, 1)
        while not pacemaker.beats.empty():
            pacemaker.beats.get()
        await_beats(pacemaker, 3)
        assert all(lock.beats.empty() for lock in locks)
    # The clock of this test goes away; what is due by it must not outlive it.
    pacemaker.release()
    for lock in locks:
        lock.release()
    heartbeat._due.clear()


_SETUP = f"""
import os, queue, sys, threading, time
import semlock
from semlock._locks import heartbeat
sys.path.insert(0, {TESTS!r})
import support

class Watched(semlock.Lock):
    __slots__ = ("beats",)

    def __init__(self, path, **options):
        super().__init__(path, durability="none", **options)
        self.beats = []

    def _refresh(self, *how, **named):
        done = super()._refresh(*how, **named)
        if done:
            self.beats.append(time.monotonic())
        return done
"""


def test_a_process_that_was_stopped_goes_on_with_one_beat_and_no_burst(tmp_path):
    path = str(tmp_path / "the.lock")
    interval = 0.02
    with Child(_SETUP) as child:
        child.run(f"lock = Watched({path!r}, heartbeat={interval}); lock.acquire(); None")
        wait_until(lambda: child.run("len(lock.beats)") >= 2, "it beats")
        child.stop()
        stopped = time.monotonic()
        # The one wait for a time: that many intervals must really pass.
        time.sleep(20 * interval)
        resumed = time.monotonic()
        child.resume()
        before = child.run("len(lock.beats)")
        wait_until(lambda: child.run("len(lock.beats)") >= before + 3, "it beats again")
        beats = child.run("lock.beats")
        child.run("lock.check(); lock.release()")
    gaps = [later - earlier for earlier, later in itertools.pairwise(beats)]
    assert max(gaps) >= resumed - stopped
    assert min(gaps) >= interval * 0.9


def test_an_object_that_is_dropped_after_its_release_is_not_kept_alive(tmp_path):
    lock = Watched(tmp_path / "the.lock", heartbeat=3600)
    with lock:
        assert id(lock) in heartbeat._due
    gone = weakref.ref(lock)
    del lock
    gc.collect()
    wait_until(lambda: gone() is None, "the object is gone")


def test_a_dropped_object_is_no_trouble_to_the_heartbeat(tmp_path, new_lock, log):
    for number in range(20):
        lock = Watched(tmp_path / f"{number}.lock", heartbeat=OFTEN)
        lock.acquire()
        lock.release()
        del lock
    rounds_pass(new_lock, 5)
    assert log.empty()
    entries = list(heartbeat._due.values())
    assert not [at for at, interval, dead, _ in entries if interval == OFTEN and dead() is None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_no_heartbeat_of_its_parents_locks_and_can_have_its_own(tmp_path):
    path = str(tmp_path / "the.lock")
    with Child(_SETUP, options=("-W", "ignore::DeprecationWarning")) as parent:
        parent.run(f"""
lock = Watched({path!r}, heartbeat=0.002)
lock.acquire()

def look():
    seen = dict(due=len(heartbeat._due), lanes=len(heartbeat._lanes), held=lock.held)
    seen["threads"] = [thread.name for thread in threading.enumerate()]
    beats = len(lock.beats)
    own = Watched(f"{{lock.path}}-{{os.getpid()}}", heartbeat=0.002)
    with own:
        support.wait_until(lambda: len(own.beats) >= 3, "the child's own lock beats")
    seen["theirs"] = len(lock.beats) - beats
    return seen
""")
        wait_until(lambda: parent.run("len(lock.beats)") >= 2, "it beats")
        # Many times, for the fork to come in the middle of a beat as well.
        for _ in range(30):
            seen = parent.run("support.in_a_fork(look)")
            assert seen == {
                "due": 0, "lanes": 0, "held": False, "threads": ["MainThread"], "theirs": 0,
            }  # fmt: skip
        count = parent.run("len(lock.beats)")
        wait_until(lambda: parent.run("len(lock.beats)") > count, "the parent's goes on")
        parent.run("lock.check(); lock.release()")
    semlock.clean(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "end", ["", "os.kill(os.getpid(), 15)", "sys.exit(2)", "lock.release()"]
)
def test_a_process_with_a_heartbeat_ends_as_it_would_without_one(tmp_path, end):
    path = str(tmp_path / "the.lock")
    with Child(_SETUP) as child:
        child.run(f"lock = Watched({path!r}, heartbeat=0.001); lock.acquire(); None")
        wait_until(lambda: child.run("len(lock.beats)") >= 2, "it beats")
        child.run(f"import atexit; atexit.register(lambda: ({end or 'None'})); None")
        code = child.finish()
    # Where there are no signals, the number is the exit code.
    killed = signal.SIGTERM if sys.platform == "win32" else -signal.SIGTERM
    assert code == (killed if "kill" in end else 0)
    if "kill" in end:
        with semlock.Lock(path, timeout=1):
            pass
    else:
        assert os.listdir(tmp_path) == []
