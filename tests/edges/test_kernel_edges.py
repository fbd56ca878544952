"""``KernelLock`` at its edges: no space, no descriptors, other users, exec, forks, namespaces."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
import time

import pytest

import semlock
import semlock.filelock as ours
from semlock._core import capi, kernel_locks
from support import Child, files_open_in, in_a_fork
from users import NOBODY, as_user, needs_root, shared

if not sys.platform.startswith("linux"):
    pytest.skip("it asks Linux for its faults", allow_module_level=True)

HOLD = "lock = semlock.KernelLock({!r}); lock.acquire(); None"


def works(*command) -> bool:
    """Tell whether a command can be run here."""
    return shutil.which(command[0]) is not None and (
        subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    )


def under_strace(call: str, error: str, path: str | None = None):
    """Give the wrapper of a process in which a system call fails."""
    words = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}"]
    words += ["-e", f"inject={call}:error={error}"]
    if path is not None:
        words += ["-P", path]
    if not works(*words):
        pytest.skip("strace is not there, or may not trace")
    return words


def is_free(path) -> bool:
    """Tell whether a program that calls flock could lock the file."""
    import fcntl

    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


# ---------------------------------------------------------------- what the system refuses


@pytest.mark.parametrize(
    ("call", "error"),
    [("openat", "ENOSPC"), ("openat", "EDQUOT"), ("openat", "EROFS"), ("openat", "EIO"),
     ("flock", "ENOLCK"), ("flock", "EIO"), ("openat", "EMFILE"), ("openat", "ENFILE")],
)  # fmt: skip
@pytest.mark.parametrize("timeout", [0, 5])
def test_an_error_of_the_system_is_raised_with_the_path_and_nothing_is_held(
    path, call, error, timeout
):
    if call == "flock":
        open(path, "x").close()  # or the core makes it, and strace does not know its name
    with Child(wrapper=under_strace(call, error, path)) as child:
        told = child.run(
            f"lock = semlock.KernelLock({path!r})\n"
            f"try:\n    lock.acquire(timeout={timeout})\n    told = None\n"
            "except OSError as error:\n    told = error.errno, error.filename, str(error)\n"
            "told"
        )
        assert told is not None
        assert told[:2] == (getattr(errno, error), path)
        assert not child.run("lock.held")
        assert child.run("lock.count") == 0
        assert files_open_in(os.path.dirname(path), child.outer_pid) == []
    assert os.path.exists(path) == (call == "flock")
    with semlock.KernelLock(path, timeout=0):
        pass


def test_an_error_about_locks_of_a_server_says_so(path):
    open(path, "x").close()
    with (
        Child(wrapper=under_strace("flock", "ENOLCK", path)) as child,
        pytest.raises(Exception, match="gives no kernel locks here"),
    ):
        child.run(f"semlock.KernelLock({path!r}).acquire(timeout=0)")


@pytest.mark.parametrize("is_there", [False, True])
def test_where_there_is_no_flock_nothing_is_left_and_filelocks_class_becomes_soft(
    path, is_there
):
    """A file that was only just made would be taken for one that is held, for ever."""
    with Child(wrapper=under_strace("flock", "ENOSYS")) as child:
        child.run("import warnings; warnings.simplefilter('ignore')")
        child.run(
            "import semlock.filelock as filelock, asyncio; from contextlib import suppress"
        )
        if is_there:
            open(path, "x").close()
        held = child.run(
            f"with suppress(OSError):\n    semlock.KernelLock({path!r}).acquire(timeout=5)\n"
            f"lock = filelock.FileLock({path!r})\n"
            "with suppress(filelock.Timeout):\n    lock.acquire(timeout=0 if "
            f"{is_there} else 20)\nlock.is_locked"
        )
        assert held is not is_there
        assert os.path.exists(path)
        if is_there:  # another program's
            return
        assert child.run("type(lock).__name__") == "SoftFileLock"
        with pytest.raises(ours.Timeout):
            ours.SoftFileLock(path).acquire(timeout=0)
        child.run("lock.release()")
        assert not os.path.exists(path)
        child.run(
            f"async def turn():\n    lock = filelock.AsyncFileLock({path!r})\n"
            "    async with lock:\n        return type(lock).__name__\n"
            "assert asyncio.run(turn()) == 'AsyncSoftFileLock'"
        )
        assert os.listdir(os.path.dirname(path)) == []


def test_a_full_disk_keeps_no_lock_from_a_file_that_is_there(path):
    """Without a place for the queue the fastest is next, and events wake all the same."""
    held = semlock.KernelLock(path)
    held.acquire()
    with Child(wrapper=under_strace("mkdir", "ENOSPC")) as child:
        child.send(
            f"import time; lock = semlock.KernelLock({path!r}); lock.acquire(timeout=20)\n"
            "time.monotonic()"
        )
        time.sleep(0.3)
        assert not any(name.endswith(".queue") for name in os.listdir(os.path.dirname(path)))
        held.release()
        released = time.monotonic()
        assert child.receive() - released < 5
        assert not is_free(path)
        child.run("lock.release()")
        assert is_free(path)


def test_a_process_without_descriptors_to_spare_says_so_and_can_wait(path):
    held = semlock.KernelLock(path)
    held.acquire()
    with Child() as child:
        child.run(
            f"import resource; lock = semlock.KernelLock({path!r})\n"
            "fds = []\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
            "try:\n    while True: fds.append(os.open('/dev/null', os.O_RDONLY))\n"
            "except OSError: pass\n"
        )
        told = child.run(
            "try:\n    lock.acquire(timeout=0); told = None\n"
            "except OSError as error: told = error.errno\ntold"
        )
        assert told == errno.EMFILE
        child.run("os.close(fds.pop()); os.close(fds.pop())")
        child.send("lock.acquire(timeout=20); lock.held")
        time.sleep(0.2)
        held.release()
        assert child.receive()
        child.run("lock.release()")


# ---------------------------------------------------------------- other users


@needs_root
def test_a_file_that_another_user_may_not_open_is_an_error_with_its_name():
    with shared() as directory, Child() as nobody:
        path = os.path.join(directory, "the.lock")
        with semlock.KernelLock(path, mode=0o600):
            nobody.run(as_user())
            told = nobody.run(
                "import semlock\n"
                f"try: semlock.KernelLock({path!r}, timeout=0).acquire()\n"
                "except PermissionError as error: told = error.filename\n"
                "told"
            )
            assert told == path
            status = nobody.run(
                f"s = semlock.KernelLock({path!r}).status(); (s.state, s.holder)"
            )
            assert status[0] == "held"


@needs_root
def test_a_file_that_another_user_may_only_read_excludes_both_ways():
    with shared() as directory, Child() as nobody:
        path = os.path.join(directory, "the.lock")
        with semlock.KernelLock(path):
            nobody.run(as_user())
            assert not nobody.run(f"lock = semlock.KernelLock({path!r}); lock.try_acquire()")
        assert nobody.run("lock.try_acquire()")
        mine = semlock.KernelLock(path)
        assert not mine.try_acquire()
        found = mine.status()
        assert found.info.pid == nobody.pid
        nobody.send("import time; time.sleep(0.1); lock.release()")
        mine.acquire(timeout=20)
        mine.release()
        assert os.stat(path).st_uid == 0 != NOBODY


# ---------------------------------------------------------------- descriptors


def test_a_holder_that_executes_another_program_holds_no_more(path):
    with Child() as child:
        child.run(HOLD.format(path))
        waiter = semlock.KernelLock(path)
        assert not waiter.try_acquire()
        child.send(f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', 'input()'])")
        with waiter.acquire(timeout=20):
            assert child.process.poll() is None  # the process goes on, with the other program


@pytest.mark.parametrize("told", ["check", "release"])
@pytest.mark.parametrize("by", ["another file", "the same file"])
def test_a_descriptor_that_the_program_has_replaced_is_left_alone(path, tmp_path, told, by):
    import fcntl

    lock = semlock.KernelLock(path)
    lock.acquire()
    name = path if by == "the same file" else tmp_path / "other"
    other = os.open(name, os.O_RDWR | os.O_CREAT)
    number = lock.fileno()
    os.dup2(other, number)
    assert is_free(path)  # the kernel has ended the lock with its last descriptor
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        with pytest.raises(semlock.LockLostError):
            getattr(lock, told)()
        if told == "check":
            with pytest.raises(semlock.LockLostError):
                lock.release()
        assert not lock.held
        assert os.path.samestat(os.fstat(number), os.fstat(other))  # not closed
        assert not is_free(name)  # nor unlocked
    finally:
        os.close(number)
        os.close(other)
    with semlock.KernelLock(path, timeout=0):
        pass


@pytest.mark.parametrize("lent", [False, True])
def test_a_lock_whose_descriptor_another_lock_has_now_does_not_end_that_one(path, lent):
    first, second = semlock.KernelLock(path), semlock.KernelLock(path)
    if lent:
        first = semlock.KernelLock.from_fd(os.open(path, os.O_RDWR | os.O_CREAT))
    first.acquire()
    os.close(number := first.fileno())
    second.acquire()
    assert second.fileno() == number
    for told in (first.check, first.release):
        with pytest.raises(semlock.LockLostError):
            told()
    assert not is_free(path)
    second.release()
    assert is_free(path)


# ---------------------------------------------------------------- forks


def test_a_fork_while_a_thread_waits_takes_no_part_in_the_wait(path):
    with Child() as holder:
        holder.run(HOLD.format(path))
        lock, won = semlock.KernelLock(path), []
        thread = threading.Thread(target=lambda: won.append(lock.acquire(timeout=20)))
        thread.start()
        time.sleep(0.1)

        def in_child():
            own = semlock.KernelLock(path)
            return lock.held, lock.count, own.try_acquire(), lock.cancel()

        assert in_a_fork(in_child) == (False, 0, False, 0)
        assert thread.is_alive()
        holder.run("lock.release()")
        thread.join(20)
        assert won
        assert lock.held
        assert in_a_fork(lambda: (lock.held, semlock.KernelLock(path).try_acquire())) == (
            False,
            False,
        )
        assert not is_free(path)  # the child's end has ended nothing
        lock.release()
        assert is_free(path)


# ---------------------------------------------------------------- who it is


@pytest.mark.skipif(
    not works("unshare", "--pid", "--fork", "--mount-proc"),
    reason="no PID namespace can be made",
)
def test_a_holder_in_another_pid_namespace_is_seen(path):
    with Child(wrapper=("unshare", "--pid", "--fork", "--mount-proc")) as inside:
        inside.run(HOLD.format(path))
        found = semlock.KernelLock(path).status()
        assert (found.state, found.info.pid) == (
            "held",
            inside.outer_pid,
        )  # as its number is here
        assert not semlock.KernelLock(path).try_acquire()
        inside.run("lock.release()")
        with semlock.KernelLock(path):
            # From there this process can't be named: it has no number.
            told = inside.run(
                "s = lock.status(); (s.state, s.info, s.holder, lock.try_acquire())"
            )
            assert told[0] == "held"
            assert told[1] is None
            assert "not visible here" in told[2]
            assert told[3] is False
            inside.send("import time; lock.acquire(timeout=20); lock.held")
            time.sleep(0.1)
        assert inside.receive()
        inside.run("lock.release()")


# ---------------------------------------------------------------- the kernel's list


@pytest.fixture
def crowd(tmp_path):
    """Lock a thousand files: the kernel's list has a line for each."""
    files = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4096), before[1]))
    import fcntl

    for number in range(1000):
        file = open(tmp_path / f"file-{number}", "x")
        fcntl.flock(file, fcntl.LOCK_EX)
        files.append(file)
    yield files
    for file in files:
        file.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_among_many_locks_only_the_lines_of_the_file_are_read(path, crowd, monkeypatch):
    lines = []
    listed = kernel_locks.listed
    monkeypatch.setattr(
        kernel_locks, "listed", lambda some: listed(lines.extend(some) or list(some))
    )
    with semlock.KernelLock(path) as lock:
        assert lock.status().info.pid == os.getpid()
        assert semlock.KernelLock(crowd[500].name).status().holders[0].pid == os.getpid()
    assert len(crowd) == 1000
    assert 2 <= len(lines) < 20


@pytest.mark.usefixtures("crowd")
def test_a_free_file_is_found_free_without_a_search_through_all_processes(path, monkeypatch):
    open(path, "x").close()
    monkeypatch.setattr(kernel_locks, "_inherited", lambda _: pytest.fail("searched"))
    assert semlock.KernelLock(path).status().state == "free"


def test_a_wait_reads_the_kernels_list_at_its_ends_and_not_in_between(path, monkeypatch):
    reads = []
    read_file = capi.read_file
    monkeypatch.setattr(
        capi, "read_file", lambda name, *room: reads.append(name) or read_file(name, *room)
    )
    with Child() as holder:
        holder.run(HOLD.format(path))
        with pytest.raises(semlock.LockTimeoutError, match=str(holder.pid)):
            semlock.KernelLock(path).acquire(timeout=1.5)
    assert 1 <= reads.count("/proc/locks") <= 3


def test_doctor_says_what_kernel_locks_do_here(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "semlock", "doctor", str(tmp_path)],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    assert "KernelLock and programs that call flock(2) exclude each other" in told
