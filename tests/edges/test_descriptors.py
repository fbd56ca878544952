"""No number is used before the kernel says that it still is the file it was.

A daemon closes all descriptors, a program puts files of its own under any number: what has our
number then is theirs, and the lock is held all the same.
"""

import os
import sys
from pathlib import Path

import pytest

import semlock
from support import Child, mounted, wait_until, watched_by

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="/proc says what is open under a number"
)

BYTES = b"a database, page one\n" * 50

SETUP = """
import fcntl, os, semlock
from semlock._core import capi

def number_of(lock):
    return lock._native.file.handle

def kept_numbers():
    return [slot.file.handle for slot in capi.POOL.slots if slot.state == 1]

def put_database_at(number):
    opened = os.open(database, os.O_RDWR)
    os.dup2(opened, number)
    os.close(opened)

def is_database(number):
    try:
        return os.path.samestat(os.fstat(number), os.stat(database))
    except OSError:
        return False
"""


@pytest.fixture
def database(tmp_path):
    """A file of the user's, of which not one byte may change."""
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "database"
    file.write_bytes(BYTES)
    yield file
    assert file.read_bytes() == BYTES
    assert file.stat().st_nlink == 1


@pytest.fixture
def program(tmp_path, database):
    setup = SETUP + f"directory = {str(tmp_path)!r}\ndatabase = {str(database)!r}\n"
    with Child(setup) as child:
        yield child


def taken_by_another(path):
    other = semlock.Lock(path)
    if other.try_acquire():
        other.release()
        return True
    return False


@pytest.mark.parametrize("reused", [True, False], ids=["reused", "closed"])
@pytest.mark.parametrize("act", ["refresh", "check", "release"])
def test_a_held_lock_outlives_its_descriptor(program, path, reused, act):
    program.run(f"lock = semlock.Lock({path!r}); _ = lock.acquire(); number = number_of(lock)")
    program.run("put_database_at(number)" if reused else "os.closerange(number, 1000)")
    found = semlock.status(path)
    assert (found.verdict, "held until it ends" in found.evidence) == ("alive", True)
    assert not taken_by_another(path)
    program.run(f"lock.{act}()")
    if act == "release":
        assert not os.path.exists(path)
    else:
        # Containers, which know nothing of its number, see it alive again.
        assert semlock.status(path).evidence == "its holder keeps the kernel's lock on it"
        program.run("lock.release()")
        assert not os.path.exists(path)
    if reused:
        assert program.run("is_database(number)")


def test_a_lost_lock_whose_descriptor_is_lost_too_is_told(program, path):
    program.run(
        f"lock = semlock.Lock({path!r}); lock.acquire(); os.closerange(number_of(lock), 1000)"
    )
    os.unlink(path)
    with semlock.Lock(path):
        for act in ("check", "refresh", "release"):
            with pytest.raises(semlock.LockLostError):
                program.run(f"lock.{act}()")
        assert semlock.status(path).info.pid == os.getpid()


def test_a_kept_claim_never_writes_to_what_has_its_number(program, path, database, names):
    program.run("""
for _ in range(2):
    with semlock.Lock(directory + "/x.lock"): pass
(number,) = kept_numbers()
put_database_at(number)
""")
    program.run(f"lock = semlock.Lock({path!r}); _ = lock.acquire()")
    assert semlock.status(path).info.pid == program.pid
    assert program.run("is_database(number)")
    program.run("lock.release()")
    assert program.finish() == 0
    assert names() == ["own"]


def test_at_exit_only_what_is_ours_is_closed_and_removed(program, path, names):
    program.run("""
for name in ("a", "b", "c"):
    with semlock.Lock(f"{directory}/{name}.lock"): pass
for number in kept_numbers():
    put_database_at(number)
""")
    assert program.finish() == 0
    assert names() == ["own"]


def test_a_child_closes_no_descriptor_that_is_not_ours_any_more(program, path):
    program.run(f"lock = semlock.Lock({path!r}); _ = lock.acquire(); number = number_of(lock)")
    assert program.run("""
put_database_at(number)
child = os.fork()
if child == 0:
    os._exit(0 if is_database(number) else 1)
os.waitpid(child, 0)[1]
""") == 0  # fmt: skip


def test_a_file_of_the_same_number_on_another_filesystem_is_not_ours(program, tmp_path):
    """Each filesystem in memory numbers its files from the same number on."""
    with (
        mounted(tmp_path, "tmpfs", "", "one") as one,
        mounted(tmp_path, "tmpfs", "", "two") as two,
    ):
        program.run(f"lock = semlock.Lock({one!r} + '/the.lock'); _ = lock.acquire()")
        wanted = os.stat(os.path.join(one, "the.lock")).st_ino
        for name in range(100):
            (theirs := Path(two, str(name))).write_bytes(b"")
            if theirs.stat().st_ino == wanted:
                break
        else:
            pytest.skip("the numbers are given in another way here")
        assert program.run(f"""
number = number_of(lock)
database = {str(theirs)!r}
put_database_at(number)
child = os.fork()
if child == 0:
    os._exit(0 if is_database(number) else 1)
os.waitpid(child, 0)[1]
""") == 0  # fmt: skip
        program.run("lock.check(); lock.release()")
        assert program.run("is_database(number)")
        program.run("os.close(number)")


def test_no_descriptor_below_three_is_kept_or_used(program):
    # Its answers go through a copy of descriptor 1.
    program.run("""
saved = [os.dup(n) for n in range(3)]
for n in range(3):
    os.close(n)
try:
    locks = [semlock.Lock(f"{directory}/{i}.lock") for i in range(4)]
    for lock in locks:
        lock.acquire()
    lowest = min(number_of(lock) for lock in locks)
    for lock in locks:
        lock.refresh(); lock.check(); lock.release()
    free = []
    for n in range(3):
        try:
            os.fstat(n)
        except OSError:
            free.append(n)
finally:
    for n in range(3):
        os.dup2(saved[n], n)
""")
    assert program.run("lowest >= 3, free") == (True, [0, 1, 2])


def test_a_wait_whose_events_are_closed_ends_with_the_lock_all_the_same(program, path):
    with semlock.Lock(path) as held:
        program.run(f"""
first = semlock.Lock({path!r})
assert not first.try_acquire()
try:
    first.acquire(timeout=0.05)
except semlock.LockTimeoutError:
    pass
idle = [events - 1 for events in capi.POOL.idle_events if events > 0]
for number in idle:
    put_database_at(number)
""")
        assert program.run("len(idle)") == 1
        program.send("first.acquire(timeout=20); first.info.pid")
        assert not program.answered(0.1)
        held.release()
        assert program.receive() == program.pid
        assert program.run("all(map(is_database, idle))")
        program.run("first.release()")
        held.acquire()


def test_the_token_is_compared_before_a_lock_without_a_descriptor_is_let_go(path):
    """An inode number passes to another file: here another's record comes into the same one."""
    lock = semlock.Lock(path)
    lock.acquire()
    os.close(lock._native.file.handle)
    with open(path, "rb") as file:
        theirs = bytearray(file.read())
    at = lock._record.token_at
    theirs[at : at + 32] = b"f" * 32
    with open(path, "r+b") as file:
        file.write(theirs)
    for act in (lock.check, lock.refresh, lock.release):
        with pytest.raises(semlock.LockLostError):
            act()
    with open(path, "rb") as file:
        assert file.read() == bytes(theirs)


@pytest.mark.leaves("queue")  # a lock that was won by waiting keeps its ticket
@pytest.mark.parametrize("taken", [True, False], ids=["a pipe has its number", "it is closed"])
def test_a_wait_that_lost_its_descriptors_reads_nothing_of_others_and_does_not_spin(
    program, tmp_path, taken
):
    with semlock.Lock(tmp_path / "the.lock") as held:
        program.run(
            "import threading, time\n"
            f"lock = semlock.Lock({held.path!r})\n"
            "thread = threading.Thread(target=lock.acquire)\n"
            "thread.start()"
        )
        wait_until(lambda: list(tmp_path.glob(".semlock-*.queue/*")), "it stands in the queue")
        wait_until(lambda: watched_by(program.pid), "it watches the lock")
        spent = program.run(
            "reader, writer = os.pipe()\n"
            "os.write(writer, b'theirs')\n"
            "for number in map(int, os.listdir('/proc/self/fd')):\n"
            "    try:\n"
            "        to = os.readlink(f'/proc/self/fd/{number}')\n"
            "    except OSError:\n"
            "        continue\n"
            "    if 'inotify' in to or '.queue/' in to:\n"
            f"        os.dup2(reader, number) if {taken} else os.close(number)\n"
            "before = time.process_time()\n"
            "time.sleep(0.3)\n"
            "time.process_time() - before"
        )
        assert spent < 0.03
    assert program.run("thread.join(10), lock.held") == (None, True)
    assert program.run("os.read(reader, 100)") == b"theirs"


WRITTEN = {
    "open_atomic": "semlock.open_atomic(target, 'w')",
    "open_atomic, bytes": "semlock.open_atomic(target, 'wb')",
    "open_locked": "semlock.open_locked(target, 'r+')",
}


@pytest.mark.parametrize("reused", [True, False], ids=["reused", "closed"])
@pytest.mark.parametrize("how", WRITTEN)
def test_a_buffer_is_never_written_to_what_has_the_files_number(program, tmp_path, how, reused):
    target = tmp_path / "target"
    target.write_text("as it was")
    text = b"new" if "bytes" in how else "new"
    program.run(
        f"target = {str(target)!r}\ntold = None\ntry:\n"
        f"    with {WRITTEN[how]} as file:\n"
        f"        _ = file.write({text!r}); number = file.fileno()\n"
        f"        {'put_database_at(number)' if reused else 'os.close(number)'}\n"
        "except (OSError, semlock.LockLostError) as error:\n    told = repr(error)\n"
        "del file; import gc; _ = gc.collect()"
    )
    assert "was closed" in program.run("told")
    assert program.run("is_database(number)") == reused
    assert target.read_text() == "as it was"
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize("how", WRITTEN)
def test_a_forked_child_writes_nothing_of_what_its_parent_has_in_a_buffer(
    program, tmp_path, how
):
    target = tmp_path / "target"
    target.write_text("abc")
    text = b"new" if "bytes" in how else "new"
    program.run(
        f"target = {str(target)!r}\nchild = None\ntry:\n"
        f"    with {WRITTEN[how]} as file:\n"
        f"        _ = file.write({text!r}); child = os.fork()\n"
        "        if child: _ = os.waitpid(child, 0)\n"
        "finally:\n    if child == 0: os._exit(0)"
    )
    assert target.read_text() == "new"


def test_a_kernel_lock_whose_descriptor_was_closed_is_lost_and_says_why(program, tmp_path):
    file = tmp_path / "kernel"
    program.run(
        f"lock = semlock.KernelLock({str(file)!r}); _ = lock.acquire()\n"
        "number = number_of(lock); put_database_at(number)\ntold = []\n"
        "for act in (lock.check, lock.release):\n"
        "    try: act()\n    except semlock.LockLostError as error: told.append(str(error))"
    )
    told = program.run("told")
    assert len(told) == 2
    assert "closed its descriptor" in told[0]
    assert "no process has locked it now" in told[0]
    assert program.run("is_database(number)")
    assert semlock.KernelLock(file).status().state == "free"
