"""The types that users see: checked by mypy for every platform, never run."""

from pathlib import Path
from typing import Literal

from typing_extensions import assert_type

import semlock
import semlock.systems


def use(path: Path) -> None:
    lock = semlock.Lock(path, tag="why", timeout=1, durability="data", mode=0o600)
    with lock as held:
        assert_type(held, semlock.Lock)
    with lock.acquire(timeout=None) as held:
        assert_type(held, semlock.Lock)
    assert_type(lock.try_acquire(), bool)
    assert_type(lock.token, str | None)
    assert_type(lock.info, semlock.LockInfo | None)
    assert_type(lock.held, bool)
    assert_type(lock.path, str)
    found = semlock.status("x.lock")
    assert_type(found, semlock.LockStatus)
    if found.info is not None:
        assert_type(found.info.pid, int | None)
    assert_type(semlock.remove(path, only_if=found), semlock.LockStatus | None)
    assert_type(semlock.try_acquire_many([path, lock, "z"]), list[semlock.Lock | None])
    assert_type(semlock.clean(path), list[semlock.Removed])


def lost(lock: semlock.Lock, error: semlock.LockLostError) -> None:
    assert_type(error.path, str | None)
    assert_type(error.reason, Literal["removed", "replaced", "expired", "unreachable"])
    assert_type(lock.count, int)


@semlock.Lock("job.lock", heartbeat=5, on_lost=lost)
def job(count: int, *, name: str = "") -> list[str]:
    return [name] * count


assert_type(job(3, name="x"), list[str])


def told(found: semlock.LockStatus, waited: float) -> None:
    assert_type(found.holder, str)


def many(a: semlock.Lock, b: semlock.Lock) -> None:
    semlock.Lock("x.lock", fair=True, on_wait=told)
    assert_type(semlock.acquire_any([a, b], timeout=1), semlock.Lock)
    assert_type(semlock.LockSet([a, b]).try_acquire(limit=1), list[semlock.Lock])
    assert_type(semlock.LockSet([a, b]).wait(timeout=1), bool)
    with semlock.acquire_all([a, b], timeout=None):
        pass
    slots = semlock.SlotLock("s.lock", 3, timeout=1, reentrant=True, held_by="object")
    assert_type(slots.cancel(), int)
    semlock.Lock("x.lock", held_by="thread", mode=0o664, exact_mode=True)
    with slots as one:
        assert_type(one, semlock.SlotLock)
        assert_type(one.slot, int | None)
    assert_type(slots.try_acquire(), bool)
    semlock.SlotLock("s.lock", 3, system=semlock.systems.find("sema"), durability="full")
    semlock.AsyncSharedLock("s.lock", system=semlock.systems.find("task"), on_lost=None)
    shared = semlock.SharedLock("t.lock", fair=True, heartbeat=5, held_by="object")
    with shared.shared():
        assert_type(shared.held, Literal["shared", "exclusive"] | None)
    with shared as writer:
        assert_type(writer, semlock.SharedLock)


async def tasks() -> None:
    lock = semlock.AsyncLock("x.lock", tag="why", fair=True, on_wait=told)
    async with lock as held:
        assert_type(held, semlock.AsyncLock)
        held.check()
    async with lock.acquire(timeout=5) as at_once:
        assert_type(at_once, semlock.AsyncLock)
    async with await lock.acquire(timeout=5) as again:
        assert_type(again, semlock.AsyncLock)
    assert_type(lock.try_acquire(), bool)
    async with semlock.AsyncSlotLock("s.lock", 3) as slots:
        assert_type(slots.slot, int | None)
    shared = semlock.AsyncSharedLock("t.lock", reentrant=True, held_by="task")
    async with shared.shared():
        pass
    async with shared as writer:
        assert_type(writer, semlock.AsyncSharedLock)
    assert_type(await semlock.acquire_any_async([lock], timeout=1), semlock.AsyncLock)
    async with await semlock.acquire_all_async([lock], timeout=None):
        pass


assert_type(semlock.stats().total.acquired, int)


async def engines(space: semlock.Space) -> None:
    lock, task = space.Lock("deploy", tag="why"), space.AsyncLock("deploy", cancel_check=bool)
    assert_type(lock.fence, int | None)
    assert_type(lock.left(), float)
    assert_type(space.acquire_any([lock], timeout=1).name, str)
    assert_type((await space.acquire_any_async([task])).fence, int | None)
    with space.acquire_all([lock]):
        pass
    async with space.acquire_all_async([task], timeout=1):
        pass
    async with task as held:
        assert_type(held.left(), float)
    shared = space.AsyncSharedLock("table")
    async with shared.shared(), shared.acquire_shared():
        assert_type(shared.held, Literal["shared", "exclusive"] | None)
    async with space.AsyncSlotLock("pool", slots=3) as slot:
        assert_type(slot.fence, int | None)
