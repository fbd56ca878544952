"""Races made certain: one side is stopped at a call while the other runs to its end.

Most tests stop the one side at every call in turn, so that there is no instant at which the
other side was not let in.  The first eight sections are the races that were found in other
programs.  What a step is called on a platform stands in ``racestops``.  The last tests of a
platform take the mechanisms out, one by one, and see the same races being lost: so these tests
can fail.  On POSIX systems they are taken out of a copy of the core; on Windows a call is
answered without being made, which needs no compiler.
"""

import functools
import inspect
import os
import re
import sys

import pytest

from actors import ActorError
from faultlib import die_before, mark_unfinished, stop_before
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
    start_afresh,
)
from racestops import EVERY_FORM, STOPS
from support import share
from wine import WINE

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="its calls are those of POSIX")
on_windows = pytest.mark.skipif(
    sys.platform != "win32", reason="its calls are those of Windows"
)
# Wine's calls take longer than those of a kernel.
LONG = pytest.mark.timeout(1200 if WINE else 600)

every_call = functools.partial(every_stop, stops=STOPS.EVERYWHERE)


def prepare(one, form):
    """Let an actor's system have no more than one form of publication."""
    have_only(one, STOPS.FORMS[form], keep=form == "kept")


# ---------------------------------------- 1: two reclaimers, one stale lock


@pytest.mark.parametrize("kept", [False, True])
def test_of_two_reclaimers_one_wins_wherever_the_other_is_stopped(actor, path, kept):
    slow, quick = actor(), actor()

    def ready():
        for one in (slow, quick):
            start_afresh(one)
        STOPS.leave_dead(path, slow, quick, kept=kept)

    for _ in every_call(slow, "lock.try_acquire()", ready):
        quick.do("lock.try_acquire()")
        slow.finish()
        expect_one_holder(slow, quick)


def test_a_reclaimer_about_to_unlink_keeps_its_rival_away(actor, path):
    slow, quick = actor(), actor()
    STOPS.leave_dead(path, quick)
    assert slow.begin("lock.try_acquire()", stop_before(STOPS.REMOVE))
    quick.do("lock.try_acquire()")
    slow.finish()
    assert expect_one_holder(slow, quick) is slow


# ---------------------------------------- 2: the robbed holder's release


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("end", ["lock.release()", "lock.refresh()"])
def test_a_robbed_holder_leaves_its_successors_lock_alone(actor, path, kept, end):
    end_while_robbed(
        actor(),
        actor(),
        end,
        kept=kept,
        content=lambda: STOPS.content(path),
        stops=STOPS.EVERYWHERE,
    )


@on_posix
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


def told_of(one, expression) -> str:
    """Name the error that comes of it; empty if none does."""
    try:
        one.do(expression)
    except ActorError as error:
        return error.kind
    return ""


def test_a_robbed_holder_is_told_and_removes_nothing(actor, path):
    holder, successor = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    successor.do("semlock.remove(path, force=True)")
    successor.do("lock.acquire(timeout=0)")
    if told_of(holder, "lock.check()") != "LockLostError":
        raise LostRaceError("it was not told of its loss")
    may_be_told_of_its_loss(holder.do, "lock.release()")
    expect_to_hold(successor)


# ---------------------------------------- 3: a full disk


@pytest.mark.parametrize("call", STOPS.FLUSHES)
@pytest.mark.parametrize("form", EVERY_FORM)
def test_a_full_disk_leaves_no_lock(actor, path, names, form, call):
    unlucky, other = actor(), actor()
    prepare(unlucky, form)
    before = names()
    number, text = STOPS.FULL_DISK
    for name in STOPS.FLUSHES[call]:
        unlucky.do(f"refuse({name!r}, {number})")
    with pytest.raises(ActorError, match=text):
        unlucky.do("lock.acquire(timeout=1)")
    assert not unlucky.do("lock.held")
    # A kept claim that could not be written is given up.
    assert names() == ([] if form == "kept" else before)
    assert other.do("lock.try_acquire()")


# ---------------------------------------- 4: seen free, then published


@pytest.mark.parametrize("form", EVERY_FORM)
def test_publication_never_replaces_what_came_meanwhile(actor, path, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    assert slow.begin("lock.try_acquire()", stop_before(*STOPS.PUBLISHED_BY[form]))
    quick.do("lock.acquire(timeout=1)")
    if slow.finish() is not False:
        raise LostRaceError("it believes to hold a lock that another has")
    assert expect_one_holder(slow, quick) is quick


@pytest.mark.parametrize("form", EVERY_FORM)
def test_of_two_creators_one_wins_wherever_the_other_is_stopped(actor, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    create_at_every_stop(slow, quick, kept=form == "kept", stops=STOPS.EVERYWHERE)


# ---------------------------------------- 5: read between open and write


def test_an_empty_foreign_file_is_held_at_any_age(actor, path):
    other = actor()
    other.do("set_grace(0)")
    with open(path, "xb") as file:
        assert not other.do("lock.try_acquire()")
        assert other.do("semlock.clean(directory)") == []
        with pytest.raises(ActorError, match="LockHeldError"):
            other.do("semlock.remove(path)")
        file.write(b"pid=1\ntimestamp=1\n")
        file.flush()
        assert os.path.samestat(os.stat(path), os.fstat(file.fileno()))
        assert not other.do("lock.try_acquire()")
    assert not other.do("lock.try_acquire()")


def test_an_unfinished_file_is_spared_for_a_time(actor, path):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    assert creator.begin("lock.try_acquire()", stop_before(STOPS.GUARD))
    assert not other.do("lock.try_acquire()")
    assert other.do("semlock.clean(directory)") == []
    assert creator.finish() is True
    assert expect_one_holder(creator, other) is creator


def test_a_creator_whose_unfinished_file_was_taken_believes_nothing(actor, path):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before(STOPS.GUARD))
    assert other.do("lock.try_acquire()")
    creator.finish()
    assert expect_one_holder(creator, other) is other


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_what_was_judged_unfinished_and_was_finished_is_not_taken(actor, path, local):
    creator, other = actor(), actor()
    options = STOPS.in_place(creator, local=local)
    creator.have("lock", f"new_lock(path{options})")
    if not local:
        STOPS.in_place(other, local=False)
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before(STOPS.GUARD))
    removal = stop_before(*STOPS.OPEN_UNFINISHED_TO_REMOVE)
    assert other.begin("lock.try_acquire()", removal)
    assert creator.finish() is True
    other.finish()
    assert expect_one_holder(creator, other) is creator


@on_posix
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
    STOPS.use_names(peer)
    clean_at_every_stop(peer, cleaner, grace, names, stops=STOPS.EVERYWHERE)


# Here a file is removed by its handle, whatever its name is by then: so a maker that was
# taken for dead must not make a lock of a file that is about to be removed.
@on_windows
@pytest.mark.parametrize("options", ["", ", detached=True"], ids=["own", "left to another"])
def test_a_cleaner_that_is_stopped_anywhere_takes_no_lock_of_a_live_peer(actor, options):
    peer, cleaner = actor(), actor()
    cleaner.do("set_grace(0)")

    def ready():
        peer.do("let_go(lock)")
        peer.have("lock", f"new_lock(path{options})")
        peer.do("native.drain_pool()")
        # Its temporary file is there, empty, and says nothing of whose it is.
        assert peer.begin("lock.try_acquire()", stop_before("LockFileEx witness"))

    stops = 0
    for _ in every_call(cleaner, "semlock.clean(directory)", ready):
        assert peer.finish() is True
        cleaner.finish()
        expect_to_hold(peer)
        stops += 1
    assert stops > 10
    peer.finish()


@on_windows
def test_a_maker_whose_file_is_about_to_be_removed_begins_again(actor):
    peer, cleaner = actor(), actor()
    cleaner.do("set_grace(0)")
    assert peer.begin("lock.try_acquire()", stop_before("LockFileEx witness"))
    removal = stop_before("SetFileInformationByHandle delete")
    assert cleaner.begin("semlock.clean(directory)", removal)
    assert peer.finish() is True
    assert peer.calls.count("CreateFileW new") == 2
    cleaner.finish()
    expect_to_hold(peer)


@pytest.mark.parametrize("grace", [2, 0])
def test_clean_leaves_a_live_peers_kept_claim(actor, path, names, grace):
    peer, cleaner = actor(), actor()
    cleaner.do(f"set_grace({grace})")
    peer.do("keep_a_claim(path)")
    kept = names()
    assert len(kept) == 1
    for _ in every_call(peer, "lock.try_acquire()", lambda: start_afresh(peer)):
        assert cleaner.do("semlock.clean(directory)") == []
        assert peer.finish() is True
        expect_to_hold(peer)
        assert names() == [*kept[: STOPS.KEPT_NAMES], "the.lock"]


@on_windows
def test_a_cleaner_that_is_stopped_anywhere_takes_no_lock_of_a_kept_claim(actor):
    peer, cleaner = actor(), actor()
    cleaner.do("set_grace(0)")

    def ready():
        start_afresh(peer)
        peer.do("keep_a_claim(path)")

    for _ in every_call(cleaner, "semlock.clean(directory)", ready):
        assert peer.do("lock.try_acquire()") is True
        cleaner.finish()
        expect_to_hold(peer)


@on_windows
@pytest.mark.parametrize("call", ["LockFileEx witness", "LockFileEx guard"])
def test_nothing_is_kept_that_could_be_removed_by_its_handle(actor, names, call):
    peer = actor()
    peer.do(f"refuse({call!r}, {50})")
    peer.do("keep_a_claim(path)")
    assert names() == []


# ---------------------------------------- 7: a killed reclaimer's guard


@pytest.mark.parametrize("death", STOPS.DEATHS.values(), ids=STOPS.DEATHS.keys())
def test_a_killed_reclaimer_blocks_no_other(actor, path, names, death):
    killed, other = actor(), actor()
    STOPS.leave_dead(path, other, kept=True)
    assert killed.dies("lock.try_acquire()", death)
    other.do(f"lock.acquire(timeout={STOPS.SECONDS})")
    expect_to_hold(other)
    other.do("lock.release()")
    other.do("set_grace(0)")
    assert STOPS.in_the_end(lambda: [other.do("semlock.clean(directory)"), names()][1] == [])


@on_windows
def test_a_killed_reclaimer_leaves_an_unfinished_file_marked_as_such(actor, path):
    killed, other = actor(), actor()
    with open(path, "xb"):
        pass
    mark_unfinished(path)
    for one in (killed, other):
        one.do("set_grace(0)")
    # It moves the file aside there, or is about to rename its own to the path already.
    assert killed.dies("lock.try_acquire()", die_before("SetFileInformationByHandle rename"))
    other.do("lock.acquire(timeout=15)")
    expect_to_hold(other)


def test_a_stopped_reclaimer_is_waited_for_and_not_for_ever(actor, path):
    stopped, other = actor(), actor()
    STOPS.leave_dead(path, other)
    assert stopped.begin("lock.try_acquire()", stop_before(STOPS.REMOVE))
    with pytest.raises(ActorError, match="LockTimeoutError"):
        other.do("lock.acquire(timeout=0.1)")
    stopped.kill()
    other.do(f"lock.acquire(timeout={STOPS.SECONDS})")
    expect_to_hold(other)


# ---------------------------------------- 8: killed between create and write


@pytest.mark.parametrize(
    "form", [form for form in STOPS.FORMS if form not in ("in place", "moved by name")]
)
def test_a_kill_before_the_publication_leaves_the_path_free(actor, path, names, form):
    killed, other = actor(), actor()
    prepare(killed, form)
    assert killed.dies("lock.try_acquire()", die_before(STOPS.WRITE))
    assert not os.path.lexists(path)
    assert other.do("lock.try_acquire()")
    other.do("lock.release()")
    other.do("set_grace(0)")
    assert STOPS.in_the_end(lambda: [other.do("semlock.clean(directory)"), names()][1] == [])


@pytest.mark.parametrize("call", [STOPS.GUARD, STOPS.WRITE, STOPS.FINISH])
def test_a_kill_in_place_leaves_what_goes_after_the_grace_time(actor, path, names, call):
    killed, other = actor(), actor()
    killed.have("lock", "new_lock(path, in_place=True)")
    assert killed.dies("lock.try_acquire()", die_before(call))
    assert names() == ["the.lock"]
    # A whole record names the one that was killed.
    assert other.do("lock.try_acquire()") is (call == STOPS.FINISH)
    other.do("set_grace(0)")
    other.do(f"lock.held or lock.acquire(timeout={STOPS.SECONDS})")
    expect_to_hold(other)


# ---------------------------------------- the kept claim's file is used again


def test_a_lock_that_reuses_the_judged_inode_is_not_removed(actor, path):
    holder, robber = actor(), actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    file = holder.do("file_id()")
    rob = STOPS.thief(robber, holder.do("lock.token"))
    assert robber.begin(rob, stop_before(*STOPS.OPEN_TO_REMOVE))
    holder.do("lock.release()")
    holder.do("lock.acquire(timeout=0)")
    assert holder.do("file_id()") == file
    robber.finish()
    assert expect_one_holder(holder, robber) is holder


def test_the_path_is_seen_before_the_bytes(actor, path):
    holder = actor()
    holder.do("keep_a_claim(path)")
    for number in range(1, 20):
        holder.do("lock.acquire(timeout=0)")
        robber = actor()
        rob = STOPS.thief(robber, holder.do("lock.token"))
        assert robber.begin(rob, stop_before(STOPS.GUARD), stop_before(nth=number + 1))
        holder.do("lock.release()")
        # It takes the guard now, and stops with what it has seen of the old lock; then the
        # path comes back, with another record in the same file.
        if not robber.go_on():
            break
        holder.do("lock.acquire(timeout=1)")
        robber.finish()
        assert expect_one_holder(holder, robber) is holder
        holder.do("lock.release()")
    assert number > 1


@on_posix
def test_what_is_written_anew_before_the_guard_is_not_removed(actor, path):
    # The core has judged a dead holder's record, and then another program takes the lock over by
    # writing its own record, of the same length, into the file.
    reclaimer = actor()
    STOPS.leave_dead(path, reclaimer)
    assert reclaimer.begin("lock.try_acquire()", stop_before(STOPS.GUARD))
    with open(path, "r+b") as file:
        anew = re.sub(rb"token=\w+", b"token=" + b"0" * 32, file.read())
        file.seek(0)
        file.write(anew)
    reclaimer.finish()
    with open(path, "rb") as file:
        if file.read() != anew:
            raise LostRaceError("another program's record was removed")
    os.unlink(path)


def test_a_living_holder_is_not_robbed(actor):
    holder, other = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    if other.do("lock.try_acquire()"):
        raise LostRaceError("two hold one lock")
    assert expect_one_holder(holder, other) is holder


@on_windows
def test_a_robber_of_the_last_lock_never_takes_the_next_one(actor):
    holder, robber = actor(), actor()
    # It meets a robber that is stopped with the guard, and no other waits for that.
    holder.do("set_patience(0)")
    last = None

    def ready():
        nonlocal last
        start_afresh(holder)
        holder.do("keep_a_claim(path)")
        holder.do("lock.acquire(timeout=1)")
        last = holder.do("lock.token")
        robber.have("token", repr(last))

    new = 0
    for _ in every_call(robber, "rob(path, token)", ready):
        holder.do("let_go(lock), lock.held or lock.acquire(timeout=1)")
        robber.finish()
        # The last one may be taken, if it could not be let go of; the next one may not.
        if holder.do("lock.token") != last:
            new += 1
            expect_to_hold(holder)
    assert new > 10


@on_windows
def test_what_has_the_witness_is_not_taken_whatever_its_record_names(actor, path):
    holder, other = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    with open(path, "r+b", opener=share) as file:
        file.write(STOPS.dead_record(os.path.dirname(path)))
        file.truncate()
    if other.do("lock.try_acquire()"):
        raise LostRaceError("two hold one lock")
    assert STOPS.content(path) == STOPS.dead_record("")


@on_windows
def test_a_change_without_the_guard_is_refused_where_there_are_guards(actor):
    holder, robber = actor(), actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    token = holder.do("lock.token")
    # It can't tell whether another has the guard, so it must not act as if it had it.
    robber.do(f"refuse('LockFileEx guard', {1450})")
    stopped = robber.begin(
        f"rob(path, {token!r})", stop_before("SetFileInformationByHandle delete")
    )
    holder.do("lock.release()")
    holder.do("lock.acquire(timeout=1)")
    if stopped:
        robber.finish()
    else:
        with pytest.raises(ActorError, match="WinError 1450"):
            robber.finish()
    expect_to_hold(holder)


# ---------------------------------------- both are stopped


@pytest.mark.stress
@LONG
@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=on_posix)])
def test_two_reclaimers_stopped_anywhere_leave_one_holder(actor, path, kept):
    one, other = actor(), actor()

    def ready():
        for each in (one, other):
            start_afresh(each)
        STOPS.leave_dead(path, one, other, kept=kept)

    for _ in every_pair_of_stops(one, other, ready, a_try, a_try):
        expect_one_holder(one, other)


@pytest.mark.stress
@LONG
@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_two_creators_in_place_stopped_anywhere_leave_one_holder(actor, local):
    one, other = actor(), actor()
    for each in (one, other):
        options = STOPS.in_place(each, local=local)
        each.do("set_grace(0)")
    create_at_every_pair_of_stops(one, other, options)


@pytest.mark.stress
@LONG
@pytest.mark.parametrize("robber_ends_first", [True, False])
def test_a_robber_stopped_anywhere_never_takes_the_next_lock(actor, robber_ends_first):
    rob_at_every_pair_of_stops(
        actor(), actor(), robber_ends_first=robber_ends_first, let_go=STOPS.let_go
    )


# ---------------------------------------- one is stopped, the other is killed


@pytest.mark.stress
@on_posix
@LONG
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
    ("record,state", test_what_is_written_anew_before_the_guard_is_not_removed),
    ("state", test_a_file_whose_mark_was_cleared_is_not_removed),
    ("creator", test_a_creator_whose_unfinished_file_was_taken_believes_nothing),
]


@on_posix
@pytest.mark.parametrize(
    ("mechanism", "race"), LOST_WITHOUT, ids=[mechanism for mechanism, _ in LOST_WITHOUT]
)
def test_the_race_is_lost_without_its_mechanism(actor, path, crippled, mechanism, race):
    with pytest.raises(LostRaceError):
        race(functools.partial(actor, package=crippled, without=mechanism), path)


@on_posix
@pytest.mark.parametrize("race", [race for _, race in LOST_WITHOUT])
def test_the_copy_that_can_lose_them_wins_them_with_all_of_its_mechanisms(
    actor, path, crippled, race
):
    race(functools.partial(actor, package=crippled), path)


def lost_without(actor, take_out, who):
    """Give actors, some of which lack a mechanism."""
    made = []

    def make():
        one = actor()
        if len(made) in who:
            one.do(f"({take_out})")
        made.append(one)
        return one

    return make


ANSWERED = {
    "the guard": (
        test_a_robber_of_the_last_lock_never_takes_the_next_one,
        "calls.pretend_guarded()",
        (0, 1),
    ),
    "the identity, holder": (
        test_a_robbed_holder_is_told_and_removes_nothing,
        "calls.pretend_same_file()",
        (0,),
    ),
    "the identity, creator": (
        test_a_creator_whose_unfinished_file_was_taken_believes_nothing,
        "calls.pretend_same_file()",
        (0,),
    ),
    # The time of change tells these two as well, so it goes too.
    "the bytes": (
        test_a_lock_that_reuses_the_judged_inode_is_not_removed,
        "calls.pretend_same_bytes(), calls.pretend_no_times()",
        (1,),
    ),
    # A living process is a proof of its own, so the record names one that has ended.
    "the witness": (
        test_what_has_the_witness_is_not_taken_whatever_its_record_names,
        "calls.pretend_no_witness()",
        (1,),
    ),
    "the witness, cleaner": (
        functools.partial(
            test_a_cleaner_that_is_stopped_anywhere_takes_no_lock_of_a_live_peer, options=""
        ),
        "calls.pretend_no_witness()",
        (1,),
    ),
}
# A file of another's that passes for one's own is moved aside, and stays there.
MARKS = {
    "the identity, holder": pytest.mark.leaves("tmp"),
    "the identity, creator": pytest.mark.leaves("tmp"),
    "the witness, cleaner": pytest.mark.skipif(
        bool(WINE),
        reason="what Wine deletes by a handle is what is at the path that it was opened by",
    ),
}


@on_windows
@pytest.mark.parametrize(
    "mechanism", [pytest.param(name, marks=MARKS.get(name, ())) for name in ANSWERED]
)
def test_the_race_is_lost_if_a_call_is_only_answered(actor, path, mechanism):
    race, take_out, who = ANSWERED[mechanism]
    given = {"path": path} if "path" in inspect.signature(race).parameters else {}
    with pytest.raises(LostRaceError):
        race(lost_without(actor, take_out, who), **given)
