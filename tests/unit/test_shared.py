"""Many readers or one writer."""

import os
import threading
from pathlib import Path

import pytest

import semlock
from semlock import SharedLock
from support import Child, Taking, in_a_fork, take_away, wait_until

READ = "import semlock; r = semlock.SharedLock({path!r}, tag='reads'); r.try_acquire_shared()"
WRITE = "import semlock; r = semlock.SharedLock({path!r}, tag='writes'); r.try_acquire()"


def kill(child):
    child.process.kill()
    child.process.wait()


def test_readers_share_and_a_writer_doesnt(path, names):
    with Child() as other:
        assert other.run(READ.format(path=path))
        lock = SharedLock(path, tag="here")
        with lock.shared():
            assert lock.held == "shared"
            assert {found.info.tag for found in lock.readers()} == {"reads", "here"}
            assert not other.run("semlock.SharedLock(r.path).try_acquire()")
        assert not lock.try_acquire()
        assert names() == ["the.lock.readers"]
        other.run("r.release()")
        with lock:
            assert lock.held == "exclusive"
            assert lock.status().info.tag == "here"
            assert not other.run("r.try_acquire_shared()")
            assert not other.run("r.try_acquire()")
    assert not [name for name in names() if not name.endswith(".kept")]


def test_a_writer_waits_for_the_readers_that_are_there(path):
    with Child() as first, Child() as second:
        for child in (first, second):
            assert child.run(READ.format(path=path))
        lock = SharedLock(path)
        with pytest.raises(semlock.LockTimeoutError, match="reads"):
            lock.acquire(timeout=0.03)
        assert semlock.status(path).state == "free"  # it has given the path back
        with Taking(lambda: lock.acquire(timeout=20), lock.release) as writer:
            first.run("r.release()")
            assert not writer.done.wait(0.03)
            second.run("r.release()")
            assert writer.done.wait(20)


def test_new_readers_wait_while_a_writer_waits(path):
    """Or else a writer would starve where another always reads."""
    with Child() as reader, Child() as late:
        assert reader.run(READ.format(path=path))
        lock = SharedLock(path)
        with Taking(lambda: lock.acquire(timeout=20), lock.release) as writer:
            wait_until(lambda: os.path.lexists(path), "the writer has the path")
            assert late.run(READ.format(path=path)) is False
            reader.run("r.release()")
            assert writer.done.wait(20)


def test_a_dead_readers_file_is_taken_away(path, names):
    with Child() as other:
        assert other.run(READ.format(path=path))
        lock = SharedLock(path)
        with Taking(lambda: lock.acquire(timeout=20), lock.release) as writer:
            wait_until(lambda: os.path.lexists(path), "the writer has the path")
            kill(other)
            assert writer.done.wait(20)
            assert semlock.status(path).info.pid == os.getpid()
            assert names() == ["the.lock"]


@pytest.mark.parametrize("take", ["acquire", "acquire_shared"])
def test_a_dead_writer_keeps_no_process_out(take, path):
    with Child() as other:
        assert other.run(WRITE.format(path=path))
        lock = SharedLock(path)
        with Taking(lambda: getattr(lock, take)(timeout=20), lock.release) as waiter:
            assert not waiter.done.wait(0.02)
            kill(other)
            assert waiter.done.wait(20)
            assert len(lock.readers()) == (take == "acquire_shared")


def test_a_killed_reader_or_writer_leaves_nothing_that_blocks(path):
    for words in (READ, WRITE):
        with Child() as other:
            assert other.run(words.format(path=path))
            kill(other)
        lock = SharedLock(path, timeout=20)
        with lock.shared():
            pass
        with lock:
            pass


def test_readers_in_a_row_pass_through_the_queue(path, names):
    lock = SharedLock(path)
    got = []

    def read():
        with lock.shared(timeout=20):
            got.append(1)
            everybody.wait(20)

    with Child() as other:
        assert other.run(WRITE.format(path=path))
        everybody = threading.Barrier(4)
        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        wait_until(lambda: any(n.endswith(".queue") for n in names()), "they wait")
        other.run("r.release()")
        for reader in readers:
            reader.join(20)
        assert len(got) == 4
    assert names() == []


def test_a_foreign_lock_keeps_readers_out(path):
    Path(path).write_text("pid=1\n")
    lock = SharedLock(path)
    assert not lock.try_acquire_shared()
    assert not lock.try_acquire()
    take_away(path)
    with lock.shared():
        pass


@pytest.mark.parametrize("first", ["acquire", "acquire_shared"])
@pytest.mark.parametrize("second", ["acquire", "acquire_shared"])
def test_a_thread_does_not_wait_for_itself(first, second, path):
    lock = SharedLock(path)
    with getattr(lock, first)(), pytest.raises(semlock.LockDeadlockError):
        getattr(lock, second)(timeout=20)


def test_one_object_serves_threads(path):
    lock, seen = SharedLock(path), []

    def read():
        with lock.shared():
            together.wait(20)
            seen.append(lock.held)

    together = threading.Barrier(3)
    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["shared"] * 3
    assert lock.held is None
    assert not lock._readers


def test_what_is_not_held_can_not_be_let_go(path):
    lock = SharedLock(path)
    for call in (lock.release, lock.check, lock.refresh):
        with pytest.raises(semlock.NotHeldError):
            call()


def test_a_reader_that_was_taken_away_is_noticed(path):
    lock = SharedLock(path)
    lock.acquire_shared()
    (reader,) = Path(f"{path}.readers").iterdir()
    take_away(reader)
    with pytest.raises(semlock.LockLostError):
        lock.check()
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert lock.held is None


def test_a_fork_holds_nothing(path):
    lock = SharedLock(path)
    with lock.shared():
        assert in_a_fork(lambda: lock.held) is None
        lock.check()


def test_it_decorates_as_the_writer(path):
    lock = SharedLock(path)

    @lock
    def work():
        return lock.held

    assert work() == "exclusive"


def test_a_timeout_of_nothing_is_one_try(path):
    with Child() as other:
        assert other.run(WRITE.format(path=path))
        lock = SharedLock(path, timeout=0)
        for take in (lock.acquire, lock.acquire_shared):
            with pytest.raises(semlock.LockTimeoutError, match="writes"):
                take()


@pytest.mark.parametrize("block", [None, "shared", "exclusive"])
def test_a_block_for_tasks_refuses_the_with_of_a_thread(block, path):
    lock = semlock.AsyncSharedLock(path)
    refused = lock if block is None else getattr(lock, block)()
    with pytest.raises(TypeError, match="is for tasks: use it with `async with`"), refused:
        pass
