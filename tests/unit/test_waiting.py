"""The pauses of a wait, on a clock that only the test moves."""

import itertools
import os

import pytest

import semlock
from semlock._waiting.steps import growing_pauses
from semlock._waiting.waiter import Waiter


class Time:
    def __init__(self):
        self.now = 100.0
        self.pauses = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


def waiter(time, timeout, chance=0.5):
    return Waiter(
        timeout,
        lambda: growing_pauses(lambda: chance),
        clock=time.clock,
        sleep=time.sleep,
    )


def test_pauses_grow_up_to_a_bound():
    time = Time()
    wait = waiter(time, None)
    for _ in range(40):
        assert wait.pause()
    assert time.pauses == sorted(time.pauses)
    assert time.pauses[0] < 0.001
    assert time.pauses[-1] == pytest.approx(0.05)
    assert wait.waited == pytest.approx(sum(time.pauses))


def test_the_time_that_was_given_is_used_up_and_not_exceeded():
    time = Time()
    wait = waiter(time, 1.0)
    while wait.pause():
        pass
    assert time.now == pytest.approx(101.0)


def test_a_timeout_of_zero_never_pauses():
    time = Time()
    assert not waiter(time, 0).pause()
    assert time.pauses == []


@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_no_two_waiters_keep_step(chance):
    one, other = Time(), Time()
    waiter(one, None).pause()
    waiter(other, None, chance).pause()
    assert one.pauses != other.pauses


def test_a_wall_clock_that_jumps_changes_no_timeout(path, monkeypatch):
    jumps = iter(range(10**9, 10**12, 10**9))
    with semlock.Lock(path) as holder:
        monkeypatch.setattr("semlock._core.status.time", lambda: float(next(jumps)))
        other = semlock.Lock(path)
        assert other.try_acquire() is False
        holder.check()


def test_a_holder_that_lives_on_is_judged_more_and_more_seldom(path, monkeypatch):
    looks = []
    now = [10**12]
    monkeypatch.setattr("semlock._core.capi.now_ns", lambda: now[0])
    look = semlock.Lock.status

    def counting(self):
        looks.append(now[0])
        return look(self)

    monkeypatch.setattr(semlock.Lock, "status", counting)
    with semlock.Lock(path):
        other = semlock.Lock(path)
        native = other._native
        native.vouched = 0  # else the core asks the witness, and leaves it at that
        for _ in range(200):
            now[0] = max(now[0] + 1, native.look_at)
            native.look_at = 0
            assert other.try_acquire() is False
        gaps = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert gaps[0] == 10_000_000
    assert gaps == sorted(gaps)
    assert gaps[-1] == 200_000_000


def test_between_two_judgements_a_failed_try_reads_nothing(path, monkeypatch):
    with semlock.Lock(path):
        other = semlock.Lock(path)
        assert other.try_acquire() is False
        other._native.look_at = 2**62
        monkeypatch.setattr(semlock.Lock, "status", None)
        assert other.try_acquire() is False
    assert not os.path.exists(path)
