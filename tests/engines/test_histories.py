"""Histories on real engines with faults, their judge, and what it finds without a guarantee."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import uuid

import pytest

import histories
import semlock
from engine_urls import url_of
from faultproxy import FaultProxy
from histories import Recorder, Register, false_clock, violations
from semlock._engines import ticket
from semlock._engines.engine import now
from servers import Etcd, EtcdCluster, PostgreSQL, Redis, running

STRESS_SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "10"))
NAMES = ("etcd", "redis", "postgresql")
KINDS = {"etcd": Etcd, "redis": Redis, "postgresql": PostgreSQL}

pytestmark = pytest.mark.skipif(histories.fcntl is None, reason="the register needs flock()")


# ---------------------------------------------------------------------- the judge


def told(directory, who, *events):
    recorder = Recorder(directory, who)
    for what, at, fields in events:
        recorder.tell(what, at, **fields)
    recorder.close()


def held(directory, who, fence, asked, began, until, ended):
    told(
        directory, who, ("asks", asked, {}), ("holds", began, {"fence": fence}),
        ("claims", began, {"until": until}), ("releases", ended, {}),
    )  # fmt: skip


def test_a_good_history_has_no_violation(tmp_path):
    held(tmp_path, "a", 1, 0.0, 1.0, 9.0, 2.0)
    held(tmp_path, "b", 2, 0.5, 2.1, 9.0, 3.0)
    held(tmp_path, "c", 3, 0.6, 3.1, 4.0, 9.0)  # its lease ended while it was stopped
    held(tmp_path, "d", 4, 0.7, 4.1, 9.0, 5.0)
    register = Register(tmp_path)
    assert [register.write(fence, "x") for fence in (1, 2, 2, 4, 3)] == [True] * 4 + [False]
    assert violations(tmp_path) == []


def test_two_holders_at_a_time_are_found(tmp_path):
    held(tmp_path, "a", 1, 0.0, 1.0, 9.0, 3.0)
    held(tmp_path, "b", 2, 0.5, 2.0, 9.0, 4.0)
    assert ["b had the lock" in words for words in violations(tmp_path)] == [True]
    assert violations(tmp_path, leases=False) == []


def test_a_killed_holder_holds_no_longer(tmp_path):
    told(
        tmp_path, "a", ("asks", 0.0, {}), ("holds", 1.0, {"fence": 1}),
        ("claims", 1.0, {"until": 9.0}), ("killed", 2.0, {}),
    )  # fmt: skip
    held(tmp_path, "b", 2, 0.5, 2.1, 9.0, 4.0)
    assert violations(tmp_path) == []


def test_a_fence_that_shrinks_is_found(tmp_path):
    held(tmp_path, "a", 7, 0.0, 1.0, 1.5, 1.5)
    held(tmp_path, "b", 6, 2.0, 3.0, 4.0, 4.0)
    assert ["was given after" in words for words in violations(tmp_path)] == [True]


def test_a_fence_that_is_given_twice_is_found(tmp_path):
    held(tmp_path, "a", 7, 0.0, 1.0, 1.5, 1.5)
    held(tmp_path, "b", 7, 0.5, 3.0, 4.0, 4.0)
    assert ["given twice" in words for words in violations(tmp_path)] == [True]


def test_a_stale_write_that_is_accepted_is_found(tmp_path):
    register = Register(tmp_path, checks=False)
    for fence in (1, 3, 2):
        assert register.write(fence, "x")
    assert ["was accepted after" in words for words in violations(tmp_path)] == [True]


# ---------------------------------------------------------------------- real engines


@pytest.mark.parametrize("name", NAMES)
def test_a_short_history(name, request, workers, tmp_path):
    made = workers(url_of(request.getfixturevalue(f"{name}_server")), ttl=2.0, count=2)
    end = time.monotonic() + 30
    while made.held() < 10 and time.monotonic() < end:
        time.sleep(0.02)
    assert made.held() >= 10
    made.end()
    assert violations(tmp_path) == []
    made.assert_nothing_left()


def faults(made, server, proxy, seconds) -> list[str]:
    """Do harm at random for some seconds; say what was done."""
    done = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(random.uniform(0.1, 0.6))
        what = random.choice(
            ("kill", "stop", "pause", "restart", "cut", "partition", "answers", "requests")
        )
        done.append(what)
        who = random.choice(list(made.running))
        if what == "kill":
            made.kill(who)
            made.start(random.choice((None, made.url)))
        elif what == "stop":  # for longer than its lease
            made.running[who].send_signal(signal.SIGSTOP)
            time.sleep(made.ttl * 1.5)
            made.running[who].send_signal(signal.SIGCONT)
        elif what in ("pause", "restart") and isinstance(server, EtcdCluster):
            leader = server.leader()
            (leader.pause if what == "pause" else leader.kill)()
            time.sleep(random.uniform(0.5, 2.0))
            server.mend()
        elif what == "pause":
            server.pause()
            time.sleep(random.uniform(0.1, 1.0))
            server.resume()
        elif what == "restart":
            server.kill()
            time.sleep(random.uniform(0.0, 1.0))
            server.restart()
        elif what == "cut":
            proxy.cut()
        elif what == "partition":
            proxy.partition()
            time.sleep(made.ttl * random.uniform(0.2, 1.5))
            proxy.heal()
        else:
            getattr(proxy, f"lose_{what}")(count=3)
    return done


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*NAMES, "etcd-cluster"])
def test_a_long_history_with_all_faults(name, workers, tmp_path):
    kind = EtcdCluster if name == "etcd-cluster" else KINDS[name]
    with running(kind) as server:
        behind = server.members[0] if kind is EtcdCluster else server
        with FaultProxy(behind.port) as proxy:
            clocks = [false_clock(36000), false_clock(-36000)]
            made = workers(url_of(server), ttl=2.0, count=3, clocks=clocks)
            made.start(made.url.replace(behind.address, proxy.address))
            done = faults(made, server, proxy, STRESS_SECONDS)
            held, end = made.held(), time.monotonic() + 60
            while made.held() < held + 5 and time.monotonic() < end:
                time.sleep(0.05)
            assert made.held() >= held + 5, f"nothing goes on after {done}"
            made.end()
            # What PostgreSQL's left() promises ends with a restart of the server.
            found = violations(tmp_path, leases=name != "postgresql")
            assert found == [], f"after {done}"
            made.assert_nothing_left()


# ---------------------------------------------------------------------- without a guarantee


@pytest.fixture
def pair(redis_server, tmp_path):
    """Two spaces on one Redis, the first through a proxy; a recorder for each."""
    prefix = uuid.uuid4().hex
    with FaultProxy(redis_server.port) as proxy:
        address = url_of(redis_server).replace(redis_server.address, proxy.address)
        with (
            semlock.connect(address, prefix=prefix, ttl=1.0) as one,
            semlock.connect(url_of(redis_server), prefix=prefix, ttl=1.0) as two,
        ):
            recorders = Recorder(tmp_path, "one"), Recorder(tmp_path, "two")
            yield one, two, proxy, *recorders
            proxy.heal()
            for recorder in recorders:
                recorder.close()


def take(space, recorder, timeout=10.0):
    lock = space.Lock("the lock")
    recorder.tell("asks")
    lock.acquire(timeout)
    recorder.tell("holds", fence=lock.fence)
    return lock


def cut_off_while_it_holds(pair, register) -> None:
    """A holder is cut off, another takes the lock over, and the first one writes late."""
    one, two, proxy, recorder_one, recorder_two = pair
    first = take(one, recorder_one)
    fence = first.fence
    recorder_one.claim(first)
    register.write(fence, "one")
    proxy.partition()
    second = take(two, recorder_two)
    register.write(second.fence, "two")
    register.write(fence, "one")  # it looks at no clock
    second.release()
    proxy.heal()
    with pytest.raises(semlock.LockLostError):
        first.release()


def test_a_late_write_is_refused_by_its_fence(pair, tmp_path):
    cut_off_while_it_holds(pair, Register(tmp_path))
    assert violations(tmp_path) == []


@pytest.mark.stress
def test_without_the_fence_a_late_write_is_accepted(pair, tmp_path):
    cut_off_while_it_holds(pair, Register(tmp_path, checks=False))
    assert ["was accepted after" in words for words in violations(tmp_path)] == [True]


def hold_by_late_answers(pair) -> None:
    """The answers come late, and then the holder is cut off."""
    one, two, proxy, recorder_one, recorder_two = pair
    take(one, recorder_one).release()
    recorder_one.tell("releases")
    proxy.delay(answers=0.25)
    first = take(one, recorder_one)
    proxy.partition()
    recorder_one.claim(first)
    take(two, recorder_two).release()
    proxy.heal()
    with contextlib.suppress(semlock.LockLostError):
        first.release()


def test_answers_that_come_late_shorten_what_is_left(pair, tmp_path):
    hold_by_late_answers(pair)
    assert violations(tmp_path) == []


@pytest.mark.stress
def test_a_lease_that_counts_from_its_answer_lets_two_hold(pair, tmp_path, monkeypatch):
    take_in = ticket.Ticket.take_in
    monkeypatch.setattr(
        ticket.Ticket, "take_in", lambda self, place, sent: take_in(self, place, now())
    )
    hold_by_late_answers(pair)
    assert ["two had the lock" in words for words in violations(tmp_path)] == [True]


def lose_an_answer(pair) -> None:
    one, two, proxy, recorder, _ = pair
    take(one, recorder).release()
    fault = proxy.lose_answers(b"EVALSHA")
    lock = one.Lock("the lock")
    lock.acquire(timeout=0.6)
    assert fault.happened.is_set()
    lock.release()
    assert two.list() == []


def test_an_acquire_whose_answer_is_lost_is_recognised_by_its_token(pair):
    lose_an_answer(pair)


def test_without_recognition_by_token_an_entry_stays_behind(pair, monkeypatch):
    engine = pair[0].client.engine
    enter = engine.enter
    seen = set()

    def with_new_token(self, name, token, *rest, **named):
        if token in seen:  # it is repeated, or asks
            token = uuid.uuid4().hex
        seen.add(token)
        return enter(name, token, *rest, **named)

    monkeypatch.setattr(type(engine), "enter", with_new_token)
    # It waits for its own entry in vain, or leaves it there.
    with pytest.raises((semlock.LockTimeoutError, AssertionError)):
        lose_an_answer(pair)
