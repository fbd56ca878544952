"""Slots, readers with a writer, any and all of some locks: the forms for tasks."""

# The loop of a test may stand still.
# ruff: noqa: ASYNC110

import asyncio
import contextlib
import itertools
import os
import random
import sys
import threading
import types

import pytest

import semlock
from semlock import (
    AsyncLock,
    AsyncSharedLock,
    AsyncSlotLock,
    Lock,
    SharedLock,
    SlotLock,
    acquire_all_async,
    acquire_any_async,
)
from semlock._core import capi
from semlock._locks import mine, together
from semlock._waiting import hub as _hub
from support import (
    Child,
    Strike,
    chance_of_the_day,
    in_a_fork,
    trio_or_skip,
    wine_keeps_locked_names,
)


@pytest.fixture(scope="module")
def neighbour():
    with Child() as child:
        child.run("import semlock._core.capi")
        yield child


def files():
    """Count what this process has open, where the system tells it."""
    return 0 if sys.platform == "win32" else len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, neighbour):
    """See that no file is left behind, and no descriptor."""
    capi.drain_pool()
    before = files()
    yield
    neighbour.run("semlock._core.capi.drain_pool()")
    capi.drain_pool()
    assert os.listdir(tmp_path) == []
    assert mine._reading == {}
    # Event sources are kept for the next wait.
    assert files() <= before + len(capi.POOL.idle_events)


async def whole(function):
    await asyncio.wait_for(function(), 60)
    hub = _hub.hub_here()
    assert (hub.waits, hub.sleepers, hub.lines) == (set(), {}, {})


def run(function):
    """Run a coroutine function with an end to it, and see that the hub has nothing left of it."""
    asyncio.run(whole(function), debug=True)


async def sleeping(*tasks):
    """Give tasks the time to fall asleep: they don't, unless they wait for something else."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def cancelled(task):
    await sleeping(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def in_a_task(function):
    return await asyncio.create_task(function())


# ---------------------------------------------------------------------- slots


def test_tasks_share_so_many_slots_and_no_more(path):
    inside, most = set(), []

    async def main():
        lock = AsyncSlotLock(path, 3, durability="none")

        async def work():
            for _ in range(3):
                async with lock as entered:
                    assert entered is lock
                    slot = lock.slot
                    assert slot not in inside
                    inside.add(slot)
                    most.append(len(inside))
                    await asyncio.sleep(0.001)
                    assert lock.slot == slot
                    assert lock.held
                    inside.remove(slot)
                assert not lock.held

        await asyncio.gather(*(work() for _ in range(8)))

    run(main)
    assert len(most) == 24
    assert max(most) == 3


def test_a_slot_is_the_tasks_own(path):
    async def main():
        lock = AsyncSlotLock(path, 2, tag="mine")
        assert lock.try_acquire()
        assert not lock.try_acquire()
        with pytest.raises(semlock.LockDeadlockError, match="this very task"):
            await lock.acquire()

        async def other():
            assert not lock.held
            assert lock.slot is None
            with pytest.raises(semlock.NotHeldError):
                lock.release()
            async with lock:
                assert lock.slot == 2

        await in_a_task(other)
        assert lock.slot == 1
        assert [found.state for found in lock.status()] == ["held", "free"]
        assert lock.info.tag == "mine"
        lock.check()
        lock.refresh()
        lock.release()
        assert not lock.held

    run(main)


def test_slots_exclude_another_process_and_hear_of_its_release(path, neighbour):
    neighbour.run(f"s = semlock.SlotLock({path!r}, 2); s.acquire(); None")

    async def main():
        lock = AsyncSlotLock(path, 2)
        async with lock:
            assert lock.slot == 2
            waits = asyncio.create_task(AsyncSlotLock(path, 2).acquire())
            await sleeping(waits)
            neighbour.run("s.release()")
            async with await waits:
                assert neighbour.run("s.try_acquire()") is False
        assert neighbour.run("s.try_acquire()") is True
        neighbour.run("s.release()")

    run(main)


def test_a_dead_holders_slot_is_taken_over(path):
    async def main():
        with Child() as child:
            child.run(f"import semlock; s = semlock.SlotLock({path!r}, 1); s.acquire(); None")
            waits = asyncio.create_task(AsyncSlotLock(path, 1).acquire())
            await sleeping(waits)
            child.kill()
            async with await waits as lock:
                assert lock.status()[0].info.pid == os.getpid()

    run(main)


@pytest.mark.parametrize("fair", [False, True])
def test_a_wait_for_a_slot_ends_in_time_or_by_cancelling(path, fair):
    async def main():
        lock = AsyncSlotLock(path, 1, fair=fair)
        async with lock:

            async def in_vain():
                for timeout in (0, 0.02):
                    with pytest.raises(semlock.LockTimeoutError):
                        await lock.acquire(timeout=timeout)
                assert not lock.try_acquire()

            await in_a_task(in_vain)
            await cancelled(asyncio.create_task(lock.acquire()))
            assert os.listdir(os.path.dirname(path)) == ["the.lock.1"]
            assert lock.held
        assert not lock.held

    run(main)


def test_a_manager_lets_go_of_what_another_task_acquired(path):
    async def main():
        lock = AsyncSlotLock(path, 1)
        async with await asyncio.create_task(lock.acquire()) as entered:
            assert entered is lock
            assert not lock.held
            assert not SlotLock(path, 1).try_acquire()
        assert SlotLock(path, 1).status()[0].state == "free"
        shared = AsyncSharedLock(path)
        async with await asyncio.create_task(shared.acquire_shared()):
            assert len(shared.readers()) == 1
        async with await asyncio.create_task(shared.acquire()):
            assert shared.status().state == "held"

    run(main)


# ---------------------------------------------------------------------- readers and a writer


def test_tasks_read_together_and_write_alone(path):
    readers, writers, most = [], [], []

    async def main():
        lock = AsyncSharedLock(path, durability="none")

        async def read():
            for _ in range(4):
                async with lock.shared() as entered:
                    assert entered is lock
                    assert lock.held == "shared"
                    readers.append(1)
                    most.append(len(readers))
                    assert not writers
                    await asyncio.sleep(0.001)
                    readers.pop()
                assert lock.held is None

        async def write(manager):
            for _ in range(4):
                async with manager():
                    assert lock.held == "exclusive"
                    writers.append(1)
                    assert len(writers) == 1
                    assert not readers
                    await asyncio.sleep(0.001)
                    writers.pop()

        await asyncio.gather(read(), read(), read(), write(lock.exclusive), write(lambda: lock))
        assert lock._readers == {}

    run(main)
    assert len(most) == 12
    assert max(most) > 1


def test_a_hold_is_the_tasks_own(path):
    async def main():
        lock = AsyncSharedLock(path, tag="mine")
        async with lock.shared():
            for take in (lock.acquire, lock.acquire_shared):
                with pytest.raises(semlock.LockDeadlockError, match="this very task"):
                    await take()
            with pytest.raises(semlock.LockDeadlockError, match="this very task"):
                await AsyncSharedLock(path).acquire()  # which would wait for the reader

            async def other():
                assert lock.held is None
                with pytest.raises(semlock.NotHeldError):
                    lock.release()
                assert not lock.try_acquire()
                assert lock.held is None
                assert lock.try_acquire_shared()
                assert len(lock.readers()) == 2
                lock.release()

            await in_a_task(other)
            assert [found.info.tag for found in lock.readers()] == ["mine"]
            lock.check()
            lock.refresh()
        assert lock.try_acquire()

        async def another():
            assert lock.held is None
            assert not lock.try_acquire()
            assert not lock.try_acquire_shared()
            with pytest.raises(semlock.NotHeldError):
                lock.release()

        await in_a_task(another)
        assert lock.held == "exclusive"
        lock.release()

    run(main)


def test_readers_and_writers_hear_of_another_process(path, neighbour):
    neighbour.run(f"r = semlock.SharedLock({path!r}); r.acquire_shared(); None")

    async def main():
        lock = AsyncSharedLock(path)
        async with lock.shared():
            pass
        waits = asyncio.create_task(lock.acquire())
        await sleeping(waits)
        assert AsyncSharedLock(path).try_acquire_shared() is False
        neighbour.run("r.release()")
        async with await waits:
            assert neighbour.run("r.try_acquire_shared()") is False
            assert neighbour.run("r.try_acquire()") is False
        assert neighbour.run("r.try_acquire()") is True
        waits = asyncio.create_task(lock.acquire_shared())
        await sleeping(waits)
        neighbour.run("r.release()")
        async with await waits:
            assert neighbour.run("r.try_acquire()") is False

    run(main)


def test_a_dead_reader_and_a_dead_writer_hold_no_process_up(path):
    async def main():
        for take in ("acquire_shared", "acquire"):
            with Child() as child:
                child.run(f"import semlock; r = semlock.SharedLock({path!r}); r.{take}(); None")
                waits = asyncio.create_task(AsyncSharedLock(path).acquire())
                await sleeping(waits)
                child.kill()
                async with await waits as lock:
                    assert lock.readers() == []

    run(main)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("take", ["acquire", "acquire_shared"])
@pytest.mark.parametrize("holds", ["exclusive", "shared"])
def test_a_shared_wait_ends_in_time_or_by_cancelling(path, fair, take, holds):
    if (take, holds) == ("acquire_shared", "shared"):
        return  # which needs no wait

    async def main():
        lock = AsyncSharedLock(path, fair=fair)
        async with getattr(lock, holds)():
            there = os.listdir(os.path.dirname(path))

            async def in_vain():
                for timeout in (0, 0.02):
                    with pytest.raises(semlock.LockTimeoutError):
                        await getattr(lock, take)(timeout=timeout)

            await in_a_task(in_vain)
            # A writer that waits for readers has the path meanwhile, and gives it back.
            await cancelled(asyncio.create_task(getattr(lock, take)()))
            left = set(os.listdir(os.path.dirname(path)))
            assert {name for name in left if not name.endswith(".kept")} == set(there)
            assert lock.held == holds
            assert len(lock._readers) == (holds == "shared")
            lock.check()

    run(main)


def test_decorated_coroutines_and_what_is_refused(path):
    async def main():
        for lock in (AsyncSlotLock(path, 1), AsyncSharedLock(path)):

            @lock
            async def work(number, lock=lock):
                assert lock.held
                return number + 1

            assert await work(1) == 2
            assert not lock.held
            assert "not held" in repr(lock)
            assert type(lock).__name__ in repr(lock)
            with pytest.raises(TypeError, match="no coroutine function"):
                lock(print)
            with pytest.raises(TypeError, match="async with"), lock:
                pass

    run(main)


def test_outside_of_tasks_nothing_is_held(path):
    for lock in (AsyncSlotLock(path, 1), AsyncSharedLock(path)):
        assert not lock.held
        with pytest.raises(RuntimeError, match="no task"):
            lock.try_acquire()
        with pytest.raises(semlock.NotHeldError):
            lock.release()


def test_a_forked_child_holds_nothing(path):
    async def main():
        slots, shared = AsyncSlotLock(path, 1), AsyncSharedLock(path)

        def child():
            assert not slots.held
            assert shared.held is None
            assert not SlotLock(path, 1).try_acquire()
            assert not SharedLock(path).try_acquire()

        async with slots, shared.shared():
            in_a_fork(child)

    run(main)


# ---------------------------------------------------------------------- any of them


def test_any_takes_what_is_free_and_hears_of_what_becomes_free(path, neighbour):
    paths = [f"{path}.{name}" for name in "abc"]
    neighbour.run(f"held = [semlock.Lock(p) for p in {paths!r}]")
    neighbour.run("[lock.acquire() for lock in held[:2]]; None")

    async def main():
        locks = [AsyncLock(p) for p in paths]
        third = await acquire_any_async(locks)
        assert third is locks[2]
        with pytest.raises(semlock.LockDeadlockError, match="this very task"):
            await AsyncLock(paths[2]).acquire()
        with pytest.raises(semlock.LockTimeoutError):
            await acquire_any_async(locks, timeout=0)
        with pytest.raises(semlock.LockTimeoutError):
            await acquire_any_async(locks, timeout=0.02)
        await cancelled(asyncio.create_task(acquire_any_async(locks)))
        assert [lock.held for lock in locks] == [False, False, True]
        waits = asyncio.create_task(acquire_any_async(locks))
        await sleeping(waits)
        neighbour.run("held[1].release()")
        won = await waits
        assert won is locks[1]
        assert not Lock(paths[1]).try_acquire()
        for lock in (won, third):
            lock.release()
        neighbour.run("held[0].release()")

    run(main)


def test_any_hears_of_a_death(path):
    async def main():
        with Child() as child:
            child.run(f"import semlock; lock = semlock.Lock({path!r}); lock.acquire(); None")
            other = AsyncLock(f"{path}.other")
            async with other:
                waits = asyncio.create_task(acquire_any_async([other, AsyncLock(path)]))
                await sleeping(waits)
                child.kill()
                won = await waits
                assert won.path == path
                won.release()

    run(main)


def test_tasks_that_want_any_exclude_each_other(path):
    inside, count = {}, []

    async def main():
        shared = [AsyncLock(f"{path}.{name}", durability="none") for name in "ab"]

        async def work(locks):
            for _ in range(5):
                lock = await acquire_any_async(locks)
                assert inside.setdefault(lock.path, lock) is lock
                await asyncio.sleep(0.001)
                del inside[lock.path]
                count.append(1)
                lock.release()

        own = [AsyncLock(lock.path, durability="none") for lock in shared]
        await asyncio.gather(*(work(locks) for locks in (shared, shared, own, own, shared)))

    run(main)
    assert len(count) == 25


def test_a_task_that_holds_all_of_them_is_told(path):
    async def main():
        locks = [AsyncLock(f"{path}.{name}") for name in "ab"]
        async with locks[0], locks[1]:
            again = [AsyncLock(lock.path) for lock in locks]
            with pytest.raises(semlock.LockDeadlockError, match="this very task"):
                await acquire_any_async(again, timeout=20)

            # Another task may well wait for this one.
            waits = asyncio.create_task(acquire_any_async(again))
            await sleeping(waits)
        (await waits).release()

    run(main)


# ---------------------------------------------------------------------- all of them


def test_all_are_taken_or_none(path, neighbour):
    paths = [f"{path}.{name}" for name in "abc"]
    neighbour.run(f"lock = semlock.Lock({paths[1]!r}); lock.acquire(); None")

    async def main():
        locks = [AsyncLock(p) for p in paths]
        for timeout in (0, 0.02):
            with pytest.raises(semlock.LockTimeoutError):
                await acquire_all_async(locks, timeout=timeout)
        assert not any(lock.held for lock in locks)
        await cancelled(asyncio.create_task(acquire_all_async(locks)))
        assert not any(lock.held for lock in locks)
        waits = asyncio.create_task(acquire_all_async(locks))
        await sleeping(waits)
        assert neighbour.run(f"semlock.Lock({paths[0]!r}).status().state") == "free"
        neighbour.run("lock.release()")
        async with await waits as held:
            assert held == tuple(locks)
            assert all(lock.held for lock in locks)
            assert neighbour.run("lock.try_acquire()") is False
        assert not any(lock.held for lock in locks)
        acquired = await acquire_all_async(locks)
        with pytest.raises(semlock.LockDeadlockError, match="this very task"):
            await acquire_all_async(locks[1:])
        with pytest.raises(semlock.LockDeadlockError, match="this very task"):
            await AsyncLock(paths[0]).acquire()
        acquired.release()

    run(main)


def test_tasks_that_want_all_in_any_order_come_to_an_end(path):
    inside, count = set(), []

    async def main():
        shared = [AsyncLock(f"{path}.{name}", durability="none") for name in "abc"]
        own = [AsyncLock(lock.path, durability="none") for lock in shared]

        async def work(locks):
            for _ in range(5):
                async with await acquire_all_async(locks) as held:
                    assert not inside & {lock.path for lock in held}
                    inside.update(lock.path for lock in held)
                    await asyncio.sleep(0.001)
                    inside.difference_update(lock.path for lock in held)
                    count.append(1)

        await asyncio.gather(
            work(shared), work(shared[::-1]), work(own[1:]), work([own[2], shared[0]])
        )

    run(main)
    assert len(count) == 20


def test_a_crowd_of_tasks_that_want_some_of_a_few_waits_in_no_circle(path):
    paths = [f"{path}.{name}" for name in "abc"]
    longest = 60 if sys.platform == "win32" else 3  # there they look by the clock

    async def work(seed):
        chance = random.Random(seed)
        for _ in range(5):
            locks = [AsyncLock(name, durability="none") for name in chance.sample(paths, 2)]
            async with acquire_all_async(locks, timeout=longest):
                await asyncio.sleep(0.001)

    async def main():
        await asyncio.gather(*map(work, range(14)))

    run(main)


def test_a_task_cancelled_while_it_holds_some_lets_go_of_them(path, monkeypatch):
    """The patient phase, in which some are held while another is waited for."""
    monkeypatch.setattr(together, "chance", lambda: 0.5)
    monkeypatch.setattr(together, "_FIRST_PATIENCE", 60.0)
    monkeypatch.setattr(together, "_LONGEST_PATIENCE", 60.0)

    async def main():
        locks = [AsyncLock(f"{path}.{name}") for name in "ab"]
        theirs = [AsyncLock(lock.path) for lock in locks]
        async with contextlib.AsyncExitStack() as stack:
            await theirs[0].acquire()
            await stack.enter_async_context(theirs[1])
            waits = asyncio.create_task(acquire_all_async(locks))
            await sleeping(waits)
            theirs[0].release()  # which wins it the first, and shows that the second is held
            while not locks[0].held:
                await asyncio.sleep(0.001)
            await cancelled(waits)
            assert not any(lock.held for lock in locks)
            assert theirs[1].held

    run(main)


def test_what_is_no_lock_of_tasks_is_refused(path):
    for function in (acquire_any_async, acquire_all_async):
        for wrong in ([Lock(path)], [path]):
            with pytest.raises(TypeError, match="each of the locks"):
                function(wrong)
        with pytest.raises(ValueError, match="no lock"):
            function([])
        with pytest.raises(ValueError, match="twice"):
            function([AsyncLock(path), AsyncLock(path)])
        with pytest.raises(ValueError, match="timeout"):
            function([AsyncLock(path)], timeout=-1)


# ---------------------------------------------------------------------- giving up, anywhere


@types.coroutine
def struck(coroutine, at):
    """Run a coroutine, and cancel it when it suspends for the so-manieth time.

    ``None`` if it was cancelled, else what it gave.
    """
    error = None
    for count in range(1, 10_000):
        try:
            future = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        if count == at:
            with pytest.raises(asyncio.CancelledError):
                coroutine.throw(asyncio.CancelledError())
            return None
        try:
            yield future
            error = None
        except BaseException as thrown:
            error = thrown


def ways(path):
    """Give what can be awaited here, on locks that others use too."""
    locks = [AsyncLock(f"{path}.{number}", durability="none") for number in (1, 2)]
    shared = AsyncSharedLock(path, durability="none")
    return {
        "slots": AsyncSlotLock(path, 2, durability="none").acquire,
        "fair slots": AsyncSlotLock(path, 2, durability="none", fair=True).acquire,
        "write": shared.acquire,
        "read": shared.acquire_shared,
        "any": lambda: acquire_any_async(locks),
        "all": lambda: acquire_all_async(locks),
    }


@wine_keeps_locked_names
def test_a_lost_slot_is_told_of(path):
    lost = []

    async def main():
        told = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_lost(lock, error):
            lost.append((lock, type(error)))
            loop.call_soon_threadsafe(told.set)

        lock = AsyncSlotLock(path, 1, heartbeat=0.01, on_lost=on_lost)
        acquired = await lock.acquire()
        semlock.remove(f"{path}.1", force=True)
        await told.wait()
        with pytest.raises(semlock.SemlockError):
            await acquired.__aexit__(None, None, None)
        assert not lock.held
        assert [entry[0] is lock for entry in lost] == [True]

    run(main)


def test_who_is_cancelled_takes_nothing_that_another_task_won(path):
    async def main():
        slots = AsyncSlotLock(path, 1)
        locks = [AsyncLock(f"{path}.{name}") for name in "ab"]
        for held, take in (
            ([slots], slots.acquire),
            (locks, lambda: acquire_any_async(locks)),
            (locks, lambda: acquire_all_async(locks)),
        ):
            for lock in held:
                assert lock.try_acquire()
            waits = asyncio.create_task(take())
            await sleeping(waits)
            # Let go and won again, by the same objects, while the other one sleeps.
            for lock in held:
                lock.release()
                assert lock.try_acquire()
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            for lock in held:
                assert lock.held
                lock.check()
                lock.release()

    run(main)


@pytest.mark.parametrize("way", ["slots", "fair slots", "write", "read", "any", "all"])
def test_cancelling_at_any_suspension_leaves_nothing(path, way):
    async def main():
        async def others():
            take = ways(path)[{"read": "write", "write": "read", "any": "all"}.get(way, way)]
            while True:
                got = await take()
                async with got:
                    await asyncio.sleep(0.0005)
                await asyncio.sleep(0.0005)

        tasks = [asyncio.create_task(others()) for _ in range(2)]
        take = ways(path)[way]
        strikes = 0
        for at in [*range(1, 6)] * 4:
            await asyncio.sleep(0)
            got = await struck(take(), at)
            strikes += got is None
            if isinstance(got, AsyncLock):
                got.release()
            elif got is not None:
                async with got:
                    await asyncio.sleep(0)
        assert strikes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        capi.drain_pool()
        assert os.listdir(os.path.dirname(path)) == []
        got = await struck(take(), 1)  # all is free, so it needs no wait
        got.release() if isinstance(got, AsyncLock) else await got.__aexit__(None, None, None)

    run(main)


FILES = (
    "_core/inside.py", "_locks/async_form.py", "_locks/async_holding.py", "_locks/async_many.py",
    "_locks/async_kinds.py", "_locks/many.py", "_locks/parts.py",
    "_locks/readers.py", "_locks/reading.py", "_locks/shared.py", "_locks/slots.py",
    "_locks/together.py", "_waiting/steps.py",
)  # fmt: skip


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)
# Struck between making a coroutine and awaiting it.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("way", ["slots", "write", "read", "any", "all"])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.stress)])
def test_ctrl_c_leaves_it_held_or_nothing(path, way, step):
    first = chance_of_the_day().randint(1, step)

    async def main():
        slots, shared = AsyncSlotLock(path, 2), AsyncSharedLock(path)
        locks = [AsyncLock(f"{path}.{number}") for number in (1, 2)]
        take, holders = {
            "slots": (slots.acquire, [slots]),
            "write": (shared.acquire, [shared]),
            "read": (shared.acquire_shared, [shared]),
            "any": (lambda: acquire_any_async(locks), locks),
            "all": (lambda: acquire_all_async(locks), locks),
        }[way]

        def operation(coroutine):
            with pytest.raises(StopIteration):
                coroutine.send(None)

        kept = []
        for at in itertools.count(first, step):
            coroutine = take()
            strike = Strike(at, lambda it=coroutine: operation(it), FILES)
            coroutine.close()
            assert strike.error is None
            if any(lock.held for lock in holders):
                kept.append(at)
            for lock in holders:
                if lock.held:
                    lock.release()
            capi.drain_pool()
            assert os.listdir(os.path.dirname(path)) == [], strike.where
            assert not any(slot._native.held for slot in slots._locks)
            if not strike.struck:
                break
        # Only when all was done but the returning: the last of them is the one not struck.
        assert len(kept) <= 8
        assert kept == list(range(first, at + 1, step))[-len(kept) :]
        assert at > 20

    run(main)


def test_one_object_serves_the_tasks_of_several_threads(path):
    slots, shared = AsyncSlotLock(path, 2), AsyncSharedLock(path)
    inside, most, failures = [], [], []

    async def work(number):
        for _ in range(3):
            async with slots:
                inside.append(number)
                most.append(len(inside))
                await asyncio.sleep(0.001)
                inside.remove(number)
            async with shared if number % 2 else shared.shared():
                await asyncio.sleep(0.001)

    async def main():
        try:
            await asyncio.gather(*(work(number) for number in range(3)))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert len(most) == 18
    assert max(most) == 2
    assert not any(slot._native.held for slot in slots._locks)
    assert shared._readers == {}


# ---------------------------------------------------------------------- trio


def test_trio_tasks_do_all_of_it(path, neighbour):
    trio = trio_or_skip()
    done = []

    async def main():
        slots, shared = AsyncSlotLock(path, 2), AsyncSharedLock(path)
        locks = [AsyncLock(f"{path}.{name}") for name in "xy"]
        inside = []

        async def work(writes):
            async with slots:
                inside.append(1)
                assert len(inside) <= 2
                await trio.sleep(0.001)
                inside.pop()
            async with shared if writes else shared.shared():
                await trio.sleep(0.001)
            (await acquire_any_async(locks)).release()
            async with await acquire_all_async(locks):
                await trio.sleep(0.001)
            done.append(writes)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(work, number % 2 == 0)

        neighbour.run(f"w = semlock.SharedLock({path!r}); w.acquire(); None")
        with trio.move_on_after(0.02) as scope:
            await shared.acquire_shared()
        assert scope.cancelled_caught
        with pytest.raises(semlock.LockTimeoutError):
            await shared.acquire(timeout=0.02)
        neighbour.run("w.release()")

    trio.run(main)
    assert len(done) == 6
