"""A sticky directory and several users: what one of them may not remove counts as held.

Each user is a process of its own.  What a dead holder has left goes by its own user's hand, or
root's; the others wait for that, and are told who can do it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import semlock
import users
from support import PATIENCE, Child, wait_until

if not users.ROOT:
    pytest.skip("it needs root, who can be any user", allow_module_level=True)

pytestmark = pytest.mark.leaves("queue")

OWNER, OTHER = 1001, 1002


@pytest.fixture
def place(common):
    return Path(common)


@pytest.fixture
def path(place):
    return place / "the.lock"


READY = """
import contextlib, io, os, semlock
from semlock import cli, sema

def tell(acquire, *arguments):
    try:
        acquire(*arguments)
    except semlock.LockTimeoutError as error:
        return str(error)

def call(*arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(list(arguments))
    return code, said.getvalue()
"""


def user(uid):
    child = Child()
    child.run(READY)
    child.run(users.as_user(uid))
    return child


def left_by(uid, path, form="Lock({0!r})", how="acquire"):
    """Have a user's process take a lock and be killed."""
    with user(uid) as child:
        child.run(f"lock = semlock.{form.format(str(path))}; _ = lock.{how}()")
        child.kill()


def test_a_waiter_gets_what_another_user_has_cleared(path):
    with user(OWNER) as owner, user(OTHER) as other, user(OWNER) as second:
        owner.run(f"lock = semlock.Lock({str(path)!r}); _ = lock.acquire()")
        other.run(f"lock = semlock.Lock({str(path)!r})")
        other.send(f"_ = lock.acquire(timeout={PATIENCE})")
        wait_until(
            lambda: any(".queue" in name for name in os.listdir(path.parent)), "it waits"
        )
        owner.kill()
        assert not other.answered(0.3)
        second.send(f"lock = semlock.Lock({str(path)!r}); _ = lock.acquire({PATIENCE})")
        # The other one came first, but on a busy machine it may be late and be passed by.
        waiting = [other, second]
        while waiting:
            wait_until(lambda: any(each.answered(0) for each in waiting), "one of them has it")
            (got,) = [each for each in waiting if each.answered(0)]
            got.receive()
            got.run("lock.release()")
            waiting.remove(got)


def test_root_is_named_once(path):
    left_by(0, path)
    with user(OTHER) as other:
        said = other.run(f"tell(semlock.Lock({str(path)!r}).acquire, 0)")
        assert "only root may remove it" in said
        assert "Have root run: semlock clean" in said


FORMS = ["Lock({0!r})", "SlotLock({0!r}, 1)", "SharedLock({0!r})", "sema.Semaphore({0!r})"]


@pytest.mark.parametrize("form", FORMS)
def test_a_try_fails_and_a_wait_ends_with_its_time_and_says_who_can_help(form, path):
    left_by(OWNER, path, form)
    with user(OTHER) as other:
        other.run(f"lock = semlock.{form.format(str(path))}")
        assert other.run("lock.try_acquire()") is False
        for limit in (0, 0.3):
            said = other.run(f"tell(lock.acquire, {limit})")
            assert f"uid {OWNER}" in said
            assert "semlock clean -y" in said
            assert "force" not in said
    with user(OWNER) as owner:  # who takes it over at once
        owner.run(f"lock = semlock.{form.format(str(path))}")
        assert owner.run("lock.try_acquire()") is True


def test_a_writer_waits_for_a_dead_reader_of_another_user(path):
    left_by(OWNER, path, "SharedLock({0!r})", "acquire_shared")
    with user(OTHER) as other:
        other.run(f"lock = semlock.SharedLock({str(path)!r})")
        assert other.run("lock.try_acquire()") is False
        assert f"uid {OWNER}" in other.run("tell(lock.acquire, 0.3)")
        other.send(f"_ = lock.acquire({PATIENCE})")
        with user(OWNER) as owner:
            assert owner.run(f"len(semlock.clean({str(path.parent)!r})) > 0")
        other.receive()


def test_any_and_all_of_some_locks_go_round_it(path, place):
    left_by(OWNER, path)
    with user(OTHER) as other:
        other.run(f"locks = [semlock.Lock({str(path)!r}), semlock.Lock({str(place / 'b')!r})]")
        assert other.run(f"semlock.acquire_any(locks, {PATIENCE}).path") == str(place / "b")
        other.run("locks[1].release()")
        assert f"uid {OWNER}" in other.run("tell(semlock.acquire_all, locks, 0.2)")
        assert other.run("semlock.try_acquire_many(locks)[0]") is None


def test_all_that_is_said_of_it_agrees_with_what_can_be_done(path):
    left_by(OWNER, path)
    there = str(path)
    with user(OTHER) as other:
        found = other.run(f"semlock.status({there!r})")
        assert (found.state, found.verdict, found.reason) == ("held", "dead", None)
        assert f"uid {OWNER}" in found.evidence
        assert other.run(f"call('status', {there!r})")[0] == 1
        assert other.run(f"call('wait', '-t', '0', {there!r})")[0] == 1
        assert other.run(f"call('try', {there!r})")[0] == 1
        code, said = other.run(f"call('acquire', '-t', '0.1', {there!r})")
        assert (code, f"uid {OWNER}" in said) == (1, True)
        with pytest.raises(PermissionError, match=f"uid {OWNER}"):
            other.run(f"semlock.remove({there!r})")
        assert other.run(f"call('break', '-y', {there!r})")[0] == 3
    assert path.exists()
    for uid in (OWNER, 0):
        with user(uid) as able:
            assert able.run(f"semlock.status({there!r}).state") == "stale"
            assert able.run(f"call('wait', '-t', '0', {there!r})")[0] == 0


def test_cleaning_says_what_it_could_not_remove(path, place):
    left_by(OWNER, path)
    left_by(OTHER, place / "mine.lock")
    with user(OTHER) as other:
        code, said = other.run(f"call('clean', '-n', {str(place)!r})")
        assert (code, str(path) in said, "mine.lock" in said) == (0, False, True)
        code, said = other.run(f"call('clean', '-y', {str(place)!r})")
        assert (code, f"uid {OWNER}" in said, "removed" in said) == (3, True, True)
        assert other.run(f"call('clean', '-y', {str(path)!r})")[0] == 3
        assert other.run(f"semlock.clean({str(place)!r})") == []
    assert path.exists()
    assert not (place / "mine.lock").exists()
    assert [gone.path for gone in semlock.clean(place)] == [str(path)]


def test_the_rights_of_a_user_are_those_of_the_moment(path):
    """The directory's owner and who has the capability may remove it; others not."""
    left_by(OWNER, path)
    with user(OTHER) as other:
        assert other.run(f"semlock.status({str(path)!r}).state") == "held"
        path.parent.chmod(0o777)
        assert other.run(f"semlock.status({str(path)!r}).state") == "stale"
        path.parent.chmod(0o1777)
        os.chown(path.parent, OTHER, OTHER)
        assert other.run(f"semlock.Lock({str(path)!r}).try_acquire()") is True


def test_a_user_who_can_take_no_lock_there_is_told_so_at_once(path):
    left_by(OWNER, path)
    path.parent.chmod(0o755)
    with user(OTHER) as other, pytest.raises(PermissionError):
        other.run(f"semlock.Lock({str(path)!r}).acquire({PATIENCE})")


def test_a_directory_from_which_nothing_is_removed_counts_as_held_too(path):
    """It tells so to who removes only, so the wait finds out, and says it at its end."""
    left_by(0, path)
    if subprocess.run(["chattr", "+a", path.parent], capture_output=True).returncode != 0:
        pytest.skip("this filesystem has no such directories")
    try:
        lock = semlock.Lock(path)
        assert lock.try_acquire() is False
        with pytest.raises(semlock.LockTimeoutError, match="could not remove it"):
            lock.acquire(0.3)
    finally:
        subprocess.run(["chattr", "-a", path.parent], check=True)
    lock.acquire(PATIENCE)
    lock.release()


@pytest.mark.parametrize("make", ["os.umask(0o777)", "mode = 0o077"])
def test_a_lock_whose_umask_leaves_no_right_is_taken_over_when_its_holder_was_killed(
    make, path
):
    with user(OWNER) as owner, user(OWNER) as second:
        owner.run(f"mode = 0o644\n{make}")
        owner.run(f"lock = semlock.Lock({str(path)!r}, mode=mode); _ = lock.acquire()")
        for _ in range(3):
            assert owner.run("lock.release(), lock.acquire() and None") == (None, None)
        owner.kill()
        assert second.run(f"semlock.status({str(path)!r}).state") == "stale"
        second.run(f"lock = semlock.Lock({str(path)!r}); _ = lock.acquire({PATIENCE})")
        second.run("lock.release()")


def test_who_can_not_read_a_lock_is_told_what_to_do(path):
    left_by(OWNER, path)
    path.chmod(0)
    for uid, way in ((OWNER, "chmod u+rw"), (OTHER, f"uid {OWNER}")):
        with user(uid) as one:
            said = one.run(f"tell(semlock.Lock({str(path)!r}).acquire, 0)")
            assert way in said
            assert "force" not in said
