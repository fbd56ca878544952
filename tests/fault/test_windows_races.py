"""The races of ``test_races`` on Windows: one side is stopped at a call while the other runs.

What is stopped before one call is where it is after the one before, so who is stopped is
stopped before each.  A mechanism is taken out by having a call answered without being made:
that needs no compiler, and shows that the same test can see the race being lost.
"""

import contextlib
import functools
import inspect
import os
import sys
import time

import pytest

import windows_calls
from faultlib import ActorError, die_after, die_before, mark_unfinished, stop_before
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
from support import share
from windows_calls import WindowsActor, bytes_at
from wine import WINE

pytestmark = pytest.mark.skipif(
    sys.platform != "win32", reason="the table of imports is that of Windows"
)

# Where a file can't be deleted as POSIX does it, it is moved aside first; Wine is such a place.
MOVED_ASIDE = 1 if WINE else 0


# ---------------------------------------------------------------- the actors


@pytest.fixture(scope="module")
def idle():
    """Those who have no part at the moment: a process takes long to begin."""
    waiting = []
    yield waiting
    for one in waiting:
        one.close()


@pytest.fixture
def actor(idle, path):
    """Give other processes that take part, as good as new."""
    cast = []

    def make() -> WindowsActor:
        one = idle.pop() if idle else WindowsActor(path)
        cast.append(one)
        one.do(f"fresh({path!r})")
        return one

    yield make
    for one in cast:
        if is_ready(one):
            idle.append(one)
        else:
            one.close()


def is_ready(one) -> bool:
    """Whether an actor has let go of everything, and waits for what it is to do next."""
    if one.dead or one.stopped:
        return False
    with contextlib.suppress(ActorError, AssertionError):
        return one.do("let_go(lock), native.drain_pool(), 'here'") == [None, None, "here"]
    return False


@pytest.fixture(scope="module")
def dead_record(tmp_path_factory):
    """What a process has written that died while it held a lock."""
    path = str(tmp_path_factory.mktemp("dead") / "the.lock")
    windows_calls.leave_dead_lock(path)
    return bytes_at(path)


@pytest.fixture
def leave_dead(path, dead_record):
    """Leave what a process leaves that is killed while it holds the lock."""

    def leave():
        with open(path, "xb") as file:
            file.write(dead_record)

    return leave


# Who is stopped is stopped before each call.
BEFORE = (stop_before,)
every_call = functools.partial(every_stop, stops=BEFORE)


def in_the_end(condition):
    """Give Windows the time that it takes to drop what a killed process had."""
    end = time.monotonic() + 15
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return value


# ---------------------------------------- 1: two reclaimers, one stale lock


@pytest.mark.parametrize("kept", [False, True])
def test_of_two_reclaimers_one_wins_wherever_the_other_is_stopped(
    actor, path, leave_dead, kept
):
    slow, quick = actor(), actor()

    def ready():
        for one in (slow, quick):
            start_afresh(one)
        for one in (slow, quick):
            one.do("keep_a_claim(path)" if kept else "native.drain_pool()")
        leave_dead()

    for _ in every_call(slow, "lock.try_acquire()", ready):
        quick.do("lock.try_acquire()")
        slow.finish()
        expect_one_holder(slow, quick)


def test_a_reclaimer_about_to_unlink_keeps_its_rival_away(actor, leave_dead):
    slow, quick = actor(), actor()
    leave_dead()
    assert slow.begin("lock.try_acquire()", stop_before("SetFileInformationByHandle delete"))
    assert quick.do("lock.try_acquire()") is False
    slow.finish()
    assert expect_one_holder(slow, quick) is slow


# ---------------------------------------- 2: the robbed holder's release


def told_of(one, expression) -> str:
    """Name the error that comes of it; empty if none does."""
    try:
        one.do(expression)
    except ActorError as error:
        return error.kind
    return ""


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("end", ["lock.release()", "lock.refresh()"])
def test_a_robbed_holder_leaves_its_successors_lock_alone(actor, path, kept, end):
    end_while_robbed(
        actor(), actor(), end, kept=kept, content=lambda: bytes_at(path), stops=BEFORE
    )


def test_a_robbed_holder_is_told_and_removes_nothing(actor):
    holder, successor = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    successor.do("semlock.remove(path, force=True)")
    successor.do("lock.acquire(timeout=0)")
    if told_of(holder, "lock.check()") != "LockLostError":
        raise LostRaceError("it was not told of its loss")
    may_be_told_of_its_loss(holder.do, "lock.release()")
    expect_to_hold(successor)


# ---------------------------------------- 3: a full disk

NOT_SUPPORTED = windows_calls.NOT_SUPPORTED

FORMS = {
    "renamed": [],
    "moved by name": [("SetFileInformationByHandle rename", NOT_SUPPORTED)],
    "kept": [],
    "in place": [("GetVolumeInformationByHandleW", NOT_SUPPORTED)],
}
EVERY_FORM = [
    pytest.param(
        form,
        marks=pytest.mark.skipif(
            bool(WINE) and form == "moved by name",
            reason="under Wine a file that was moved by its name loses the number of its volume",
        ),
    )
    for form in FORMS
]


def prepare(one, form):
    """Let an actor's system have no more than one form of publication."""
    have_only(one, FORMS[form], keep=form == "kept")


@pytest.mark.parametrize("call", ["WriteFile", "FlushFileBuffers"])
@pytest.mark.parametrize("form", EVERY_FORM)
def test_a_full_disk_leaves_no_lock(actor, names, form, call):
    unlucky, other = actor(), actor()
    prepare(unlucky, form)
    before = names()
    unlucky.do(f"refuse({call!r}, {windows_calls.DISK_FULL})")
    with pytest.raises(ActorError, match="WinError 112"):
        unlucky.do("lock.acquire(timeout=1)")
    assert not unlucky.do("lock.held")
    # A kept claim that could not be written is given up.
    assert names() == ([] if form == "kept" else before)
    assert other.do("lock.try_acquire()")


# ---------------------------------------- 4: seen free, then published

PUBLISHED_BY = {
    "renamed": ("SetFileInformationByHandle rename", 1),
    "moved by name": ("MoveFileExW", 1),
    "kept": ("SetFileInformationByHandle rename", 1),
    # The first that is created is a temporary file, of which it learns where it is.
    "in place": ("CreateFileW new", 2),
}


@pytest.mark.parametrize("form", EVERY_FORM)
def test_publication_never_replaces_what_came_meanwhile(actor, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    assert slow.begin("lock.try_acquire()", stop_before(*PUBLISHED_BY[form]))
    quick.do("lock.acquire(timeout=1)")
    if slow.finish() is not False:
        raise LostRaceError("it believes to hold a lock that another has")
    assert expect_one_holder(slow, quick) is quick


@pytest.mark.parametrize("form", EVERY_FORM)
def test_of_two_creators_one_wins_wherever_the_other_is_stopped(actor, form):
    slow, quick = actor(), actor()
    prepare(slow, form)
    create_at_every_stop(slow, quick, kept=form == "kept", stops=BEFORE)


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


def test_an_unfinished_file_is_spared_for_a_time(actor):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    assert creator.begin("lock.try_acquire()", stop_before("LockFileEx guard"))
    assert not other.do("lock.try_acquire()")
    assert other.do("semlock.clean(directory)") == []
    assert creator.finish() is True
    assert expect_one_holder(creator, other) is creator


def test_a_creator_whose_unfinished_file_was_taken_believes_nothing(actor):
    creator, other = actor(), actor()
    prepare(creator, "in place")
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before("LockFileEx guard"))
    assert other.do("lock.try_acquire()")
    creator.finish()
    assert expect_one_holder(creator, other) is other


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_what_was_judged_unfinished_and_was_finished_is_not_taken(actor, local):
    creator, other = actor(), actor()
    if local:
        creator.have("lock", "new_lock(path, in_place=True)")
    else:
        for one in (creator, other):
            prepare(one, "in place")
    other.do("set_grace(0)")
    assert creator.begin("lock.try_acquire()", stop_before("LockFileEx guard"))
    # It has judged the file, and opens it to remove it.
    assert other.begin("lock.try_acquire()", stop_before("CreateFileW delete"))
    assert creator.finish() is True
    other.finish()
    assert expect_one_holder(creator, other) is creator


# ---------------------------------------- 6: a live peer's temporary file


@pytest.mark.parametrize("grace", [2, 0])
def test_clean_never_costs_a_live_peer_its_lock(actor, names, grace):
    clean_at_every_stop(actor(), actor(), grace, names, stops=BEFORE)


# Here a file is removed by its handle, whatever its name is by then: so a maker that was
# taken for dead must not make a lock of a file that is about to be removed.
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
def test_clean_leaves_a_live_peers_kept_claim(actor, names, grace):
    peer, cleaner = actor(), actor()
    cleaner.do(f"set_grace({grace})")
    peer.do("keep_a_claim(path)")
    kept = names()
    assert len(kept) == 1
    for _ in every_call(peer, "lock.try_acquire()", lambda: start_afresh(peer)):
        assert cleaner.do("semlock.clean(directory)") == []
        assert peer.finish() is True
        expect_to_hold(peer)
        # An instance has one name at any time.
        assert names() == ["the.lock"]


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


@pytest.mark.parametrize("call", ["LockFileEx witness", "LockFileEx guard"])
def test_nothing_is_kept_that_could_be_removed_by_its_handle(actor, names, call):
    peer = actor()
    peer.do(f"refuse({call!r}, {NOT_SUPPORTED})")
    peer.do("keep_a_claim(path)")
    assert names() == []


# ---------------------------------------- 7: a killed reclaimer's guard


@pytest.mark.parametrize(
    "death",
    [
        die_after("LockFileEx guard"),
        die_before("SetFileInformationByHandle delete"),
        die_after("SetFileInformationByHandle delete", nth=3 if WINE else 1),
        die_before("SetFileInformationByHandle rename", nth=1 + MOVED_ASIDE),
    ],
    ids=["with the guard", "before the unlink", "after the unlink", "before the rename"],
)
def test_a_killed_reclaimer_blocks_nobody(actor, names, leave_dead, death):
    killed, other = actor(), actor()
    leave_dead()
    assert killed.dies("lock.try_acquire()", death)
    other.do("lock.acquire(timeout=15)")
    expect_to_hold(other)
    other.do("lock.release()")
    other.do("set_grace(0)")
    assert in_the_end(lambda: [other.do("semlock.clean(directory)"), names()][1] == [])


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


def test_a_stopped_reclaimer_is_waited_for_and_not_for_ever(actor, leave_dead):
    stopped, other = actor(), actor()
    leave_dead()
    assert stopped.begin("lock.try_acquire()", stop_before("SetFileInformationByHandle delete"))
    with pytest.raises(ActorError, match="LockTimeoutError"):
        other.do("lock.acquire(timeout=0.1)")
    stopped.kill()
    other.do("lock.acquire(timeout=15)")
    expect_to_hold(other)


# ---------------------------------------- 8: killed between create and write


@pytest.mark.parametrize("form", ["renamed", "kept"])
def test_a_kill_before_the_link_leaves_the_path_free(actor, path, names, form):
    killed, other = actor(), actor()
    prepare(killed, form)
    assert killed.dies("lock.try_acquire()", die_before("WriteFile"))
    assert not os.path.lexists(path)
    assert other.do("lock.try_acquire()")
    other.do("lock.release()")
    other.do("set_grace(0)")
    assert in_the_end(lambda: [other.do("semlock.clean(directory)"), names()][1] == [])


@pytest.mark.parametrize(
    "call", ["LockFileEx guard", "WriteFile", "SetFileInformationByHandle basic"]
)
def test_a_kill_in_place_leaves_what_goes_after_the_grace_time(actor, names, call):
    killed, other = actor(), actor()
    killed.have("lock", "new_lock(path, in_place=True)")
    assert killed.dies("lock.try_acquire()", die_before(call))
    assert names() == ["the.lock"]
    # A whole record names the one that was killed.
    whole = call == "SetFileInformationByHandle basic"
    assert other.do("lock.try_acquire()") is whole
    other.do("set_grace(0)")
    other.do("lock.held or lock.acquire(timeout=15)")
    expect_to_hold(other)


# ---------------------------------------- the kept claim's file is used again


def test_a_lock_that_reuses_the_judged_inode_is_not_removed(actor):
    holder = actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    file = holder.do("file_id()")
    robber = rob_by_token(actor, holder)
    # It has judged the file, and opens it to remove it.
    assert robber.begin("lock.try_acquire()", stop_before("CreateFileW delete"))
    holder.do("lock.release()")
    holder.do("lock.acquire(timeout=0)")
    assert holder.do("file_id()") == file
    robber.finish()
    assert expect_one_holder(holder, robber) is holder


def test_a_robber_of_the_last_lock_never_takes_the_next_one(actor):
    holder, robber = actor(), actor()
    # It meets a robber that is stopped with the guard, and nobody waits for that.
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


def test_the_path_is_seen_before_the_bytes(actor):
    holder = actor()
    holder.do("keep_a_claim(path)")
    for number in range(1, 20):
        holder.do("lock.acquire(timeout=0)")
        robber, token = actor(), holder.do("lock.token")
        assert robber.begin(
            f"rob(path, {token!r})",
            stop_before("LockFileEx guard"),
            stop_before(nth=number + 1),
        )
        holder.do("lock.release()")
        # It takes the guard now, and stops with what it has seen of the old lock; then the
        # path comes back, with another record in the same file.
        if not robber.go_on():
            break
        holder.do("lock.acquire(timeout=1)")
        robber.finish()
        expect_to_hold(holder)
        holder.do("lock.release()")
    assert number > 1


def test_a_living_holder_is_not_robbed(actor):
    holder, other = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    if other.do("lock.try_acquire()"):
        raise LostRaceError("two hold one lock")
    assert expect_one_holder(holder, other) is holder


def test_who_has_the_witness_is_not_robbed_whoever_the_record_names(actor, path, dead_record):
    holder, other = actor(), actor()
    holder.do("lock.acquire(timeout=0)")
    with open(path, "r+b", opener=share) as file:
        file.write(dead_record)
        file.truncate()
    if other.do("lock.try_acquire()"):
        raise LostRaceError("two hold one lock")
    assert bytes_at(path) == dead_record


def test_a_change_without_the_guard_is_refused_where_there_are_guards(actor):
    holder, robber = actor(), actor()
    holder.do("keep_a_claim(path)")
    holder.do("lock.acquire(timeout=0)")
    token = holder.do("lock.token")
    # It can't tell whether somebody else has the guard, so it must not act as if it had it.
    robber.do(f"refuse('LockFileEx guard', {windows_calls.NO_RESOURCES})")
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


def drop_kept(one):
    """Keep no file for long: Wine closes nothing of a file of which somebody has a byte locked."""
    one.do("native.drain_pool()")


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_two_reclaimers_stopped_anywhere_leave_one_holder(actor, leave_dead):
    one, other = actor(), actor()

    def ready():
        for each in (one, other):
            start_afresh(each)
            drop_kept(each)
        leave_dead()

    for _ in every_pair_of_stops(one, other, ready, a_try, a_try):
        expect_one_holder(one, other)


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_two_creators_in_place_stopped_anywhere_leave_one_holder(actor, local):
    one, other = actor(), actor()
    for each in (one, other):
        each.do("set_grace(0)")
        if not local:
            prepare(each, "in place")
    create_at_every_pair_of_stops(one, other, ", in_place=True" if local else "")


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("robber_ends_first", [True, False])
def test_a_robber_stopped_anywhere_never_takes_the_next_lock(actor, robber_ends_first):
    def let_go(holder):
        holder.do("let_go(lock)")
        drop_kept(holder)

    rob_at_every_pair_of_stops(
        actor(), actor(), robber_ends_first=robber_ends_first, let_go=let_go
    )


# ---------------------------------------- these tests can fail


def lost_without(actor, take_out, who):
    """Give actors, of whom some lack a mechanism."""
    made = []

    def make():
        one = actor()
        if len(made) in who:
            one.do(f"({take_out})")
        made.append(one)
        return one

    return make


LOST_WITHOUT = {
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
        test_who_has_the_witness_is_not_robbed_whoever_the_record_names,
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


@pytest.mark.parametrize(
    "mechanism", [pytest.param(name, marks=MARKS.get(name, ())) for name in LOST_WITHOUT]
)
def test_the_race_is_lost_without_its_mechanism(actor, path, dead_record, mechanism):
    race, take_out, who = LOST_WITHOUT[mechanism]
    given = {"path": path, "dead_record": dead_record}
    takes = inspect.signature(race).parameters
    with pytest.raises(LostRaceError):
        race(
            lost_without(actor, take_out, who),
            **{name: value for name, value in given.items() if name in takes},
        )
