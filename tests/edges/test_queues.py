"""A free lock goes to a live contender within a fixed time, whatever stands before it."""

import contextlib
import os
import sys
import time

import pytest

import semlock
import users
from crowd import (
    FORK,
    crowd_that_waits,
    in_time,
    passed_by,
    signal_all,
    standing,
    tickets,
    timed,
)
from semlock._core import capi
from semlock._core.waits import Wait
from support import Child, wait_until

pytestmark = [
    pytest.mark.one_at_a_time("time"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="tickets are FIFOs on Linux only"
    ),
    # Those who are killed leave their tickets to the next one who waits, or cleans.
    pytest.mark.leaves("queue"),
]

MANY = pytest.param(64, marks=pytest.mark.stress)


@contextlib.contextmanager
def held(lock):
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def stopped_ahead(path, count, take="semlock.Lock({path!r}, fair=True).acquire()", before=""):
    return crowd_that_waits(path, count, take.format(path=path), before=before)


@contextlib.contextmanager
def stopped_ahead_of(lock, count):
    """Have some stopped before a lock that is free."""
    with contextlib.ExitStack() as stack:
        with held(lock):
            parent = stack.enter_context(stopped_ahead(lock.path, count))
            signal_all(parent, "SIGSTOP")
        yield parent


# ---------------------------------------------------------------- stopped ones


@pytest.mark.parametrize("count", [1, 8, MANY])
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "not fair"])
def test_a_waiter_has_a_free_lock_soon_though_those_before_it_are_stopped(path, count, fair):
    def once():
        with Child() as waiter, contextlib.ExitStack() as stack:
            with held(semlock.Lock(path)):
                parent = stack.enter_context(stopped_ahead(path, count))
                waiter.send(
                    f"lock = semlock.Lock({path!r}, fair={fair}); lock.acquire(); "
                    "import time; at = time.monotonic(); lock.release(); at"
                )
                wait_until(lambda: len(standing(path)) == count + 1, "the last one waits too")
                signal_all(parent, "SIGSTOP")
                begin = time.monotonic()
            return waiter.receive() - begin

    in_time(once)


@pytest.mark.parametrize("count", [1, 8, MANY])
@pytest.mark.parametrize("ask", ["try_acquire()", "acquire(0)", "acquire()"])
def test_one_who_asks_anew_has_a_free_lock_soon_though_others_are_stopped(path, count, ask):
    def once():
        lock = semlock.Lock(path, fair=True)
        with contextlib.ExitStack() as stack:
            with held(lock):
                parent = stack.enter_context(stopped_ahead(path, count))
                signal_all(parent, "SIGSTOP")
            took = timed(lambda: eval(f"lock.{ask}", {"lock": lock}))
            lock.release()
            return took

    in_time(once)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("ask", ["try_acquire()", "acquire(0)", "acquire()"])
def test_a_free_slot_is_had_soon_though_others_are_stopped(path, slots, ask):
    def once():
        lock = semlock.SlotLock(path, slots, fair=True)
        take = f"semlock.SlotLock({{path!r}}, {slots}, fair=True).acquire()"
        with contextlib.ExitStack() as stack:
            holders = [semlock.Lock(f"{path}.{n}") for n in range(1, slots + 1)]
            with contextlib.ExitStack() as all_slots:
                for holder in holders:
                    all_slots.enter_context(held(holder))
                parent = stack.enter_context(stopped_ahead(path, 4, take))
                signal_all(parent, "SIGSTOP")
            took = timed(lambda: eval(f"lock.{ask}", {"lock": lock}))
            lock.release()
            return took

    in_time(once)


@pytest.mark.parametrize("side", ["", "_shared"], ids=["writer", "reader"])
@pytest.mark.parametrize("ask", ["try_acquire{}()", "acquire{}(0)", "acquire{}()"])
def test_a_shared_lock_is_had_soon_though_others_are_stopped(path, side, ask):
    def once():
        lock = semlock.SharedLock(path, fair=True)
        take = "semlock.SharedLock({path!r}, fair=True).acquire_shared()"
        with contextlib.ExitStack() as stack:
            with held(semlock.Lock(path)):
                parent = stack.enter_context(stopped_ahead(path, 4, take))
                signal_all(parent, "SIGSTOP")
            took = timed(lambda: eval(f"lock.{ask.format(side)}", {"lock": lock}))
            lock.release()
            return took

    in_time(once)


def test_those_who_were_stopped_have_the_lock_in_the_end_in_their_old_order(path, tmp_path):
    record = tmp_path / "order"
    record.touch()
    first, second = semlock.Lock(path, fair=True), semlock.Lock(path, fair=True)
    with Child() as a, Child() as b, Child() as late:
        with held(first):
            for child, name in ((a, "a"), (b, "b")):
                child.send(
                    f"with semlock.Lock({path!r}, fair=True): open({str(record)!r}, 'a')"
                    f".write({name!r})"
                )
                wait_until(lambda n=name: len(standing(path)) == " ab".index(n), "it waits")
            a.stop()
            b.stop()
        before = [os.stat(ticket).st_ino for ticket in tickets(path)]
        # Passed by: their tickets have other names, and are the same files.
        assert second.acquire(0)
        assert len(tickets(path)) == 0
        assert [os.stat(ticket).st_ino for ticket in passed_by(path)] == before
        late.send(
            f"with semlock.Lock({path!r}, fair=True): open({str(record)!r}, 'a').write('c')"
        )
        wait_until(lambda: len(standing(path)) == 1, "a late one waits")
        a.resume()
        b.resume()
        wait_until(lambda: len(standing(path)) == 3, "they stand in the queue again")
        assert [os.stat(ticket).st_ino for ticket in tickets(path)][:2] == before
        assert passed_by(path) == []
        second.release()
        for child in (a, b, late):
            child.receive()
    assert record.read_text() == "abc"


@pytest.mark.parametrize("count", [1, 8])
def test_once_they_are_passed_by_they_hold_up_none_of_those_behind(path, tmp_path, count):
    """The patience for them is needed once, and not for each of the live ones."""
    live = 6
    record = tmp_path / "seen"
    late = f"glob.glob({os.path.dirname(path)!r} + '/.semlock-*.queue/*.late')"
    code = (
        f"import glob\nwith semlock.Lock({path!r}, fair=True):\n"
        f"    open({str(record)!r}, 'a').write(str(len({late})) + ' ')"
    )
    with contextlib.ExitStack() as stack:
        with held(semlock.Lock(path)):
            stopped = stack.enter_context(stopped_ahead(path, count))
            parent = stack.enter_context(Child(FORK))
            parent.run(f"pids = crowd({live}, lambda: exec({code!r}, globals()))")
            wait_until(lambda: len(standing(path)) == count + live, "all wait")
            signal_all(stopped, "SIGSTOP")
        parent.run("for pid in pids: os.waitpid(pid, 0)")
        signal_all(stopped, "SIGKILL")
    # The first one out of turn passes by all of them: no other one needs patience for them.
    assert min(map(int, record.read_text().split())) >= count


# ---------------------------------------------------------------- dead ones


@pytest.mark.parametrize("count", [1, 8, MANY])
def test_the_dead_hold_no_waiter_up_and_are_cleared_away(path, names, count):
    lock = semlock.Lock(path, fair=True)
    with held(lock), stopped_ahead(path, count) as parent:
        signal_all(parent, "SIGSTOP")  # so that none clears away after another
        signal_all(parent, "SIGKILL")
        assert len(tickets(path)) == count
    assert lock.try_acquire()
    lock.release()
    assert not any(name.endswith(".queue") for name in names())


@pytest.mark.parametrize("how", ["the next one", "clean"])
def test_one_that_dies_after_it_was_passed_by_is_cleared_away_too(path, names, how):
    lock = semlock.Lock(path, fair=True)
    with stopped_ahead_of(lock, 3) as parent:
        lock.acquire(0)
        lock.release()
        assert len(passed_by(path)) == 3
        (told,) = {os.path.basename(os.path.dirname(ticket)) for ticket in passed_by(path)}
        assert semlock.clean(os.path.dirname(path)) == []  # they live
        signal_all(parent, "SIGKILL")
    assert told in names()
    if how == "clean":
        semlock.clean(os.path.dirname(path))
    else:
        assert lock.try_acquire()
        lock.release()
    assert told not in names()


@pytest.mark.parametrize("slots", [1, 3])
def test_a_dead_waiters_ticket_keeps_no_process_from_free_slots(path, slots):
    lock = semlock.SlotLock(path, slots, fair=True)
    take = f"semlock.SlotLock({{path!r}}, {slots}, fair=True).acquire()"
    with contextlib.ExitStack() as stack:
        for number in range(1, slots + 1):
            stack.enter_context(held(semlock.Lock(f"{path}.{number}")))
        with stopped_ahead(path, 1, take) as parent:
            signal_all(parent, "SIGKILL")
    assert lock.try_acquire()
    lock.release()


def test_a_waiter_hears_at_once_that_the_one_before_it_died(path):
    with Child() as first, Child() as second, held(semlock.Lock(path)):
        first.send(f"semlock.Lock({path!r}, fair=True).acquire()")
        wait_until(lambda: len(standing(path)) == 1, "the first one waits")
        second.send(f"lock = semlock.Lock({path!r}, fair=True); lock.acquire(); lock.release()")
        wait_until(lambda: len(standing(path)) == 2, "the second one waits")
        first.kill()
        # The end of its FIFO is told, and a dead one's ticket is cleared away.
        wait_until(lambda: len(tickets(path)) == 1, "the dead one's ticket is gone", 2.0)


# ---------------------------------------------------------------- other users


@pytest.mark.parametrize("fate", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("ask", ["try_acquire()", "acquire(0)", "acquire()"])
def test_what_one_user_leaves_in_a_sticky_directory_holds_up_no_other_user(
    shared_path, fate, ask
):
    with Child("import os, semlock, time") as other:
        other.run(users.as_user())
        other.run(f"lock = semlock.Lock({shared_path!r}, fair=True)")

        def once():
            with contextlib.ExitStack() as stack:
                with held(semlock.Lock(shared_path)):
                    parent = stack.enter_context(stopped_ahead(shared_path, 4))
                    signal_all(parent, fate)
                # The lock was root's, and its queue is too.  One that was killed a moment later
                # than the one before it may have cleared that one's ticket.
                assert 0 < len(tickets(shared_path)) <= 4
                took = other.run(
                    f"begin = time.monotonic(); done = lock.{ask} is not False\n"
                    "took = time.monotonic() - begin; lock.release(); took if done else None"
                )
                assert took is not None
                # And the next time they are known.
                assert other.run("lock.acquire(0); lock.release()") is None
                semlock.clean(os.path.dirname(shared_path))
                return took

        in_time(once)


def test_a_queue_is_open_to_all_users_whatever_the_umask(shared_path):
    with Child("import os, semlock") as strict, Child("import os, semlock") as other:
        strict.run("os.umask(0o077)")
        other.run(users.as_user())
        with held(semlock.Lock(shared_path)):
            strict.send(
                f"lock = semlock.Lock({shared_path!r}, fair=True); lock.acquire(); None"
            )
            wait_until(lambda: len(standing(shared_path)) == 1, "root waits")
            other.send(f"lock = semlock.Lock({shared_path!r}, fair=True); lock.acquire(); None")
            wait_until(lambda: len(standing(shared_path)) == 2, "two stand in the queue")
        strict.receive()
        strict.run("lock.release()")
        other.receive()
        other.run("lock.release()")


def test_the_mode_of_a_queue_is_changed_of_no_other_directory(shared_path, monkeypatch):
    """Another user swaps the new directory for one of root's with something in it."""
    directory = os.path.dirname(shared_path)
    os.chmod(directory, 0o777)
    precious = os.path.join(directory, "precious")
    os.mkdir(precious, 0o700)
    with open(os.path.join(precious, "secret"), "x", encoding="ascii"):
        pass
    from semlock._core import folders

    for victim in (precious, os.path.join(directory, "link")):
        if victim != precious:
            os.symlink(precious, victim)
        folders.open_to_others(victim, 0o777)
        assert os.stat(precious).st_mode & 0o777 == 0o700


# ---------------------------------------------------------------- blocked ones


# Each asks for the lock, and lets its loop run until it has a ticket; then no more.
BLOCKED = """
import asyncio, time

def has_ticket():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return any(".queue/" in os.readlink(link) for link in links if os.path.islink(link))

async def main():
    asyncio.ensure_future(semlock.AsyncLock(PATH, fair=True).acquire())
    while not has_ticket():
        await asyncio.sleep(0.001)
    open(os.path.join(DIRECTORY, str(os.getpid())), "x").close()
    time.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("count", [1, 8])
def test_a_loop_that_is_busy_holds_up_no_others(path, tmp_path_factory, count):
    """It stands in the queue and does not look, since a callback never returns."""

    def once():
        lock = semlock.Lock(path, fair=True)
        busy = tmp_path_factory.mktemp("busy")
        code = BLOCKED.replace("PATH", repr(path)).replace("DIRECTORY", repr(str(busy)))
        with contextlib.ExitStack() as stack:
            with held(lock):
                take = f"exec({code!r}, globals())"
                stack.enter_context(crowd_that_waits(path, count, take))
                wait_until(lambda: len(os.listdir(busy)) == count, "all are busy")
            took = timed(lock.try_acquire)
            lock.release()
            return took

    in_time(once)


def test_one_that_is_late_itself_gives_those_before_it_more_time(path):
    """A busy machine makes the first one late too, and a FUSE server of a thousand callers."""
    lateness = 0.06
    with Child() as child, contextlib.ExitStack() as stack:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        parent = stack.enter_context(stopped_ahead(path, 1))
        signal_all(parent, "SIGSTOP")
        lock = semlock.Lock(path, fair=True)
        lock._lay_out()
        wait = Wait((lock._native,), lock._native, lock._record)
        stack.callback(wait.end)
        for _ in range(2):  # it takes its ticket behind a holder that was judged to live
            if wait.wait(capi.now_ns()) == capi.LOOK:
                wait.judged(0, capi.look(os.fsencode(path)))
        assert wait.ahead == 1
        released = capi.now_ns()
        child.run("lock.release()")
        # The first look behind the news of it; from then on the lock was free.
        wait_until(lambda: wait.wait(capi.now_ns()) == capi.TIME and wait.look_at, "it is told")
        time.sleep(max(0, wait.look_at - capi.now_ns()) / 1e9 + lateness)
        assert wait.wait(capi.now_ns()) == capi.TIME
        # Eight times the lateness, which counts up to 5 ms, and the time of one in time.
        assert wait.look_at - released >= (0.18 + 8 * 0.005) * 1e9
