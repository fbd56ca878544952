"""A lock that another program takes over by writing its record into the same file."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import warnings

import pytest

import semlock
from ini_system import INI
from semlock import feature, sema, semats, sidecar, systems, task
from tests.support import content_of, overwrite, take_away, wait_until

JSON = json.dumps(
    {
        "owner": "ci-emergency-1",
        "since": "2026-01-01T00:00:00.000Z",
        "ttl": 10**9,
        "metadata": {
            "environment": "ci",
            "purpose": "emergency",
            "reclaimed_reason": "SAME_USER",
        },
    },
    indent=2,
).encode()
TEXT = b"pid=%d\ntimestamp=%d\n" % (os.getppid(), time.time())


def feature_lock(directory):
    return feature.FeatureLock("login", directory)


MAKERS = {
    "plain": lambda d: semlock.Lock(d / "x.lock"),
    "sema": lambda d: sema.Semaphore(d / "x.lock"),
    "semats": lambda d: semats.Semaphore(d / "x.lock"),
    "feature": feature_lock,
    "sidecar": lambda d: sidecar.SidecarLock(d / "x"),
    "task": lambda d: task.TaskLock(d / "x.lock", "pid-1@here"),
    "one's own system": lambda d: INI.lock(d / "x.lock"),
}
ASYNC = {
    "plain": lambda d: semlock.AsyncLock(d / "x.lock"),
    "sema": lambda d: sema.AsyncSemaphore(d / "x.lock"),
    "task": lambda d: task.AsyncTaskLock(d / "x.lock", "pid-1@here"),
}
THEIRS = {
    "feature": b"%d:%d" % (os.getppid(), time.time()),
    "sidecar": b'{\n  "pid": 77,\n  "createdAt": "2030-01-01T00:00:00.000Z"\n}\n',
    "task": JSON,
}
KINDS = sorted(MAKERS)


def theirs(kind):
    return THEIRS.get(kind, TEXT)


@pytest.fixture(params=["fresh", "kept"])
def claim(request):
    return request.param


def held(kind, directory, claim):
    lock = MAKERS[kind](directory)
    for _ in range(3 if claim == "kept" else 0):
        with lock:
            pass
    lock.acquire()
    return lock


@pytest.mark.parametrize("kind", KINDS)
def test_check_tells_the_holder(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    lock.check()
    overwrite(lock.path, theirs(kind))
    with pytest.raises(semlock.LockLostError, match="wrote over"):
        lock.check()
    with pytest.raises(semlock.LockLostError):
        lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_leaves_the_thiefs_lock_as_it_is(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    overwrite(lock.path, theirs(kind))
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert content_of(lock.path) == theirs(kind)
    assert not lock.held
    assert [name for name in os.listdir(os.path.dirname(lock.path)) if "kept" in name] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_refresh_leaves_the_thiefs_record_as_it_is(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    overwrite(lock.path, theirs(kind))
    with pytest.raises(semlock.LockLostError):
        lock.refresh()
    assert content_of(lock.path) == theirs(kind)
    with pytest.raises(semlock.LockLostError):
        lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_lost_its_lock_so_ends_with_an_error(kind, tmp_path):
    lock = MAKERS[kind](tmp_path)
    with pytest.raises(semlock.LockLostError), lock:
        overwrite(lock.path, theirs(kind))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        take_away(lock.path)
        with pytest.raises(KeyError), lock:
            overwrite(lock.path, theirs(kind))
            raise KeyError
    assert [w.category for w in told] == [semlock.LockLostWarning]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_refreshed_by_its_holder_is_not_lost(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    for _ in range(3):
        lock.refresh()
        lock.check()
    time.sleep(0.03)  # longer than a file's time and the clock are apart
    lock.refresh()
    lock.check()
    os.utime(lock.path)
    lock.check()
    lock.release()
    assert not os.path.exists(lock.path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_a_record_of_the_same_length_is_noticed_at_once(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    before = content_of(lock.path)
    overwrite(lock.path, before[::-1])
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert content_of(lock.path) == before[::-1]


def test_a_plain_lock_notices_one_of_the_same_length_by_the_files_time(tmp_path, claim):
    lock = held("plain", tmp_path, claim)
    before = content_of(lock.path)
    time.sleep(0.03)
    overwrite(lock.path, before[::-1])
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert content_of(lock.path) == before[::-1]


@pytest.mark.parametrize("kind", ["plain", "sema", "semats", "sidecar", "task"])
def test_no_verb_says_that_the_thief_keeps_the_holders_kernel_lock(kind, tmp_path):
    lock = held(kind, tmp_path, "fresh")
    assert lock.status().verdict == "alive"
    overwrite(lock.path, theirs(kind))
    found = lock.status()
    assert found.verdict == "unknown"
    assert "its holder keeps" not in found.evidence
    assert "written over" in found.evidence
    with pytest.raises(semlock.LockLostError):
        lock.release()


@pytest.mark.parametrize("how", ["appended", "not truncated"])
@pytest.mark.parametrize("kind", ["plain", "sema", "semats"])
def test_a_record_in_the_file_that_leaves_the_token_is_noticed(kind, how, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    time.sleep(
        0.03 if kind == "plain" else 0
    )  # longer than a file's time and the clock are apart
    before = content_of(lock.path)
    if how == "appended":
        overwrite(lock.path, before + TEXT)
    else:
        overwrite(lock.path, b"pid=99999" + before[before.index(b"\n") :])
    after = content_of(lock.path)
    found = lock.status()
    if how == "appended":
        assert (found.info.pid, found.info.token) == (os.getppid(), None)
        assert (found.verdict, "written over" in found.evidence) == ("unknown", True)
    for act in (lock.check, lock.refresh, lock.release):
        with pytest.raises(semlock.LockLostError):
            act()
    assert content_of(lock.path) == after


@pytest.mark.parametrize("kind", ["plain", "sema", "semats"])
def test_a_line_that_names_no_process_takes_nothing_over(kind, tmp_path, claim):
    lock = held(kind, tmp_path, claim)
    time.sleep(0.03 if kind == "plain" else 0)
    overwrite(lock.path, content_of(lock.path) + b"note=pid=7\npidfile=7\n")
    lock.check()
    lock.release()
    assert not os.path.exists(lock.path)


def test_auto_refresh_leaves_an_emergencys_record_and_tells_the_holder(tmp_path):
    told = []
    lock = task.TaskLock(
        tmp_path / "x.lock", "pid-1@here", ttl=0.2, auto_refresh=True,
        on_lost=lambda _lock, error: told.append(error),
    )  # fmt: skip
    lock.acquire()
    overwrite(lock.path, JSON)
    wait_until(lambda: told, "the loss is told")
    assert content_of(lock.path) == JSON
    log = (tmp_path / ".lock_audit.log").read_text().splitlines()
    assert [json.loads(line)["operation"] for line in log] == ["acquire", "lost"]
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert content_of(lock.path) == JSON


def test_the_specifications_own_refresh_by_the_same_owner_loses_nothing(tmp_path):
    # readLock, {...currentLock, since: Date.now()}, writeFile: all members stay.
    lock = held("task", tmp_path, "fresh")
    record = json.loads(content_of(lock.path))
    record["since"] = int(time.time() * 1000)
    overwrite(lock.path, json.dumps(record, indent=2, ensure_ascii=False).encode())
    lock.check()
    lock.refresh()
    lock.check()
    assert json.loads(content_of(lock.path))["semlock"]["token"] == lock.token
    lock.release()
    assert not os.path.exists(lock.path)


@pytest.mark.parametrize("owner", ["pid-2@here", "ci-emergency-1"])
def test_a_program_that_keeps_all_but_the_owner_has_taken_it_over(tmp_path, owner):
    lock = held("task", tmp_path, "fresh")
    record = json.loads(content_of(lock.path)) | {"owner": owner}
    theirs = json.dumps(record, indent=2).encode()
    overwrite(lock.path, theirs)
    for call in (lock.check, lock.refresh, lock.release):
        with pytest.raises(semlock.LockLostError):
            call()
    assert content_of(lock.path) == theirs


def test_the_heartbeat_of_sema_notices_a_scripts_echo(tmp_path):
    told = []
    lock = sema.Semaphore(
        tmp_path / "x.lock", heartbeat=0.05, on_lost=lambda _lock, error: told.append(error)
    )
    lock.acquire()
    overwrite(lock.path, TEXT)
    wait_until(lambda: told, "the loss is told")
    assert content_of(lock.path) == TEXT
    with pytest.raises(semlock.LockLostError):
        lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_for_the_thief_is_not_one_for_oneself(kind, tmp_path):
    """It was a deadlock by words, though the file was the thief's: its end ends the wait."""
    lost = held(kind, tmp_path, "fresh")
    overwrite(lost.path, theirs(kind))
    with pytest.raises(semlock.LockLostError):
        lost.check()
    timer = threading.Timer(0.1, os.unlink, [lost.path])
    timer.start()
    other = MAKERS[kind](tmp_path)
    assert other.try_acquire() is False
    other.acquire(timeout=5)  # while the first one is not released
    other.release()
    with pytest.raises(semlock.LockLostError):
        lost.release()
    timer.join()


@pytest.mark.parametrize("kind", ASYNC)
def test_a_tasks_wait_for_the_thief_is_none_either(kind, tmp_path):
    async def main():
        lost = ASYNC[kind](tmp_path)
        await lost.acquire()
        overwrite(lost.path, theirs(kind))
        asyncio.get_running_loop().call_later(0.1, os.unlink, lost.path)
        async with ASYNC[kind](tmp_path) as other:
            other.check()
        with pytest.raises(semlock.LockLostError):
            lost.release()

    asyncio.run(main())


def test_an_object_that_lost_its_lock_so_takes_the_next_one(tmp_path):
    lock = held("plain", tmp_path, "kept")
    overwrite(lock.path, TEXT)
    with pytest.raises(semlock.LockLostError):
        lock.release()
    assert not lock.try_acquire()
    take_away(lock.path)
    for _ in range(3):
        with lock:
            lock.check()
    semlock.clean(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_refresh_writes_nothing_of_an_earlier_acquisition(tmp_path, kind, monkeypatch):
    """Another thread may release and acquire between composing the record and writing it."""
    lock = MAKERS[kind](tmp_path)
    compose, times = type(lock)._text, []

    def composed(self, record, stamp):
        text = compose(self, record, stamp)
        if not times:
            times.append(stamp)
            self.release()
            self.acquire()
        return text

    monkeypatch.setattr(type(lock), "_text", composed)
    lock.acquire()
    lock.refresh()
    assert times
    lock.check()
    if kind not in ("feature", "sidecar"):  # whose records have no token
        assert lock.token.encode() in content_of(lock.path)
    lock.release()
    assert not os.path.exists(lock.path)


def test_a_format_without_tokens_does_not_make_its_holder_a_stranger(tmp_path):
    bare = systems.System(
        "bare",
        compose=lambda info: f"{info.pid} {int(info.timestamp)}\n".encode(),
        decode=lambda content: semlock.LockInfo(pid=int(content.split()[0]), timestamp=1),
    )
    with bare.lock(tmp_path / "x.lock") as lock:
        assert bare.status(lock.path).verdict == "alive"
        assert "its holder keeps" in bare.status(lock.path).evidence
