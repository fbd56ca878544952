"""The types of kernel locks and of files that one process makes: checked, never run."""

from pathlib import Path
from typing import IO, Any

from typing_extensions import assert_type

import semlock


def kernel(path: Path) -> None:
    lock = semlock.KernelLock(path, timeout=1, mode=0o664, exact_mode=True, held_by="object")
    with lock as held:
        assert_type(held, semlock.KernelLock)
        assert_type(held.fileno(), int)
    with lock.acquire(timeout=5) as at_once:
        assert_type(at_once, semlock.KernelLock)
    with lock.shared() as reader:
        assert_type(reader, semlock.KernelLock)
    assert_type(lock.is_shared, bool)
    assert_type(lock.try_acquire(), bool)
    assert_type(lock.count, int)
    assert_type(lock.cancel(), int)
    assert_type(lock.status().holder, str)
    assert_type([one.pid for one in lock.status().holders], list[int | None])
    with open(path, "rb") as file:
        assert_type(semlock.KernelLock.from_fd(file, shared=True), semlock.KernelLock)
        assert_type(semlock.KernelLock.from_fd(9, timeout=None), semlock.KernelLock)


async def kernel_tasks(path: Path) -> None:
    lock = semlock.AsyncKernelLock(path, timeout=1, held_by="task")
    async with lock as held:
        assert_type(held, semlock.AsyncKernelLock)
    async with lock.acquire(timeout=5) as at_once:
        assert_type(at_once, semlock.AsyncKernelLock)
    async with lock.shared() as reader:
        assert_type(reader, semlock.AsyncKernelLock)


@semlock.KernelLock("job.lock")
def job(count: int) -> list[str]:
    return [""] * count


assert_type(job(3), list[str])


def make(temporary: str) -> None:
    Path(temporary).touch()


async def make_async(temporary: str) -> int:
    return len(temporary)


def files(path: Path) -> None:
    assert_type(semlock.once(path, make), str)
    assert_type(semlock.once("x", lambda temporary: len(temporary), timeout=60), str)
    with semlock.open_atomic(path, "w", encoding="utf-8") as file:
        assert_type(file, IO[Any])
    with semlock.open_locked(path, "r+", timeout=1) as opened:
        assert_type(opened, IO[Any])


async def files_of_tasks(path: Path) -> None:
    assert_type(await semlock.once_async(path, make_async, timeout=60), str)
    assert_type(await semlock.once_async(path, make), str)
