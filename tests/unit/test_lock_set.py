"""``LockSet``: what gets free is taken, however many locks there are."""

import asyncio
import errno
import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from memory_engine import Server, space_on
from semlock import sema
from semlock._core import changes
from semlock._locks import candidates
from support import Child, in_a_fork, take_away, trio_or_skip, wait_until

watches = pytest.mark.skipif(sys.platform != "linux", reason="looks by the clock here")


@pytest.fixture(params=["watched", "by the clock"])
def either(request, monkeypatch):
    """With reports of the kernel, and without any."""
    if request.param == "by the clock":
        monkeypatch.setattr(changes.Changes, "watch", lambda self, directory: -1)
    elif sys.platform != "linux":
        pytest.skip("looks by the clock here")
    return request.param


@pytest.fixture
def only_reports(monkeypatch):
    """Nothing is found by the clock."""
    monkeypatch.setattr(candidates, "_ROUND", 1 << 60)


def locks_in(tmp_path, count=5, kind=semlock.Lock, **options):
    return [kind(tmp_path / f"{number}.lock", **options) for number in range(count)]


def taken_in(locks, seconds=5.0, **options):
    """Wait, and give what the first try takes that takes anything."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if locks.wait(max(0, end - time.monotonic())) and (got := locks.try_acquire(**options)):
            return got
    return []


def release(locks):
    for lock in locks:
        lock.release()


def holding(child, locks):
    """Have a child hold the locks at these paths."""
    paths = [lock.path for lock in locks]
    child.run(
        f"theirs = [semlock.Lock(path, durability='none') for path in {paths!r}]\n"
        "assert all(semlock.try_acquire_many(theirs))"
    )


def sources():
    """Count this process's event sources."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += "inotify" in os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing's own
            continue
    return found


class TestTaking:
    def test_free_locks_are_taken_in_their_order_up_to_a_limit(self, tmp_path):
        locks = locks_in(tmp_path)
        some = semlock.LockSet(locks)
        assert some.try_acquire(limit=2) == locks[:2]
        assert some.try_acquire(limit=2) == locks[2:4]
        assert some.try_acquire() == locks[4:]
        assert some.try_acquire() == []
        release(locks)

    def test_what_is_released_is_taken_in_the_order_of_the_releases(self, tmp_path, either):
        locks = locks_in(tmp_path)
        with Child() as child:
            holding(child, locks)
            some = semlock.LockSet(locks)
            assert some.try_acquire() == []
            child.run("theirs[3].release(); theirs[1].release()")
            got = taken_in(some)
            while len(got) < 2:
                got += taken_in(some)
            if either == "watched":
                assert got == [locks[3], locks[1]]
            assert set(got) == {locks[1], locks[3]}
            assert some.try_acquire() == []
            release(got)

    @pytest.mark.parametrize("kind", ["kept claim", "first file"])
    def test_the_locks_of_a_killed_holder_are_taken(self, tmp_path, either, kind):
        locks = locks_in(tmp_path, 20)
        with Child() as child:
            if kind == "kept claim":
                holding(child, locks)
                child.run("[lock.release() for lock in theirs]")
            holding(child, locks)
            some = semlock.LockSet(locks)
            assert some.try_acquire() == []
            child.kill()
            began = time.monotonic()
            got = []
            while len(got) < 20 and time.monotonic() < began + 20:
                got += taken_in(some)
            assert set(got) == set(locks)
            release(got)

    @watches
    def test_a_death_is_reported_and_not_only_found_by_the_clock(self, tmp_path, only_reports):
        """Also that of a holder that came after the set, and of one that has nothing else."""
        locks = locks_in(tmp_path, 200, durability="none")
        some = semlock.LockSet(locks)
        release(some.try_acquire())
        with Child() as child:
            holding(child, locks)
            while some.wait(0.01):
                assert some.try_acquire() == []
            assert not any(semlock.try_acquire_many(locks))  # they are judged now
            child.kill()
            got = taken_in(some)
            while len(got) < 200 and (more := taken_in(some, 1)):
                got += more
            assert set(got) == set(locks)
        release(got)

    @watches
    def test_the_death_of_a_holder_whose_file_was_at_another_lock_before(
        self, tmp_path, only_reports
    ):
        """The number of a kept claim's file names another lock than when it was asked for."""
        first, second, third = locks_in(tmp_path, 3)
        some = semlock.LockSet([first, second, third])
        with Child() as holder, Child() as other:
            holder.run(
                f"one, two = (semlock.Lock(p) for p in {[first.path, second.path]!r})\n"
                "for _ in range(3): one.acquire(); one.release()\n"
                "one.acquire(); None"
            )
            number = os.stat(first.path).st_ino
            other.run(f"lock = semlock.Lock({third.path!r}); lock.acquire(); None")
            assert some.try_acquire() == [second]
            other.kill()  # now the numbers are asked for
            assert taken_in(some) == [third]
            third.release()
            some.discard(third)
            second.release()
            holder.run("one.release(); two.acquire(); None")
            assert os.stat(second.path).st_ino == number
            assert taken_in(some) == [first]
            some.discard(first)
            while some.wait(0.05):
                assert some.try_acquire() == []
            holder.kill()
            assert taken_in(some, 2) == [second]
            release([first, second])

    @watches
    def test_another_program_may_take_and_free_a_lock(self, tmp_path, only_reports):
        [lock] = locks_in(tmp_path, 1)
        some = semlock.LockSet([lock])
        assert some.try_acquire() == [lock]
        lock.release()
        with open(lock.path, "x"):
            assert some.try_acquire() == []
        while some.wait(0.05):  # its close is reported, and looked at
            assert some.try_acquire() == []
        take_away(lock.path)
        assert taken_in(some, 2) == [lock]
        lock.release()

    @watches
    def test_a_lock_that_is_moved_away_is_free(self, tmp_path, only_reports):
        [lock] = locks_in(tmp_path, 1)
        (tmp_path / "0.lock").write_text("pid=1\n")
        some = semlock.LockSet([lock])
        assert some.try_acquire() == []
        (tmp_path / "0.lock").rename(tmp_path / "elsewhere")
        assert taken_in(some, 2) == [lock]
        lock.release()

    def test_a_failing_lock_keeps_no_other_from_being_taken(self, tmp_path):
        (tmp_path / "directory").mkdir()
        bad = semlock.Lock(tmp_path / "directory")
        [good] = locks_in(tmp_path, 1)
        some = semlock.LockSet([bad, good])
        with pytest.raises(semlock.LockPathError, match="a directory"):
            some.try_acquire()
        assert some.try_acquire() == [good]
        good.release()


class TestMembers:
    def test_it_is_a_set(self, tmp_path):
        locks = locks_in(tmp_path, 3)
        some = semlock.LockSet(locks[:2])
        some.add(locks[2])
        some.add(locks[2])
        assert len(some) == 3
        assert list(some) == locks
        some.discard(locks[0])
        some.discard(locks[0])
        assert locks[0] not in some
        assert some.try_acquire() == locks[1:]
        release(locks[1:])
        assert repr(some) == "<LockSet of 2 locks>"

    def test_a_member_may_come_and_go_while_it_is_held(self, tmp_path, either):
        first, second = locks_in(tmp_path, 2)
        some = semlock.LockSet([first])
        assert some.try_acquire() == [first]
        some.discard(first)
        first.release()
        some.add(second)
        assert some.try_acquire() == [second]
        second.release()
        assert taken_in(some) == [second]
        second.release()

    def test_a_member_that_goes_during_its_try_is_not_tried_again(self, tmp_path):
        class Leaving(semlock.Lock):
            def try_acquire(self):
                some.discard(self)
                raise OSError

        some = semlock.LockSet(locks_in(tmp_path, 1, Leaving))
        with pytest.raises(OSError):
            some.try_acquire()
        assert some.try_acquire() == []

    @pytest.mark.parametrize("wrong", [None, "a.lock", b"a.lock", Path("a"), 3, object()])
    def test_what_is_no_lock_is_refused(self, wrong):
        with pytest.raises(TypeError, match="while their file is there") as error:
            semlock.LockSet([wrong])
        assert ("make a Lock" in str(error.value)) is isinstance(wrong, (str, bytes, Path))

    @pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
    def test_a_lock_whose_file_stays_is_refused_and_acquire_any_takes_it(self, tmp_path):
        kernel = semlock.KernelLock(tmp_path / "a")
        with pytest.raises(TypeError, match=r"file is there.*; acquire_any\(\) waits for any"):
            semlock.LockSet([kernel])
        assert semlock.acquire_any([kernel]) is kernel
        kernel.release()

    def test_a_lock_on_a_server_is_refused(self):
        with space_on(Server()) as space:
            with pytest.raises(
                TypeError, match=r"; acquire_any\(\) of its space waits for any"
            ):
                semlock.LockSet([space.Lock("a")])

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "4", True])
    def test_a_wrong_limit_is_refused(self, wrong, tmp_path):
        with pytest.raises(ValueError, match="limit is a number from 1 on"):
            semlock.LockSet(locks_in(tmp_path)).try_acquire(wrong)

    def test_a_wait_for_nothing_is_refused(self):
        with pytest.raises(ValueError, match="no lock to wait for"):
            semlock.LockSet().wait()
        assert semlock.LockSet().try_acquire() == []

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
    def test_a_wrong_timeout_is_refused(self, timeout, tmp_path):
        with pytest.raises((TypeError, ValueError)):
            semlock.LockSet(locks_in(tmp_path)).wait(timeout)

    def test_threads_and_tasks_are_not_mixed(self, tmp_path):
        some = semlock.LockSet(locks_in(tmp_path))
        with pytest.raises(TypeError, match="all of threads or all of"):
            some.add(semlock.AsyncLock(tmp_path / "a"))

    def test_a_wait_for_oneself_is_refused(self, tmp_path):
        locks = locks_in(tmp_path, 2)
        some = semlock.LockSet(locks)
        assert some.try_acquire() == locks
        with pytest.raises(semlock.LockDeadlockError):
            some.wait()
        assert not some.wait(0.02)
        release(locks)


class TestKinds:
    """Each kind of lock that has a file is a member like any other."""

    def test_slots(self, tmp_path, either):
        with Child() as child:
            path = str(tmp_path / "licence")
            child.run(
                f"one, two = semlock.SlotLock({path!r}, 2), semlock.SlotLock({path!r}, 2)\n"
                "assert one.try_acquire() and two.try_acquire()"
            )
            slots = semlock.SlotLock(path, 2)
            some = semlock.LockSet([slots])
            assert some.try_acquire() == []
            child.run("two.release()")
            assert taken_in(some) == [slots]
            slots.release()
            child.kill()
            assert taken_in(some) == [slots]
            slots.release()

    def test_a_writer_waits_for_readers(self, tmp_path, either):
        with Child() as child:
            path = str(tmp_path / "table")
            child.run(f"reader = semlock.SharedLock({path!r}); reader.acquire_shared(); None")
            shared = semlock.SharedLock(path)
            some = semlock.LockSet([shared])
            assert some.try_acquire() == []
            child.run("reader.release()")
            assert taken_in(some) == [shared]
            shared.release()

    def test_another_lock_system(self, tmp_path, either):
        with Child() as child:
            path = str(tmp_path / "s.lock")
            child.run(
                f"from semlock import sema; s = sema.Semaphore({path!r}); s.acquire(); None"
            )
            lock = sema.Semaphore(path)
            some = semlock.LockSet([lock, *locks_in(tmp_path, 1)])
            release(some.try_acquire())
            child.run("s.release()")
            while lock not in (got := taken_in(some)):
                release(got)
            release(got)

    @watches
    def test_a_fair_lock_is_left_to_who_waits(self, tmp_path, only_reports):
        """And it is had when they are through, or do not use their turn."""
        path = str(tmp_path / "fair")
        with Child() as holder, Child() as waiter:
            make = f"lock = semlock.Lock({path!r}, fair=True)"
            holder.run(f"{make}; lock.acquire(); None")
            waiter.run(make)
            waiter.send("lock.acquire(); None")
            wait_until(
                lambda: [n for n in os.listdir(tmp_path) if n.endswith(".queue")], "queue"
            )
            time.sleep(0.15)
            fair = semlock.Lock(path, fair=True)
            some = semlock.LockSet([fair])
            assert some.try_acquire() == []
            waiter.stop()
            holder.run("lock.release()")
            began = time.monotonic()
            assert some.try_acquire() == []
            assert taken_in(some) == [fair]
            assert time.monotonic() - began > 0.15
            waiter.resume()
            fair.release()
            waiter.receive()
            assert some.try_acquire() == []
            waiter.run("lock.release()")


class TestReports:
    @watches
    @pytest.mark.parametrize("what", ["release", "death"])
    def test_nothing_is_missed_between_the_look_and_the_first_report(
        self, tmp_path, monkeypatch, only_reports, what
    ):
        """The set is stopped before it watches, before it looks, and after that."""
        real = candidates.Candidates._look
        for when in ("earlier", "before", "after"):
            directory = tmp_path / when
            directory.mkdir()
            locks = locks_in(directory, 80, durability="none")
            with Child() as child:
                holding(child, locks)

                def change(child=child):
                    child.run("theirs[70].release()") if what == "release" else child.kill()

                def look(self, some, when=when, change=change):
                    monkeypatch.setattr(candidates.Candidates, "_look", real)
                    if when == "before":
                        change()
                    real(self, some)
                    if when == "after":
                        change()

                some = semlock.LockSet(locks)
                some._ready.clear()  # so that only the look and the reports count
                if when == "earlier":
                    change()
                monkeypatch.setattr(candidates.Candidates, "_look", look)
                got = taken_in(some, 3)
                while locks[70] not in got:
                    more = taken_in(some, 3)
                    assert more
                    got += more
                release(got)

    @watches
    @pytest.mark.parametrize("name", [".semlock-%x.kept", "another program's %d"])
    def test_a_poll_reads_all_that_was_reported(self, tmp_path, only_reports, name):
        [lock] = locks_in(tmp_path, 1)
        with Child() as child:
            holding(child, [lock])
            some = semlock.LockSet([lock])
            while some.wait(0.05):
                assert some.try_acquire() == []
            for number in range(500):
                other = tmp_path / (name % number)
                other.mkdir()
                other.rmdir()
            child.run("theirs[0].release()")
            assert some.try_acquire() == [lock]
        lock.release()

    @watches
    def test_lost_reports_are_made_up_for_by_a_look(self, tmp_path, only_reports):
        with open("/proc/sys/fs/inotify/max_queued_events") as file:
            room = int(file.read())
        if room > 20_000:
            pytest.skip("too many events for a test")
        locks = locks_in(tmp_path, 3)
        with Child() as child:
            holding(child, locks)
            some = semlock.LockSet(locks)
            assert some.try_acquire() == []
            names = [str(tmp_path / "a"), str(tmp_path / "b")]
            open(names[0], "x").close()
            for _ in range(room):  # a move is two reports, and equal ones in a row are one
                os.rename(*names)
                names.reverse()
            child.run("theirs[2].release()")
            assert some.try_acquire() == [locks[2]]
            child.kill()
            assert set(taken_in(some)) <= set(locks[:2])
        for lock in locks:
            if lock.held:
                lock.release()

    @watches
    def test_a_directory_that_is_removed_and_made_again_is_watched_again(
        self, tmp_path, only_reports
    ):
        directory = tmp_path / "d"
        directory.mkdir()
        [lock] = locks_in(directory, 1)
        some = semlock.LockSet([lock])
        release(some.try_acquire())
        gc.collect()
        semlock._core.capi.drain_pool()
        for name in os.listdir(directory):
            os.unlink(directory / name)
        directory.rmdir()
        with pytest.raises(OSError, match="directory"):
            for _ in range(100):
                some.wait(0.01)
                some.try_acquire()
        directory.mkdir()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                if some.try_acquire() == [lock]:
                    break
            except OSError:
                continue
        assert lock.held
        lock.release()
        assert taken_in(some) == [lock]
        lock.release()

    @watches
    def test_a_directory_that_is_moved_away_is_watched_no_longer(self, tmp_path, only_reports):
        directory = tmp_path / "d"
        directory.mkdir()
        [lock] = locks_in(directory, 1)
        (directory / "0.lock").write_text("pid=1\n")
        some = semlock.LockSet([lock])
        assert some.try_acquire() == []
        directory.rename(tmp_path / "e")
        directory.mkdir()
        assert taken_in(some) == [lock]
        lock.release()
        (tmp_path / "e" / "0.lock").unlink()

    @watches
    @pytest.mark.parametrize("change", ["release", "death"])
    def test_without_its_event_source_it_begins_anew(self, tmp_path, only_reports, change):
        """Also if the holders were judged just before."""
        locks = locks_in(tmp_path, 3)
        with Child() as child:
            holding(child, locks)
            some = semlock.LockSet(locks)
            assert some.try_acquire() == []
            assert not any(semlock.try_acquire_many(locks))
            os.close(some._changes.events)
            if change == "release":
                child.run("theirs[0].release()")
            else:
                child.kill()
            assert some.try_acquire() == (locks[:1] if change == "release" else locks)
            some.close()
        release([lock for lock in locks if lock.held])

    @watches
    def test_a_file_of_the_program_under_the_sources_number_is_left_alone(self, tmp_path):
        [lock] = locks_in(tmp_path, 1)
        some = semlock.LockSet([lock])
        release(some.try_acquire())
        (tmp_path / "text").write_text("the program's")
        with open(tmp_path / "text") as file:
            number = some._changes.events
            os.dup2(file.fileno(), number)
            try:
                assert some.try_acquire() == [lock]
                some.close()
                assert os.read(number, 99) == b"the program's"
            finally:
                os.close(number)
        lock.release()

    @watches
    def test_it_has_one_descriptor_and_gives_it_back(self, tmp_path):
        release(semlock.LockSet(locks_in(tmp_path, 1)).try_acquire())
        gc.collect()
        for number in range(3):
            (tmp_path / str(number)).mkdir()
        before = sources()
        sets = [
            semlock.LockSet(
                [lock for n in range(3) for lock in locks_in(tmp_path / str(n), 10)]
            )
            for _ in range(8)
        ]
        for some in sets:
            release(some.try_acquire())
        assert sources() - before <= len(sets)
        for some in sets[:4]:
            some.close()
            some.close()
        release(sets[0].try_acquire())
        del some
        sets.clear()
        gc.collect()
        assert sources() <= 4  # which stay for the next use

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_has_a_set_of_its_own(self, tmp_path):
        locks = locks_in(tmp_path, 2)
        some = semlock.LockSet(locks)
        assert some.try_acquire() == locks

        def child():
            assert some.try_acquire() == []
            assert not some.wait(0.02)

        some._mutex.acquire()
        in_a_fork(child)
        some._mutex.release()
        release(locks)
        assert set(some.try_acquire()) == set(locks)
        release(locks)

    @watches
    def test_looking_by_the_clock_takes_a_hundredth_of_the_time(self, tmp_path, monkeypatch):
        monkeypatch.setattr(changes.Changes, "watch", lambda self, directory: -1)
        with Child() as child:
            locks = locks_in(tmp_path, 200, durability="none")
            holding(child, locks)
            some = semlock.LockSet(locks)
            while some.try_acquire() or some.wait(0.05):
                pass
            used, began = time.process_time(), time.monotonic()
            assert not some.wait(0.5)
            assert time.process_time() - used < 0.05 * (time.monotonic() - began)


class TestThreads:
    def test_each_lock_is_taken_by_one_thread(self, tmp_path, either):
        locks = locks_in(tmp_path, 30, durability="none")
        some = semlock.LockSet(locks)
        counts = dict.fromkeys(locks, 0)
        busy = dict.fromkeys(locks, 0)
        failures = []
        end = time.monotonic() + 1.0

        def work():
            try:
                while time.monotonic() < end:
                    for lock in some.try_acquire(limit=2):
                        busy[lock] += 1
                        assert busy[lock] == 1
                        counts[lock] += 1
                        busy[lock] -= 1
                        lock.release()
                    some.wait(0.01)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        spare = locks_in(tmp_path, 60)[30:]
        while time.monotonic() < end:
            one = random.choice(spare)
            counts.setdefault(one, 0)
            busy.setdefault(one, 0)
            some.add(one)
            time.sleep(0.005)
            some.discard(one)
        for thread in threads:
            thread.join(30)
        assert not failures
        assert all(counts[lock] for lock in locks)
        assert not any(lock.held for lock in locks)

    @watches
    def test_what_one_thread_leaves_another_is_woken_for(self, tmp_path):
        locks = locks_in(tmp_path, 4)
        with Child() as child:
            holding(child, locks)
            some = semlock.LockSet(locks)
            while some.try_acquire() or some.wait(0):
                pass
            got = []

            def work():
                while len(got) < 3:
                    got.extend(taken_in(some))

            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(0.05)
            child.run("[lock.release() for lock in theirs]")
            got.extend(some.try_acquire(limit=1))
            thread.join(10)
            assert not thread.is_alive()
        release(got)


class TestTasks:
    def test_tasks_take_what_gets_free(self, tmp_path, either):
        async def main():
            locks = locks_in(tmp_path, 4, semlock.AsyncLock)
            with Child() as child:
                holding(child, locks)
                some = semlock.LockSet(locks)
                assert some.try_acquire() == []
                assert not await some.wait_async(0.02)
                with pytest.raises(TypeError, match="wait_async"):
                    some.wait(1)
                child.run("theirs[1].release(); theirs[2].release()")
                found = []
                async for lock in some:
                    found.append(lock)
                    some.discard(lock)
                    if len(found) == 2:
                        break
                assert set(found) == set(locks[1:3])
                release(found)

        asyncio.run(main())

    def test_an_emptied_set_ends_the_loop(self, tmp_path):
        async def main():
            locks = locks_in(tmp_path, 3, semlock.AsyncLock)
            some = semlock.LockSet(locks)
            async for lock in some:
                some.discard(lock)
                lock.release()
            assert len(some) == 0

        asyncio.run(main())

    def test_several_tasks_share_a_set(self, tmp_path, either):
        async def main():
            locks = locks_in(tmp_path, 6, semlock.AsyncLock)
            some = semlock.LockSet(locks)
            counts = []

            async def work():
                async for lock in some:
                    counts.append(lock)
                    await asyncio.sleep(0.001)
                    lock.release()
                    if len(counts) > 60:
                        return

            await asyncio.wait_for(asyncio.gather(*(work() for _ in range(3))), 20)
            assert set(counts) == set(locks)

        asyncio.run(main())

    @pytest.mark.skipif(sys.platform == "win32", reason="a look by the clock ends a wait there")
    def test_a_cancelled_task_leaves_nothing(self, tmp_path):
        async def main():
            [lock] = locks_in(tmp_path, 1, semlock.AsyncLock)
            (tmp_path / "0.lock").write_text("pid=1\n")
            some = semlock.LockSet([lock])
            while await some.wait_async(0.05):
                assert some.try_acquire() == []
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(some.wait_async(), 0.03)
            (tmp_path / "0.lock").unlink()
            assert await some.wait_async(5)
            assert some.try_acquire() == [lock]
            lock.release()

        asyncio.run(main())

    @watches
    def test_trio(self, tmp_path):
        trio = trio_or_skip()

        async def main():
            locks = locks_in(tmp_path, 2, semlock.AsyncLock)
            with Child() as child:
                holding(child, locks)
                some = semlock.LockSet(locks)
                assert some.try_acquire() == []
                assert not await some.wait_async(0.05)
                child.run("theirs[1].release()")
                with trio.fail_after(5):
                    async for lock in some:
                        assert lock is locks[1]
                        break
                release(locks[1:])

        trio.run(main)


def test_a_signal_handler_may_use_the_set(tmp_path):
    """It runs in the thread that holds the set's mutex."""
    locks = locks_in(tmp_path, 2)
    some = semlock.LockSet(locks)
    with some._mutex:
        assert some.try_acquire() == locks
    release(locks)


def test_importing_semlock_imports_no_set():
    code = "import sys, semlock; assert 'semlock._locks.lock_set' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@watches
def test_an_error_of_the_source_is_no_end(tmp_path, monkeypatch):
    """A read that fails otherwise: the set begins anew."""
    [lock] = locks_in(tmp_path, 1)
    some = semlock.LockSet([lock])
    release(some.try_acquire())
    monkeypatch.setattr(changes.Changes, "count", lambda self: -errno.EIO)
    assert some.try_acquire() == [lock]
    monkeypatch.undo()
    lock.release()
    assert taken_in(some) == [lock]
    lock.release()
