"""``KernelLock`` and other programs that lock a file by ``flock(2)``, in both directions."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest

import oldest_filelock
import semlock
from support import Child

fcntl = pytest.importorskip("fcntl", reason="the peers call flock(2)")

# For each peer: how it takes the lock (``path`` is there), tries it, and gives it up.
PEERS = {
    "filelock": (
        "import filelock; lock = filelock.FileLock(path)",
        "got = lock.acquire(timeout=30)",
        "got = lock.acquire(blocking=False)",
        "lock.release()",
    ),
    f"filelock {oldest_filelock.VERSION}": (
        "import filelock; lock = filelock.FileLock(path)",
        "got = lock.acquire(timeout=30)",
        "got = lock.acquire(timeout=0)",
        "lock.release()",
    ),
    "portalocker": (
        "import portalocker; lock = portalocker.Lock(path, timeout=30, check_interval=0.01)",
        "got = lock.acquire()",
        "got = portalocker.Lock(path, timeout=0, fail_when_locked=True).acquire()",
        "lock.release()",
    ),
    "flock(2)": (
        "import fcntl, os; fd = os.open(path, os.O_RDWR | os.O_CREAT)",
        "fcntl.flock(fd, fcntl.LOCK_EX)",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "os.close(fd)",
    ),
}


# What the peers say of a lock that is held.
HELD = r"could not be acquired|Timeout\(\)|AlreadyLocked|temporarily unavailable"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the.lock")


@pytest.fixture(params=PEERS)
def peer(request, path):
    env = {}
    if request.param.endswith(oldest_filelock.VERSION):
        env["PYTHONPATH"] = oldest_filelock.directory()
    else:
        pytest.importorskip("semlock" if "(" in request.param else request.param)
    with Child(env=env) as child:
        child.run(f"path = {path!r}\n{PEERS[request.param][0]}")
        child.takes, child.tries, child.ends = PEERS[request.param][1:]
        yield child


@pytest.mark.parametrize("end", ["release", "kill"])
def test_a_peer_is_waited_for_and_its_end_wakes(peer, path, end):
    lock = semlock.KernelLock(path)
    peer.run(peer.takes)
    assert not lock.try_acquire()
    assert lock.status().info.pid == peer.pid
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=0.02)
    thread = threading.Thread(target=lock.acquire, args=(30,))
    thread.start()
    if end == "kill":
        peer.kill()
    else:
        peer.run(peer.ends)
    thread.join()
    lock.release()
    assert lock.try_acquire()
    lock.release()


def test_a_peer_is_kept_out_and_comes_after_the_release(peer, path):
    lock = semlock.KernelLock(path)
    with lock, pytest.raises(Exception, match=HELD):
        peer.run(peer.tries)
    peer.run(peer.takes)
    assert not lock.try_acquire()


def test_a_peer_comes_after_a_kill(peer, path):
    with Child() as holder:
        holder.run(f"lock = semlock.KernelLock({path!r}); got = lock.acquire()")
        with pytest.raises(Exception, match=HELD):
            peer.run(peer.tries)
        holder.kill()
    peer.run(peer.takes)


def test_what_locks_by_fcntl_is_another_world(path):
    """As the documentation says of fasteners: neither excludes the other on Linux."""
    fasteners = pytest.importorskip("fasteners")
    other = fasteners.InterProcessLock(path)
    with semlock.KernelLock(path) as lock:
        if sys.platform.startswith("linux"):
            assert other.acquire(blocking=False)
            other.release()
        lock.check()


# Each worker takes the lock again and again; inside it takes a record lock of a second file, which
# no other can have then, and which ends with its process.
WORKER = """
import fcntl, os, random, sys, time
path, judge, kind = sys.argv[1:]
fd = os.open(judge, os.O_RDWR | os.O_CREAT)
def inside():
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    time.sleep(random.random() * 0.002)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    os.write(1, b".")
if kind == "filelock":
    import filelock
    lock = filelock.FileLock(path, poll_interval=0.001)
elif kind == "semlock":
    import semlock
    lock = semlock.KernelLock(path)
else:
    import subprocess
    class lock:
        def __enter__(self):
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        def __exit__(self, *_):
            os.close(self.fd)
    lock = lock()
while True:
    with lock:
        inside()
"""


@pytest.mark.stress
def test_no_two_are_inside_in_a_storm_with_kills(path, tmp_path):
    seconds = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "10"))
    kinds = ["semlock", "semlock", "filelock", "flock"]
    running: dict[int, tuple[str, subprocess.Popen]] = {}
    turns = dict.fromkeys(kinds, 0)
    failures = []

    def start(place):
        with (tmp_path / f"{place}-{time.monotonic_ns()}").open("wb") as turns_made:
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, path, str(tmp_path / "judge"), kinds[place]],
                stdout=turns_made,
                stderr=subprocess.PIPE,
            )
        running[place] = kinds[place], worker

    for place in range(len(kinds)):
        start(place)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(random.random() * 0.5)
        place = random.randrange(len(kinds))
        worker = running[place][1]
        if worker.poll() is not None:
            failures.append(worker.stderr.read())
        worker.kill()
        worker.communicate()
        start(place)
    for _, worker in running.values():
        if worker.poll() is not None:
            failures.append(worker.stderr.read())
        worker.kill()
        worker.communicate()
    for file in tmp_path.glob("?-*"):
        turns[kinds[int(file.name[0])]] += file.stat().st_size
    assert failures == []
    assert all(count > 0 for count in turns.values()), turns
    with semlock.KernelLock(path, timeout=30):
        pass
    semlock.clean(tmp_path)  # the tickets of killed waiters


@pytest.mark.skipif(shutil.which("flock") is None, reason="there is no flock(1) here")
def test_a_command_under_flock_is_waited_for(path):
    with subprocess.Popen(["flock", path, "cat"], stdin=subprocess.PIPE) as holder:
        lock = semlock.KernelLock(path)
        while lock.try_acquire():
            lock.release()
            time.sleep(0.01)
        holder.stdin.close()
        with lock.acquire(timeout=30):
            pass
