"""Real filesystems that are full, read-only, or short of what the core would like to use.

What each kind of filesystem gives is in ``tests/platforms``.  Each test runs in a mount
namespace of its own, which only root may make.
"""

import os
import shutil
import subprocess
import sys

import pytest

IN_NAMESPACE = """
import errno, os, resource, subprocess, sys
import semlock

where = sys.argv[1]
path = os.path.join(where, "the.lock")

def mount(*words):
    subprocess.run(["mount", *words, where], check=True)

def files():
    return sorted(os.listdir(where))

def refused(code, **options):
    before, descriptors = files(), len(os.listdir("/proc/self/fd"))
    lock = semlock.Lock(path, **options)
    for call in (lock.try_acquire, lambda: lock.acquire(timeout=1)):
        try:
            call()
        except OSError as error:
            assert error.errno == code, error
            assert error.filename == path, error
        else:
            raise AssertionError("it was acquired")
        assert not lock.held
    assert files() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors

def works(**options):
    lock = semlock.Lock(path, **options)
    for _ in range(4):
        with lock:
            assert semlock.status(path).info == lock.info
            assert not semlock.Lock(path).try_acquire()
            lock.refresh()
            lock.check()
    semlock.clean(where)
    assert "the.lock" not in files()
    return lock
"""


def possible():
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "--propagation", "private", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def run(tmp_path):
    if not possible():
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail("no mount namespace can be made here")
        pytest.skip("no mount namespace can be made here")

    def run(script):
        result = subprocess.run(
            ["unshare", "-m", "--propagation", "private", sys.executable, "-c",
             IN_NAMESPACE + script, str(tmp_path)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr

    return run


@pytest.mark.parametrize("durability", ["full", "none"])
def test_a_full_disk_is_an_error_with_the_name_and_nothing_is_left(run, durability):
    run(f"""
mount("-t", "tmpfs", "-o", "size=16k", "tmpfs")
with open(os.path.join(where, "ballast"), "wb", buffering=0) as ballast:
    try:
        while ballast.write(b"x" * 4096): pass
    except OSError: pass
refused(errno.ENOSPC, durability={durability!r})
os.unlink(os.path.join(where, "ballast"))
works(durability={durability!r})
""")


def test_no_inode_left_is_an_error_with_the_name_and_nothing_is_left(run):
    run("""
mount("-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs")
for name in "ab": open(os.path.join(where, name), "x").close()
refused(errno.ENOSPC)
os.unlink(os.path.join(where, "a"))
works()
""")


def test_a_read_only_filesystem_is_an_error_with_the_name(run):
    run("""
mount("-t", "tmpfs", "tmpfs")
mount("-o", "remount,ro")
refused(errno.EROFS)
""")


def test_a_release_is_seen_where_the_times_of_two_changes_may_be_the_same(run):
    """The directory's time tells nothing yet, right after a change."""
    run("""
mount("-t", "ramfs", "ramfs")  # the clock's tick: newer kernels give tmpfs and others a finer one
paths = [os.path.join(where, f"{n}.lock") for n in range(70)]
held, locks = ([semlock.Lock(path, durability="none") for path in paths] for _ in range(2))
assert all(semlock.try_acquire_many(held))
for number in range(2100):
    lock = held[number % 70]
    assert not any(semlock.try_acquire_many(locks))
    lock.release()
    assert semlock.try_acquire_many(locks) == [
        other if other.path == lock.path else None for other in locks
    ], number
    locks[number % 70].release()
    lock.acquire(timeout=0)
""")


def test_a_held_lock_on_a_filesystem_that_became_read_only_stays_held(run):
    run("""
mount("-t", "tmpfs", "tmpfs")
lock = semlock.Lock(path)
lock.acquire()
# A descriptor that is open for writing keeps the filesystem from becoming read-only at once.
result = subprocess.run(["mount", "-o", "remount,ro", where], capture_output=True)
if result.returncode == 0:
    try:
        lock.release()
    except OSError as error:
        assert error.errno == errno.EROFS and error.filename == path
    assert lock.held
    mount("-o", "remount,rw")
lock.release()
assert files() == []
""")


def test_no_descriptor_left_is_an_error_with_the_name(run):
    run("""
mount("-t", "tmpfs", "tmpfs")
semlock.Lock(path).status()
with semlock.Lock(path): pass
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
eaten = []
try:
    while True: eaten.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
lock = semlock.Lock(path)
try:
    lock.acquire(timeout=0)
except OSError as error:
    assert (error.errno, error.filename) == (errno.EMFILE, path), error
else:
    raise AssertionError
assert not lock.held
for fd in eaten: os.close(fd)
assert files() == []
works()
""")


def test_near_the_limit_the_witness_is_given_up_and_all_else_works(run):
    run("""
mount("-t", "tmpfs", "tmpfs")
with semlock.Lock(path): pass
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
lock = works()
with lock:
    assert lock.info.witness == "left"
    assert lock._native.file.handle == -1
    assert semlock.status(path).verdict == "alive"
    semlock.remove(path, force=True)
    open(path, "x").close()
    for call in (lock.check, lock.refresh):
        try: call()
        except semlock.LockLostError: pass
        else: raise AssertionError
    os.unlink(path)
    try: lock.release()
    except semlock.LockLostError: pass
    lock.acquire()
assert files() == []
""")


def test_without_proc_a_lock_is_taken_kept_and_taken_over_by_its_witness(run):
    run("""
mount("-t", "tmpfs", "tmpfs")
subprocess.run(["umount", "-l", "/proc"], check=True)
assert not os.path.exists("/proc/self")
works()
lock = semlock.Lock(path)
go, end = os.pipe()
child = os.fork()
if child == 0:
    semlock.Lock(path).acquire(timeout=0)
    os.write(end, b".")
    os.kill(os.getpid(), 19)
    os._exit(0)
os.read(go, 1)
assert not lock.try_acquire()
assert semlock.status(path).verdict == "alive"
os.kill(child, 9)
os.waitpid(child, 0)
found = semlock.status(path)
assert found.verdict == "dead", found
lock.acquire(timeout=5)
lock.release()
works()
""")
