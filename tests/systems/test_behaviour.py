"""What every lock system does alike: those of the table, and one that is defined in the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import systems
from semlock._waiting.hub import hub_here
from support import PATIENCE, Child, content_of, take_away, trio_or_skip, wait_until
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


@pytest.fixture
def neighbour(system, place):
    """A process that can hold the lock by an object of its own."""
    name = INI if system.name == "ini" else system.name
    with Child() as child:
        child.run(
            f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
            f"from semlock import systems\nlock = systems.find({name!r}).lock({place!r})"
        )
        yield child


def test_one_holds_at_a_time(lock, other):
    with lock:
        assert lock.held
        assert not other.try_acquire()
    assert not lock.held
    with other:
        assert not lock.try_acquire()


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


def test_a_wait_ends_with_the_holder(lock, neighbour):
    neighbour.run("assert lock.try_acquire()")
    later = threading.Timer(0.05, neighbour.run, ("lock.release()",))
    later.start()
    with lock.acquire(timeout=PATIENCE):
        assert lock.held
    later.join()


def test_a_timeout_names_the_holder(lock, neighbour, place):
    neighbour.run("assert lock.try_acquire()")
    for limit in (0, 0.05):
        with pytest.raises(semlock.LockTimeoutError) as failure:
            lock.acquire(timeout=limit)
        assert failure.value.path == lock.path
        assert failure.value.status.info.pid == neighbour.pid
    assert os.path.exists(place)


def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired(system, place, other):
    lock = system.lock(place, reentrant=True)
    with lock, lock:
        assert not other.try_acquire()
    with other:
        pass


def test_a_lost_lock_is_noticed(lock, place, system):
    lock.acquire()
    take_away(place)
    with pytest.raises(semlock.LockLostError):
        lock.check()
    with system.lock(place), pytest.raises(semlock.LockLostError):
        lock.release()


def test_a_refresh_writes_the_time_and_nothing_else(system, lock, place):
    with lock:
        before = lock.info
        lock.refresh()
        after = lock.info
        assert after.timestamp >= int(before.timestamp)
        assert after == system.status(place).info
        assert (after.pid, after.token) == (before.pid, before.token)


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


def test_one_object_serves_threads_one_after_the_other(lock):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(20):
            with lock.acquire(timeout=PATIENCE):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_decorated_function_runs_under_the_lock(lock):
    @lock
    def inside():
        return lock.held

    assert inside()
    assert not lock.held


@pytest.mark.skipif(sys.platform == "win32", reason="a killed process leaves nothing there")
def test_a_dead_holders_lock_is_taken_where_the_record_can_prove_it(system, lock, neighbour):
    neighbour.run("assert lock.try_acquire()")
    proves = system.decode(content_of(lock.path)).witness is not None
    neighbour.kill()
    if proves:
        with lock.acquire(timeout=PATIENCE):
            pass
    else:
        assert not lock.try_acquire()


# ---------------------------------------------------------------- tasks


def run(function, *, trio=False):
    """Run a coroutine function in a loop, which has nothing left of it afterwards."""

    async def whole():
        await function()
        hub = hub_here()
        assert (hub.waits, hub.lines) == (set(), {})

    if trio:
        trio_or_skip().run(whole)
    else:
        asyncio.run(asyncio.wait_for(whole(), PATIENCE))


@pytest.mark.parametrize("trio", [False, True], ids=["asyncio", "trio"])
def test_a_task_holds_it_in_a_block(system, place, other, trio):
    lock = system.async_lock(place)

    async def main():
        async with lock:
            assert lock.held
            assert not other.try_acquire()
        async with await lock.acquire(timeout=1):
            assert lock.info.pid == os.getpid()
        assert lock.try_acquire()
        lock.release()
        with pytest.raises(TypeError, match="async with"):
            lock.__enter__()

    run(main, trio=trio)


@pytest.mark.parametrize("trio", [False, True], ids=["asyncio", "trio"])
def test_a_task_waits_while_its_loop_goes_on(system, place, neighbour, trio):
    lock = system.async_lock(place)
    neighbour.run("assert lock.try_acquire()")

    async def main():
        ticks = 0

        async def ticking():
            nonlocal ticks
            while True:
                await hub_here().rest(0.001)
                ticks += 1
                if ticks == 20:
                    neighbour.run("lock.release()")

        if trio:
            nursery = trio_or_skip().open_nursery()
            async with nursery as tasks:
                tasks.start_soon(ticking)
                async with lock:
                    tasks.cancel_scope.cancel()
        else:
            beside = asyncio.create_task(ticking())
            async with lock:
                beside.cancel()
        assert ticks >= 20

    run(main, trio=trio)


def test_tasks_of_one_object_exclude_each_other(system, place):
    lock = system.async_lock(place)
    inside, most = 0, 0

    async def work():
        nonlocal inside, most
        for _ in range(5):
            async with lock:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    async def main():
        await asyncio.gather(*(work() for _ in range(4)))

    run(main)
    assert most == 1


def test_a_task_whose_time_is_over_is_told_who_holds_it(system, place, neighbour):
    lock = system.async_lock(place)
    neighbour.run("assert lock.try_acquire()")

    async def main():
        for limit in (0, 0.05):
            with pytest.raises(semlock.LockTimeoutError) as failure:
                await lock.acquire(timeout=limit)
            assert failure.value.status.info.pid == neighbour.pid

    run(main)


def test_a_cancelled_task_holds_nothing(system, place, neighbour):
    lock = system.async_lock(place)
    neighbour.run("assert lock.try_acquire()")

    async def main():
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not lock.held
        neighbour.run("lock.release()")
        async with await lock.acquire(timeout=PATIENCE):
            pass

    run(main)


def test_a_reentrant_lock_of_tasks_is_reentrant_for_the_task_that_holds(system, place):
    lock = system.async_lock(place, reentrant=True)

    async def main():
        async with lock:
            async with lock:
                assert not await asyncio.create_task(trying())
            assert lock.held
            with pytest.raises(semlock.LockTimeoutError):
                await asyncio.create_task(lock.acquire(timeout=0))
        assert not lock.held

    async def trying():
        return lock.try_acquire()

    run(main)


def test_a_task_that_waits_for_itself_is_refused(system, place):
    if system.name == "sidecar":
        pytest.skip("fs-safe's waits go on until their time is over")
    lock = system.async_lock(place)

    async def main():
        async with lock:
            with pytest.raises(semlock.LockDeadlockError, match="task"):
                await lock.acquire(timeout=PATIENCE)

    run(main)


def test_a_lost_lock_of_a_task_is_noticed(system, place):
    lock = system.async_lock(place)

    async def main():
        with pytest.raises(semlock.LockLostError):
            async with lock:
                take_away(place)

    run(main)


def test_on_wait_is_told_to_threads_and_tasks(system, place, neighbour):
    neighbour.run("assert lock.try_acquire()")
    told = []

    def note(status, waited):
        told.append(status.info.pid)

    with pytest.raises(semlock.LockTimeoutError):
        system.lock(place, on_wait=note).acquire(timeout=0.05)

    async def main():
        with pytest.raises(semlock.LockTimeoutError):
            await system.async_lock(place, on_wait=note).acquire(timeout=0.05)

    run(main)
    assert told == [neighbour.pid] * 2


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

    run(main)


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
