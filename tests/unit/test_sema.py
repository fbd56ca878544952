"""sema's rules, one by one."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import sema
from semlock._core import capi
from semlock.sema import Semaphore
from support import content_of, overwrite, set_time, take_away, wine_keeps_locked_names


def foreign(path, age=0.0, pid=1, end="\n"):
    text = f"pid={pid}\ntimestamp={int(time.time() - age)}\ntag=theirs{end}"
    Path(path).write_text(text)
    return text


def test_it_writes_pid_timestamp_and_tag_first(path):
    with Semaphore(path, tag="deploy") as lock:
        lines = content_of(path).decode().split("\n")
        assert lines[0] == f"pid={os.getpid()}"
        assert lines[1] == f"timestamp={lock.info.timestamp}"
        assert lines[2] == "tag=deploy"
        if sys.platform != "win32":  # where files have no permission bits
            assert oct(os.stat(path).st_mode & 0o777) == oct(0o644 & ~_umask())


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_timestamp_is_that_of_winning_and_not_of_asking(path, monkeypatch):
    lock = Semaphore(path, stale_timeout=5, retry_interval=0.01)
    foreign(path, age=6)
    before = int(time.time())
    with lock:
        assert lock.info.timestamp >= before


@pytest.mark.parametrize(("age", "taken"), [(0, False), (3590, False), (3700, True)])
def test_a_lock_is_stale_after_an_hour(path, age, taken):
    foreign(path, age)
    lock = Semaphore(path)
    assert lock.try_acquire() is taken
    assert lock.held is taken
    if taken:
        lock.release()


def test_the_limit_itself_is_not_stale(path, monkeypatch):
    Path(path).write_text("pid=1\ntimestamp=1794992549\n")
    for later, state in ((3600, "held"), (3600.9, "held"), (3601, "stale")):
        now = 1794992549 + later
        set_time(monkeypatch, lambda now=now: now)
        assert sema.status(path).state == state


@pytest.mark.parametrize("off", [0, None])
def test_staleness_can_be_switched_off(path, off):
    foreign(path, age=10**6)
    assert Semaphore(path, stale_timeout=off).try_acquire() is False
    assert sema.status(path, stale_timeout=off).state == "held"


@wine_keeps_locked_names
def test_a_living_holder_is_robbed_by_age_and_learns_of_it(path):
    victim = Semaphore(path)
    victim.acquire()
    robber = Semaphore(path, stale_timeout=0.001)
    victim._native.stamp -= 10
    content = victim._text(victim._record, victim._native.stamp)
    overwrite(path, content)
    assert robber.try_acquire()
    with pytest.raises(semlock.LockLostError):
        victim.release()
    robber.release()


def test_a_refresh_keeps_it_young(path):
    with Semaphore(path) as lock:
        lock._native.stamp -= 4000
        overwrite(path, lock._text(lock._record, lock._native.stamp))
        assert sema.status(path).state == "stale"
        lock.refresh()
        assert sema.status(path).state == "held"


def test_a_wait_looks_every_retry_interval_and_ends_with_the_timeout(path, monkeypatch):
    foreign(path)
    looks = []
    real = capi.look
    monkeypatch.setattr(capi, "look", lambda *a: looks.append(time.monotonic()) or real(*a))
    began = time.monotonic()
    with pytest.raises(semlock.LockTimeoutError):
        Semaphore(path, timeout=0.3, retry_interval=0.05).acquire()
    assert time.monotonic() - began >= 0.3
    # One for each interval, and some at the beginning, before and after news are asked for.
    assert 3 <= len(looks) <= 12


def test_a_blocked_wait_takes_over_when_the_lock_becomes_stale(path, monkeypatch):
    foreign(path, age=0)
    lock = Semaphore(path, stale_timeout=3600, retry_interval=0.01)
    real = time.time
    ahead = [0]
    set_time(monkeypatch, lambda: real() + ahead[0])
    waiter = threading.Thread(target=lock.acquire, kwargs={"timeout": 20})
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    ahead[0] = 4000
    waiter.join(20)
    assert lock.info.pid == os.getpid()
    lock.release()


@pytest.mark.parametrize("content", ["", "pid=1\n", "pid=x\ntimestamp=1\n", "\0"])
def test_what_is_no_record_blocks_and_is_never_taken(path, content):
    Path(path).write_text(content)
    os.utime(path, (1, 1))
    assert Semaphore(path, stale_timeout=1).try_acquire() is False


def test_a_timestamp_that_is_just_being_written_is_not_old(path):
    """Cut short, a time of today looks like one of decades ago."""
    whole = f"pid=1\ntimestamp={int(time.time())}\n"
    for length in range(len("pid=1\ntimestamp="), len(whole)):
        Path(path).write_text(whole[:length])
        assert Semaphore(path).try_acquire() is False, whole[:length]


def test_an_old_timestamp_with_its_newline_is_complete(path):
    Path(path).write_text("pid=1\ntimestamp=17949\n")
    with Semaphore(path, timeout=0):
        pass


def test_release_removes_ones_own_lock_only(path):
    lock = Semaphore(path)
    lock.acquire()
    take_away(path)
    foreign(path)
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert "theirs" in Path(path).read_text()


def test_it_has_the_options_of_the_default_lock(path):
    with Semaphore(path, tag="t", reentrant=True, durability="data", timeout=1) as lock:
        with lock:
            pass
        lock.check()
        assert lock.status().info == lock.info
