"""Members of a queue that die or stop at every one of their system calls.

Whatever becomes of one, the others get the lock, none of them waits for long, and when all
have had it there is nothing left beside it.
"""

import itertools
import os
import signal
import time

import pytest

from faultlib import die_after, die_before, stop_before
from support import state_of, wait_until

# Longer than it takes to notice that a process is dead or stopped, on a machine that is busy.
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


# By default one place and one moment, and every third call; all of them are left to the storms.
DEATHS = [
    pytest.param(1, die_after, 3),
    *(
        pytest.param(place, death, 1, marks=pytest.mark.stress)
        for place, death in itertools.product([0, 1, 2], [die_before, die_after])
    ),
]
STOPS = [
    pytest.param(0, 5),
    *(pytest.param(place, 1, marks=pytest.mark.stress) for place in (0, 1, 2)),
]


@pytest.mark.parametrize(("place", "death", "step"), DEATHS)
def test_wherever_one_dies_the_others_are_served(actor, path, names, place, death, step):
    world, others = actor(), [actor(), actor()]
    calls = calls_of_a_round(world, others[0])
    for number in range(1, len(calls) + 1, step):
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
        _ended(victim)
        victim.kill()
        # The death of the last one was not seen.
        world.do("semlock.clean(directory)")
        assert names() == [], (number, asleep)


def _ended(victim):
    """See it die, or come to its end if it has made fewer calls this time."""
    victim.stops()


@pytest.mark.parametrize(("place", "step"), STOPS)
def test_wherever_one_is_stopped_the_others_are_served(actor, path, names, place, step):
    """It may be stopped with the lock in its hands, of course: then it goes on first."""
    world, victim, others = actor(), actor(), [actor(), actor()]
    calls = calls_of_a_round(world, victim)
    for number in range(1, len(calls) + 1, step):
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
            wait_until(lambda one=one: one.has_word or _holds(victim, path), "it is served")
            if not one.has_word:
                _go_on(victim)
            one.finish()
        assert time.monotonic() - started < SOON, number
        _go_on(victim)
        victim.finish()
        assert names() == [], number


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
    """Let it go on if it is stopped, or as soon as it is."""
    if victim.stops():
        victim.resume()


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
