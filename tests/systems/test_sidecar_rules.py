"""One test for each rule of the sidecar lock's specification, heading by heading."""

import inspect
import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest

import semlock
from semlock import sidecar
from semlock._systems.sidecar_manager import Acquisition
from semlock.sidecar import (
    FileLockStaleError,
    FileLockTimeoutError,
    RetryOptions,
    SidecarLock,
    acquire_file_lock,
    create_file_lock_manager,
    with_file_lock,
)
from support import content_of, iso, set_time, wait_until

ONE_TRY = RetryOptions(retries=0)


def foreign(lock_file, age=0.0, **members):
    members = {"pid": 1, "createdAt": iso(time.time() - age), **members}
    lock_file.write_text(json.dumps(members, indent=2) + "\n")


def acquire(target, **options):
    return acquire_file_lock(target, **{"retry": ONE_TRY, **options})


class TestTheFile:
    """File lock; Why sidecar?"""

    def test_is_the_targets_name_and_lock(self, target, lock_file):
        with acquire(target) as handle:
            assert handle.lock_path == str(lock_file)
            assert lock_file.is_file()

    def test_is_made_exclusively(self, target):
        start = threading.Barrier(6)
        outcomes = []

        def contend():
            start.wait()
            try:
                outcomes.append(acquire(target))
            except FileLockTimeoutError:
                outcomes.append(None)

        threads = [threading.Thread(target=contend) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = filter(None, outcomes)
        winner.release()

    def test_holds_the_payload_as_json(self, target, lock_file):
        with acquire(target, payload=lambda: {"pid": 7, "what": "compact"}):
            text = content_of(lock_file).decode()
            assert text.startswith('{\n  "pid": 7,\n  "what": "compact"\n}\n')
            assert json.loads(text) == {"pid": 7, "what": "compact"}

    def test_is_gone_when_a_process_that_behaves_well_exits(self, target, lock_file):
        code = f"from semlock import sidecar; h = sidecar.acquire_file_lock({target!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not lock_file.exists()

    def test_is_left_by_a_process_that_crashes(self, target, lock_file):
        code = (
            f"import os; from semlock import sidecar; h = sidecar.acquire_file_lock({target!r})"
            "; os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert lock_file.exists()
        with pytest.raises(FileLockTimeoutError):
            acquire(target)

    def test_names_a_host_without_a_contradiction_in_the_evidence(self, target, lock_file):
        foreign(lock_file, host="box")
        holder = sidecar.status(target).holder
        assert "process 1 on box" in holder
        assert "doesn't say on which machine" not in holder

    def test_of_a_crashed_process_is_stale_after_its_time(self, target, lock_file):
        foreign(lock_file, age=31)
        with pytest.raises(FileLockStaleError):
            acquire(target)
        assert lock_file.exists()


class TestOptions:
    """Acquire options"""

    @pytest.mark.parametrize(
        ("name", "default"),
        [("manager_key", None), ("lock_path", None), ("stale", 30.0), ("timeout", None),
         ("stale_recovery", "fail-closed"), ("allow_reentrant", False), ("should_reclaim", None),
         ("should_remove_stale_lock", None), ("metadata", None)],
    )  # fmt: skip
    def test_have_the_defaults_of_the_specification(self, name, default):
        # An option is one of the acquisition, of the lock, or of all locks.
        calls = (SidecarLock, Acquisition, acquire_file_lock)
        parameters = [inspect.signature(call).parameters for call in calls]
        assert [each[name].default for each in parameters if name in each] == [default]

    @pytest.mark.parametrize(
        ("name", "meant"),
        [("staleMs", "stale, in seconds"), ("timeoutMs", "timeout, in seconds"),
         ("lockPath", "lock_path"), ("staleRecovery", "stale_recovery"),
         ("managerKey", "manager_key"), ("allowReentrant", "allow_reentrant"),
         ("shouldReclaim", "should_reclaim"),
         ("shouldRemoveStaleLock", "should_remove_stale_lock")],
    )  # fmt: skip
    def test_of_the_original_are_refused_with_their_names_here(self, target, name, meant):
        for call in (acquire_file_lock, create_file_lock_manager("k").acquire, SidecarLock):
            if call is not SidecarLock or name not in ("managerKey", "allowReentrant"):
                with pytest.raises(TypeError, match=f"{name}'.* mean {meant}\\?$"):
                    call(target, **{name: 1})

    def test_lock_path_is_another_place(self, target, lock_file, tmp_path):
        with acquire(target, lock_path=tmp_path / "elsewhere"):
            assert (tmp_path / "elsewhere").is_file()
            assert not lock_file.exists()

    def test_timeout_ends_the_whole_wait(self, target, lock_file):
        foreign(lock_file)
        began = time.monotonic()
        with pytest.raises(FileLockTimeoutError) as caught:
            acquire_file_lock(target, timeout=0.1)
        assert 0.1 <= time.monotonic() - began < 10
        assert caught.value.code == "file_lock_timeout"

    def test_payload_is_asked_anew_at_each_try(self, target, lock_file):
        foreign(lock_file)
        asked = []
        with pytest.raises(FileLockTimeoutError):
            acquire_file_lock(
                target,
                payload=lambda: asked.append(1) or {},
                retry=RetryOptions(retries=3, min_timeout=0.001, max_timeout=0.001),
            )
        assert len(asked) == 4

    def test_allow_reentrant_counts(self, target, lock_file):
        outer = acquire(target, allow_reentrant=True)
        inner = acquire(target, allow_reentrant=True)
        outer.release()
        assert lock_file.exists()
        inner.release()
        assert not lock_file.exists()

    def test_without_it_the_same_process_fails(self, target):
        with acquire(target), pytest.raises(FileLockTimeoutError):
            acquire(target, timeout=0)

    @pytest.mark.parametrize("bad", ["5", -1, float("nan"), [], {}])
    def test_stale_is_a_number_or_none_and_anything_else_is_told(self, target, bad):
        for call in (acquire, SidecarLock, sidecar.status):
            with pytest.raises(ValueError, match="stale is None or a number of seconds"):
                call(target, stale=bad)

    def test_metadata_is_shown(self, target):
        manager = create_file_lock_manager("rules-metadata")
        with manager.acquire(target, metadata={"why": "x"}):
            assert [entry.metadata for entry in manager.held_entries()] == [{"why": "x"}]


class TestRetryOptions:
    """FileLockRetryOptions"""

    def test_have_the_defaults_of_the_specification(self):
        options = RetryOptions()
        assert (options.retries, options.factor, options.randomize) == (None, 2.0, False)
        assert (options.min_timeout, options.max_timeout) == (0.05, 1.0)

    def test_retries_counts_the_tries_after_the_first(self):
        assert len(list(RetryOptions(retries=3)())) == 3

    def test_pauses_grow_by_the_factor_up_to_the_cap(self):
        pauses = RetryOptions(retries=5, factor=3, min_timeout=0.1, max_timeout=1)()
        assert list(pauses) == pytest.approx([0.1, 0.3, 0.9, 1, 1])

    def test_randomize_makes_each_up_to_twice_as_long(self):
        for pause in RetryOptions(100, 1, 0.1, 9, randomize=True)():
            assert 0.1 <= pause < 0.2

    def test_a_long_first_pause_alone_is_no_error(self):
        options = RetryOptions(min_timeout=5)
        assert (options.min_timeout, options.max_timeout) == (5, 5)

    def test_a_short_cap_alone_is_no_error(self):
        options = RetryOptions(max_timeout=0.01)
        assert (options.min_timeout, options.max_timeout) == (0.01, 0.01)

    def test_two_that_contradict_each_other_are(self):
        with pytest.raises(ValueError, match="min_timeout"):
            RetryOptions(min_timeout=2, max_timeout=1)

    @pytest.mark.parametrize(
        "bad", [{"retries": -1}, {"retries": "3"}, {"retries": True}, {"factor": "2"},
                {"min_timeout": "1"}, {"max_timeout": -1}, {"factor": -1}],
    )  # fmt: skip
    def test_what_is_no_number_is_told_by_its_name(self, bad):
        with pytest.raises(ValueError, match=next(iter(bad))):
            RetryOptions(**bad)

    def test_a_dict_of_them_is_taken(self, target, lock_file):
        foreign(lock_file)
        with pytest.raises(FileLockTimeoutError):
            acquire_file_lock(target, retry={"retries": 1, "min_timeout": 0.001})
        manager = create_file_lock_manager("rules-retry")
        with pytest.raises(FileLockTimeoutError):
            manager.acquire(target, retry={"retries": 0})

    def test_a_dict_of_node_names_is_refused_with_the_names_of_here(self, target):
        with pytest.raises(TypeError, match=r"'minTimeout'.*min_timeout.*seconds"):
            acquire_file_lock(target, retry={"retries": 1, "minTimeout": 100})


class TestTheHandle:
    """Release handle"""

    def test_has_the_paths_and_release(self, target, lock_file):
        handle = acquire(target)
        assert handle.lock_path == str(lock_file)
        assert handle.normalized_target_path == os.path.realpath(target)
        handle.release()
        assert not lock_file.exists()

    def test_released_twice_does_nothing(self, target, lock_file):
        handle = acquire(target)
        handle.release()
        with acquire(target):
            handle.release()
            assert lock_file.exists()

    def test_is_a_context_manager(self, target, lock_file):
        with pytest.raises(KeyError), acquire(target):
            raise KeyError
        assert not lock_file.exists()


class TestWithFileLock:
    """withFileLock"""

    def test_gives_the_result(self, target):
        assert with_file_lock(target, lambda: "done") == "done"

    def test_releases_whatever_happens(self, target, lock_file):
        def fail():
            assert lock_file.exists()
            raise KeyError

        with pytest.raises(KeyError):
            with_file_lock(target, fail)
        assert not lock_file.exists()

    def test_tries_once_and_gives_up_if_held(self, target, lock_file):
        foreign(lock_file)
        with pytest.raises(FileLockTimeoutError):
            with_file_lock(target, lambda: None, retry=ONE_TRY)


class TestManagers:
    """Long-lived managers"""

    def test_tell_what_they_hold(self, target):
        manager = create_file_lock_manager("rules-tell")
        handle = manager.acquire(target)
        (held,) = manager.held_entries()
        assert held.lock_path == handle.lock_path
        assert abs(held.acquired_at - time.time()) < 10
        handle.release()
        assert manager.held_entries() == []

    def test_drain(self, target, lock_file):
        manager = create_file_lock_manager("rules-drain")
        manager.acquire(target)
        manager.drain()
        assert not lock_file.exists()

    def test_of_different_keys_are_different_domains(self, target):
        one, two = create_file_lock_manager("rules-1"), create_file_lock_manager("rules-2")
        with one.acquire(target):
            assert two.held_entries() == []


class TestShouldReclaim:
    """Stale policy: shouldReclaim"""

    def test_is_asked_with_all_that_the_specification_names(self, target, lock_file):
        foreign(lock_file, what="x")
        asked = []
        with pytest.raises(FileLockTimeoutError):
            acquire(target, should_reclaim=lambda question: asked.append(question))
        (question,) = asked
        assert question.lock_path == str(lock_file)
        assert question.normalized_target_path == os.path.realpath(target)
        assert question.payload["what"] == "x"
        assert question.stale == 30.0
        assert abs(question.now - time.time()) < 10
        assert question.held_by_this_process is False

    def test_replaces_the_age_rule(self, target, lock_file):
        foreign(lock_file, age=10**6)
        with pytest.raises(FileLockTimeoutError):
            acquire(target, should_reclaim=lambda _: False)
        foreign(lock_file, age=0)
        with pytest.raises(FileLockStaleError):
            acquire(target, should_reclaim=lambda _: True)

    def test_is_told_of_no_payload_for_what_is_no_object(self, target, lock_file):
        lock_file.write_text("[1]")
        asked = []
        with pytest.raises(FileLockTimeoutError):
            acquire(target, should_reclaim=lambda question: asked.append(question.payload))
        assert asked == [None]

    def test_that_reads_only_the_pid_waits_for_an_empty_file(self, target, lock_file):
        """What a killed Node holder may leave: the page says what to write instead."""
        lock_file.touch()

        def pid_only(question):
            return bool(question.payload and question.payload.get("pid") == 0)

        with pytest.raises(FileLockTimeoutError):
            acquire(target, should_reclaim=pid_only)
        with pytest.raises(FileLockStaleError):
            acquire(target, should_reclaim=lambda question: not question.payload)

    @pytest.mark.parametrize(
        ("options", "ends"),
        [
            ({}, "stale when it is older than 30 s"),
            ({"stale": None}, "never stale"),
            ({"should_reclaim": lambda _: False}, "should_reclaim decides"),
        ],
    )
    def test_and_age_are_told_where_a_file_is_empty(self, target, lock_file, options, ends):
        """Not flock's: fs-safe makes its file empty, and a wait may see it so."""
        lock_file.touch()
        with pytest.raises(FileLockTimeoutError, match=f"about to write.*{ends}") as caught:
            acquire(target, **options)
        assert "delete" not in str(caught.value)
        assert "flock" not in str(caught.value)


class TestStaleness:
    def test_is_strictly_older_than_stale_in_thousandths(self, lock_file, target, monkeypatch):
        now = 1_794_992_549.123
        lock_file.write_text(json.dumps({"createdAt": iso(now)}))
        for later, state in ((0, "held"), (30, "held"), (30.0009, "held"), (30.0011, "stale")):
            set_time(monkeypatch, lambda later=later: now + later)
            assert sidecar.status(target).state == state, later

    def test_is_never_early(self, monkeypatch):
        rng = random.Random(7)
        rule = sidecar.stale(0.3)
        now = 0.0
        set_time(monkeypatch, lambda: now)
        for _ in range(2000):
            won = 1_794_992_549 + rng.random()
            now = won + 0.3 + rng.uniform(-0.003, 0.003)
            info = sidecar.decode(json.dumps({"createdAt": iso(won)}).encode())
            found = type(
                "Found", (), {"info": info, "verdict": "unknown", "written_at": None}
            )()
            if rule(found):
                assert now - won > 0.3 - 1e-5

    def test_goes_by_the_files_time_without_a_created_at(self, target, lock_file):
        lock_file.write_text("{}")
        os.utime(lock_file, (1, 1))
        assert sidecar.status(target).state == "stale"

    def test_can_be_switched_off(self, target, lock_file):
        foreign(lock_file, age=10**6)
        assert sidecar.status(target, stale=None).state == "held"

    def test_of_a_refreshed_lock_is_counted_in_thousandths_too(
        self, target, lock_file, monkeypatch
    ):
        """A peer with a limit of a second does not rob who refreshes every 0.3 s."""
        with SidecarLock(target) as lock:
            set_time(monkeypatch, lambda: 1_794_992_549.7894)
            lock.refresh()
            written = json.loads(content_of(lock_file))["createdAt"]
            assert written == "2026-11-18T09:02:29.789Z"
            assert lock.info == lock.status().info

    def test_of_a_lock_that_could_not_be_refreshed_shows_what_is_in_the_file(
        self, target, monkeypatch
    ):
        with SidecarLock(target, payload=lambda: {"createdAt": iso(1e9)}) as lock:
            monkeypatch.setattr("semlock._core.capi.refresh_lock", lambda *_: -5)
            with pytest.raises(OSError) as failure:
                lock.refresh()
            assert 5 in (failure.value.errno, getattr(failure.value, "winerror", None))
            assert lock.info.timestamp == 1e9


class TestStaleRecovery:
    """Stale recovery: remove-if-unchanged"""

    OPTIONS = {"stale_recovery": "remove-if-unchanged"}

    def test_by_default_removes_nothing(self, target, lock_file):
        foreign(lock_file, age=60)
        with pytest.raises(FileLockStaleError) as caught:
            acquire(target, should_remove_stale_lock=lambda _: True)
        assert caught.value.code == "file_lock_stale"
        assert lock_file.exists()

    def test_removes_what_the_callback_allows(self, target, lock_file):
        foreign(lock_file, age=60)
        with acquire(target, **self.OPTIONS, should_remove_stale_lock=lambda _: True) as handle:
            assert handle.lock.info.pid == os.getpid()

    @pytest.mark.parametrize("callback", [None, lambda _: False])
    def test_fails_closed_without_a_callback_or_if_it_says_no(
        self, target, lock_file, callback
    ):
        foreign(lock_file, age=60)
        with pytest.raises(FileLockStaleError):
            acquire(target, **self.OPTIONS, should_remove_stale_lock=callback)
        assert lock_file.exists()

    def test_shows_the_callback_exactly_what_was_inspected(self, target, lock_file):
        foreign(lock_file, age=60, what="x")
        text = lock_file.read_bytes().decode()
        seen = []
        with pytest.raises(FileLockStaleError):
            acquire(target, **self.OPTIONS, should_remove_stale_lock=seen.append)
        (snapshot,) = seen
        assert (snapshot.raw, snapshot.payload["what"]) == (text, "x")
        assert snapshot.lock_path == str(lock_file)
        assert snapshot.normalized_target_path == os.path.realpath(target)

    def test_leaves_what_changed_meanwhile(self, target, lock_file):
        foreign(lock_file, age=60)

        def changed(_):
            lock_file.unlink()
            foreign(lock_file, what="another's")
            return True

        with pytest.raises(FileLockTimeoutError):
            acquire(target, **self.OPTIONS, should_remove_stale_lock=changed)
        assert "another's" in lock_file.read_text()


@pytest.mark.stress
@pytest.mark.skipif(sys.platform == "win32", reason="no claims are kept there")
def test_a_kept_claim_beside_the_target_goes_with_its_process(target, tmp_path):
    """What the page says of ``.semlock-*.kept``: after a kill it stands until it is swept."""
    code = (
        "import os, signal\nfrom semlock import sidecar\n"
        f"for n in range(3):\n with sidecar.SidecarLock({target!r}): pass\n"
        f"print([n for n in os.listdir({str(tmp_path)!r})], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    kept = [name for name in os.listdir(tmp_path) if name.endswith(".kept")]
    assert str(kept) == done.stdout.decode().strip()
    # JSON proves no death, so it must have been left alone for two seconds.
    wait_until(
        lambda: semlock.clean(tmp_path) or not os.listdir(tmp_path), "the claim was cleaned"
    )
    assert os.listdir(tmp_path) == []
