"""Which sidecar locks are stale, and how exactly those are removed."""

import json
import os
import pickle
import time
from pathlib import Path

import pytest

import semlock
from semlock import policy, sidecar
from semlock.sidecar import RetryOptions, SidecarLock, acquire_file_lock
from sidecarlib import ONCE, TOKEN, Calls, created, only_linux, put
from support import (
    Child,
    take_away,
)


class TestStaleness:
    def test_is_an_age_by_created_at_beyond_the_limit(self, target, lock_file):
        put(lock_file, created(31))
        with pytest.raises(sidecar.FileLockStaleError, match="fail-closed") as caught:
            acquire_file_lock(target)
        error = caught.value
        assert error.code == "file_lock_stale"
        assert error.lock_path == error.path == str(lock_file)
        assert error.normalized_target_path == target
        assert isinstance(error, semlock.LockHeldError)
        assert not isinstance(error, TimeoutError)
        assert lock_file.exists()

    def test_has_a_limit_of_the_callers(self, target, lock_file):
        put(lock_file, created(3))
        for limit, error in (
            (2, sidecar.FileLockStaleError), (0, sidecar.FileLockStaleError),
            (60, sidecar.FileLockTimeoutError), (None, sidecar.FileLockTimeoutError),
            (float("inf"), sidecar.FileLockTimeoutError),
        ):  # fmt: skip
            with pytest.raises(error):
                acquire_file_lock(target, stale=limit, retry=ONCE)

    def test_is_judged_by_created_at_even_if_the_file_is_older(self, target, lock_file):
        put(lock_file, created(0), age=1000)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE)

    @pytest.mark.parametrize("payload", ["", "{", "[]", {"pid": 1}, {"createdAt": "yesterday"}])
    def test_without_created_at_is_judged_by_the_files_time(self, target, lock_file, payload):
        put(lock_file, payload, age=29)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE)
        put(lock_file, payload, age=31)
        with pytest.raises(sidecar.FileLockStaleError):
            acquire_file_lock(target, retry=ONCE)

    @only_linux
    def test_is_never_that_of_a_holder_that_the_kernel_vouches_for(self, target, lock_file):
        with acquire_file_lock(target, payload=lambda: created(10**6)):
            os.utime(lock_file, (1, 1))
            assert sidecar.status(target).verdict == "alive"
            assert sidecar.status(target).state == "held"
            with pytest.raises(sidecar.FileLockTimeoutError):
                acquire_file_lock(target, retry=ONCE)

    @only_linux
    def test_is_that_of_a_semlock_process_that_was_killed(self, target, lock_file):
        with Child("from semlock import sidecar") as child:
            child.run(
                f"h = sidecar.acquire_file_lock({target!r}, payload=lambda: {{'pid': 1}})"
            )
            with pytest.raises(sidecar.FileLockTimeoutError):
                acquire_file_lock(target, retry=ONCE, stale=0.001)
            child.kill()
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE)
        with pytest.raises(sidecar.FileLockStaleError):
            acquire_file_lock(target, retry=ONCE, stale=0.001)
        assert lock_file.exists()

    def test_is_seen_by_status(self, target, lock_file):
        put(lock_file, created(31))
        assert sidecar.status(target).state == "stale"
        assert sidecar.status(target, stale=60).state == "held"
        put(lock_file, "", age=31)
        assert sidecar.status(target).state == "stale"
        assert sidecar.status(target, stale=None).state == "unreadable"

    def test_makes_a_try_fail_without_an_error(self, target, lock_file):
        put(lock_file, created(31))
        assert SidecarLock(target).try_acquire() is False
        assert SidecarLock(target).status().state == "stale"

    @pytest.mark.parametrize("bad", [-1, float("nan")])
    def test_has_no_negative_limit(self, target, bad):
        with pytest.raises(ValueError, match="stale"):
            acquire_file_lock(target, stale=bad)

    def test_survives_pickling(self, target, lock_file):
        put(lock_file, created(31))
        with pytest.raises(sidecar.FileLockStaleError) as caught:
            acquire_file_lock(target)
        error = pickle.loads(pickle.dumps(caught.value))
        assert type(error) is sidecar.FileLockStaleError
        assert (error.code, error.lock_path) == ("file_lock_stale", str(lock_file))
        assert error.normalized_target_path == target
        assert error.status.info.pid == 1

    def test_is_a_policy_for_other_locks(self, path):
        Path(path).write_text(f"pid=1\ntimestamp={int(time.time()) - 100}\n")
        assert not semlock.Lock(path).try_acquire()
        assert not semlock.Lock(path, policy=sidecar.stale(200)).try_acquire()
        with semlock.Lock(path, policy=sidecar.stale(50) | policy.Age(10**6)):
            pass


class TestShouldReclaim:
    def test_is_told_everything_in_an_object_that_can_be_read_only(self, target, lock_file):
        put(lock_file, created(3), token=TOKEN + "\n")
        answer = Calls(False)
        before = time.time()
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE, stale=7, should_reclaim=answer)
        (told,) = answer
        assert told.lock_path == str(lock_file)
        assert told.normalized_target_path == target
        assert told.payload["pid"] == 1
        assert told.stale == 7
        assert before <= told.now <= time.time()
        assert told.held_by_this_process is False
        assert told.verdict == "unknown"
        assert "stale=7" in repr(told)
        with pytest.raises(AttributeError):
            told.stale = 8
        with pytest.raises(AttributeError):
            del told.stale

    def test_is_asked_at_each_try(self, target, lock_file):
        put(lock_file, created(0))
        answer = Calls(False)
        options = RetryOptions(retries=3, min_timeout=0.001, max_timeout=0.001)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=options, should_reclaim=answer)
        assert len(answer) == 4

    @only_linux
    def test_is_told_when_the_same_manager_holds_the_lock(self, target):
        locks = sidecar.create_file_lock_manager("told")
        answer = Calls(False)
        with locks.acquire(target) as handle:
            with pytest.raises(sidecar.FileLockTimeoutError):
                locks.acquire(target, retry=ONCE, should_reclaim=answer)
            with pytest.raises(sidecar.FileLockTimeoutError):
                acquire_file_lock(target, retry=ONCE, should_reclaim=answer)
            mine, others = answer
            assert mine.held_by_this_process is True
            assert mine.payload == handle.lock.info.payload
            assert mine.verdict == "alive"
            assert others.held_by_this_process is False

    def test_says_nothing_about_a_lock_that_changed_meanwhile(self, target, lock_file):
        put(lock_file, created(0))

        def reclaim(told):
            take_away(lock_file)
            return True

        with acquire_file_lock(target, should_reclaim=reclaim) as handle:
            assert handle.lock.held

    def test_that_fails_is_the_callers_error(self, target, lock_file):
        put(lock_file, created(0))
        with pytest.raises(ZeroDivisionError):
            acquire_file_lock(target, should_reclaim=lambda _: 1 / 0)
        assert lock_file.exists()

    def test_must_be_a_function(self, target):
        with pytest.raises(TypeError, match="should_reclaim is a function"):
            acquire_file_lock(target, should_reclaim=True)


class TestRemoveIfUnchanged:
    def acquire(self, target, remove, **options):
        return acquire_file_lock(
            target,
            stale_recovery="remove-if-unchanged",
            should_remove_stale_lock=remove,
            retry=RetryOptions(retries=2, min_timeout=0.001),
            **options,
        )

    def test_removes_a_stale_lock_when_the_caller_agrees(self, target, lock_file):
        put(lock_file, created(31), token=TOKEN + "\n")
        raw = lock_file.read_text()
        answer = Calls(True)
        with self.acquire(target, answer) as handle:
            assert handle.lock.info.pid == os.getpid()
        (told,) = answer
        assert told.raw == raw
        assert told.payload["pid"] == 1
        assert told.lock_path == str(lock_file)
        assert told.normalized_target_path == target
        with pytest.raises(AttributeError):
            told.raw = ""

    def test_asks_nothing_about_a_lock_that_is_not_stale(self, target, lock_file):
        put(lock_file, created(0))
        answer = Calls(True)
        with pytest.raises(sidecar.FileLockTimeoutError):
            self.acquire(target, answer)
        assert answer == []

    def test_leaves_a_lock_that_was_rewritten_meanwhile(self, target, lock_file):
        put(lock_file, created(31))

        def remove(told):
            with lock_file.open("r+") as file:
                file.write(json.dumps({**created(0)}, indent=2))
            return True

        with pytest.raises(sidecar.FileLockTimeoutError):
            self.acquire(target, remove)
        assert lock_file.exists()

    def test_takes_a_lock_that_was_let_go_meanwhile(self, target, lock_file):
        put(lock_file, created(31))

        def remove(told):
            take_away(lock_file)
            return True

        self.acquire(target, remove).release()

    @only_linux
    def test_never_removes_the_lock_of_a_holder_that_the_kernel_vouches_for(
        self, target, lock_file
    ):
        answer = Calls(True)
        with acquire_file_lock(target) as handle:
            with pytest.raises(sidecar.FileLockStaleError, match="its holder lives"):
                self.acquire(target, answer, should_reclaim=Calls(True))
            handle.lock.check()
        assert answer == []

    def test_takes_over_from_a_semlock_process_that_was_killed(self, target):
        with Child("from semlock import sidecar") as child:
            child.run(f"h = sidecar.acquire_file_lock({target!r})")
            child.kill()
        with self.acquire(target, Calls(True), should_reclaim=Calls(True)) as handle:
            assert handle.lock.info.pid == os.getpid()

    def test_is_done_by_a_single_try_too(self, target, lock_file):
        put(lock_file, created(31))
        lock = SidecarLock(
            target,
            stale_recovery="remove-if-unchanged",
            should_remove_stale_lock=Calls(True),
        )
        assert lock.try_acquire() is True
        lock.release()

    def test_does_not_remove_what_it_cannot_read_whole(self, target, lock_file):
        put(lock_file, '{"x": "' + "y" * 100_000 + '"}', age=100)
        answer = Calls(True)
        with pytest.raises(sidecar.FileLockStaleError):
            self.acquire(target, answer)
        assert answer == []

    def test_waits_for_a_process_that_keeps_the_guard(self, target, lock_file):
        fcntl = pytest.importorskip("fcntl")
        put(lock_file, created(31))
        with lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(sidecar.FileLockTimeoutError):
                self.acquire(target, Calls(True))
        assert lock_file.exists()

    @pytest.mark.parametrize("bad", ["remove", None, True])
    def test_and_fail_closed_are_all_there_is(self, target, bad):
        with pytest.raises(ValueError, match="stale_recovery"):
            acquire_file_lock(target, stale_recovery=bad)


class TestTheReclaimGuard:
    """fs-safe 0.21 removes a stale lock by name, under the directory ``<lock>.reclaim``."""

    @pytest.fixture
    def guard(self, lock_file):
        return Path(f"{lock_file}.reclaim")

    def test_is_respected(self, target, guard, names):
        guard.mkdir()
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, timeout=0.02)
        assert SidecarLock(target).try_acquire() is False
        assert names() == ["state.json.lock.reclaim"]
        guard.rmdir()
        acquire_file_lock(target).release()

    def test_that_was_left_behind_by_the_dead_wedges_no_process(self, target, guard):
        guard.mkdir()
        os.utime(guard, (time.time() - 31,) * 2)
        acquire_file_lock(target, timeout=0).release()
        assert guard.is_dir()

    def test_that_appears_while_a_lock_is_won_makes_it_be_given_back(
        self, target, guard, names, monkeypatch
    ):
        from semlock._systems import sidecar_lock

        genuine = sidecar_lock.try_lock

        def win(*arguments):
            outcome = genuine(*arguments)
            guard.mkdir(exist_ok=True)
            return outcome

        monkeypatch.setattr(sidecar_lock, "try_lock", win)
        lock = SidecarLock(target)
        assert lock.try_acquire() is False
        assert not lock.held
        assert names() == ["state.json.lock.reclaim"]

    def test_under_which_the_new_lock_was_removed_makes_it_not_held(
        self, target, lock_file, monkeypatch
    ):
        from semlock._systems import sidecar_lock

        genuine = sidecar_lock.try_lock

        def win(*arguments):
            outcome = genuine(*arguments)
            take_away(lock_file)
            return outcome

        monkeypatch.setattr(sidecar_lock, "try_lock", win)
        lock = SidecarLock(target)
        assert lock.try_acquire() is False
        assert not lock.held

    def test_keeps_stale_locks_from_being_removed(self, target, lock_file, guard):
        put(lock_file, created(31))

        def remove(told):
            guard.mkdir()
            return True

        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(
                target,
                timeout=0.02,
                stale_recovery="remove-if-unchanged",
                should_remove_stale_lock=remove,
            )
        assert lock_file.exists()
