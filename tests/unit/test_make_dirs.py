"""``make_dirs=True``: a path's missing directories are made when its lock is taken, not before."""

import asyncio
import os
import shutil
import stat
import sys
import threading

import pytest

import semlock
from clilib import command, program
from ini_system import INI
from semlock import feature, sema, semats, sidecar, task


def _sidecar(path, **options):
    # Its target's directory is made in any case, the lock file's own is not.
    return sidecar.SidecarLock("target", lock_path=path, **options)


def _sidecar_for_tasks(path, **options):
    return sidecar.AsyncSidecarLock("target", lock_path=path, **options)


MAKERS = {
    "Lock": semlock.Lock,
    "SlotLock": lambda path, **options: semlock.SlotLock(path, 2, **options),
    "SharedLock": semlock.SharedLock,
    "sema": sema.Semaphore,
    "semats": semats.Semaphore,
    "sidecar": _sidecar,
    "task": lambda path, **options: task.TaskLock(path, "pid-1@host", **options),
    "a system of one's own": INI.lock,
}
ASYNC_MAKERS = {
    "AsyncLock": semlock.AsyncLock,
    "AsyncSlotLock": lambda path, **options: semlock.AsyncSlotLock(path, 2, **options),
    "AsyncSharedLock": semlock.AsyncSharedLock,
    "sema": sema.AsyncSemaphore,
    "semats": semats.AsyncSemaphore,
    "sidecar": _sidecar_for_tasks,
    "task": lambda path, **options: task.AsyncTaskLock(path, "pid-1@host", **options),
    "a system of one's own": INI.async_lock,
}


@pytest.fixture
def deep(tmp_path, monkeypatch):
    """A path whose directory and the one above are missing."""
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "a" / "b" / "x.lock")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_makes_what_is_missing_when_the_lock_is_taken(make, deep):
    lock = make(deep, make_dirs=True)
    lock.status()
    assert not os.path.exists("a")  # neither made nor looked at is taken
    with lock:
        assert lock.held
    os.rmdir(os.path.dirname(deep)) if not os.listdir("a/b") else None
    assert lock.try_acquire()
    lock.release()


@pytest.mark.parametrize("make", ASYNC_MAKERS.values(), ids=ASYNC_MAKERS)
def test_it_makes_them_for_tasks_too(make, deep):
    async def main():
        lock = make(deep, make_dirs=True)
        async with lock.acquire(timeout=5):
            assert lock.held

    asyncio.run(main())


@pytest.mark.parametrize("make", [semlock.SharedLock, semlock.AsyncSharedLock])
def test_a_reader_makes_them_too(make, deep):
    lock = make(deep, make_dirs=True)
    if make is semlock.SharedLock:
        with lock.shared():
            assert lock.held == "shared"
        return

    async def main():
        async with lock.shared():
            assert lock.held == "shared"

    asyncio.run(main())


def test_they_are_made_for_any_and_all_of_many_and_for_a_file_lock(tmp_path):
    def lock(name):
        return semlock.Lock(tmp_path / name / "x.lock", make_dirs=True)

    with semlock.acquire_all([lock("a"), lock("b")]):
        semlock.acquire_any([found := lock("c")])
        found.release()
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
    (one,) = semlock.try_acquire_many([lock("d")])
    one.release()
    with sidecar.acquire_file_lock(
        tmp_path / "t", lock_path=tmp_path / "e" / "t.lock", make_dirs=True
    ):
        assert (tmp_path / "e").is_dir()


def test_a_task_lock_is_reclaimed_in_a_directory_that_is_made(deep):
    lock = task.TaskLock(deep, "pid-1@host", make_dirs=True)
    lock.reclaim()
    lock.release()


def test_a_feature_lock_takes_the_option_and_makes_its_directory_in_any_case(tmp_path):
    with feature.FeatureLock("one", tmp_path / "gsd", make_dirs=True):
        assert (tmp_path / "gsd" / "specs" / "one" / ".lock").exists()


@pytest.mark.parametrize(
    "make",
    [*MAKERS.values(), *ASYNC_MAKERS.values()],
    ids=[*MAKERS, *(f"async {name}" for name in ASYNC_MAKERS)],
)
def test_without_it_the_error_names_it_as_the_way_out(make, deep):
    lock = make(deep)

    async def attempt():
        return lock.try_acquire()

    with pytest.raises(
        semlock.LockPathError, match="have it created: make_dirs=True"
    ) as caught:
        asyncio.run(attempt())
    assert f"{os.path.dirname(deep)} does not exist" in str(caught.value)
    assert not os.path.exists("a")


def test_a_reader_without_it_is_told_the_same(deep):
    with pytest.raises(semlock.LockPathError, match="make_dirs=True"):
        semlock.SharedLock(deep).try_acquire_shared()


@pytest.mark.parametrize("make_dirs", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_file_in_the_way_is_named(make, make_dirs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").touch()
    lock = make(str(tmp_path / "a" / "b" / "x.lock"), make_dirs=make_dirs)
    with pytest.raises(
        semlock.LockPathError, match=r"is not a directory\. Use another path"
    ) as e:
        lock.try_acquire()
    assert f"{tmp_path / 'a'} is not a directory" in str(e.value)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_directory_that_takes_no_file_is_an_error_and_no_held_lock(
    make, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="/proc"):
        make("/proc/x.lock", make_dirs=True).try_acquire()


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions there")
def test_the_directories_have_the_usual_permissions_whatever_the_locks_are(deep):
    before = os.umask(0o027)
    try:
        with semlock.Lock(deep, mode=0o600, make_dirs=True):
            pass
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(d).st_mode) for d in ("a", "a/b")] == [0o750, 0o750]


def test_those_who_come_at_the_same_moment_all_get_their_turn(deep):
    start, had = threading.Barrier(8), []

    def take():
        lock = semlock.Lock(deep, make_dirs=True, timeout=30)
        start.wait()
        with lock:
            had.append(lock.token)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(had)) == 8


# The waiter may be making its file when the directory is moved, and it stays there.  On a busy
# machine it stands in the queue by then, which is moved too.
@pytest.mark.leaves("tmp", "queue")
def test_a_waiter_makes_the_directory_that_went_away_while_it_waited(deep):
    holder = semlock.Lock(deep, make_dirs=True)
    waiting = threading.Event()
    waiter = semlock.Lock(deep, make_dirs=True, on_wait=lambda *_: waiting.set())
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    waiting.wait(30)
    os.rename("a/b", "gone")  # first, or the waiter may win in it
    os.unlink(os.path.join("gone", os.path.basename(deep)))  # which wakes the waiter
    thread.join(30)
    assert not thread.is_alive()
    assert semlock.status(deep).info.token == waiter.token
    with pytest.raises(semlock.LockLostError):
        holder.release()
    waiter._end(waiter._native.endings)
    # A queue that went away with its directory is out of reach for its waiter.
    shutil.rmtree("gone")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--make-dirs", "a/b/x.lock"],
        ["run", "--make-dirs", "--shared", "a/b/x.lock"],
        ["run", "--make-dirs", "--slots", "2", "a/b/x.lock"],
        ["run", "--make-dirs", "--dialect", "task", "a/b/x.lock"],
        ["try", "--make-dirs", "--owner-pid={own}", "a/b/x.lock"],
        ["acquire", "--make-dirs", "--owner-pid={own}", "a/b/x.lock"],
        ["reclaim", "--make-dirs", "--owner-pid={own}", "a/b/x.lock"],
    ],
    ids=" ".join,
)
def test_the_command_makes_them_when_it_is_told_to(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [word.format(own=os.getpid()) for word in words]
    if words[0] == "run":
        words += ["--", *program("")]
    without = command(*(word for word in words if word != "--make-dirs"))
    assert (without.returncode, os.path.exists("a")) == (3, False)
    assert "--make-dirs" in without.stderr
    assert command(*words).returncode == 0
    assert os.path.isdir("a/b")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_home_that_no_shell_has_replaced_is_not_made(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("~/x.lock", "~ann/x.lock"):
        with pytest.raises(semlock.LockPathError, match="expanduser"):
            make(path, make_dirs=True).acquire(timeout=0)
    assert os.listdir() == []


@pytest.mark.skipif(sys.platform != "linux", reason="no directory can be made in /proc")
@pytest.mark.parametrize("name", ["Lock", "SlotLock", "SharedLock"])
def test_where_no_directory_can_be_made_that_is_said(name):
    with pytest.raises(semlock.LockPathError, match=r"no new directory in /proc\. Use"):
        MAKERS[name]("/proc/a/x.lock", make_dirs=True).acquire(timeout=0)


def test_task_reclaim_makes_them_too(deep):
    with pytest.raises(semlock.LockPathError, match="make_dirs=True"):
        task.reclaim(deep, "pid-1@host")
    task.reclaim(deep, "pid-1@host", make_dirs=True).release()
    assert os.path.isdir(os.path.dirname(deep))
