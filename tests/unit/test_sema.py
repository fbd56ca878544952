"""How sema's locks wait, and what is being written: its rules are in tests/systems."""

import os
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock._core import capi
from semlock.sema import Semaphore
from support import set_time


def foreign(path, age=0.0, pid=1, end="\n"):
    text = f"pid={pid}\ntimestamp={int(time.time() - age)}\ntag=theirs{end}"
    Path(path).write_text(text)
    return text


def test_the_timestamp_is_that_of_winning_and_not_of_asking(path, monkeypatch):
    lock = Semaphore(path, stale_timeout=5, retry_interval=0.01)
    foreign(path, age=6)
    before = int(time.time())
    with lock:
        assert lock.info.timestamp >= before


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
