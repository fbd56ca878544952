"""Two clients of one server: locks that another machine holds, wants, lets go and leaves behind.

They need directories that are mounted twice: SEMLOCK_MOUNTED names them, and
SEMLOCK_OTHER_CLIENT is a command that runs another one where the second client mounted them at
the same places, under another boot identifier.  ``.ci/network-mounts`` makes both.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import semlock
from support import PATIENCE, Child

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import mounts  # noqa: E402

sys.path.remove(str(HERE))

pytestmark = [
    pytest.mark.skipif(
        not (mounts.MOUNTED and mounts.OTHER_CLIENT), reason="nothing is mounted twice"
    ),
    pytest.mark.parametrize("kind", mounts.MOUNTED or ["none"]),
]

LONG = PATIENCE * mounts.PATIENCE

# How long a client may believe what it was told before: NFS asks again after three seconds at
# least and a minute at most, if nothing makes it ask.
CACHED = 5 * mounts.PATIENCE

SETUP = """
import os, time
import semlock
from semlock import sidecar

def make(path, kind="Lock"):
    global lock
    if kind == "Lock":
        lock = semlock.Lock(path, durability="none")
    else:
        lock = sidecar.SidecarLock(path, durability="none")

def race(path, start):
    make(path)
    while time.monotonic() < start:
        pass
    return lock.try_acquire()

def wait_for_it(patience):
    lock.acquire(timeout=patience)
    return time.monotonic()

def is_refused(timeout):
    try:
        lock.acquire(timeout=timeout)
    except semlock.LockTimeoutError:
        return True
    return False

def is_lost(call):
    try:
        call()
    except semlock.LockLostError:
        return True
    return False

def hold_often(path, kind, inside, times, patience):
    make(path, kind)
    others = 0
    for _ in range(times):
        lock.acquire(timeout=patience)
        try:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            others += 1
        else:
            os.unlink(inside)
        lock.release()
    return others
"""


@pytest.fixture
def place(kind, request):
    made = os.path.join(mounts.MOUNTED[kind], f"{os.getpid()}-{request.node.name}")
    os.mkdir(made)
    return made


@pytest.fixture
def client():
    """Start processes: here, or on the other client."""
    children = []

    def client(*, there: bool = False) -> Child:
        children.append(Child(wrapper=mounts.OTHER_CLIENT if there else ()))
        children[-1].run(SETUP, LONG)
        return children[-1]

    yield client
    for child in children:
        child.close()


def test_one_of_two_clients_wins_each_race(place, client):
    racers = [client(), client(there=True)]
    winners = []
    for number in range(30):
        path = f"{place}/{number}.lock"
        start = time.monotonic() + 0.05 * mounts.PATIENCE
        for racer in racers:
            racer.send(f"race({path!r}, {start})")
        winners.append([racer.receive(LONG) for racer in racers])
    assert [sum(pair) for pair in winners] == [1] * len(winners)


each_lock = pytest.mark.parametrize("lock", ["Lock", "SidecarLock"])


@each_lock
def test_one_at_most_of_two_clients_is_inside(place, client, lock, tmp_path):
    workers = [client(there=there) for there in (False, True) * 2]
    for worker in workers:
        worker.send(
            f"hold_often({place + '/the.lock'!r}, {lock!r}, {str(tmp_path / 'inside')!r}, 15, "
            f"{LONG})"
        )
    assert [worker.receive(8 * LONG) for worker in workers] == [0] * len(workers)
    assert not [name for name in os.listdir(place) if name.endswith(".lock")]


@each_lock
def test_who_waits_sees_a_release_on_the_other_client(place, client, lock):
    here, there = client(), client(there=True)
    for child in (here, there):
        child.run(f"make({place + '/the.lock'!r}, {lock!r})", LONG)
    took = []
    for holder, waiter in ((here, there), (there, here)) * 2:
        holder.run("lock.acquire(); None", LONG)
        waiter.send(f"wait_for_it({LONG})")
        assert not waiter.answered(1.0 * mounts.PATIENCE), "it got a lock that is held"
        ended = time.monotonic()
        holder.run("lock.release(); None", LONG)
        took.append(waiter.receive(4 * LONG) - ended)
        waiter.run("lock.check(); lock.release(); None", LONG)
    print([f"{one:.2f}" for one in took])
    assert max(took) < CACHED


def test_a_holder_on_the_other_client_is_unknown_and_never_robbed(place, client):
    path = place + "/the.lock"
    here, there = client(), client(there=True)
    for child in (here, there):
        child.run(f"make({path!r})", LONG)
    there.run("lock.acquire(); None", LONG)
    assert semlock.status(path).verdict == "unknown"
    assert here.run("is_refused(0.5)", LONG)
    there.kill()
    assert semlock.status(path).verdict == "unknown"
    assert here.run("is_refused(0.5)", LONG)
    # Its own machine knows better.
    heir = client(there=True)
    heir.run(f"make({path!r})", LONG)
    assert heir.run(f"semlock.status({path!r}).verdict", LONG) == "dead"
    heir.run("lock.acquire(timeout=5); lock.release()", LONG)
    here.run(f"wait_for_it({LONG})", LONG)


def test_who_was_robbed_by_the_other_client_takes_nothing_from_it(place, client):
    path = place + "/the.lock"
    here, there = client(), client(there=True)
    for child in (here, there):
        child.run(f"make({path!r})", LONG)
    here.run("lock.acquire(); lock.check()", LONG)
    there.run(f"semlock.remove({path!r}, force=True); lock.acquire(timeout=5); None", LONG)
    assert here.run("is_lost(lock.release)", LONG)
    there.run("lock.check(); lock.release()", LONG)


def test_a_removal_by_the_other_client_is_noticed(place, client):
    path = place + "/the.lock"
    here, there = client(), client(there=True)
    for child in (here, there):
        child.run(f"make({path!r})", LONG)
    here.run("lock.acquire(); lock.check()", LONG)
    there.run(f"semlock.remove({path!r}, force=True); None", LONG)
    end = time.monotonic() + CACHED
    while not here.run("is_lost(lock.check)", LONG):
        assert time.monotonic() < end, "it still believes to hold"
