"""Who a thread is: a new one never passes for one that has ended, whatever the system calls it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import multiprocessing.pool
import threading
import time
from types import SimpleNamespace

import pytest

import semlock
from semlock import sema, semats, sidecar, task
from semlock._core import capi, registry
from semlock._locks import mine
from support import PATIENCE, wait_until

MANY = 200

given_again = pytest.mark.usefixtures("idents_are_given_again")


def in_thread(function):
    """Run a function in a thread of its own: the system's number of it, and what came of it."""
    found = []

    def work() -> None:
        found.append(threading.get_ident())
        try:
            found.append(function())
        except semlock.SemlockError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


@pytest.fixture(scope="module")
def idents_are_given_again():
    """Skip where they aren't, before anything is left held."""
    idents = [in_thread(int)[0] for _ in range(MANY)]
    if len(set(idents)) > len(idents) // 2:
        pytest.skip("the system gives no thread the number of an ended one")


def in_a_thread_that_has_the_ident(ident, function):
    """Run a function in a new thread that the system gives an ended one's number."""
    for _ in range(MANY):
        found = in_thread(lambda: function() if threading.get_ident() == ident else None)
        if found[0] == ident:
            return found[1]
    pytest.skip("the system gives no thread the number of an ended one")


def test_a_threads_number_is_never_given_again():
    numbers = {in_thread(capi.this_thread)[1] for _ in range(MANY)}
    assert len(numbers) == MANY
    assert capi.this_thread() == capi.this_thread()


@given_again
def test_a_new_thread_with_an_ended_ones_ident_does_not_enter_its_reentrant_lock(tmp_path):
    lock = semlock.Lock(tmp_path / "the.lock", reentrant=True)
    ident, _ = in_thread(lock.acquire)
    try:
        assert in_a_thread_that_has_the_ident(ident, lock.try_acquire) is False
    finally:
        lock._native.reentrant = 0  # so that this thread may let go of what the ended one left
        lock.release()


@given_again
def test_a_new_thread_with_an_ended_ones_ident_gets_no_false_deadlock(tmp_path):
    lock = semlock.Lock(tmp_path / "the.lock")
    ident, _ = in_thread(lock.acquire)
    try:
        error = in_a_thread_that_has_the_ident(ident, lambda: lock.acquire(0.01))
        assert type(error) is semlock.LockTimeoutError
    finally:
        lock.release()


@given_again
def test_a_new_thread_with_an_ended_ones_ident_has_none_of_its_slots(tmp_path):
    lock = semlock.SlotLock(tmp_path / "the.lock", 2)
    ident, _ = in_thread(lock.acquire)
    try:
        assert in_a_thread_that_has_the_ident(ident, lambda: lock.held) is False
    finally:
        for slot in lock._locks:
            registry.release_now(slot)


@given_again
def test_a_new_thread_with_an_ended_ones_ident_does_not_read_for_it(tmp_path):
    lock = semlock.SharedLock(tmp_path / "the.lock")
    ident, _ = in_thread(lock.acquire_shared)
    try:
        assert in_a_thread_that_has_the_ident(ident, lambda: lock.held) is None
        assert in_a_thread_that_has_the_ident(ident, lock.try_acquire_shared) is True
    finally:
        for me, reader in lock._readers.items():
            registry.release_now(reader)
            mine.end_reading(me, lock.path)


# ---------------------------------------------------------------- workers, which run many jobs


def futures_worker():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return SimpleNamespace(start=pool.submit, end=pool.shutdown)


def pool_worker():
    pool = multiprocessing.pool.ThreadPool(1)

    def start(job, *arguments):
        asked = pool.apply_async(job, arguments)
        return SimpleNamespace(result=asked.get)

    return SimpleNamespace(start=start, end=pool.terminate)


FORMS = {
    "lock": semlock.Lock,
    "sema": sema.Semaphore,
    "semats": semats.Semaphore,
    "task": lambda path: task.TaskLock(path, owner="someone"),
    "sidecar": lambda path: sidecar.SidecarLock(path.removesuffix(".lock")),
}


@pytest.fixture(params=[futures_worker, pool_worker])
def worker(request):
    worker = request.param()
    yield worker
    worker.end()


def waits_for_an_earlier_job(worker, caplog, lock, take):
    """Two jobs of one thread: the second waits until this thread lets go for the first one."""
    caplog.clear()
    mine._warned.clear()
    worker.start(lock.acquire).result(PATIENCE)
    second = worker.start(take)
    try:
        wait_until(lambda: caplog.records, "a warning", 5)
        before = time.process_time(), time.monotonic()
        time.sleep(0.2)
        burnt, passed = time.process_time() - before[0], time.monotonic() - before[1]
        assert burnt < passed / 4, "it does not sleep"
    finally:
        lock.release()
    second.result(PATIENCE)
    (told,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "job of this worker thread" in told.getMessage()


@pytest.mark.parametrize("same", [True, False], ids=["same object", "another object"])
@pytest.mark.parametrize("form", FORMS)
def test_a_job_waits_for_the_lock_of_an_earlier_job_of_its_thread(
    form, same, worker, tmp_path, caplog
):
    path = str(tmp_path / "the.lock")
    lock = FORMS[form](path)
    other = lock if same else FORMS[form](path)
    waits_for_an_earlier_job(
        worker, caplog, lock, lambda: (other.acquire(timeout=None), other.release())
    )


def test_a_job_waits_for_any_of_the_locks_of_an_earlier_job(worker, tmp_path, caplog):
    lock = semlock.Lock(tmp_path / "the.lock")
    other = semlock.Lock(lock.path)
    waits_for_an_earlier_job(
        worker, caplog, lock, lambda: semlock.acquire_any([other], PATIENCE).release()
    )


def test_tasks_take_turns_through_to_thread(tmp_path):
    inside = []

    async def job(number):
        lock = semlock.Lock(tmp_path / "the.lock", timeout=PATIENCE)
        await asyncio.to_thread(lock.acquire)
        inside.append(number)
        assert inside == [number]
        await asyncio.sleep(0.01)
        inside.remove(number)
        await asyncio.to_thread(lock.release)

    async def main():
        await asyncio.gather(*map(job, range(3)))

    asyncio.run(main())


def test_a_plain_threads_wait_for_itself_is_an_error_beside_executors(worker, tmp_path):
    lock, other = (semlock.Lock(tmp_path / "the.lock") for _ in range(2))

    def work():
        with lock:
            other.acquire()

    assert worker.start(int).result(PATIENCE) == 0
    assert type(in_thread(work)[1]) is semlock.LockDeadlockError
    with lock, pytest.raises(semlock.LockDeadlockError):
        other.acquire()
