"""Races made certain: one side is stopped at a system call while the other runs to its end.

Most tests stop the one side at every call in turn, before and after it, so that there is no
instant at which the other side was not let in.  The first eight sections are the races that
were found in other programs.  The last test takes the mechanisms out of the core, one by one,
and sees the same races being lost: so these tests can fail.
"""

import errno
import functools
import os
from pathlib import Path

import pytest

from faultlib import ActorError, die_after, die_before, stop_before
from racelib import (
    LostRaceError,
    a_try,
    clean_at_every_stop,
    create_at_every_pair_of_stops,
    create_at_every_stop,
    end_while_robbed,
    every_pair_of_stops,
    every_stop,
    expect_one_holder,
    expect_to_hold,
    have_only,
    may_be_told_of_its_loss,
    rob_at_every_pair_of_stops,
    rob_by_token,
    start_afresh,
)

# ---------------------------------------- 1: two reclaimers, one stale lock


@pytest.mark.parametrize("kept", [False, True])
def test_of_two_reclaimers_one_wins_wherever_the_other_is_stopped(actor, path, kept):
    slow, quick = actor(), actor()

    def ready():
        for one in (slow, quick):
            start_afresh(one)
        quick.do(f"leave_dead_lock(path, kept={kept})")

    for _ in every_stop(slow, "lock.try_acquire()", ready):
        quick.do("lock.try_acquire()")
        slow.finish()
        expect_one_holder(slow, quick)


def test_a_reclaimer_about_to_unlink_keeps_its_rival_away(actor, path):
    slow, quick = actor(), actor()
    quick.do("leave_dead_lock(path)")
    assert slow.begin("lock.try_acquire()", stop_before("unlink"))
    quick.do("lock.try_acquire()")
    slow.finish()
    assert expect_one_holder(slow, quick) is slow


# ---------------------------------------- 2: the robbed holder's release


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("end", ["lock.release()", "lock.refresh()"])
def test_a_robbed_holder_leaves_its_successors_lock_alone(actor, path, kept, end):
    end_while_robbed(actor(), actor(), end, kept=kept, content=Path(path).read_bytes)


def test_a_link_made_just_before_the_rename_keeps_nothing_held(actor, path):
    """Between two names of one file rename() does nothing, and says that it has."""
    holder = actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do("lock.release()")  # from now on the file is kept
    holder.do("lock.acquire(timeout=0)")
    assert holder.begin("lock.release()", stop_before("rename"))
    os.link(
        path, os.path.join(os.path.dirname(path), f".semlock-{os.stat(path).st_ino:x}.kept")
    )
    holder.finish()
    assert not os.path.exists(path)
    holder.do("lock.acquire(timeout=0)")
    holder.do("lock.release()")
    assert not os.path.exists(path)


def test_a_robbed_holder_is_told_and_removes_nothing(actor, path):
    holder, successor = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    successor.do("semlock.remove(path, force=True)")
    successor.do("lock.acquire(timeout=0)")
    with pytest.raises(ActorError, match="LockLostError"):
        holder.do("lock.check()")
    may_be_told_of_its_loss(holder.do, "lock.release()")
    expect_to_hold(successor)


# ---------------------------------------- 3: a full disk

FORMS = {
    "unnamed": [],
    "linked through /proc": [("linkfd", errno.ENOENT)],
    "named": [("tmpfile", errno.EOPNOTSUPP)],
    "kept": [],
    "in place": [("linkfd", errno.EPERM), ("linkat", errno.EPERM), ("link", errno.EPERM)],
}


def prepare(one, form):
    """Let an actor's system have no more than one form of publication."""
    have_only(one, FORMS[form], keep=form == "kept")


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("form", FORMS)
def test_a_full_disk_leaves_no_lock(actor, path, names, form, call):
    unlucky, other = actor(), actor()
    prepare(unlucky, form)
    before = names()
    for name in {call, "fdatasync" if call == "fsync" else call}:
        unlucky.do(f"refuse({name!r}, {errno.ENOSPC})")
    with pytest.raises(ActorError, match="No space left"):
        unlucky.do("lock.acquire(timeout=1)")
    assert not unlucky.do("lock.held")
    # A kept claim that could not be written is given up.
    assert names() == ([] if form == "kept" else before)
    assert other.do("lock.try_acquire()")


# ---------------------------------------- 4: seen free, then published

PUBLISHED_BY = {
    "unnamed": ("link*", 1),
    "linked through /proc": ("linkat", 1),
    "named": ("link", 1),
    "kept": ("link*", 1),
    # The first that is created is a temporary file, which then can't be linked.
    "in place": ("create", 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_publication_never_replaces_what_came_meanwhile(actor, path, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    assert slow.begin("lock.try_acquire()", stop_before(*PUBLISHED_BY[form]))
    quick.do("lock.acquire(timeout=1)")
    assert slow.finish() is False
    assert expect_one_holder(slow, quick) is quick


@pytest.mark.parametrize("form", FORMS)
def test_of_two_creators_one_wins_wherever_the_other_is_stopped(actor, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    create_at_every_stop(slow, quick, kept=form == "kept")


# ---------------------------------------- 5: read between open and write


def test_an_empty_foreign_file_is_held_at_any_age(actor, path):
    other = actor()
    other.do("set_grace(0)")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert not other.do("lock.try_acquire()")
    assert other.do("semlock.clean(directory)") == []
    with pytest.raises(ActorError, match="LockHeldError"):
        other.do("semlock.remove(path)")
    os.write(fd, b"pid=1\ntimestamp=1\n")
    assert os.stat(path).st_ino == os.fstat(fd).st_ino
    assert not other.do("lock.try_acquire()")
    os.close(fd)


def test_an_unfinished_file_is_spared_for_a_time(actor, path):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    assert creator.begin("lock.try_acquire()", stop_before("flock"))
    assert not other.do("lock.try_acquire()")
    assert other.do("semlock.clean(directory)") == []
    assert creator.finish() is True
    assert expect_one_holder(creator, other) is creator


def test_a_creator_whose_unfinished_file_was_taken_believes_nothing(actor, path):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before("flock"))
    assert other.do("lock.try_acquire()")
    creator.finish()
    assert expect_one_holder(creator, other) is other


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_what_was_judged_unfinished_and_was_finished_is_not_taken(actor, path, local):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    if not local:
        for one in (creator, other):
            one.do(f"refuse('fstatfs', {errno.ENOSYS})")
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before("flock"))
    # The first that it opens is asked for its witness, the second looked at, the third removed.
    assert other.begin("lock.try_acquire()", stop_before("open", nth=3))
    assert creator.finish() is True
    other.finish()
    assert expect_one_holder(creator, other) is creator


def test_a_file_whose_mark_was_cleared_is_not_removed(actor, path):
    """It is as empty as before, and a lock of a program that writes nothing into its locks."""
    killed, other = actor(), actor()
    killed.have("lock", "new_lock(path, in_place=True)")
    assert killed.dies("lock.try_acquire()", die_before("flock"))
    other.do("set_grace(0)")
    assert other.begin("lock.try_acquire()", stop_before("open", nth=3))
    os.chmod(path, 0o644)
    if other.finish():
        raise LostRaceError("what was judged is not what was removed")


# ---------------------------------------- 6: a live peer's temporary file


@pytest.mark.parametrize("grace", [2, 0])
def test_clean_never_costs_a_live_peer_its_lock(actor, names, grace):
    peer, cleaner = actor(), actor()
    prepare(peer, "named")
    clean_at_every_stop(peer, cleaner, grace, names)


@pytest.mark.parametrize("grace", [2, 0])
def test_clean_leaves_a_live_peers_kept_claim(actor, path, names, grace):
    peer, cleaner = actor(), actor()
    cleaner.do(f"set_grace({grace})")
    peer.do("keep_a_claim(path)")
    kept = names()
    assert len(kept) == 1
    for _ in every_stop(peer, "lock.try_acquire()", lambda: start_afresh(peer)):
        assert cleaner.do("semlock.clean(directory)") == []
        assert peer.finish() is True
        expect_to_hold(peer)
        assert names() == [*kept, "the.lock"]


# ---------------------------------------- 7: a killed reclaimer's guard


@pytest.mark.parametrize(
    "death",
    [die_after("flock"), die_before("unlink"), die_after("unlink"), die_before("link*")],
    ids=["with the guard", "before the unlink", "after the unlink", "before the link"],
)
def test_a_killed_reclaimer_blocks_nobody(actor, path, names, death):
    killed, other = actor(), actor()
    other.do("leave_dead_lock(path, kept=True)")
    assert killed.dies("lock.try_acquire()", death)
    other.do("lock.acquire(timeout=1)")
    expect_to_hold(other)
    other.do("lock.release()")
    other.do("semlock.clean(directory)")
    assert names() == []


def test_a_stopped_reclaimer_is_waited_for_and_not_for_ever(actor, path):
    stopped, other = actor(), actor()
    other.do("leave_dead_lock(path)")
    assert stopped.begin("lock.try_acquire()", stop_before("unlink"))
    with pytest.raises(ActorError, match="LockTimeoutError"):
        other.do("lock.acquire(timeout=0.1)")
    stopped.kill()
    other.do("lock.acquire(timeout=1)")
    expect_to_hold(other)


# ---------------------------------------- 8: SIGKILL between create and write


@pytest.mark.parametrize("form", ["unnamed", "linked through /proc", "named", "kept"])
def test_a_kill_before_the_link_leaves_the_path_free(actor, path, names, form):
    killed, other = actor(), actor()
    prepare(killed, form)
    assert killed.dies("lock.try_acquire()", die_before("pwrite"))
    assert not os.path.lexists(path)
    assert other.do("lock.try_acquire()")
    other.do("lock.release()")
    other.do("set_grace(0)")
    other.do("semlock.clean(directory)")
    assert names() == []


@pytest.mark.parametrize("call", ["flock", "pwrite", "fchmod"])
def test_a_kill_in_place_leaves_what_goes_after_the_grace_time(actor, path, names, call):
    killed, other = actor(), actor()
    killed.have("lock", "new_lock(path, in_place=True)")
    assert killed.dies("lock.try_acquire()", die_before(call))
    assert names() == ["the.lock"]
    # A whole record names the one that was killed.
    assert other.do("lock.try_acquire()") is (call == "fchmod")
    other.do("set_grace(0)")
    other.do("lock.held or lock.acquire(timeout=1)")
    expect_to_hold(other)


# ---------------------------------------- the kept claim's inode is used again


def test_a_lock_that_reuses_the_judged_inode_is_not_removed(actor, path):
    holder = actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    inode = holder.do("inode()")
    robber = rob_by_token(actor, holder)
    # The first that it opens is looked at, the second is to be removed.
    assert robber.begin("lock.try_acquire()", stop_before("open", nth=2))
    holder.do("lock.release()")
    holder.do("lock.acquire(timeout=0)")
    assert holder.do("inode()") == inode
    robber.finish()
    assert expect_one_holder(holder, robber) is holder


def test_the_path_is_seen_before_the_bytes(actor, path):
    holder = actor()
    holder.do("keep_a_claim(path)")
    for number in range(1, 20):
        holder.do("lock.acquire(timeout=0)")
        robber = rob_by_token(actor, holder)
        assert robber.begin(
            "lock.try_acquire()", stop_before("flock"), stop_before(nth=number + 1)
        )
        holder.do("lock.release()")
        # It takes the guard now, and stops with what it has seen of the old lock; then the
        # path comes back, with another record in the same inode.
        if not robber.go_on():
            break
        holder.do("lock.acquire(timeout=1)")
        robber.finish()
        assert expect_one_holder(holder, robber) is holder
        holder.do("lock.release()")
        robber.close()
    assert number > 1


# ---------------------------------------- both are stopped


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kept", [False, True])
def test_two_reclaimers_stopped_anywhere_leave_one_holder(actor, path, kept):
    one, other = actor(), actor()

    def ready():
        for each in (one, other):
            start_afresh(each)
        one.do(f"leave_dead_lock(path, kept={kept})")

    for _ in every_pair_of_stops(one, other, ready, a_try, a_try):
        expect_one_holder(one, other)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_two_creators_in_place_stopped_anywhere_leave_one_holder(actor, local):
    one, other = actor(), actor()
    for each in (one, other):
        prepare(each, "in place")
        each.do("set_grace(0)")
        if not local:
            each.do(f"refuse('fstatfs', {errno.ENOSYS})")
    create_at_every_pair_of_stops(one, other)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("robber_ends_first", [True, False])
def test_a_robber_of_the_last_lock_never_takes_the_next_one(actor, robber_ends_first):
    rob_at_every_pair_of_stops(
        actor(),
        actor(),
        robber_ends_first=robber_ends_first,
        let_go=lambda holder: holder.do("let_go(lock)"),
    )


# ---------------------------------------- one is stopped, the other is killed


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.leaves("tmp")  # of those who are killed between a name and its end
@pytest.mark.parametrize("form", ["kept", "in place"])
def test_whatever_is_killed_where_another_is_stopped_the_lock_goes_on(actor, path, form):
    stopped, killed = actor(), actor()
    if form == "in place":
        for each in (stopped, killed):
            prepare(each, form)
            each.do("set_grace(0)")
    for first in range(1, 1000):
        for second in range(1, 1000):
            for each in (stopped, killed):
                start_afresh(each)
            if form == "kept":
                killed.do("leave_dead_lock(path, kept=True)")
            reached = stopped.begin("lock.try_acquire()", stop_before(nth=first))
            died = killed.do(
                "in_a_child(lambda: new_lock(path).try_acquire())", die_before(nth=second)
            )
            stopped.finish()
            if not stopped.do("lock.held"):
                killed.do("lock.acquire(timeout=1)")
            expect_one_holder(stopped, killed)
            if not died:
                break
        if not reached:
            assert first > 2
            return


# ---------------------------------------- these tests can fail


LOST_WITHOUT = [
    ("guard", test_a_reclaimer_about_to_unlink_keeps_its_rival_away),
    ("path", test_a_robbed_holder_is_told_and_removes_nothing),
    # The time of change tells these two as well, on a clock that is fine enough, so it goes too.
    ("bytes,state", test_a_lock_that_reuses_the_judged_inode_is_not_removed),
    ("order,state", test_the_path_is_seen_before_the_bytes),
    ("state", test_a_file_whose_mark_was_cleared_is_not_removed),
    ("creator", test_a_creator_whose_unfinished_file_was_taken_believes_nothing),
]


@pytest.mark.parametrize(
    ("mechanism", "race"), LOST_WITHOUT, ids=[mechanism for mechanism, _ in LOST_WITHOUT]
)
def test_the_race_is_lost_without_its_mechanism(actor, path, crippled, mechanism, race):
    with pytest.raises(LostRaceError):
        race(functools.partial(actor, package=crippled, without=mechanism), path)


@pytest.mark.parametrize("race", [race for _, race in LOST_WITHOUT])
def test_the_copy_that_can_lose_them_wins_them_with_all_of_its_mechanisms(
    actor, path, crippled, race
):
    race(functools.partial(actor, package=crippled), path)
