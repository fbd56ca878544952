"""Locks between namespaces and users, and after a restart: who can be judged from where."""

import os
import sys
from pathlib import Path

import pytest

import semlock
import users
from processlib import (
    UNWITNESSED,
    WITNESSED,
    assert_held,
    assert_taken_at_once,
    child,
    need,
    resource,
    rewrite,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux' processes")

# ---------------------------------------------------------------- other users


@users.needs_root
@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_holder_that_may_not_be_signalled_is_judged_all_the_same(common, take):
    os.chmod(common, 0o777)
    path = os.path.join(common, "the.lock")
    with child(path) as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        with pytest.raises(PermissionError):
            judge.run(f"os.kill({holder.pid}, 0)")
        holder.run(take)
        assert judge.run(f"semlock.status({path!r}).verdict") == "alive"
        assert judge.run("lock.try_acquire()") is False
        holder.kill(reap=False)
        assert judge.run(f"semlock.status({path!r}).verdict") == "dead"
        assert judge.run("lock.acquire(timeout=1); lock.held") is True
        judge.run("lock.release()")
        # And it works like any other, kept claims included, without any privilege.
        judge.run("for _ in range(3): lock.acquire(); lock.check(); lock.release()")


@users.needs_root
def test_a_dead_ones_lock_in_a_sticky_directory_counts_as_held_and_the_error_names_it(common):
    path = os.path.join(common, "the.lock")
    with child(path) as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        holder.run(WITNESSED)
        holder.kill()
        with pytest.raises(
            semlock.LockTimeoutError, match="Have root run: semlock clean"
        ) as caught:
            judge.run("lock.acquire(timeout=0.2)")
        assert caught.value.path == path
        assert judge.run("lock.held") is False
        assert os.path.exists(path)
    assert_taken_at_once(path)


@users.needs_root
def test_a_record_that_may_not_be_read_counts_as_held(common):
    path = os.path.join(common, "the.lock")
    with child() as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        holder.run(f"lock = semlock.Lock({path!r}, mode=0o600); lock.acquire(); None")
        for end in (lambda: None, holder.kill):
            end()
            found = judge.run(f"found = semlock.status({path!r}); found.state, found.verdict")
            assert found == ("unreadable", "unknown")
            assert judge.run("lock.try_acquire()") is False
            assert judge.run(f"semlock.clean({common!r})") == []
            assert os.path.exists(path)


# ---------------------------------------------------------------- containers

_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def containers(path):
    """Two processes that both are number one, on one directory."""
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as one, child(path, wrapper=_CONTAINER) as two:
        assert one.pid == two.pid == 1
        yield one, two


@pytest.mark.parametrize("turn", [1, -1], ids=["there", "back"])
def test_number_one_of_another_container_excludes_while_it_lives_and_no_longer(
    containers, path, turn
):
    holder, judge = containers[::turn]
    holder.run(WITNESSED)
    assert judge.run("lock.try_acquire()") is False
    assert judge.run("lock.status().verdict") == "alive"
    assert judge.run(f"semlock.clean({os.path.dirname(path)!r})") == []
    assert_held(path)
    holder.kill(reap=False)
    assert judge.run("lock.status().verdict") == "dead"
    assert judge.run("lock.acquire(timeout=1); lock.held") is True
    judge.run("lock.check(); lock.release()")


@pytest.mark.parametrize("turn", [1, -1], ids=["there", "back"])
def test_without_a_witness_the_holder_in_another_container_is_unknown_and_stays(
    containers, path, turn
):
    holder, judge = containers[::turn]
    holder.run(UNWITNESSED)
    for end in (lambda: None, holder.kill):
        end()
        # Its number one lives or is dead; the judge's number one certainly lives.
        assert judge.run("lock.status().verdict") == "unknown"
        assert judge.run("lock.try_acquire()") is False
        assert judge.run(f"semlock.clean({os.path.dirname(path)!r})") == []
        assert_held(path, "unknown")


def test_a_container_is_judged_from_outside_and_the_outside_from_within(path):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as inside:
        with semlock.Lock(path):
            assert inside.run("lock.try_acquire()") is False
            assert inside.run("lock.status().verdict") == "alive"
        inside.run("lock.acquire(timeout=1); None")
        assert_held(path)
        inside.kill(reap=False)
        assert_taken_at_once(path)


def test_a_container_without_its_own_proc_judges_by_the_witness(path):
    """It sees the numbers of the outside in /proc, and must not take them for its own."""
    wrapper = ("unshare", "--pid", "--fork", "--kill-child")
    need(*wrapper)
    with child(path, wrapper=wrapper) as inside, child(path) as outside:
        assert inside.pid == 1
        outside.run(UNWITNESSED)
        assert inside.run("lock.status().verdict") == "unknown"
        outside.run("lock.release()")
        inside.run(WITNESSED)
        assert_held(path)
        assert outside.run("lock.try_acquire()") is False
        assert inside.run("lock.info.start") is None
        # Its children judge it by its number, since no start can be compared.
        inside.run("lock.release()")
        inside.run(UNWITNESSED)
        verdict = inside.run("""
def judge():
    mine = semlock.Lock(lock.path)
    return mine.status().verdict, mine.try_acquire()
support.in_a_fork(judge)
""")
        assert verdict == ("alive", False)


_RECYCLE = """
def take_and_die():
    holder = semlock.Lock(lock.path)
    holder.acquire() if {witness} else without_witness(holder)
    os.kill(os.getpid(), 9)

def new_process_with_number(number):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid

dead = os.fork()
if dead == 0:
    take_and_die()
os.waitpid(dead, 0)
start = lock.status().info.start
# Start times have a grain of a hundredth of a second.
while True:
    again = new_process_with_number(dead)
    if again == dead and semlock._core.capi.start_time(again) != start:
        break
    os.kill(again, 9)
    os.waitpid(again, 0)
found = lock.status()
os.kill(again, 0)  # a process with this number lives
"""


@users.needs_root
@pytest.mark.parametrize("witness", [True, False], ids=["witnessed", "unwitnessed"])
def test_a_process_number_that_was_given_again_keeps_nothing_alive(path, witness):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as number_one:
        number_one.run(_RECYCLE.format(witness=witness))
        assert number_one.run("dead == again == found.info.pid")
        assert number_one.run("found.verdict") == "dead"
        if not witness:
            assert "another process has its number" in number_one.run("found.evidence")
        assert number_one.run("lock.acquire(timeout=1); lock.held") is True


@users.needs_root
def test_a_number_given_again_is_recognized_when_the_record_lost_its_witness(path):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as number_one:
        number_one.run(_RECYCLE.format(witness=True))
        rewrite(path, witness="left")
        evidence = number_one.run("lock.status().evidence")
        assert "another process has its number" in evidence
        # Without a start there is nothing to tell the two apart by: the live one counts.
        text = Path(path).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("start=")]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert number_one.run("lock.status().verdict") == "alive"
        assert number_one.run("lock.try_acquire()") is False


# ---------------------------------------------------------------- after a restart

OTHER_BOOT = "00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize("witness", ["kept", "left", "none"])
def test_a_holder_of_another_boot_is_unknown_while_its_file_is_younger_than_this_boot(
    path, witness
):
    """A container may have a boot number of its own, and its process numbers mean nothing."""
    with child(path) as holder:
        holder.run(UNWITNESSED)
        rewrite(path, boot=OTHER_BOOT, witness=witness)
        assert semlock.status(path).verdict == "unknown"
        assert not semlock.Lock(path).try_acquire()
        assert semlock.clean(os.path.dirname(path)) == []
        assert os.path.exists(path)


def test_a_kept_witness_outweighs_whatever_the_record_says(path):
    with child(path) as holder:
        holder.run(WITNESSED)
        for changes in (
            {"boot": OTHER_BOOT},
            {"pid": "4194303"},
            {"start": "1"},
            {"pidns": "1"},
            {"witness": "none"},
            {"witness": "left", "pid": "4194302"},
        ):
            rewrite(path, **changes)
            assert_held(path)
        Path(path).write_bytes(b"no record at all")
        assert semlock.status(path).verdict == "alive"
        assert not semlock.Lock(path).try_acquire()


def test_what_this_module_does_to_limits_stays_in_its_children():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
