"""The sidecar lock's async forms: they wait in the event loop, and cancelling leaks nothing."""

import asyncio
import json
import os
import random
import threading
import time

import pytest

import semlock
from semlock import sidecar
from semlock.sidecar import RetryOptions, SidecarLock
from support import content_of, set_everywhere, take_away

ONCE = RetryOptions(retries=0)
FAST = RetryOptions(min_timeout=0.001, max_timeout=0.002)


def run(function):
    """Run a coroutine function with an end to it, in debug mode."""
    return asyncio.run(asyncio.wait_for(function(), 30), debug=True)


def test_a_handle_lets_go_at_the_end_of_its_block(target, lock_file):
    async def main():
        async with await sidecar.acquire_file_lock_async(target) as handle:
            assert handle.lock_path == str(lock_file)
            assert lock_file.exists()
        assert not lock_file.exists()
        await handle.release_async()

    run(main)


def test_the_loop_goes_on_while_a_task_waits(target):
    async def main():
        ticks = 0
        handle = await sidecar.acquire_file_lock_async(target)
        waiting = asyncio.create_task(sidecar.acquire_file_lock_async(target, retry=FAST))
        while ticks < 50:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not waiting.done()
        await handle.release_async()
        await (await waiting).release_async()

    run(main)


def test_no_wait_sleeps_in_the_thread(target, monkeypatch):
    sleep, loops = time.sleep, threading.get_ident()

    def refuse(seconds):  # other threads of the process may sleep meanwhile
        assert threading.get_ident() != loops, "the loop was stopped"
        sleep(seconds)

    monkeypatch.setattr("time.sleep", refuse)

    async def main():
        async with await sidecar.acquire_file_lock_async(target):
            with pytest.raises(sidecar.FileLockTimeoutError):
                await sidecar.acquire_file_lock_async(target, timeout=0.05)

    run(main)


def test_tasks_exclude_each_other(target):
    inside = 0

    async def worker():
        nonlocal inside
        for _ in range(10):
            async with await sidecar.acquire_file_lock_async(target, retry=FAST):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

    async def main():
        await asyncio.gather(*(worker() for _ in range(8)))

    run(main)


def test_a_task_that_holds_may_wait_for_another_one_without_being_called_a_deadlock(target):
    async def main():
        async with await sidecar.acquire_file_lock_async(target):
            waiting = asyncio.create_task(sidecar.acquire_file_lock_async(target))
            await asyncio.sleep(0.02)
            assert not waiting.done()
        (await waiting).release()

    run(main)


def test_the_callbacks_may_be_coroutine_functions(target, lock_file):
    lock_file.write_text("{}")
    os.utime(lock_file, (1, 1))
    told = []

    async def payload():
        await asyncio.sleep(0)
        told.append("payload")
        return {"n": len(told)}

    async def reclaim(question):
        await asyncio.sleep(0)
        told.append(question.payload)
        return True

    async def remove(snapshot):
        await asyncio.sleep(0)
        told.append(snapshot.raw)
        return True

    async def main():
        async with await sidecar.acquire_file_lock_async(
            target,
            payload=payload,
            should_reclaim=reclaim,
            stale_recovery="remove-if-unchanged",
            should_remove_stale_lock=remove,
        ):
            assert json.loads(content_of(lock_file)) == {"n": 4}

    run(main)
    assert told == ["payload", {}, "{}", "payload"]


def test_the_callbacks_may_be_plain_functions_too(target):
    async def main():
        async with await sidecar.acquire_file_lock_async(
            target, payload=lambda: {"n": 1}
        ) as handle:
            assert handle.lock.info.payload == {"n": 1}

    run(main)


def test_the_errors_are_the_same(target, lock_file):
    async def main():
        async with await sidecar.acquire_file_lock_async(target):
            with pytest.raises(sidecar.FileLockTimeoutError) as caught:
                await sidecar.acquire_file_lock_async(target, retry=ONCE)
            assert caught.value.code == "file_lock_timeout"
        lock_file.write_text("")
        os.utime(lock_file, (1, 1))
        with pytest.raises(sidecar.FileLockStaleError):
            await sidecar.acquire_file_lock_async(target)

    run(main)


def test_a_reentrant_acquisition_joins_while_it_waits(target, lock_file):
    locks = sidecar.create_file_lock_manager("async")

    async def main():
        outer = await locks.acquire_async(target)
        inner = await locks.acquire_async(target, allow_reentrant=True)
        await outer.release_async()
        assert lock_file.exists()
        async with inner:
            pass
        assert not lock_file.exists()

    run(main)


def test_with_lock_takes_functions_of_both_kinds(target, lock_file):
    locks = sidecar.create_file_lock_manager("async with")

    async def work():
        await asyncio.sleep(0)
        return lock_file.exists()

    async def main():
        assert await sidecar.with_file_lock_async(target, work) is True
        assert await sidecar.with_file_lock_async(target, lock_file.exists) is True
        assert await locks.with_lock_async(target, work) is True
        with pytest.raises(ZeroDivisionError):
            await locks.with_lock_async(target, lambda: 1 / 0)
        assert not lock_file.exists()

    run(main)


def test_drain_lets_go_of_everything_and_tells_what_was_lost(tmp_path):
    locks = sidecar.create_file_lock_manager("async drain")

    async def main():
        for name in "abc":
            await locks.acquire_async(tmp_path / name)
        take_away(tmp_path / "b.lock")
        with pytest.raises(semlock.LockLostError):
            await locks.drain_async()
        assert locks.held_entries() == []
        assert not list(tmp_path.glob("*.lock"))

    run(main)


def test_a_loss_is_told_at_the_end_of_the_block(target, lock_file):
    async def main():
        with pytest.raises(semlock.LockLostError):
            async with await sidecar.acquire_file_lock_async(target):
                take_away(lock_file)
        with pytest.warns(semlock.LockLostWarning), pytest.raises(ZeroDivisionError):
            async with await sidecar.acquire_file_lock_async(target):
                take_away(lock_file)
                raise ZeroDivisionError

    run(main)


def test_releasing_waits_for_the_guard_in_the_loop(target, lock_file):
    fcntl = pytest.importorskip("fcntl")

    async def main():
        handle = await sidecar.acquire_file_lock_async(target)
        with lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            releasing = asyncio.create_task(handle.release_async())
            await asyncio.sleep(0.05)
            assert not releasing.done()
        await releasing
        assert not lock_file.exists()

    run(main)


def test_releasing_ends_although_the_task_is_cancelled(target, lock_file):
    fcntl = pytest.importorskip("fcntl")

    async def main():
        handle = await sidecar.acquire_file_lock_async(target)
        with lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            releasing = asyncio.create_task(handle.release_async())
            await asyncio.sleep(0.02)
            releasing.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert not lock_file.exists()

    run(main)


def test_releasing_gives_up_on_the_guard_and_can_be_tried_again(target, lock_file, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.01)

    async def main():
        handle = await sidecar.acquire_file_lock_async(target)
        with lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(semlock.LockTimeoutError, match="keeps its file locked"):
                await handle.release_async()
        assert lock_file.exists()
        await handle.release_async()
        assert not lock_file.exists()

    run(main)


class TestCancelling:
    def test_a_waiting_task_leaves_nothing(self, target, names):
        locks = sidecar.create_file_lock_manager("cancelled")

        async def main():
            async with await locks.acquire_async(target):
                waiting = asyncio.create_task(locks.acquire_async(target))
                await asyncio.sleep(0.02)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            assert locks.held_entries() == []

        run(main)
        assert [name for name in names() if name.endswith(".lock")] == []

    def test_a_task_in_its_payload_leaves_nothing(self, target, names):
        async def payload():
            await asyncio.sleep(30)

        async def main():
            task = asyncio.create_task(sidecar.acquire_file_lock_async(target, payload=payload))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(main)
        assert names() == []

    def test_at_any_time_leaves_a_lock_that_is_held_or_one_that_is_free(self, target, names):
        locks = sidecar.create_file_lock_manager("storm of cancels")
        chance = random.Random(7)
        inside = 0

        async def worker():
            nonlocal inside
            async with await locks.acquire_async(target, retry=FAST):
                inside += 1
                try:
                    assert inside == 1
                    await asyncio.sleep(0.001)
                finally:
                    inside -= 1

        async def main():
            end = time.monotonic() + 0.6
            while time.monotonic() < end:
                tasks = [asyncio.create_task(worker()) for _ in range(6)]
                await asyncio.sleep(chance.random() * 0.006)
                for task in tasks:
                    task.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(f is None or isinstance(f, asyncio.CancelledError) for f in found)
                assert locks.held_entries() == []

        run(main)
        assert [name for name in names() if name.endswith(".lock")] == []

    def test_by_wait_for_leaves_nothing(self, target):
        async def main():
            async with await sidecar.acquire_file_lock_async(target):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(sidecar.acquire_file_lock_async(target), 0.02)
            (await sidecar.acquire_file_lock_async(target, retry=ONCE)).release()

        run(main)


class TestTheLockObject:
    def test_has_async_forms_of_acquire_and_release(self, target, lock_file):
        async def main():
            lock = SidecarLock(target, timeout=0.01)
            await lock.acquire_async()
            assert lock.held
            with pytest.raises(sidecar.FileLockTimeoutError):
                await SidecarLock(target, timeout=0.01).acquire_async()
            with pytest.raises(sidecar.FileLockTimeoutError):
                await SidecarLock(target).acquire_async(timeout=0)
            await lock.release_async()
            assert not lock_file.exists()
            with pytest.raises(semlock.NotHeldError):
                await lock.release_async()

        run(main)

    def test_can_be_shared_by_tasks(self, target):
        lock = SidecarLock(target, retry=FAST)
        order = []

        async def worker(name):
            await lock.acquire_async()
            order.append(name)
            await asyncio.sleep(0.002)
            order.append(name)
            await lock.release_async()

        async def main():
            await asyncio.gather(*(worker(name) for name in range(4)))

        run(main)
        assert order[::2] == order[1::2]

    def test_refuses_an_impossible_timeout(self, target):
        async def main():
            with pytest.raises(ValueError, match="timeout"):
                await SidecarLock(target).acquire_async(timeout=-1)

        run(main)
