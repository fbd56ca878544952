"""Numbers of seconds: of any kind, of any size, and refused where they are none."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import fractions
import math
import threading

import pytest

import semlock
from semlock import policy, retry, sema, sidecar, task
from support import Child, wait_until

ENDLESS = [
    math.inf, 1e300, 1e18, 10**400, 9_300_000_000, 1e9, decimal.Decimal("Infinity"),
    decimal.Decimal("1e500"), fractions.Fraction(10**400),
]  # fmt: skip
NONE = [
    math.nan, -1, -0.5, -math.inf, -(10**400), decimal.Decimal("NaN"), decimal.Decimal("sNaN"),
    decimal.Decimal(-1), True, False, "5", b"5", 5j, [5], object(),
]  # fmt: skip
SMALL = [0, 0.0, 0.01, decimal.Decimal("0.01"), fractions.Fraction(1, 100)]


def shortly(value):
    """Name a number in a test's name."""
    return repr(value)[:30]


class Seconds:
    """A number of another library, such as numpy's."""

    def __init__(self, seconds):
        self._seconds = seconds

    def __float__(self):
        return self._seconds


LOCKS = {
    "Lock": semlock.Lock,
    "fair": lambda path, **options: semlock.Lock(path, fair=True, **options),
    "SlotLock": lambda path, **options: semlock.SlotLock(path, 1, **options),
    "SharedLock": semlock.SharedLock,
    "TaskLock": lambda path, **options: task.TaskLock(path, "me", **options),
    "Semaphore": sema.Semaphore,
    "SidecarLock": sidecar.SidecarLock,
}
ASYNC = {
    "AsyncLock": semlock.AsyncLock,
    "AsyncSlotLock": lambda path, **options: semlock.AsyncSlotLock(path, 1, **options),
    "AsyncSharedLock": semlock.AsyncSharedLock,
}


@contextlib.contextmanager
def releasing(lock):
    yield
    lock.release()


def calls(lock):
    yield lock.acquire
    if hasattr(lock, "acquire_shared"):
        yield lock.acquire_shared
    if type(lock) in (semlock.Lock, sema.Semaphore):
        yield lambda seconds: releasing(semlock.acquire_any([lock], seconds))
        yield lambda seconds: semlock.acquire_all([lock], seconds)


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
def test_what_is_no_number_of_seconds_is_refused_before_anything_is_tried(make, tmp_path):
    path = tmp_path / "the.lock"
    for seconds in NONE:
        with pytest.raises(ValueError, match="timeout is None or a number of seconds"):
            make(path, timeout=seconds)
        for call in calls(make(path)):
            with pytest.raises(ValueError, match="timeout is None or a number of seconds"):
                call(seconds)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("seconds", [*SMALL, Seconds(0.01)])
def test_numbers_of_every_kind_are_timeouts(make, seconds, tmp_path):
    other = make(tmp_path / "the.lock")
    with Taken(other):
        with pytest.raises(semlock.LockTimeoutError):
            make(tmp_path / "the.lock", timeout=seconds).acquire()
        for call in calls(make(tmp_path / "the.lock")):
            with pytest.raises(semlock.LockTimeoutError):
                call(seconds)


class Taken:
    """A lock that another thread holds until the block ends, or it is told to let go."""

    def __init__(self, lock):
        self._lock = lock
        self._taken, self.end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        with self._lock:
            self._taken.set()
            self.end.wait()

    def __enter__(self):
        self._thread.start()
        self._taken.wait()
        return self

    def __exit__(self, *_):
        self.end.set()
        self._thread.join()


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
@pytest.mark.parametrize("seconds", ENDLESS, ids=shortly)
def test_a_timeout_that_never_comes_is_waited_for_like_none(make, seconds, tmp_path):
    for call in calls(make(tmp_path / "the.lock")):
        with Taken(make(tmp_path / "the.lock")) as other:
            begun = threading.Timer(0.001, other.end.set)
            begun.start()
            manager = call(seconds)
        with manager:
            pass


@pytest.mark.parametrize("make", ASYNC.values(), ids=ASYNC)
@pytest.mark.parametrize("seconds", ENDLESS, ids=shortly)
def test_a_task_waits_for_a_timeout_that_never_comes(make, seconds, tmp_path):
    async def main():
        held, lock = make(tmp_path / "the.lock"), make(tmp_path / "the.lock", timeout=seconds)
        manager = await held.acquire()

        async def wait():
            async with lock:
                pass
            async with await lock.acquire(seconds):
                pass

        waits = asyncio.ensure_future(wait())
        await asyncio.sleep(0.005)
        async with manager:
            assert not waits.done()
        await waits

    asyncio.run(main())


def test_a_task_waits_for_any_or_all_with_a_timeout_that_never_comes(tmp_path):
    async def main():
        lock = semlock.AsyncLock(tmp_path / "the.lock")
        for seconds in ENDLESS:
            (await semlock.acquire_any_async([lock], seconds)).release()
            async with await semlock.acquire_all_async([lock], seconds):
                pass
            held = semlock.AsyncLock(tmp_path / "the.lock")
            async with held:
                waits = [
                    asyncio.ensure_future(semlock.acquire_any_async([lock], seconds)),
                ]
                await asyncio.sleep(0.002)
            (await waits[0]).release()
        for seconds in NONE:
            with pytest.raises(ValueError, match="timeout"):
                lock.acquire(seconds)
            with pytest.raises(ValueError, match="timeout"):
                semlock.acquire_any_async([lock], seconds)

    asyncio.run(main())


@pytest.mark.parametrize("seconds", ENDLESS, ids=shortly)
def test_a_heartbeat_that_never_comes_is_one(seconds, tmp_path):
    with semlock.Lock(tmp_path / "the.lock", heartbeat=seconds) as lock:
        lock.refresh()


def test_what_is_no_pause_is_no_heartbeat_and_no_schedule(tmp_path):
    for seconds in [*NONE, 0, decimal.Decimal(0)]:
        with pytest.raises(ValueError, match="heartbeat is a number of seconds above 0"):
            semlock.Lock(tmp_path / "the.lock", heartbeat=seconds)
        with pytest.raises(ValueError, match="a pause is a number of seconds above 0"):
            retry.Every(seconds)


def test_ages_of_every_kind_are_ages(tmp_path):
    for seconds in [*ENDLESS, *SMALL]:
        policy.Age(seconds)
        sidecar.stale(seconds)
    for seconds in NONE:
        with pytest.raises(ValueError, match="number of seconds from 0 on"):
            policy.Age(seconds)
        with pytest.raises(ValueError, match="number of seconds from 0 on"):
            sidecar.stale(seconds)
    for seconds in [*NONE, *ENDLESS[:1], 10**400]:
        with pytest.raises(ValueError, match="a ttl is a number of seconds"):
            task.TaskLock(tmp_path / "the.lock", "me", ttl=seconds)


@pytest.mark.parametrize(
    "seconds", [math.inf, 1e300, 1e18, decimal.Decimal("1e500")], ids=shortly
)
def test_a_schedule_may_give_pauses_without_an_end(seconds, tmp_path):
    path = str(tmp_path / "the.lock")
    with Child() as child:
        child.run(f"held = semlock.Lock({path!r}); held.acquire(); None")
        lock = semlock.Lock(path, retry=lambda: iter([seconds]))
        threading.Timer(0.01, lambda: child.send("held.release()")).start()
        lock.acquire()
        lock.release()
        child.receive()


def test_the_command_waits_for_a_timeout_that_never_comes(tmp_path):
    path = str(tmp_path / "the.lock")
    with Child("import os, semlock, subprocess, sys") as child:
        for seconds in ("inf", "1e300", "1e18", "9" * 400):
            lock = semlock.Lock(path)
            with lock:
                child.send(
                    "subprocess.run([sys.executable, '-m', 'semlock', 'run', '--timeout', "
                    f"{seconds!r}, {path!r}, '--', sys.executable, '-c', 'pass'], timeout=20)"
                    ".returncode"
                )
                assert not child.answered(0.15)
            assert child.receive() == 0
    wait_until(lambda: not (tmp_path / "the.lock").exists(), "the lock is free")
