"""``KernelLock``: what is its own beside what all locks do (``tests/behaviour``)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import threading
import time

import pytest

import semlock
from semlock._core import capi
from semlock._core.folders import queue_of, tickets
from support import Child, wait_until

fcntl = pytest.importorskip("fcntl", reason="the tests of Windows' form are in test_windows.py")

HOLD = "import fcntl, os; fd = os.open({!r}, os.O_RDWR | os.O_CREAT); fcntl.flock(fd, fcntl.{})"


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the.lock")


@pytest.fixture
def stranger():
    with Child() as child:
        yield child


def excluded(path, kind=fcntl.LOCK_EX):
    """Whether a program that calls flock itself is kept out."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_it_excludes_programs_that_call_flock(path):
    lock = semlock.KernelLock(path)
    with lock:
        assert excluded(path)
        assert excluded(path, fcntl.LOCK_SH)
    assert not excluded(path)


def test_the_file_stays_with_its_content_and_its_inode(path):
    with open(path, "w") as file:
        file.write("what others wrote")
    before = os.stat(path)
    with semlock.KernelLock(path) as lock:
        lock.check()
        lock.refresh()
    after = os.stat(path)
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )


def test_a_program_that_calls_flock_is_waited_for_and_named(path, stranger):
    stranger.run(HOLD.format(path, "LOCK_EX"))
    lock = semlock.KernelLock(path)
    assert not lock.try_acquire()
    found = lock.status()
    assert (found.state, found.verdict, found.info.pid) == ("held", "alive", stranger.pid)
    assert [one.pid for one in found.holders] == [stranger.pid]
    with pytest.raises(
        semlock.LockTimeoutError, match=f"process {stranger.pid}.*kernel's lock"
    ):
        lock.acquire(timeout=0.05)
    stranger.run("os.close(fd)")
    with lock.acquire(timeout=10):
        assert lock.status().info == lock.info


@pytest.mark.parametrize("end", ["os.close(fd)", "fcntl.flock(fd, fcntl.LOCK_UN)", None])
def test_its_end_wakes_a_waiter(path, stranger, end, request):
    capi.set_safety(1000)  # the look that waits make without any reason comes too late here
    request.addfinalizer(lambda: capi.set_safety(0))
    stranger.run(HOLD.format(path, "LOCK_EX"))
    lock = semlock.KernelLock(path)
    thread = threading.Thread(target=lock.acquire, args=(30,))
    thread.start()
    time.sleep(0.1)
    assert not lock.held
    began = time.monotonic()
    if end is None:
        stranger.kill()
    else:
        stranger.run(end)
    thread.join()
    # An unlock without a close is no event: that is found out by the clock.
    assert time.monotonic() - began < 5
    assert lock.held
    lock.release()


def test_readers_share_it_and_keep_writers_out(path):
    lock = semlock.KernelLock(path)
    with lock.shared() as one, lock.shared() as two:
        assert one.is_shared
        assert two.held
        assert not lock.try_acquire()
        assert not excluded(path, fcntl.LOCK_SH)
        assert excluded(path)
        assert all(holder.shared for holder in lock.status().holders)
        with pytest.raises(semlock.LockDeadlockError):
            lock.acquire(timeout=1)
    with lock:
        assert not lock.shared().try_acquire()


def test_a_reader_that_reads_again_does_not_wait_behind_a_writer(path):
    lock = semlock.KernelLock(path)
    writer = semlock.KernelLock(path, fair=True)
    with lock.shared():
        thread = threading.Thread(target=writer.acquire, args=(30,))
        thread.start()
        wait_until(lambda: waiting(path) == 1, "the writer stands in the queue")
        with lock.shared().acquire(timeout=10):
            pass
        assert not writer.held
    thread.join()
    writer.release()


def waiting(path):
    """How many stand in the queue."""
    try:
        return len(tickets(queue_of(path)))
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize(
    "name", ["{}", "{}/", "{}/.", "{}/sub/..", ".", "./", "sub/..", "sub/../"]
)
def test_a_directory_can_be_locked_by_each_of_its_names(tmp_path, monkeypatch, name):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    lock = semlock.KernelLock(name.format(tmp_path))
    with lock:
        assert lock.path == str(tmp_path)
        assert excluded(tmp_path)
        assert not semlock.KernelLock(tmp_path).try_acquire()
    assert os.listdir(tmp_path) == ["sub"]


def test_the_root_can_be_locked_and_gets_no_queue():
    # Shared: this directory is not this test's.
    with semlock.KernelLock("/", shared=True) as lock:
        assert lock.path == "/"
        assert excluded("/")
        assert lock.status().state == "held"
        assert not semlock.KernelLock("/").try_acquire()
        fd = os.open("/", os.O_RDONLY)
        try:
            with semlock.KernelLock.from_fd(fd, shared=True):
                pass
        finally:
            os.close(fd)


def test_a_file_that_is_only_read_can_be_locked(path):
    with open(path, "w"):
        pass
    os.chmod(path, 0o444)
    with semlock.KernelLock(path):
        assert excluded(path)


def test_a_symbolic_link_is_refused(path):
    os.symlink("elsewhere", path)
    with pytest.raises(semlock.LockPathError, match="symbolic link") as told:
        semlock.KernelLock(path).acquire()
    assert told.value.errno == errno.ELOOP
    assert not os.path.exists(path)
    circle = f"{path}.circle"
    os.symlink(circle, circle)
    with pytest.raises(OSError, match="Too many levels") as told:
        semlock.KernelLock(f"{circle}/a").acquire()
    assert not isinstance(told.value, semlock.LockPathError)  # "a" is no symbolic link


def test_a_fifo_and_a_device_are_not_opened_for_writing(path):
    os.mkfifo(path)
    for place in (path, "/dev/null"):
        with semlock.KernelLock(place) as lock:
            assert fcntl.fcntl(lock.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_two_names_of_one_file_are_one_lock(path):
    with semlock.KernelLock(path):
        os.link(path, f"{path}.too")
        assert not semlock.KernelLock(f"{path}.too").try_acquire()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_is_a_lost_lock(path, replaced):
    lock = semlock.KernelLock(path).acquire().__enter__()
    os.unlink(path)
    other = semlock.KernelLock(path)
    assert not replaced or other.try_acquire()
    with pytest.raises(semlock.LockLostError):
        lock.check()
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert not lock.held
    assert not replaced or other.release() is None


def test_a_file_that_is_removed_while_it_is_waited_for_is_made_anew(path, stranger):
    stranger.run(HOLD.format(path, "LOCK_EX"))
    lock = semlock.KernelLock(path)
    thread = threading.Thread(target=lock.acquire, args=(30,))
    thread.start()
    time.sleep(0.1)
    os.unlink(path)
    thread.join()
    assert lock.held
    assert excluded(path)
    lock.release()


def test_the_descriptor_is_lent_while_it_is_held(path):
    lock = semlock.KernelLock(path)
    with pytest.raises(semlock.NotHeldError):
        lock.fileno()
    with lock:
        assert os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
        os.write(lock.fileno(), b"written at the beginning")
    with open(path, "rb") as file:
        assert file.read() == b"written at the beginning"


def test_removing_the_file_before_its_release_cause_no_second_holder(path):
    inside, overlaps, ended = [], [], threading.Event()

    def hold():
        lock = semlock.KernelLock(path)
        while not ended.is_set():
            with contextlib.suppress(semlock.LockLostError), lock:
                inside.append(1)
                time.sleep(0)
                if len(inside) > 1:
                    overlaps.append(len(inside))
                inside.pop()

    def remove():
        for _ in range(150):
            with contextlib.suppress(semlock.LockLostError), semlock.KernelLock(path):
                os.unlink(path)
            time.sleep(0.0005)
        ended.set()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    threads.append(threading.Thread(target=remove))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []


# ---------------------------------------------------------------- a descriptor of the caller


def test_a_descriptor_of_the_caller_is_locked_and_stays_open(path):
    with open(path, "w") as file:
        lock = semlock.KernelLock.from_fd(file)
        assert lock.path == path
        with lock:
            assert lock.fileno() == file.fileno()
            assert excluded(path)
            assert not semlock.KernelLock(path).try_acquire()
        assert not excluded(path)
        assert os.fstat(file.fileno())
        del lock
        assert os.fstat(file.fileno())


def test_objects_of_one_descriptor_exclude_each_other(path):
    with open(path, "w") as file:
        one, two = (semlock.KernelLock.from_fd(file) for _ in range(2))
        copy = os.dup(file.fileno())
        third = semlock.KernelLock.from_fd(copy)
        with one:
            assert not two.try_acquire()
            assert not third.try_acquire()
            assert not one.shared().try_acquire()
        with two:
            assert not one.try_acquire()
        with one.shared(), two.shared():
            assert not excluded(path, fcntl.LOCK_SH)
            assert excluded(path)
        assert not excluded(path)
        os.close(copy)


def test_a_descriptor_is_waited_for(path, stranger):
    stranger.run(HOLD.format(path, "LOCK_EX"))
    with open(path) as file:
        os.unlink(path)  # no path leads to it any more
        lock = semlock.KernelLock.from_fd(file)
        thread = threading.Thread(target=lock.acquire, args=(30,))
        thread.start()
        time.sleep(0.05)
        stranger.run("os.close(fd)")
        thread.join()
        assert lock.held
        lock.release()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (-1, ValueError),
        (-(2**70), ValueError),
        (True, TypeError),
        ("9", TypeError),
        (None, TypeError),
        (1.0, TypeError),
        (2**31, OSError),
        (2**70, OSError),
    ],
)
def test_what_is_no_descriptor_is_told(wrong, error):
    with pytest.raises(error):
        semlock.KernelLock.from_fd(wrong)


def test_a_descriptor_that_is_not_open_is_told(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    lock = semlock.KernelLock.from_fd(fd)
    os.close(fd)
    with pytest.raises(OSError, match="not open"):
        lock.acquire()


# ---------------------------------------------------------------- processes


def test_a_child_holds_nothing_and_ends_nothing(path):
    lock = semlock.KernelLock(path)
    with lock:
        number = lock.fileno()
        pid = os.fork()
        if pid == 0:
            try:
                fine = not lock.held and not semlock.KernelLock(path).try_acquire()
                try:
                    os.fstat(number)
                    fine = False  # the copy must be closed: it would keep the lock
                except OSError:
                    pass
            finally:
                os._exit(0 if fine else 1)
        assert os.waitpid(pid, 0)[1] == 0
        lock.check()
        assert excluded(path)
    assert not excluded(path)


def test_a_release_ends_the_lock_although_a_program_inherited_it(path):
    lock = semlock.KernelLock(path)
    with lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])
    try:
        assert not excluded(path)
    finally:
        child.kill()
        child.wait()


def test_a_process_that_inherited_the_lock_of_one_that_has_ended_is_named(path):
    command = f"exec 9>{path}; flock 9; echo; read x"
    with subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        shell.stdout.readline()
        assert shell.pid in [one.pid for one in semlock.KernelLock(path).status().holders]
        shell.communicate(b"\n")


def test_without_proc_a_holder_is_seen_though_not_named(path, stranger, monkeypatch):
    monkeypatch.setattr("semlock._core.kernel_locks.PROC", "/nonexistent")
    lock = semlock.KernelLock(path)
    assert lock.status().state == "free"
    stranger.run(HOLD.format(path, "LOCK_EX"))
    found = lock.status()
    assert (found.state, found.info, found.holders) == ("held", None, ())
    with pytest.raises(semlock.LockTimeoutError, match=r"not visible here.*fuser"):
        lock.acquire(timeout=0)


# ---------------------------------------------------------------- the rest of the machinery


def test_any_and_all_of_several(tmp_path):
    one, two = (semlock.KernelLock(tmp_path / name) for name in "ab")
    plain = semlock.Lock(tmp_path / "c")
    with semlock.acquire_all([one, plain, two], timeout=5):
        assert one.held
        assert two.held
        others = [semlock.KernelLock(one.path), semlock.Lock(plain.path)]
        with pytest.raises(semlock.LockDeadlockError):
            semlock.acquire_any(others, timeout=0.05)
    with one:
        got = semlock.acquire_any([semlock.KernelLock(one.path), semlock.KernelLock(two.path)])
        assert got.path == two.path
        got.release()


def test_tasks_wait_in_the_order_in_which_they_asked(path):
    got = []

    async def hold(number):
        async with semlock.AsyncKernelLock(path, fair=True):
            got.append(number)
            await asyncio.sleep(0.001)

    async def main():
        async with semlock.AsyncKernelLock(path):
            tasks = []
            for number in range(20):
                tasks.append(asyncio.create_task(hold(number)))
                await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert got == sorted(got)


def test_tasks_read_together(path):
    async def main():
        lock = semlock.AsyncKernelLock(path)
        async with lock.shared(), lock.shared():
            assert not lock.try_acquire()
        async with lock:
            assert not lock.shared().try_acquire()

    asyncio.run(main())


def test_it_costs_nothing_while_it_is_not_used():
    code = "import semlock, sys; sys.exit('semlock._locks.kernel' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
