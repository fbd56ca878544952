"""What threads share in Python changes in one step, however often they are switched."""

from __future__ import annotations

import sys
import threading

import pytest

import semlock
from semlock import task
from semlock._core import events, registry
from semlock._events import stats, tap
from semlock._locks import many, mine
from support import PATIENCE

THREADS = 8


@pytest.fixture(autouse=True)
def switched_all_the_time():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(function, count=THREADS):
    """Run a function in many threads at once: what went wrong in one of them is raised."""
    errors = []
    start = threading.Barrier(count)

    def work(number):
        try:
            start.wait()
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class EmptiedByAnother(list):
    """A list that another thread empties right after each look at its length."""

    def __len__(self):
        length = super().__len__()
        self.clear()
        return length


def test_waits_that_another_thread_ends_meanwhile_are_not_ended_again(monkeypatch):
    monkeypatch.setattr(many, "_to_end", EmptiedByAnother([object()]))
    with pytest.raises(AttributeError):
        many._end_those_before()  # there was one to be ended
    monkeypatch.setattr(many, "_to_end", EmptiedByAnother([object()]))
    bool(many._to_end)
    many._end_those_before()


def test_waits_for_more_locks_than_are_given_back_at_once_are_ended_by_many_threads(tmp_path):
    ended = []

    class Ended:
        def end(self):
            ended.append(self)

    for _ in range(300):
        many._to_end.extend(Ended() for _ in range(5))
        in_threads(lambda _: many._end_those_before(), 3)
    assert len(ended) == len(set(map(id, ended))) == 1500


@pytest.mark.leaves("waits", "watches")
def test_any_of_many_locks_is_had_by_many_threads(tmp_path):
    paths = [tmp_path / f"{number}.lock" for number in range(many._FEW + 8)]
    held = [semlock.Lock(path) for path in paths[1:]]
    for lock in held:
        lock.acquire()

    def work(_):
        for _ in range(10):
            semlock.acquire_any([semlock.Lock(path) for path in paths], PATIENCE).release()

    in_threads(work, 4)
    for lock in held:
        lock.release()


def test_listeners_come_and_go_in_many_threads_and_leave_no_sink(tmp_path):
    def work(number):
        def listener(*_):
            pass

        for _ in range(20):
            tap.listen(listener)
            with semlock.Lock(tmp_path / f"{number}.lock", durability="none"):
                pass
            tap.unlisten(listener)

    in_threads(work)
    assert events.sink is None
    assert tap._listeners == ()
    assert not tap._holds


@pytest.mark.parametrize("begin", [lambda: tap.listen(print), semlock.stats])
def test_the_first_listener_comes_once_though_two_threads_begin_at_once(monkeypatch, begin):
    came, second = [], threading.Event()
    original = registry.all_locks

    def slowly():
        came.append(1)
        if len(came) > 1:
            second.set()
        second.wait(0.05)  # for another thread to come in between, if it can
        return original()

    monkeypatch.setattr(registry, "all_locks", slowly)
    in_threads(lambda _: begin(), 2)
    stats.stop()
    tap.unlisten(print)
    assert len(came) == 1
    assert not tap._listeners
    assert events.sink is None


def test_counting_that_begins_in_many_threads_counts_once(tmp_path):
    lock = semlock.Lock(tmp_path / "the.lock")
    for _ in range(20):
        stats.stop()
        in_threads(lambda _: semlock.stats())
        with lock:
            pass
        assert semlock.stats().total.acquired == 1
        assert len(tap._listeners) == 1
    stats.stop()


def test_a_heartbeat_that_many_threads_begin_refreshes_all(tmp_path):
    def work(number):
        for _ in range(20):
            with semlock.Lock(tmp_path / f"{number}.lock", heartbeat=0.001) as lock:
                lock.check()

    in_threads(work)


def test_readers_in_many_threads_leave_nothing_behind(tmp_path):
    lock = semlock.SharedLock(tmp_path / "the.lock")

    def work(_):
        for _ in range(10):
            with lock.shared():
                assert lock.held == "shared"

    in_threads(work)
    assert not [path for own in mine._reading.values() for path in own if path == lock.path]
    assert not lock._readers


def test_one_object_that_many_threads_try_lays_out_records_that_stay(tmp_path):
    lock = task.TaskLock(tmp_path / "the.lock", "me", audit=False)
    tokens = set()

    def work(_):
        for _ in range(20):
            if lock.try_acquire():
                tokens.add(lock.token)
                lock.release()

    in_threads(work)
    assert tokens
