"""What every lock system does alike: those of the table, and one that is defined in the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock import systems
from support import PATIENCE, content_of, wait_until
from wine import WINE

TESTS = Path(__file__).parent.parent
INI = "ini_system:INI"
NOTHING = (sys.executable, "-c", "pass")  # a command of every system


@pytest.fixture
def ini():
    """The system of the tests, known to the table of this process."""
    yield systems.register(systems.find(INI))
    del systems._found["ini"]


@pytest.fixture(params=[*systems.NAMES, "ini"])
def system(request, ini):
    return systems.find(request.param)


@pytest.fixture
def place(system, tmp_path):
    """Give a path that the system's locks may have."""
    if system.name != "feature":
        return str(tmp_path / "the.lock")
    (tmp_path / "specs" / "one").mkdir(parents=True)
    return str(tmp_path / "specs" / "one" / ".lock")


@pytest.fixture
def lock(system, place):
    return system.lock(place)


@pytest.fixture
def other(system, place):
    return system.lock(place)


def test_an_empty_file_is_told_by_the_system_that_was_asked(system, lock, place):
    """Programs of other systems make the file, and then write to it; semlock's own do not."""
    with open(place, "w", encoding="ascii"):
        pass
    own = system.name == "semlock"
    for found in (lock.status(), system.status(place)):
        assert ("flock" in found.holder) == own
        assert ("not written its record yet" in found.holder) == (not own)
    with pytest.raises(semlock.LockTimeoutError) as caught:
        lock.acquire(timeout=0)
    assert ("flock" in str(caught.value)) == own


def test_the_record_says_who_holds_it(system, lock, place):
    with lock:
        info = lock.info
        assert info.pid == os.getpid()
        assert abs(info.timestamp - time.time()) < PATIENCE
        content = content_of(place)
        assert system.decode(content) == info == system.status(place).info
        found, read = systems.recognise(content)
        # Sema's and semats' locks are written by semlock with its own keys.
        own = ("sema", "semats")
        assert found.name == ("semlock" if system.name in own else system.name)
        assert read.pid == os.getpid()
    assert system.status(place).state == "free"


def test_a_status_has_the_raw_content(system, lock, place):
    assert system.status(place).content is None
    with lock:
        assert system.status(place).content == content_of(place)


def test_a_record_gets_another_time_and_keeps_its_length(system, lock, place):
    with lock:
        content = content_of(place)
        info = system.decode(content)
        later = int(time.time()) + 100
        text = system.restamp(content, info, later)
        assert len(text) == len(content)
        again = system.decode(text)
        assert again.timestamp == later
        assert (again.pid, again.tag, again.token) == (info.pid, info.tag, info.token)


def test_any_and_all_take_locks_of_each_system(system, place, tmp_path):
    beside = semlock.Lock(tmp_path / "beside.lock")
    with beside:
        won = semlock.acquire_any([system.lock(place), semlock.Lock(beside.path)])
        assert won.path == place
        won.release()
    with semlock.acquire_all([system.lock(place), beside]) as locks:
        assert all(lock.held for lock in locks)

    async def main():
        mine, other = system.async_lock(place), semlock.AsyncLock(beside.path)
        async with await semlock.acquire_all_async([mine, other]):
            assert mine.held
            assert other.held
        with beside:
            won = await semlock.acquire_any_async([other, mine])
            assert won is mine
            won.release()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


# ---------------------------------------------------------------- the command


def semlock_command(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, "-m", "semlock", *words],
        capture_output=True, text=True, env=environment, cwd=os.sep, **options,
    )  # fmt: skip


def test_the_command_knows_each_system(system, lock, place):
    if WINE and system.name == "ini":
        pytest.skip("the Python that runs there doesn't look at PYTHONPATH")
    name = INI if system.name == "ini" else system.name
    named = ("--dialect", name)
    assert semlock_command("status", *named, place).stdout.strip()
    with lock:
        found = semlock_command("status", "--json", *named, place)
        assert (found.returncode, f'"pid": {os.getpid()}' in found.stdout) == (1, True)
        assert f'"dialect": "{system.name}"' in found.stdout
        assert semlock_command("wait", "-t", "0", *named, place).returncode == 1
        ran = semlock_command("run", "-t", "0", *named, place, "--", *NOTHING)
        assert ran.returncode == 1, ran.stderr
    ran = semlock_command("run", *named, place, "--", *NOTHING)
    assert ran.returncode == 0, ran.stderr
    assert semlock_command("clean", "-y", *named, os.path.dirname(place)).returncode == 0
    wait_until(lambda: not os.path.exists(place), "it is free")


def test_what_is_no_system_is_refused_with_the_way_to_name_one(tmp_path):
    done = semlock_command("status", "--dialect", "nothing", str(tmp_path / "x.lock"))
    assert done.returncode == 2
    assert "package.module:NAME" in done.stderr
    done = semlock_command("status", "--dialect", "no_module:X", str(tmp_path / "x.lock"))
    assert done.returncode == 2
    assert "no_module" in done.stderr


# ---------------------------------------------------------------- a system of one's own


def test_a_record_with_two_places_that_change_is_refused(tmp_path):
    def twice(info):
        return b"%d %d" % (info.timestamp, info.timestamp)

    wrong = systems.System("wrong", compose=twice, decode=systems.find("sema").decode)
    with pytest.raises(semlock.LockRecordError):
        wrong.lock(tmp_path / "x.lock").acquire()


def test_a_registered_system_is_recognised(ini, tmp_path):
    with ini.lock(tmp_path / "x.lock", tag="why") as lock:
        assert lock.info.tag == "why"
        assert systems.recognise(lock.status().content)[0] is ini
