"""``cancel_check``: another thread, or the program itself, ends a wait."""

import asyncio
import threading
import time

import pytest

import semlock

FORMS = {
    "Lock": lambda path, **options: semlock.Lock(path, **options),
    "SlotLock": lambda path, **options: semlock.SlotLock(path, 1, **options),
    "SharedLock": lambda path, **options: semlock.SharedLock(path, **options),
}
ASYNC_FORMS = {
    "AsyncLock": lambda path, **options: semlock.AsyncLock(path, **options),
    "AsyncSlotLock": lambda path, **options: semlock.AsyncSlotLock(path, 1, **options),
    "AsyncSharedLock": lambda path, **options: semlock.AsyncSharedLock(path, **options),
}


@pytest.mark.parametrize("form", FORMS)
def test_another_thread_ends_a_wait(path, form):
    stop, began = threading.Event(), threading.Event()
    ended = []

    def wait() -> None:
        lock = FORMS[form](path, cancel_check=lambda: began.set() or stop.is_set())
        with pytest.raises(semlock.LockCancelledError, match="cancel_check has ended the wait"):
            lock.acquire()
        ended.append(lock.held)

    with FORMS[form](path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert began.wait(10)
        stop.set()
        told = time.monotonic()
        thread.join(10)
        assert time.monotonic() - told < 5
    assert [bool(held) for held in ended] == [False]
    with FORMS[form](path).acquire(timeout=5):
        pass


@pytest.mark.parametrize("form", ASYNC_FORMS)
def test_a_wait_of_a_task_ends(path, form):
    async def both() -> None:
        lock = ASYNC_FORMS[form](path)
        stop = []

        async def wait() -> None:
            with pytest.raises(semlock.LockCancelledError):
                await ASYNC_FORMS[form](path, cancel_check=lambda: stop).acquire()

        async with lock:
            task = asyncio.create_task(wait())
            await asyncio.sleep(0.02)
            assert not task.done()
            stop.append(True)
            await asyncio.wait_for(task, 10)

    asyncio.run(both())


def test_a_reader_can_be_cancelled(path):
    with semlock.SharedLock(path):
        seen = []

        def wait() -> None:
            with pytest.raises(semlock.LockCancelledError):
                semlock.SharedLock(path, cancel_check=lambda: True).acquire_shared()
            seen.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
    assert seen == [True]


def test_a_free_lock_is_taken_without_asking(path):
    with semlock.Lock(path, cancel_check=lambda: pytest.fail("asked")):
        pass


def test_what_it_raises_ends_the_wait(path):
    def check() -> bool:
        raise KeyError("stop")

    done = []

    def wait() -> None:
        with pytest.raises(KeyError):
            semlock.Lock(path, cancel_check=check).acquire()
        done.append(True)

    with semlock.Lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
    assert done == [True]


def test_it_must_be_a_function(path):
    with pytest.raises(TypeError, match="cancel_check is a function"):
        semlock.Lock(path, cancel_check=1)


def test_readers_decorate_functions(path):
    lock = semlock.SharedLock(path)

    @lock.shared()
    def read(value):
        return value, lock.held

    @lock.exclusive()
    def write():
        return lock.held

    assert read(1) == (1, "shared")
    assert read(2) == (2, "shared")
    assert write() == "exclusive"
    assert lock.held is None


def test_tasks_that_read_decorate_coroutine_functions(path):
    async def main() -> None:
        lock = semlock.AsyncSharedLock(path)

        @lock.shared()
        async def read():
            return lock.held

        @lock.exclusive()
        async def write():
            return lock.held

        assert await asyncio.gather(read(), read()) == ["shared", "shared"]
        assert await write() == "exclusive"

    asyncio.run(main())
