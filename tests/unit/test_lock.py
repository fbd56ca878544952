"""A lock as its user sees it: one process, no faults."""

import gc
import os
import stat
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

import semlock
from support import Child, content_of, make_link, set_time, take_away, wine_keeps_locked_names

STEADY = {"durability": "none"}


def test_the_lock_is_held_exactly_while_its_file_exists(path):
    lock = semlock.Lock(path)
    assert not lock.held
    lock.acquire()
    assert lock.held
    assert os.path.isfile(path)
    lock.release()
    assert not lock.held
    assert not os.path.exists(path)


def test_with_holds_for_the_block_and_gives_the_lock(path):
    lock = semlock.Lock(path)
    with lock as entered:
        assert entered is lock
        assert lock.held
    assert not lock.held


def test_acquire_is_a_context_manager_that_does_not_acquire_again(path):
    lock = semlock.Lock(path)
    with lock.acquire(timeout=0) as entered:
        assert entered is lock
        assert lock.held
    assert not lock.held


def test_the_lock_is_released_when_the_block_raises(path):
    with pytest.raises(KeyError), semlock.Lock(path):
        raise KeyError
    assert not os.path.exists(path)


def test_a_decorated_function_runs_under_the_lock(path):
    lock = semlock.Lock(path)

    @lock
    def work(a, *, b):
        """Do it."""
        assert lock.held
        return a + b

    assert work(1, b=2) == 3
    assert work.__name__ == "work"
    assert work.__doc__ == "Do it."
    assert not lock.held


def test_a_function_that_returns_before_it_ran_is_not_decorated(path):
    lock = semlock.Lock(path)

    async def later():
        pass

    def piecemeal():
        yield

    for function in (later, piecemeal):
        with pytest.raises(TypeError, match="guard nothing"):
            lock(function)


def test_two_objects_exclude_each_other(path):
    first, second = semlock.Lock(path), semlock.Lock(path)
    with first:
        assert second.try_acquire() is False
        assert not second.held
    assert second.try_acquire() is True
    second.release()


def test_two_processes_exclude_each_other(path):
    script = "import semlock,sys; sys.exit(semlock.Lock(sys.argv[1]).try_acquire())"
    with semlock.Lock(path):
        assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == 1


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_threads_exclude_each_other(path, shared):
    one = semlock.Lock(path, **STEADY)
    inside = 0
    total = 0

    def work():
        nonlocal inside, total
        lock = one if shared else semlock.Lock(path, **STEADY)
        for _ in range(50):
            with lock:
                inside += 1
                assert inside == 1
                total += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == 200
    assert not os.path.exists(path)


def test_a_blocked_acquire_goes_on_when_the_lock_is_released(path):
    holder = semlock.Lock(path)
    holder.acquire()
    entered = threading.Event()

    def wait():
        with semlock.Lock(path):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    holder.release()
    assert entered.wait(30)
    thread.join()


def test_a_timeout_names_path_and_holder_and_the_way_out(path):
    with (
        semlock.Lock(path, tag="nightly"),
        pytest.raises(semlock.LockTimeoutError) as caught,
    ):
        _elsewhere(lambda: semlock.Lock(path, timeout=0.01).acquire())
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert isinstance(error, semlock.LockHeldError)
    assert error.path == path
    assert error.status.info.pid == os.getpid()
    for word in (path, str(os.getpid()), "nightly", "this very process", "test_lock.py:"):
        assert word in str(error)
    assert "force" not in str(error)


def test_a_timeout_never_advises_to_rob_a_holder_that_lives(path):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}, tag='nightly'); lock.acquire(); None")
        with pytest.raises(semlock.LockTimeoutError, match="end its holder") as caught:
            semlock.Lock(path, timeout=0).acquire()
    assert "force" not in str(caught.value)
    Path(path).unlink(missing_ok=True)
    Path(path).write_text("pid=1\ntimestamp=5\n")
    with pytest.raises(semlock.LockTimeoutError, match="If you know that its holder has ended"):
        semlock.Lock(path, timeout=0).acquire()
    Path(path).write_text("")
    with pytest.raises(semlock.LockTimeoutError, match="left by flock or filelock"):
        semlock.Lock(path, timeout=0).acquire()


@pytest.mark.skipif(sys.platform == "win32", reason="these paths are POSIX's")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/proc/x.lock", "the system allows no new file in /proc"),
        ("missing/x.lock", "Create it first"),
        ("~/x.lock", "os.path.expanduser"),
        ("file/x.lock", "is not a directory"),
        ("x" * 300, "a name may have 255"),
    ],
)
def test_a_path_that_can_be_no_locks_is_told_in_a_sentence(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(semlock.LockPathError, match=words) as caught:
        semlock.Lock(name).acquire(timeout=0)
    assert "Errno" not in str(caught.value)
    assert caught.value.errno


@pytest.mark.parametrize("timeout", [0, 1e-9, 0.1])
def test_a_directory_is_told_however_short_the_time_is(path, timeout):
    os.mkdir(path)
    with pytest.raises(semlock.LockPathError, match="is a directory"):
        semlock.Lock(path).acquire(timeout=timeout)


def _elsewhere(function):
    """Run a function in another thread and let its exception through."""
    result = []

    def run():
        try:
            result.append((function(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = result[0]
    if error is not None:
        raise error
    return value


def test_timeout_zero_tries_once_and_never_sleeps(path, monkeypatch):
    def sleep(_):
        raise AssertionError("it slept")

    with semlock.Lock(path):
        monkeypatch.setattr(time, "sleep", sleep)
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path).acquire(timeout=0)
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path, timeout=0).acquire()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_a_timeout_that_means_nothing_is_refused(path, timeout):
    with pytest.raises((ValueError, TypeError)):
        semlock.Lock(path, timeout=timeout)
    with pytest.raises((ValueError, TypeError)):
        semlock.Lock(path).acquire(timeout=timeout)


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "some"},
        {"policy": 3600},
        {"mode": 0o1777},
        {"heartbeat": 0},
        {"tag": b"bytes"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_means_nothing_is_refused(path, options):
    with pytest.raises((ValueError, TypeError)):
        semlock.Lock(path, **options)


class TestWaitingForOneself:
    def test_through_the_same_object_is_an_error_that_names_both_places(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        with pytest.raises(semlock.LockDeadlockError) as caught:
            lock.acquire()
        assert str(caught.value).count("test_lock.py:") == 2
        assert lock.held
        lock.release()

    def test_through_another_object_is_the_same_error(self, path):
        with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError) as caught:
            semlock.Lock(path).acquire(timeout=5)
        assert str(caught.value).count("test_lock.py:") == 2

    def test_by_another_name_of_the_directory_is_the_same_error(self, path, tmp_path):
        alias = tmp_path.parent / (tmp_path.name + "-alias")
        make_link(alias, tmp_path)
        try:
            with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError):
                semlock.Lock(alias / "the.lock").acquire()
        finally:
            alias.unlink()

    def test_is_no_error_for_who_only_tries(self, path):
        lock = semlock.Lock(path)
        with lock:
            assert lock.try_acquire() is False
            assert semlock.Lock(path).try_acquire() is False
            with pytest.raises(semlock.LockTimeoutError):
                lock.acquire(timeout=0)

    def test_is_no_error_in_another_thread(self, path):
        lock = semlock.Lock(path)
        with lock, pytest.raises(semlock.LockTimeoutError):
            _elsewhere(lambda: lock.acquire(timeout=0.01))


class TestReentrant:
    def test_it_is_released_as_often_as_it_was_acquired(self, path):
        lock = semlock.Lock(path, reentrant=True)
        with lock:
            with lock, lock.acquire():
                assert lock.try_acquire()
                lock.release()
            assert lock.held
        assert not lock.held
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    def test_it_counts_for_the_thread_that_holds(self, path):
        lock = semlock.Lock(path, reentrant=True)
        with lock:
            assert _elsewhere(lock.try_acquire) is False
            with pytest.raises(semlock.NotHeldError, match="another thread"):
                _elsewhere(lock.release)

    def test_two_reentrant_objects_exclude_each_other(self, path):
        with (
            semlock.Lock(path, reentrant=True),
            pytest.raises(semlock.LockDeadlockError),
        ):
            semlock.Lock(path, reentrant=True).acquire()


class TestReleasing:
    def test_what_is_not_held_is_an_error(self, path):
        with pytest.raises(semlock.NotHeldError) as caught:
            semlock.Lock(path).release()
        assert path in str(caught.value)

    def test_twice_is_an_error_the_second_time(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        lock.release()
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    def test_another_thread_may_release_a_lock_that_is_not_reentrant(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        _elsewhere(lock.release)
        assert not os.path.exists(path)

    def test_a_lock_that_was_removed_is_reported_lost(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        take_away(path)
        with pytest.raises(semlock.LockLostError) as caught:
            lock.release()
        assert path in str(caught.value)
        assert not lock.held

    def test_a_successors_file_is_never_touched(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        take_away(path)
        with open(path, "x") as file:
            file.write("another process's")
        with pytest.raises(semlock.LockLostError):
            lock.release()
        with open(path) as file:
            assert file.read() == "another process's"

    def test_a_loss_does_not_hide_the_exception_of_the_block(self, path):
        with (
            pytest.warns(semlock.LockLostWarning, match="does not lead to that lock any more"),
            pytest.raises(KeyError),
            semlock.Lock(path),
        ):
            take_away(path)
            raise KeyError

    def test_a_loss_is_raised_at_the_end_of_a_block_that_went_well(self, path):
        with pytest.raises(semlock.LockLostError), semlock.Lock(path):
            take_away(path)

    def test_a_dropped_object_stays_held_and_says_where_it_came_from(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        with pytest.warns(ResourceWarning, match=r"test_lock\.py"):
            del lock
            gc.collect()
        assert semlock.status(path).verdict == "alive"
        with pytest.raises(semlock.LockDeadlockError, match=r"test_lock\.py"):
            semlock.Lock(path).acquire()
        dropped = semlock._core.registry._dropped
        [held] = [lock for lock in dropped if lock.path == path]
        dropped.remove(held)
        held.release()

    def test_a_dropped_object_is_released_when_the_process_ends(self, path):
        script = "import semlock,sys; semlock.Lock(sys.argv[1]).acquire()"
        subprocess.run([sys.executable, "-c", script, path], check=True)
        assert not os.path.exists(path)


class TestCheckAndRefresh:
    def test_check_is_silent_while_it_is_held(self, path):
        with semlock.Lock(path) as lock:
            lock.check()

    @wine_keeps_locked_names
    def test_check_tells_of_a_loss(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        semlock.remove(path, force=True)
        with pytest.raises(semlock.LockLostError):
            lock.check()
        with pytest.raises(semlock.LockLostError):
            lock.refresh()
        with pytest.raises(semlock.LockLostError):
            lock.release()

    def test_refresh_writes_the_time_and_nothing_else(self, path, monkeypatch):
        with semlock.Lock(path, tag="x") as lock:
            before = content_of(path)
            inode = os.stat(path).st_ino
            set_time(monkeypatch, lambda: lock._native.stamp + 12345)
            old = lock._native.stamp
            lock.refresh()
            after = content_of(path)
            assert os.stat(path).st_ino == inode
            assert semlock.status(path).info.timestamp == old + 12345
            assert lock.info.timestamp == old + 12345
            assert after == before.replace(b"%d" % old, b"%d" % (old + 12345))

    def test_refresh_never_writes_to_a_successors_file(self, path):
        lock = semlock.Lock(path)
        lock.acquire()
        take_away(path)
        Path(path).touch(exist_ok=False)
        with pytest.raises(semlock.LockLostError):
            lock.refresh()
        assert os.path.getsize(path) == 0
        with pytest.raises(semlock.LockLostError):
            lock.release()

    def test_both_need_a_held_lock(self, path):
        lock = semlock.Lock(path)
        for call in (lock.check, lock.refresh):
            with pytest.raises(semlock.NotHeldError):
                call()


class TestTheRecord:
    def test_says_who_holds_and_why(self, path):
        with semlock.Lock(path, tag="deploy v1") as lock:
            lines = content_of(path).decode("utf-8").split("\n")
            assert lines[0] == f"pid={os.getpid()}"
            assert lines[1].startswith("timestamp=")
            assert lines[2] == "tag=deploy v1"
            assert lines[-1] == ""
            keys = [line.partition("=")[0] for line in lines[:-1]]
            assert keys[3:] == ["host", "start", "boot", "pidns", "token", "witness"]
            assert lock.info == semlock.status(path).info

    def test_has_no_tag_line_without_a_tag(self, path):
        with semlock.Lock(path):
            assert b"tag=" not in content_of(path)

    def test_is_stamped_when_the_lock_is_won(self, path):
        lock = semlock.Lock(path)
        before = int(time.time())
        with lock:
            assert before <= lock.info.timestamp <= time.time()

    def test_has_a_new_token_each_time(self, path):
        lock = semlock.Lock(path, **STEADY)
        tokens = set()
        for _ in range(20):
            with lock:
                assert lock.token == semlock.status(path).info.token
                tokens.add(lock.token)
        assert len(tokens) == 20
        assert lock.token is None
        assert lock.info is None

    def test_control_characters_in_a_tag_forge_no_line(self, path):
        with semlock.Lock(path, tag="a\nb=c\r\x1b[0m\x7f") as lock:
            assert semlock.status(path).info.tag == "a b=c  [0m "
            assert lock.info.tag == "a b=c  [0m "

    def test_what_can_not_be_written_is_refused_before_any_file_exists(self, path, names):
        for tag in ("\ud800", "x" * 70000):
            with pytest.raises(semlock.LockRecordError):
                semlock.Lock(path, tag=tag).acquire()
            assert names() == []

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_has_the_mode_that_was_asked_for_less_the_umask(self, path):
        before = os.umask(0o027)
        try:
            for mode, expected in ((0o644, 0o640), (0o600, 0o600), (0o666, 0o640)):
                with semlock.Lock(path, mode=mode):
                    assert stat.S_IMODE(os.stat(path).st_mode) == expected
        finally:
            os.umask(before)

    @pytest.mark.parametrize("durability", ["full", "data", "none"])
    def test_is_whole_whatever_the_durability(self, path, durability):
        lock = semlock.Lock(path, durability=durability, tag="t")
        for _ in range(4):
            with lock:
                assert semlock.status(path).info.tag == "t"


class TestKeptClaims:
    def test_a_program_that_locks_once_leaves_nothing_even_while_it_runs(self, path, names):
        with semlock.Lock(path):
            assert names() == ["the.lock"]
        assert names() == []

    def test_a_lock_that_is_used_again_uses_its_file_again(self, path, names):
        lock = semlock.Lock(path, **STEADY)
        inodes = []
        for _ in range(5):
            with lock:
                inodes.append(os.stat(path).st_ino)
        assert inodes[2] == inodes[3] == inodes[4]
        assert len(names()) == 1
        assert names()[0].startswith(".semlock-")

    def test_a_new_object_in_the_directory_uses_it_too(self, tmp_path, names):
        for number in range(5):
            with semlock.Lock(tmp_path / f"{number}.lock", **STEADY):
                pass
        assert len(names()) == 1

    def test_they_are_bounded_in_number(self, tmp_path):
        for _ in range(3):
            for number in range(40):
                (tmp_path / str(number)).mkdir(exist_ok=True)
                with semlock.Lock(tmp_path / str(number) / "l", **STEADY):
                    pass
        kept = list(tmp_path.rglob(".semlock-*"))
        assert len(kept) <= 16

    def test_many_locks_of_one_directory_keep_a_few(self, tmp_path, names):
        locks = [semlock.Lock(tmp_path / f"{n}.lock", **STEADY) for n in range(30)]
        for _ in range(3):
            for lock in locks:
                lock.acquire()
            for lock in locks:
                lock.release()
        assert 1 <= len(names()) <= 4

    def test_a_shorter_record_leaves_no_rest_of_the_longer_one(self, path):
        for tag in ("long" * 50, "long" * 50, "long" * 50, "s", None, "middle" * 5):
            with semlock.Lock(path, tag=tag, **STEADY) as lock:
                assert semlock.status(path).info == lock.info
                assert content_of(path).count(b"witness=") == 1

    def test_a_claim_whose_name_was_removed_is_given_up(self, path, names):
        lock = semlock.Lock(path, **STEADY)
        for _ in range(3):
            with lock:
                pass
        os.unlink(os.path.join(os.path.dirname(path), names()[0]))
        for _ in range(3):
            with lock:
                assert semlock.status(path).info == lock.info

    @pytest.mark.leaves("kept")
    def test_a_directory_that_was_replaced_is_locked_anew(self, tmp_path):
        work = tmp_path / "work"
        work.mkdir()
        lock = semlock.Lock(work / "l", **STEADY)
        for _ in range(3):
            with lock:
                pass
        work.rename(tmp_path / "old")
        work.mkdir()
        with lock:
            assert (work / "l").exists()
            assert not (tmp_path / "old" / "l").exists()

    def test_they_go_with_the_process(self, path, names):
        script = (
            "import semlock,sys\nlock=semlock.Lock(sys.argv[1])\n"
            "for _ in range(5):\n with lock: pass\n"
            "import os; assert os.listdir(os.path.dirname(sys.argv[1]))"
        )
        subprocess.run([sys.executable, "-c", script, path], check=True)
        assert names() == []

    @pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
    def test_other_modes_use_other_files(self, path):
        for mode in (0o644, 0o600) * 3:
            with semlock.Lock(path, mode=mode, **STEADY):
                assert stat.S_IMODE(os.stat(path).st_mode) == mode & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_lock_object_can_not_be_pickled(path):
    import pickle

    with pytest.raises(TypeError, match="same path"):
        pickle.dumps(semlock.Lock(path))


def test_a_heartbeat_keeps_no_object_alive(path):
    lock = semlock.Lock(path, heartbeat=1000)
    with lock:
        pass
    alive = weakref.ref(lock)
    del lock
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(sys.platform == "win32", reason="no /proc says what is inherited there")
def test_descriptors_are_not_inherited(path):
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    plain = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        close_fds=False,
        check=True,
    ).stdout
    with semlock.Lock(path):
        held = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True, text=True, close_fds=False, check=True,
        ).stdout  # fmt: skip
    assert held == plain


@pytest.mark.skipif(
    sys.platform == "win32", reason="a current directory can't be removed there"
)
def test_a_current_directory_that_was_removed_is_told(path, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(semlock.LockPathError, match="current directory has been removed"):
        semlock.Lock("x.lock")
    assert semlock.status(path).state == "free"
    directory, name = os.path.split(path)
    with semlock.Lock(f"{directory}/./{name}"):
        pass
