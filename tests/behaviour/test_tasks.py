"""What every lock does for tasks, whatever it stands on."""

from __future__ import annotations

import asyncio
import os

import pytest

import semlock
from semlock._waiting.hub import hub_here
from support import PATIENCE, trio_or_skip, wait_until


def run(function, *, trio=False):
    """Run a coroutine function in a loop, which has nothing left of it afterwards."""

    async def whole():
        await function()
        hub = hub_here()
        assert (hub.waits, hub.lines) == (set(), {})

    if trio:
        trio_or_skip().run(whole)
    else:
        asyncio.run(asyncio.wait_for(whole(), PATIENCE))


@pytest.mark.parametrize("trio", [False, True], ids=["asyncio", "trio"])
def test_a_task_holds_it_in_a_block(world, other, trio):
    lock = world.async_lock()

    async def main():
        async with lock:
            assert lock.held
            assert not other.try_acquire()
        async with await lock.acquire(timeout=1):
            assert lock.info.pid == os.getpid()
        assert lock.try_acquire()
        lock.release()
        with pytest.raises(TypeError, match="async with"):
            lock.__enter__()

    run(main, trio=trio)


@pytest.mark.parametrize("trio", [False, True], ids=["asyncio", "trio"])
def test_a_task_waits_while_its_loop_goes_on(world, stranger, trio):
    lock = world.async_lock()
    stranger.hold()

    async def main():
        ticks = 0

        async def ticking():
            nonlocal ticks
            while True:
                await hub_here().rest(0.001)
                ticks += 1
                if ticks == 20:
                    stranger.release()

        if trio:
            nursery = trio_or_skip().open_nursery()
            async with nursery as tasks:
                tasks.start_soon(ticking)
                async with lock:
                    tasks.cancel_scope.cancel()
        else:
            beside = asyncio.create_task(ticking())
            async with lock:
                beside.cancel()
        assert ticks >= 20

    run(main, trio=trio)


def test_tasks_of_one_object_exclude_each_other(world):
    lock = world.async_lock()
    inside, most = 0, 0

    async def work():
        nonlocal inside, most
        for _ in range(5):
            async with lock:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    async def main():
        await asyncio.gather(*(work() for _ in range(4)))

    run(main)
    assert most == 1


def test_a_task_waits_for_another_one_that_holds_by_the_same_object(world):
    lock = world.async_lock()

    async def main():
        async with lock:
            waiting = asyncio.create_task(lock.acquire(timeout=PATIENCE))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        async with await waiting:
            assert lock.held

    run(main)


@pytest.mark.usefixtures("named")
def test_a_task_whose_time_is_over_is_told_who_holds_it(world, stranger):
    lock = world.async_lock()
    stranger.hold()

    async def main():
        for limit in (0, 0.05):
            with pytest.raises(semlock.LockTimeoutError) as failure:
                await lock.acquire(timeout=limit)
            assert failure.value.status.info.pid == stranger.pid

    run(main)


def test_a_cancelled_task_holds_nothing(world, stranger):
    lock = world.async_lock()
    stranger.hold()

    async def main():
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not lock.held
        stranger.release()
        async with await lock.acquire(timeout=PATIENCE):
            pass

    run(main)


def test_a_tasks_wait_can_be_cancelled_from_a_thread(world, stranger):
    lock = world.async_lock()
    stranger.hold()

    async def main():
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.to_thread(wait_until, lock.cancel, "it waits")
        with pytest.raises(semlock.LockCancelledError):
            await waiting
        assert not lock.held
        stranger.release()
        async with await lock.acquire(timeout=PATIENCE):
            pass

    run(main)


def test_a_reentrant_lock_of_tasks_is_reentrant_for_the_task_that_holds(world):
    lock = world.async_lock(reentrant=True)

    async def main():
        async with lock:
            async with lock:
                assert not await asyncio.create_task(trying())
            assert lock.held
            with pytest.raises(semlock.LockTimeoutError):
                await asyncio.create_task(lock.acquire(timeout=0))
        assert not lock.held

    async def trying():
        return lock.try_acquire()

    run(main)


def test_a_task_that_waits_for_itself_is_refused(world):
    if not world.refuses_itself:
        pytest.skip("its waits go on until their time is over")
    lock = world.async_lock()

    async def main():
        async with lock:
            with pytest.raises(semlock.LockDeadlockError, match="task"):
                await lock.acquire(timeout=PATIENCE)

    run(main)


def test_a_lost_lock_of_a_task_is_noticed(world):
    lock = world.async_lock()

    async def main():
        with pytest.raises(semlock.LockLostError):
            async with lock:
                world.take_away()

    run(main)


@pytest.mark.usefixtures("named")
def test_on_wait_is_told_to_tasks(world, stranger):
    stranger.hold()
    told = []
    lock = world.async_lock(on_wait=lambda found, _: told.append(found.info.pid))

    async def main():
        with pytest.raises(semlock.LockTimeoutError):
            await lock.acquire(timeout=0.5 if hasattr(world, "ttl") else 0.05)

    run(main)
    assert told == [stranger.pid]


def test_tasks_that_wait_come_in_the_order_in_which_they_asked(world, stranger):
    options = {} if world.has_queue else {"fair": True}
    stranger.hold()
    came, told = [], []

    async def wait(number, all_wait):
        def note(*_):
            told.append(number)
            if len(told) == 4:
                all_wait.set()

        async with world.async_lock(on_wait=note, **options):
            came.append(number)

    async def main():
        all_wait = asyncio.Event()
        tasks = [asyncio.create_task(wait(number, all_wait)) for number in range(4)]
        await all_wait.wait()
        stranger.release()
        await asyncio.gather(*tasks)

    run(main)
    assert came == [0, 1, 2, 3]


def test_a_decorated_coroutine_function_runs_under_the_lock(world):
    lock = world.async_lock()

    @lock
    async def inside():
        return lock.held

    async def main():
        assert await inside()
        assert not lock.held

    run(main)
