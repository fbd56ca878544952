"""The types that users see: checked by mypy for every platform, never run."""

from pathlib import Path

from typing_extensions import assert_type

import semlock


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


@semlock.Lock("job.lock", heartbeat=5, on_lost=lost)
def job(count: int, *, name: str = "") -> list[str]:
    return [name] * count


assert_type(job(3, name="x"), list[str])
