"""Leases, fences and lost answers on all engines, and what requests a lock costs."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

import semlock
from engine_urls import url_of
from memory_engine import space_on
from semlock._engines.wait import Wait
from spacelib import TTL, on_one_engine, stop_renewing, stress_but
from support import PATIENCE, wait_until

# ---------------------------------------------------------------- fences and leases


def test_fences_grow_from_holder_to_holder(pair):
    numbers = []
    for turn in range(6):
        with pair[turn % 2].Lock("deploy") as lock:
            numbers.append(lock.fence)
    assert numbers == sorted(set(numbers))
    assert pair[0].Lock("deploy").fence is None


@on_one_engine
def test_left_counts_down_to_the_lease_and_is_renewed(space):
    lock = space.Lock("deploy")
    assert lock.left() == 0.0
    with lock:
        assert 0 < lock.left() < TTL
        least = 1.0
        end = time.monotonic() + 1.25 * TTL
        while time.monotonic() < end:
            least = min(least, lock.left())
            time.sleep(0.02)
        assert least > 0.2 * TTL
        lock.check()
    assert lock.left() == 0.0


@on_one_engine
def test_a_holder_that_is_cut_off_knows_before_another_has_it(pair):
    told, mine = [], pair[0].Lock("deploy", on_lost=lambda *_: told.append(time.monotonic()))
    mine.acquire()
    stop_renewing(pair[0])
    until = time.monotonic() + mine.left()
    with pair[1].Lock("deploy").acquire(timeout=PATIENCE):
        began = time.monotonic()
        assert mine.left() == 0.0
        assert not mine.held
        assert began >= until - 0.01
        wait_until(lambda: told, "the loss is told")
        with pytest.raises(semlock.LockLostError):
            mine.release()
        assert pair[1].status("deploy").state == "held"


def test_the_lease_counts_from_before_the_request_was_sent(memory):
    server, space = memory
    engine, slow = space.client.engine, 0.3
    enter = engine.enter

    def late(*arguments, **options):
        place = enter(*arguments, **options)
        time.sleep(slow)
        return place

    engine.enter = late
    with space.Lock("deploy") as lock:
        row = server.lines["deploy"][0]
        assert time.monotonic() + lock.left() <= row.ends


# ---------------------------------------------------------------- answers that got lost


@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_answer_acquires_nothing_twice(memory, lost):
    server, space = memory
    server.loses_answers = lost
    with space.Lock("deploy").acquire(timeout=PATIENCE):
        assert len(server.lines["deploy"]) == 1
    assert "deploy" not in server.lines


def test_a_lost_answer_of_a_release_leaves_nothing(memory):
    server, space = memory
    lock = space.Lock("deploy")
    lock.acquire()
    server.loses_answers = 2
    lock.release()
    wait_until(lambda: "deploy" not in server.lines, "the entry is taken out")


def test_a_request_without_any_answer_ends_in_time_and_leaves_nothing(memory):
    server, space = memory
    server.loses_answers = 10**9
    lock, began = space.Lock("deploy"), time.monotonic()
    with pytest.raises(
        semlock.LockEngineError, match=r"memory.*could not be acquired"
    ) as failure:
        lock.acquire(timeout=0.3)
    assert 0.25 < time.monotonic() - began < PATIENCE
    assert (failure.value.path, failure.value.address) == (lock.path, "redis://memory")
    server.loses_answers = 0
    wait_until(lambda: "deploy" not in server.lines, "the entry is taken out")


def test_a_wait_goes_on_while_the_engine_is_away(memory):
    server, space = memory
    server.away = True
    threading.Timer(0.2, lambda: setattr(server, "away", False)).start()
    with space.Lock("deploy").acquire(timeout=PATIENCE):
        pass


def test_a_single_try_of_an_engine_that_is_away_is_an_error(memory):
    server, space = memory
    server.away = True
    for call in (space.Lock("a").try_acquire, lambda: space.Lock("a").acquire(timeout=0)):
        with pytest.raises(semlock.LockEngineError, match="away"):
            call()


def test_a_holder_goes_on_while_the_engine_is_away_for_less_than_its_lease(memory):
    server, space = memory
    with space.Lock("deploy") as lock:
        server.away = True
        time.sleep(0.5 * TTL)
        assert lock.held
        server.away = False
        wait_until(lambda: lock.left() > 0.6 * TTL, "it is renewed")


def test_an_answer_that_comes_late_takes_nothing_from_a_win(memory):
    """A renewal that found the entry waiting may be answered after it has won."""
    server, space = memory
    with space_on(server, TTL) as other:
        holder = other.Lock("deploy")
        holder.acquire()
        renew, answered = space.client.engine.renew, threading.Event()

        def late(entries, **options):
            places = renew(entries, **options)
            answered.wait(0.2)  # meanwhile it is released, asked for and won
            return places

        space.client.engine.renew = late
        lost = []
        lock = space.Lock("deploy", on_lost=lambda *_: lost.append(1))
        threading.Timer(TTL / 3 + 0.1, holder.release).start()
        threading.Timer(TTL / 3 + 0.1, server.settle, ("deploy",)).start()
        wait = Wait(lock, None)
        end = time.monotonic() + 1.2 * TTL
        while time.monotonic() < end and wait.outcome is None:
            space.client.ask(wait.ticket, waits=True)
            wait.wins()
        answered.wait(0.3)
        assert (lock.held, lost) == (True, [])
        lock.release()


# ---------------------------------------------------------------- cost


def test_an_acquire_and_a_release_are_one_request_each(memory):
    server, space = memory
    with space.Lock("deploy"):
        pass
    assert server.requests == {"enter": 1, "leave": 1}
    server.requests.clear()
    with space.Lock("deploy") as lock:
        assert not space.Lock("deploy").try_acquire()
        assert lock.held
    assert server.requests == {"enter": 2, "leave": 1}


def test_one_is_woken_by_a_release_among_many(memory):
    server, space = memory
    holder = space.Lock("deploy")
    holder.acquire()
    came = []

    def wait(number):
        with space.Lock("deploy"):
            came.append(number)

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_until(lambda: len(server.lines["deploy"]) == len(threads) + 1, "it waits")
    server.requests.clear()
    before = server.news
    holder.release()
    for thread in threads:
        thread.join()
    assert came == list(range(20))
    assert server.news - before == 20
    assert server.requests["leave"] == 21
    assert server.requests["enter"] == 0  # the news says all


@on_one_engine
def test_a_waiter_behind_a_dead_waiter_goes_on_waiting_without_asking(pair):
    holder = pair[0].Lock("deploy")
    holder.acquire()
    engine = pair[1].client.engine
    engine.enter("deploy", "dead", b"pid=1\ntimestamp=1\n", 1, waits=True, within=5)
    asked, enter = [], engine.enter

    def counted(*arguments, **options):
        asked.append(time.monotonic())
        return enter(*arguments, **options)

    engine.enter = counted
    came = []

    def wait():
        with pair[1].Lock("deploy").acquire(timeout=PATIENCE):
            came.append(time.monotonic())

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(1.5 * TTL)
    assert len(asked) <= 4
    engine.leave("deploy", "dead", within=5)
    holder.release()
    waiter.join()
    assert came


@pytest.mark.parametrize("name", stress_but("redis", "postgresql", "etcd"))
def test_a_waiter_that_got_the_lock_while_it_was_stopped_does_not_stand_in_its_own_way(
    name, request
):
    """It can't know whether its lease holds, so it asks anew, and takes its first entry out."""
    url, prefix = url_of(request.getfixturevalue(f"{name}_server")), uuid.uuid4().hex
    program = (
        "import semlock\n"
        f"space = semlock.connect({url!r}, prefix={prefix!r}, ttl={TTL})\n"
        "with space.Lock('deploy').acquire(): print('in', flush=True)\n"
    )
    with semlock.connect(url, prefix=prefix, ttl=TTL) as space:
        lock = space.Lock("deploy")
        lock.acquire()
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE
        ) as waiter:
            try:
                wait_until(lambda: space.waiting("deploy"), "it waits")
                waiter.send_signal(signal.SIGSTOP)
                time.sleep(0.2)  # what it asked before is answered
                lock.release()
                time.sleep(1.5 * TTL)
                waiter.send_signal(signal.SIGCONT)
                assert select.select([waiter.stdout], [], [], PATIENCE)[0]
                assert waiter.stdout.readline() == b"in\n"
                assert waiter.wait(PATIENCE) == 0
            finally:
                waiter.kill()


def test_idle_leases_are_renewed_three_times_and_together(memory):
    server, space = memory
    locks = [space.Lock(f"{number}") for number in range(50)]
    waiter = space_on(server, TTL)
    for lock in locks:
        lock.acquire()

    def wait():
        with waiter.Lock("1").acquire(timeout=PATIENCE):
            pass

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: len(server.lines["1"]) == 2, "it waits")
    server.requests.clear()
    time.sleep(2 * TTL)
    assert set(server.requests) == {"renew"}
    assert server.requests["renew"] <= 2 * (3 * 2 + 1)
    for lock in locks:
        lock.release()
    waiting.join()
    waiter.close()
