"""Each option is one of every lock whose format does not rule it out, for threads and tasks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from functools import partial

import pytest

import semlock
from semlock import feature, policy, retry
from semlock._core.options import DEFAULTS, EngineOptions, LockOptions, names_of

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
    **{
        (world, name): "line"
        for world in ("memory-engine", "directory")
        for name in set(VALUES) - set(names_of(EngineOptions))
    },
}

# The one has pauses of its own form; the other's class has none, but what makes it takes one.
OWN_FORM = (("sidecar", "retry"), ("feature", "tag"))


def kinds(world):
    """Give what makes each kind of lock of a world, for threads and for tasks."""
    made = [world.lock, world.async_lock]
    if world.name in ("semlock", "memory-engine", "directory"):
        for name in ("SharedLock", "AsyncSharedLock"):
            made.append(partial(world.kind, name))
        for name in ("SlotLock", "AsyncSlotLock"):
            made.append(partial(world.kind, name, slots=2))
    return made


def test_these_are_all_options():
    assert list(VALUES) == list(DEFAULTS)
    assert set(names_of(LockOptions)) == set(DEFAULTS)


@pytest.mark.parametrize("name", VALUES)
def test_lock_says_what_an_option_means(name):
    assert f"\n:{name}: " in inspect.getdoc(semlock.Lock)


@pytest.mark.parametrize("name", VALUES)
def test_an_option_is_taken_or_refused_with_the_reason(world, name):
    option = {name: VALUES[name]}
    reason = REFUSED.get((world.name, name))
    for make in kinds(world):
        if reason is not None:
            with pytest.raises(TypeError, match=rf"Lock has no {name}: .*{reason}"):
                make(**option)
            continue
        lock = make(**option)

        async def use(lock=lock):
            assert lock.try_acquire()
            lock.release()

        asyncio.run(use())
        shown = inspect.signature(type(lock)).parameters
        if (world.name, name) not in OWN_FORM:
            assert shown[name].default == type(lock)._defaults[name]


def test_a_feature_lock_has_no_tag(tmp_path):
    for form in (feature.FeatureLock, feature.AsyncFeatureLock):
        with pytest.raises(TypeError, match="Lock has no tag: its record"):
            form("one", tmp_path, tag="x")


def test_a_thread_or_a_task_may_be_named_as_the_holder(world):
    if (world.name, "held_by") in REFUSED:
        return
    for number, make in enumerate(kinds(world)):
        one, other = ("task", "thread") if number % 2 else ("thread", "task")
        make(held_by=one)
        with pytest.raises(ValueError, match=f'held_by is "{one}" or "object"'):
            make(held_by=other)


def test_an_unknown_option_is_told_with_the_class(world):
    for make in kinds(world):
        named = type(make()).__name__
        with pytest.raises(TypeError, match=rf"{named}\(\) got an unexpected .*'colour'"):
            make(colour="red")


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
    if (world.name, "held_by") in REFUSED:
        return
    lock = world.lock(held_by="object")
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert not lock.held
    with world.lock():
        pass
