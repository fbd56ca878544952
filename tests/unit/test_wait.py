"""What a waiter hears of, how long it waits, and what it leaves.

Its regular look for itself is put off for an hour, so that whatever wakes it is news.
"""

import gc
import glob
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import semlock
from semlock._core import capi
from support import PATIENCE, Child, files_open_in, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="it is about what Linux tells"
)

# Locks as other programs hold them: made in one go, kept between acquisitions, or in place.
FORMS = {
    "fresh": "lock = semlock.Lock({path!r}); lock.acquire(); None",
    "kept": "lock = semlock.Lock({path!r})\nfor _ in range(3): lock.acquire(); lock.release()\n"
    "lock.acquire(); None",
    "in place": "import support; lock = support.InPlaceLock({path!r}); lock.acquire(); None",
}
SETUP = (
    f"import os, sys, semlock, time\nsys.path.insert(0, {os.path.dirname(__file__)!r} + '/..')"
)


@pytest.fixture(autouse=True)
def only_news(monkeypatch):
    monkeypatch.setattr("semlock._waiting.waiter._SAFETY", 3600.0)
    monkeypatch.setattr(semlock._core.capi.POOL, "safety", 3600 * 10**9)


@pytest.fixture
def holder(path):
    with Child(SETUP) as it:
        yield it


def tickets(path):
    """List the tickets of those who wait."""
    name = "[0-9a-f]" * 16
    return glob.glob(os.path.join(os.path.dirname(path), ".semlock-*.queue", name))


def side_files(path):
    """List what is beside the lock."""
    return sorted({*os.listdir(os.path.dirname(path))} - {os.path.basename(path)})


def sleeping(path, count=1):
    """Wait until so many wait for the lock, and are as good as asleep."""
    wait_until(lambda: len(tickets(path)) >= count, f"{count} wait")


class Meanwhile:
    """Do something in another thread once another waits for the lock."""

    def __init__(self, path, action):
        self.error = None
        self._path = path
        self._action = action
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            sleeping(self._path)
            self._action()
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(PATIENCE)
        if self.error is not None:
            raise self.error


def takes(path, action, **options):
    """Wait for a held lock until the action lets it go."""
    lock = semlock.Lock(path, **options)
    with Meanwhile(path, action):
        lock.acquire(timeout=PATIENCE)
    lock.check()
    lock.release()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", ["release", "kill", "remove", "move"])
def test_a_waiter_hears_that_the_lock_is_free(path, holder, form, end):
    holder.run(FORMS[form].format(path=path))
    ends = {
        "release": lambda: holder.run("lock.release()"),
        "kill": holder.kill,
        "remove": lambda: os.unlink(path),
        "move": lambda: os.rename(path, f"{path}.away"),
    }
    begin = time.monotonic()
    takes(path, ends[end])
    assert time.monotonic() - begin < PATIENCE / 2


def test_a_waiter_hears_of_the_end_of_the_next_holder_too(path, holder):
    with Child(SETUP) as next_holder:
        holder.run(FORMS["fresh"].format(path=path))

        def change_hands():
            next_holder.run(f"new = semlock.Lock({path!r} + '.new'); new.acquire(); None")
            os.rename(f"{path}.new", path)
            next_holder.kill()

        begin = time.monotonic()
        takes(path, change_hands)
        assert time.monotonic() - begin < PATIENCE / 2


def test_a_waiter_hears_of_the_death_of_an_owner_that_keeps_no_file_open(path):
    owner = subprocess.Popen(["sleep", "1000"])
    try:
        left = [sys.executable, "-m", "semlock", "try", path, "--owner-pid", str(owner.pid)]
        subprocess.run(left, check=True, cwd=os.path.dirname(path))

        def die():
            owner.kill()
            owner.wait()

        begin = time.monotonic()
        takes(path, die)
        assert time.monotonic() - begin < PATIENCE / 2
    finally:
        owner.kill()
        owner.wait()


def test_a_foreign_file_that_goes_is_heard_of(path):
    with open(path, "x", encoding="ascii") as file:
        file.write("another process's\n")
    begin = time.monotonic()
    takes(path, lambda: os.unlink(path))
    assert time.monotonic() - begin < PATIENCE / 2


@pytest.mark.parametrize("timeout", [0.001, 0.05, 0.3])
def test_a_wait_lasts_as_long_as_it_was_given(path, holder, timeout):
    holder.run(FORMS["fresh"].format(path=path))
    lock = semlock.Lock(path)
    begin = time.monotonic()
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=timeout)
    waited = time.monotonic() - begin
    assert timeout <= waited < timeout + PATIENCE / 2
    assert side_files(path) == []


def test_a_waiter_behind_another_is_in_time_as_well(path, holder):
    holder.run(FORMS["fresh"].format(path=path))
    with Child(SETUP) as first:
        first.send(f"lock = semlock.Lock({path!r}); lock.acquire(); lock.release()")
        sleeping(path)
        lock = semlock.Lock(path)
        begin = time.monotonic()
        with pytest.raises(semlock.LockTimeoutError):
            lock.acquire(timeout=0.05)
        assert 0.05 <= time.monotonic() - begin < PATIENCE / 2
        holder.run("lock.release()")
        first.receive()
    assert side_files(path) == []


def test_changes_of_the_file_that_free_nothing_neither_end_a_wait_nor_prolong_it(path, holder):
    holder.run(FORMS["fresh"].format(path=path))
    lock = semlock.Lock(path)
    over = threading.Event()

    def disturb():
        while not over.is_set():
            os.utime(path)

    thread = threading.Thread(target=disturb)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=0.2)
    assert time.monotonic() - begin < PATIENCE / 2
    over.set()
    thread.join()


def switches(pid):
    """Count how often a process has slept."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as status:
            total += sum(int(line.split()[1]) for line in status if "voluntary" in line[:9])
    return total


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_waiter_does_nothing_but_wait(path, holder, place):
    holder.run(FORMS["fresh"].format(path=path))
    waiters = [Child(SETUP) for _ in range(place)]
    try:
        for number, waiter in enumerate(waiters, 1):
            waiter.send(f"lock = semlock.Lock({path!r}); lock.acquire(); lock.release()")
            sleeping(path, number)
        last = waiters[-1].outer_pid
        # For some milliseconds it looks again, in case it came too late to hear something.
        wait_until(lambda: _is_quiet(last), "it is quiet")
        before = switches(last)
        time.sleep(1.0)
        # Each second it looks for itself, and the second in line after the first ten times.
        assert switches(last) - before <= (30 if place == 2 else 8)
        holder.run("lock.release()")
        for waiter in waiters:
            waiter.receive()
    finally:
        for waiter in waiters:
            waiter.close()
    assert side_files(path) == []


def _is_quiet(pid):
    before = switches(pid)
    time.sleep(0.06)
    return switches(pid) - before <= 1


# ---------------------------------------------------------------- signals


@pytest.fixture
def alarm():
    """Have a signal come soon, again and again."""
    before = signal.getsignal(signal.SIGALRM)

    def start(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.02)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_is_handled_during_a_wait_which_then_goes_on(path, holder, alarm):
    holder.run(FORMS["fresh"].format(path=path))
    seen = []

    def handle(number, frame):
        seen.append(number)
        if len(seen) == 5:
            # It is let go only because the handler runs, and it runs because the wait lets it.
            signal.setitimer(signal.ITIMER_REAL, 0)
            holder.run("lock.release()")

    alarm(handle)
    lock = semlock.Lock(path)
    begin = time.monotonic()
    lock.acquire(timeout=PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2
    assert len(seen) == 5
    lock.release()
    assert side_files(path) == []


@pytest.mark.parametrize("place", [1, 2])
def test_ctrl_c_ends_a_wait_and_leaves_nothing_of_it(path, holder, alarm, place):
    holder.run(FORMS["fresh"].format(path=path))
    directory = os.path.dirname(path)

    def interrupt(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    with Child(SETUP) as first:
        if place == 2:
            first.send(f"lock = semlock.Lock({path!r}); lock.acquire(); lock.release()")
            sleeping(path)
        lock = semlock.Lock(path)
        gc.collect()  # the event loops of other tests
        others = events_open() - kept_events()
        for _ in range(3):
            alarm(interrupt)
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
            assert lock.held is False
            assert len(tickets(path)) == place - 1
            # Its descriptors: none of a ticket, and of sources of events one for the next wait.
            assert files_open_in(directory) == []
            # Where garbage is collected late, the loops of other tests may still have some.
            if sys.implementation.name == "cpython":
                assert events_open() - kept_events() == others
        holder.run("lock.release()")
        if place == 2:
            first.receive()
    assert side_files(path) == []
    lock.acquire(timeout=PATIENCE)
    lock.release()


def events_open(pid="self"):
    """Count the sources of events that a process has open."""
    count = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += "inotify" in os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
    return count


def kept_events():
    return sum(kept > 0 for kept in semlock._core.capi.POOL.idle_events)


def test_no_event_source_is_closed_between_a_wake_and_the_release(path):
    """That takes the kernel up to 20 ms; all other threads would wait so much longer."""
    gc.collect()
    others = events_open() - kept_events()
    count, over, sources = capi.lib.SEMLOCK_IDLE_EVENTS + 2, threading.Semaphore(), []

    def use():
        with semlock.Lock(path):
            over.acquire(timeout=PATIENCE)  # the release before has done all its work
            sources.append(events_open() - others)
        over.release()

    with semlock.Lock(path):
        threads = [threading.Thread(target=use) for _ in range(count)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(tickets(path)) == count, "all wait")
    for thread in threads:
        thread.join(PATIENCE)
    # Those of the last two are closed by their releases.
    assert sources == [count] * (count - 1) + [count - 1]
    assert events_open() - others == count - 2


# ---------------------------------------------------------------- fork and exec

_FORK = """
import threading
sys.path.insert(0, {tests!r})
import support
lock = semlock.Lock({path!r})
thread = threading.Thread(target=lambda: (lock.acquire(), lock.release()))
thread.start()

def look():
    events = [n for n in os.listdir("/proc/self/fd") if "inotify" in _target(n)]
    return support.files_open_in({directory!r}), events

def _target(number):
    try:
        return os.readlink(f"/proc/self/fd/{{number}}")
    except OSError:
        return ""
"""


def test_a_child_that_is_forked_while_another_thread_waits_has_nothing_of_the_wait(
    path, holder
):
    holder.run(FORMS["fresh"].format(path=path))
    directory = os.path.dirname(path)
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with Child(SETUP, options=("-W", "ignore::DeprecationWarning")) as parent:
        parent.run(_FORK.format(path=path, directory=directory, tests=tests))
        sleeping(path)
        assert parent.run("support.in_a_fork(look)") == ([], [])
        # It goes on waiting, and its ticket is still its own when the child is gone.
        assert len(tickets(path)) == 1
        # A child that lives on keeps no place: its parent's death ends that.
        orphan = parent.run("pid = os.fork()\nif pid == 0:\n    time.sleep(1000)\npid")
        try:
            parent.kill()
            second = semlock.Lock(path)
            with Meanwhile(path, lambda: holder.run("lock.release()")):
                second.acquire(timeout=PATIENCE / 2)
            second.release()
        finally:
            os.kill(orphan, signal.SIGKILL)
    # If the lock was free before a waiter stood behind the dead parent, its ticket is left.
    semlock.clean(os.path.dirname(path))
    assert side_files(path) == []


def test_a_program_that_is_started_while_another_thread_waits_inherits_nothing(path, holder):
    holder.run(FORMS["fresh"].format(path=path))
    lock = semlock.Lock(path)
    seen = []

    def start():
        heir = subprocess.Popen(["sleep", "1000"], close_fds=False)
        try:
            for number in os.listdir(f"/proc/{heir.pid}/fd"):
                seen.append(os.readlink(f"/proc/{heir.pid}/fd/{number}"))
        finally:
            heir.kill()
            heir.wait()
        holder.run("lock.release()")

    with Meanwhile(path, start):
        lock.acquire(timeout=PATIENCE)
    lock.release()
    assert seen
    assert not [name for name in seen if "inotify" in name or os.path.dirname(path) in name]


def test_a_handler_that_forks_leaves_both_of_them_waiting(path, holder, alarm):
    holder.run(FORMS["fresh"].format(path=path))
    reader, writer = os.pipe()
    children = []

    def fork(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        children.append(os.fork())
        if children[-1] != 0:
            holder.run("lock.release()")

    alarm(fork)
    lock = semlock.Lock(path)
    try:
        lock.acquire(timeout=PATIENCE)
        lock.check()
    finally:
        if children and children[0] == 0:
            os.write(writer, b"1" if lock.held else b"0")
            if lock.held:
                lock.release()
            os._exit(0)
    lock.release()
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.waitpid(children[0], 0)
    semlock.clean(os.path.dirname(path))
    assert os.listdir(os.path.dirname(path)) == []
