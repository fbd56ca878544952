"""The types of ``semlock.filelock``: checked, never run."""

from pathlib import Path

from typing_extensions import assert_type

import semlock.filelock as filelock


def locks(path: Path) -> None:
    lock = filelock.FileLock(path, timeout=1, mode=0o644, thread_local=False)
    with lock as held:
        assert_type(held.is_locked, bool)
        assert_type(held.lock_counter, int)
        assert_type(held.lock_file, str)
    with lock.acquire(timeout=5, poll_interval=0.1, blocking=True):
        pass
    assert_type(lock.acquire(), filelock.AcquireReturnProxy)
    lock.release(force=True)
    with filelock.SoftFileLock(path) as soft:
        assert_type(soft, filelock.SoftFileLock)
    assert_type(filelock.FileLock(str(path), is_singleton=True).is_singleton, bool)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        assert_type(error.lock_file, str)


class Own(filelock.BaseFileLock):
    def _acquire(self) -> None:
        self._context.lock_file_fd = 1

    def _release(self) -> None:
        self._context.lock_file_fd = None


@filelock.FileLock("job.lock")
def job(count: int) -> list[str]:
    return [""] * count


assert_type(job(3), list[str])


def readers(path: Path) -> None:
    lock = filelock.ReadWriteLock(path, timeout=1, is_singleton=False)
    assert_type(lock, filelock.ReadWriteLock)
    with lock.read_lock(), lock.acquire_read(timeout=1):
        pass
    with lock.write_lock(timeout=1):
        pass
    lock.release(force=True)


async def tasks(path: Path) -> None:
    lock = filelock.AsyncFileLock(path, timeout=1)
    async with lock as held:
        assert_type(held.is_locked, bool)
    assert_type(await lock.acquire(timeout=5), filelock.AsyncAcquireReturnProxy)
    await lock.release(force=True)
    async with filelock.AsyncSoftFileLock(path) as soft:
        assert_type(soft, filelock.AsyncSoftFileLock)
