"""Spaces: what locks on all engines promise beyond locks that are files."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
import time

import pytest

import semlock
from memory_engine import Server, space_on
from semlock._events.tap import listen, unlisten
from spacelib import TTL
from support import PATIENCE, wait_until

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
