"""A thousand waiters on one lock, and a thousand locks with one waiter each, on real engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections import Counter

import pytest

import semlock
from engine_urls import url_of

resource = pytest.importorskip("resource")  # not on Windows, where no servers are

NAMES = ("etcd", "redis", "postgresql")
FEW = 20
MANY = 1000 if float(os.environ.get("SEMLOCK_STRESS_SECONDS", "10")) >= 10 else 300


@pytest.fixture(params=NAMES)
def spaces(request):
    """Two spaces on one engine: of those who hold, and of those who wait."""
    url = url_of(request.getfixturevalue(f"{request.param}_server"))
    prefix = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(semlock.connect(url, prefix=prefix, ttl=20.0)) for _ in range(2)
        )


async def until(condition) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


def waiting(space) -> int:
    return sum(ticket.fence > 0 for ticket in list(space.client.keeper.tickets.values()))


class Counted:
    """Counts the requests of a space, and what it hears."""

    def __init__(self, space) -> None:
        self.calls: Counter[str] = Counter()
        self.heard = 0
        self.began = time.monotonic()
        engine = space.client.engine
        for name in ("enter", "leave", "renew", "line"):
            setattr(engine, name, self._counting(name, getattr(engine, name)))
        hear = engine.hear

        def counted(seconds):
            heard = hear(seconds)
            self.heard += len(heard or ())
            return heard

        engine.hear = counted

    def _counting(self, name, function):
        def counted(*arguments, **options):
            self.calls[name] += 1
            return function(*arguments, **options)

        return counted

    def begin(self) -> None:
        self.calls.clear()
        self.heard = 0
        self.began = time.monotonic()

    def judge(self, count, ttl) -> None:
        """Judge what it took to hand over so often: one is told, and it releases."""
        seconds = time.monotonic() - self.began
        assert self.calls["leave"] == count
        assert self.calls["enter"] <= count  # etcd's waiter looks once when its turn comes
        assert count <= self.heard <= count + 3
        # One renewal for all, three times in a lease; one more if the news may have been lost.
        assert self.calls["renew"] <= 3 * (seconds / ttl + 1) + 1
        assert self.calls["line"] == 0


async def on_one_lock(spaces, count) -> None:
    one, two = spaces
    counted = Counted(two)
    fences = []

    async def wait():
        async with two.AsyncLock("lock") as lock:
            fences.append(lock.fence)

    with one.Lock("lock"):
        tasks = [asyncio.create_task(wait()) for _ in range(count)]
        await until(lambda: waiting(two) == count)
        assert fences == []
        assert len(one.waiting("lock")) == count
        assert counted.calls["enter"] == count
        counted.begin()
    await asyncio.gather(*tasks)
    counted.judge(count, two.ttl)
    assert fences == sorted(set(fences))
    assert len(fences) == count
    assert one.list() == []


async def on_many_locks(spaces, count) -> None:
    one, two = spaces
    counted = Counted(two)
    locks = [one.Lock(f"lock {number}") for number in range(count)]
    for lock in locks:
        lock.acquire()
    had = []

    async def wait(number):
        async with two.AsyncLock(f"lock {number}"):
            had.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(count)]
    await until(lambda: waiting(two) == count)
    assert had == []
    assert counted.calls["enter"] == count
    counted.begin()
    for lock in locks:
        lock.release()
    await asyncio.gather(*tasks)
    counted.judge(count, two.ttl)
    assert sorted(had) == list(range(count))
    assert one.list() == []


def test_some_waiters_on_one_lock_come_in_order(spaces):
    asyncio.run(on_one_lock(spaces, FEW))


def test_some_locks_with_one_waiter_each(spaces):
    asyncio.run(on_many_locks(spaces, FEW))


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_many_waiters_on_one_lock_come_in_order(spaces):
    asyncio.run(on_one_lock(spaces, MANY))


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_many_locks_with_one_waiter_each(spaces):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * MANY + 200:
        pytest.skip("few descriptors: a waiter for a lock of etcd has a connection of its own")
    asyncio.run(on_many_locks(spaces, MANY))
