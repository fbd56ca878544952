"""The counting semaphore: so many at a time, each with a record of its own."""

import asyncio
import os
import sys
import threading

import pytest

import semlock
import semlock.policy
from semlock import SlotLock
from semlock._core.capi import POOL, drain_pool
from support import Child, Taking, in_a_fork, take_away, wait_until

TAKE = "import semlock; s = semlock.SlotLock({path!r}, {slots}, tag='theirs'); s.try_acquire()"


def kill(child):
    child.process.kill()
    child.process.wait()


def test_so_many_hold_and_no_more(path, names):
    first, second, third = (SlotLock(path, 2) for _ in range(3))
    assert first.try_acquire()
    with Taking(second.acquire, second.release) as other:
        assert other.done.wait(20)
        assert not third.try_acquire()
        assert names() == ["the.lock.1", "the.lock.2"]
        first.release()
        assert third.try_acquire()
        assert third.slot == 1
        third.release()


def test_each_slot_says_who_has_it(path):
    with Child() as other:
        assert other.run(TAKE.format(path=path, slots=2))
        with SlotLock(path, 2, tag="mine") as lock:
            assert lock.slot == 2
            assert lock.held
            assert lock.info.tag == "mine"
            lock.check()
            lock.refresh()
            theirs, mine = lock.status()
            assert (theirs.info.tag, theirs.verdict) == ("theirs", "alive")
            assert mine.info == lock.info
            assert semlock.status(f"{path}.2").info.tag == "mine"


def test_a_dead_holders_slot_is_taken_over(path, names):
    with Child() as other:
        assert other.run(TAKE.format(path=path, slots=1))
        lock = SlotLock(path, 1, timeout=20)
        assert not lock.try_acquire()
        with Taking(lock.acquire, lock.release) as waiter:
            wait_until(lambda: any(n.endswith(".queue") for n in names()), "it waits")
            kill(other)
            assert waiter.done.wait(20)
            assert lock.status()[0].info.pid == os.getpid()
            assert names() == ["the.lock.1"]


def test_a_wait_ends_when_any_slot_is_free(path):
    with Child() as first, Child() as second:
        assert first.run(TAKE.format(path=path, slots=2))
        assert second.run(TAKE.format(path=path, slots=2))
        lock = SlotLock(path, 2)
        with pytest.raises(semlock.LockTimeoutError, match="theirs"):
            lock.acquire(timeout=0.02)
        second.send("s.release()")
        with lock.acquire(timeout=20):
            assert lock.slot == 2
        second.receive()


@pytest.mark.skipif(sys.platform != "linux", reason="files are prepared on Linux")
@pytest.mark.parametrize("end", ["win", "timeout", "two threads"])
def test_a_wait_prepares_one_file_for_whichever_slot_gets_free(path, names, end):
    """Nothing of it is left, also if other threads use the slots of the same object."""
    slots = SlotLock(path, 3, durability="none")
    directory = os.path.dirname(path)

    def take():
        return slots.acquire(timeout=20)

    with Child() as child:
        child.run(
            f"theirs = [semlock.Lock({path!r} + f'.{{n}}') for n in (1, 2, 3)]\n"
            "for lock in theirs: lock.acquire()"
        )
        if end == "timeout":
            with pytest.raises(semlock.LockTimeoutError):
                slots.acquire(timeout=0.2)
        else:
            with Taking(take, slots.release) as waiter:
                wait_until(lambda: POOL.prepared == 1, "it has prepared")
                if end == "win":
                    child.run("theirs[2].release()")
                    assert waiter.done.wait(20)
                    assert semlock.status(f"{path}.3").info.pid == os.getpid()
                    assert {f"the.lock.{number}" for number in (1, 2, 3)} <= set(names())
                else:
                    with Taking(take, slots.release) as other:
                        child.run("theirs[2].release(); theirs[0].release()")
                        assert waiter.done.wait(20)
                        assert other.done.wait(20)
        assert POOL.prepared == 0
        drain_pool()
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        opened = [os.readlink(link) for link in links if os.path.lexists(link)]
        assert not [name for name in opened if name.startswith(directory)]


def test_waiters_of_a_fair_one_come_in_order(path, names):
    order = []
    with SlotLock(path, 1) as held:
        threads = []
        for number in range(4):

            def work(number=number):
                with SlotLock(path, 1, fair=True):
                    order.append(number)

            threads.append(threading.Thread(target=work))
            threads[-1].start()
            queue = next((n for n in names() if n.endswith(".queue")), None)
            wait_until(
                lambda number=number: len(tickets(path)) == number + 1,
                f"{number} stands {queue}",
            )
        assert held.slot == 1
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]
    assert names() == [] or all(n.endswith(".kept") for n in names())


def tickets(path):
    directory = os.path.dirname(path)
    queues = [n for n in os.listdir(directory) if n.endswith(".queue")]
    return os.listdir(os.path.join(directory, queues[0])) if queues else []


def test_a_process_that_takes_it_again_and_again_makes_way(path):
    """A holder that lets go for microseconds only would win each race against a sleeper."""
    with Child() as hog:
        hog.run(
            "import semlock, time, threading; stop = threading.Event();"
            f"s = semlock.SlotLock({path!r}, 1)"
        )
        hog.run(
            "exec('def work():\\n while not stop.is_set():\\n  with s: time.sleep(0.002)');"
            "t = threading.Thread(target=work); t.start()"
        )
        for _ in range(5):
            with SlotLock(path, 1, timeout=20):
                pass
        hog.run("stop.set(); t.join()")


def test_numbers_may_differ_and_each_uses_its_first(path):
    with Child() as many:
        many.run(f"import semlock; few = [semlock.SlotLock({path!r}, 3) for _ in range(3)]")
        many.run("import threading")
        for number in range(3):
            many.run(f"t = threading.Thread(target=few[{number}].acquire); t.start(); t.join()")
        assert not SlotLock(path, 2).try_acquire()
        with SlotLock(path, 4) as lock:
            assert lock.slot == 4


@pytest.mark.parametrize("slots", [0, -1, 10_001, 1.5, "2", None])
def test_a_number_of_slots_that_can_not_be_is_refused(path, slots):
    with pytest.raises(ValueError, match="slots is a number"):
        SlotLock(path, slots)


def test_a_thread_does_not_wait_for_itself(path):
    with SlotLock(path, 1) as lock:
        assert not lock.try_acquire()
        with pytest.raises(semlock.LockDeadlockError):
            lock.acquire()


def test_what_is_not_held_can_not_be_let_go(path):
    lock = SlotLock(path, 1)
    for call in (lock.release, lock.check, lock.refresh):
        with pytest.raises(semlock.NotHeldError):
            call()
    assert lock.info is lock.slot is None
    assert not lock.held


def test_a_slot_that_was_taken_away_is_noticed(path):
    lock = SlotLock(path, 1)
    lock.acquire()
    take_away(f"{path}.1")
    with pytest.raises(semlock.LockLostError):
        lock.check()
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert not lock.held


def test_it_decorates(path):
    lock = SlotLock(path, 3)

    @lock
    def work():
        return lock.slot

    assert work() == 1
    assert not lock.held
    with pytest.raises(TypeError, match="returns before"):

        @lock
        def generate():
            yield 1


def test_a_fork_holds_nothing(path):
    with SlotLock(path, 1) as lock:
        assert in_a_fork(lambda: lock.held) is False
        lock.check()


def test_people_are_told_of_a_wait(path):
    told = []
    with Child() as other:
        assert other.run(TAKE.format(path=path, slots=1))
        lock = SlotLock(path, 1, on_wait=lambda found, waited: told.append(found))
        with pytest.raises(semlock.LockTimeoutError):
            lock.acquire(timeout=0.02)
    assert told[0].info.tag == "theirs"


@pytest.mark.skipif(sys.platform == "win32", reason="such a wait does not end there yet")
def test_a_wait_for_ones_own_slots_ends_where_a_policy_ends_one_in_time(path):
    """As for one lock: refused only if the wait would outlast the slots."""
    options = {"policy": semlock.policy.Age(1.0)}
    old = SlotLock(path, 1, **options)
    old.acquire()
    with pytest.raises(semlock.LockDeadlockError):
        SlotLock(path, 1, **options).acquire(0.05)
    with SlotLock(path, 1, **options).acquire(20), pytest.raises(semlock.LockLostError):
        old.release()


@pytest.mark.skipif(sys.platform == "win32", reason="such a wait does not end there yet")
def test_so_does_a_tasks(path):
    async def main():
        old = semlock.AsyncSlotLock(path, 1, policy=semlock.policy.Age(1.0))
        await old.acquire()
        with pytest.raises(semlock.LockDeadlockError):
            await semlock.AsyncSlotLock(path, 1).acquire(0.05)
        async with semlock.AsyncSlotLock(path, 1, policy=semlock.policy.Age(1.0)).acquire(20):
            with pytest.raises(semlock.LockLostError):
                old.release()

    asyncio.run(main())
