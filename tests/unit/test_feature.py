"""The feature lock beside its rules, which are in ``tests/systems/test_feature_rules.py``."""

import os
import time
from pathlib import Path

import pytest

from semlock import feature
from semlock.feature import (
    FeatureLock,
    acquire_feature_lock,
    check_feature_lock,
    release_feature_lock,
)
from support import make_link, take_away


@pytest.fixture
def gsd(tmp_path):
    return str(tmp_path / ".gsd")


@pytest.fixture
def lock_file(gsd):
    path = Path(gsd) / "specs" / "feat" / ".lock"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture(autouse=True)
def nothing_is_left_held():
    yield
    for lock in list(feature._held.values()):
        if lock.held:
            lock.release()
    feature._held.clear()


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
