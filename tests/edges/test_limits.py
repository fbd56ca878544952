"""A holder can let go of its lock, however short the process and the machine are."""

import os
import sys

import pytest

import semlock
import users
from support import Child, mounted

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the limits are counted in Linux's way"
)

SETUP = """
import os, resource, semlock
from semlock._core import capi

def use_up():
    found = []
    try:
        while True:
            found.append(os.dup(0))
    except OSError:
        return found

def limit(number):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, most))
"""


@pytest.fixture
def program(tmp_path):
    with Child(SETUP + f"directory = {str(tmp_path)!r}\n") as child:
        yield child


def hold_many(program, count=64):
    program.run(f"""
limit(64)
locks = [semlock.Lock(f"{{directory}}/{{i}}.lock") for i in range({count})]
for lock in locks:
    lock.acquire()
""")


@pytest.mark.parametrize("act", ["check", "refresh", "release"])
@pytest.mark.parametrize("reserve", [True, False], ids=["with a reserve", "snatched"])
def test_a_lock_without_a_descriptor_needs_none(program, tmp_path, names, act, reserve):
    hold_many(program)
    assert program.run("sum(lock._native.file.handle < 0 for lock in locks)") > 20
    if not reserve:
        # What is closed in reserve another thread has at once.
        program.run("os.close(capi.POOL.reserve - 1)")
    program.run("taken = use_up()")
    program.run(f"for lock in locks: lock.{act}()")
    left = [name for name in names() if name.endswith(".lock")]
    assert len(left) == (0 if act == "release" else 64)
    program.run("""
for number in taken:
    os.close(number)
for lock in locks:
    if lock.held:
        lock.release()
""")
    assert program.finish() == 0
    assert names() == []


@users.needs_root
def test_where_no_thread_can_be_begun_the_reserve_does(program, common):
    program.run(f"""
import threading
directory = {common!r}
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
{users.as_user()}""")
    hold_many(program)
    program.run("""
taken = use_up()
try:
    threading.Thread(target=int).start()
except RuntimeError:
    for lock in sorted(locks, key=lambda lock: lock._native.file.handle):
        lock.check()
        lock.release()
for number in taken:
    os.close(number)
""")
    assert [name for name in os.listdir(common) if name.endswith(".lock")] == []


NO_THREADS = f"""
directory = {{common!r}}
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
{users.as_user()}
"""


@users.needs_root
@pytest.mark.parametrize("act", ["check", "refresh", "release"])
def test_where_neither_is_to_be_had_the_idle_files_are_closed(program, common, act):
    program.run(NO_THREADS.format(common=common))
    program.run(f"""
for name in "ab":
    with semlock.Lock(f"{{directory}}/{{name}}"):
        pass
lock = semlock.Lock(directory + "/the.lock", mode=0o600)  # so it doesn't use the idle file
_ = lock.acquire()
os.close(lock._native.file.handle)
limit(64)
taken = use_up()
assert capi.POOL.reserve == 0
lock.{act}()
for number in taken:
    os.close(number)
if lock.held:
    lock.release()
""")
    assert [name for name in os.listdir(common) if name.endswith(".lock")] == []


@users.needs_root
@pytest.mark.parametrize("act", ["check", "release"])
def test_a_lost_file_that_may_only_be_read_by_now_needs_no_more(program, common, act):
    program.run(NO_THREADS.format(common=common))
    program.run(f"""
lock = semlock.Lock(directory + "/the.lock")
_ = lock.acquire()
os.chmod(lock.path, 0o444)
os.close(lock._native.file.handle)
lock.{act}()
if lock.held:
    lock.release()
""")
    assert os.listdir(common) == []


def test_a_lock_whose_descriptor_was_lost_needs_none(program, names):
    program.run("""
lock = semlock.Lock(directory + "/the.lock")
_ = lock.acquire()
os.close(lock._native.file.handle)
limit(32)
taken = use_up()
lock.check()
lock.refresh()
lock.release()
""")
    assert names() == []


def test_after_the_shortage_the_witness_is_taken_again(program, path):
    program.run("""
lock = semlock.Lock(directory + "/the.lock")
_ = lock.acquire()
os.close(lock._native.file.handle)
limit(32)
taken = use_up()
lock.check()
for number in taken:
    os.close(number)
limit(1024)
""")
    assert "held until it ends" in semlock.status(path).evidence
    program.run("lock.check()")
    assert "the kernel's lock" in semlock.status(path).evidence


def test_a_full_disk_keeps_no_lock(tmp_path):
    with mounted(tmp_path, "tmpfs", "size=64k") as full, Child() as child:
        path = os.path.join(full, "the.lock")
        child.run(f"lock = semlock.Lock({path!r}); _ = lock.acquire()")
        filler = os.open(os.path.join(full, "filler"), os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(filler, b"x" * 4096)
        os.close(filler)
        child.run("lock.check(); lock.refresh(); lock.release()")
        assert os.listdir(full) == ["filler"]


def kept_by_root(child, directory, access, **options):
    """Have a child of root's keep a claim in a directory: the lock's path, the claim's name."""
    os.chmod(directory, access)
    path = os.path.join(directory, "the.lock")
    child.run(f"""{users.SOURCE}import_all()
lock = semlock.Lock({path!r}, **{options!r})
for _ in range(2):
    with lock: pass
""")
    (kept,) = os.listdir(directory)
    return path, kept


@users.needs_root
def test_a_claim_of_another_user_is_not_used_and_is_removed_where_that_may_be(common):
    with Child() as child:
        path, kept = kept_by_root(child, common, 0o777)
        assert child.run("os.setegid(65534); os.seteuid(65534); _ = lock.acquire()") is None
        assert os.stat(path).st_uid == 65534
        assert kept not in os.listdir(common)
        child.run("lock.release()")
        assert child.finish() == 0
    assert os.listdir(common) == []


@users.needs_root
@pytest.mark.parametrize("change", ["os.setegid(65534)", "os.setgid(65534)"])
def test_a_claim_of_another_group_is_not_used(common, change):
    """Every file has the group of its time, and the mode counts for that group."""
    with Child() as child:
        path, kept = kept_by_root(child, common, 0o755, mode=0o660)
        child.run(f"{change}; _ = lock.acquire()")
        assert os.stat(path).st_gid == 65534
        assert kept not in os.listdir(common)
        child.run("lock.release()")
        child.run("with lock: made = os.stat(lock.path).st_ino")
        child.run("with lock: again = os.stat(lock.path).st_ino")
        assert child.run("made") == child.run("again"), "its own claim is used"
        assert child.finish() == 0
    assert os.listdir(common) == []


@users.needs_root
def test_a_process_that_has_given_up_its_rights_knows_the_claims_of_before(common):
    """It can't change its user any more and is not asked again, but those have another group."""
    places = [os.path.join(common, name) for name in "ab"]
    for place in places:
        os.mkdir(place)
        os.chmod(place, 0o1777)
    with Child() as child:
        child.run(f"""{users.SOURCE}import_all()
locks = [semlock.Lock(place + "/t.lock") for place in {places!r}]
os.seteuid(65534)
for _ in range(2):
    for lock in locks: _ = lock.acquire()
    for lock in locks: lock.release()
""")
        assert [len(os.listdir(place)) for place in places] == [1, 1]
        child.run(f"""
os.seteuid(0)
with semlock.Lock({os.path.join(common, "roots.lock")!r}): pass
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
""")
        for _ in range(3):
            child.run("for lock in locks: _ = lock.acquire()")
            for place in places:
                found = os.stat(place + "/t.lock")
                assert (found.st_uid, found.st_gid) == (65534, 65534)
            child.run("for lock in locks: lock.release()")
        assert child.finish() == 0
    assert [os.listdir(place) for place in places] == [[], []]


@users.needs_root
def test_a_claim_that_another_user_may_not_remove_waits_for_its_maker(common):
    with Child() as child:
        _, kept = kept_by_root(child, common, 0o1777)
        child.run("os.setegid(65534); os.seteuid(65534)")
        for _ in range(3):
            child.run("with lock: owner = os.stat(lock.path).st_uid")
            assert child.run("owner") == 65534
        assert kept in os.listdir(common)
        child.run("os.seteuid(0); os.setegid(0)")
        child.run("with lock: again = os.stat(lock.path).st_ino")
        assert f".semlock-{child.run('again'):x}.kept" == kept
        assert child.finish() == 0
    assert os.listdir(common) == []
