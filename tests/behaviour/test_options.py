"""Each option is one of every lock whose format does not rule it out, for threads and tasks."""

from __future__ import annotations

import asyncio
import threading

import pytest

import semlock
from semlock import feature, policy, retry
from semlock._stores.file import InFiles

VALUES = {
    "tag": "nightly",
    "timeout": 5,
    "policy": policy.ProofOfDeath(),
    "retry": retry.Every(1),
    "durability": "none",
    "mode": 0o600,
    "exact_mode": True,
    "make_dirs": True,
    "reentrant": True,
    "held_by": "object",
    "fair": True,
    "heartbeat": 5,
    "on_lost": print,
    "on_wait": print,
    "cancel_check": bool,
}

# What a format rules out, and a word of the reason that is given.
REFUSED = {
    **{
        ("kernel", name): "no record"
        for name in ("policy", "durability", "heartbeat", "on_lost")
    },
    ("task", "heartbeat"): "ttl",
}


def test_these_are_all_options():
    assert set(VALUES) == set(InFiles.__init__.__kwdefaults__)


@pytest.mark.parametrize("name", VALUES)
def test_an_option_is_taken_or_refused_with_the_reason(world, name):
    option = {name: VALUES[name]}
    reason = REFUSED.get((world.name, name))
    for form in (world.lock, world.async_lock):
        if reason is not None:
            with pytest.raises(TypeError, match=rf"Lock has no {name}: .*{reason}"):
                form(**option)
            continue
        lock = form(**option)
        assert lock.try_acquire()
        lock.release()


def test_a_feature_lock_has_no_tag(tmp_path):
    for form in (feature.FeatureLock, feature.AsyncFeatureLock):
        with pytest.raises(TypeError, match="Lock has no tag: its record"):
            form("one", tmp_path, tag="x")


def test_a_wait_ends_when_its_check_says_so(world, stranger):
    stranger.hold()
    asked = []
    for form in (world.lock, world.async_lock):
        asked.clear()
        lock = form(cancel_check=lambda: asked.append(0) or len(asked) > 1)
        with pytest.raises(semlock.LockCancelledError):
            if form == world.lock:
                lock.acquire()
            else:
                asyncio.run(lock.acquire())
        assert len(asked) == 2
    stranger.release()


def test_what_an_object_holds_another_thread_releases(world):
    lock = world.lock(held_by="object")
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert not lock.held
    with world.lock():
        pass
