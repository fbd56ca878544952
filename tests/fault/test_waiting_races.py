"""No wake is missed: a waiter is stopped between its look and its sleep while the lock goes.

It is stopped at every system call in turn, before and after it; meanwhile the lock is let go,
its holder is killed, or another holder comes.  Then the waiter must take the lock by what it
sees and hears: in these tests its own regular look comes after an hour.

Two races are the kernel's own and can't be stopped in the middle: it tells of a removal
before the name is gone, and of a death before the dead one's locks are.  They are played by
watches that stay silent (``deaf``) and by a witness that is dropped without a word.  The last
tests take the mechanisms against them out of the core and see the wake being missed.
"""

import functools
import os

import pytest

from actors import ActorError
from faultlib import deaf, deaf_then_stop, stop_after, stop_before
from support import state_of, wait_until

# A wake that is not missed comes within milliseconds; when the time is over, a waiter looks
# once more, which is no wake.
MISSED = 1.0
FORMS = ["fresh", "kept", "in place", "unwitnessed"]
SOME_FORMS = [
    pytest.param(form, marks=[pytest.mark.stress] if form in ("in place", "kept") else [])
    for form in FORMS
]


# A fair waiter takes a ticket at once, and not only when others seem to wait too.
IN_TURN = ", fair=True"


class MissedWakeError(AssertionError):
    """The lock was free, and the waiter slept on."""


def waiting_actor(actor, **options):
    """Make a waiter that looks for itself once an hour."""
    one = actor(**options)
    one.do("set_safety(3600)")
    return one


def calls_until_it_sleeps(waiter, options=""):
    """Learn the calls from the first to the sleep, with a lock that is held."""
    for _ in range(2):
        waiter.have("lock", f"new_lock(path{options})")
        with pytest.raises(ActorError, match="LockTimeoutError"):
            waiter.do("lock.acquire(timeout=0.01)")
    return waiter.calls[: waiter.calls.index("ppoll") + 1]


def expect_to_take(waiter):
    """Let it go on; it must have the lock, and let go of it."""
    if not waiter.finish():
        raise MissedWakeError(f"it slept for {MISSED} s")
    waiter.do("lock.check()")
    waiter.do("lock.release()")


def sleeps(one):
    """Wait until a process sleeps."""
    wait_until(lambda: state_of(one.pid) == "S", "it sleeps")


def every_stop_before_it_sleeps(waiter, world, form, options=""):
    """Have the lock held, and a waiter for it stopped at one call after the other."""
    world.do(f"raise_holder({form!r})")
    calls = calls_until_it_sleeps(waiter, options)
    world.do("end_holder()")
    for number, name in enumerate(calls, 1):
        for stop in (stop_before, stop_after):
            if name == "ppoll" and stop is stop_after:
                continue
            world.do(f"raise_holder({form!r})")
            waiter.have("lock", f"new_lock(path{options})")
            assert waiter.begin(f"take(lock, {MISSED})", stop(nth=number)), (number, name)
            yield number
            expect_to_take(waiter)


@pytest.mark.parametrize(
    ("options", "form"),
    [
        *(pytest.param("", form, id=f"alone-{form}") for form in FORMS),
        *(
            pytest.param(IN_TURN, *one.values, id=f"in turn-{one.values[0]}", marks=one.marks)
            for one in SOME_FORMS
        ),
    ],
)
def test_a_release_wakes_a_waiter_that_was_stopped_on_the_way_to_sleep(
    actor, path, names, form, options
):
    waiter, world = waiting_actor(actor), actor()
    for _ in every_stop_before_it_sleeps(waiter, world, form, options):
        world.do("end_holder()")
    waiter.do("native.drain_pool()")
    assert names() == []


@pytest.mark.parametrize("form", SOME_FORMS)
def test_a_death_wakes_a_waiter_that_was_stopped_on_the_way_to_sleep(actor, path, names, form):
    waiter, world = waiting_actor(actor), actor()
    for _ in every_stop_before_it_sleeps(waiter, world, form):
        world.do("end_holder(kill=True)")
    waiter.do("semlock.clean(directory)")
    assert names() == []


@pytest.mark.parametrize("form", SOME_FORMS[:3])
@pytest.mark.parametrize("asleep", [False, True], ids=["at once", "when it sleeps"])
def test_the_release_of_the_next_holder_wakes_it_too(actor, path, names, form, asleep):
    waiter, world = waiting_actor(actor), actor()
    for _ in every_stop_before_it_sleeps(waiter, world, form):
        world.do("end_holder()")
        world.do(f"raise_holder({form!r})")
        if asleep:
            waiter.resume()
            sleeps(waiter)
        world.do("end_holder()")
    waiter.do("native.drain_pool()")
    assert names() == []


@pytest.mark.parametrize("away", ["os.unlink(path)", "os.rename(path, path + '.away')"])
def test_a_file_that_any_program_takes_away_wakes_it(actor, path, away):
    waiter, world = waiting_actor(actor), actor()
    for _ in every_stop_before_it_sleeps(waiter, world, "fresh"):
        eval(away, {"os": os, "path": path})
        world.do("end_holder(kill=True)")


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["fresh", "kept"])
def test_two_changes_of_hands_while_it_is_stopped_twice(actor, path, form):
    waiter, world = waiting_actor(actor), actor()
    world.do(f"raise_holder({form!r})")
    count = len(calls_until_it_sleeps(waiter))
    world.do("end_holder()")
    for first in range(1, count + 1):
        for later in range(1, count + 1):
            world.do(f"raise_holder({form!r})")
            waiter.have("lock", "new_lock(path)")
            stops = stop_before(nth=first), stop_before(nth=later)
            assert waiter.begin(f"take(lock, {MISSED})", *stops)
            world.do("end_holder()")
            world.do(f"raise_holder({form!r})")
            waiter.resume()
            # It stops once more, or it sleeps before it comes to that.
            wait_until(lambda: state_of(waiter.pid) in ("T", "S"), "it stops or sleeps")
            world.do("end_holder()")
            if waiter.stops():
                waiter.resume()
            expect_to_take(waiter)


# ---------------------------------------- the next in the queue


def test_the_second_waiter_is_woken_wherever_it_is_stopped(actor, path, names):
    """It watches the ticket of the first, and looks after that every tenth of a second."""
    first, second, world = waiting_actor(actor), waiting_actor(actor), actor()
    world.do("raise_holder()")
    first.have("lock", f"new_lock(path{IN_TURN})")
    assert first.start("take(lock, None)")
    calls = calls_until_it_sleeps(second, IN_TURN)
    world.do("end_holder()")
    expect_to_take(first)
    for number, name in enumerate(calls, 1):
        world.do("raise_holder()")
        first.have("lock", f"new_lock(path{IN_TURN})")
        assert first.start("take(lock, None)")
        second.have("lock", f"new_lock(path{IN_TURN})")
        assert second.begin(f"take(lock, {MISSED})", stop_before(nth=number)), name
        world.do("end_holder()")
        expect_to_take(first)
        expect_to_take(second)
    for one in (first, second):
        one.do("native.drain_pool()")
    assert names() == []


# ---------------------------------------- what the kernel does in the middle


def a_watch_that_comes_too_late_is_made_again(actor, path):
    """The watched file has been told of already, and another one comes to its place."""
    waiter, world = waiting_actor(actor), actor()
    world.do("raise_holder()")
    waiter.do("lock.held")
    assert waiter.begin(f"take(lock, {MISSED})", deaf_then_stop())
    # Another process' file, while the first one is still open: so not the same inode.
    os.rename(path, f"{path}.away")
    world.do("raise_holder()")
    waiter.resume()
    sleeps(waiter)
    world.do("end_holder(kill=True)")
    world.do("end_holder()")
    expect_to_take(waiter)


def a_removal_that_is_under_way_is_waited_for(actor, path):
    """It was told of before the waiter watched, and the name goes between two looks.

    The holder has its file open by this very name, so that the end of the name isn't the end
    of the inode, which would be told of too.
    """
    waiter, world = waiting_actor(actor), actor()
    world.do("raise_holder('in place')")
    waiter.do("removal_under_way()")
    waiter.start(f"take(lock, {MISSED})", deaf(), deaf())
    expect_to_take(waiter)
    world.do("end_holder(kill=True)")


def a_witness_that_goes_after_the_news_is_noticed(actor, path):
    """The kernel tells that the holder's file is closed, and then drops its locks."""
    waiter, holder = waiting_actor(actor), actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do("name_a_dead_process(lock)")

    def tell() -> None:
        with open(path, "r+b"):
            pass  # which is told of, like the end of the holder

    # It looks at the witness twice: after its try, and after it has read the event.
    calls_until_it_sleeps(waiter)
    waiter.have("lock", f"new_lock(path{IN_TURN})")
    assert waiter.start("take(lock, 0.3)")
    tell()
    assert not waiter.finish()
    *_, asleep = [i for i, call in enumerate(waiter.calls) if call == "ppoll"][:3]
    looks = waiter.calls[:asleep].count("fcntl")
    waiter.have("lock", f"new_lock(path{IN_TURN})")
    assert waiter.start(f"take(lock, {MISSED})", stop_after("fcntl", looks))
    tell()
    assert waiter.stops()  # it has seen that the witness is taken
    holder.do("drop_witness(lock)")
    expect_to_take(waiter)


def a_death_that_was_told_before_it_watched_is_noticed(actor, path):
    """The same, when the news came before the waiter listened."""
    waiter, holder = waiting_actor(actor), actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do("name_a_dead_process(lock)")
    calls = calls_until_it_sleeps(waiter)
    waiter.have("lock", "new_lock(path)")
    number = calls.count("fcntl")
    assert waiter.begin(f"take(lock, {MISSED})", stop_after("fcntl", number))
    holder.do("drop_witness(lock)")
    expect_to_take(waiter)


# Looking again soon makes up for either of the first two as well.
RACES = [
    ("again,recheck", a_watch_that_comes_too_late_is_made_again),
    ("barrier,recheck", a_removal_that_is_under_way_is_waited_for),
    ("recheck", a_witness_that_goes_after_the_news_is_noticed),
    ("recheck", a_death_that_was_told_before_it_watched_is_noticed),
]
NAMES = [race.__name__ for _, race in RACES]


@pytest.mark.parametrize("race", [race for _, race in RACES], ids=NAMES)
def test_the_wake_is_not_missed(actor, path, race):
    race(actor, path)


@pytest.mark.leaves("queue")
@pytest.mark.parametrize(("mechanism", "race"), RACES, ids=NAMES)
def test_the_wake_is_missed_without_its_mechanism(
    actor, path, crippled, mechanism, race, monkeypatch
):
    monkeypatch.setitem(globals(), "MISSED", 0.4)  # the whole time is waited for here
    with pytest.raises(MissedWakeError):
        race(functools.partial(actor, package=crippled, without=mechanism), path)


@pytest.mark.parametrize("race", [race for _, race in RACES[:2]], ids=NAMES[:2])
def test_the_news_itself_is_enough_without_looking_again(actor, path, crippled, race):
    race(functools.partial(actor, package=crippled, without="recheck"), path)


@pytest.mark.parametrize("race", [race for _, race in RACES], ids=NAMES)
def test_the_copy_that_can_miss_it_does_not_with_all_of_its_mechanisms(
    actor, path, crippled, race
):
    race(functools.partial(actor, package=crippled), path)


@pytest.mark.leaves("queue")
@pytest.mark.parametrize("safety", [0.1, 3600])
def test_what_no_news_tells_is_seen_by_the_regular_look_and_only_by_that(
    actor, path, crippled, safety
):
    waiter, world = actor(package=crippled, without="recheck"), actor()
    world.do("raise_holder('in place')")
    waiter.do("deafen()")
    waiter.do(f"set_safety({safety})")
    assert waiter.start(f"take(lock, {MISSED})")
    os.unlink(path)
    if safety < 1:
        expect_to_take(waiter)
    else:
        with pytest.raises(MissedWakeError):
            expect_to_take(waiter)
    world.do("end_holder(kill=True)")


# ---------------------------------------- what is left of a wait


def marks_before_and_after_the_release(actor, path):
    """Count the files that a process watches which has waited for its lock, and holds it.

    The file of the one before it is kept for another acquisition, so it lives on.
    """
    waiter, holder = waiting_actor(actor), actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    waiter.do("lock.held")
    assert waiter.start(f"take(lock, {MISSED})")
    holder.do("lock.release()")
    assert waiter.finish()
    counts = [waiter.do("watched()")]
    waiter.do("lock.release()")
    holder.do("lock.acquire(timeout=0)")  # which touches what was watched
    holder.do("lock.release()")
    return [*counts, waiter.do("watched()")]


def test_nothing_is_watched_any_more_after_the_release(actor, path):
    """And to see to that is no business of the moment in which the lock is had."""
    assert marks_before_and_after_the_release(actor, path) == [1, 0]


def test_it_is_watched_for_ever_without_the_mechanism(actor, path, crippled):
    without = functools.partial(actor, package=crippled, without="tidy")
    assert marks_before_and_after_the_release(without, path) == [1, 1]
    assert marks_before_and_after_the_release(
        functools.partial(actor, package=crippled), path
    ) == [1, 0]


def test_other_users_can_join_a_queue_that_two_made_at_once(actor, path, names):
    """The maker opens it to them when another waiter has joined it already."""
    world, maker, other = actor(), actor(), actor()
    directory = os.path.dirname(path)
    os.chmod(directory, 0o1777)
    world.do("raise_holder('fresh')")
    for one in (maker, other):
        one.have("lock", f"new_lock(path{IN_TURN})")
    assert maker.begin(f"take(lock, {MISSED})", stop_after("mkdir"))
    other.start(f"take(lock, {MISSED})")
    (queue,) = (name for name in names() if name.endswith(".queue"))
    wait_until(lambda: os.listdir(f"{directory}/{queue}"), "it has joined")
    maker.resume()
    wait_until(lambda: len(os.listdir(f"{directory}/{queue}")) == 2, "the maker has joined too")
    assert os.stat(f"{directory}/{queue}").st_mode & 0o7777 == 0o1777
    world.do("end_holder()")
    expect_to_take(maker)
    expect_to_take(other)
