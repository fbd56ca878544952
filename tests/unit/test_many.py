"""Many tries in one call."""

import glob
import os
import random
import subprocess
import sys
import threading
import time

import pytest

import semlock
import semlock.sema
import semlock.task
from semlock import systems
from support import PATIENCE, Child, Taking, state_of, take_away, wait_until, watched_by


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


def held_by_a_child(child, tmp_path, count):
    """Have a child hold locks at some paths; and give the paths."""
    paths = [str(tmp_path / f"{number}.lock") for number in range(count)]
    child.run(f"import semlock; locks = semlock.try_acquire_many({paths!r}); assert all(locks)")
    return paths


def judged_in_a_round(locks):
    """Have all holders due, try all, and tell which ones were judged."""
    natives = [lock._native for lock in locks]
    for native in natives:
        native.look_at = 1
    assert not any(semlock.try_acquire_many(locks))
    return {number for number, native in enumerate(natives) if native.look_at != 1}


class TestRounds:
    """Tries of many locks, again and again."""

    COUNT = 200

    def test_a_round_judges_a_share_and_each_lock_in_its_turn(self, tmp_path):
        with Child() as child:
            paths = held_by_a_child(child, tmp_path, self.COUNT)
            locks = [semlock.Lock(path) for path in paths]
            assert not any(semlock.try_acquire_many(locks))
            assert all(lock._native.look_at > 1 for lock in locks), "not judged when first seen"
            rounds = 64 * (1 if locks[0]._native.witnessed else 4)
            found = [judged_in_a_round(locks) for _ in range(2 * rounds)]
            assert set().union(*found) == set(range(self.COUNT))
            assert max(map(len, found)) <= self.COUNT // 64 + 1

    def test_turns_that_come_together_are_spread_over_rounds(self, tmp_path):
        with Child() as child:
            locks = [semlock.Lock(p) for p in held_by_a_child(child, tmp_path, self.COUNT)]
            assert not any(semlock.try_acquire_many(locks))
            natives = [lock._native for lock in locks]
            rounds = 64 * (1 if natives[0].witnessed else 4)
            for native in natives:  # it is the turn of all of them
                native.checks = -(native.name_hash >> 20) % rounds
            left = set(range(self.COUNT))
            for _ in range(self.COUNT):
                judged = judged_in_a_round(locks)
                assert 0 < len(judged) <= self.COUNT // 64 + 1
                left -= judged
                if not left:
                    break
            assert not left

    def test_a_few_are_all_judged_when_due(self, tmp_path):
        with Child() as child:
            locks = [semlock.Lock(path) for path in held_by_a_child(child, tmp_path, 10)]
            assert not any(semlock.try_acquire_many(locks))
            assert judged_in_a_round(locks) == set(range(10))

    @pytest.mark.skipif(sys.platform == "win32", reason="asking costs as much as a judgement")
    def test_the_locks_of_a_process_that_has_ended_are_had_in_the_next_round(self, tmp_path):
        with Child() as child:
            locks = [semlock.Lock(p) for p in held_by_a_child(child, tmp_path, self.COUNT)]
            assert not any(semlock.try_acquire_many(locks))
            if not locks[0]._native.witnessed:
                pytest.skip("no witness here")
            child.kill()
            for lock in locks:
                lock._native.look_at = 1
            assert all(semlock.try_acquire_many(locks))
            for lock in locks:
                lock.release()

    @pytest.mark.skipif(sys.platform != "linux", reason="needs a witness")
    def test_a_number_that_is_no_process_here_is_asked_for_once(self, tmp_path):
        """So it is where the holder is in another PID namespace."""
        with Child() as child:
            paths = held_by_a_child(child, tmp_path, self.COUNT)
            pid = 10 ** len(str(child.pid)) - 1
            while os.path.exists(f"/proc/{pid}"):
                pid -= 1
            for path in paths:
                with open(path, "r+") as record:
                    record.write(f"pid={pid}")
            locks = [semlock.Lock(path) for path in paths]
            assert not any(semlock.try_acquire_many(locks))
            assert {lock._native.holder for lock in locks} == {pid}
            assert judged_in_a_round(locks) == set(range(self.COUNT))
            assert len(judged_in_a_round(locks)) < self.COUNT / 8

    def test_each_release_is_seen_in_the_next_round(self, tmp_path):
        """Also if the directory was the same in many rounds, or has just changed."""
        paths = [str(tmp_path / f"{number}.lock") for number in range(self.COUNT)]
        locks = [semlock.Lock(path, durability="none") for path in paths]
        held = [semlock.Lock(path, durability="none") for path in paths]
        assert all(semlock.try_acquire_many(held))
        for number in range(self.COUNT):
            if number % 50 == 0:
                time.sleep(0.05)
            for _ in range(number % 3):
                assert not any(semlock.try_acquire_many(locks))
            held[number].release()
            assert semlock.try_acquire_many(locks)[number] is locks[number]
            locks[number].release()
            held[number].acquire(timeout=0)
        for lock in held:
            lock.release()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
    def test_a_path_that_leads_to_another_directory_is_looked_at_there(self, tmp_path):
        for name in "ab":
            (tmp_path / name).mkdir()
        link = tmp_path / "link"
        link.symlink_to("a")
        held = semlock.try_acquire_many([tmp_path / "a" / str(n) for n in range(self.COUNT)])
        assert all(held)
        time.sleep(0.05)
        # Half of them by the directory's own name, which stay held.
        locks = [
            semlock.Lock(tmp_path / ("link" if number % 2 else "a") / str(number))
            for number in sorted(range(self.COUNT), key=lambda number: number % 2)
        ]
        for _ in range(3):
            assert not any(semlock.try_acquire_many(locks))
        link.unlink()
        link.symlink_to("b")
        result = semlock.try_acquire_many(locks)
        half = self.COUNT // 2
        assert result == [None] * half + locks[half:]
        for lock in locks[half:] + held:
            lock.release()

    @pytest.mark.parametrize("others", [0, 1000])
    def test_names_beside_the_locks_change_nothing(self, tmp_path, others):
        """Of a directory with many others the names are not read to the end."""
        for number in range(others):
            (tmp_path / f"other-{number}").touch()
        with Child() as child:
            paths = held_by_a_child(child, tmp_path, 64)
            more = [str(tmp_path / f"free-{number}") for number in range(20)]
            result = semlock.try_acquire_many([*paths, *more, *more])
            assert [lock and lock.path for lock in result] == [None] * 64 + more + [None] * 20
            for lock in result:
                if lock:
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


def some_of_each(tmp_path):
    """Make locks of several classes, the default's among them, at paths of their own."""
    kinds = [semlock.Lock, semlock.KernelLock, semlock.AsyncLock]
    kinds += [systems.find(name).lock for name in ("sema", "semats", "sidecar", "task")]
    locks = [kind(str(tmp_path / f"{number}.lock")) for number, kind in enumerate(kinds)]
    return [*locks, semlock.Lock(tmp_path / "last")]


def test_locks_of_all_classes_are_tried_in_one_call(tmp_path):
    locks = some_of_each(tmp_path)
    with semlock.Lock(tmp_path / "path") as held, some_of_each(tmp_path)[3]:
        result = semlock.try_acquire_many([*locks, held.path])
    assert result == [*locks[:3], None, *locks[4:], None]
    assert [lock.held for lock in locks] == [True] * 3 + [False] + [True] * 4
    for lock in filter(None, result):
        lock.release()


def test_a_bad_path_of_one_class_gives_back_what_the_others_have_won(tmp_path):
    locks = some_of_each(tmp_path)
    (tmp_path / "3.lock").mkdir()
    with pytest.raises(semlock.LockPathError, match="a directory"):
        semlock.try_acquire_many(locks)
    assert not any(lock.held for lock in locks)
    os.rmdir(tmp_path / "3.lock")
    assert all(semlock.try_acquire_many(locks))
    for lock in locks:
        lock.release()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: semlock.SlotLock(path, 2),
        semlock.SharedLock,
        lambda path: semlock.AsyncSlotLock(path, 2),
        semlock.AsyncSharedLock,
        lambda path: semlock.LockSet([semlock.Lock(path)]),
    ],
)
def test_a_lock_of_several_holders_is_refused_and_nothing_is_made(tmp_path, make):
    several = make(tmp_path / "several")
    with pytest.raises(TypeError, match=r"one holder \(Lock, .*its own try_acquire.*LockSet"):
        semlock.try_acquire_many([tmp_path / "a", several])
    assert os.listdir(tmp_path) == []


def test_one_path_is_no_list_of_its_letters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("ab", b"ab"):
        with pytest.raises(TypeError, match=r"a list of paths and locks, not b?'ab'"):
            semlock.try_acquire_many(path)
    assert os.listdir(tmp_path) == []


def test_a_reentrant_lock_counts(tmp_path):
    lock = semlock.Lock(tmp_path / "a", reentrant=True)
    with lock:
        assert semlock.try_acquire_many([lock]) == [lock]
        lock.release()
        assert lock.held
    assert not lock.held


@pytest.mark.parametrize("other", [None, "kernel", "sema"])
def test_a_bad_path_gives_a_nested_lock_back_once(tmp_path, other):
    lock = semlock.Lock(tmp_path / "a", reentrant=True)
    (tmp_path / "directory").mkdir()
    tried = [lock, tmp_path / "directory"]
    if other == "kernel":  # a lock of another class is tried after those
        tried.append(semlock.KernelLock(tmp_path / "other"))
    elif other == "sema":  # it is the one that fails
        tried[1] = systems.find("sema").lock(str(tmp_path / "directory"))
    with lock:
        with pytest.raises(semlock.SemlockError):
            semlock.try_acquire_many(tried)
        assert lock.count == 1
        lock.check()
    assert not lock.held
    assert visible(tmp_path) == ["directory"]


def in_threads(*functions):
    """Run functions at the same time, and wait for all; what one raises is raised."""
    failures = []

    def run(function):
        try:
            function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    if failures:
        raise failures[0]


class TestAll:
    def test_takes_all_or_none(self, tmp_path):
        paths = [str(tmp_path / f"{number}.lock") for number in range(5)]
        locks = [semlock.Lock(path) for path in paths]
        with semlock.acquire_all(locks) as taken:
            assert taken == tuple(locks)
            assert all(lock.held for lock in locks)
        assert not any(lock.held for lock in locks)
        with Child("import semlock") as other:
            other.run(
                f"theirs = semlock.Lock({paths[3]!r}, tag='theirs'); theirs.try_acquire()"
            )
            with pytest.raises(semlock.LockTimeoutError, match="theirs"):
                semlock.acquire_all(locks, timeout=0.05)
            assert not any(lock.held for lock in locks)
            with pytest.raises(semlock.LockTimeoutError):
                semlock.acquire_all(locks, timeout=0)
            other.run("theirs.release()")
            semlock.acquire_all(locks, timeout=20).release()

    def test_opposite_orders_and_nesters_never_end_in_a_circle(self, tmp_path):
        paths = [str(tmp_path / name) for name in ("a", "b", "c")]
        inside = []

        def together(order):
            for _ in range(30):
                with semlock.acquire_all([semlock.Lock(paths[i]) for i in order], timeout=50):
                    inside.append(1)
                    assert len(inside) == 1
                    inside.pop()

        def nested(first, second):
            for _ in range(30):
                with (
                    semlock.Lock(paths[first], timeout=50),
                    semlock.Lock(paths[second], timeout=50),
                ):
                    pass

        in_threads(
            lambda: together((0, 1, 2)),
            lambda: together((2, 1, 0)),
            lambda: nested(0, 2),
            lambda: nested(0, 1),
        )

    def test_those_who_nest_in_the_other_order_are_let_through(self, tmp_path):
        """They hold one and wait for the other, for ever if neither gives way."""
        a, b = (str(tmp_path / name) for name in ("a", "b"))

        def nested():
            for _ in range(20):
                with semlock.Lock(b, timeout=50):
                    time.sleep(0.001)
                    with semlock.Lock(a, timeout=50):
                        pass

        def together():
            for _ in range(20):
                with semlock.acquire_all([semlock.Lock(a), semlock.Lock(b)], timeout=50):
                    pass

        in_threads(nested, together, together)

    def test_locks_that_are_always_in_use_are_had_in_the_end(self, tmp_path):
        paths = [str(tmp_path / name) for name in ("a", "b")]
        stop = threading.Event()

        def busy(path):
            while not stop.is_set():
                with semlock.Lock(path):
                    time.sleep(0.002)

        def want():
            try:
                for _ in range(3):
                    with semlock.acquire_all([semlock.Lock(p) for p in paths], timeout=50):
                        pass
            finally:
                stop.set()

        in_threads(want, *(lambda p=p: busy(p) for p in paths for _ in range(2)))

    def test_a_crowd_that_wants_some_of_a_few_waits_in_no_circle(self, tmp_path):
        """Each circle would last as long as some are kept while another is waited for."""
        paths = [str(tmp_path / name) for name in "abc"]
        longest = 60 if sys.platform == "win32" else 3  # there they look by the clock

        def work(seed):
            chance = random.Random(seed)
            for _ in range(10):
                locks = [
                    semlock.Lock(path, durability="none") for path in chance.sample(paths, 2)
                ]
                with semlock.acquire_all(locks, timeout=longest):
                    time.sleep(0.001)

        in_threads(*(lambda seed=seed: work(seed) for seed in range(16)))

    def test_refuses_what_would_wait_for_itself(self, tmp_path):
        path = str(tmp_path / "a")
        lock = semlock.Lock(path)
        with pytest.raises(ValueError, match="twice"):
            semlock.acquire_all([lock, semlock.Lock(path)])
        with pytest.raises(ValueError, match="no lock"):
            semlock.acquire_all([])
        with pytest.raises(TypeError, match="each of the locks"):
            semlock.acquire_all([path])
        with lock, pytest.raises(semlock.LockDeadlockError):
            semlock.acquire_all([lock, semlock.Lock(f"{path}2")])

    def test_takes_locks_of_different_systems(self, tmp_path):
        locks = [
            semlock.Lock(tmp_path / "a"),
            semlock.sema.Semaphore(tmp_path / "b"),
            semlock.task.TaskLock(tmp_path / "c", "me", audit=False),
        ]
        with semlock.acquire_all(locks, timeout=20):
            assert all(lock.held for lock in locks)

    def test_one_that_was_lost_does_not_keep_the_others(self, tmp_path):
        locks = [semlock.Lock(tmp_path / name) for name in ("a", "b", "c")]
        taken = semlock.acquire_all(locks)
        take_away(tmp_path / "b")
        with pytest.raises(semlock.LockLostError):
            taken.release()
        assert not any(lock.held for lock in locks)


class TestAny:
    def test_takes_one_that_is_free(self, tmp_path):
        locks = [semlock.Lock(tmp_path / f"{number}") for number in range(3)]
        with Child("import semlock") as other:
            other.run(f"theirs = semlock.Lock({locks[0].path!r}); theirs.try_acquire()")
            won = semlock.acquire_any(locks)
            assert won is locks[1]
            assert [lock.held for lock in locks] == [False, True, False]
            won.release()

    @pytest.mark.parametrize("end", ["theirs.release()", None])
    def test_hears_of_whichever_is_free_first(self, tmp_path, end):
        locks = [semlock.Lock(tmp_path / f"{number}") for number in range(4)]
        others = [Child("import semlock") for _ in locks]
        try:
            for other, lock in zip(others, locks, strict=True):
                other.run(f"theirs = semlock.Lock({lock.path!r}); theirs.try_acquire()")
            with pytest.raises(semlock.LockTimeoutError):
                semlock.acquire_any(locks, timeout=0.05)
            with Taking(
                lambda: semlock.acquire_any(locks, timeout=20), locks[2].release
            ) as waiter:
                assert not waiter.done.wait(0.05)
                if end:
                    others[2].run(end)
                else:
                    others[2].process.kill()
                assert waiter.done.wait(20)
                assert waiter.result is locks[2]
        finally:
            for other in others:
                other.close()
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".queue")]

    def test_does_not_starve_beside_those_who_take_them_again_and_again(self, tmp_path):
        paths = [str(tmp_path / name) for name in ("a", "b")]
        hogs = [Child("import semlock, threading, time") for _ in paths]
        try:
            for hog, path in zip(hogs, paths, strict=True):
                hog.run(f"stop = threading.Event(); lock = semlock.Lock({path!r})")
                hog.run(
                    "def work():\n while not stop.is_set():\n  with lock: time.sleep(0.003)\n"
                    "t = threading.Thread(target=work); t.start()"
                )
            for _ in range(5):
                semlock.acquire_any([semlock.Lock(p) for p in paths], timeout=30).release()
            for hog in hogs:
                hog.run("stop.set(); t.join()")
        finally:
            for hog in hogs:
                hog.close()

    def test_refuses_to_wait_only_for_itself(self, tmp_path):
        held = [semlock.Lock(tmp_path / name) for name in ("a", "b")]
        with held[0], held[1], pytest.raises(semlock.LockDeadlockError):
            semlock.acquire_any([semlock.Lock(lock.path) for lock in held], timeout=20)
        with pytest.raises(ValueError, match="no lock"):
            semlock.acquire_any([])

    def test_a_timeout_of_nothing_is_one_try(self, tmp_path):
        with Child("import semlock") as other:
            other.run(f"theirs = semlock.Lock({str(tmp_path / 'a')!r}); theirs.try_acquire()")
            with pytest.raises(semlock.LockTimeoutError):
                semlock.acquire_any([semlock.Lock(tmp_path / "a")], timeout=0)


@pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process there")
def test_who_waits_for_any_of_some_in_a_queue_does_not_give_way_to_itself(tmp_path):
    """Fair locks make way for a queue, and from some time on its own ticket is in that."""
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    tickets = f"{tmp_path}/.semlock-*.queue/*"
    with Child() as holder, Child() as stopped, Child() as waiter:
        holder.run(
            f"held = [semlock.Lock({first!r}), semlock.Lock({second!r})]\n"
            "for lock in held: lock.acquire()"
        )
        # It is the first in the queue when the lock is let go, so the other one stands behind.
        stopped.send(
            f"lock = semlock.Lock({first!r}, fair=True); lock.acquire(); lock.release()"
        )
        wait_until(lambda: len(glob.glob(tickets)) == 1, "it waits")
        stopped.stop()
        waiter.send(
            f"locks = [semlock.Lock(path, fair=True) for path in ({first!r}, {second!r})]\n"
            f"won = semlock.acquire_any(locks, timeout={PATIENCE / 3})\n"
            "won.release()\nwon.path"
        )
        wait_until(lambda: watched_by(waiter.outer_pid) >= 2, "it waits")
        wait_until(lambda: state_of(waiter.outer_pid) == "S", "it sleeps")
        holder.run("held[0].release()")
        assert waiter.receive() == first
        stopped.resume()
        stopped.receive()


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is watched")
def test_a_wait_for_any_uses_its_own_turn_in_a_queue(tmp_path):
    """A try that took its own ticket for another waiter's would leave the lock free for 0.18 s."""
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    tickets = f"{tmp_path}/.semlock-*.queue/*"
    took = []
    with Child("import semlock, time") as waiter:
        waiter.run(f"locks = [semlock.Lock(p, fair=True) for p in ({first!r}, {second!r})]")
        locks = [semlock.Lock(path, fair=True) for path in (first, second)]
        for _ in range(5):  # one of them is in time on a busy machine too
            for lock in locks:
                lock.acquire()
            waiter.send(
                f"won = semlock.acquire_any(locks, timeout={PATIENCE})\n"
                "took = time.monotonic()\nwon.release()\ntook"
            )
            wait_until(lambda: watched_by(waiter.outer_pid) >= 2, "it waits")
            wait_until(lambda: state_of(waiter.outer_pid) == "S", "it sleeps")
            # The lock changes hands without it, so that it enters the queue.
            waiter.stop()
            locks[0].release()
            assert locks[0].try_acquire()
            waiter.resume()
            wait_until(lambda: glob.glob(tickets), "it is in the queue")
            wait_until(lambda: state_of(waiter.outer_pid) == "S", "it sleeps")
            released = time.monotonic()
            locks[0].release()
            took.append(waiter.receive() - released)
            locks[1].release()
    assert min(took) < 0.15
