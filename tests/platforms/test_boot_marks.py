"""The boot mark on real filesystems: where it is set, what it proves, and where there is fsync.

What a power cut leaves is made here by hand; tests/power cuts the power of machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import mounts  # noqa: E402

sys.path.remove(str(HERE))

PROGRAM = """
import errno, os, subprocess, sys, time
import semlock
from semlock._core import capi
from semlock._core.identity import this_process

MARK = "user.semlock"
this_process()

def new(name, **options):
    return semlock.Lock(os.path.abspath(name), **options)

def without_record(name="the.lock", size=0, **options):
    # As after a power cut: the name and the mark are there, and the bytes are not.
    lock = new(name, **options)
    capi.POOL.keep = 0
    lock.acquire()
    os.truncate(lock.path, 0)
    os.truncate(lock.path, size)
    capi.forget_lock(lock._native, capi.POOL)
    return lock.path

def restart(boot=2, later=10):
    # Another boot, which has begun after the file was changed.
    capi.POOL.boot += boot
    capi.boot_time = lambda: time.time_ns() + later * 10**9

def is_dead(path):
    found = semlock.status(path)
    assert (found.state, found.verdict) == ("stale", "dead"), found
    assert "did not come to the disk" in found.evidence, found

def blocks(path):
    found = semlock.status(path)
    assert found.state == "unreadable" and found.verdict != "dead", found
    before = os.stat(path)
    assert not semlock.Lock(path).try_acquire()
    semlock.clean(os.path.dirname(path))
    after = os.stat(path)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)

def traced(program, calls, *refused):
    trace = os.path.abspath("../trace")
    words = ["strace", "-f", "-e", f"trace={calls}", "-o", trace]
    words += [f"--inject={one}" for one in refused] + [sys.executable, "-c", program]
    subprocess.run(words, check=True)
    with open(trace) as lines:
        return lines.read()

def is_synced(*refused):
    calls = traced('''
import os, semlock
with semlock.Lock(os.path.abspath("a.lock")) as lock:
    assert not lock._native.file.marked
''', "fsync,fdatasync,ioctl", *refused)
    assert "fsync(" in calls, calls
"""

# The filesystem is made anew, in the image on which it lies.
ANEW = """
os.chdir("../..")
subprocess.run(["umount", "mounted"], check=True)
subprocess.run(["mkfs.ext4", "-q", "-F", *{options!r}, "image"], check=True)
subprocess.run(["mount", "-o", "loop", "image", "mounted"], check=True)
os.mkdir("mounted/place")
os.chdir("mounted/place")
"""

each = pytest.mark.parametrize(
    "kind",
    ["ext4", *(pytest.param(kind, marks=pytest.mark.stress) for kind in ("xfs", "btrfs"))],
)


def run(kind: str, script: str) -> None:
    reason = mounts.absence(kind)
    if reason is None and not mounts.is_known(kind):
        reason = f"this kernel knows no {kind}"
    elif reason is not None and os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)
    done = subprocess.run(
        mounts.command(kind, sys.executable, "-c", PROGRAM + script),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


@each
@pytest.mark.parametrize("size", [0, 300])
def test_a_file_without_a_record_is_dead_after_a_restart_and_is_taken_over(kind, size):
    run(
        kind,
        f"""
path = without_record(size={size})
blocks(path)  # its holder may live: it is of this boot
restart()
is_dead(path)
lock = semlock.Lock(path)
assert lock.try_acquire()
assert lock.info.token in open(path).read()
lock.release()
assert not os.path.exists(path)
""",
    )


@each
def test_the_mark_is_set_once_and_nothing_is_synced_or_read(kind):
    run(
        kind,
        """
calls = traced('''
import os, semlock
lock = semlock.Lock(os.path.abspath("a.lock"))
for number in range(5):
    with lock:
        assert os.listxattr(lock.path) == ["user.semlock"]
        assert lock._native.file.marked
''', "fsync,fdatasync,fsetxattr,fgetxattr")
assert calls.count("fsetxattr(") == 2, calls  # the first file is not kept
assert "sync(" not in calls and "fgetxattr(" not in calls, calls
""",
    )


@each
@pytest.mark.parametrize("durability", ["full", "data"])
def test_a_synced_file_is_marked_too(kind, durability):
    run(kind, f"path = without_record(durability={durability!r}); restart(); is_dead(path)")


def test_without_the_mark_it_blocks():
    run(
        "ext4",
        """
path = without_record(durability="none")
other = without_record("other.lock")
os.removexattr(other, MARK)
restart()
blocks(path)
blocks(other)
""",
    )


def test_a_mark_of_another_inode_proves_nothing():
    run(
        "ext4",
        """
path = without_record()
mark = os.getxattr(path, MARK)
number = os.stat(path).st_ino
restart()
os.mkdir("copies")
subprocess.run(["cp", "-a", path, "copies/copied.lock"], check=True)
assert os.getxattr("copies/copied.lock", MARK) == mark
blocks(os.path.abspath("copies/copied.lock"))
is_dead(path)
os.unlink(path)
# The same inode number again: another generation.
again = 0
for name in range(50):
    with open(f"{name}.lock", "xb") as file:
        os.setxattr(file.fileno(), MARK, mark)
        again += os.fstat(file.fileno()).st_ino == number
    blocks(os.path.abspath(f"{name}.lock"))
assert again == 1
""",
    )


@pytest.mark.parametrize(
    "content", [b"mine", b"\0\0mine", b"pid=1\n", b" ", b"\0" * 300 + b"x"]
)
def test_a_users_content_is_never_judged_by_the_mark(content):
    run(
        "ext4",
        f"""
path = without_record()
with open(path, "r+b") as file:
    file.write({content!r})
restart()
found = semlock.status(path)
assert found.verdict != "dead", found
assert found.instance.boot_mark == 0
assert not semlock.Lock(path).try_acquire()
semlock.clean(".")
assert open(path, "rb").read() == {content!r}
""",
    )


def test_what_was_changed_in_this_boot_is_not_dead():
    run("ext4", "path = without_record(); restart(later=-3600); blocks(path)")


def test_what_a_process_uses_by_flock_or_holds_by_its_witness_is_not_removed():
    run(
        "ext4",
        """
import fcntl
path = without_record()
held = new("held.lock")
held.acquire()
os.truncate(held.path, 0)
restart()
assert semlock.status(held.path).verdict == "alive"
assert not semlock.Lock(held.path).try_acquire()
with open(path, "rb") as other:
    fcntl.flock(other, fcntl.LOCK_EX)
    assert not semlock.Lock(path).try_acquire()
    assert semlock.clean(".") == []
is_dead(path)
assert [gone.path for gone in semlock.clean(".")] == [path]
assert os.path.exists(held.path)
""",
    )


def test_cleaning_needs_a_name_of_locks_too():
    run(
        "ext4",
        """
paths = [without_record(name) for name in ("a.lock", "notes.txt", "b.lock")]
kept = without_record("c.lock", size=200)
private = os.path.abspath(f".semlock-{os.stat(kept).st_ino:016x}.kept")
os.rename(kept, private)
restart()
gone = sorted(one.path for one in semlock.clean("."))
assert gone == sorted([paths[0], paths[2], private]), gone
assert semlock.Lock(paths[1]).try_acquire()  # a program that names it may take it
""",
    )


def test_a_reader_without_a_record_keeps_no_writer_out():
    run(
        "ext4",
        """
shared = semlock.SharedLock(os.path.abspath("shared.lock"))
shared.acquire_shared()
(reader,) = shared._readers.values()
assert os.listxattr(reader.path) == [MARK]
os.truncate(reader.path, 0)
capi.forget_lock(reader._native, capi.POOL)
assert not semlock.SharedLock("shared.lock").try_acquire()
restart()
assert semlock.SharedLock("shared.lock").try_acquire()
""",
    )


def test_an_ext4_without_a_journal_is_synced():
    run("ext4", ANEW.format(options=["-O", "^has_journal"]) + "is_synced()")


REFUSED_ONCE = """
for error in ("EOPNOTSUPP", "ENOSYS", "EPERM", "EACCES", "ENOSPC", "EDQUOT", "EINVAL", "ERANGE"):
    calls = traced('''
import os, semlock
for marked in (0, 1):
    with semlock.Lock(os.path.abspath("a.lock")) as lock:
        assert lock._native.file.marked == marked
''', "fsync,fsetxattr", f"fsetxattr:error={error}:when=1")
    assert [line.split()[1].split("(")[0] for line in calls.splitlines() if "(" in line] == [
        "fsetxattr", "fsync", "fsetxattr"], (error, calls)
"""


def test_where_the_mark_is_refused_the_file_is_synced_and_the_next_one_is_marked():
    run("ext4", REFUSED_ONCE)


@pytest.mark.parametrize("error", ["ENOTTY", "EINVAL"])
def test_where_the_inodes_generation_is_not_told_the_file_is_synced(error):
    run("ext4", f"is_synced('ioctl:error={error}')")


@pytest.mark.parametrize("kind", ["overlay", "vfat", "bindfs"])
def test_a_filesystem_whose_order_is_not_known_is_synced(kind):
    run(kind, "is_synced()")


def test_no_room_for_the_attribute_is_no_error():
    """Small inodes have no room for attributes, so that each needs a block of its own."""
    run(
        "ext4",
        ANEW.format(options=["-I", "128", "-b", "1024", "-m", "0"])
        + """
held = [new("first.lock")]
held[0].acquire()
assert held[0]._native.file.marked
with open("ballast", "wb", buffering=0) as ballast:
    try:
        while True:
            ballast.write(bytes(65536))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    ballast.truncate(os.path.getsize("ballast") - 20 * 1024)
seen = set()
for number in range(60):
    lock = new(f"{number}.lock")
    try:
        lock.acquire()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert not os.path.exists(lock.path)
        seen.add("full")
    else:
        seen.add(bool(lock._native.file.marked))
        held.append(lock)
assert {"full", True} <= seen, seen
for lock in held:
    lock.release()
""",
    )
