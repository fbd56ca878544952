"""filelock and semlock on one path: the table of docs/howto/replacing.md."""

import os
import sys

import pytest

import semlock
from support import Child

filelock = pytest.importorskip("filelock", "4.2.10")

SOFT = "import filelock; other = filelock.SoftFileLock({path!r}, timeout={timeout})"
HARD = "import filelock; other = filelock.FileLock({path!r}, timeout={timeout})"
kernel_lock = pytest.mark.skipif(
    sys.platform == "win32", reason="filelock's FileLock has another lock there"
)


@pytest.fixture
def other():
    with Child() as child:
        yield child


def acquires(child):
    try:
        child.run("other.acquire() and None")
    except Exception as error:
        if "Timeout" in type(error).__name__ or "Timeout" in str(error):
            return False
        raise
    return True


@kernel_lock
def test_a_file_lock_is_respected_and_leaves_an_empty_file(path, other):
    other.run(HARD.format(path=path, timeout=5))
    other.run("other.acquire() and None")
    lock = semlock.Lock(path)
    assert not lock.try_acquire()
    other.run("other.release()")
    if os.path.exists(path):  # which some versions remove
        assert not lock.try_acquire()
        with pytest.raises(semlock.LockTimeoutError, match="flock or filelock"):
            lock.acquire(timeout=0)
        os.unlink(path)
    assert lock.try_acquire()
    lock.release()


@kernel_lock
def test_a_file_lock_does_not_see_semlocks(path, other):
    with semlock.Lock(path):
        other.run(HARD.format(path=path, timeout=0.2))
        assert acquires(other)
        other.run("other.release()")


def test_a_soft_file_lock_is_respected_until_it_is_released(path, other):
    other.run(SOFT.format(path=path, timeout=5))
    other.run("other.acquire() and None")
    lock = semlock.Lock(path)
    assert not lock.try_acquire()
    other.run("other.release()")
    assert lock.try_acquire()
    lock.release()


def test_a_soft_file_lock_takes_semlocks_file_for_broken(path, other):
    """It removes a file that it can't read once that is two seconds old, and not before."""
    lock = semlock.Lock(path)
    lock.acquire()
    other.run(SOFT.format(path=path, timeout=0.1))
    assert not acquires(other)
    other.run(SOFT.format(path=path, timeout=10))
    assert acquires(other)
    with pytest.raises(semlock.LockLostError):
        lock.release()
    other.run("other.release()")
