"""``cancel_check`` and ``cancel``: another thread, or the program itself, ends a wait."""

import asyncio
import os
import signal
import sys
import threading
import time

import pytest

import semlock
from memory_engine import Server, space_on
from support import Child, trio_or_skip

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


# ---------------------------------------------------------------- cancel()

WAYS = {
    "Lock": (semlock.Lock, "acquire"),
    "SlotLock": (lambda path: semlock.SlotLock(path, 1), "acquire"),
    "a writer": (semlock.SharedLock, "acquire"),
    "a reader": (semlock.SharedLock, "acquire_shared"),
    "KernelLock": (semlock.KernelLock, "acquire"),
}
ASYNC_WAYS = {
    "AsyncLock": (semlock.AsyncLock, "acquire"),
    "AsyncSlotLock": (lambda path: semlock.AsyncSlotLock(path, 1), "acquire"),
    "a writing task": (semlock.AsyncSharedLock, "acquire"),
    "a reading task": (semlock.AsyncSharedLock, "acquire_shared"),
    "AsyncKernelLock": (semlock.AsyncKernelLock, "acquire"),
}


class Wait(threading.Thread):
    """A thread that waits, and what ended that."""

    def __init__(self, acquire) -> None:
        super().__init__(daemon=True)
        self.acquire = acquire
        self.error = None
        self.start()

    def run(self) -> None:
        try:
            self.acquire()
        except semlock.SemlockError as error:
            self.error = error
        self.ended_at = time.monotonic()


def cancel_as_soon_as_it_waits(lock, waits=1) -> float:
    """Cancel until that ends so many waits; the time when it did."""
    end = time.monotonic() + 20
    while not (count := lock.cancel()):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert count == waits
    return time.monotonic()


@pytest.mark.one_at_a_time("time")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["first", "behind another"])
def test_cancel_ends_a_wait_at_once(path, way, place):
    make, acquire = WAYS[way]
    holder, lock = make(path), make(path)
    with holder:
        first = make(path)
        others = [Wait(getattr(first, acquire))] if place == "behind another" else []
        time.sleep(0.2 if others else 0)
        wait = Wait(getattr(lock, acquire))
        time.sleep(0.2)  # it sleeps in the core, until an event
        told = cancel_as_soon_as_it_waits(lock)
        wait.join(20)
        assert isinstance(wait.error, semlock.LockCancelledError)
        assert "cancel() has ended the wait" in str(wait.error)
        assert wait.ended_at - told < 0.15  # which no look by the clock is
        assert lock.cancel() == 0
        assert not lock.held
        for other in others:
            assert other.is_alive()
            cancel_as_soon_as_it_waits(first)
            other.join(20)
    with lock.acquire(timeout=5):  # a later wait is not ended
        pass


@pytest.mark.parametrize("way", WAYS)
def test_cancel_ends_all_waits_of_the_object_and_no_others(path, way):
    make, acquire = WAYS[way]
    lock, other = make(path), make(path)
    with make(path):
        waits = [Wait(getattr(lock, acquire)) for _ in range(3)]
        stays = Wait(lambda: (getattr(other, acquire)(), other.release()))
        time.sleep(0.3)
        assert lock.cancel() == 3
        for wait in waits:
            wait.join(20)
            assert isinstance(wait.error, semlock.LockCancelledError)
        assert stays.is_alive()
    stays.join(20)
    assert stays.error is None


@pytest.mark.parametrize("way", ASYNC_WAYS)
@pytest.mark.parametrize("caller", ["a task", "a thread"])
def test_cancel_ends_the_waits_of_tasks(path, way, caller):
    make, acquire = ASYNC_WAYS[way]

    async def main() -> None:
        lock = make(path)
        async with make(path):
            tasks = [asyncio.create_task(getattr(lock, acquire)()) for _ in range(3)]
            await asyncio.sleep(0.1)
            told = time.monotonic()
            ended = (
                lock.cancel() if caller == "a task" else await asyncio.to_thread(lock.cancel)
            )
            assert ended == 3
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in results] == [semlock.LockCancelledError] * 3
            assert time.monotonic() - told < 5
        async with lock.acquire(timeout=5):
            pass

    asyncio.run(main())


def test_cancel_ends_a_wait_in_trio(path):
    trio = trio_or_skip()

    async def main() -> None:
        lock = semlock.AsyncLock(path)

        async def wait() -> None:
            with pytest.raises(semlock.LockCancelledError):
                await lock.acquire()

        async with semlock.AsyncLock(path), trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(0.1)
            assert await trio.to_thread.run_sync(lock.cancel) == 1

    trio.run(main)


@pytest.mark.skipif(sys.platform == "win32", reason="it needs a signal that ends no process")
def test_a_signal_handler_cancels_the_wait_that_it_interrupts(path):
    lock = semlock.Lock(path)
    before = signal.signal(signal.SIGALRM, lambda *_: lock.cancel())
    try:
        with Child() as other:
            other.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(semlock.LockCancelledError):
                lock.acquire(timeout=20)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["Lock", "SlotLock", "SharedLock"])
def test_cancel_ends_a_wait_on_an_engine(kind):
    with space_on(Server(), ttl=1) as space:
        options = {"slots": 1} if kind == "SlotLock" else {}
        lock = getattr(space, kind)("x", **options)
        with getattr(space, kind)("x", **options):
            wait = Wait(lock.acquire)
            time.sleep(0.05)
            cancel_as_soon_as_it_waits(lock)
            wait.join(20)
            assert isinstance(wait.error, semlock.LockCancelledError)
        with lock.acquire(timeout=5):
            pass


def test_a_win_and_a_cancellation_at_the_same_moment_leave_one_of_both(path):
    lock, holder = semlock.Lock(path), semlock.Lock(path)
    for pause in (0, 0.0002, 0.001) * 10:
        holder.acquire()
        wait = Wait(lock.acquire)
        time.sleep(0.005)
        releasing = threading.Thread(target=holder.release)
        releasing.start()
        time.sleep(pause)
        lock.cancel()
        releasing.join()
        wait.join(20)
        assert not wait.is_alive()
        assert lock.held == (wait.error is None)
        if lock.held:
            lock.release()
    assert not os.path.exists(path)
