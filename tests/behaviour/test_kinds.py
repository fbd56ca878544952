"""Readers and writers, slots, and calls for several locks: what they do on files and on engines."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import semlock
from semlock._waiting.hub import hub_here
from support import PATIENCE, trio_or_skip, wait_until

each_loop = pytest.mark.parametrize("trio", [False, True], ids=["asyncio", "trio"])


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


async def beside(work, meanwhile, *, trio=False):
    """Run one coroutine function while another one runs."""
    if trio:
        async with trio_or_skip().open_nursery() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(meanwhile)
    else:
        await asyncio.gather(work(), meanwhile())


async def release_later(lock) -> None:
    """Release a lock after many steps of the loop, which must not be blocked meanwhile."""
    for _ in range(50):
        await hub_here().rest(0.001)
    lock.release()


def thread(function) -> threading.Thread:
    one = threading.Thread(target=function)
    one.start()
    return one


# ---------------------------------------------------------------------- readers and writers


def test_readers_share_and_a_writer_does_not(world):
    one, two = world.kind("SharedLock"), world.kind("SharedLock", timeout=0)
    with one.shared():
        assert one.held == "shared"
        with pytest.raises(semlock.LockDeadlockError):
            one.acquire(timeout=0)
        said = []

        def other():
            with two.shared():
                said.append((two.held, two.try_acquire(), len(two.readers())))
            with pytest.raises(semlock.LockTimeoutError):
                two.acquire()
            said.append(two.try_acquire())

        thread(other).join()
        assert said == [("shared", False, 2), False]
    with one:
        assert one.held == "exclusive"
        said = []
        thread(lambda: said.append((two.try_acquire_shared(), two.try_acquire()))).join()
        assert said == [(False, False)]
    assert one.held is None
    with pytest.raises(semlock.NotHeldError):
        one.release()


@each_loop
def test_readers_of_tasks_share_and_a_writer_does_not(world, trio):
    one, two = world.kind("AsyncSharedLock"), world.kind("AsyncSharedLock", timeout=0)

    async def other():
        async with two.shared():
            assert two.held == "shared"
        async with await two.acquire_shared(timeout=0):
            pass
        assert not two.try_acquire()
        with pytest.raises(semlock.LockTimeoutError):
            await two.acquire()

    async def refused():
        assert not two.try_acquire_shared()
        with pytest.raises(semlock.LockTimeoutError):
            await two.acquire_shared()

    async def main():
        async with one.shared():
            assert one.held == "shared"
            with pytest.raises(semlock.LockDeadlockError, match="task"):
                await one.acquire()
            await beside(other, other, trio=trio)
        async with one.exclusive(timeout=1):
            assert one.held == "exclusive"
            await beside(refused, refused, trio=trio)
        async with two:
            pass

    run(main, trio=trio)
    with world.kind("SharedLock").acquire(timeout=0):
        pass


def test_a_reader_does_not_overtake_a_waiting_writer(world):
    one, two = world.kind("SharedLock"), world.kind("SharedLock")
    one.acquire_shared()
    came = []

    def write():
        with two.acquire(timeout=PATIENCE):
            came.append("writer")

    writer = thread(write)
    third, tries = world.kind("SharedLock"), []

    def is_refused():
        thread(lambda: tries.append(third.try_acquire_shared() and not third.release())).join()
        return not tries[-1]

    wait_until(is_refused, "the writer waits")
    assert not came

    def read():
        with third.acquire_shared(timeout=PATIENCE):
            came.append("reader")

    reader = thread(read)
    one.release()
    writer.join()
    reader.join()
    assert came == ["writer", "reader"]


@each_loop
def test_a_writer_of_tasks_waits_while_its_loop_goes_on(world, trio):
    lock, done = world.kind("AsyncSharedLock"), []
    reader = world.kind("SharedLock")
    reader.acquire_shared()

    async def write():
        async with lock:
            done.append(lock.held)

    async def main():
        await beside(write, lambda: release_later(reader), trio=trio)

    run(main, trio=trio)
    assert done == ["exclusive"]


# ---------------------------------------------------------------------- slots


def test_slots_are_as_many_as_they_say(world):
    lock, came = world.kind("SlotLock", slots=2), []
    inside, most, guard = 0, 0, threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(3):
            with lock.acquire(timeout=PATIENCE):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.03)
                with guard:
                    inside -= 1
        came.append(1)

    threads = [thread(work) for _ in range(4)]
    for one in threads:
        one.join()
    assert (most, len(came)) == (2, 4)
    with lock, pytest.raises(semlock.LockDeadlockError):
        lock.acquire()


@each_loop
def test_slots_of_tasks_are_as_many_as_they_say(world, trio):
    lock, tried = world.kind("AsyncSlotLock", slots=2), []
    inside, most = 0, 0

    async def work():
        nonlocal inside, most
        for _ in range(3):
            async with lock.acquire(timeout=PATIENCE):
                assert lock.held
                inside += 1
                most = max(most, inside)
                await hub_here().rest(0.03)
                inside -= 1
            assert not lock.held

    async def two():
        await beside(work, work, trio=trio)

    async def main():
        await beside(two, two, trio=trio)
        async with lock:
            with pytest.raises(semlock.LockDeadlockError, match="task"):
                await lock.acquire()

        async def attempt():
            won = lock.try_acquire()
            tried.append(won)
            while len(tried) < 3:
                await hub_here().rest(0.001)
            if won:
                lock.release()

        async def attempts():
            await beside(attempt, attempt, trio=trio)

        await beside(attempts, attempt, trio=trio)

    run(main, trio=trio)
    assert most == 2
    assert sorted(tried) == [False, True, True]
    assert [found.state for found in world.kind("SlotLock", slots=2).status()].count(
        "held"
    ) == 0


def test_slots_and_shared_locks_decorate(world):
    slots = world.kind("SlotLock", ".a", slots=2)
    table = world.kind("SharedLock", ".b")

    @slots
    def take():
        return slots.held

    @table
    def write():
        return table.held

    @table.shared()
    def read():
        return table.held

    assert (take(), write(), read()) == (True, "exclusive", "shared")
    assert (slots.held, table.held) == (False, None)


def test_a_thread_may_wait_for_a_slot_while_it_has_one(world):
    """Another holder may release the slot that it waits for."""
    mine, other = world.kind("SlotLock", slots=2), world.kind("SlotLock", slots=2)
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with other:
            held.set()
            let_go.wait(PATIENCE)

    with mine:
        holder = thread(hold)
        assert held.wait(PATIENCE)
        threading.Timer(0.1, let_go.set).start()
        with world.kind("SlotLock", slots=2).acquire(timeout=PATIENCE):
            pass
        holder.join()


# ---------------------------------------------------------------------- several locks


def test_any_of_some_locks_is_taken_when_it_gets_free(world):
    held = [world.kind("Lock", more) for more in "ab"]
    for lock in held:
        lock.acquire()
    mine = [world.kind("Lock", more) for more in "ab"]
    for limit in (0, 0.05):
        with pytest.raises(semlock.LockTimeoutError):
            thread_call(lambda limit=limit: world.calls.acquire_any(mine, timeout=limit))
    won = []

    def wait():
        won.append(world.calls.acquire_any(mine, timeout=PATIENCE))
        won[0].release()

    waiter = thread(wait)
    time.sleep(0.05)
    held[1].release()
    waiter.join()
    assert won == [mine[1]]
    with pytest.raises(semlock.LockTimeoutError):
        thread_call(lambda: world.calls.acquire_any([mine[0]], timeout=0))
    held[0].release()
    assert world.calls.acquire_any(mine, timeout=0) is mine[0]
    mine[0].release()
    for lock in mine:
        assert lock.try_acquire()
        lock.release()
    with pytest.raises(ValueError, match="no lock"):
        world.calls.acquire_any([])


def thread_call(function):
    """Call a function in another thread, and raise what it raises."""
    failed = []

    def work():
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread(work).join()
    if failed:
        raise failed[0]


@each_loop
def test_any_of_some_locks_is_taken_by_a_task_while_its_loop_goes_on(world, trio):
    held = [world.kind("Lock", more) for more in "ab"]
    for lock in held:
        lock.acquire()
    mine, won = [world.kind("AsyncLock", more) for more in "ab"], []

    async def wait():
        won.append(await world.calls.acquire_any_async(mine, timeout=PATIENCE))

    async def main():
        with pytest.raises(semlock.LockTimeoutError):
            await world.calls.acquire_any_async(mine, timeout=0.05)
        await beside(wait, lambda: release_later(held[1]), trio=trio)
        assert won == [mine[1]]
        assert [lock.held for lock in mine] == [False, True]
        won[0].release()
        with pytest.raises(semlock.LockTimeoutError):
            await world.calls.acquire_any_async([mine[0]], timeout=0)
        held[0].release()
        assert await world.calls.acquire_any_async(mine, timeout=0) is mine[0]
        mine[0].release()
        for lock in mine:
            assert lock.try_acquire()
            lock.release()
        with pytest.raises(TypeError):
            world.calls.acquire_any_async([held[0]])

    run(main, trio=trio)


def test_all_of_some_locks_are_taken_or_none(world):
    held = world.kind("Lock", "b")
    mine = [world.kind("Lock", more) for more in "abc"]
    with held:
        for limit in (0, 0.05):
            with pytest.raises(semlock.LockTimeoutError):
                thread_call(lambda limit=limit: world.calls.acquire_all(mine, timeout=limit))
        assert not any(lock.held for lock in mine)
    with world.calls.acquire_all(mine, timeout=PATIENCE):
        assert all(lock.held for lock in mine)
        with pytest.raises(semlock.LockDeadlockError):
            world.calls.acquire_all(mine)
    assert not any(lock.held for lock in mine)
    with pytest.raises(ValueError, match="twice"):
        world.calls.acquire_all([mine[0], world.kind("Lock", "a")])


@each_loop
def test_all_of_some_locks_are_taken_by_a_task_or_none(world, trio):
    held = world.kind("Lock", "b")
    mine = [world.kind("AsyncLock", more) for more in "abc"]

    async def main():
        held.acquire()
        for limit in (0, 0.05):
            with pytest.raises(semlock.LockTimeoutError):
                await world.calls.acquire_all_async(mine, timeout=limit)
            assert not any(lock.held for lock in mine)

        async def wait():
            async with world.calls.acquire_all_async(mine, timeout=PATIENCE) as locks:
                assert locks == tuple(mine)
                assert all(lock.held for lock in mine)
                with pytest.raises(semlock.LockDeadlockError, match="task"):
                    await world.calls.acquire_all_async(mine)

        await beside(wait, lambda: release_later(held), trio=trio)
        assert not any(lock.held for lock in mine)
        with pytest.raises(ValueError, match="twice"):
            world.calls.acquire_all_async([mine[0], world.kind("AsyncLock", "a")])

    run(main, trio=trio)
    for more in "abc":
        with world.kind("Lock", more).acquire(timeout=PATIENCE):
            pass


# ---------------------------------------------------------------------- cancelled tasks


@pytest.mark.parametrize("kind", ["reader", "writer", "slot", "any", "all"])
def test_a_cancelled_task_holds_nothing_and_stands_in_no_line(world, kind):
    holder = world.kind("SlotLock", slots=1) if kind == "slot" else world.kind("SharedLock")
    if kind in ("any", "all"):
        holder = world.kind("Lock")
    holder.acquire()
    lock = (
        world.kind("AsyncSlotLock", slots=1)
        if kind == "slot"
        else world.kind("AsyncSharedLock")
    )
    one = world.kind("AsyncLock")

    def waiting():
        return {
            "reader": lambda: lock.acquire_shared(),
            "writer": lambda: lock.acquire(),
            "slot": lambda: lock.acquire(),
            "any": lambda: world.calls.acquire_any_async([one]),
            "all": lambda: world.calls.acquire_all_async([one, world.kind("AsyncLock", "b")]),
        }[kind]()

    async def main():
        for pause in (0, 0.001, 0.05):
            task = asyncio.ensure_future(whole(waiting()))
            await asyncio.sleep(pause)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not lock.held
        holder.release()
        async with lock.acquire(timeout=PATIENCE):
            pass
        async with one.acquire(timeout=PATIENCE):
            pass

    run(main)


async def whole(coroutine):
    return await coroutine
