"""Ctrl-C at the bytecodes of what all locks share, whatever they stand on.

``tests/stress/test_interrupts.py`` strikes in all of the package, with other processes to judge.
"""

from __future__ import annotations

import sys

import pytest

import semlock
from support import HANDLERS_RUN_AT, Strike, chance_of_the_day, wait_until

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)

MODULES = ("",)
STEP = 7  # each of them in the storms of tests/stress
# The bytecodes of the other worlds are mostly these: there each run strikes at a few of them, and
# at fewer the more there are, as in a reader of the kernel's table of locks.
THOROUGH = ("semlock", "memory")
FEWER = 5
RARER = 25


@pytest.fixture(autouse=True)
def where_bytecodes_are_few(world):
    if hasattr(world, "ttl") and world.name != "memory-engine":
        pytest.skip("the client's library has too many: the engine in memory stands for it")
    if world.name == "task":
        pytest.skip(
            "tests/unit/test_task_interrupts.py strikes there, and closes the audit log"
        )


def strike_everywhere(world, prepare, judge, step=STEP) -> int:
    """Strike an operation at its bytecodes, one after the other; how many there are."""
    rarer = None
    if world.name not in THOROUGH:
        step, rarer = step * FEWER, RARER
    at = chance_of_the_day().randint(1, step)
    while True:
        lock, operation = prepare()
        strike = Strike(at, operation, MODULES)
        try:
            done = judge(lock, strike.struck)
            if done and strike.struck:
                handlers = [n for n in strike.rest if n.startswith(HANDLERS_RUN_AT)]
                assert not handlers, f"done, but a handler could still run: {strike.rest}"
        except (AssertionError, semlock.SemlockError) as error:
            raise AssertionError(f"struck at bytecode {at}, {strike.where}") from error
        if not strike.struck:
            return at
        at += max(step, at // rarer if rarer else 0)


def assert_whole(world, lock) -> None:
    """See that the object tells the truth, and that others get what it doesn't hold."""
    assert lock.held == (world.status().state == "held")
    if lock.held:
        lock.check()
    else:
        with world.lock().acquire(timeout=0):
            pass


@pytest.mark.parametrize("take", ["acquire", "try_acquire", "__enter__"])
def test_a_struck_acquire_holds_nothing_that_it_does_not_say(world, take):
    def prepare():
        lock = world.lock()
        return lock, getattr(lock, take)

    def judge(lock, struck):
        assert struck or lock.held
        assert_whole(world, lock)
        held = lock.held
        if held:
            lock.release()
        return held

    strike_everywhere(world, prepare, judge)


def test_a_struck_release_is_done_or_can_be_repeated(world):
    def prepare():
        lock = world.lock()
        lock.acquire()
        return lock, lock.release

    def judge(lock, struck):
        assert struck or not lock.held
        assert_whole(world, lock)
        if lock.held:
            lock.release()
        return False

    strike_everywhere(world, prepare, judge, step=1)


def test_a_struck_wait_leaves_no_place_in_the_line(world, stranger):
    stranger.hold()

    def prepare():
        lock = world.lock()
        return lock, lambda: lock.acquire(timeout=0.002)

    def judge(lock, struck):
        assert not lock.held
        return False

    strike_everywhere(world, prepare, judge, step=29)
    stranger.release()
    # An engine's thread takes out the entry of a wait that was struck, which may take a moment.
    wait_until(lambda: world.status().state == "free", "no place is left")
    assert_whole(world, world.lock())


def test_a_struck_nested_acquire_counts_as_often_as_before(world):
    def prepare():
        lock = world.lock(reentrant=True)
        lock.acquire()
        return lock, lock.acquire

    def judge(lock, struck):
        lock.release()
        done = lock.held
        assert struck or done
        if done:
            lock.release()
        assert_whole(world, lock)
        return done

    strike_everywhere(world, prepare, judge)
