"""The sidecar lock's rules, one by one, where everything happens in this process."""

import functools
import json
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from faultlib import mark_unfinished
from semlock import policy, retry, sidecar
from semlock.sidecar import RetryOptions, SidecarLock, acquire_file_lock
from sidecarlib import ONCE, created, only_linux, put
from support import (
    HOST,
    Child,
    content_of,
    in_a_fork,
    make_link,
    set_everywhere,
    take_away,
    wait_until,
)


def paused_by(lock_of, schedule):
    """Say how long a wait with these pauses lasted, and how often it tried."""
    tries = []

    def payload():
        tries.append(time.monotonic())
        return {"pid": 1}

    with pytest.raises(sidecar.FileLockTimeoutError):
        lock_of(retry=schedule, payload=payload)
    return tries[-1] - tries[0], len(tries)


class TestTheFile:
    def test_is_beside_the_target_and_ends_in_lock(self, target, names):
        with acquire_file_lock(target) as handle:
            assert names() == ["state.json.lock"]
            assert handle.lock_path == target + ".lock"
            assert handle.normalized_target_path == target
        assert names() == []

    def test_is_in_the_directory_that_links_lead_to(self, tmp_path):
        (tmp_path / "real").mkdir()
        make_link(tmp_path / "link", "real")
        with acquire_file_lock(tmp_path / "link" / "x") as handle:
            assert handle.lock_path == str(tmp_path / "real" / "x.lock")
            with pytest.raises(sidecar.FileLockTimeoutError):
                acquire_file_lock(tmp_path / "real" / "x", timeout=0)

    def test_of_a_link_is_beside_the_link(self, tmp_path):
        make_link(tmp_path / "link", tmp_path / "elsewhere" / "file")
        with acquire_file_lock(tmp_path / "link") as handle:
            assert handle.lock_path == str(tmp_path / "link.lock")

    def test_of_a_directory_is_beside_it(self, tmp_path):
        (tmp_path / "d").mkdir()
        with acquire_file_lock(f"{tmp_path}/d/") as handle:
            assert handle.lock_path == str(tmp_path / "d.lock")

    def test_of_a_relative_target_is_in_the_current_directory(self, tmp_path):
        with acquire_file_lock("sub/../x") as handle:
            assert handle.lock_path == str(tmp_path / "x.lock")

    def test_can_be_elsewhere(self, target, tmp_path):
        with acquire_file_lock(target, lock_path=tmp_path / "other") as handle:
            assert handle.lock_path == str(tmp_path / "other")
            assert handle.normalized_target_path == target
            assert sidecar.status(target, lock_path=tmp_path / "other").state == "held"
            assert sidecar.status(target).state == "free"

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_is_readable_for_all_unless_asked_otherwise(self, target, lock_file):
        with acquire_file_lock(target):
            assert lock_file.stat().st_mode & 0o777 == 0o644
        with acquire_file_lock(target, mode=0o600):
            assert lock_file.stat().st_mode & 0o777 == 0o600

    def test_gets_the_targets_directory_made(self, tmp_path):
        with acquire_file_lock(tmp_path / "a" / "b" / "x", lock_path=tmp_path / "l"):
            assert (tmp_path / "a" / "b").is_dir()
        with acquire_file_lock(tmp_path / "c" / "d" / "x"):
            assert (tmp_path / "c" / "d" / "x.lock").is_file()

    def test_cannot_be_below_a_file(self, target):
        Path(target).touch()
        with pytest.raises(semlock.LockPathError, match="no directory"):
            acquire_file_lock(target + "/x")

    @pytest.mark.parametrize("bad", ["", "a\0b"])
    def test_of_an_impossible_target_is_refused(self, bad):
        for call in (acquire_file_lock, SidecarLock, sidecar.status):
            with pytest.raises(semlock.LockPathError):
                call(bad)


class TestThePayload:
    def test_says_by_default_who_holds_and_since_when(self, target, lock_file):
        with acquire_file_lock(target):
            payload = json.loads(content_of(lock_file))
        assert list(payload) == ["pid", "host", "createdAt"]
        assert payload["pid"] == os.getpid()
        assert payload["host"] == HOST
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", payload["createdAt"])

    def test_is_the_callers(self, target, lock_file):
        with acquire_file_lock(target, payload=lambda: {"what": "compact", "n": 1.0}):
            assert content_of(lock_file).startswith(b'{\n  "what": "compact",\n  "n": 1\n}\n\t')

    def test_that_fails_leaves_nothing(self, target, names):
        with pytest.raises(ZeroDivisionError):
            acquire_file_lock(target, payload=lambda: 1 / 0)
        assert names() == []
        acquire_file_lock(target).release()

    def test_must_be_a_function(self, target):
        for bad in ({"pid": 1}, None):
            with pytest.raises(TypeError, match="payload is a function"):
                acquire_file_lock(target, payload=bad)

    def test_of_a_coroutine_function_needs_the_async_form(self, target, names):
        async def payload():
            return {}

        with pytest.raises(TypeError, match="_async"):
            acquire_file_lock(target, payload=payload)
        assert names() == []


class TestWaiting:
    def test_ends_when_the_holder_lets_go(self, target):
        handle = acquire_file_lock(target)
        timer = threading.Timer(0.1, handle.release)
        timer.start()
        with acquire_file_lock(target, timeout=30):
            timer.join()

    def test_ends_when_the_time_is_over(self, target):
        with acquire_file_lock(target) as handle:
            start = time.monotonic()
            with pytest.raises(sidecar.FileLockTimeoutError) as caught:
                acquire_file_lock(target, timeout=0.15)
            assert 0.15 <= time.monotonic() - start < 5
        error = caught.value
        assert error.code == "file_lock_timeout"
        assert error.lock_path == error.path == handle.lock_path
        assert error.normalized_target_path == target
        assert isinstance(error, semlock.LockTimeoutError)
        assert isinstance(error, TimeoutError)
        assert error.status.info.pid == os.getpid()

    @pytest.mark.parametrize("once", [{"retry": ONCE}, {"timeout": 0}])
    def test_with_no_retries_or_no_time_is_one_try(self, target, once):
        tries = []
        with acquire_file_lock(target), pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, **once, payload=lambda: tries.append(0) or {})
        assert tries == [0]

    def test_tries_once_after_each_pause(self, target):
        acquire = functools.partial(acquire_file_lock, target)
        with acquire_file_lock(target):
            schedule = RetryOptions(retries=5, min_timeout=0.01, max_timeout=0.04)
            waited, tries = paused_by(acquire, schedule)
            assert waited >= 0.01 + 0.02 + 0.04 + 0.04 + 0.04
            assert tries == 6
            waited, tries = paused_by(acquire, retry.Every(0.02, retries=2))
            assert waited >= 0.04
            assert tries == 3

    def test_a_pause_ends_when_the_lock_is_let_go(self, target):
        handle = acquire_file_lock(target)
        release = threading.Timer(0.05, handle.release)
        release.start()
        start = time.monotonic()
        with acquire_file_lock(target, timeout=60, retry=retry.Every(30)):
            assert time.monotonic() - start < 20
        release.join()

    def test_a_pause_goes_on_when_another_was_faster(self, target, lock_file):
        """Early tries are extra ones: the schedule's own are not used up by them."""
        guard = Path(f"{lock_file}.reclaim")
        held = acquire_file_lock(target)

        def release():
            guard.mkdir()  # so that the path is free and can't be taken, as in a lost race
            held.release()

        timer = threading.Timer(0.05, release)
        timer.start()
        start = time.monotonic()
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=retry.Every(0.15, retries=2))
        assert time.monotonic() - start >= 0.3
        timer.join()

    def test_without_an_end_for_oneself_is_a_deadlock(self, target):
        with acquire_file_lock(target):
            with pytest.raises(semlock.LockDeadlockError, match="would wait for itself"):
                acquire_file_lock(target)
            with pytest.raises(sidecar.FileLockTimeoutError):
                acquire_file_lock(target, timeout=0.01)

    def test_is_for_a_lock_path_error_where_a_directory_stands(self, target, lock_file):
        lock_file.mkdir()
        with pytest.raises(semlock.LockPathError, match="left alone"):
            acquire_file_lock(target)
        assert lock_file.is_dir()


class TestRetryOptions:
    @pytest.mark.parametrize("factor", [0, 0.5, 1])
    def test_never_give_less_than_the_shortest(self, factor):
        assert list(RetryOptions(3, factor, 0.1)()) == [0.1, 0.1, 0.1]

    def test_make_a_millisecond_of_a_pause_of_nothing_as_node_does(self):
        assert list(RetryOptions(2, min_timeout=0, max_timeout=0)()) == [0.001, 0.001]

    def test_make_pauses_up_to_twice_as_long_by_chance(self):
        options = RetryOptions(400, 1, 0.1, 1.0, randomize=True)
        pauses = list(options())
        assert 0.1 <= min(pauses) < 0.12 < 0.18 < max(pauses) < 0.2
        assert max(RetryOptions(50, 1, 1.0, 1.0, randomize=True)()) == 1.0

    @pytest.mark.parametrize(
        "bad",
        [
            {"retries": -1}, {"retries": 1.5}, {"factor": -1}, {"factor": float("nan")},
            {"min_timeout": -1}, {"min_timeout": 2, "max_timeout": 1}, {"max_timeout": -1},
        ],
    )  # fmt: skip
    def test_refuse_what_makes_no_sense(self, bad):
        with pytest.raises(ValueError):
            RetryOptions(**bad)

    def test_are_a_schedule_for_every_lock(self, path):
        Path(path).write_text("pid=1\ntimestamp=1\n")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path, retry=RetryOptions(1, min_timeout=0.001)).acquire()

    def test_show_what_they_are(self):
        assert repr(RetryOptions(3)) == (
            "RetryOptions(retries=3, factor=2.0, min_timeout=0.05, max_timeout=1.0, "
            "randomize=False)"
        )
        assert hash(RetryOptions(3)) == hash(RetryOptions(retries=3))


class TestTheHandle:
    def test_says_that_the_lock_was_lost(self, target, lock_file):
        handle = acquire_file_lock(target)
        take_away(lock_file)
        put(lock_file, created(0))
        with pytest.raises(semlock.LockLostError):
            handle.release()
        assert lock_file.exists()
        handle.release()

    def test_says_so_in_a_warning_when_the_block_fails_anyway(self, target, lock_file):
        with pytest.warns(semlock.LockLostWarning), pytest.raises(ZeroDivisionError):
            with acquire_file_lock(target):
                take_away(lock_file)
                raise ZeroDivisionError

    def test_says_so_at_the_end_of_the_block(self, target, lock_file):
        with pytest.raises(semlock.LockLostError):
            with acquire_file_lock(target):
                take_away(lock_file)

    def test_can_be_released_again_when_the_guard_was_taken(
        self, target, lock_file, monkeypatch
    ):
        fcntl = pytest.importorskip("fcntl")
        set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.01)
        handle = acquire_file_lock(target)
        with lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(semlock.LockTimeoutError):
                handle.release()
        handle.release()
        assert not lock_file.exists()

    def test_has_the_lock_for_a_sign_of_life(self, target, lock_file):
        with acquire_file_lock(target) as handle:
            os.utime(lock_file, (1, 1))
            handle.lock.refresh()
            assert lock_file.stat().st_mtime > 1
            handle.lock.check()
        assert "not held" in repr(handle)


class TestManagers:
    def test_of_one_key_share_what_they_hold(self, target):
        one, other = (sidecar.create_file_lock_manager("shared") for _ in range(2))
        handle = one.acquire(target, metadata={"why": "test"})
        (entry,) = other.held_entries()
        assert entry.lock_path == handle.lock_path
        assert entry.normalized_target_path == target
        assert entry.metadata == {"why": "test"}
        assert 0 <= time.time() - entry.acquired_at < 30
        assert sidecar.create_file_lock_manager("another").held_entries() == []
        handle.release()
        assert other.held_entries() == []
        assert "shared" in repr(one)

    def test_have_no_metadata_unless_given(self, target):
        locks = sidecar.create_file_lock_manager("plain")
        with locks.acquire(target):
            assert locks.held_entries()[0].metadata == {}

    def test_exclude_each_other(self, target):
        with sidecar.create_file_lock_manager("a").acquire(target):
            with pytest.raises(sidecar.FileLockTimeoutError):
                sidecar.create_file_lock_manager("b").acquire(
                    target, retry=ONCE, allow_reentrant=True
                )

    def test_keep_what_they_hold_when_nothing_refers_to_them(self, target, lock_file):
        import gc

        sidecar.create_file_lock_manager("forgotten").acquire(target)
        gc.collect()
        assert lock_file.exists()
        (entry,) = sidecar.create_file_lock_manager("forgotten").held_entries()
        assert entry.force_release() is True
        assert entry.force_release() is False
        assert not lock_file.exists()

    def test_count_reentrant_acquisitions(self, target, lock_file):
        locks = sidecar.create_file_lock_manager("counting")
        outer = locks.acquire(target)
        with pytest.raises(sidecar.FileLockTimeoutError):
            locks.acquire(target, retry=ONCE)
        inner = locks.acquire(target, allow_reentrant=True)
        assert inner.lock_path == outer.lock_path
        assert len(locks.held_entries()) == 1
        inner.release()
        inner.release()
        assert lock_file.exists()
        outer.release()
        assert not lock_file.exists()

    def test_count_them_in_any_order_and_from_any_thread(self, target, lock_file):
        handles = [acquire_file_lock(target, allow_reentrant=True) for _ in range(2)]
        thread = threading.Thread(
            target=lambda: handles.append(acquire_file_lock(target, allow_reentrant=True))
        )
        thread.start()
        thread.join()
        for handle in handles[:2]:
            handle.release()
            assert lock_file.exists()
        handles[2].release()
        assert not lock_file.exists()

    def test_join_a_lock_whose_payload_could_not_be_made_any_more(self, target):
        with acquire_file_lock(target):
            with acquire_file_lock(target, allow_reentrant=True, payload=lambda: 1 / 0):
                pass

    def test_hold_a_target_once_whatever_its_lock_file(self, target, tmp_path):
        locks = sidecar.create_file_lock_manager("once")
        with locks.acquire(target):
            with pytest.raises(sidecar.FileLockTimeoutError):
                locks.acquire(target, lock_path=tmp_path / "other", retry=ONCE)
            assert not (tmp_path / "other").exists()
            with locks.acquire(
                target, lock_path=tmp_path / "other", allow_reentrant=True
            ) as handle:
                assert handle.lock_path == target + ".lock"

    def test_let_go_of_everything_on_drain(self, tmp_path, names):
        locks = sidecar.create_file_lock_manager("drained")
        handles = [locks.acquire(tmp_path / name) for name in "abc"]
        handles.append(locks.acquire(tmp_path / "a", allow_reentrant=True))
        assert len(locks.held_entries()) == 3
        locks.drain()
        assert locks.held_entries() == []
        assert [name for name in names() if name.endswith(".lock")] == []
        for handle in handles:
            handle.release()

    def test_tell_on_drain_what_was_lost_after_the_others_are_let_go(self, tmp_path):
        locks = sidecar.create_file_lock_manager("robbed")
        for name in "abc":
            locks.acquire(tmp_path / name)
        take_away(tmp_path / "a.lock")
        with pytest.raises(semlock.LockLostError, match=r"a\.lock"):
            locks.drain()
        assert not list(tmp_path.glob("*.lock"))
        locks.drain()

    def test_let_go_without_a_word_on_reset(self, tmp_path):
        locks = sidecar.create_file_lock_manager("reset")
        handles = [locks.acquire(tmp_path / name) for name in "ab"]
        take_away(tmp_path / "a.lock")
        locks.reset()
        assert locks.held_entries() == []
        assert not list(tmp_path.glob("*.lock"))
        for handle in handles:
            handle.release()

    def test_forget_a_lock_that_was_released_behind_their_back(self, target):
        locks = sidecar.create_file_lock_manager("bypassed")
        handle = locks.acquire(target)
        handle.lock.release()
        assert locks.held_entries() == []
        with locks.acquire(target):
            handle.release()
            assert len(locks.held_entries()) == 1

    def test_refuse_options_that_do_not_exist(self, target):
        with pytest.raises(TypeError, match="stale_ms"):
            sidecar.create_file_lock_manager("strict").acquire(target, stale_ms=3)

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
    def test_are_empty_in_a_forked_child(self, target, lock_file):
        locks = sidecar.create_file_lock_manager("forked")
        handle = locks.acquire(target)

        def child():
            handle.release()
            found = [len(locks.held_entries()), lock_file.exists()]
            try:
                locks.acquire(target, allow_reentrant=True, timeout=0.01)
            except sidecar.FileLockTimeoutError:
                found.append("held")
            locks.drain()
            return found

        assert in_a_fork(child) == [0, True, "held"]
        handle.lock.check()
        handle.release()

    def test_clean_up_when_the_process_ends(self, target, names):
        with Child("from semlock import sidecar") as child:
            child.run(f"h = sidecar.acquire_file_lock({target!r})")
            child.run(f"g = sidecar.create_file_lock_manager('x').acquire({target + '2'!r})")
            assert len(names()) == 2
            assert child.finish() == 0
        assert names() == []


class TestWith:
    def test_a_function_runs_under_the_lock_and_its_result_is_given(self, target, lock_file):
        def work():
            return lock_file.exists()

        locks = sidecar.create_file_lock_manager("with")
        assert sidecar.with_file_lock(target, work) is True
        assert locks.with_lock(target, work, payload=lambda: {"n": 1}) is True
        assert not lock_file.exists()

    def test_a_coroutine_function_is_refused(self, target, names):
        async def work():
            raise AssertionError

        for call in (
            sidecar.with_file_lock, sidecar.create_file_lock_manager("with").with_lock,
        ):  # fmt: skip
            with pytest.raises(TypeError, match="_async"):
                call(target, work)
        assert names() == []

    def test_a_lock_that_is_held_keeps_it_from_running(self, target):
        with acquire_file_lock(target), pytest.raises(sidecar.FileLockTimeoutError):
            sidecar.with_file_lock(target, pytest.fail, retry=ONCE)


class TestTheLockObject:
    def test_has_the_words_of_every_lock(self, target, lock_file):
        lock = SidecarLock(target)
        assert (lock.path, lock.lock_path) == (str(lock_file),) * 2
        assert (lock.held, lock.info, lock.token) == (False, None, None)
        with lock:
            assert lock.held
            lock.check()
            assert lock.info == lock.status().info
            assert SidecarLock(target).try_acquire() is False
        with lock.acquire(timeout=1):
            pass
        assert lock.try_acquire() is True
        lock.release()
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    def test_decorates_a_function(self, target, lock_file):
        @SidecarLock(target)
        def job():
            return lock_file.exists()

        assert job() is True

    def test_refreshes_created_at_in_place(self, target, lock_file):
        old = "2001-02-03T04:05:06.789Z"
        with SidecarLock(target, payload=lambda: {"a": 1, "createdAt": old, "b": 2}) as lock:
            before = content_of(lock_file)
            assert lock.info.payload["createdAt"] == old
            lock.refresh()
            after = content_of(lock_file)
            assert len(after) == len(before)
            assert after != before
            assert abs(lock.info.timestamp - time.time()) < 5
            assert lock.info == lock.status().info
            assert (lock.info.payload["a"], lock.info.payload["b"]) == (1, 2)

    def test_touches_the_file_where_there_is_no_created_at(self, target, lock_file):
        with SidecarLock(target, payload=lambda: {"a": 1}) as lock:
            before = content_of(lock_file)
            os.utime(lock_file, (1, 1))
            lock.refresh()
            assert content_of(lock_file) == before
            assert time.time() - lock_file.stat().st_mtime < 5

    def test_finds_its_loss(self, target, lock_file):
        lock = SidecarLock(target)
        lock.acquire()
        take_away(lock_file)
        for call in (lock.refresh, lock.check, lock.release):
            with pytest.raises(semlock.LockLostError):
                call()

    def test_keeps_its_record_when_another_thread_tries_through_it(self, target):
        count = iter(range(10**6))
        lock = SidecarLock(target, payload=lambda: {"n": "x" * next(count)})
        lock.acquire()
        token = lock.token
        outcomes = []
        threads = [
            threading.Thread(target=lambda: outcomes.append(lock.try_acquire()))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [False] * 4
        assert lock.token == token == lock.status().info.token
        lock.refresh()
        assert lock.info == lock.status().info
        lock.release()

    def test_is_reentrant_for_its_thread_when_asked(self, target, lock_file):
        lock = SidecarLock(target, reentrant=True)
        with lock, lock:
            pass
        assert not lock_file.exists()

    def test_waiting_for_itself_is_a_deadlock(self, target):
        lock = SidecarLock(target)
        with lock:
            assert lock.try_acquire() is False
            with pytest.raises(semlock.LockDeadlockError):
                lock.acquire()
            with pytest.raises(sidecar.FileLockTimeoutError):
                lock.acquire(timeout=0.01)

    def test_takes_a_policy_instead_of_the_rules_about_staleness(self, target, lock_file):
        put(lock_file, created(100))
        assert not SidecarLock(target, policy=policy.Age(200)).try_acquire()
        with SidecarLock(target, policy=policy.Age(50)) as lock:
            assert lock.info.pid == os.getpid()

    def test_heartbeats_keep_it_fresh_for_fs_safe(self, target, lock_file):
        with SidecarLock(target, heartbeat=0.05):
            os.utime(lock_file, (1, 1))
            wait_until(lambda: lock_file.stat().st_mtime > 1, "the heartbeat has come")

    def test_tells_of_its_loss_by_the_heartbeat(self, target, lock_file):
        lost = []
        lock = SidecarLock(target, heartbeat=0.02, on_lost=lambda *found: lost.append(found))
        lock.acquire()
        take_away(lock_file)
        wait_until(lambda: lost, "the loss was noticed")
        assert lost[0][0] is lock
        with pytest.raises(semlock.LockLostError):
            lock.release()

    def test_removes_what_a_killed_creator_did_not_finish(self, target, lock_file, monkeypatch):
        # A semlock process was about to write this in place.
        lock_file.touch()
        mark_unfinished(lock_file)
        lock = SidecarLock(target)
        assert lock.try_acquire() is False
        set_everywhere(monkeypatch, "GRACE", 0)
        assert lock.try_acquire() is True
        lock.release()


def test_two_threads_through_one_object_never_hold_at_once(target):
    """Each lays out a record of its own while the other tries, in memory that C reads."""
    lock = SidecarLock(target, durability="none", payload=lambda: {"x": "y" * 3000})
    inside, overlaps, done = [], [], []

    def work():
        for _ in range(150):
            if lock.try_acquire():
                inside.append(1)
                if len(inside) > 1:
                    overlaps.append(1)
                assert lock.token == lock.status().info.token
                inside.pop()
                lock.release()
        done.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    assert overlaps == []


@only_linux
def test_clean_leaves_sidecar_locks_alone_and_removes_what_the_dead_left(
    target, tmp_path, monkeypatch
):
    with Child("from semlock import sidecar") as child:
        child.run(f"a = {target!r}\nfor _ in range(3): sidecar.acquire_file_lock(a).release()")
        assert list(tmp_path.glob(".semlock-*.kept"))
        child.run("h = sidecar.acquire_file_lock(a)")
        child.kill()
    set_everywhere(monkeypatch, "GRACE", 0)
    semlock.clean(tmp_path)
    assert os.listdir(tmp_path) == ["state.json.lock"]
