"""Members of a queue that die or stop at every one of their system calls.

Whatever becomes of one, the others get the lock, none of them waits for long, and when all
have had it there is nothing left beside it.
"""

import os
import signal
import time

import pytest

from faultlib import ActorError, die_after, die_before, stop_before
from support import state_of, wait_until

# Longer than it takes to notice that somebody is dead or stopped, on a machine that is busy.
SOON = 3.0
ROUND = "(take(lock, None), lock.check(), lock.release(), native.drain_pool())"


def calls_of_a_round(world, member):
    """Learn the calls of one who stands in the queue, waits, has the lock and lets it go."""
    for _ in range(2):
        world.do("raise_holder()")
        member.have("lock", "new_lock(path, fair=True)")
        assert member.start(ROUND)
        world.do("end_holder()")
        member.finish()
    return member.calls


def begin(member):
    """Have one more stand in the queue and sleep."""
    member.have("lock", "new_lock(path, fair=True)")
    assert member.start(ROUND)


def settle(actor):
    """Wait until a process that was started is dead, stopped or asleep."""
    wait_until(
        lambda: actor.dead or state_of(actor.pid) in ("T", "S", "Z"), "it is at its end or waits"
    )


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "last"])
@pytest.mark.parametrize("death", [die_before, die_after])
def test_wherever_one_dies_the_others_are_served(actor, path, names, place, death):
    world, others = actor(), [actor(), actor()]
    calls = calls_of_a_round(world, others[0])
    numbers = range(1, len(calls) + 1)
    for number in numbers:
        world.do("raise_holder()")
        victim = actor()
        victim.have("lock", "new_lock(path, fair=True)")
        line = [*others]
        for one in line[:place]:
            begin(one)
        asleep = victim.start(ROUND, death(nth=number))
        for one in line[place:]:
            begin(one)
        started = time.monotonic()
        world.do("end_holder()")
        for one in line:
            one.finish()
        assert time.monotonic() - started < SOON, (number, asleep)
        wait_until(lambda victim=victim: victim.dead or _ended(victim), "it dies or ends")
        victim.kill()
        # Of the last one nobody has seen the death.
        world.do("semlock.clean(directory)")
        assert names() == [], (number, asleep)


def _ended(victim):
    try:
        victim.finish()
    except (ActorError, AssertionError):
        return True
    return True


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "last"])
def test_wherever_one_is_stopped_the_others_are_served(actor, path, names, place):
    """It may be stopped with the lock in its hands, of course: then it goes on first."""
    world, victim, others = actor(), actor(), [actor(), actor()]
    calls = calls_of_a_round(world, victim)
    for number in range(1, len(calls) + 1):
        world.do("raise_holder()")
        for one in others[:place]:
            begin(one)
        victim.have("lock", "new_lock(path, fair=True)")
        victim.start(ROUND, stop_before(nth=number))
        for one in others[place:]:
            begin(one)
        started = time.monotonic()
        world.do("end_holder()")
        for one in others:
            # Who has the lock when it is stopped keeps it.
            wait_until(
                lambda one=one: _has_answered(one) or _holds(victim, path), "it is served"
            )
            if not _has_answered(one):
                _go_on(victim)
            one.finish()
        assert time.monotonic() - started < SOON, number
        _go_on(victim)
        victim.finish()
        assert names() == [], number


def _has_answered(one):
    return bool(one.has_word)


def _holds(victim, path):
    """Whether it is stopped and the lock at the path is its own."""
    if state_of(victim.pid) != "T":
        return False
    try:
        with open(path, encoding="ascii") as file:
            return f"pid={victim.pid}\n" in file.read()
    except FileNotFoundError:
        return False


def _go_on(victim):
    wait_until(lambda: state_of(victim.pid) in ("T", "S"), "it stops or waits for orders")
    os.kill(victim.pid, signal.SIGCONT)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "third"])
def test_one_that_is_stopped_in_its_sleep_loses_its_place_and_not_more(
    actor, path, names, place
):
    world, line = actor(), [actor(), actor(), actor()]
    world.do("raise_holder()")
    for one in line:
        begin(one)
    stopped = line.pop(place)
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(stopped.pid) == "T", "it is stopped")
    started = time.monotonic()
    world.do("end_holder()")
    for one in line:
        one.finish()
    assert time.monotonic() - started < SOON
    os.kill(stopped.pid, signal.SIGCONT)
    stopped.finish()
    assert names() == []
