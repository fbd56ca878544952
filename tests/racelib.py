"""What the races made certain have in common on every system.

The actors are those of ``actors`` or of ``windows_calls``; ``stops`` are the places beside a
call at which one is stopped.
"""

from __future__ import annotations

from actors import ActorError
from faultlib import stop_after, stop_before

BOTH = (stop_before, stop_after)


class LostRaceError(AssertionError):
    """The lock did not do what it is for."""


def expect_one_holder(*actors):
    """One of them holds the lock, and its file is at the path."""
    holders = [one for one in actors if one.do("lock.held")]
    if len(holders) != 1:
        raise LostRaceError(f"{len(holders)} hold the lock")
    expect_to_hold(holders[0])
    return holders[0]


def expect_to_hold(one):
    """It holds the lock, and its file is at the path."""
    if not one.do("lock.held"):
        raise LostRaceError("the lock is not held")
    try:
        one.do("lock.check()")
    except ActorError as error:
        raise LostRaceError(f"its lock is gone: {error}") from None


def may_be_told_of_its_loss(do, *what):
    """Do something that may say that the lock was lost."""
    try:
        do(*what)
    except ActorError as error:
        if error.kind != "LockLostError":
            raise


def start_afresh(one):
    """Let go of what it holds, and have a lock that has seen nothing yet."""
    one.do("let_go(lock)")
    one.have("lock", "new_lock(path)")


def every_stop(one, expression, ready, *, stops=BOTH):
    """Begin something again and again, and stop it at one call after the other.

    ``ready`` is called before each beginning.
    """
    for stop in stops:
        number = 1
        ready()
        while one.begin(expression, stop(nth=number)):
            yield
            number += 1
            ready()
        assert number > 1
        one.finish()


def every_pair_of_stops(one, other, ready, do_one, do_other):
    """Stop the one at each call, then the other at each; let the one end first, then it."""
    for first in range(1, 1000):
        reached = True
        for second in range(1, 1000):
            ready()
            todo, other_todo = do_one(), do_other()
            reached = one.begin(todo, stop_before(nth=first))
            stopped = other.begin(other_todo, stop_before(nth=second))
            one.finish()
            other.finish()
            yield
            if not stopped:
                break
        if not reached:
            assert first > 2
            return


def a_try():
    """Say how to try once."""
    return "lock.try_acquire()"


def have_only(one, refusals, *, keep=False):
    """Let an actor's system have no more than one form of publication."""
    for name, error in refusals:
        one.do(f"refuse({name!r}, {error})")
    if keep:
        one.do("keep_a_claim(path)")


# ---------------------------------------------------------------- races


def end_while_robbed(holder, robber, end, *, kept, content, stops=BOTH):
    """Rob a holder wherever it is stopped at its end: what the robber has stays as it is.

    ``content`` reads the file at the path.
    """
    robber.have("lock", "new_lock(path, policy=lambda status: 'the test says so')")
    if kept:
        holder.do("keep_a_claim(path)")

    def ready():
        robber.do("let_go(lock)")
        holder.do("let_go(lock)")
        if not kept:
            holder.do("native.drain_pool()")
        holder.do("lock.acquire(timeout=1)")

    for _ in every_stop(holder, end, ready, stops=stops):
        robbed = robber.do("lock.try_acquire()")
        if robbed:
            before = content()
        may_be_told_of_its_loss(holder.finish)
        if robbed:
            expect_to_hold(robber)
            assert content() == before


def create_at_every_stop(slow, quick, *, kept, stops=BOTH):
    """Have one create a lock wherever the other is stopped while it does the same."""
    quick.do("set_grace(0)")

    def ready():
        for one in (slow, quick):
            start_afresh(one)
            # What a release has kept would be used instead of the form that is meant.
            if not kept:
                one.do("native.drain_pool()")

    for _ in every_stop(slow, "lock.try_acquire()", ready, stops=stops):
        quick.do("lock.try_acquire()")
        slow.finish()
        expect_one_holder(slow, quick)


def create_at_every_pair_of_stops(one, other, options=""):
    """Have two create a lock, each stopped at every call."""

    def ready():
        for each in (one, other):
            each.do("let_go(lock)")
            each.have("lock", f"new_lock(path{options})")

    for _ in every_pair_of_stops(one, other, ready, a_try, a_try):
        expect_one_holder(one, other)


def clean_at_every_stop(peer, cleaner, grace, names, *, stops=BOTH):
    """Clean wherever a peer is stopped that makes a lock: the peer keeps its lock."""
    cleaner.do(f"set_grace({grace})")

    def ready():
        start_afresh(peer)
        # What is kept between acquisitions would be used instead of a temporary file.
        peer.do("native.drain_pool()")

    for _ in every_stop(peer, "lock.try_acquire()", ready, stops=stops):
        before = names()
        removed = cleaner.do("semlock.clean(directory)")
        if grace:
            assert removed == []
            assert names() == before
        assert peer.finish() is True
        expect_to_hold(peer)
        assert names() == ["the.lock"]


def rob_at_every_pair_of_stops(holder, robber, *, robber_ends_first, let_go):
    """Rob a holder of its last lock: that never costs it the next one.

    ``let_go`` has the holder let go of what it holds.
    """
    # It meets a robber that is stopped with the guard, which is not waited for.
    holder.do("set_patience(0)")
    last = None

    def ready():
        nonlocal last
        let_go(holder)
        holder.do("keep_a_claim(path)")
        holder.do("lock.acquire(timeout=1)")
        last = holder.do("lock.token")

    def release_and_acquire():
        return "let_go(lock), lock.held or lock.acquire(timeout=1)"

    def rob():
        return f"rob(path, {last!r})"

    pair = [(holder, release_and_acquire), (robber, rob)]
    if robber_ends_first:
        pair.reverse()
    (one, do_one), (other, do_other) = pair
    for _ in every_pair_of_stops(one, other, ready, do_one, do_other):
        # The last one may be taken, if it could not be let go of; the next one may not.
        if holder.do("lock.token") != last:
            expect_to_hold(holder)
