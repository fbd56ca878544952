"""The feature lock: its specification's own table of tests, by their names, and its bounds."""

import os
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import feature
from semlock.feature import (
    FeatureLock,
    acquire_feature_lock,
    check_feature_lock,
    detect_feature,
    release_feature_lock,
)
from support import content_of, make_link, take_away


@pytest.fixture
def gsd(tmp_path):
    return str(tmp_path / ".gsd")


@pytest.fixture
def lock_file(gsd):
    path = Path(gsd) / "specs" / "feat" / ".lock"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def clock(monkeypatch):
    """Move the grace time along instead of waiting for it."""
    ahead = [0.0]
    real = time.time

    def sleep(seconds):
        ahead[0] += seconds

    for module in ("_policy", "policy", "_status", "feature"):
        name = f"semlock.{module}.time"
        if module == "feature":
            monkeypatch.setattr("semlock.feature.time.time", lambda: real() + ahead[0])
            monkeypatch.setattr("semlock.feature.time.sleep", sleep)
        else:
            monkeypatch.setattr(name, lambda: real() + ahead[0])
    return ahead


@pytest.fixture(autouse=True)
def nothing_is_left_held():
    yield
    for lock in list(feature._held.values()):
        if lock.held:
            lock.release()
    feature._held.clear()


class TestLockfile:
    """Table 7.1 of the specification."""

    def test_atomic_acquire_race_simulation(self, gsd):
        start = threading.Barrier(8)
        won = []

        def contend():
            start.wait()
            won.append(acquire_feature_lock("feat", gsd))

        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False] * 7 + [True]

    def test_acquire_rejects_path_traversal(self, gsd):
        with pytest.raises(ValueError, match="feature name"):
            acquire_feature_lock("../etc", gsd)

    def test_acquire_rejects_slash_in_name(self, gsd):
        with pytest.raises(ValueError, match="feature name"):
            acquire_feature_lock("foo/bar", gsd)

    def test_acquire_rejects_backslash_in_name(self, gsd):
        with pytest.raises(ValueError, match="feature name"):
            acquire_feature_lock("foo\\bar", gsd)

    def test_release_only_deletes_owned_lock(self, gsd, lock_file):
        content = f"1:{time.time()}"
        lock_file.write_text(content)
        release_feature_lock("feat", gsd)
        assert lock_file.read_text() == content

    def test_release_deletes_own_lock(self, gsd, lock_file):
        lock_file.write_text(f"{os.getpid()}:{time.time()}")
        release_feature_lock("feat", gsd)
        assert not lock_file.exists()

    def test_release_deletes_corrupt_lock(self, gsd, lock_file, clock):
        lock_file.write_text("garbage")
        release_feature_lock("feat", gsd)
        assert not lock_file.exists()
        assert clock[0] >= 1.9  # it was given the time to be written

    def test_release_rejects_path_traversal(self, gsd):
        with pytest.raises(ValueError, match="feature name"):
            release_feature_lock("../etc", gsd)

    def test_check_rejects_path_traversal(self, gsd):
        with pytest.raises(ValueError, match="feature name"):
            check_feature_lock("../etc", gsd)

    def test_acquire_handles_read_error(self, gsd, lock_file, monkeypatch):
        lock_file.write_text(f"1:{time.time()}")
        real = semlock._native.look

        def unreadable(path):
            seen = real(path)
            return seen and semlock._native.Look(seen.view, b"", -5)

        monkeypatch.setattr(semlock._native, "look", unreadable)
        assert acquire_feature_lock("feat", gsd) is False
        assert lock_file.exists()

    def test_check_handles_read_error(self, gsd, lock_file, monkeypatch):
        lock_file.write_text(f"1:{time.time()}")
        assert check_feature_lock("feat", gsd)

        def fail(path):
            raise OSError(5, "Input/output error", path)

        monkeypatch.setattr(semlock._native, "look", fail)
        assert check_feature_lock("feat", gsd) is None

    def test_pid_out_of_bounds_treated_as_corrupt(self, gsd, lock_file, clock):
        lock_file.write_text(f"4194305:{time.time()}")
        assert check_feature_lock("feat", gsd) is None
        assert acquire_feature_lock("feat", gsd) is True

    def test_negative_pid_treated_as_corrupt(self, gsd, lock_file, clock):
        lock_file.write_text(f"-1:{time.time()}")
        assert check_feature_lock("feat", gsd) is None
        assert acquire_feature_lock("feat", gsd) is True

    def test_future_timestamp_treated_as_corrupt(self, gsd, lock_file, clock):
        lock_file.write_text(f"1:{time.time() + 90000}")
        assert check_feature_lock("feat", gsd) is None
        assert acquire_feature_lock("feat", gsd) is True


class TestCommandsUtils:
    """Table 7.2 of the specification."""

    def test_detect_feature_handles_read_error(self, gsd):
        os.makedirs(os.path.join(gsd, ".current-feature"))
        assert detect_feature(gsd) is None

    def test_detect_feature_handles_unicode_error(self, gsd):
        os.makedirs(gsd)
        Path(gsd, ".current-feature").write_bytes(b"\xff\xfe")
        assert detect_feature(gsd) is None


class TestTheRecord:
    def test_is_pid_and_time_without_a_newline(self, gsd):
        before = time.time()
        assert acquire_feature_lock("feat", gsd)
        text = content_of(Path(gsd, "specs", "feat", ".lock")).decode()
        pid, _, stamp = text.partition(":")
        assert int(pid) == os.getpid()
        assert before - 1 <= float(stamp) <= time.time()
        assert not text.endswith("\n")

    @pytest.mark.parametrize(
        "content",
        ["", ":", "1", "1:", ":1", "a:1", "1:a", "1:nan", "1:inf", "1:-1", "1:0", "0:1", "+5:1",
         "1_000:1", "1:1e9", "1:1:1", "１:1", "1 :1",
         "1:1794992778 x"],
    )  # fmt: skip
    def test_what_is_no_record_is_refused(self, content):
        with pytest.raises(semlock.LockRecordError):
            feature.decode(content.encode())

    @pytest.mark.parametrize("content", ["25712:1794992778.5307965", "1:1\r\n", " 7:5.\n"])
    def test_what_its_writers_write_is_read(self, content, monkeypatch):
        monkeypatch.setattr("semlock.feature.time.time", lambda: 1794992779.0)
        assert feature.decode(content.encode()).pid in (25712, 1, 7)

    def test_a_refresh_keeps_its_length(self, gsd):
        with FeatureLock("feat", gsd) as lock:
            before = content_of(lock.path).decode()
            lock._native.stamp -= 5000
            lock.refresh()
            after = content_of(lock.path).decode()
            assert len(after) == len(before)
            assert lock.info.pid == os.getpid()
            assert abs(float(after.partition(":")[2]) - time.time()) < 5


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "a..b", "-a", ".a", "a\n", "a b", "ä", "a\0", "/", "a/../b", None, 5],
    )  # fmt: skip
    def test_what_could_leave_the_directory_is_refused(self, gsd, name):
        for call in (acquire_feature_lock, release_feature_lock, check_feature_lock):
            with pytest.raises(ValueError, match="feature name"):
                call(name, gsd)
        assert not os.path.exists(gsd)

    @pytest.mark.parametrize("name", ["a", "A-b_c.d", "0", "x" * 200])
    def test_what_the_rule_allows_is_taken(self, gsd, name):
        assert acquire_feature_lock(name, gsd)
        release_feature_lock(name, gsd)


class TestHolding:
    def test_a_held_lock_is_refused_and_told_of(self, gsd):
        assert acquire_feature_lock("feat", gsd)
        assert not acquire_feature_lock("feat", gsd)
        told = check_feature_lock("feat", gsd)
        assert told["pid"] == os.getpid()
        assert 0 <= told["age_seconds"] < 60
        release_feature_lock("feat", gsd)
        assert check_feature_lock("feat", gsd) is None
        assert acquire_feature_lock("feat", gsd)

    def test_it_is_stale_after_two_hours(self, gsd, lock_file):
        lock_file.write_text(f"1:{time.time() - 7190}")
        assert not acquire_feature_lock("feat", gsd)
        lock_file.write_text(f"1:{time.time() - 7210}")
        assert check_feature_lock("feat", gsd) is None
        assert acquire_feature_lock("feat", gsd)

    def test_a_half_written_foreign_lock_is_not_stolen(self, gsd, lock_file, monkeypatch):
        """The writer goes on while we wait, and its lock stands."""
        whole = f"1:{time.time()}"
        for length in range(len(whole)):
            lock_file.write_text(whole[:length])
            monkeypatch.setattr(
                "semlock.feature.time.sleep", lambda _, whole=whole: lock_file.write_text(whole)
            )
            assert not acquire_feature_lock("feat", gsd)
            assert lock_file.read_text() in (whole, whole[:length])
            release_feature_lock("feat", gsd)
            assert lock_file.exists()

    def test_releasing_nothing_is_no_error(self, gsd):
        release_feature_lock("feat", gsd)

    def test_releasing_a_lock_that_was_robbed_leaves_the_robbers(self, gsd):
        assert acquire_feature_lock("feat", gsd)
        path = Path(gsd, "specs", "feat", ".lock")
        take_away(path)
        path.write_text(f"1:{time.time()}")
        release_feature_lock("feat", gsd)
        assert path.read_text().startswith("1:")

    @pytest.mark.parametrize("kind", ["directory", "dangling"])
    def test_what_is_no_file_is_held_and_left_alone(self, gsd, lock_file, kind):
        if kind == "directory":
            lock_file.mkdir()
        else:
            make_link(lock_file, "nowhere")
        assert acquire_feature_lock("feat", gsd) is False
        assert check_feature_lock("feat", gsd) is None
        release_feature_lock("feat", gsd)
        assert os.path.lexists(lock_file)

    def test_the_lock_object_has_the_words_of_the_default_lock(self, gsd):
        with FeatureLock("feat", gsd) as lock:
            assert lock.held
            lock.check()
            lock.refresh()
            assert lock.status().state == "held"
            assert feature.status("feat", gsd).info == lock.info
            assert not FeatureLock("feat", gsd).try_acquire()
        assert not lock.held


class TestDetecting:
    def test_the_environment_comes_first(self, gsd, monkeypatch):
        os.makedirs(gsd)
        Path(gsd, ".current-feature").write_text("from-file\n")
        monkeypatch.setenv("MAHABHARATHA_FEATURE", " from-env ")
        assert detect_feature(gsd) == "from-env"
        monkeypatch.setenv("MAHABHARATHA_FEATURE", " ")
        assert detect_feature(gsd) == "from-file"

    def test_the_newest_state_comes_last(self, gsd, tmp_path):
        states = tmp_path / "state"
        states.mkdir()
        for age, name in ((5, "old"), (1, "new"), (3, "middle")):
            (states / f"{name}.json").touch()
            os.utime(states / f"{name}.json", (10**9 - age, 10**9 - age))
        (states / "other.txt").touch()
        assert detect_feature(gsd, states) == "new"
        assert detect_feature(gsd, tmp_path / "none") is None
