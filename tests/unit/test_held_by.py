"""``reentrant`` and ``held_by``: who may acquire again, and who may release."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

import semlock
from support import wait_until

FORMS = {
    "Lock": lambda path, **options: semlock.Lock(path, **options),
    "KernelLock": lambda path, **options: semlock.KernelLock(path, **options),
    "SlotLock": lambda path, **options: semlock.SlotLock(path, 1, **options),
    "SharedLock": lambda path, **options: semlock.SharedLock(path, **options),
    "a reader": lambda path, **options: Reader(path, **options),
}
ASYNC_FORMS = {
    "AsyncLock": lambda path, **options: semlock.AsyncLock(path, **options),
    "AsyncKernelLock": lambda path, **options: semlock.AsyncKernelLock(path, **options),
    "AsyncSlotLock": lambda path, **options: semlock.AsyncSlotLock(path, 1, **options),
    "AsyncSharedLock": lambda path, **options: semlock.AsyncSharedLock(path, **options),
    "a reading task": lambda path, **options: AsyncReader(path, **options),
}
READERS = ("a reader", "a reading task")


class Reader(semlock.SharedLock):
    acquire = semlock.SharedLock.acquire_shared
    try_acquire = semlock.SharedLock.try_acquire_shared


class AsyncReader(semlock.AsyncSharedLock):
    acquire = semlock.AsyncSharedLock.acquire_shared


def is_free(form, path) -> bool:
    """Tell whether another one could take the lock."""
    if "Slot" in form:
        return semlock.SlotLock(path, 1).status()[0].state == "free"
    if "reader" in form or "reading" in form:
        return not semlock.SharedLock(path).readers()
    if "Kernel" in form:
        return semlock.KernelLock(path).status().state == "free"
    return semlock.status(path).state == "free"


def in_a_thread(function):
    """Call a function in another thread: what it gives or raises."""
    told = []

    def call():
        try:
            told.append(function())
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if isinstance(told[0], BaseException):
        raise told[0]
    return told[0]


# ---------------------------------------------------------------- the thread or task holds


@pytest.mark.parametrize("form", FORMS)
def test_the_thread_that_holds_acquires_again(path, form):
    lock = FORMS[form](path, reentrant=True)
    lock.acquire()
    lock.acquire(timeout=0)
    assert lock.try_acquire()
    counts = [lock.count]
    while lock.held:
        assert not is_free(form, path)
        lock.release()
        counts.append(lock.count)
    assert counts == [3, 2, 1, 0]
    assert is_free(form, path)
    with pytest.raises(semlock.NotHeldError):
        lock.release()


@pytest.mark.parametrize("form", FORMS)
def test_another_thread_does_not_join_it(path, form):
    lock = FORMS[form](path, reentrant=True)
    with lock.acquire():
        if form not in READERS:
            assert not in_a_thread(lock.try_acquire)
        with pytest.raises(semlock.NotHeldError):
            in_a_thread(lock.release)
        assert lock.count == 1


@pytest.mark.parametrize("form", ASYNC_FORMS)
def test_the_task_that_holds_acquires_again(path, form):
    async def main() -> None:
        lock = ASYNC_FORMS[form](path, reentrant=True)
        async with lock.acquire():
            async with lock.acquire():
                assert lock.count == 2
            assert lock.count == 1
            assert not is_free(form, path)
            if form != "a reading task":
                with pytest.raises(semlock.LockTimeoutError):
                    await asyncio.create_task(take(lock, 0.01))
        assert lock.count == 0
        assert is_free(form, path)

    asyncio.run(main())


async def take(lock, timeout):
    await lock.acquire(timeout=timeout)


def test_a_reader_does_not_become_the_writer(path):
    lock = semlock.SharedLock(path, reentrant=True)
    with lock.shared(), pytest.raises(semlock.LockDeadlockError):
        lock.acquire(timeout=0.01)
    with lock, pytest.raises(semlock.LockDeadlockError):
        lock.acquire_shared(timeout=0.01)
    assert lock.count == 0
    assert is_free("SharedLock", path)


# ---------------------------------------------------------------- the object holds


@pytest.mark.parametrize("form", FORMS)
def test_any_thread_releases_what_the_object_holds(path, form):
    lock = FORMS[form](path, held_by="object")
    lock.acquire()
    in_a_thread(lock.release)
    assert not lock.held
    assert is_free(form, path)
    in_a_thread(lock.acquire)
    assert lock.held
    assert lock.count == 1
    lock.release()
    assert is_free(form, path)


@pytest.mark.parametrize("form", FORMS)
def test_any_thread_acquires_a_reentrant_object_again(path, form):
    lock = FORMS[form](path, held_by="object", reentrant=True)
    lock.acquire()
    for _ in range(2):
        in_a_thread(lambda: lock.acquire(timeout=1))
    assert lock.count == 3
    other = FORMS[form](path)
    if form not in READERS:
        assert not in_a_thread(other.try_acquire)
    for _ in range(3):
        assert not is_free(form, path)
        in_a_thread(lock.release)
    assert is_free(form, path)
    assert lock.count == 0


@pytest.mark.parametrize("form", [form for form in FORMS if form not in READERS])
def test_a_wait_for_what_the_object_holds_ends_with_any_release(path, form):
    lock = FORMS[form](path, held_by="object")
    lock.acquire()
    timer = threading.Timer(0.1, lock.release)
    timer.start()
    lock.acquire(timeout=20)  # no LockDeadlockError: another thread may release it, and does
    timer.join()
    assert lock.count == 1
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=0.01)
    lock.release()
    assert is_free(form, path)


@pytest.mark.parametrize("form", ASYNC_FORMS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_any_task_and_thread_releases_what_the_object_holds(path, form, reentrant):
    async def main() -> None:
        lock = ASYNC_FORMS[form](path, held_by="object", reentrant=reentrant)
        await lock.acquire()
        if reentrant:
            await asyncio.create_task(take(lock, 1))
            assert lock.count == 2
            await asyncio.to_thread(lock.release)
        assert lock.count == 1

        async def release():
            lock.release()

        await asyncio.create_task(release())
        assert lock.count == 0
        assert is_free(form, path)

    asyncio.run(main())


def test_an_object_takes_several_slots(path):
    lock = semlock.SlotLock(path, 3, held_by="object")
    for count in (1, 2, 3):
        in_a_thread(lock.acquire)
        assert lock.count == count
    assert not lock.try_acquire()
    in_a_thread(lock.release)
    assert lock.try_acquire()
    for _ in range(3):
        lock.release()
    assert (lock.count, lock.held) == (0, False)


def test_a_failed_wait_takes_nothing_from_the_thread_that_has_won(path):
    lock = semlock.SharedLock(path, held_by="object")
    with semlock.SharedLock(path).shared():
        pass
    lock.acquire()
    with pytest.raises(semlock.LockTimeoutError):
        in_a_thread(lambda: lock.acquire(timeout=0.2))
    assert lock.held == "exclusive"
    lock.release()


def test_a_second_writer_of_the_object_waits_for_readers_too(path):
    reader = semlock.SharedLock(path)
    lock = semlock.SharedLock(path, held_by="object", reentrant=True)
    reading, come = threading.Event(), []

    def read():
        with reader.shared():
            reading.set()
            wait_until(lambda: os.path.lexists(path), "a writer has the path")
            time.sleep(0.2)
            come.append("the reader has left")

    def write():
        lock.acquire(timeout=20)
        come.append("a writer")

    threads = [threading.Thread(target=read)]
    threads[0].start()
    assert reading.wait(20)
    for _ in range(2):
        threads.append(threading.Thread(target=write))
        threads[-1].start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(20)
    assert come == ["the reader has left", "a writer", "a writer"]
    for _ in range(2):
        lock.release()
    assert is_free("SharedLock", path)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in READERS])
def test_threads_that_wait_by_one_object_all_acquire_when_one_of_them_does(path, form):
    holder = FORMS[form](path)
    holder.acquire()
    lock, begun = FORMS[form](path, held_by="object", reentrant=True), []

    def work():
        begun.append(1)
        lock.acquire(timeout=4)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(begun) == 3, "all have begun")
    time.sleep(0.2)  # they stand in a queue now, if there is one
    released = time.monotonic()
    holder.release()
    for thread in threads:
        thread.join()
    assert lock.count == 3
    assert time.monotonic() - released < 3, "at the end of its wait each tries by itself"
    for _ in threads:
        lock.release()


LEAVE_AT_ONCE = """if True:
    import os, sys, threading, time, semlock
    path = sys.argv[1]
    holder = semlock.Lock(path, durability="none")
    holder.acquire()
    lock = semlock.Lock(path, held_by="object", reentrant=True, fair=True, durability="none")
    threads = [threading.Thread(target=lock.acquire, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    waiting = lambda: sum(len(names) for _, _, names in os.walk(os.path.dirname(path))) >= 5
    while not waiting():
        time.sleep(0.001)
    holder.release()
    for thread in threads:
        thread.join()
    for _ in threads:
        lock.release()
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    print(sum(".queue" in os.readlink(link) for link in links if os.path.islink(link)))
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("strace") is None,
    reason="strace has several threads leave the queue at the same moment",
)
def test_threads_that_leave_the_queue_at_the_same_moment_leave_no_ticket(tmp_path):
    words = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=flock"]
    words += ["-e", "inject=flock:delay_enter=100000"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("strace may not trace here")
    words += [sys.executable, "-c", LEAVE_AT_ONCE, str(tmp_path / "x")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.stdout == "0\n", done.stderr
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".queue")]


@pytest.mark.parametrize("kind", [semlock.Lock, semlock.KernelLock])
def test_threads_that_share_a_counting_object_lose_no_count(tmp_path, kind):
    lock = kind(tmp_path / "x", held_by="object", reentrant=True)

    def work():
        for _ in range(300):
            lock.acquire(timeout=20)
            assert lock.count >= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    with lock:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert lock.count == 1
    assert lock.count == 0


@pytest.mark.parametrize("wrong", ["task", "process", "", 1, True])
def test_who_can_not_hold_is_refused(path, wrong):
    with pytest.raises(ValueError, match='held_by is "thread" or "object"'):
        semlock.Lock(path, held_by=wrong)
    with pytest.raises(ValueError, match='held_by is "thread" or "object"'):
        semlock.KernelLock(path, held_by=wrong)


def test_a_thread_does_not_hold_a_lock_of_tasks(path):
    with pytest.raises(ValueError, match='held_by is "task" or "object"'):
        semlock.AsyncLock(path, held_by="thread")
    semlock.AsyncLock(path, held_by="task")
    semlock.Lock(path, held_by="thread")
