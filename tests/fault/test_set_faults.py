"""A ``LockSet`` misses nothing: stopped at each call, without its reports, without a directory.

The set is a process of its own.  It is stopped before and after each system call of a poll while
the lock is released, its holder is killed, or the lock changes hands.  Its look by the clock comes
after an hour here, so it must take the lock because of what it saw, or what was reported.
"""

import errno
import itertools
import os

import pytest

from actors import ActorError
from faultlib import fail, stop_after, stop_before

FORMS = ["fresh", "kept", "in place"]
TAKEN = "any(some.wait(0.02) and some.try_acquire() for _ in range(100))"
# What the kernel says when it lets a process watch nothing more.
REFUSALS = [errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOSYS]


@pytest.fixture
def watcher(actor):
    one = actor()
    one.do("set_safety(3600)")
    return one


def begin(watcher, *, polled):
    """Make a set of one lock, which has polled or not."""
    watcher.have("some", "semlock.LockSet([new_lock(path)])")
    if polled:
        quiet(watcher)


def quiet(watcher):
    """Poll until no report of earlier steps is left to be checked."""
    assert not watcher.do(
        "[got for _ in iter(lambda: some.wait(0.03), False) if (got := some.try_acquire())]"
    )
    assert not watcher.do("some.try_acquire()")


def end(watcher, got):
    """See that the lock was taken, or is taken now, and let it go."""
    if not got:
        assert watcher.do(TAKEN), "a report was missed"
    watcher.do("[lock.release() for lock in some if lock.held]")
    watcher.do("some.close()")


KILL = "end_holder(kill=True)"
CHANGES = {
    "release": ["end_holder()"],
    "death": [KILL],
    "the next holder's release": ["end_holder()", "raise_holder(form)", "end_holder()"],
    "the next holder's death": [KILL, "raise_holder(form)", KILL],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.stress) for form in FORMS[1:])]
)
@pytest.mark.parametrize("polled", [False, True], ids=["first poll", "later poll"])
def test_wherever_a_poll_is_stopped_the_lock_is_taken(
    watcher, actor, path, form, change, polled
):
    world = actor()
    world.have("form", repr(form))
    for stop in (stop_before, stop_after):
        for number in itertools.count(1):
            world.do("raise_holder(form)")
            begin(watcher, polled=polled)
            if polled:  # so that there is something to be read
                with open(path, "r+"):
                    pass
            stopped = watcher.begin("some.try_acquire()", stop(nth=number))
            for step in CHANGES[change]:
                world.do(step)
            end(watcher, watcher.finish())
            if not stopped:
                break
        assert number > (4 if polled else 10)


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL, errno.EINTR, errno.EBADF])
@pytest.mark.parametrize("change", ["release", "death"])
def test_reports_that_cannot_be_read_are_made_up_for(watcher, actor, path, error, change):
    world = actor()
    world.have("form", "'fresh'")
    world.do("raise_holder()")
    begin(watcher, polled=True)
    for step in CHANGES[change]:
        world.do(step)
    end(watcher, watcher.do("some.try_acquire()", fail(error, "read")))
    # And the next report is heard.
    world.do("raise_holder()")
    begin(watcher, polled=True)
    world.do("end_holder()")
    end(watcher, None)


@pytest.mark.parametrize("change", ["release", "death"])
@pytest.mark.parametrize("added", [False, True], ids=["new set", "added lock"])
def test_what_was_under_way_at_the_first_look_is_seen_at_the_second(
    watcher, actor, path, added, change
):
    """It was reported before the lock was watched, and took effect after the look."""
    world = actor()
    world.have("form", "'fresh'")
    watcher.do("deafen()")
    if added:
        watcher.do("open(path + '.other', 'w').close()")
        watcher.have("some", "semlock.LockSet([new_lock(path + '.other')])")
        quiet(watcher)
        world.do("raise_holder()")
        watcher.do("some.add(new_lock(path))")
    else:
        world.do("raise_holder()")
        begin(watcher, polled=False)
    assert not watcher.do("some.try_acquire()")
    for step in CHANGES[change]:
        world.do(step)
    end(watcher, None)


@pytest.mark.parametrize("call", ["addwatch", "inotify"])
@pytest.mark.parametrize("error", REFUSALS)
def test_what_can_not_be_watched_is_looked_at_until_it_can(watcher, actor, path, call, error):
    world = actor()
    watcher.do("set_safety(0.05)")
    watcher.do(f"refuse({call!r}, {error})")
    world.do("raise_holder()")
    begin(watcher, polled=True)
    assert watcher.do("watched()") == 0
    world.do("end_holder()")
    end(watcher, None)
    world.do("raise_holder()")
    begin(watcher, polled=True)
    watcher.do("refuse_nothing()")
    # How long it pauses is a share of what a look takes, which on a busy machine may be long.
    assert watcher.do("any(some.wait(0.02) or watched() for _ in range(700))")
    quiet(watcher)
    watcher.do("set_safety(3600)")
    world.do("end_holder()")
    end(watcher, None)


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
@pytest.mark.parametrize("polled", [False, True], ids=["first poll", "later poll"])
def test_a_directory_that_is_replaced_while_a_poll_is_stopped(
    watcher, actor, tmp_path, how, polled
):
    """The lock of the new directory is another one, and it is the one that is taken."""
    directory = tmp_path / "watched"
    path = directory / "a.lock"

    def fresh():
        directory.mkdir()
        path.write_text("another program's")

    def replace():
        if how == "moved":
            directory.rename(tmp_path / "away")
        else:
            path.unlink()
            directory.rmdir()
        if how != "removed":
            directory.mkdir()

    def restore():
        for old in (tmp_path / "away", directory):
            if old.exists():
                (old / "a.lock").unlink(missing_ok=True)
                old.rmdir()

    def prepare():
        fresh()
        watcher.have("some", f"semlock.LockSet([semlock.Lock({str(path)!r})])")
        if polled:
            quiet(watcher)

    prepare()
    watcher.do("some.try_acquire()")
    count = len(watcher.calls)
    watcher.do("some.close()")
    restore()
    for number in range(1, count + 1):
        for stop in (stop_before, stop_after):
            prepare()
            watcher.begin("some.try_acquire()", stop(nth=number))
            replace()
            got = _unless_missing(watcher.finish)
            if how == "removed":
                directory.mkdir()
                watcher.do("set_safety(0.05)")
            if not got:
                assert _had_in_the_end(watcher), (number, stop)
            watcher.do("set_safety(3600)")
            watcher.do("[lock.release() for lock in some]")
            watcher.do("native.drain_pool()")
            watcher.do("some.close()")
            restore()
            assert not os.path.exists(path)


def _unless_missing(do, *arguments):
    """Do something; ``None`` if the directory is not there."""
    try:
        return do(*arguments)
    except ActorError as error:
        if "irectory" not in str(error):
            raise
        return None


def _had_in_the_end(watcher):
    poll = "some.wait(0.05) and some.try_acquire()"
    return any(_unless_missing(watcher.do, poll) for _ in range(50))
