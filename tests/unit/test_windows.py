"""What Windows does otherwise than POSIX, and what must come out the same on both."""

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import AsyncLock
from semlock._core import capi, waits
from semlock._core.append import open_to_append
from semlock._core.status import remove_exactly
from semlock._waiting import hub
from support import WINE, Child, content_of, share, wait_until

windows = pytest.mark.skipif(sys.platform != "win32", reason="it is about Windows")

ROUNDS = 4  # the first releases delete the file, and later ones keep it


@pytest.fixture
def dead(path):
    """Leave the lock of a process that was killed."""
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        child.kill()
    return path


def test_a_file_that_is_removed_leaves_its_name_at_once_but_in_wine(path, names):
    """For support.take_away(): what Wine does is taken from here, and not from memory."""
    Path(path).write_text("x")
    with open(path, "rb", opener=share):
        os.unlink(path)
        assert names() == (["the.lock"] if WINE else [])
        if WINE:
            assert content_of(path) == b"x"
            with pytest.raises(FileExistsError):
                Path(path).touch(exist_ok=False)
    assert names() == []


def test_who_may_only_append_writes_at_the_end_wherever_it_stands(path):
    one, other = (open_to_append(path, 0o644) for _ in range(2))
    try:
        for number in range(3):
            for descriptor in (one, other):
                os.lseek(descriptor.fd, 0, os.SEEK_SET)
                os.write(descriptor.fd, b"%d\n" % number)
    finally:
        one.close()
        other.close()
    assert Path(path).read_bytes() == b"0\n0\n1\n1\n2\n2\n"


# ---------------------------------------------------------------------- who reads it


def test_a_reader_that_keeps_it_open_blocks_no_release(path):
    lock = semlock.Lock(path)
    readers = []
    try:
        for _ in range(ROUNDS):
            with lock:
                readers.append(open(path, "rb", opener=share))
                assert readers[-1].read() == content_of(path)
            assert not os.path.exists(path)
    finally:
        for reader in readers:
            reader.close()


def test_a_reader_that_keeps_it_open_blocks_no_reclaim(dead):
    with open(dead, "rb", opener=share) as reader:
        with semlock.Lock(dead, timeout=0):
            assert reader.read() != content_of(dead)


def test_a_reader_blocks_no_remove(dead):
    with open(dead, "rb", opener=share):
        assert semlock.remove(dead).state == "stale"
        assert not os.path.exists(dead)


@windows
def test_a_reader_that_shares_no_deletion_is_waited_for(dead):
    # open() is such a reader.  The file can't be deleted while it has it, and that is told.
    found = semlock.status(dead)
    with open(dead, "rb"):
        assert semlock.Lock(dead).try_acquire() is False
        with pytest.raises(semlock.LockTimeoutError, match="be removed now"):
            remove_exactly(found, os.fsencode(dead), robs=False, patience=0.01)
    with semlock.Lock(dead, timeout=0):
        pass


@windows
def test_who_shares_no_deletion_does_not_get_a_held_lock_open(path):
    with semlock.Lock(path):
        with pytest.raises(PermissionError):
            open(path, "rb")
        assert semlock.status(path).state == "held"


def test_a_file_that_was_touched_since_is_not_the_one_that_was_judged(path):
    with open(path, "w") as file:
        file.write("pid=1\ntimestamp=1\n")
    found = semlock.status(path)
    os.utime(path, (1, 1))
    assert remove_exactly(found, os.fsencode(path), robs=True) is False
    assert os.path.exists(path)
    assert remove_exactly(semlock.status(path), os.fsencode(path), robs=True) is True


def test_a_file_that_is_only_to_be_read_can_be_removed(path):
    with open(path, "w") as file:
        file.write("pid=1\ntimestamp=1\n")
    os.chmod(path, 0o444)
    assert semlock.remove(path, force=True).state == "held"
    assert not os.path.exists(path)


# ---------------------------------------------------------------------- who is denied


@pytest.fixture
def closed(tmp_path):
    """Make a directory in which no file can be made, or skip where that can't be had."""
    directory = tmp_path / "closed"
    directory.mkdir()
    everybody = "*S-1-1-0"
    if sys.platform == "win32":
        command = ["icacls", str(directory), "/deny", f"{everybody}:(WD,AD)"]
        subprocess.run(command, check=False, capture_output=True)
    else:
        directory.chmod(0o500)
    try:
        (directory / "probe").touch()
    except PermissionError:
        yield directory
    else:
        pytest.skip("nothing is denied to who runs the tests")
    finally:
        if sys.platform == "win32":
            command = ["icacls", str(directory), "/remove:d", everybody]
            subprocess.run(command, check=False, capture_output=True)
        directory.chmod(0o700)


def test_a_denied_directory_is_an_error_and_no_contention(closed):
    lock = semlock.Lock(closed / "the.lock")
    for take in (lock.try_acquire, lock.acquire, lambda: lock.acquire(timeout=30)):
        with pytest.raises(PermissionError):
            take()
    assert os.listdir(closed) == []


@pytest.fixture
def leaving(path):
    """Leave a file that is deleted already, and there until its last handle is closed."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.CreateFileW.restype = ctypes.c_void_p
    with open(path, "w"):
        pass
    delete, open_existing = 0x10000, 3
    handle = ctypes.c_void_p(
        kernel.CreateFileW(path, delete, 7, None, open_existing, 0x80, None)
    )
    disposition = 4  # without the semantics of POSIX
    assert kernel.SetFileInformationByHandle(handle, disposition, b"\1", 1)
    gone = []

    def go():
        if not gone:
            gone.append(kernel.CloseHandle(handle))

    yield go
    go()


@windows
def test_what_is_deleted_and_still_open_is_contention_and_no_error(path, leaving):
    lock = semlock.Lock(path)
    assert lock.try_acquire() is False
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=0.05)
    leaving()
    with lock.acquire(timeout=0):
        assert lock.held


@windows
def test_a_wait_ends_when_what_is_deleted_is_closed(path, leaving):
    entered = threading.Event()

    def wait():
        with semlock.Lock(path, timeout=30):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not entered.wait(0.1)
    leaving()
    assert entered.wait(30)
    thread.join()


@windows
def test_an_error_says_what_windows_says_of_it(path):
    error = capi.os_error(-5, path)
    assert isinstance(error, PermissionError)
    assert (error.winerror, error.filename) == (5, path)
    assert error.strerror.rstrip(".") == ctypes.FormatError(5).rstrip(".")


# ---------------------------------------------------------------------- asyncio


@pytest.fixture
def deaf(monkeypatch):
    """Let no loop hear of anything, as on Windows, so that waits pause and look."""
    monkeypatch.setattr(waits, "take_events", lambda pool: -1)


async def elsewhere(function):
    """Run a function in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


def test_a_task_waits_without_hearing(path, deaf):
    async def main():
        holder = semlock.Lock(path)
        holder.acquire()
        waiting = asyncio.create_task(AsyncLock(path).acquire(timeout=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert hub.hub_here().events == -1
        assert len(hub.hub_here().waits) == 1
        holder.release()
        async with await waiting:
            assert semlock.status(path).verdict == "alive"
        assert not hub.hub_here().waits

    asyncio.run(main())
    assert not os.path.exists(path)


def test_a_task_that_does_not_hear_is_in_time_and_can_be_cancelled(path, deaf):
    async def main():
        with semlock.Lock(path):
            with pytest.raises(semlock.LockTimeoutError):
                await asyncio.create_task(AsyncLock(path).acquire(timeout=0.05))
            waiting = asyncio.create_task(AsyncLock(path).acquire())
            await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not hub.hub_here().waits
        with semlock.Lock(path, timeout=0):
            pass

    asyncio.run(main())


def test_a_task_that_does_not_hear_sees_a_holder_die(path, deaf):
    async def main(child):
        waiting = asyncio.create_task(AsyncLock(path).acquire(timeout=30))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await elsewhere(child.kill)
        async with await waiting:
            pass

    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        asyncio.run(main(child))


def test_tasks_that_do_not_hear_all_get_it(path, deaf):
    inside, most, count = 0, 0, 0

    async def work():
        nonlocal inside, most, count
        lock = AsyncLock(path, durability="none")
        for _ in range(5):
            async with lock:
                inside += 1
                most = max(most, inside)
                count += 1
                await asyncio.sleep(0)
                inside -= 1

    async def main():
        await asyncio.gather(*(work() for _ in range(6)))

    asyncio.run(main())
    assert (most, count) == (1, 30)
    assert not os.path.exists(path)


# ---------------------------------------------------------------------- a small storm

# Each writes down whether it was alone, by a lock of the kernel's on another file, which goes
# with the process as its lock does.  Its death may drop the one just after the other.
WORKER = """
import os, random, sys, time, semlock
if sys.platform == "win32":
    import msvcrt
    def try_bailiff(fd): msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    def let_bailiff(fd): os.lseek(fd, 0, 0); msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl
    def try_bailiff(fd): fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    def let_bailiff(fd): fcntl.lockf(fd, fcntl.LOCK_UN)

def alone(fd):
    for _ in range(5):
        try:
            os.lseek(fd, 0, 0)
            try_bailiff(fd)
            return True
        except OSError:
            time.sleep(0.002)
    return False

def work(path, beside):
    bailiff = os.open(os.path.join(beside, "bailiff"), os.O_RDWR | os.O_CREAT)
    lock = semlock.Lock(path, durability="none", fair=random.random() < 0.3)
    while True:
        with lock:
            if not alone(bailiff):
                open(os.path.join(beside, f"wrong.{os.getpid()}"), "w").close()
            open(os.path.join(beside, f"won.{os.getpid()}"), "w").close()
            time.sleep(random.random() * 0.03)
            let_bailiff(bailiff)
        time.sleep(random.random() * 0.002)
"""


def test_one_holder_at_most_whatever_is_killed(tmp_path):
    locks, beside = tmp_path / "locks", tmp_path / "beside"
    locks.mkdir()
    beside.mkdir()
    path = str(locks / "the.lock")
    workers = []

    def raise_one():
        workers.append(Child(WORKER))
        workers[-1].send(f"work({path!r}, {str(beside)!r})")

    try:
        for _ in range(4):
            raise_one()
        for number in range(8):
            time.sleep(0.05 + number * 0.007)
            victim = workers.pop(0)
            victim.kill()
            victim.close()
            raise_one()
        wait_until(
            lambda: len([n for n in os.listdir(beside) if n[:3] == "won"]) > 4, "all work"
        )
    finally:
        for worker in workers:
            worker.close()
    assert [name for name in os.listdir(beside) if name.startswith("wrong")] == []
    with semlock.Lock(path, timeout=5):
        pass

    def is_clean():
        semlock.clean(locks)
        return os.listdir(locks) == []

    # What was killed before it wrote its record may have been made by one that lives.
    wait_until(is_clean, "even that has gone, after the time of grace")


LOCKS_THE_BYTE = """
import msvcrt, os
fd = os.open({!r}, os.O_RDWR | os.O_CREAT)
def lock():
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
def unlock():
    os.lseek(fd, 0, os.SEEK_SET)
    msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
"""


@windows
def test_a_kernel_lock_and_msvcrt_exclude_each_other(path):
    lock = semlock.KernelLock(path)
    with Child() as child:
        child.run(LOCKS_THE_BYTE.format(path))
        with lock:
            assert child.run("lock()") is False
            assert lock.status().info == lock.info
        assert child.run("lock()")
        assert not lock.try_acquire()
        assert lock.status().state == "held"
        thread = threading.Thread(target=lock.acquire, args=(30,))
        thread.start()
        child.run("unlock()")
        thread.join()
        lock.release()
        assert child.run("lock()")
        child.kill()
    with lock.acquire(timeout=30):
        pass
    assert os.path.exists(path)


@windows
def test_readers_of_a_kernel_lock_share_it(path):
    lock = semlock.KernelLock(path)
    with lock.shared(), lock.shared():
        assert not lock.try_acquire()
    with lock:
        assert not lock.shared().try_acquire()
