"""The guard where flock is not what it is on a local filesystem: on SMB, and on NFS.

A process that can't have the guard moves the path aside before it is removed, which leaves the path
free for a moment.  So nothing may be taken for a filesystem without a guard that has one.
"""

import errno
import functools

import pytest

from actors import ActorError
from faultlib import fail

# As many as csrc/semlock.h says, and the first.
GUARD_TRIES = 201

# How the path looks free for a moment.
ASIDE = "rename"


def taken_over(other, *faults):
    """Have a dead holder's lock taken, and give the calls of that."""
    assert other.do("lock.try_acquire()", *faults)
    calls = other.calls
    other.do("lock.release()")
    return calls


def a_release_on_smb(actor, path):
    """Another process has the guard, for which SMB has a word of its own, and lets go of it."""
    holder = actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do("lock.release()", fail(errno.EACCES, "flock"))
    return holder.calls


def a_removal_on_smb(actor, path):
    """The same, for a dead holder's lock."""
    other = actor()
    other.do("leave_dead_lock(path)")
    return taken_over(other, fail(errno.EACCES, "flock"))


def a_removal_on_nfs(actor, path):
    """A dead holder's lock is opened to be read, and then to have the guard."""
    other = actor()
    other.do("leave_dead_lock(path)")
    other.do("lock_by_writers()")
    return taken_over(other)


CASES = [
    ("patience", a_release_on_smb),
    ("patience", a_removal_on_smb),
    ("writable", a_removal_on_nfs),
]
NAMES = [case.__name__ for _, case in CASES]


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=NAMES)
def test_the_guard_is_had_at_the_second_try_and_nothing_is_moved_aside(actor, path, case):
    calls = case(actor, path)
    assert calls.count("flock") == 2
    assert calls.count("unlink") == 1
    assert ASIDE not in calls


@pytest.mark.parametrize(("mechanism", "case"), CASES, ids=NAMES)
def test_it_is_moved_aside_without_the_mechanism(actor, path, crippled, mechanism, case):
    calls = case(functools.partial(actor, package=crippled, without=mechanism), path)
    assert calls.count("flock") == 1
    assert ASIDE in calls


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=NAMES)
def test_the_copy_that_can_do_without_has_the_guard_with_all_of_its_mechanisms(
    actor, path, crippled, case
):
    assert ASIDE not in case(functools.partial(actor, package=crippled), path)


def test_a_refresh_waits_for_the_guard_on_smb_too(actor, path):
    holder = actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do("lock.refresh()", fail(errno.EACCES, "flock"))
    assert holder.calls.count("flock") == 2


def test_who_sits_on_the_guard_is_waited_for_so_long_and_not_longer(actor, path):
    holder = actor()
    holder.do("set_patience(0)")
    holder.do("lock.acquire(timeout=0)")
    holder.do(f"refuse('flock', {errno.EWOULDBLOCK})")
    with pytest.raises(ActorError, match="LockTimeoutError"):
        holder.do("lock.release()")
    assert holder.calls.count("flock") == GUARD_TRIES
    assert ASIDE not in holder.calls
    assert holder.do("lock.held")


def test_smbs_word_that_stays_means_what_it_means_elsewhere(actor, path):
    """There it is said of a file that can't be locked, so there is no guard."""
    holder = actor()
    holder.do("lock.acquire(timeout=0)")
    holder.do(f"refuse('flock', {errno.EACCES})")
    holder.do("lock.release()")
    assert holder.calls.count("flock") == GUARD_TRIES
    assert ASIDE in holder.calls


def test_who_may_not_write_to_it_has_no_guard_on_nfs(actor, path):
    calls = a_removal_on_nfs(actor, path)
    had = [number for number, name in enumerate(calls) if name == "flock"][1]
    to_write = calls[:had].count("open")
    other = actor()
    other.do("leave_dead_lock(path)")
    other.do("lock_by_writers()")
    calls = taken_over(other, fail(errno.EACCES, "open", to_write))
    assert calls.count("flock") == 1
    assert ASIDE in calls
