"""Slots, readers and writers by the locks of another lock system."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import systems


def place(name, directory) -> str:
    if name != "feature":
        return str(directory / "the.lock")
    (directory / "specs" / "one").mkdir(parents=True)
    return str(directory / "specs" / "one" / ".lock")


def in_a_thread(function):
    said = []
    thread = threading.Thread(target=lambda: said.append(function()))
    thread.start()
    thread.join()
    return said[0]


@pytest.mark.parametrize("name", systems.NAMES)
def test_a_program_of_the_system_is_a_writer(name, tmp_path):
    system, path = systems.find(name), place(name, tmp_path)
    shared = semlock.SharedLock(path, system=system)
    with system.lock(path):
        assert not in_a_thread(shared.try_acquire_shared)
        assert not in_a_thread(shared.try_acquire)
    with shared.shared():
        other = semlock.SharedLock(path, system=system)
        assert in_a_thread(lambda: other.try_acquire_shared() and not other.release())
        assert not in_a_thread(other.try_acquire)
    with shared:
        assert system.read(Path(path).read_bytes()) is not None
        assert not in_a_thread(system.lock(path).try_acquire)

    async def tasks():
        lock = semlock.AsyncSharedLock(path, system=system)
        async with lock.shared():
            assert lock.held == "shared"
        assert lock.try_acquire()
        lock.release()
        async with lock:
            assert lock.held == "exclusive"

    asyncio.run(tasks())


def test_a_reader_lives_by_proof_and_not_by_the_age_that_its_writers_have(tmp_path):
    path, sema = tmp_path / "the.lock", systems.find("sema")
    lock = semlock.SharedLock(path, system=sema)
    with lock.shared():
        (reader,) = (tmp_path / "the.lock.readers").iterdir()
        with reader.open("r+b") as file:
            old = re.sub(rb"timestamp=1", b"timestamp=0", file.read(), count=1)
            file.seek(0)
            file.write(old)
        with pytest.raises(semlock.LockTimeoutError):
            in_a_thread_raising(lambda: semlock.SharedLock(path, system=sema).acquire(0.2))
        assert reader.exists()


def in_a_thread_raising(function):
    def caught():
        try:
            return function()
        except semlock.SemlockError as error:
            return error

    if isinstance(said := in_a_thread(caught), Exception):
        raise said
    return said


@pytest.mark.parametrize("kind", [semlock.SlotLock, semlock.AsyncSlotLock])
def test_slots_that_a_format_does_not_allow_are_refused(kind, tmp_path):
    with pytest.raises(semlock.LockPathError, match=r"can.t have slots.* is no feature lock"):
        kind(place("feature", tmp_path), 2, system=systems.find("feature"))
    with pytest.raises(TypeError, match="can't be one of several slots"):
        kind(place("sidecar", tmp_path), 2, system=systems.find("sidecar"))
    with pytest.raises(TypeError, match="system is a lock system"):
        kind(tmp_path / "x", 2, system="sema")


def test_a_slot_that_was_waited_for_has_the_time_of_its_win(tmp_path):
    path, task = tmp_path / "the.lock", systems.find("task")
    first = semlock.SlotLock(path, 1, system=task)
    second = semlock.SlotLock(path, 1, system=task, held_by="object")
    first.acquire()
    thread = threading.Thread(target=second.acquire)
    thread.start()
    thread.join(0.3)
    before = time.time() - 0.1
    first.release()
    thread.join()
    assert task.status(f"{path}.1").info.timestamp > before
    second.release()


@pytest.mark.parametrize(
    "call", [semlock.acquire_any, semlock.acquire_all, semlock.acquire_any_async]
)
def test_a_lock_of_several_holders_is_no_member_of_a_wait_for_several(call, tmp_path):
    kind = semlock.AsyncSlotLock if call is semlock.acquire_any_async else semlock.SharedLock
    more = (2,) if kind is semlock.AsyncSlotLock else ()
    with pytest.raises(TypeError, match=r"waits in its own way\. A LockSet takes such locks"):
        call([kind(tmp_path / "x", *more)])
