"""One test for each rule of the feature lock's specification, section by section."""

import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
import users
from semlock import feature
from semlock.feature import (
    FeatureLock,
    acquire_feature_lock,
    check_feature_lock,
    detect_feature,
    release_feature_lock,
)
from support import Child, content_of, make_link, set_time

NOW = 1_794_992_778.5307965

# The rows of the specification's tables of tests, 7.1 and 7.2, and the tests here that are they.
ROWS = {
    "test_atomic_acquire_race_simulation": "TestAcquiring.test_one_of_many_wins",
    "test_acquire_rejects_path_traversal": "TestNames.test_are_refused_in_the_specifications_words",
    "test_acquire_rejects_slash_in_name": "TestNames.test_are_refused_in_the_specifications_words",
    "test_acquire_rejects_backslash_in_name": (
        "TestNames.test_are_refused_in_the_specifications_words"
    ),
    "test_release_only_deletes_owned_lock": (
        "TestReleasing.test_leaves_the_lock_of_another_process"
    ),
    "test_release_deletes_own_lock": "TestReleasing.test_removes_ones_own_lock",
    "test_release_deletes_corrupt_lock": "TestReleasing.test_removes_a_corrupt_lock",
    "test_release_rejects_path_traversal": (
        "TestNames.test_are_refused_in_the_specifications_words"
    ),
    "test_check_rejects_path_traversal": "TestNames.test_are_refused_in_the_specifications_words",
    "test_acquire_handles_read_error": (
        "TestReadErrors.test_a_broken_disk_gives_false_and_nothing_is_removed"
    ),
    "test_check_handles_read_error": (
        "TestChecking.test_gives_none_for_what_can_not_be_looked_at"
    ),
    "test_pid_out_of_bounds_treated_as_corrupt": (
        "TestAcquiring.test_removes_a_corrupt_lock_once_it_is_left_alone"
    ),
    "test_negative_pid_treated_as_corrupt": (
        "TestAcquiring.test_removes_a_corrupt_lock_once_it_is_left_alone"
    ),
    "test_future_timestamp_treated_as_corrupt": (
        "TestAcquiring.test_removes_a_corrupt_lock_once_it_is_left_alone"
    ),
    "test_detect_feature_handles_read_error": (
        "TestDetecting.test_passes_over_what_can_not_be_read"
    ),
    "test_detect_feature_handles_unicode_error": (
        "TestDetecting.test_passes_over_what_can_not_be_read"
    ),
}

# Root may read everything, so a child becomes another user.
ANOTHER_USER = "import os, sys, time, semlock\nfrom semlock.feature import *\n"
if users.ROOT:
    ANOTHER_USER += users.as_user()
needs_users = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs users, and descriptors without reading"
)


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
    """The time, which passes by sleeping and by what the test adds."""
    ahead = [0.0]
    real = time.time

    def sleep(seconds):
        ahead[0] += seconds

    set_time(monkeypatch, lambda: real() + ahead[0])
    monkeypatch.setattr("semlock.feature.time.sleep", sleep)
    return ahead


@pytest.fixture(autouse=True)
def nothing_is_left_held():
    yield
    for lock in list(feature._held.values()):
        if lock.held:
            lock.release()
    feature._held.clear()


class TestNames:
    """3.1"""

    @pytest.mark.parametrize(
        "name",
        ["", "../etc", "a..b", "foo/bar", "foo\\bar", "-a", ".a", "a b", ".", "..", "/", "a/../b",
         "ä", "a\0", None, 5],
    )  # fmt: skip
    def test_are_refused_in_the_specifications_words(self, gsd, name):
        for call in (acquire_feature_lock, release_feature_lock, check_feature_lock):
            with pytest.raises(ValueError, match="Invalid feature name") as caught:
                call(name, gsd)
            assert str(caught.value) == f"Invalid feature name: {name!r}"
        assert not os.path.exists(gsd)

    def test_that_end_with_a_newline_are_refused(self, gsd):
        with pytest.raises(ValueError, match="Invalid feature name"):
            acquire_feature_lock("a\n", gsd)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes there")
    def test_that_are_refused_come_with_the_rule(self, gsd):
        with pytest.raises(ValueError, match="Invalid") as caught:
            acquire_feature_lock("../etc", gsd)
        assert "begins with a letter or digit" in caught.value.__notes__[0]

    @pytest.mark.parametrize("name", ["a", "0", "A-b_c.d", "x" * 200])
    def test_of_letters_digits_dots_underscores_and_dashes_are_taken(self, gsd, name):
        assert acquire_feature_lock(name, gsd) is True
        release_feature_lock(name, gsd)


class TestReading:
    """3.2 and 3.3"""

    # What int() and float() read, the original reads, and so respects as a lock.
    READ = {
        "25712:1794992778.5307965": (25712, NOW), " 7:1794992778\r\n": (7, 1794992778),
        "7:1.79e+09": (7, 1.79e9), "1000 : 1794992778": (1000, 1794992778),
        "+5:1": (5, 1), "1_000:1_000.5": (1000, 1000.5), "１:1": (1, 1), "7:5.": (7, 5),
    }  # fmt: skip

    @pytest.mark.parametrize("content", READ)
    def test_takes_what_the_original_takes(self, content, monkeypatch):
        set_time(monkeypatch, lambda: NOW)
        info = feature.decode(content.encode())
        assert (info.pid, info.timestamp) == self.READ[content]

    @pytest.mark.parametrize("content", READ)
    def test_a_lock_that_the_original_respects_is_respected(
        self, gsd, lock_file, content, clock
    ):
        pid = content.partition(":")[0]
        lock_file.write_text(f"{pid}:{time.time():e}")
        assert acquire_feature_lock("feat", gsd) is False
        assert check_feature_lock("feat", gsd)["pid"] == int(pid)
        assert clock[0] == 0, "nothing is waited for"

    @pytest.mark.parametrize(
        "content",
        ["", "x", ":", "1:", ":1", "a:1", "1:a", "1:1:1", "1.0:1", "1", "1e3:1", "1:1794992778 x",
         b"\xff\xfe:1"],
    )  # fmt: skip
    def test_refuses_what_is_not_pid_and_timestamp(self, content):
        with pytest.raises(semlock.LockRecordError):
            feature.decode(content if isinstance(content, bytes) else content.encode())

    @pytest.mark.parametrize("pid", [0, -1, 4_194_305])
    def test_refuses_a_pid_out_of_bounds(self, pid):
        with pytest.raises(semlock.LockRecordError, match="pid"):
            feature.decode(b"%d:1000000000" % pid)

    def test_takes_the_largest_pid(self):
        assert feature.decode(b"4194304:1000000000").pid == 4_194_304

    @pytest.mark.parametrize("stamp", ["0", "-1", "inf", "1e300"])
    def test_refuses_a_timestamp_out_of_bounds(self, stamp):
        with pytest.raises(semlock.LockRecordError, match="timestamp"):
            feature.decode(f"1:{stamp}".encode())

    def test_takes_a_timestamp_of_a_day_ahead_and_none_beyond(self, monkeypatch):
        set_time(monkeypatch, lambda: 1e9)
        assert feature.decode(b"1:1000086400").timestamp == 1_000_086_400
        with pytest.raises(semlock.LockRecordError):
            feature.decode(b"1:1000086400.5")

    def test_refuses_nan_which_would_never_be_stale(self):
        """The one lock that the original respects, for ever, and this doesn't."""
        with pytest.raises(semlock.LockRecordError):
            feature.decode(b"1:nan")


class TestAcquiring:
    """2.3 and 3.4"""

    def test_makes_the_directories_and_writes_pid_and_time(self, gsd):
        before = time.time()
        assert acquire_feature_lock("feat", gsd) is True
        text = content_of(os.path.join(gsd, "specs", "feat", ".lock")).decode()
        pid, stamp = text.split(":")
        assert int(pid) == os.getpid()
        assert before - 1e-6 <= float(stamp) <= time.time()
        assert text == text.strip()

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_writes_a_file_that_is_not_executable(self, gsd):
        with FeatureLock("feat", gsd) as lock:
            assert os.stat(lock.path).st_mode & 0o111 == 0

    def test_one_of_many_wins(self, gsd):
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

    def test_gives_false_for_an_active_lock_and_leaves_it(self, gsd, lock_file):
        content = f"99999:{time.time()}"
        lock_file.write_text(content)
        assert acquire_feature_lock("feat", gsd) is False
        assert lock_file.read_text() == content

    @pytest.mark.parametrize(
        "content", ["not-valid-lock-content", "4194305:{now}", "-1:{now}", "1:{ahead}"]
    )
    def test_removes_a_corrupt_lock_once_it_is_left_alone(self, gsd, lock_file, clock, content):
        now = time.time()
        lock_file.write_text(content.format(now=now, ahead=now + 90_000))
        assert acquire_feature_lock("feat", gsd) is True
        assert clock[0] < 2.2
        assert clock[0] + time.time() - now > 1.9

    @pytest.mark.parametrize("after", [0.05, 0.3, 1.0])
    def test_sees_soon_that_a_half_written_lock_is_complete(
        self, gsd, lock_file, clock, monkeypatch, after
    ):
        lock_file.write_text("1:")
        real = time.time

        def sleep(seconds):
            clock[0] += seconds
            if clock[0] >= after and lock_file.read_text() == "1:":
                lock_file.write_text(f"1:{real() + clock[0]}")

        monkeypatch.setattr("semlock.feature.time.sleep", sleep)
        assert acquire_feature_lock("feat", gsd) is False
        assert after <= clock[0] <= after + 0.06
        assert lock_file.read_text().startswith("1:1")

    def test_sees_soon_that_a_half_written_lock_is_gone(
        self, gsd, lock_file, clock, monkeypatch
    ):
        lock_file.write_text("1:")

        def sleep(seconds):
            clock[0] += seconds
            lock_file.unlink(missing_ok=True)

        monkeypatch.setattr("semlock.feature.time.sleep", sleep)
        assert acquire_feature_lock("feat", gsd) is True
        assert clock[0] < 0.1

    @pytest.mark.parametrize("kind", ["directory", "dangling link"])
    def test_gives_false_for_what_is_no_file(self, gsd, lock_file, kind):
        if kind == "directory":
            lock_file.mkdir()
        else:
            make_link(lock_file, "nowhere")
        assert acquire_feature_lock("feat", gsd) is False
        assert os.path.lexists(lock_file)


class TestStaleness:
    def test_is_strictly_more_than_two_hours(self, gsd, lock_file, monkeypatch):
        lock_file.write_text(f"54321:{NOW!r}")
        for later, state in ((7200, "held"), (7200.001, "stale")):
            set_time(monkeypatch, lambda later=later: NOW + later)
            assert feature.status("feat", gsd).state == state

    def test_counts_whole_seconds_where_the_stamp_has_no_fraction(
        self, gsd, lock_file, monkeypatch
    ):
        lock_file.write_text(f"54321:{int(NOW)}")
        for later, state in ((7200.99, "held"), (7201, "stale")):
            set_time(monkeypatch, lambda later=later: int(NOW) + later)
            assert feature.status("feat", gsd).state == state

    @pytest.mark.parametrize("stamp", ["+{}", "{}.", "{}.000", "{}e0", "1_{}"])
    def test_counts_whole_seconds_in_whatever_form_of_a_number(
        self, gsd, lock_file, monkeypatch, stamp
    ):
        text = stamp.format(str(int(NOW))[stamp.startswith("1") :])
        lock_file.write_text(f"54321:{text}")
        for later, state in ((7200.99, "held"), (7201, "stale")):
            set_time(monkeypatch, lambda later=later: int(NOW) + later)
            assert feature.status("feat", gsd).state == state

    def test_is_by_age_alone_even_if_its_holder_lives(self, gsd, lock_file):
        lock_file.write_text(f"{os.getpid()}:{time.time() - 7300}")
        assert acquire_feature_lock("feat", gsd) is True

    def test_of_a_refreshed_lock_is_counted_to_the_fraction(self, gsd, monkeypatch):
        """Refreshed every 0.9 s beside a timeout of one second, it is never stale."""
        victim = FeatureLock("feat", gsd)
        victim.acquire()
        before = content_of(victim.path)
        robber = FeatureLock("feat", gsd, stale_seconds=1)
        now = [NOW]
        set_time(monkeypatch, lambda: now[0])
        for step in range(50):
            now[0] = NOW + 0.3 * step
            if step % 3 == 0:
                victim.refresh()
                stamp = content_of(victim.path).decode().partition(":")[2]
                assert float(stamp) == pytest.approx(now[0], abs=1e-6)
                assert len(content_of(victim.path)) == len(before)
            assert robber.status().state == "held"
        assert victim.info == robber.status().info
        victim.release()

    def test_of_a_lock_that_just_could_not_be_refreshed_shows_what_is_in_the_file(
        self, gsd, monkeypatch
    ):
        with FeatureLock("feat", gsd) as lock:
            before = lock.info
            monkeypatch.setattr("semlock._core.capi.refresh_lock", lambda *_: -5)
            set_time(monkeypatch, lambda: NOW + 10**9)
            with pytest.raises(OSError) as failure:
                lock.refresh()
            assert 5 in (failure.value.errno, getattr(failure.value, "winerror", None))
            assert lock.info == before


class TestReleasing:
    """3.5"""

    def test_removes_ones_own_lock(self, gsd, lock_file):
        assert acquire_feature_lock("feat", gsd)
        release_feature_lock("feat", gsd)
        assert not lock_file.exists()

    def test_removes_a_lock_that_names_this_process(self, gsd, lock_file):
        lock_file.write_text(f"{os.getpid()}:{time.time()}")
        release_feature_lock("feat", gsd)
        assert not lock_file.exists()

    def test_leaves_the_lock_of_another_process(self, gsd, lock_file):
        content = f"{os.getpid() + 1}:{time.time()}"
        lock_file.write_text(content)
        release_feature_lock("feat", gsd)
        assert lock_file.read_text() == content

    def test_removes_a_corrupt_lock(self, gsd, lock_file, clock):
        lock_file.write_text("not-a-valid-lock")
        begin = time.monotonic()
        release_feature_lock("feat", gsd)
        assert not lock_file.exists()
        # It was given the time to be written, of which some went by on a busy machine.
        assert clock[0] + time.monotonic() - begin >= 1.9

    def test_of_nothing_is_no_error(self, gsd):
        release_feature_lock("feat", gsd)


@needs_users
class TestReadErrors:
    """3.2: a file that can't be read is removed by the original, whatever it says."""

    @pytest.fixture
    def ours(self, common):
        """A directory of the user who tries."""
        with Child(ANOTHER_USER) as child:
            child.run(f"gsd = {common!r} + '/g'; specs = gsd + '/specs/feat'")
            child.run("os.makedirs(specs); file = specs + '/.lock'")
            yield child

    def test_an_unreadable_file_of_ones_own_is_judged_by_what_it_says(self, ours):
        for text, taken in (("'garbage'", True), ("f'1:{time.time()}'", False),
                            ("f'1:{time.time() - 7300}'", True)):  # fmt: skip
            ours.run(f"open(file, 'w').write({text}); os.chmod(file, 0)")
            assert ours.run("acquire_feature_lock('feat', gsd)") is taken, text
            ours.run("release_feature_lock('feat', gsd)")
            ours.run("os.unlink(file) if os.path.exists(file) else None")

    def test_release_removes_an_unreadable_file_that_is_corrupt_or_ones_own(self, ours):
        for text, stays in (("'garbage'", False), ("f'{os.getpid()}:{time.time()}'", False),
                            ("f'1:{time.time()}'", True)):  # fmt: skip
            ours.run(f"open(file, 'w').write({text}); os.chmod(file, 0)")
            ours.run("release_feature_lock('feat', gsd)")
            assert ours.run("os.path.exists(file)") is stays, text

    def test_an_unreadable_lock_whose_holder_lives_is_not_robbed(self, ours):
        ours.run("mine = FeatureLock('feat', gsd); mine.acquire(); os.chmod(file, 0)")
        assert ours.run("acquire_feature_lock('feat', gsd)") is False
        ours.run("mine.check(); mine.release()")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs two users")
    def test_an_unreadable_file_of_another_user_is_held_and_stays(self, ours):
        file = ours.run("file")
        Path(file).write_text("garbage")
        os.chmod(file, 0o600)
        assert ours.run("acquire_feature_lock('feat', gsd)") is False
        ours.run("release_feature_lock('feat', gsd)")
        assert ours.run("check_feature_lock('feat', gsd)") is None
        assert os.path.exists(file)

    def test_a_path_that_can_not_be_is_an_error_and_not_another_sessions_lock(self, tmp_path):
        with pytest.raises(OSError, match="long"):
            acquire_feature_lock("f" * 300, tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match=r"file"):
            acquire_feature_lock("feat", tmp_path / "file")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs two users")
    def test_a_directory_that_is_closed_to_this_user_is_an_error(self, ours, common):
        closed = os.path.join(common, "closed")
        os.makedirs(os.path.join(closed, "specs", "feat"))
        os.chmod(closed, 0o700)
        with pytest.raises(PermissionError):
            ours.run(f"acquire_feature_lock('feat', {closed!r})")

    def test_check_gives_none_for_an_unreadable_file(self, ours):
        ours.run("open(file, 'w').write('1:1'); os.chmod(file, 0)")
        assert ours.run("check_feature_lock('feat', gsd)") is None

    def test_a_broken_disk_gives_false_and_nothing_is_removed(
        self, gsd, lock_file, monkeypatch
    ):
        """What can't be read can't be compared either, so it can't be removed exactly."""
        lock_file.write_text(f"1:{time.time()}")
        real = semlock._core.capi.look

        def broken(path):
            seen = real(path)
            return seen and semlock._core.capi.Instance(seen.view, b"", -5)

        monkeypatch.setattr(semlock._core.capi, "look", broken)
        monkeypatch.setattr(semlock._core.capi, "remove", lambda *_, **__: -5)
        later = time.time() + 5
        set_time(monkeypatch, lambda: later)
        assert acquire_feature_lock("feat", gsd) is False
        release_feature_lock("feat", gsd)
        assert lock_file.exists()


class TestChecking:
    """3.6"""

    def test_tells_pid_timestamp_and_age_of_an_active_lock(self, gsd, lock_file):
        since = time.time() - 300
        lock_file.write_text(f"42:{since}")
        told = check_feature_lock("feat", gsd)
        assert set(told) == {"pid", "timestamp", "age_seconds"}
        assert (told["pid"], told["timestamp"]) == (42, since)
        assert told["age_seconds"] == pytest.approx(300, abs=5)

    @pytest.mark.parametrize(
        "content",
        [None, "", "garbage", "x:1", "0:{now}", "4194305:{now}", "1:{old}", "1:{ahead}"],
    )
    def test_gives_none_for_what_is_free_corrupt_or_stale(self, gsd, lock_file, content):
        now = time.time()
        if content is not None:
            lock_file.write_text(content.format(now=now, old=now - 10_800, ahead=now + 90_000))
        assert check_feature_lock("feat", gsd) is None

    def test_gives_none_for_what_can_not_be_looked_at(self, gsd, lock_file, monkeypatch):
        lock_file.write_text(f"1:{time.time()}")
        assert check_feature_lock("feat", gsd)

        def fail(path):
            raise OSError(5, "Input/output error", path)

        monkeypatch.setattr(semlock._core.capi, "look", fail)
        assert check_feature_lock("feat", gsd) is None


class TestDetecting:
    """3.7"""

    def test_asks_the_environment_then_the_file_then_the_newest_state(
        self, gsd, tmp_path, monkeypatch
    ):
        states = tmp_path / "state"
        states.mkdir()
        (states / "from-state.json").touch()
        assert detect_feature(gsd, states) == "from-state"
        os.makedirs(gsd)
        Path(gsd, ".current-feature").write_text("from-file\n")
        assert detect_feature(gsd, states) == "from-file"
        monkeypatch.setenv("MAHABHARATHA_FEATURE", "from-environment")
        assert detect_feature(gsd, states) == "from-environment"

    def test_gives_the_state_that_was_written_last(self, gsd, tmp_path):
        states = tmp_path / "state"
        states.mkdir()
        for age, name in ((5, "old"), (1, "new"), (3, "middle")):
            (states / f"{name}.json").touch()
            os.utime(states / f"{name}.json", (10**9 - age, 10**9 - age))
        (states / "other.txt").touch()
        assert detect_feature(gsd, states) == "new"
        assert detect_feature(gsd, tmp_path / "none") is None

    def test_passes_over_blanks(self, gsd, monkeypatch):
        os.makedirs(gsd)
        Path(gsd, ".current-feature").write_text("from-file\n")
        monkeypatch.setenv("MAHABHARATHA_FEATURE", " ")
        assert detect_feature(gsd) == "from-file"
        monkeypatch.setenv("MAHABHARATHA_FEATURE", " from-environment ")
        assert detect_feature(gsd) == "from-environment"

    @pytest.mark.parametrize("kind", ["directory", "no text"])
    def test_passes_over_what_can_not_be_read(self, gsd, kind):
        os.makedirs(gsd)
        file = Path(gsd, ".current-feature")
        if kind == "directory":
            file.mkdir()
        else:
            file.write_bytes(b"\xff\xfe")
        assert detect_feature(gsd) is None


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_specifications_tables_is_a_test_here(row):
    group, name = ROWS[row].split(".")
    assert callable(getattr(globals()[group], name))


@pytest.mark.parametrize(
    ("content", "says"),
    [("12", "is not pid:timestamp"), ("x:1", "is not pid:timestamp"),
     ("0:1", "pid is not between 1 and 4194304: '0'"),
     ("4194305:1", "pid is not between 1 and"),
     ("1:0", "timestamp is not above 0 and at most a day ahead: 0.0"), ("1:nan", "ahead: nan"),
     ("1:99999999999", "at most a day ahead: 99999999999.0")],
)  # fmt: skip
def test_what_is_wrong_with_a_record_is_told(content, says):
    with pytest.raises(semlock.LockRecordError, match=re.escape(says)):
        feature.decode(content.encode())
