"""One test for each rule of sema's protocol 1.0, in its order, and for each decision beside it."""

import inspect
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from semlock import policy, sema
from semlock._locks.lock import TextLock
from semlock.sema import Semaphore, decode
from support import Child, content_of, overwrite, set_time, take_away

NOW = 1_794_992_549
SETUP = "from semlock.sema import Semaphore"


def record(path, content):
    Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def young(path, tag="theirs"):
    record(path, f"pid=1\ntimestamp={int(time.time())}\ntag={tag}\n")


@pytest.fixture
def clock(monkeypatch):
    """The time by which ages are judged, set by the test."""
    now = [float(NOW)]
    set_time(monkeypatch, lambda: now[0])
    return now


class TestTheFile:
    def test_has_pid_timestamp_and_tag_in_this_order(self, path):
        with Semaphore(path, tag="deploy-v1.2.3") as lock:
            lines = content_of(path).decode().split("\n")
            assert lines[:3] == [
                f"pid={os.getpid()}", f"timestamp={lock.info.timestamp}", "tag=deploy-v1.2.3",
            ]  # fmt: skip

    def test_has_no_tag_line_without_a_tag(self, path):
        with Semaphore(path):
            assert b"tag=" not in content_of(path)

    def test_ends_every_line_with_lf_and_has_no_blanks_around_equals_signs(self, path):
        with Semaphore(path, tag="x"):
            content = content_of(path)
            assert content.endswith(b"\n")
            assert b"\r" not in content
            for line in content.decode().splitlines():
                key, value = line.split("=", 1)
                assert (key, value) == (key.strip(), value.strip())

    def test_is_utf_8(self, path):
        with Semaphore(path, tag="zürich 🔒"):
            assert "tag=zürich 🔒\n" in content_of(path).decode("utf-8")

    def test_has_a_whole_number_of_seconds_as_its_timestamp(self, path):
        with Semaphore(path) as lock:
            assert isinstance(lock.info.timestamp, int)
            assert abs(lock.info.timestamp - time.time()) < 5

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_has_mode_0644(self, path):
        before = os.umask(0)
        try:
            with Semaphore(path):
                assert os.stat(path).st_mode & 0o777 == 0o644
        finally:
            os.umask(before)

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_has_the_mode_that_open_would_give_now_or_a_second_ago(self, tmp_path):
        code = (
            "import os, time; from semlock.sema import Semaphore\nos.umask(0)\n"
            f"for n in range(4):\n with Semaphore(f'{tmp_path}/{{n}}'): pass\n"
            "os.umask(0o077)\ntime.sleep(1.05)\n"
            f"with Semaphore('{tmp_path}/last'):\n"
            f" print(oct(os.stat('{tmp_path}/last').st_mode & 0o777))"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        assert done.stdout.decode().strip() == oct(0o600)

    def test_is_synced_to_disk_by_default(self):
        assert inspect.signature(TextLock).parameters["durability"].default == "full"


class TestReading:
    READ = {
        "LF": b"pid=7\ntimestamp=9\ntag=x\n",
        "CRLF": b"pid=7\r\ntimestamp=9\r\ntag=x\r\n",
        "unknown fields": b"version=2\npid=7\ntimestamp=9\ntag=x\nextra=1\n",
        "empty lines": b"\n\npid=7\n\ntimestamp=9\n\ntag=x\n\n",
        "another order": b"tag=x\ntimestamp=9\npid=7\n",
        "no final newline": b"pid=7\ntimestamp=9\ntag=x",
        "blanks at the ends of lines": b"pid=7 \r\ntimestamp=9 \r\ntag=x \r\n",
        "tabs": b"\tpid\t=\t7\t\n timestamp = 9\ntag=\tx\n",
    }

    @pytest.mark.parametrize("name", READ)
    def test_takes_what_the_format_rules_allow(self, name):
        info = decode(self.READ[name])
        assert (info.pid, info.timestamp, info.tag) == (7, 9, "x")

    @pytest.mark.parametrize(
        "content",
        [b"", b"timestamp=9\n", b"pid=x\ntimestamp=9\n", b"pid=7\ntimestamp=x\n",
         b"pid=-1\ntimestamp=9\n", b"pid=4294967296\ntimestamp=9\n", b"\xff\npid=7\ntimestamp=9\n",
         b"\xef\xbb\xbfpid=7\ntimestamp=9\n"],
    )  # fmt: skip
    def test_refuses_what_lacks_a_usable_pid_or_timestamp_or_is_no_utf_8(self, content, path):
        with pytest.raises(semlock.LockRecordError):
            decode(content)
        record(path, content)
        assert Semaphore(path, stale_timeout=1).try_acquire() is False
        assert Path(path).read_bytes() == content

    def test_needs_no_tag(self):
        assert decode(b"pid=7\ntimestamp=9\n").tag is None

    def test_says_that_a_record_is_bytes(self):
        with pytest.raises(TypeError, match="bytes"):
            decode("pid=7\ntimestamp=9\n")

    def test_takes_a_pid_alone_for_a_lock_without_an_age(self, path):
        record(path, "pid=1\n")
        os.utime(path, (1, 1))
        found = sema.status(path)
        assert (found.state, found.info.pid, found.info.timestamp) == ("held", 1, None)
        assert "process 1" in found.holder
        assert Semaphore(path, stale_timeout=1).try_acquire() is False

    def test_waits_for_the_end_of_a_pid_that_may_be_cut(self, path):
        """A script that is writing ``pid=12345`` is not process 12."""
        record(path, "pid=12")
        assert sema.status(path).state == "unreadable"

    def test_leaves_no_contradiction_about_where_a_process_runs(self, path):
        record(path, f"pid=1\ntimestamp={int(time.time())}\nhost=box\n")
        found = sema.status(path)
        assert "on box" in found.holder
        assert "doesn't say on which machine" not in found.holder

    def test_gives_our_records_to_the_parser_of_the_specification(self, path):
        with Semaphore(path, tag="shell-script") as lock:
            info = {}
            for line in content_of(path).decode().split("\n"):
                if "=" in line:
                    key, value = line.strip().split("=", 1)
                    info[key] = value
            assert info["pid"] == str(os.getpid())
            assert info["timestamp"] == str(lock.info.timestamp)
            assert info["tag"] == "shell-script"

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
    def test_takes_the_specifications_shell_script(self, path):
        script = (
            'echo "pid=$$" > "$1"; echo "timestamp=$(date +%s)" >> "$1"; '
            'echo "tag=shell-script" >> "$1"; echo $$'
        )
        done = subprocess.run(
            ["sh", "-c", script, "sh", path], stdout=subprocess.PIPE, check=True
        )
        found = sema.status(path)
        assert (found.info.pid, found.info.tag) == (int(done.stdout), "shell-script")
        assert Semaphore(path).try_acquire() is False


class TestAcquiring:
    def test_one_of_many_wins(self, path):
        start = threading.Barrier(8)
        locks = [Semaphore(path) for _ in range(8)]

        def contend(lock):
            start.wait()
            lock.try_acquire()

        threads = [threading.Thread(target=contend, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(lock.held for lock in locks) == [False] * 7 + [True]
        semlock.remove(path, force=True)
        with pytest.raises(semlock.SemlockError):
            next(lock for lock in locks if lock.held).release()

    def test_what_exists_and_is_young_is_not_taken(self, path):
        young(path)
        before = Path(path).read_bytes()
        assert Semaphore(path).try_acquire() is False
        assert Path(path).read_bytes() == before

    def test_what_is_stale_is_removed_and_the_lock_taken(self, path):
        record(path, f"pid=1\ntimestamp={int(time.time()) - 4000}\n")
        with Semaphore(path, timeout=0) as lock:
            assert lock.info.pid == os.getpid()

    def test_the_wait_ends_with_the_timeout(self, path):
        young(path)
        began = time.monotonic()
        with pytest.raises(semlock.LockTimeoutError):
            Semaphore(path, retry_interval=0.01).acquire(timeout=0.1)
        assert time.monotonic() - began >= 0.1

    def test_the_wait_ends_with_the_lock(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = Semaphore({path!r}); lock.acquire(); None")
            assert Semaphore(path).try_acquire() is False
            waiting = threading.Event()
            lock = Semaphore(path)
            lock._on_wait = lambda *_: waiting.set()
            waiter = threading.Thread(
                target=lambda: lock.acquire(timeout=30).__exit__(*[None] * 3)
            )
            waiter.start()
            assert waiting.wait(30)
            child.run("lock.release()")
            waiter.join(30)
            assert not waiter.is_alive()
            assert not os.path.exists(path)

    def test_a_wait_tries_every_100_ms_by_default(self):
        assert inspect.signature(Semaphore).parameters["retry_interval"].default == 0.1
        assert next(iter(Semaphore("x")._retry())) == 0.1

    def test_a_timeout_of_0_is_one_try(self, path):
        young(path)
        with pytest.raises(semlock.LockTimeoutError, match="at once"):
            Semaphore(path, timeout=0).acquire()


class TestReleasing:
    def test_removes_the_file(self, path):
        lock = Semaphore(path)
        lock.acquire()
        lock.release()
        assert not os.path.exists(path)
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    def test_leaves_the_lock_of_a_successor(self, path):
        lock = Semaphore(path)
        lock.acquire()
        take_away(path)
        young(path)
        with pytest.raises(semlock.LockLostError):
            lock.release()
        assert b"theirs" in Path(path).read_bytes()


class TestStaleness:
    @pytest.mark.parametrize(
        ("later", "state"), [(3599, "held"), (3600, "held"), (3600.99, "held"), (3601, "stale")]
    )
    def test_is_strictly_more_than_the_timeout_in_whole_seconds(
        self, path, clock, later, state
    ):
        record(path, f"pid=1\ntimestamp={NOW}\n")
        clock[0] += later
        assert sema.status(path).state == state

    def test_begins_after_an_hour_by_default(self):
        assert inspect.signature(Semaphore).parameters["stale_timeout"].default == 3600

    def test_is_never_early_whatever_the_fraction_in_which_it_was_won(self):
        rng = random.Random(5)
        for _ in range(20_000):
            won = NOW + rng.random()
            limit = rng.choice([0.001, 0.5, 1, 1.5, 2, 3600, rng.random() * 10])
            now = won + rng.choice([limit, limit - 1e-3, rng.random() * 2 * limit])
            if policy.older(int(won), limit, now):
                assert now - won > limit - 1e-5, (won, limit, now)
            assert policy.older(int(won), limit, won + limit + 2), "it is late for ever"

    @pytest.mark.parametrize(
        ("timeout", "last", "first"), [(0.5, 1, 2), (1, 1, 2), (1.5, 2, 3)]
    )
    def test_rounds_a_fraction_of_a_second_up(self, path, clock, timeout, last, first):
        record(path, f"pid=1\ntimestamp={NOW}\n")
        for later, state in ((last + 0.99, "held"), (first, "stale")):
            clock[0] = NOW + later
            assert sema.status(path, stale_timeout=timeout).state == state

    def test_does_not_rob_a_holder_who_won_a_moment_ago(self, path, clock):
        """Won at the end of one second, judged at the beginning of the next."""
        record(path, f"pid=1\ntimestamp={NOW}\n")
        clock[0] = NOW + 1.0003
        assert Semaphore(path, stale_timeout=0.5).try_acquire() is False

    def test_does_not_rob_a_holder_who_refreshes_in_time(self, path, clock, monkeypatch):
        """Every 0.3 s, beside a timeout of a second, for ten seconds."""
        victim = Semaphore(path)
        victim.acquire()
        robber = Semaphore(path, stale_timeout=1)
        set_time(monkeypatch, lambda: clock[0])
        for step in range(100):
            clock[0] = NOW + 0.95 + 0.1 * step
            if step % 3 == 0:
                victim.refresh()
            assert robber.status().state == "held", clock
        victim.release()

    def test_is_not_waited_for_when_the_holder_is_proven_dead(self, path):
        with Child(SETUP) as child:
            child.run(f"lock = Semaphore({path!r}); lock.acquire(); None")
            child.kill()
        with Semaphore(path, timeout=30) as lock:
            assert lock.info.pid == os.getpid()

    @pytest.mark.parametrize("off", [0, None])
    def test_can_be_switched_off(self, path, off):
        record(path, "pid=1\ntimestamp=1000000000\n")
        assert Semaphore(path, stale_timeout=off).try_acquire() is False

    @pytest.mark.parametrize("bad", ["5", -1, float("nan"), []])
    def test_refuses_a_timeout_that_is_no_time(self, path, bad):
        with pytest.raises(ValueError, match="number of seconds"):
            Semaphore(path, stale_timeout=bad)

    def test_is_waited_for_by_a_thread_that_meets_its_own_lock(self, path):
        """The wait would end, so it is no deadlock."""
        mine, other = Semaphore(path), Semaphore(path, stale_timeout=1)
        mine.acquire()
        overwrite(path, content_of(path).replace(
            b"timestamp=%d" % mine.info.timestamp, b"timestamp=%d" % (mine.info.timestamp - 9)
        ))  # fmt: skip
        with other.acquire(timeout=10), pytest.raises(semlock.LockLostError):
            mine.check()
        with pytest.raises(semlock.LockLostError):
            mine.release()

    def test_is_not_waited_for_where_time_alone_would_not_end_it(self, path):
        with Semaphore(path), pytest.raises(semlock.LockDeadlockError):
            Semaphore(path, stale_timeout=3600).acquire(timeout=5)


class TestTags:
    def test_have_their_line_ends_and_other_controls_replaced(self, path):
        with Semaphore(path, tag="a\nb\rpid=1\x1b"):
            assert sema.status(path).info.tag == "a b pid=1 "
            assert sema.status(path).info.pid == os.getpid()

    def test_keep_the_blanks_that_semlock_wrote(self, path):
        with Semaphore(path, tag=" a ") as lock:
            assert sema.status(path).info.tag == lock.info.tag == " a "
