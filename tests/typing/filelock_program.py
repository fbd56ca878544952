"""A program of filelock's: its types are right with filelock, and with semlock.filelock as that."""

from __future__ import annotations

import filelock
from filelock import AsyncFileLock, BaseFileLock, FileLock, SoftFileLock, Timeout
from typing_extensions import assert_type


class Narrow(FileLock):
    def __init__(self, path: str) -> None:
        super().__init__(path, timeout=3)


def take(lock: BaseFileLock) -> None:
    try:
        with lock.acquire(timeout=1, poll_interval=0.1) as held:
            held.release()
    except Timeout as error:
        assert_type(error.lock_file, str)


async def run() -> None:
    lock = AsyncFileLock("task.lock")
    async with lock, await lock.acquire(timeout=5):
        assert_type(lock.lock_counter, int)


take(Narrow("narrow.lock"))
take(SoftFileLock("soft.lock", is_singleton=True))
with filelock.ReadWriteLock("rw.db").read_lock(timeout=1):
    pass
