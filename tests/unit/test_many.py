"""Many tries in one call."""

import os
import subprocess
import sys

import pytest

import semlock


def visible(directory):
    """List a directory without kept claims, which two releases in it give a reason for."""
    return sorted(name for name in os.listdir(directory) if not name.startswith(".semlock-"))


def test_each_lock_comes_back_as_itself_or_as_none(tmp_path):
    held = semlock.Lock(tmp_path / "1")
    with held:
        locks = [semlock.Lock(tmp_path / str(n)) for n in range(3)]
        result = semlock.try_acquire_many(locks)
        assert result == [locks[0], None, locks[2]]
        assert [lock.held for lock in locks] == [True, False, True]
    for lock in result:
        if lock:
            lock.release()


def test_paths_come_back_as_locks(tmp_path):
    result = semlock.try_acquire_many([tmp_path / "a", str(tmp_path / "b")])
    assert [os.path.basename(lock.path) for lock in result] == ["a", "b"]
    for lock in result:
        lock.release()


def test_the_same_path_twice_is_won_once(tmp_path):
    first, second = semlock.try_acquire_many([tmp_path / "a", tmp_path / "a"])
    assert first.held
    assert second is None
    first.release()


def test_nothing_to_try_is_nothing_won():
    assert semlock.try_acquire_many([]) == []


def test_directories_may_alternate(tmp_path):
    paths = []
    for number in range(20):
        directory = tmp_path / str(number % 3)
        directory.mkdir(exist_ok=True)
        paths.append(directory / str(number))
    result = semlock.try_acquire_many(paths)
    assert all(lock.held for lock in result)
    assert semlock.try_acquire_many(paths) == [None] * 20
    for lock in result:
        lock.release()
    assert all(not path.exists() for path in paths)


def test_locks_of_the_dead_are_won(tmp_path):
    paths = [str(tmp_path / str(n)) for n in range(5)]
    script = (
        "import semlock,sys,os; l=semlock.try_acquire_many(sys.argv[1:]); "
        "assert all(l); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    assert [semlock.status(path).state for path in paths] == ["stale"] * 5
    result = semlock.try_acquire_many(paths)
    assert all(lock.held for lock in result)
    for lock in result:
        lock.release()


def test_a_bad_path_gives_back_what_was_won(tmp_path):
    (tmp_path / "directory").mkdir()
    paths = [tmp_path / "a", tmp_path / "directory", tmp_path / "b"]
    with pytest.raises(semlock.LockPathError, match="a directory"):
        semlock.try_acquire_many(paths)
    assert visible(tmp_path) == ["directory"]
    with pytest.raises(semlock.LockPathError):
        semlock.try_acquire_many([tmp_path / "a", tmp_path / "missing" / "b"])
    assert visible(tmp_path) == ["directory"]


def test_a_reentrant_lock_counts(tmp_path):
    lock = semlock.Lock(tmp_path / "a", reentrant=True)
    with lock:
        assert semlock.try_acquire_many([lock]) == [lock]
        lock.release()
        assert lock.held
    assert not lock.held


def test_a_bad_path_gives_a_nested_lock_back_once(tmp_path):
    lock = semlock.Lock(tmp_path / "a", reentrant=True)
    (tmp_path / "directory").mkdir()
    with lock:
        with pytest.raises(semlock.LockPathError):
            semlock.try_acquire_many([lock, tmp_path / "directory"])
        assert lock.held
        lock.check()
    assert not lock.held
