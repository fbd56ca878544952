"""A space in a directory that two clients of one server mount, as ``test_clients.py`` has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from semlock._engines.directory_facts import mount_of
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
TTL = 1.0 * mounts.PATIENCE
# In place of NFS' minute, so that the tests end.  A watcher that saw an old state for longer would
# take a lock from a holder that renews it, which the tests would find.
SLACK = 0.5 * mounts.PATIENCE

SETUP = """
import os, time
import semlock
from semlock._engines.engine import now

def connect(url, ttl, slack):
    global space, lock, told
    space = semlock.connect(url, ttl=ttl)
    space.client.engine._others._slack = slack
    told = []
    lock = space.Lock("the lock", on_lost=lambda *_: told.append(now()))

def take(patience):
    lock.acquire(timeout=patience)
    return now(), lock.fence

def until():
    at = now()
    return at + lock.left()

def is_refused(timeout):
    try:
        lock.acquire(timeout=timeout)
    except semlock.LockTimeoutError:
        return True
    return False

def is_lost():
    try:
        lock.release()
    except semlock.LockLostError:
        return True
    return False

def hold_often(inside, fences, times, patience):
    others = 0
    for _ in range(times):
        lock.acquire(timeout=patience)
        try:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            others += 1
        else:
            fd = os.open(fences, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, b"%d " % lock.fence)
            os.close(fd)
            os.unlink(inside)
        lock.release()
    return others
"""


@pytest.fixture
def client(kind):
    """Start processes that are connected to one space: here, or on the other client."""
    place = tempfile.mkdtemp(dir=mounts.MOUNTED[kind])
    children = []

    def client(*, there: bool = False) -> Child:
        children.append(Child(wrapper=mounts.OTHER_CLIENT if there else ()))
        children[-1].run(SETUP, LONG)
        children[-1].run(f"connect({'file://' + place!r}, {TTL}, {SLACK})", LONG)
        return children[-1]

    yield client
    for child in children:
        child.close()


def test_the_mount_is_known_as_a_file_servers(kind, client):
    mount = mount_of(mounts.MOUNTED[kind])
    assert mount.kind in ("nfs", "nfs4", "cifs", "smb3")
    assert (mount.local, mount.slack >= 1) == (False, True)


def test_one_at_a_time_and_fences_that_grow(client, tmp_path):
    workers = [client(there=there) for there in (False, True) * 2]
    inside, fences = str(tmp_path / "inside"), tmp_path / "fences"
    for worker in workers:
        worker.send(f"hold_often({inside!r}, {str(fences)!r}, 8, {8 * LONG})")
    assert [worker.receive(8 * LONG) for worker in workers] == [0] * len(workers)
    numbers = [int(word) for word in fences.read_text().split()]
    assert len(numbers) == 32
    assert numbers == sorted(set(numbers))


def test_who_waits_on_the_other_client_is_told_of_a_release(client):
    here, there = client(), client(there=True)
    took = []
    for holder, waiter in ((here, there), (there, here)) * 2:
        _, fence = holder.run(f"take({LONG})", 2 * LONG)
        waiter.send(f"take({LONG})")
        assert not waiter.answered(0.5 * mounts.PATIENCE), "it got a lock that is held"
        released = holder.run("at = now(); lock.release(); at", LONG)
        at, later = waiter.receive(2 * LONG)
        assert later > fence
        took.append(at - released)
        waiter.run("lock.check(); lock.release()", LONG)
    print([f"{one:.2f}" for one in took])
    assert max(took) < 5 * mounts.PATIENCE


def test_a_holder_that_renews_keeps_its_lock(client):
    here, there = client(), client(there=True)
    there.run(f"take({LONG})", 2 * LONG)
    assert here.run(f"is_refused({3 * (TTL + SLACK)})", 2 * LONG)
    there.run("lock.check(); lock.release()", LONG)


@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_a_holder_that_ends_loses_after_its_lease(client, ends):
    here, there = client(), client(there=True)
    _, fence = there.run(f"take({LONG})", 2 * LONG)
    until = there.run("until()", LONG)
    os.kill(there.outer_pid, signal.SIGKILL if ends == "killed" else signal.SIGSTOP)
    at, later = here.run(f"take({LONG})", 2 * LONG)
    assert at > until - TTL / 3
    assert later > fence
    if ends == "stopped":
        os.kill(there.outer_pid, signal.SIGCONT)
        assert there.run("is_lost()", LONG)
    here.run("lock.check(); lock.release()", LONG)


def test_a_holder_whose_cable_is_pulled_knows_before_another_has_it(kind, client):
    here, there = client(), client(there=True)
    there.run(f"take({LONG})", 2 * LONG)
    cable = [*mounts.OTHER_CLIENT, "ip", "link", "set", "semlock1"]
    subprocess.run([*cable, "down"], check=True)
    try:
        until = there.run("until()", LONG)
        at, _ = here.run(f"take({LONG})", 2 * LONG)
        assert at > until
        assert there.run("lock.held, lock.left()", LONG) == (False, 0.0)
        end = time.monotonic() + LONG
        while not (lost := there.run("told", LONG)):
            assert time.monotonic() < end, "the loss is not told"
        assert lost[0] < at + TTL / 3
    finally:
        subprocess.run([*cable, "up"], check=True)
    assert there.run("is_lost()", 4 * LONG)
    here.run("lock.check(); lock.release()", LONG)
