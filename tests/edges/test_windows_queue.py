"""A free lock goes to a live contender within a fixed time, on Windows."""

import contextlib
import os
import sys
import time

import pytest

import semlock
import windows_calls
from crowd import in_time, threads_that_wait, tickets, timed
from faultlib import stop_after, stop_before
from support import Child, share, wait_until
from windows_calls import WindowsActor

pytestmark = [
    pytest.mark.one_at_a_time("time"),
    pytest.mark.skipif(
        sys.platform != "win32", reason="tickets are kept open by their owners on Windows only"
    ),
    # Those who are killed leave the queue to the next one who waits, or cleans.
    pytest.mark.leaves("queue", "tmp"),
]

MANY = pytest.param(64, marks=pytest.mark.stress)
WAIT_FOR_IT = """
import time
lock = semlock.Lock({path!r}, fair={fair})
lock.acquire()
at = time.perf_counter()
lock.release()
at
"""


@contextlib.contextmanager
def suspended_ahead(path, count):
    """Have so many stand in the queue of a lock that was let go of, all suspended."""
    with semlock.Lock(path):
        stack = contextlib.ExitStack()
        with stack:
            child = stack.enter_context(threads_that_wait(path, count))
            child.stop()
            stack = stack.pop_all()
    with stack:
        yield child
        child.resume()


@pytest.mark.parametrize("count", [1, 8, MANY])
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "not fair"])
def test_a_waiter_has_a_free_lock_soon_though_those_before_it_are_suspended(path, count, fair):
    def once():
        holder = semlock.Lock(path)
        with Child() as waiter, contextlib.ExitStack() as stack:
            with holder:
                stopped = stack.enter_context(threads_that_wait(path, count))
                waiter.send(WAIT_FOR_IT.format(path=path, fair=fair))
                wait_until(lambda: len(tickets(path)) == count + 1, "the last one waits too")
                stopped.stop()
                begin = time.perf_counter()
            took = waiter.receive() - begin
            assert tickets(path) == []  # those who left it alone are passed by
            return took

    in_time(once)


@pytest.mark.parametrize("count", [1, 8, MANY])
@pytest.mark.parametrize("ask", ["try_acquire()", "acquire(0)", "acquire()"])
def test_one_who_asks_anew_has_a_free_lock_soon_though_others_are_suspended(path, count, ask):
    lock = semlock.Lock(path, fair=True)

    def once():
        with suspended_ahead(path, count):
            took = timed(lambda: eval(f"lock.{ask}", {"lock": lock}))
            lock.release()
            return took

    in_time(once)


def test_those_who_were_suspended_have_the_lock_in_the_end_in_their_old_order(path, tmp_path):
    record = tmp_path / "order"
    record.touch()
    take = (
        f"with semlock.Lock({path!r}, fair=True): open({str(record)!r}, 'a').write({{name!r}})"
    )
    late = semlock.Lock(path, fair=True)
    with Child() as a, Child() as b, Child() as c:
        with semlock.Lock(path):
            for count, (child, name) in enumerate([(a, "a"), (b, "b")], 1):
                child.send(take.format(name=name))
                wait_until(lambda n=count: len(tickets(path)) == n, "it stands in the queue")
            a.stop()
            b.stop()
        assert late.acquire(0)
        assert tickets(path) == []  # passed by
        c.send(take.format(name="c"))
        wait_until(lambda: len(tickets(path)) == 1, "a late one waits")
        a.resume()
        b.resume()
        wait_until(lambda: len(tickets(path)) == 3, "they stand in the queue again")
        late.release()
        for child in (a, b, c):
            child.receive()
    assert record.read_text() == "abc"
    assert not [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".queue")]


@contextlib.contextmanager
def waiting_actor(path, *stops):
    """Have an actor wait as the first, and give it and the holder; it stops before its sleep."""
    actor = WindowsActor(path)
    holder = semlock.Lock(path)
    try:
        actor.have("mine", "semlock.Lock(path, fair=True)")
        holder.acquire()
        assert actor.begin("mine.acquire()", stop_before("WaitForMultipleObjects"), *stops)
        yield actor, holder
    finally:
        actor.close()


@pytest.mark.parametrize(
    "stops", [(), (stop_after("CreateFileW look"),)], ids=["it sleeps", "it looks at the lock"]
)
def test_the_first_looks_whether_an_older_one_is_back_before_it_takes_the_lock(path, stops):
    with waiting_actor(path, *stops) as (actor, holder):
        for _ in stops:
            assert actor.go_on()
        holder.release()
        actor.finish()
        since = actor.calls[actor.calls.index("WaitForMultipleObjects") :]
        actor.do("mine.release()")
    assert "FindFirstFileExW" in since[: since.index("SetFileInformationByHandle rename")]


def test_the_last_waiter_removes_the_queue_though_its_ticket_is_being_read(path):
    with waiting_actor(path, stop_after("RemoveDirectoryW")) as (actor, holder):
        [ticket] = tickets(path)
        with open(ticket, "rb", opener=share):
            holder.release()
            assert actor.go_on()
            assert os.path.exists(os.path.dirname(ticket))
        actor.finish()
        assert not os.path.exists(os.path.dirname(ticket))
        actor.do("mine.release()")


def test_a_dead_holder_is_found_though_those_before_are_suspended(path):
    with Child() as holder, Child() as waiter:
        holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        with threads_that_wait(path, 2) as stopped:
            waiter.send(WAIT_FOR_IT.format(path=path, fair=True))
            wait_until(lambda: len(tickets(path)) == 3, "the last one waits too")
            stopped.stop()
            holder.kill()
            waiter.receive()


def test_a_ticket_that_may_not_be_removed_is_remembered_and_passed_by(path):
    """It is another user's, perhaps."""
    actor = WindowsActor(path)
    try:
        actor.have("mine", "semlock.Lock(path, fair=True)")
        with suspended_ahead(path, 1):
            actor.do(f"refuse('CreateFileW delete', {windows_calls.ACCESS_DENIED})")
            actor.do("mine.acquire(0)")
            actor.do("mine.release()")
            assert len(tickets(path)) == 1
            assert actor.do("mine.try_acquire()")
            assert actor.calls.count("FindFirstFileExW") == 1  # without a second look
            actor.do("mine.release()")
    finally:
        actor.close()
