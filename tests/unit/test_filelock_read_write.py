"""``ReadWriteLock`` of ``semlock.filelock`` and its form for tasks, beside filelock's tests."""

import asyncio
import os
import signal
import sqlite3
import struct
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

import semlock.filelock as filelock
from support import Child

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="hard links, forks and signals of POSIX"
)
SETUP = (
    "import os, threading, time\nimport semlock.filelock as f\n"
    "lock = f.ReadWriteLock({path!r}, is_singleton=False)"
)


def child_with(path) -> Child:
    return Child(SETUP.format(path=str(path)))


def is_refused(child: Child, mode: str) -> bool:
    return child.run(
        f"try:\n    lock.acquire_{mode}(blocking=False)\nexcept f.Timeout:\n    refused = True\n"
        "else:\n    refused = False\n    lock.release()\nrefused"
    )


@pytest.fixture
def shared(tmp_path):
    """A directory in which all users may create names."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


def links_in(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(".filelock-")]


@posix
def test_files_that_others_put_beside_the_database_do_nothing(shared):
    """A journal that is played back deletes the file that it names."""
    precious, path = shared / "precious", shared / "lock.db"
    precious.write_text("kept")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE something (value)")
    name = os.fsencode(precious)
    tail = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    (shared / "lock.db-journal").write_bytes(name + tail)
    lock = filelock.ReadWriteLock(path, is_singleton=False)
    with lock.write_lock(), child_with(path) as other:
        assert is_refused(other, "read")
        assert len(links_in(shared)) == 1
    assert precious.read_text() == "kept"
    assert links_in(shared) == []


@posix
def test_the_link_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(shared):
    path = shared / "lock.db"
    with child_with(path) as one, child_with(path) as other:
        one.run("lock.acquire_read() and None")
        other.run("lock.acquire_read() and None")
        killed = [name for name in links_in(shared) if f"-{one.pid}-" in name]
        one.process.kill()
        one.process.wait()
        assert len(links_in(shared)) == 2
        filelock.ReadWriteLock(path, is_singleton=False)
        assert len(killed) == 1
        assert len(links_in(shared)) == 1
        assert f"-{other.pid}-" in links_in(shared)[0]
    assert path.stat().st_nlink == 2  # the other one was ended too


@posix
def test_a_second_object_of_a_process_does_not_end_the_lock_of_the_first(path):
    """POSIX ends a file's locks when any descriptor of the file is closed."""
    first = filelock.ReadWriteLock(path, is_singleton=False)
    os.link(path, f"{path}-alias")
    with first.write_lock(), child_with(path) as other:
        for name in (path, f"{path}-alias"):
            second = filelock.ReadWriteLock(name, is_singleton=False)
            with pytest.raises(filelock.Timeout):
                second.acquire_read(blocking=False)
            second.close()
            assert is_refused(other, "read")
    os.unlink(f"{path}-alias")


@posix
def test_what_is_no_file_is_refused_without_a_wait(path):
    os.mkfifo(path)
    began = time.monotonic()
    with pytest.raises(OSError, match="non-regular"):
        filelock.ReadWriteLock(path)
    os.unlink(path)
    os.symlink("elsewhere", path)
    with pytest.raises(OSError, match="symbolic"):
        filelock.ReadWriteLock(path)
    assert time.monotonic() - began < 5
    os.unlink(path)


def test_the_schema_is_not_loaded(path):
    """So its size and what is wrong with it do not matter."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE something (value)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = 'garbage'")
        connection.commit()
    lock = filelock.ReadWriteLock(path, is_singleton=False)
    with lock.read_lock():
        pass
    with lock.write_lock():
        pass


@posix
def test_a_child_that_was_forked_inside_of_a_call_of_sqlite_ends_at_once(path):
    with child_with(path) as other:
        other.run(
            "import sys\nforked = []\n"
            "def fork(event, args):\n"
            "    if event == 'sqlite3.connect' and not forked:\n"
            "        forked.append(0)\n        forked[0] = os.fork()\n"
            "sys.addaudithook(fork)\n"
            "lock.acquire_write()\n"
            "status = os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1])"
        )
        assert other.run("status") == 70
        with pytest.raises(filelock.Timeout):
            filelock.ReadWriteLock(path, is_singleton=False).acquire_read(blocking=False)


@posix
def test_forks_beside_waiting_and_working_threads_return_and_keep_the_lock(path):
    """A fork waits for calls of SQLite, and not for waits that only the forking thread can end."""
    code = (
        "holder = f.ReadWriteLock({path!r}, is_singleton=False)\nholder.acquire_write()\n"
        "done = threading.Event()\n"
        "def wait():\n    with lock.write_lock():\n        done.set()\n"
        "def work():\n    while not done.is_set():\n"
        "        with f.ReadWriteLock({path!r} + '-2', is_singleton=False).write_lock():\n"
        "            pass\n"
        "threads = [threading.Thread(target=each) for each in (wait, work)]\n"
        "for each in threads:\n    each.start()\n"
        "ended = []\n"
        "for count in range(8):\n"
        "    child = os.fork()\n    if not child:\n"
        "        try:\n            f.ReadWriteLock({path!r}, is_singleton=False)\n"
        "        except RuntimeError:\n            pass  # it is locked by the parent\n"
        "        else:\n            os._exit(4)\n"
        "        with f.ReadWriteLock({path!r} + '-3', is_singleton=False).write_lock():\n"
        "            os._exit(3)\n"
        "    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "holder.release()\n"
        "for each in threads:\n    each.join(20)\n"
        "ended, done.is_set()"
    )
    with child_with(path) as other:
        ended, is_done = other.run(code.format(path=path))
    assert ended == [3] * 8
    assert is_done


@pytest.mark.skipif(
    sys.platform == "win32", reason="a sleep takes longer than a reader gives way"
)
def test_a_waiting_writer_gets_in_between_readers_that_never_all_leave(path):
    """A reader that waited goes back once, in case it came in between two calls of a writer."""
    reading = (
        "stop = threading.Event()\n"
        "def read():\n    while not stop.is_set():\n"
        "        with lock.read_lock():\n            time.sleep(0.3)\n"
        "thread = threading.Thread(target=read); thread.start()"
    )
    with child_with(path) as one, child_with(path) as two, child_with(path) as three:
        for child in (one, two, three):
            child.run(reading)
            time.sleep(0.1)
        for _ in range(2):
            write_by_short_calls(path, time.monotonic() + 3)
        for child in (one, two, three):
            child.run("stop.set(); thread.join()")


def write_by_short_calls(path, end: float) -> None:
    """Wait as another program may: many calls of SQLite, with a pause between any two."""
    with closing(sqlite3.connect(path, timeout=0.005, isolation_level=None)) as connection:
        while True:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                assert time.monotonic() < end
                time.sleep(0.0015)
            else:
                return


@posix
def test_an_interrupt_ends_a_wait(path):
    with child_with(path) as other:
        other.run("lock.acquire_write() and None")
        lock = filelock.ReadWriteLock(path, is_singleton=False)
        timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            lock.acquire_read()
        timer.join()
        other.run("lock.release()")
        with lock.write_lock(blocking=False):
            pass


# ---------------------------------------------------------------- for tasks


def test_tasks_take_turns_and_a_waiting_writer_goes_before_later_readers(path):
    async def main() -> list[str]:
        lock = filelock.AsyncReadWriteLock(path)
        order = []

        async def hold(name: str) -> None:
            mode = lock.read_lock() if name.startswith("reader") else lock.write_lock()
            async with mode:
                order.append(name)
                await asyncio.sleep(0.05)

        tasks = []
        for name in ("reader 1", "reader 2", "writer", "reader 3"):
            tasks.append(asyncio.create_task(hold(name)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        await lock.close()
        return order

    assert asyncio.run(main()) == ["reader 1", "reader 2", "writer", "reader 3"]


def test_a_cancelled_task_gives_up_soon_and_holds_nothing(path):
    async def main() -> float:
        lock = filelock.AsyncReadWriteLock(path, is_singleton=False)
        task = asyncio.create_task(lock.acquire_write(timeout=10))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took = time.monotonic() - began
        await lock.close()
        return took

    with child_with(path) as other:
        other.run("lock.acquire_read() and None")
        assert asyncio.run(main()) < 2
        other.run("lock.release()")
        assert not is_refused(other, "write")


def test_loops_of_two_threads_exclude_each_other(path):
    inside, most = [], []

    async def work() -> None:
        lock = filelock.AsyncReadWriteLock(path)
        for _ in range(20):
            async with lock.write_lock(timeout=20):
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0)
                inside.pop()
        await lock.close()

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1] * 60


def test_closing_releases_what_was_taken_by_this_object_only(path):
    async def main(other: Child) -> None:
        one, two = filelock.AsyncReadWriteLock(path), filelock.AsyncReadWriteLock(path)
        await one.acquire_read()
        await two.acquire_read()
        await one.close()
        assert is_refused(other, "write")
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            await one.acquire_read()
        await two.close()
        assert not is_refused(other, "write")

    with child_with(path) as other:
        asyncio.run(main(other))
