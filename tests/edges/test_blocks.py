"""A ``with`` block has its lock from beginning to end, and behind it the lock is released."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys

import pytest

import semlock
from semlock import filelock, sidecar, task
from support import Strike, files_open_in

pytestmark = [
    pytest.mark.leaves("kept"),
    pytest.mark.skipif(sys.platform == "win32", reason="no signals"),
]


class StruckError(Exception):
    """What the handler of a signal raises."""


FORMS = {
    "Lock": semlock.Lock,
    "acquire": lambda path: semlock.Lock(path).acquire(),
    "nested": lambda path: semlock.Lock(path, reentrant=True),
    "SlotLock": lambda path: semlock.SlotLock(path, 2),
    "SlotLock.acquire": lambda path: semlock.SlotLock(path, 2).acquire(),
    "SharedLock": semlock.SharedLock,
    "SharedLock.acquire": lambda path: semlock.SharedLock(path).acquire(),
    "shared": lambda path: semlock.SharedLock(path).shared(),
    "exclusive": lambda path: semlock.SharedLock(path).exclusive(),
    "KernelLock": semlock.KernelLock,
    "acquire_all": lambda path: semlock.acquire_all(
        [semlock.Lock(path), semlock.Lock(f"{path}2")]
    ),
    "TaskLock": lambda path: task.TaskLock(path, "a"),
    "acquire_file_lock": lambda path: sidecar.acquire_file_lock(path),
    "FileLock": filelock.FileLock,
    "FileLock.acquire": lambda path: filelock.FileLock(path).acquire(),
}


FORMS_FOR_TASKS = {
    "AsyncLock": semlock.AsyncLock,
    "acquire": lambda path: semlock.AsyncLock(path).acquire(),
    "AsyncSlotLock": lambda path: semlock.AsyncSlotLock(path, 1),
    "AsyncSlotLock.acquire": lambda path: semlock.AsyncSlotLock(path, 1).acquire(),
    "AsyncSharedLock": semlock.AsyncSharedLock,
    "AsyncSharedLock.shared": lambda path: semlock.AsyncSharedLock(path).shared(),
    "exclusive": lambda path: semlock.AsyncSharedLock(path).exclusive(),
    "acquire_all_async": lambda path: semlock.acquire_all_async(
        [semlock.AsyncLock(path), semlock.AsyncLock(f"{path}2")]
    ),
}


@pytest.fixture
def striking():
    """Have a handler that raises, and what sends its signal without a bytecode that runs it."""

    def handler(*_):
        raise StruckError

    before = signal.signal(signal.SIGUSR1, handler)
    send = ctypes.CDLL(None)["raise"]
    yield lambda: map(send, [signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, before)


def leave_as_a_signal_comes(block, strike):
    with block:
        (_,) = strike  # no handler runs at the end of this, but at the beginning of __exit__()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other bytecodes")
@pytest.mark.parametrize("form", FORMS)
def test_a_signal_as_a_block_ends_leaves_no_lock_held(tmp_path, striking, form):
    path = str(tmp_path / "a.lock")
    block = FORMS[form](path)
    with pytest.raises(StruckError):
        leave_as_a_signal_comes(block, striking())
    again = FORMS[form](path)  # by another object, which would wait for what is left
    with again:
        pass


async def leave_as_a_signal_comes_in_a_task(block, strike):
    async with block:
        (_,) = strike


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other bytecodes")
@pytest.mark.parametrize("form", FORMS_FOR_TASKS)
def test_a_signal_as_a_tasks_block_ends_leaves_no_lock_held(tmp_path, striking, form):
    path = str(tmp_path / "a.lock")

    async def strike():
        with pytest.raises(StruckError):
            await leave_as_a_signal_comes_in_a_task(FORMS_FOR_TASKS[form](path), striking())
        async with FORMS_FOR_TASKS[form](path):
            pass  # by another object, which would wait for what is left

    asyncio.run(asyncio.wait_for(strike(), 20))


def enter_as_a_signal_comes(block, strike):
    (_,) = strike
    with block:
        pytest.fail("no handler has run")


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other bytecodes")
def test_a_signal_as_the_block_of_several_locks_begins_leaves_none_held(tmp_path, striking):
    paths = [str(tmp_path / name) for name in ("a.lock", "b.lock")]
    block = semlock.acquire_all(map(semlock.Lock, paths))
    with pytest.raises(StruckError):
        enter_as_a_signal_comes(block, striking())
    assert [semlock.status(path).state for path in paths] == ["free", "free"]


OPENING = ("placing.py", "append.py", "task_audit.py")


def strike_behind_a_call(number, operation):
    """Raise behind one of these files' calls into C, where handlers run; whether it came to it."""

    def behind(frame, event, _call):
        nonlocal number
        number -= event == "c_return" and frame.f_code.co_filename.endswith(OPENING)
        if number == 0:
            sys.setprofile(None)
            raise StruckError

    sys.setprofile(behind)
    try:
        operation()
    except StruckError:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it lists open files")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="others drop objects later")
@pytest.mark.parametrize("way", [semlock.open_locked, semlock.open_atomic, "audit log"])
def test_an_interrupt_leaves_no_file_open(tmp_path, way):
    def write():
        if way == "audit log":
            task.SYSTEM.audit(str(tmp_path / "a.lock"), "break", None)
        else:
            with way(tmp_path / "a.txt", "w") as file:
                file.write("text")

    for number in itertools.count(1):
        if not strike_behind_a_call(number, write):
            break
        assert not files_open_in(str(tmp_path)), number
    assert number > 5


def test_an_interrupt_in_a_release_of_filelocks_class_leaves_no_number_behind(tmp_path):
    for at in itertools.count(1):
        lock = filelock.FileLock(tmp_path / f"{at}.lock")
        lock.acquire()
        strike = Strike(at, lock.release, modules=("_filelock/base.py",))
        lock.release(force=True)
        with lock:
            assert lock.lock_counter == 1
        assert not lock.is_locked, strike.where
        if not strike.struck:
            break
    assert at > 20


@pytest.mark.parametrize("enter", ["__enter__", "shared"])
def test_whenever_an_exit_asks_who_leaves_an_interrupt_there_leaves_nothing_held(
    tmp_path, enter
):
    class Asking(semlock.SharedLock):
        left = 0

        def _me(self):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super()._me()

    for at in itertools.count(1):
        lock = Asking(tmp_path / f"{at}.lock")
        block = lock if enter == "__enter__" else lock.shared()
        block.__enter__()
        lock.left = at
        try:
            block.__exit__(None, None, None)
        except KeyboardInterrupt:
            assert not lock.held
            with lock.shared():  # and what the thread knew of its reader is forgotten
                pass
        else:
            break
    assert at > 1


class InterruptedOnce(set):
    """A set in which an interrupt comes right behind the first ``add``."""

    def add(self, one):
        super().add(one)
        self.add = super().add
        raise KeyboardInterrupt


def test_an_interrupt_while_a_shared_object_is_made_leaves_its_path_usable(tmp_path):
    class Own(filelock.ReadWriteLock):
        pass

    Own._making = InterruptedOnce()
    with pytest.raises(KeyboardInterrupt):
        Own(tmp_path / "a.lock")
    with Own(tmp_path / "a.lock").read_lock():
        pass


class InterruptedAtTheEnd:
    """A connection behind whose ``close`` an interrupt comes."""

    def __init__(self, connection):
        self.connection = connection

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def close(self):
        self.connection.close()
        raise KeyboardInterrupt


def test_an_interrupt_behind_the_end_of_sqlites_lock_leaves_it_usable(tmp_path):
    lock = filelock.ReadWriteLock(tmp_path / "a.lock")
    lock.acquire_read()
    database = lock._database
    database._connection = InterruptedAtTheEnd(database._connection)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    with lock.write_lock():
        pass


def released(lock, block):
    with block:
        assert lock.held
    return block


@pytest.mark.parametrize("make", [semlock.Lock, semlock.SharedLock, semlock.KernelLock])
def test_a_block_of_a_lock_that_was_released_is_not_entered(tmp_path, make):
    lock = make(tmp_path / "a.lock")
    block = released(lock, lock.acquire())
    with pytest.raises(semlock.NotHeldError), block:
        pytest.fail("the block ran without its lock")
    block = lock.acquire()
    lock.release()
    with pytest.raises(semlock.NotHeldError), block:
        pytest.fail("the block ran without its lock")


def test_nor_is_one_of_slots_or_of_several_locks(tmp_path):
    slots = semlock.SlotLock(tmp_path / "a.lock", 2)
    several = [semlock.Lock(tmp_path / name) for name in ("b.lock", "c.lock")]
    for lock, block in ((slots, slots.acquire()), (several[0], semlock.acquire_all(several))):
        released(lock, block)
        with pytest.raises(semlock.NotHeldError), block:
            pytest.fail("the block ran without its lock")


def test_a_child_enters_no_block_of_its_parents_lock(tmp_path):
    block = semlock.Lock(tmp_path / "a.lock").acquire()
    child = os.fork()
    if child == 0:
        try:
            with block:
                os._exit(1)
        except semlock.NotHeldError:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with block:
        pass


@pytest.mark.parametrize(
    "make",
    [semlock.AsyncLock, semlock.AsyncSharedLock, lambda path: semlock.AsyncSlotLock(path, 2)],
)
def test_a_tasks_block_is_not_entered_twice(tmp_path, make):
    async def main():
        lock = make(tmp_path / "a.lock")
        block = await lock.acquire()
        async with block:
            assert lock.held
        with pytest.raises(semlock.NotHeldError):
            async with block:
                pytest.fail("the block ran without its lock")

    asyncio.run(main())
