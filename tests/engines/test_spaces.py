"""Spaces: what locks on all engines promise beyond locks that are files."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

import pytest

import semlock
import servers
from engine_urls import url_of
from memory_engine import Server, space_on
from semlock._engines.wait import Wait
from semlock._events.tap import listen, unlisten
from support import PATIENCE, wait_until

TTL = 1.0


@pytest.fixture(params=["memory", "redis", "postgresql", "directory"])
def pair(request):
    """Two clients of one engine."""
    if request.param == "memory":
        server = Server()
        spaces = space_on(server, TTL), space_on(server, TTL)
    else:
        if request.param == "directory":
            url = request.getfixturevalue("tmp_path").as_uri()
        else:
            url = url_of(request.getfixturevalue(f"{request.param}_server"))
        prefix = uuid.uuid4().hex
        spaces = tuple(semlock.connect(url, prefix=prefix, ttl=TTL) for _ in range(2))
    yield spaces
    for space in spaces:
        space.close()


def stress_but(first, *others):
    """Choose one engine by default, and the others in the storms: each waits for its leases."""
    return [first, *(pytest.param(name, marks=pytest.mark.stress) for name in others)]


# What only the leases of the client do is the same on all engines.
on_one_engine = pytest.mark.parametrize(
    "pair", stress_but("memory", "redis", "postgresql", "directory"), indirect=True
)


@pytest.fixture
def space(pair):
    return pair[0]


@pytest.fixture
def memory():
    """A server in memory, and a client of it."""
    server = Server()
    with space_on(server, TTL) as space:
        yield server, space


def stop_renewing(space) -> None:
    """Have a client's renewals fail, as one that is cut off."""

    def away(*_, **__):
        time.sleep(0.01)
        raise semlock._engines.engine.Away("cut off")

    space.client.engine.renew = away


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


# ---------------------------------------------------------------- kinds


def test_readers_share_and_a_writer_does_not(pair):
    one, two = (space.SharedLock("table") for space in pair)
    with one.shared():
        assert one.held == "shared"
        assert two.try_acquire_shared()
        assert len(two.readers()) == 2
        two.release()
        assert not two.try_acquire()
    with one:
        assert (one.held, one.status().state) == ("exclusive", "held")
        assert not two.try_acquire_shared()
    assert one.held is None


def test_a_reader_does_not_overtake_a_waiting_writer(pair):
    one, two = (space.SharedLock("table") for space in pair)
    one.acquire_shared()
    writer = threading.Thread(
        target=lambda: two.acquire(timeout=PATIENCE).__exit__(None, None, None)
    )
    writer.start()
    wait_until(lambda: pair[0].waiting("table"), "the writer waits")
    third = pair[1].SharedLock("table")
    assert not third.try_acquire_shared()
    one.release()
    writer.join()
    assert third.try_acquire_shared()
    third.release()


def test_slots_are_as_many_as_they_say(pair):
    locks = [pair[number % 2].SlotLock("pool", slots=2) for number in range(3)]
    assert [lock.try_acquire() for lock in locks] == [True, True, False]
    assert len(locks[2].status()) == 2
    locks[0].release()
    assert locks[2].try_acquire()
    assert locks[1].fence < locks[2].fence
    for lock in locks[1:]:
        lock.release()
    for wrong in (0, -1, 1.5, True, "2", 10**9):
        with pytest.raises(ValueError, match="slots"):
            pair[0].SlotLock("pool", slots=wrong)


def test_any_of_some_locks_is_taken_when_it_gets_free(pair):
    one, two = pair
    held = [one.Lock("a"), one.Lock("b")]
    for lock in held:
        lock.acquire()
    threading.Timer(0.1, held[1].release).start()
    won = two.acquire_any([two.Lock("a"), two.Lock("b")], timeout=PATIENCE)
    assert (won.name, won.held) == ("b", True)
    assert not two.waiting("a")
    with pytest.raises(semlock.LockTimeoutError):
        two.acquire_any([two.Lock("a"), two.Lock("a ")][:1], timeout=0.1)
    won.release()
    held[0].release()
    assert one.list() == []


def test_all_of_some_locks_are_taken_or_none(pair):
    one, two = pair
    with one.Lock("b"):
        locks = [two.Lock(name) for name in "abc"]
        with pytest.raises(semlock.LockTimeoutError):
            two.acquire_all(locks, timeout=0.1)
        assert one.list() == ["b"]
    with two.acquire_all(locks, timeout=PATIENCE):
        assert one.list() == ["a", "b", "c"]
    assert one.list() == []
    with pytest.raises(ValueError, match="twice"):
        two.acquire_all([two.Lock("a"), two.Lock("a")])


def test_no_request_of_a_task_holds_up_its_loop(memory):
    """Whatever is asked: by a try, a wait, its end, a notice, a release, and all kinds of locks."""
    server, space = memory
    holder = space.Lock("held")
    holder.acquire()
    longest, told = 0.0, []

    async def tick():
        nonlocal longest
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, before = max(longest, now - before), now

    async def main():
        ticking = asyncio.create_task(tick())
        server.takes = 0.15
        shared, free = space.AsyncSharedLock("table"), [space.AsyncLock(name) for name in "ab"]
        async with shared, space.AsyncSlotLock("pool", slots=2), free[0]:
            pass
        async with shared.shared(), space.acquire_all_async(free):
            pass
        async with free[1]:
            assert await space.acquire_any_async(free[:1]) is free[0]
        await free[0].__aexit__(None, None, None)  # release() is a call that waits
        held = space.AsyncLock("held", on_wait=lambda found, _: told.append(found.info.pid))
        for waiting in (
            held.acquire(timeout=0),
            held.acquire(timeout=0.3),
            space.acquire_any_async([held], timeout=0.3),
            space.acquire_all_async([free[0], held], timeout=0.3),
        ):
            with pytest.raises(semlock.LockTimeoutError):
                await waiting
        waiting = asyncio.create_task(whole(held.acquire()))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        ticking.cancel()

    async def whole(coroutine):
        await coroutine

    for _ in range(3):  # on a busy machine the loop may come late once
        longest = 0.0
        asyncio.run(main())
        if longest < 0.1:
            break
    server.takes = 0.0
    holder.release()
    assert told
    assert longest < 0.1
    wait_until(lambda: space.list() == [], "nothing stays behind")


# ---------------------------------------------------------------- looking and removing


def test_a_lock_that_is_taken_by_force_is_told_to_its_holder(pair):
    told = []
    mine = pair[0].Lock("deploy", tag="v1", on_lost=lambda lock, error: told.append(error))
    mine.acquire()
    with pytest.raises(semlock.LockHeldError, match=r"v1.*force=True"):
        pair[1].remove("deploy")
    with pytest.raises(semlock.LockHeldError, match="not held by the one"):
        pair[1].remove("deploy", only_if="0" * 32, force=True)
    assert pair[1].remove("deploy", only_if=mine.token, force=True).info.tag == "v1"
    wait_until(lambda: told, "the loss is told")
    assert isinstance(told[0], semlock.LockLostError)
    with pytest.raises(semlock.LockLostError):
        mine.release()
    assert pair[1].remove("deploy") is None


def test_a_wait_without_a_lock_ends_when_it_is_free(pair):
    lock = pair[0].Lock("deploy")
    lock.acquire()
    with pytest.raises(semlock.LockTimeoutError):
        pair[1].wait("deploy", timeout=0.1)
    threading.Timer(0.1, lock.release).start()
    pair[1].wait("deploy", timeout=PATIENCE)
    assert pair[1].list() == []


@pytest.mark.parametrize(
    "name",
    [
        "a/b//c",
        "/",
        " ",
        "schön ✓ 鍵",
        "a*[b]?{c}}",
        "x" * 1024,
        "line\nbreak",
        "%41",
        "..",
        "'; --",
    ],
)
def test_a_name_is_any_text(pair, name):
    with pair[0].Lock(name):
        assert pair[1].list() == [name]
        assert pair[1].status(name).state == "held"
        assert not pair[1].Lock(name).try_acquire()
    assert pair[1].list() == []


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025, "ü" * 600, "x" * 10240, "\udc80"])
def test_a_name_that_can_be_none_is_refused(space, name):
    for call in (
        space.Lock,
        space.AsyncLock,
        space.SharedLock,
        space.status,
        space.remove,
        space.wait,
    ):
        with pytest.raises(semlock.LockPathError):
            call(name)


@pytest.mark.parametrize("name", [None, b"a", 1, ["a"]])
def test_a_name_that_is_no_text_is_refused(space, name):
    with pytest.raises(TypeError, match="name is text"):
        space.Lock(name)


def test_what_locks_on_an_engine_do_is_traced_and_counted(pair, tmp_path):
    events, mine = [], pair[0].Lock("deploy", tag="v1")
    listener = lambda event, path, at, fields: events.append((event, path))  # noqa: E731
    listen(listener)
    try:
        with mine:
            assert not pair[1].Lock("deploy").try_acquire()
            with pytest.raises(semlock.LockTimeoutError):
                pair[1].Lock("deploy").acquire(timeout=0.05)
        mine.acquire()
        pair[1].remove("deploy", force=True)
        with pytest.raises(semlock.LockLostError):
            mine.release()
    finally:
        unlisten(listener)
    assert {path for _, path in events} == {mine.path}
    assert [event for event, _ in events if event not in ("lost", "release")] == [
        "request", "acquire", "refused", "request", "wait", "timeout", "request", "acquire",
    ]  # fmt: skip
    assert [event for event, _ in events].count("release") in (1, 2)


# ---------------------------------------------------------------- spaces


def test_a_space_and_its_locks_are_of_one_process(space):
    for thing in (space, space.Lock("a"), space.SharedLock("a")):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_no_space(pair):
    space, other = pair
    with space.Lock("deploy") as lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert not lock.held
                for call in (
                    space.Lock("b").acquire,
                    space.Lock("b").try_acquire,
                    lambda: space.status("b"),
                ):
                    with pytest.raises(semlock.LockEngineError, match="forked off"):
                        call()
                with pytest.raises(semlock.NotHeldError):
                    lock.release()
                space.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        lock.check()
        assert other.status("deploy").info.pid == os.getpid()


def test_a_closed_space_has_released_all_and_refuses(pair):
    space, other = pair
    lock = space.Lock("deploy")
    lock.acquire()
    space.close()
    space.close()
    with other.Lock("deploy").acquire(timeout=PATIENCE):
        assert not lock.held
    for call in (space.Lock("b").acquire, lambda: space.status("b"), space.list):
        with pytest.raises(semlock.LockEngineError, match="closed"):
            call()


def test_a_loss_before_the_close_is_still_told_by_the_release(pair):
    space, other = pair
    lost = threading.Event()
    lock = space.Lock("deploy", on_lost=lambda *_: lost.set())
    lock.acquire()
    other.remove("deploy", force=True)
    assert lost.wait(PATIENCE)
    space.close()
    assert not lock.held
    assert lock.left() == 0
    with pytest.raises(semlock.LockLostError):
        lock.release()


@pytest.mark.parametrize("form", ["thread", "task", "any"])
def test_a_wait_ends_when_its_space_is_closed(form):
    """It would sleep until its entry's lease ends, and that entry is not in the line any more."""
    server = Server()
    with space_on(server, 3600) as other, other.Lock("deploy"):
        space = space_on(server, 3600)
        told = []

        def wait():
            lock = space.Lock("deploy")
            with pytest.raises(semlock.LockEngineError, match="closed"):
                if form == "task":
                    asyncio.run(space.AsyncLock("deploy").acquire())
                elif form == "any":
                    space.acquire_any([lock])
                else:
                    lock.acquire()
            told.append(True)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        wait_until(lambda: other.waiting("deploy"), "it waits")
        space.close()
        wait_until(lambda: told, "the wait ends")
        thread.join()
        assert other.waiting("deploy") == []


each_engine = pytest.mark.parametrize(
    "pair", ["memory", "redis", "postgresql", "directory", "etcd"], indirect=True
)


@each_engine
def test_an_answer_that_comes_during_the_close_counts_no_more(pair):
    """close() has given the entry up, and has not yet taken it out of the line."""
    space, other = pair
    enter, leave = space.client.engine.enter, space.client.engine.leave
    main = threading.get_ident()
    answered, given_up, back = (threading.Event() for _ in range(3))
    failures = []

    def enter_late(*arguments, **options):
        place = enter(*arguments, **options)
        answered.set()
        assert given_up.wait(PATIENCE)
        return place

    def leave_late(*arguments, **options):
        if threading.get_ident() == main:
            given_up.set()
            assert back.wait(PATIENCE)
        return leave(*arguments, **options)

    space.client.engine.enter, space.client.engine.leave = enter_late, leave_late
    lock = space.Lock("deploy")

    def acquire():
        try:
            lock.acquire(timeout=PATIENCE)
        except semlock.LockEngineError as error:
            failures.append(str(error))
        back.set()

    thread = threading.Thread(target=acquire)
    thread.start()
    assert answered.wait(PATIENCE)
    space.close()
    thread.join(PATIENCE)
    assert ["closed" in failure for failure in failures] == [True]
    assert not lock.held
    assert lock.left() == 0
    with other.Lock("deploy").acquire(timeout=PATIENCE):
        assert other.waiting("deploy") == []


def answer_after_close(space):
    """Have the space closed between the engine's answer to a request and its arrival."""
    enter = space.client.engine.enter

    def enter_late(*arguments, **options):
        place = enter(*arguments, **options)
        space.close()
        return place

    space.client.engine.enter = enter_late


@each_engine
@pytest.mark.parametrize("form", ["free", "held", "once"])
def test_an_answer_that_comes_after_the_close_counts_no_more(pair, form):
    """The entry is out of the line by then: a lock that it won would have two holders."""
    space, other = pair
    answer_after_close(space)
    lock, others = space.Lock("deploy"), other.Lock("deploy")
    if form == "held":
        others.acquire()
    with pytest.raises(semlock.LockEngineError, match="closed"):
        if form == "once":
            lock.try_acquire()
        else:
            lock.acquire(timeout=PATIENCE)
    assert not lock.held
    assert lock.left() == 0
    assert other.waiting("deploy") == []
    if form != "held":
        others.acquire(timeout=0)
    others.release()


def test_a_wait_ends_when_the_answer_to_its_request_comes_after_the_close():
    server = Server()
    with space_on(server, 3600) as other, other.Lock("deploy"):
        space = space_on(server, 3600)
        answer_after_close(space)
        with pytest.raises(semlock.LockEngineError, match="closed"):
            space.Lock("deploy").acquire(timeout=PATIENCE)


@each_engine
def test_a_space_that_is_dropped_ends_its_thread_and_connections(pair, request):
    kind = request.node.callspec.params["pair"]
    client = pair[0].client
    address = client.address

    def threads(earlier):
        gc.collect()
        return [
            one
            for one in threading.enumerate()
            if one.name == "semlock-space" and one not in earlier
        ]

    def descriptors():
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def made():
        if kind == "memory":
            return space_on(Server(), TTL)
        return semlock.connect(address.url, prefix=address.prefix, ttl=TTL)

    earlier = threading.enumerate()  # spaces of other tests, whose locks are held for ever
    with made() as first, first.Lock("warm up"):
        pass
    wait_until(lambda: not threads(earlier), "the first thread has ended")
    before = descriptors()
    space = made()
    lock = space.Lock("deploy")
    with lock:
        pass
    del space
    assert len(threads(earlier)) == 1, "its lock can still be used"
    with lock:
        pass
    with pytest.warns(ResourceWarning, match="was not closed"):
        del lock
        gc.collect()
    wait_until(lambda: not threads(earlier), "its thread has ended")
    wait_until(lambda: descriptors() <= before, "its connections have ended")


def test_a_space_that_is_dropped_with_a_held_lock_goes_on(memory):
    server, watcher = memory
    for circle in (False, True):
        space = space_on(server, TTL)
        lock = space.Lock(f"deploy {circle}")
        lock.acquire()
        kept = [space, lock]
        if circle:
            kept.append(kept)
        with pytest.warns(ResourceWarning, match="stays held until the process ends"):
            del space, lock, kept
            gc.collect()
    time.sleep(1.5 * TTL)
    for circle in (False, True):
        assert watcher.status(f"deploy {circle}").state == "held"


def test_a_release_after_a_loss_asks_no_server_that_is_away(memory):
    server, space = memory
    lock = space.Lock("deploy", on_lost=lambda *_: None)
    lock.acquire()
    server.away = True
    wait_until(lambda: not lock.held and space.client.keeper.failure, "it is lost")
    asked, main, engine = [], threading.get_ident(), space.client.engine
    request = engine._request

    def noted(kind, within, do):
        if threading.get_ident() == main:
            asked.append(kind)
        return request(kind, within, do)

    engine._request = noted
    with pytest.raises(semlock.LockLostError, match="The last renewal failed") as failure:
        lock.release()
    assert asked == []
    assert failure.value.reason == "unreachable"
    server.away = False


def test_a_lock_that_another_space_of_this_process_holds_is_named_with_its_place(pair):
    with pair[0].Lock("deploy"), pytest.raises(semlock.LockTimeoutError) as failure:
        pair[1].Lock("deploy").acquire(timeout=0)
    assert "this very process" in str(failure.value)
    assert os.path.basename(__file__) in str(failure.value)
    assert "no object" not in str(failure.value)


@pytest.mark.parametrize("ttl", [0, -1, 0.1, float("nan"), float("inf"), "1", True, 10**9])
def test_a_wrong_ttl_is_told(ttl):
    with pytest.raises((ValueError, semlock.LockEngineError), match="ttl"):
        semlock.connect("redis://127.0.0.1:1", ttl=ttl)


@pytest.mark.parametrize(
    "url",
    ["", "x", "http://h", "redis:", "redis://h:x", "redis://h:0", "redis://h:99999", "redis://u:SECRET@h:x",
     "redis://h#SECRET", "redis://[::1", "redis://h/deploy", "/tmp/a.lock"],
)  # fmt: skip
def test_a_wrong_address_is_told_without_what_is_secret(url):
    with pytest.raises(ValueError) as failure:
        semlock.connect(url)
    assert "SECRET" not in str(failure.value)


# ---------------------------------------------------------------- servers with something wrong


@pytest.mark.parametrize("scheme", ["etcd", "redis", "postgresql"])
def test_a_host_whose_name_is_too_long_is_a_wrong_address(scheme):
    with pytest.raises(ValueError, match="hosts can't be read"):
        semlock.connect(f"{scheme}://{'x' * 64}.example/")


@pytest.mark.parametrize("engine", ["redis", "postgresql", "etcd", "directory"])
@pytest.mark.parametrize(
    ("name", "longer", "other"),
    [
        ("a:b", ":a", "b"),
        ("x", "/x", "deploy"),
        ("q", ":line", "q"),
        ("fence", ":line", "x"),
        ("%3Aa", ":", "a"),
    ],
)
def test_a_prefix_within_another_one_is_another_space(
    engine, name, longer, other, request, tmp_path
):
    if engine == "directory":
        url = tmp_path.as_uri()
    else:
        url = url_of(request.getfixturevalue(f"{engine}_server"))
    prefix = uuid.uuid4().hex
    with (
        semlock.connect(url, prefix=prefix) as one,
        semlock.connect(url, prefix=prefix + longer) as two,
        two.Lock(other).acquire(timeout=0) as second,
        one.Lock(name).acquire(timeout=0) as first,
    ):
        assert (one.list(), two.list()) == ([name], [other])
        first.check()
        second.check()


def test_an_option_of_an_address_is_given_once():
    with pytest.raises(ValueError, match="'ttl' more than once"):
        semlock.connect("redis://:SECRET@h?ttl=3&prefix=a&ttl=4")


def test_a_space_of_a_directory_that_is_open_at_the_end_of_a_program_says_nothing(tmp_path):
    """What is left then is deleted after the modules are empty."""
    program = (
        "import semlock, sys; first = semlock.connect(sys.argv[1]); "
        "first.Lock('a').acquire(); spaces = [first, semlock.connect(sys.argv[1])]; "
        "spaces.append(spaces)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path.as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_a_closed_port_is_told_in_time():
    began = time.monotonic()
    with pytest.raises(semlock.LockEngineError, match=r"127\.0\.0\.1") as failure:
        semlock.connect(f"redis://u:SECRET@127.0.0.1:{servers.free_port()}", ttl=1.5)
    assert time.monotonic() - began < PATIENCE
    assert "SECRET" not in repr(failure.value)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_what_is_no_redis_is_told_in_time(says):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(says)
                kept.append(connection)

        kept = []
        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(semlock.LockEngineError, match="could not be connected"):
            semlock.connect(f"redis://127.0.0.1:{server.getsockname()[1]}", timeout=0.4)
        assert time.monotonic() - began < PATIENCE
        for connection in kept:
            connection.close()


def test_a_wrong_password_is_told_and_never_shown():
    with servers.running(servers.Redis, password=servers.PASSWORD) as server:
        with semlock.connect(url_of(server)) as space:
            with space.Lock("deploy") as lock:
                for shown in (repr(space), repr(lock), lock.path, repr(lock.status())):
                    assert servers.PASSWORD not in shown
                    assert "s3cret" not in shown
        wrong = "redis://:WRONGSECRET@" + server.address
        for url in (wrong, "redis://" + server.address):
            with pytest.raises(semlock.LockEngineError) as failure:
                semlock.connect(url)
            assert "WRONGSECRET" not in repr(failure.value)


def test_a_replica_is_refused(redis_server):
    with servers.running(servers.Redis) as replica:
        host, _, port = redis_server.address.partition(":")
        with socket.create_connection(replica.address.split(":"), 5) as stream:
            stream.sendall(f"REPLICAOF {host} {port}\r\n".encode())
            assert stream.recv(64).startswith(b"+OK")
        with pytest.raises(semlock.LockEngineError, match="replica"):
            semlock.connect(url_of(replica))


def test_tls_is_checked(certificates):
    with servers.running(servers.Redis, certificates) as server:
        with semlock.connect(url_of(server), ca=certificates.ca) as space, space.Lock("deploy"):
            pass
        with pytest.raises(semlock.LockEngineError, match="TLS"):
            semlock.connect(url_of(server))
        with pytest.raises(semlock.LockEngineError):
            semlock.connect(url_of(server).replace("rediss", "redis"), ttl=1.5)


def test_a_server_that_stops_does_not_hold_up_a_short_wait(redis_server):
    """A new connection logs in, and that takes no longer than the request may."""
    with semlock.connect(url_of(redis_server), prefix=uuid.uuid4().hex, ttl=6) as space:
        redis_server.pause()
        try:
            for _ in range(2):  # by the connection that is there, and by a new one
                began = time.monotonic()
                with pytest.raises(semlock.LockEngineError, match="no answer in time"):
                    space.Lock("deploy").acquire(timeout=0.3)
                assert time.monotonic() - began < 3  # it was twice a third of ttl
        finally:
            redis_server.resume()
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            pass


def test_a_server_that_stops_and_goes_on(redis_server):
    with semlock.connect(url_of(redis_server), prefix=uuid.uuid4().hex, ttl=0.9) as space:
        told = []
        lock = space.Lock("deploy", on_lost=lambda *_: told.append(lock.left()))
        lock.acquire()
        redis_server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(semlock.LockEngineError):
                space.Lock("other").acquire(timeout=0.3)
            assert time.monotonic() - began < 1.0
            wait_until(lambda: told, "the end of the lease is told")
            assert told == [0.0]
        finally:
            redis_server.resume()
        with space.Lock("other").acquire(timeout=PATIENCE):
            pass
        with pytest.raises(semlock.LockLostError):
            lock.release()


def test_a_server_that_was_killed_and_started_again_is_found():
    with servers.running(servers.Redis, settings={"appendfsync": "always"}) as server:
        with semlock.connect(url_of(server), ttl=3.0) as space:
            with space.Lock("deploy") as lock:
                fence = lock.fence
                server.kill()
                server.start()
                lock.check()
                assert lock.fence == fence
            with space.Lock("deploy") as lock:
                assert lock.fence > fence
