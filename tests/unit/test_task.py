"""The task lock as its user sees it: holding, refreshing, messages, the log, networks."""

import contextlib
import errno
import json
import logging
import math
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock._core import capi
from semlock._core.status import GUARD_PATIENCE
from semlock._locks import heartbeat
from semlock._stores import file as file_store
from semlock._systems.task_audit import NAME
from semlock._systems.task_owner import refresh_interval
from semlock._systems.task_taking import NETWORK_RETRY, Pauses
from semlock.retry import Every, Growing
from semlock.task import LockOwner, TaskLock
from support import (
    Child,
    content_of,
    in_a_fork,
    make_link,
    set_everywhere,
    wait_until,
    wine_appends_in_two_steps,
    wine_keeps_locked_names,
)

T0 = 1761229800.0  # 2025-10-23T14:30:00.000Z


@pytest.fixture
def log(path):
    """Read the audit log beside the lock."""

    def read():
        file = Path(path).with_name(NAME)
        return [json.loads(line) for line in file.read_text().splitlines()]

    return read


@pytest.fixture
def operations(log):
    return lambda: [line["operation"] for line in log()]


def quiet(path, owner="me", **options):
    return TaskLock(path, owner, audit=False, **options)


# ---------------------------------------------------------------- the words of semlock.Lock


def test_it_has_the_words_of_the_default_lock(path):
    lock = quiet(path)
    assert lock.status().state == "free"
    assert not lock.held
    assert lock.info is lock.token is None
    with lock as entered:
        assert entered is lock
        assert lock.held
        assert len(lock.token) == 32
        assert lock.info == task.status(path).info == lock.status().info
        lock.check()
        lock.refresh()
        assert task.status(path).verdict == "alive"
        assert quiet(path).try_acquire() is False
    assert not os.path.exists(path)
    with lock.acquire(timeout=0):
        assert lock.held
    assert lock.try_acquire() is True
    lock.release()
    for call in (lock.release, lock.refresh, lock.check):
        with pytest.raises(semlock.NotHeldError):
            call()


def test_it_decorates_a_function(path):
    lock = quiet(path)
    assert lock(lambda: lock.held)() is True
    assert not lock.held


def test_a_thread_that_would_wait_for_itself_is_told(path):
    with quiet(path), pytest.raises(semlock.LockDeadlockError, match=r"test_task\.py"):
        quiet(path).acquire()


def test_it_can_be_reentrant(path, operations):
    lock = TaskLock(path, "me", reentrant=True)
    with lock, lock:
        assert lock.try_acquire()
        lock.release()
        assert lock.held
    assert not lock.held
    assert operations() == ["acquire", "release"]


def test_threads_that_share_an_object_exclude_each_other(path):
    lock = quiet(path, durability="none")
    inside = []

    def work():
        for _ in range(100):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                assert lock.info.owner == "me"
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not os.path.exists(path)


def test_a_try_through_a_held_object_changes_nothing_about_what_it_holds(path):
    now = [T0]
    lock = quiet(path, clock=lambda: now[0])
    with lock:
        before = lock.info
        now[0] += 30
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(lock.try_acquire()))
        thread.start()
        thread.join()
        assert outcome == [False]
        assert lock.try_acquire() is False
        assert lock.info == before == task.status(path).info
        lock.refresh()


def test_a_forked_child_holds_nothing_and_names_itself(path):
    lock = quiet(path)
    other = path + "2"
    with lock:

        def child():
            late = quiet(other)
            with late:
                return lock.held, lock.info, late.info.pid == os.getpid()

        assert in_a_fork(child) == (False, None, True)
        lock.check()

    def again():
        with lock:
            return lock.info.pid == os.getpid()

    assert in_a_fork(again) is True


def test_a_killed_holder_leaves_nothing_that_blocks(path, names):
    with Child("from semlock.task import TaskLock") as child:
        child.run(f"lock = TaskLock({path!r}, 'c', audit=False)")
        for _ in range(3):
            child.run("lock.try_acquire() and lock.release()")
        child.run("lock.try_acquire()")
        child.kill()
    with quiet(path):
        pass
    capi.drain_pool()
    assert names() == []


# ---------------------------------------------------------------- refreshing


def test_a_refresh_begins_the_time_anew_in_the_same_bytes(path):
    now = [T0]
    with quiet(path, ttl=60, clock=lambda: now[0]) as lock:
        before = content_of(path)
        now[0] += 45.5
        lock.refresh()
        after = content_of(path)
        assert after == before.replace(b"14:30:00.000Z", b"14:30:45.500Z")
        assert lock.info.timestamp == T0 + 45.5
        assert task.status(path, clock=lambda: T0 + 100).state == "held"
        assert task.status(path, clock=lambda: T0 + 106).state == "stale"


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [(3600, 2700), (1, 0.75), (0.01, 0.007), (1e-6, 0.001), (1e300, 30 * 86400 * 0.75)],
)
def test_it_is_refreshed_by_itself_at_three_quarters_of_its_time(ttl, seconds, path):
    assert refresh_interval(ttl) == seconds
    assert quiet(path, ttl=ttl, auto_refresh=True)._heartbeat == seconds
    assert quiet(path, ttl=ttl)._heartbeat is None


def test_the_heartbeat_refreshes(path):
    with quiet(path, ttl=0.02, auto_refresh=True) as lock:
        first = lock.info.timestamp
        end = threading.Event()
        while lock.info.timestamp == first:
            assert not end.wait(0.001)
        lock.check()


@wine_keeps_locked_names
def test_the_heartbeat_tells_when_the_lock_is_lost(path, operations):
    lost, told = [], threading.Event()

    def on_lost(lock, error):
        lost.append((lock, error))
        told.set()

    lock = TaskLock(path, "me", ttl=0.1, auto_refresh=True, on_lost=on_lost)
    lock.acquire()
    semlock.remove(path, force=True)
    assert told.wait(30)
    assert lost[0][0] is lock
    assert isinstance(lost[0][1], semlock.LockLostError)
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert operations() == ["acquire", "lost"]


@wine_keeps_locked_names
def test_the_heartbeat_logs_a_loss_if_no_callback_is_given(path, caplog):
    lock = quiet(path, ttl=3600, auto_refresh=True)
    lock.acquire()
    semlock.remove(path, force=True)
    with caplog.at_level(logging.ERROR, "semlock"):
        heartbeat._beat(lock, 1.0)
        told = "was held here"
        wait_until(lambda: told in caplog.text, "it is logged")
    with pytest.raises(semlock.LockLostError):
        lock.release()


def test_a_refresh_that_fails_is_reported_and_tried_again_in_time(path, caplog, monkeypatch):
    now = [T0]
    lock = quiet(path, ttl=3600, auto_refresh=True, clock=lambda: now[0])
    with lock:
        before = lock.info
        now[0] += 2700
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "semlock"):
            patch.setattr(capi, "refresh_lock", lambda *_: -errno.EIO)
            heartbeat._due.clear()
            heartbeat._beat(lock, lock._heartbeat)
            wait_until(lambda: "failed; it is tried again" in caplog.text, "it is logged")
        _, interval, _, _ = heartbeat._due[id(lock)]
        assert 2700 + 4 * interval < 3600
        assert lock.info == before
        lock.refresh()
        assert lock.info.timestamp == T0 + 2700


def test_a_process_that_keeps_the_guard_does_not_end_the_heartbeat(path, monkeypatch):
    set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.002)
    assert GUARD_PATIENCE > 1
    with quiet(path, ttl=3600, auto_refresh=True) as lock:
        before = lock.info
        with monkeypatch.context() as patch:
            patch.setattr(capi, "refresh_lock", lambda *_: capi.GUARDED)
            with pytest.raises(semlock.LockTimeoutError, match="keeps its file locked"):
                lock.refresh()
        assert lock.info == before
        assert heartbeat._due[id(lock)][1] < 3600 / 4


@wine_keeps_locked_names
def test_a_refresh_verifies_the_instance_and_not_the_owners_name(path):
    lock = quiet(path, "same")
    lock.acquire()
    semlock.remove(path, force=True)
    with quiet(path, "same") as other:
        content = content_of(path)
        with pytest.raises(semlock.LockLostError):
            lock.refresh()
        assert content_of(path) == content
        other.check()
        with pytest.raises(semlock.LockLostError):
            lock.release()
        other.check()


# ---------------------------------------------------------------- messages


def test_the_message_of_a_held_lock_says_all_there_is_to_say(path):
    info = task.decode(
        json.dumps({"owner": "agent-7", "since": int(T0 * 1000), "ttl": 3600}).encode()
    )
    message = task.held_message(info, path, now=T0 + 754)
    assert message == (
        f"{path} is locked by agent-7 since 2025-10-23T14:30:00.000Z. Lock held for 12 minutes, "
        "expires in 47 minutes. Wait until it is released or expires; reclaim() takes it then, "
        "or before if a reason is named"
    )
    assert "held for 61 minutes, has expired" in task.held_message(info, path, now=T0 + 3661)
    assert "held for 0 minutes, expires in 76" in task.held_message(info, path, now=T0 - 1000)
    assert "has expired" in task.held_message(info, path)


def test_the_message_survives_a_time_that_no_calendar_has(path):
    content = b'{"owner": "x", "since": 8640000000000000, "ttl": 1e300}'
    assert "a time that no calendar has" in task.held_message(task.decode(content), path)


def test_a_timeout_tells_owner_minutes_and_the_way_out(path):
    with quiet(path, "user-ann@session-7", ttl=3600, clock=lambda: T0):
        waiter = quiet(path, clock=lambda: T0 + 754)
        with pytest.raises(semlock.LockTimeoutError) as caught:
            in_thread(lambda: waiter.acquire(timeout=0.01))
    message = str(caught.value)
    for words in ("user-ann@session-7", "12 minutes", "47 minutes", "reclaim()", "alive"):
        assert words in message
    assert caught.value.path == path
    assert caught.value.status.info.owner == "user-ann@session-7"
    assert isinstance(caught.value, TimeoutError)


def in_thread(function):
    result = []

    def run():
        try:
            result.append((function(), None))
        except Exception as error:
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = result[0]
    if error is not None:
        raise error
    return value


def test_no_message_shows_a_token_or_moves_the_terminal(path):
    owner = "token-eyJhbGciOiJIUzI1NiIs"
    Path(path).write_text(json.dumps({"owner": owner, "since": int(T0 * 1000), "ttl": 1e9}))
    lock = quiet(path)
    for call in (lambda: lock.acquire(timeout=0), lock.reclaim):
        with pytest.raises(semlock.LockHeldError) as caught:
            call()
        assert "eyJ" not in str(caught.value)
        assert f"token-{task.owner_for(token=owner[6:]).owner[6:]}" in str(caught.value)
    Path(path).write_text(
        json.dumps({"owner": "\x1b[2J\n", "since": int(T0 * 1000), "ttl": 1e9})
    )
    with pytest.raises(semlock.LockHeldError) as caught:
        lock.reclaim()
    assert str(caught.value).isprintable()
    assert str(task.status(path)).isprintable()


# ---------------------------------------------------------------- the audit log


def test_each_operation_is_one_line(path, log):
    with TaskLock(path, "me", ttl=60, clock=lambda: T0) as lock:
        lock.refresh()
        lock.check()
        assert TaskLock(path, "you", clock=lambda: T0).try_acquire() is False
        with pytest.raises(semlock.LockTimeoutError):
            in_thread(lambda: TaskLock(path, "you", clock=lambda: T0 + 1).acquire(timeout=0))
    lines = log()
    assert [line.pop("operation") for line in lines] == ["acquire", "denied", "release"]
    assert [line.pop("timestamp") for line in lines] == [
        "2025-10-23T14:30:00.000Z", "2025-10-23T14:30:01.000Z", "2025-10-23T14:30:00.000Z",
    ]  # fmt: skip
    assert [line.pop("details") for line in lines] == [
        {"owner": "me", "ttl": 60},
        {"existingOwner": "me", "newOwner": "you", "reason": "LOCK_HELD"},
        {"owner": "me"},
    ]
    for line in lines:
        assert line.pop("user")
        assert line == {"lockPath": path, "pid": os.getpid()}


@wine_keeps_locked_names
def test_a_loss_is_one_line_however_often_it_is_noticed(path, operations):
    lock = TaskLock(path, "me")
    for _ in range(2):
        lock.acquire()
        semlock.remove(path, force=True)
        for notice in (lock.check, lock.refresh, lock.check, lock.release):
            with pytest.raises(semlock.LockLostError):
                notice()
    assert operations() == ["acquire", "lost", "acquire", "lost"]


@wine_keeps_locked_names
def test_a_loss_in_a_failing_block_is_on_record_too(path, operations):
    with (
        pytest.warns(semlock.LockLostWarning),
        pytest.raises(KeyError),
        TaskLock(path, "me"),
    ):
        semlock.remove(path, force=True)
        raise KeyError
    assert operations() == ["acquire", "lost"]


def test_no_secret_is_in_the_log(path):
    token = "eyJhbGciOiJIUzI1NiIs"
    Path(path).write_text(
        json.dumps({"owner": f"token-{token}", "since": int(T0 * 1000), "ttl": 60})
    )
    with TaskLock(path, LockOwner.from_string("user-ann@session-s3cret")):
        assert token not in content_of(path).decode()
    with TaskLock(path, task.owner_for(token=token)):
        pass
    text = Path(path).with_name(NAME).read_text()
    assert text.count("\n") == 4
    assert token not in text
    assert "s3cret" not in text
    assert "user-ann@session-" in text


def test_no_owner_and_no_path_can_forge_a_line(tmp_path):
    # A file's name can have no line break on Windows, and no other odd ASCII.
    path = str(tmp_path / ("a{}\u2028.lock" if sys.platform == "win32" else "a\n{}\u2028.lock"))
    with TaskLock(path, 'x\n{"operation": "release"}\u2028'):
        pass
    lines = (tmp_path / NAME).read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 2
    assert all(line.isascii() and json.loads(line)["lockPath"] == path for line in lines)


def test_the_log_can_be_switched_off(path, names):
    with quiet(path):
        pass
    assert names() == []


@pytest.mark.skipif(sys.platform == "win32", reason="files have no permission bits there")
def test_the_log_is_as_private_as_the_lock(path):
    with TaskLock(path, "me"):
        assert os.stat(Path(path).with_name(NAME)).st_mode & 0o777 == 0o600
    os.unlink(Path(path).with_name(NAME))
    with TaskLock(path, "me", mode=0o640):
        assert os.stat(Path(path).with_name(NAME)).st_mode & 0o777 == 0o640


@pytest.mark.skipif(
    sys.platform == "win32", reason="O_APPEND is not atomic there, so it is not used"
)
def test_each_line_is_one_call_to_the_end_of_the_file(path, monkeypatch):
    calls = []
    real_open, real_write = os.open, os.write
    monkeypatch.setattr(os, "open", lambda *a: calls.append(a) or real_open(*a))
    monkeypatch.setattr(os, "write", lambda *a: calls.append(a) or real_write(*a))
    with TaskLock(path, "me"):
        pass
    assert len(calls) == 4
    for (file, flags, mode), (_, line) in zip(calls[::2], calls[1::2], strict=True):
        assert (file, mode) == (str(Path(path).with_name(NAME)), 0o600)
        assert flags & os.O_APPEND
        assert line.count(b"\n") == 1
        assert line.endswith(b"}\n")


BROKEN_LOGS = {
    "a directory": os.mkdir,
    "a link": lambda file: make_link(file, file.with_name("elsewhere")),
    "a pipe without a reader": lambda file: os.mkfifo(file),
}


@pytest.mark.parametrize("name", BROKEN_LOGS)
def test_a_log_that_can_not_be_written_breaks_no_lock_and_is_warned_of_once(
    name, path, caplog, tmp_path
):
    if name.startswith("a pipe") and not hasattr(os, "mkfifo"):
        pytest.skip("no file is a pipe there")
    BROKEN_LOGS[name](Path(path).with_name(NAME))
    with caplog.at_level(logging.WARNING, "semlock"):
        for _ in range(3):
            with TaskLock(path, "me") as lock:
                lock.check()
    assert len(caplog.records) == 1
    assert NAME in caplog.text
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("fault", ["full", "short"])
def test_a_full_disk_breaks_no_lock_either(fault, path, caplog, monkeypatch):
    def write(handle, line):
        if fault == "full":
            raise OSError(errno.ENOSPC, "full")
        return len(line) - 1

    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.WARNING, "semlock"), TaskLock(path, "me") as lock:
        lock.check()
    assert len(caplog.records) == 1


def test_a_clock_that_has_gone_mad_breaks_no_lock_either(path, caplog):
    now = [T0]
    lock = TaskLock(path, "me", clock=lambda: now[0])
    lock.acquire()
    now[0] = math.inf
    with caplog.at_level(logging.WARNING, "semlock"):
        lock.release()
    assert len(caplog.records) == 1
    assert not os.path.exists(path)


@wine_appends_in_two_steps
def test_processes_share_a_log_without_mixing_lines(path):
    children = [Child("from semlock.task import TaskLock") for _ in range(3)]
    try:
        for number, child in enumerate(children):
            child.send(
                f"lock = TaskLock({path + str(number)!r}, 'x' * 250, durability='none')\n"
                "for _ in range(100):\n    with lock: pass"
            )
        for child in children:
            child.receive()
    finally:
        for child in children:
            child.close()
    lines = Path(path).with_name(NAME).read_text().splitlines()
    assert len(lines) == 600
    assert {json.loads(line)["pid"] for line in lines} == {child.pid for child in children}


# ---------------------------------------------------------------- networks


class Somewhere:
    """A look at a file that is on some filesystem."""

    def __init__(self, local, error=0, kind=capi.REGULAR):
        self.error = error
        self.local = local
        self.kind = kind


SLOW = [0.1 * 2**step for step in range(9)]


def pauses_of(schedule):
    """List the pauses of a wait, or give None if it looks when the kernel tells it to."""
    pauses = schedule()
    if pauses is None:
        return None
    return [pause for pause, _ in zip(pauses, range(20), strict=False)]


@pytest.mark.parametrize(
    ("look", "slow"),
    [
        (Somewhere(local=0), True), (Somewhere(local=1), False), (None, False),
        (Somewhere(local=0, error=-errno.EACCES), False),
        (Somewhere(local=0, kind=capi.DIRECTORY), False),
    ],
    ids=["remote", "local", "free", "unreadable", "directory"],
)  # fmt: skip
def test_the_filesystem_is_asked_when_a_wait_begins(look, slow, path, monkeypatch):
    monkeypatch.setattr(capi, "look", lambda _: look)
    schedule = quiet(path)._retry
    assert isinstance(schedule, Pauses)
    assert pauses_of(schedule) == (pytest.approx(SLOW) if slow else None)


def test_a_filesystem_that_can_not_be_asked_is_not_waited_for(path, monkeypatch):
    def fail(_):
        raise PermissionError

    monkeypatch.setattr(capi, "look", fail)
    assert pauses_of(quiet(path)._retry) is None


def test_a_wait_on_a_network_is_ten_tries(path, monkeypatch):
    tries = []
    quick = Growing(0.001, longest=0.002, retries=NETWORK_RETRY.retries)
    monkeypatch.setattr("semlock._systems.task_lock.NETWORK_RETRY", quick)
    for name in ("try_lock", "try_anyway"):
        real = getattr(capi, name)
        monkeypatch.setattr(
            f"semlock._stores.file.{name}", lambda *a, real=real: tries.append(1) or real(*a)
        )
    real_look = file_store.look_at  # which finds a lock that is free by then, and a try follows
    monkeypatch.setattr(
        file_store, "look_at", lambda *a, **k: tries.append(1) or real_look(*a, **k)
    )
    with quiet(path):
        waiter = quiet(path, network=True)
        with pytest.raises(semlock.LockTimeoutError, match="is locked by me"):
            in_thread(waiter.acquire)
    # The holder's own and the waiter's first are among them, the look that judges the holder, and
    # that of the error; so may be one more before the first pause.
    assert len(tries) - NETWORK_RETRY.retries in (4, 5)


def test_what_is_said_about_the_network_wins(path):
    assert pauses_of(quiet(path, network=True)._retry) == pytest.approx(SLOW)
    assert quiet(path, network=False)._retry is None
    every = Every(1.0)
    for network in (None, True, False):
        assert quiet(path, network=network, retry=every)._retry is every


def test_a_local_file_is_seen_to_be_local(path):
    with quiet(path):
        assert task.status(path).instance.local == 1
        assert pauses_of(quiet(path)._retry) is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals are delivered otherwise there")
def test_a_signal_ends_a_wait(path):
    class StopError(Exception):
        pass

    def stop(*_):
        raise StopError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with Child("from semlock.task import TaskLock") as child:
            child.run(f"lock = TaskLock({path!r}, 'c', audit=False); lock.try_acquire()")
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            waiter = quiet(path)
            with pytest.raises(StopError):
                waiter.acquire()
            assert not waiter.held
            child.run("lock.check()")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_object_that_could_not_be_made_is_dropped_without_a_word(path):
    for bad in ({"ttl": -1}, {"timeout": -1}, {"retry": 7}, {"policy": 7}):
        with contextlib.suppress(ValueError, TypeError):
            TaskLock(path, "me", **bad)
            pytest.fail("it was made")
