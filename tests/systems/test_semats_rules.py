"""One test for each rule of semats' specification, in its order, and for each odd value."""

import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock import sema, semats
from semlock.semats import Semaphore, decode
from support import Child, content_of, make_link, overwrite, set_time, take_away

NOW = 1_794_992_549
SETUP = "from semlock.semats import Semaphore"
FIRST = 1 if sys.platform != "win32" else os.getppid()  # lives, and is not this process


@pytest.fixture(scope="module")
def gone():
    """The number of a process that does not exist any more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def foreign(path, pid, age=0):
    Path(path).write_text(f"pid={pid}\ntimestamp={int(time.time()) - age}\ntag=theirs\n")


class TestTheFile:
    def test_is_semas(self, path):
        with Semaphore(path, tag="npm build") as lock:
            assert content_of(path).startswith(
                b"pid=%d\ntimestamp=%d\ntag=npm build\n" % (os.getpid(), lock.info.timestamp)
            )
            assert sema.status(path).info.tag == "npm build"

    def test_has_unix_line_ends_and_is_utf_8(self, path):
        with Semaphore(path, tag="zürich"):
            assert b"\r" not in content_of(path)
            assert "tag=zürich\n" in content_of(path).decode("utf-8")

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_has_mode_0600(self, path):
        with Semaphore(path):
            assert os.stat(path).st_mode & 0o777 == 0o600


class TestReading:
    READ = {
        "both line ends": b"pid=7\r\ntimestamp=9\ntag=x\r\n",
        "the first equals sign": b"pid=7\ntimestamp=9\ntag=x=y\n",
        "white space around keys and values": b" pid = 7 \n\ttimestamp\t=\t9\n tag =  x\n",
        "empty lines and lines without equals signs": b"\nnote\npid=7\n\ntimestamp=9\ntag=x",
        "unknown keys": b"version=2\npid=7\ntimestamp=9\ntag=x\n",
        "no tag": b"pid=7\ntimestamp=9\n",
        "a plus sign": b"pid=+7\ntimestamp=+9\n",
        "a byte order mark": b"\xef\xbb\xbfpid=7\ntimestamp=9\ntag=x\n",
    }

    @pytest.mark.parametrize("name", READ)
    def test_takes_what_the_parsing_rules_allow(self, name):
        info = decode(self.READ[name])
        assert (info.pid, info.timestamp) == (7, 9)
        assert info.tag in (None, "x", "x=y")

    @pytest.mark.parametrize(
        "content",
        [b"timestamp=9\n", b"pid=x\ntimestamp=9\n", b"pid=7\n", b"pid=7\ntimestamp=x\n", b"",
         b" \n\t\n", bytes(range(256)), b"pid=7\ntimestamp=9\ntag=\0\n", b"pid=7.5\ntimestamp=9\n",
         b"pid=0x7\ntimestamp=9\n", b"pid=--7\ntimestamp=9\n", "pid=\u0667\ntimestamp=9\n".encode(),
         b"pid=" + b"9" * 400 + b"\ntimestamp=9\n"],
    )  # fmt: skip
    def test_fails_in_the_error_cases_and_the_file_counts_as_held(self, content, path):
        with pytest.raises(semlock.LockRecordError):
            decode(content)
        Path(path).write_bytes(content)
        os.utime(path, (1, 1))
        assert Semaphore(path, stale_timeout=1).try_acquire() is False
        assert Path(path).read_bytes() == content

    @pytest.mark.parametrize("pid", [0, -1, -5])
    def test_takes_a_number_that_names_no_process_and_never_calls_it_gone(self, pid, path):
        """To ``kill`` they are groups of processes, the reader's own among them."""
        foreign(path, pid, age=10**6)
        found = semats.status(path)
        assert (found.state, found.info.pid, found.info.tag) == ("held", None, "theirs")
        assert Semaphore(path, stale_timeout=1).try_acquire() is False

    def test_takes_a_number_beyond_this_systems_and_never_calls_it_gone(self, path):
        foreign(path, 2**33, age=10**6)
        found = semats.status(path)
        assert (found.state, found.info.pid) == ("held", 2**33)
        assert Semaphore(path, stale_timeout=1).try_acquire() is False

    def test_takes_a_negative_timestamp_for_a_very_old_one(self, path, gone):
        Path(path).write_text(f"pid={gone}\ntimestamp=-1\n")
        with Semaphore(path, timeout=0):
            pass
        Path(path).write_text(f"pid={FIRST}\ntimestamp=-1\n")
        assert Semaphore(path).try_acquire() is False


class TestAcquiring:
    def test_fails_while_another_process_holds(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = Semaphore({path!r}); lock.acquire(); None")
            assert Semaphore(path).try_acquire() is False
            child.run("lock.release()")
            with Semaphore(path, timeout=0):
                pass

    def test_never_overwrites_a_lock_that_appears(self, path):
        """The tool renames over what it did not see; here the second name is refused."""
        Path(path).write_text("a process was quicker")
        assert Semaphore(path).try_acquire() is False
        assert Path(path).read_text() == "a process was quicker"

    def test_leaves_no_temporary_file(self, path, names):
        with Semaphore(path):
            assert [name for name in names() if name.endswith(".tmp")] == []

    def test_tries_every_100_ms_by_default(self):
        assert inspect.signature(Semaphore).parameters["retry_interval"].default == 0.1


class TestReleasing:
    def test_needs_a_lock_file(self, path):
        with pytest.raises(semlock.NotHeldError, match="not locked"):
            Semaphore(path).release()
        with pytest.raises(semlock.NotHeldError, match="not locked"):
            Semaphore(path).release(force=True)

    def test_checks_the_pid(self, path):
        foreign(path, FIRST)
        with pytest.raises(semlock.NotHeldError, match="force=True"):
            Semaphore(path).release()
        foreign(path, os.getpid())
        Semaphore(path).release()
        assert not os.path.exists(path)

    def test_of_a_lock_of_another_object_of_this_process_says_so(self, path):
        with Semaphore(path), pytest.raises(semlock.NotHeldError) as caught:
            Semaphore(path).release()
        assert f"not held by this lock object but by process {os.getpid()}" in str(caught.value)

    def test_by_force_removes_the_lock_of_a_living_process(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = Semaphore({path!r}); lock.acquire(); None")
            Semaphore(path).release(force=True)
            assert not os.path.exists(path)
            with pytest.raises(semlock.LockLostError):
                child.run("lock.release()")

    def test_by_force_removes_the_lock_of_who_took_it_from_this_object(self, path):
        lock = Semaphore(path)
        lock.acquire()
        take_away(path)
        foreign(path, FIRST)
        with pytest.warns(semlock.LockLostWarning, match="was held here"):
            lock.release(force=True)
        assert not os.path.exists(path)
        assert not lock.held

    def test_by_force_ends_a_lock_of_this_object_that_is_gone(self, path):
        lock = Semaphore(path)
        lock.acquire()
        take_away(path)
        with pytest.warns(semlock.LockLostWarning):
            lock.release(force=True)
        assert not lock.held

    def test_without_force_leaves_who_took_it(self, path):
        lock = Semaphore(path)
        lock.acquire()
        take_away(path)
        foreign(path, FIRST)
        with pytest.raises(semlock.LockLostError):
            lock.release()
        assert "theirs" in Path(path).read_text()

    def test_by_force_removes_what_is_no_record(self, path):
        Path(path).write_text("garbage")
        with pytest.raises(semlock.NotHeldError):
            Semaphore(path).release()
        Semaphore(path).release(force=True)
        assert not os.path.exists(path)


class TestStaleness:
    def test_needs_a_process_that_is_gone_and_age(self, path, gone):
        for pid, age, state in (
            (gone, 0, "held"), (gone, 3600, "held"), (gone, 3602, "stale"), (FIRST, 10**6, "held"),
        ):  # fmt: skip
            foreign(path, pid, age)
            assert semats.status(path).state == state, (pid, age)

    def test_begins_after_an_hour_by_default(self):
        assert inspect.signature(Semaphore).parameters["stale_timeout"].default == 3600

    @pytest.mark.parametrize(
        ("timeout", "last", "first"), [(0.5, 1, 2), (1, 1, 2), (2.5, 3, 4)]
    )
    def test_counts_whole_seconds_and_is_never_early(
        self, path, gone, monkeypatch, timeout, last, first
    ):
        Path(path).write_text(f"pid={gone}\ntimestamp={NOW}\n")
        for later, state in ((last + 0.99, "held"), (first, "stale")):
            set_time(monkeypatch, lambda later=later: NOW + later)
            assert semats.status(path, stale_timeout=timeout).state == state

    def test_is_not_waited_for_when_the_holder_is_proven_dead(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = Semaphore({path!r}); lock.acquire(); None")
            child.kill()
        with Semaphore(path, timeout=30) as lock:
            assert lock.info.pid == os.getpid()

    @pytest.mark.parametrize("off", [0, None])
    def test_can_be_switched_off(self, path, gone, off):
        foreign(path, gone, 10**6)
        assert Semaphore(path, stale_timeout=off).try_acquire() is False

    def test_of_a_record_of_another_machine_is_not_judged_by_our_numbers(self, path, gone):
        foreign(path, gone, 4000)
        with open(path, "a") as file:
            file.write("boot=another\n")
        assert Semaphore(path).try_acquire() is False


class TestPaths:
    @pytest.mark.parametrize("bad", ["../x", "a/../b", "a..b"])
    def test_with_two_dots_are_refused(self, bad):
        for call in (Semaphore, semats.status):
            with pytest.raises(semlock.LockPathError, match=r"\.\."):
                call(bad)

    @pytest.mark.parametrize("bad", ["", " ", "\t\n"])
    def test_that_are_blank_are_refused(self, bad):
        for call in (Semaphore, semats.status):
            with pytest.raises(semlock.LockPathError, match="blank"):
                call(bad)

    def test_with_nul_are_refused(self):
        with pytest.raises(semlock.LockPathError, match="NUL"):
            Semaphore("x\0y")

    def test_that_are_links_lead_to_their_targets_dangling_ones_too(self, tmp_path):
        make_link(tmp_path / "link", tmp_path / "target")
        with Semaphore(tmp_path / "link") as lock:
            assert lock.path == str(tmp_path / "target")
            assert not Semaphore(tmp_path / "target").try_acquire()
        assert (tmp_path / "link").is_symlink()
        assert not (tmp_path / "target").exists()

    def test_a_link_to_itself_is_refused(self, tmp_path):
        make_link(tmp_path / "loop", tmp_path / "loop")
        with pytest.raises(semlock.LockPathError, match="itself"):
            Semaphore(tmp_path / "loop")


class TestTags:
    def test_have_every_control_character_replaced(self, path):
        controls = "".join(map(chr, [*range(0x20), 0x7F]))
        with Semaphore(path, tag=f"a{controls}b"):
            assert semats.status(path).info.tag == "a" + " " * 33 + "b"

    def test_forge_no_line(self, path):
        with Semaphore(path, tag="x\npid=1\ntimestamp=1"):
            assert semats.status(path).info.pid == os.getpid()

    @pytest.mark.parametrize("bad", ["5", -1, 2.5, None])
    def test_are_texts_and_cut_at_a_whole_number(self, path, bad):
        with pytest.raises(TypeError, match="a tag is text, not int"):
            Semaphore(path, tag=5)
        with pytest.raises(ValueError, match="max_tag_length is a whole number from 0 on"):
            Semaphore(path, max_tag_length=bad)

    def test_are_cut_at_10_000_characters(self, path):
        with Semaphore(path, tag="x" * 20_000) as lock:
            assert lock.info.tag == "x" * 10_000
        with Semaphore(path, tag="ä=öü", max_tag_length=3) as lock:
            assert lock.info.tag == "ä=ö"


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


def test_a_refresh_keeps_a_lock_young(path, gone):
    with Semaphore(path) as lock:
        old = b"timestamp=%d" % (lock.info.timestamp - 4000)
        overwrite(path, content_of(path).replace(b"timestamp=%d" % lock.info.timestamp, old))
        assert old in content_of(path)
        lock.refresh()
        assert old not in content_of(path)
