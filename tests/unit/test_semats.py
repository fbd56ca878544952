"""semats' rules, one by one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock import semats
from semlock.semats import Semaphore, decode
from support import make_link, set_time

# A process that lives and is not this one.
FIRST = 1 if sys.platform != "win32" else os.getppid()


@pytest.fixture
def gone():
    """The number of a process that does not exist any more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def foreign(path, pid, age=0.0):
    Path(path).write_text(f"pid={pid}\ntimestamp={int(time.time() - age)}\ntag=theirs\n")


@pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
def test_the_mode_is_private(path):
    with Semaphore(path):
        assert os.stat(path).st_mode & 0o777 == 0o600


class TestStaleness:
    def test_needs_both_a_process_that_is_gone_and_age(self, path, gone):
        for pid, age, taken in (
            (gone, 0, False), (os.getpid(), 4000, False), (FIRST, 4000, False), (gone, 4000, True),
        ):  # fmt: skip
            foreign(path, pid, age)
            lock = Semaphore(path)
            assert lock.try_acquire() is taken, (pid, age)
        lock.release()

    def test_can_be_switched_off(self, path, gone):
        foreign(path, gone, 10**6)
        for off in (0, None):
            assert Semaphore(path, stale_timeout=off).try_acquire() is False

    def test_of_a_record_of_another_machine_is_not_judged_by_our_numbers(self, path, gone):
        foreign(path, gone, 4000)
        with open(path, "a") as file:
            file.write("boot=another\n")
        assert Semaphore(path).try_acquire() is False

    def test_is_seen_by_status(self, path, gone):
        foreign(path, gone, 4000)
        assert semats.status(path).state == "stale"
        assert semats.status(path, stale_timeout=0).state == "held"


class TestPaths:
    @pytest.mark.parametrize("bad", ["../x", "a/../b", "a..b", "x\0y"])
    def test_that_could_lead_elsewhere_are_refused(self, bad):
        for call in (Semaphore, semats.status):
            with pytest.raises(semlock.LockPathError):
                call(bad)

    def test_links_are_resolved(self, tmp_path):
        make_link(tmp_path / "link", tmp_path / "target")
        with Semaphore(tmp_path / "link") as lock:
            assert lock.path == str(tmp_path / "target")
            assert (tmp_path / "target").is_file()
            assert not Semaphore(tmp_path / "target").try_acquire()
            assert semats.status(tmp_path / "link").state == "held"
        assert (tmp_path / "link").is_symlink()

    def test_a_link_to_itself_is_refused(self, tmp_path):
        make_link(tmp_path / "loop", tmp_path / "loop")
        with pytest.raises(semlock.LockPathError, match="itself"):
            Semaphore(tmp_path / "loop")


class TestTags:
    def test_control_characters_become_spaces(self, path):
        with Semaphore(path, tag="a\n\0\x1b\x7fb"):
            assert semats.status(path).info.tag == "a    b"

    def test_are_cut_at_the_limit(self, path):
        with Semaphore(path, tag="x" * 20000) as lock:
            assert lock.info.tag == "x" * 10000
        with Semaphore(path, tag="äöü", max_tag_length=2) as lock:
            assert lock.info.tag == "äö"

    def test_may_contain_what_separates_keys(self, path):
        with Semaphore(path, tag="a=b=c") as lock:
            assert lock.info.tag == "a=b=c"


class TestParsing:
    GOOD = {
        "trimmed": b" pid = 12 \n\ttimestamp =\t1735420800\r\n tag = npm build \n",
        "first equals": b"pid=12\ntimestamp=1735420800\ntag=a = b\n",
        "CRLF": b"pid=12\r\ntimestamp=1735420800\r\n\r\n",
        "lines without equals": b"x\npid=12\n\n#\ntimestamp=1735420800",
    }
    BAD = {
        "empty": b"",
        "white space": b" \n\t\r\n",
        "no pid": b"timestamp=1\n",
        "pid no number": b"pid=x\ntimestamp=1\n",
        "no timestamp": b"pid=1\n",
        "timestamp no number": b"pid=1\ntimestamp=1.5\n",
        "binary": bytes(range(256)),
        "NUL": b"pid=1\ntimestamp=1\ntag=\0\n",
    }

    @pytest.mark.parametrize("name", GOOD)
    def test_reads_what_the_rules_allow(self, name):
        info = decode(self.GOOD[name])
        assert (info.pid, info.timestamp) == (12, 1735420800)
        assert info.tag in (None, "npm build", "a = b")

    @pytest.mark.parametrize("name", BAD)
    def test_fails_where_the_rules_say_so(self, name):
        with pytest.raises(semlock.LockRecordError):
            decode(self.BAD[name])


class TestReleasing:
    def test_ones_own_lock(self, path):
        lock = Semaphore(path)
        lock.acquire()
        lock.release()
        with pytest.raises(semlock.NotHeldError, match="not locked"):
            lock.release()

    def test_another_processes_lock_needs_force(self, path):
        foreign(path, 1)
        with pytest.raises(semlock.NotHeldError, match="force=True"):
            Semaphore(path).release()
        assert os.path.exists(path)
        Semaphore(path).release(force=True)
        assert not os.path.exists(path)

    def test_a_record_without_a_token_that_names_this_process_is_its_own(self, path):
        foreign(path, os.getpid())
        Semaphore(path).release()
        assert not os.path.exists(path)

    def test_another_object_of_this_process_is_another_holder(self, path):
        with Semaphore(path) as lock:
            with pytest.raises(semlock.NotHeldError):
                Semaphore(path).release()
            lock.check()

    def test_what_is_no_record_needs_force(self, path):
        Path(path).write_text("garbage")
        with pytest.raises(semlock.NotHeldError):
            Semaphore(path).release()
        Semaphore(path).release(force=True)


class TestCleaning:
    def temporary(self, path, pid, age=10.0):
        name = f"{path}.{pid}.0123456789abcdef.tmp"
        Path(name).write_bytes(b"pid=%d\n" % pid)
        return name

    @pytest.fixture
    def later(self, monkeypatch):
        real = time.time
        set_time(monkeypatch, lambda: real() + 10)

    def test_removes_orphaned_temporary_files_and_stale_locks(self, path, gone, later, names):
        orphan = self.temporary(path, gone)
        foreign(path, gone, 4000)
        removed = Semaphore(path).clean_stale()
        assert sorted(r.path for r in removed) == sorted([path, orphan])
        assert all(str(gone) in r.reason for r in removed)
        assert names() == []

    def test_never_a_live_peers_temporary_file(self, path, later):
        peer = self.temporary(path, os.getpid())
        init = self.temporary(path, FIRST)
        assert Semaphore(path).clean_stale() == []
        assert os.path.exists(peer)
        assert os.path.exists(init)

    def test_never_one_that_was_written_just_now(self, path, gone):
        fresh = self.temporary(path, gone)
        assert Semaphore(path).clean_stale() == []
        assert os.path.exists(fresh)

    def test_never_a_live_peers_lock(self, path, later):
        with Semaphore(path):
            assert Semaphore(path).clean_stale() == []

    def test_never_another_locks_files(self, path, gone, later):
        other = self.temporary(path + "2", gone)
        assert Semaphore(path).clean_stale() == []
        assert os.path.exists(other)

    def test_of_a_directory_cleans_all_of_it(self, path, gone, later, tmp_path):
        self.temporary(path, gone)
        foreign(tmp_path / "other.lock", gone, 4000)
        (tmp_path / "notes.txt").write_text("pid of my dog = 5\n")
        assert len(semats.clean_stale(tmp_path)) == 2
        assert os.listdir(tmp_path) == ["notes.txt"]
