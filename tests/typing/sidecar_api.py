"""The types that users of the sidecar lock see: checked by mypy, never run."""

from typing import Any

from typing_extensions import assert_type

from semlock import LockInfo, LockStatus, retry, sidecar


def reclaim(question: sidecar.ReclaimQuestion) -> bool:
    assert_type(question.payload, dict[str, Any] | None)
    assert_type(question.now, float)
    return question.held_by_this_process


async def remove(snapshot: sidecar.StaleSnapshot) -> bool:
    assert_type(snapshot.raw, str)
    return True


async def payload() -> dict[str, int]:
    return {"pid": 1}


def use() -> None:
    with sidecar.acquire_file_lock(
        "x",
        payload=lambda: {"pid": 1},
        timeout=1,
        retry=sidecar.RetryOptions(retries=3),
        stale_recovery="remove-if-unchanged",
        should_reclaim=reclaim,
        metadata={"a": 1},
    ) as handle:
        assert_type(handle, sidecar.FileLockHandle)
        assert_type(handle.lock_path, str)
        assert_type(handle.lock.info, LockInfo | None)
    assert_type(sidecar.with_file_lock("x", lambda: 3, retry=retry.Every(1)), int)
    assert_type(sidecar.with_file_lock("x", lambda: 3, retry={"retries": 3}), int)
    locks = sidecar.create_file_lock_manager("key")
    assert_type(locks.acquire("x", stale=None), sidecar.FileLockHandle)
    assert_type(locks.with_lock("x", lambda: "y"), str)
    assert_type(locks.held_entries(), list[sidecar.HeldEntry])
    assert_type(sidecar.status("x"), LockStatus)
    with sidecar.SidecarLock("x", reentrant=True, heartbeat=5) as lock:
        assert_type(lock, sidecar.SidecarLock)
        assert_type(lock.token, str | None)


async def work() -> bytes:
    return b""


async def use_async() -> None:
    async with await sidecar.acquire_file_lock_async(
        "x", payload=payload, should_remove_stale_lock=remove, manager_key="key"
    ) as handle:
        assert_type(handle, sidecar.FileLockHandle)
    assert_type(await sidecar.with_file_lock_async("x", work), bytes)
    assert_type(await sidecar.with_file_lock_async("x", lambda: 3), int)
    assert_type(await sidecar.create_file_lock_manager("key").with_lock_async("x", work), bytes)
