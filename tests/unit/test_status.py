"""Looking at locks, removing and cleaning: what is judged, and that only that is touched."""

import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
import users
from faultlib import mark_unfinished
from semlock import cli
from support import (
    as_nobody,
    make_link,
    set_everywhere,
    set_time,
    wait_until,
    wine_keeps_locked_names,
)

HOLD = (
    "import semlock,sys,os\n"
    "lock=semlock.Lock(sys.argv[1],tag='held elsewhere'); lock.acquire()\n"
    "print('held',flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(path):
    """Another process that holds the lock until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().strip() == b"held"
        yield process
        process.kill()


@pytest.fixture
def dead(holder, path):
    """The lock of a process that was killed."""
    holder.kill()
    holder.wait()
    return path


def foreign(path, content=b"pid=1\ntimestamp=1\n", mode=0o644):
    Path(path).write_bytes(content)
    os.chmod(path, mode)


class TestStatus:
    def test_of_nothing_is_free(self, path):
        found = semlock.status(path)
        assert (found.state, found.info, found.verdict, found.age) == ("free", None, None, None)
        assert found.path == path

    def test_of_a_living_holder_is_held(self, holder, path):
        found = semlock.status(path)
        assert (found.state, found.verdict) == ("held", "alive")
        assert found.info.pid == holder.pid
        assert found.info.tag == "held elsewhere"
        assert 0 <= found.age < 60
        assert "kernel" in found.evidence

    def test_of_a_dead_holder_is_stale(self, dead, holder):
        found = semlock.status(dead)
        assert (found.state, found.verdict) == ("stale", "dead")
        assert str(holder.pid) in found.evidence

    def test_of_a_foreign_record_is_held_and_unknown(self, path):
        foreign(path)
        found = semlock.status(path)
        assert (found.state, found.verdict) == ("held", "unknown")
        assert found.info.pid == 1

    @pytest.mark.parametrize(
        "content",
        [b"", b"\n", b"pid=12", b"pid=12\nt", b"tag=x\n", b"\x00\xff", b"x" * 70000, b"{}"],
        ids=["empty", "newline", "half", "half a line", "no pid", "binary", "too long", "json"],
    )
    def test_of_what_is_no_record_is_unreadable_and_counts_as_held(self, path, content):
        foreign(path, content)
        os.utime(path, (1, 1))
        found = semlock.status(path)
        assert (found.state, found.verdict) == ("unreadable", "unknown")
        assert found.age > 1e9
        assert semlock.Lock(path).try_acquire() is False
        assert Path(path).read_bytes() == content

    def test_of_a_record_that_has_only_a_pid_is_held_by_that_process(self, path):
        """What ``echo "pid=$$" > x.lock`` makes."""
        foreign(path, b"pid=12\n")
        os.utime(path, (1, 1))
        found = semlock.status(path)
        assert (found.state, found.verdict, found.info.pid) == ("held", "unknown", 12)
        assert found.age > 1e9
        assert "process 12" in found.holder
        assert semlock.clean(os.path.dirname(path)) == []
        assert semlock.Lock(path).try_acquire() is False

    def test_survives_pickling(self, holder, path):
        found = pickle.loads(pickle.dumps(semlock.status(path)))
        assert found.info == semlock.status(path).info
        assert found.state == "held"
        assert repr(found)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no file is a pipe there")
    def test_says_what_a_fifo_is_without_waiting_for_it(self, path):
        os.mkfifo(path)
        with pytest.raises(semlock.LockPathError, match="not a regular file"):
            semlock.status(path)

    @pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no file is a socket there")
    def test_says_what_a_socket_is(self, path):
        server = socket.socket(socket.AF_UNIX)
        server.bind(path)
        server.close()
        with pytest.raises(semlock.LockPathError, match="not a regular file"):
            semlock.status(path)


class TestPaths:
    @pytest.mark.parametrize("call", [semlock.Lock, semlock.status, semlock.remove])
    @pytest.mark.parametrize("bad", ["", "a\0b", "x/", "."], ids=repr)
    def test_what_can_be_no_lock_is_refused_at_once(self, call, bad, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(semlock.LockPathError) as caught:
            call(bad)
            semlock.Lock(bad).acquire(timeout=0)
        assert isinstance(caught.value, OSError)
        assert caught.value.errno
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("kind", ["directory", "link", "dangling link", "loop"])
    def test_what_stands_at_the_path_and_is_no_file_is_left_alone(self, path, tmp_path, kind):
        target = tmp_path / "target"
        if kind == "directory":
            os.mkdir(path)
        elif kind == "link":
            target.write_text("pid=1\ntimestamp=1\n")
            make_link(path, target)
        elif kind == "dangling link":
            make_link(path, target)
        else:
            make_link(path, path)
        before = os.lstat(path)
        for call in (
            lambda: semlock.Lock(path).acquire(timeout=1),
            lambda: semlock.Lock(path).try_acquire(),
            lambda: semlock.status(path),
            lambda: semlock.remove(path, force=True),
        ):
            with pytest.raises(semlock.LockPathError, match="left alone"):
                call()
        semlock.clean(tmp_path)
        assert os.lstat(path).st_ino == before.st_ino
        assert kind != "dangling link" or not target.exists()

    def test_a_missing_parent_is_named(self, tmp_path):
        with pytest.raises(semlock.LockPathError, match=r"does not exist\. Create it"):
            semlock.Lock(tmp_path / "no" / "l").acquire()
        with pytest.raises(semlock.LockPathError):
            semlock.Lock(tmp_path / "no" / "l").try_acquire()

    def test_a_parent_that_is_a_file_is_named(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(semlock.LockPathError, match="is not a directory"):
            semlock.Lock(tmp_path / "file" / "l").acquire()

    def test_a_relative_path_stays_where_it_was_when_the_directory_changes(
        self, tmp_path, monkeypatch
    ):
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path)
        lock = semlock.Lock("the.lock")
        monkeypatch.chdir(tmp_path / "sub")
        with lock:
            assert (tmp_path / "the.lock").exists()
        assert lock.path == str(tmp_path / "the.lock")

    @pytest.mark.parametrize("name", ["ü€", "sp ace", "-x", "new\nline", "\udcff", "…" * 60])
    def test_any_file_name_will_do(self, tmp_path, name):
        if sys.platform == "win32" and name in ("new\nline", "\udcff"):
            pytest.skip("no file has such a name there")
        with semlock.Lock(tmp_path / name) as lock:
            assert os.path.exists(os.path.join(tmp_path, name))
            assert semlock.status(lock.path).state == "held"

    def test_a_name_that_is_too_long_is_an_error_of_the_system(self, tmp_path):
        with pytest.raises(
            OSError, match=None if sys.platform == "win32" else "too long"
        ) as caught:
            semlock.Lock(tmp_path / ("x" * 300)).acquire()
        assert caught.value.filename.endswith("xxx")

    def test_a_path_object_and_a_text_are_the_same(self, path):
        with semlock.Lock(Path(path)):
            assert semlock.Lock(path).try_acquire() is False


class TestReclaiming:
    def test_a_dead_holders_lock_is_acquired_at_once(self, dead):
        with semlock.Lock(dead) as lock:
            assert lock.info.pid == os.getpid()

    def test_a_lock_object_that_saw_it_alive_finds_out(self, holder, path):
        lock = semlock.Lock(path)
        assert not lock.try_acquire()
        holder.kill()
        holder.wait()
        lock.acquire(timeout=30)
        lock.release()

    def test_the_kept_name_of_a_killed_holder_goes_with_its_lock(self, path, names):
        script = (
            "import semlock,sys\nlock=semlock.Lock(sys.argv[1])\n"
            "for _ in range(4):\n lock.acquire(); lock.release()\n"
            "lock.acquire(); print('held',flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline().strip() == b"held"
            # On Windows the file is renamed, so there is one name at any time.
            assert len(names()) == (1 if sys.platform == "win32" else 2)
            process.kill()
        with semlock.Lock(path):
            assert names() == ["the.lock"]

    def test_a_policy_of_the_user_is_asked_and_its_reason_counts(self, path):
        foreign(path)
        asked = []

        def policy(found):
            asked.append(found)
            return found.info.pid == 1

        with semlock.Lock(path, policy=policy) as lock:
            assert lock.info.pid == os.getpid()
        assert asked[0].info.timestamp == 1

    @wine_keeps_locked_names
    def test_a_policy_that_robs_the_living_lets_them_know(self, path):
        victim = semlock.Lock(path)
        victim.acquire()
        robber = semlock.Lock(path, policy=lambda found: "mine now")
        assert robber.try_acquire()
        for call in (victim.check, victim.refresh, victim.release):
            with pytest.raises(semlock.LockLostError):
                call()
        robber.check()
        robber.release()

    def test_an_unfinished_file_of_a_killed_creator_is_removed_after_a_grace_time(
        self, path, monkeypatch
    ):
        Path(path).touch()
        mark_unfinished(path)
        assert not semlock.Lock(path).try_acquire()
        later = time.time() + 3
        set_time(monkeypatch, lambda: later)
        with semlock.Lock(path) as lock:
            assert semlock.status(path).info == lock.info

    def test_a_foreign_empty_file_is_a_held_lock_for_ever(self, path, monkeypatch):
        Path(path).touch()
        later = time.time() + 1e6
        set_time(monkeypatch, lambda: later)
        assert not semlock.Lock(path).try_acquire()


class TestRemove:
    def test_of_nothing_is_none(self, path):
        assert semlock.remove(path) is None

    def test_of_a_dead_holders_lock_says_what_allowed_it(self, dead):
        found = semlock.remove(dead)
        assert found.verdict == "dead"
        assert not os.path.exists(dead)

    def test_of_a_living_holders_lock_is_refused(self, holder, path):
        with pytest.raises(semlock.LockHeldError) as caught:
            semlock.remove(path)
        assert str(holder.pid) in str(caught.value)
        assert "end its holder" in str(caught.value)
        assert "force" not in str(caught.value)  # it would take the lock from a live holder
        assert os.path.exists(path)

    @wine_keeps_locked_names
    def test_by_force_removes_whatever_it_is(self, holder, path):
        assert semlock.remove(path, force=True).info.pid == holder.pid
        assert not os.path.exists(path)

    @wine_keeps_locked_names
    def test_only_the_instance_that_was_meant(self, path):
        lock = semlock.Lock(path)
        with lock:
            old, token = semlock.status(path), lock.token
        with lock:
            for meant in (old, token, lambda found: False):
                with pytest.raises(semlock.LockHeldError, match="not the lock that was meant"):
                    semlock.remove(path, only_if=meant, force=True)
            lock.check()
            assert semlock.remove(path, only_if=lock.token, force=True)
            with pytest.raises(semlock.LockLostError):
                lock.release()
            lock.acquire()

    def test_a_look_that_is_out_of_date_removes_nothing(self, path):
        from semlock._core.status import remove_exactly

        lock = semlock.Lock(path, durability="none")
        for _ in range(4):
            with lock:
                old = semlock.status(path)
        with lock:
            # The very same inode is back at the path, with another token in it.
            assert old.instance.identity[1] == os.stat(path).st_ino
            assert remove_exactly(old, os.fsencode(path), robs=True) is False
            lock.check()

    @pytest.mark.skipif(
        sys.platform == "win32", reason="no other program takes the guard there"
    )
    def test_who_sits_on_the_guard_is_waited_for_but_not_for_ever(self, path, monkeypatch):
        import fcntl

        set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.01)
        foreign(path)
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(semlock.LockTimeoutError, match="flock"):
                semlock._core.status.remove_exactly(
                    semlock.status(path), os.fsencode(path), robs=True, patience=0.01
                )
            assert semlock.Lock(path, policy=lambda found: True).try_acquire() is False
        assert os.path.exists(path)

    @pytest.mark.skipif(
        sys.platform == "win32", reason="no other program takes the guard there"
    )
    def test_the_patience_is_counted_by_the_clock(self, path, monkeypatch):
        """A pause of a millisecond may take many: fifteen on Windows."""
        import fcntl

        pauses = []

        def slow(seconds):
            pauses.append(seconds)
            time.sleep(0.02)

        set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.01)
        set_everywhere(monkeypatch, "sleep", slow)
        lock = semlock.Lock(path)
        lock.acquire()
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for what in (
                lock.release,
                lock.refresh,
                lambda: semlock.remove(path, force=True),
            ):
                pauses.clear()
                with pytest.raises(semlock.LockTimeoutError):
                    what()
                assert len(pauses) <= 1  # none where the machine took that long before
        lock.release()


class TestClean:
    def test_removes_dead_locks_and_says_why(self, dead, tmp_path):
        (removed,) = semlock.clean(tmp_path)
        assert removed.path == dead
        assert "dropped" in removed.reason
        assert removed.info.tag == "held elsewhere"
        assert os.listdir(tmp_path) == []

    def test_of_one_path_looks_at_no_other_lock(self, dead, tmp_path):
        assert semlock.clean(tmp_path / "other.lock") == []
        assert [r.path for r in semlock.clean(dead)] == [dead]

    def test_leaves_the_living_and_the_unknown_alone(self, holder, path, tmp_path):
        foreign(tmp_path / "foreign")
        foreign(tmp_path / "notes.txt", b"something of mine")
        (tmp_path / "sub").mkdir()
        make_link(tmp_path / "link", path)
        assert semlock.clean(tmp_path) == []
        assert len(os.listdir(tmp_path)) == 5

    def test_removes_the_kept_claims_of_the_dead_and_of_oneself_only(self, path, names):
        script = (
            "import semlock,sys\nlock=semlock.Lock(sys.argv[1])\n"
            "for _ in range(4):\n lock.acquire(); lock.release()\n"
            "print('idle',flush=True); sys.stdin.read()"
        )
        mine = semlock.Lock(path)
        for _ in range(3):
            with mine:
                pass
        with subprocess.Popen(
            [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline().strip() == b"idle"
            assert len(names()) == 2
            assert semlock.clean(os.path.dirname(path)) == []
            assert len(names()) == 1
            process.kill()
        assert len(semlock.clean(os.path.dirname(path))) == 1
        assert names() == []

    def test_a_process_that_begins_to_keep_a_claim_tidies_up_after_the_dead(self, path, names):
        script = (
            "import semlock,sys,os,signal\nlock=semlock.Lock(sys.argv[1])\n"
            "for _ in range(4):\n lock.acquire(); lock.release()\n"
            "os.kill(os.getpid(), getattr(signal, 'SIGKILL', signal.SIGTERM))"
        )
        subprocess.run([sys.executable, "-c", script, path], check=False)
        assert len(names()) == 1
        orphan = names()
        lock = semlock.Lock(path)
        for _ in range(2):
            with lock:
                pass
        assert len(names()) == 1
        assert names() != orphan

    def test_of_a_missing_directory_is_an_error(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            semlock.clean(tmp_path / "no" / "such")


@users.needs_root
class TestALockOfAnotherUser:
    """What belongs to another user is told by name and never taken for contention."""

    @pytest.fixture
    def public(self, common):
        return os.path.join(common, "the.lock")

    def refused(self, path, **options):
        try:
            semlock.Lock(path).acquire(**options)
        except PermissionError as error:
            return error.filename
        return "acquired"

    def test_a_directory_that_can_not_be_written_is_an_error_with_its_name(self, public):
        os.chmod(os.path.dirname(public), 0o755)
        assert as_nobody(lambda: self.refused(public, timeout=0)) == public

    def test_a_living_holder_is_seen_alive_by_others(self, public):
        with semlock.Lock(public):
            assert as_nobody(lambda: semlock.status(public).verdict) == "alive"

    def test_a_holder_that_can_not_be_signalled_is_alive_without_a_witness_too(self, public):
        with semlock.Lock(public):
            text = Path(public).read_bytes().replace(b"witness=kept", b"witness=none")
        Path(public).write_bytes(text)
        assert as_nobody(lambda: semlock.status(public).verdict) == "alive"

    def test_a_private_lock_is_unreadable_and_held(self, public, capfd):
        with semlock.Lock(public, mode=0o600):
            found = as_nobody(lambda: repr(semlock.status(public)))
            assert "unreadable" in found
            assert "Permission denied" in found
            assert as_nobody(lambda: cli.main(["status", public])) == 1
            assert "held: the file can't be read" in capfd.readouterr().out
            assert as_nobody(lambda: semlock.Lock(public).try_acquire()) is False

    def test_a_dead_lock_that_can_not_be_removed_counts_as_held(self, public):
        script = "import semlock,sys,os; a=semlock.Lock(sys.argv[1]); a.acquire(); os._exit(0)"
        subprocess.run([sys.executable, "-c", script, public], check=True)
        assert semlock.status(public).state == "stale"
        assert as_nobody(lambda: semlock.status(public).state) == "held"
        assert as_nobody(lambda: semlock.Lock(public).try_acquire()) is False


class TestCleaningQueues:
    SCRIPT = "import semlock,sys\nsemlock.Lock(sys.argv[1], tag='t').acquire()"

    @pytest.mark.skipif(sys.platform == "win32", reason="a ticket goes with its owner there")
    def test_the_place_of_a_killed_waiter_goes_with_a_reason(self, path, names):
        with semlock.Lock(path):
            with subprocess.Popen(
                [sys.executable, "-c", self.SCRIPT, path], stdout=subprocess.PIPE
            ) as process:
                queue_of = Path(path).parent.glob
                wait_until(
                    lambda: any(t.stat().st_size for t in queue_of(".semlock-*.queue/*")),
                    "the waiter's ticket says who it is",
                )
                queue = next(name for name in names() if name.endswith(".queue"))
                assert semlock.clean(os.path.dirname(path)) == []
                pid = process.pid
                process.kill()
            removed = semlock.clean(os.path.dirname(path))
            assert names() == ["the.lock"]
        assert [os.path.basename(os.path.dirname(r.path)) for r in removed[:1]] == [queue]
        assert [os.path.basename(r.path) for r in removed[1:]] == [queue]
        assert removed[0].info.pid == pid
        assert removed[0].info.tag == "t"
        assert "ended" in removed[0].reason

    @pytest.mark.leaves("queue")
    def test_an_empty_queue_goes_and_other_files_stay(self, path, names):
        directory = Path(path).parent
        empty = directory / ".semlock-0123456789abcdef.queue"
        empty.mkdir()
        (directory / "their.queue").mkdir()
        strange = directory / ".semlock-fedcba9876543210.queue"
        strange.mkdir()
        (strange / "a directory").mkdir()
        assert [removed.path for removed in semlock.clean(directory)] == [str(empty)]
        assert names() == [strange.name, "their.queue"]


@pytest.mark.parametrize(
    "name", [".nfs000000000000800b000003f8", ".fuse_hidden0000000300000001"]
)
def test_what_was_removed_while_a_process_has_it_open_is_no_lock(dead, name, capsys):
    """It carries a dead holder's record, and goes by itself; removing it fails as busy."""
    directory, _ = os.path.split(dead)
    os.rename(dead, os.path.join(directory, name))
    assert semlock.clean(directory) == []
    assert cli.main(["list", "--all", directory]) == 0
    assert cli.main(["clean", "--yes", directory]) == 0
    assert capsys.readouterr().out == ""
    assert os.listdir(directory) == [name]
