"""What every lock does for threads, whatever it stands on."""

from __future__ import annotations

import os
import pickle
import threading
import time

import pytest

import semlock
from support import PATIENCE, wait_until


def test_one_holds_at_a_time(lock, other):
    with lock:
        assert lock.held
        assert not other.try_acquire()
        assert not other.held
    assert not lock.held
    with other:
        assert not lock.try_acquire()


def test_the_status_says_who_holds_it(world, lock):
    assert world.status().state == "free"
    assert (lock.info, lock.token) == (None, None)
    with lock:
        found = world.status()
        assert (found.state, found.verdict) == ("held", "alive")
        assert found.info == lock.info
        assert found.info.pid == os.getpid()
        assert abs(found.info.timestamp - time.time()) < PATIENCE
        assert lock.token is None or lock.token == found.info.token or world.name == "feature"
        assert lock.status().info == found.info
        assert ", held" in repr(lock)
    assert world.status().state == "free"
    assert ", not held" in repr(lock)


def test_acquire_gives_a_block_that_only_releases(lock):
    with lock.acquire(timeout=0) as same:
        assert same is lock
        assert lock.held
    assert not lock.held


def test_a_lock_that_is_not_held_is_not_released(lock):
    for call in (lock.release, lock.check, lock.refresh):
        with pytest.raises(semlock.NotHeldError):
            call()


def test_a_lock_is_of_this_process_alone(lock):
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(lock)


def test_wrong_options_are_told_at_once(world):
    for wrong in ({"timeout": -1}, {"heartbeat": 0}, {"retry": 1}):
        with pytest.raises((TypeError, ValueError), match=r"timeout|heartbeat|retry"):
            world.lock(**wrong)


def test_a_wait_ends_with_the_holder(lock, stranger):
    stranger.hold()
    later = threading.Timer(0.05, stranger.release)
    later.start()
    with lock.acquire(timeout=PATIENCE):
        assert lock.held
    later.join()


@pytest.mark.usefixtures("named")
def test_a_timeout_names_the_holder(world, lock, stranger):
    stranger.hold()
    for limit in (0, 0.05):
        with pytest.raises(semlock.LockTimeoutError) as failure:
            lock.acquire(timeout=limit)
        assert failure.value.path == lock.path
        assert failure.value.status.info.pid == stranger.pid
    assert not lock.held
    assert world.status().state == "held"


def test_its_own_timeout_counts_where_none_is_given(world, stranger):
    stranger.hold()
    lock = world.lock(timeout=0)
    for call in (lock.acquire, lock.__enter__):
        with pytest.raises(semlock.LockTimeoutError):
            call()


def test_the_schedule_of_a_wait_ends_it(world, stranger):
    if world.name == "memory" or hasattr(world, "ttl"):
        pytest.skip("its waits have no schedule")
    stranger.hold()
    with pytest.raises(semlock.LockTimeoutError):
        world.lock(retry=lambda: [0.001, 0.001]).acquire(timeout=PATIENCE)


def test_a_wait_can_be_cancelled_from_another_thread(world, stranger):
    stranger.hold()
    lock, ended = world.lock(), []

    def wait():
        with pytest.raises(semlock.LockCancelledError):
            lock.acquire(timeout=PATIENCE)
        ended.append(lock.held)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lock.cancel, "it waits")
    thread.join()
    assert ended == [False]
    stranger.release()
    with lock.acquire(timeout=PATIENCE):
        assert lock.count == 1


def test_those_who_wait_come_in_the_order_in_which_they_asked(world, stranger):
    # Where the protocol leaves it to chance who is next, those come in turn who ask for that.
    options = {} if world.has_queue else {"fair": True}
    stranger.hold()
    came = []

    def wait(number):
        with world.lock(**options).acquire(timeout=PATIENCE):
            came.append(number)

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_until(lambda: world.waiting() == len(threads), "it stands in the queue")
    stranger.release()
    for thread in threads:
        thread.join()
    assert came == [0, 1, 2, 3]


def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired(world, other):
    lock = world.lock(reentrant=True)
    with lock, lock:
        assert lock.try_acquire()
        lock.release()
        assert not other.try_acquire()
    assert not lock.held
    with other:
        pass


def test_a_thread_that_waits_for_itself_is_refused(world, lock, other):
    if not world.refuses_itself:
        pytest.skip("its waits go on until their time is over")
    with lock:
        for again in (lock, other):
            with pytest.raises(semlock.LockDeadlockError, match=r"test_threads\.py:\d+"):
                again.acquire(timeout=PATIENCE)
    assert not lock.held


def test_a_lost_lock_is_noticed(world, lock):
    lock.acquire()
    world.take_away()
    with pytest.raises(semlock.LockLostError):
        lock.check()
    with world.lock(), pytest.raises(semlock.LockLostError):
        lock.release()
    with pytest.raises(semlock.LockLostError), world.lock():
        world.take_away()


def test_the_error_of_a_block_counts_more_than_its_loss(world, lock):
    with pytest.warns(semlock.LockLostWarning), pytest.raises(KeyError), lock:
        world.take_away()
        raise KeyError


def test_a_refresh_writes_the_time_and_nothing_else(world, lock):
    with lock:
        before = lock.info
        lock.refresh()
        after = lock.info
        assert after.timestamp >= int(before.timestamp)
        assert after == world.status().info
        assert (after.pid, after.token) == (before.pid, before.token)


def test_a_heartbeat_refreshes_and_tells_of_a_loss(world):
    if world.name == "task":
        pytest.skip("its heartbeat is of another kind, and tested with it")
    if hasattr(world, "ttl"):
        pytest.skip("its leases are renewed by the thread of its space")
    if world.name == "kernel":
        pytest.skip("the kernel ends it with its holder: it has no heartbeat")
    lost = []
    with pytest.raises(semlock.LockLostError):
        with world.lock(heartbeat=0.01, on_lost=lambda lock, _: lost.append(lock)) as lock:
            world.take_away()
            wait_until(lambda: lost, "the loss is told")
    assert lost == [lock]


def test_one_object_serves_threads_one_after_the_other(lock):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(20):
            with lock.acquire(timeout=PATIENCE):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_decorated_function_runs_under_the_lock(lock):
    @lock
    def inside():
        return lock.held

    assert inside()
    assert not lock.held


@pytest.mark.usefixtures("named")
def test_on_wait_is_told_who_holds_it(world, stranger):
    stranger.hold()
    told = []
    lock = world.lock(on_wait=lambda found, _: told.append(found.info.pid))
    with pytest.raises(semlock.LockTimeoutError):
        # An engine is asked over the network who holds it.
        lock.acquire(timeout=0.5 if hasattr(world, "ttl") else 0.05)
    assert told == [stranger.pid]


def test_a_dead_holders_lock_is_taken_where_that_can_be_proven(world, lock, stranger):
    stranger.hold()
    if stranger.die():
        with lock.acquire(timeout=PATIENCE):
            pass
    else:
        assert not lock.try_acquire()


def test_a_wait_ends_with_the_holders_death(world, lock, stranger):
    stranger.hold()
    proven = []
    later = threading.Timer(0.05, lambda: proven.append(stranger.die()))
    later.start()
    try:
        # A lease is over a while after its holder's death.
        with lock.acquire(timeout=0.5 + 2 * getattr(world, "ttl", 0)):
            pass
    except semlock.LockTimeoutError:
        later.join()
        assert proven == [False]
    later.join()


def test_a_policy_decides_when_a_lock_may_be_taken(world, stranger):
    if not world.taken_on_policy:
        pytest.skip("a stale lock of its is an error, unless it was told to remove it")
    stranger.hold()
    assert not world.lock(policy=lambda found: None).try_acquire()
    seen = []

    def at_the_second_look(found):
        seen.append(found.info.pid)
        return "seen twice" if len(seen) > 1 else None

    lock = world.lock(policy=at_the_second_look)
    with lock.acquire(timeout=PATIENCE):
        assert lock.info.pid == os.getpid()
    assert set(seen[:2]) == {stranger.pid}
