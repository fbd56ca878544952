"""What a wait tells people."""

import asyncio
import itertools
import logging
import threading

import pytest

import semlock
import semlock.retry
from semlock._waiting import Notice
from support import Child


class Found:
    """A status, as far as a notice looks at it."""

    path, state, holder = "the.lock", "held", "a process"


def notice(call=None, logger=None, status=Found):
    return Notice(status, call, logger)


def test_it_calls_at_the_beginning_and_then_less_and_less_often():
    told = []
    wait = notice(lambda found, waited: told.append(waited))
    for tenths in range(6000):
        wait.tell(100 + tenths / 10)
    gaps = [b - a for a, b in itertools.pairwise(told)]
    assert told[0] == 0
    assert gaps[0] == pytest.approx(2, abs=1.1)
    assert all(b >= a - 0.11 for a, b in itertools.pairwise(gaps))
    assert max(gaps) == pytest.approx(60, abs=0.2)


def test_a_lock_that_is_free_by_then_is_not_told_of():
    class Free(Found):
        state = "free"

    told = []
    notice(lambda *what: told.append(what), status=Free).tell(1.0)
    assert not told


def test_a_path_that_can_not_be_looked_at_is_left_to_the_next_try():
    def fail():
        raise PermissionError

    told = []
    notice(lambda *what: told.append(what), status=fail).tell(1.0)
    assert not told


def test_a_wait_calls_with_the_holder_and_how_long_it_has_lasted(path):
    told = []
    lock = semlock.Lock(path, on_wait=lambda found, waited: told.append((found, waited)))
    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}, tag='their work'); lock.try_acquire()")
        with pytest.raises(semlock.LockTimeoutError):
            lock.acquire(timeout=0.05)
        found, waited = told[0]
        assert (found.state, found.verdict, found.info.tag) == ("held", "alive", "their work")
        assert waited == 0
        child.run("lock.release()")
    with lock:
        pass
    assert len(told) == 1  # a lock that is free is not waited for


def test_what_the_callback_raises_ends_the_wait_and_leaves_nothing(path, names):
    class EnoughError(Exception):
        pass

    def give_up(found, waited):
        raise EnoughError

    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.try_acquire()")
        lock = semlock.Lock(path, on_wait=give_up)
        with pytest.raises(EnoughError):
            lock.acquire()
        assert not lock.held
        assert names() == ["the.lock"]


def test_a_try_that_does_not_wait_tells_nothing(path):
    told = []
    lock = semlock.Lock(path, on_wait=lambda *what: told.append(what))
    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.try_acquire()")
        assert not lock.try_acquire()
        with pytest.raises(semlock.LockTimeoutError):
            lock.acquire(timeout=0)
    assert not told


def test_a_wait_is_one_line_of_the_log_however_often_it_looks(path, caplog):
    caplog.set_level(logging.INFO, logger="semlock")
    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}, tag='their work'); lock.try_acquire()")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path, retry=semlock.retry.Every(0.005)).acquire(timeout=1.3)
    lines = [record.getMessage() for record in caplog.records if record.name == "semlock"]
    assert len(lines) == 1
    assert path in lines[0]
    assert "their work" in lines[0]
    assert "alive" in lines[0]


def test_a_wait_that_is_short_is_not_logged(path, caplog):
    caplog.set_level(logging.DEBUG, logger="semlock")
    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.try_acquire()")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path).acquire(timeout=0.3)
    assert not caplog.records


def test_a_hundred_tasks_that_wait_for_one_lock_are_one_line_of_the_log(path, caplog):
    caplog.set_level(logging.INFO, logger="semlock")

    async def wait(lock):
        with pytest.raises(semlock.LockTimeoutError):
            await lock.acquire(timeout=1.3)

    async def crowd():
        lock = semlock.AsyncLock(path)
        await asyncio.gather(*(wait(lock) for _ in range(100)))

    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.try_acquire()")
        asyncio.run(crowd())
    assert len(caplog.records) == 1


def test_threads_that_wait_each_tell_for_themselves(path):
    told = []
    lock = semlock.Lock(path, on_wait=lambda found, waited: told.append(threading.get_ident()))
    with Child("import semlock") as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.try_acquire()")

        def wait():
            with pytest.raises(semlock.LockTimeoutError):
                lock.acquire(timeout=0.05)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(told)) == 3
