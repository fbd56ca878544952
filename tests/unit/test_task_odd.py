"""The task lock and odd content: each cell of the table has its outcome.

None is a crash, a hang or a robbery: what isn't taken is left as it was, to the byte.
"""

import json
import os
import time
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock.task import TaskLock
from support import as_nobody, make_link

NOW = int(time.time())


def ago(seconds):
    return (NOW - seconds) * 1000


RECENT = ago(60)


def old(owner="agent-7", since=RECENT, ttl=3600, **more):
    return json.dumps({"owner": owner, "since": since, "ttl": ttl, **more}, indent=2).encode()


def new(since="2025-10-23T14:30:00.000Z", **metadata):
    members = {"owner": "pid-7@box", "since": since, "ttl": 3600, "metadata": metadata}
    return json.dumps(members, indent=2).encode()


HELD, UNREADABLE, STALE = "held", "unreadable", "stale"

ROWS = {
    "empty": (b"", UNREADABLE),
    "white space": (b" \r\n\t\n", UNREADABLE),
    "first byte": (old()[:1], UNREADABLE),
    "half": (old()[: len(old()) // 2], UNREADABLE),
    "all but the last byte": (old()[:-1], UNREADABLE),
    "half, and over if it were whole": (old(since=ago(9999))[:-1], UNREADABLE),
    "cut inside the time": (old(since=ago(9999))[:45], UNREADABLE),
    "old": (old(), HELD),
    "old, over": (old(since=ago(3601)), STALE),
    "old, over, not pretty": (json.dumps(json.loads(old(since=ago(3601)))).encode(), STALE),
    "enhanced": (new(since=f"{time.gmtime().tm_year + 1}-01-01T00:00:00Z"), HELD),
    "enhanced, over": (new(), STALE),
    "enhanced, over, all fields": (
        new(
            hostname="h", process_id=7, user_identity="u", session_id="s", environment="ci",
            purpose="automated", reclaimed_from="x", reclaimed_reason="y", migrated=True,
            migrated_at="2025-10-23T14:30:00.000Z",
        ),
        STALE,
    ),
    "enhanced, with a number as its time": (new(since=ago(10)), HELD),
    "CRLF": (old().replace(b"\n", b"\r\n"), HELD),
    "final newlines": (old() + b"\n\n", HELD),
    "byte order mark": (b"\xef\xbb\xbf" + old(), UNREADABLE),
    "UTF-16": (old().decode().encode("utf-16"), UNREADABLE),
    "NUL in front": (b"\0" + old(), UNREADABLE),
    "NUL behind": (old() + b"\0", UNREADABLE),
    "binary": (bytes(range(256)) * 4, UNREADABLE),
    "one MiB of blanks behind": (old(since=ago(9999)) + b" " * (1 << 20), UNREADABLE),
    "one MiB": (b"x" * (1 << 20), UNREADABLE),
    "an array, deep": (b"[" * 50000 + b"]" * 50000, UNREADABLE),
    "text of another lock system": (b"pid=7\ntimestamp=1761229800\n", UNREADABLE),
    "pid huge": (new(process_id=2**40), UNREADABLE),
    "pid negative": (new(process_id=-1), UNREADABLE),
    "pid zero": (new(process_id=0), UNREADABLE),
    "pid a word": (new(process_id="seven"), UNREADABLE),
    "our own pid, over": (new(process_id=os.getpid()), STALE),
    "ttl NaN": (old(since=ago(9999)).replace(b"3600", b"NaN"), UNREADABLE),
    "ttl infinite": (old(since=ago(9999)).replace(b"3600", b"Infinity"), UNREADABLE),
    "ttl 1e999": (old(since=ago(9999)).replace(b"3600", b"1e999"), UNREADABLE),
    "ttl zero": (old(ttl=0), UNREADABLE),
    "ttl negative": (old(ttl=-1), UNREADABLE),
    "ttl a text": (old(ttl="1"), UNREADABLE),
    "ttl tiny": (old(ttl=1e-9), STALE),
    "ttl of all time": (old(ttl=1e300), HELD),
    "time of next month": (old(since=ago(-30 * 86400)), HELD),
    "time in seconds": (old(since=NOW), UNREADABLE),
    "time in microseconds": (old(since=NOW * 1_000_000), HELD),
    "time in nanoseconds": (old(since=NOW * 1_000_000_000), UNREADABLE),
    "time NaN": (old(since=0).replace(b'"since": 0', b'"since": NaN'), UNREADABLE),
    "time negative": (old(since=-1), UNREADABLE),
    "time null": (old(since=None), UNREADABLE),
    "time local": (new(since="2025-10-23T14:30:00"), UNREADABLE),
    "owner missing": (json.dumps({"since": ago(9999), "ttl": 1}).encode(), UNREADABLE),
    "owner empty": (old(owner="", since=ago(9999)), UNREADABLE),
    "owner too long": (old(owner="x" * 257, since=ago(9999)), UNREADABLE),
    "owner unicode": (old(owner="zürich 🔒 \ud800"), HELD),
    "owner unicode, over": (old(owner="zürich 🔒 \ud800", since=ago(9999)), STALE),
    "owner with a newline, over": (old(owner="x\ny", since=ago(9999)), STALE),
    "owner a token, over": (old(owner="token-eyJhbGciOi", since=ago(9999)), STALE),
    "bytes that are no text, over": (
        old(owner="?", since=ago(9999)).replace(b'"?"', b'"\xff\xfe"'), STALE,
    ),
    "unknown member": (old(extra={"a": [1]}), HELD),
    "unknown field": (new(colour="red"), UNREADABLE),
    "field of the wrong type": (new(hostname=7), UNREADABLE),
    "the same key twice": (old().replace(b"{", b'{"owner": "first",', 1), HELD),
    "owner and metadata alone": (
        json.dumps({"owner": "x", "metadata": {"purpose": "automated"}}).encode(), UNREADABLE,
    ),
    "claims that make no sense, over": (old(since=ago(9999), semlock={"pid": "x"}), STALE),
    "claims that make no sense": (
        old(semlock={"pid": 1, "boot": 7, "start": "9" * 30, "witness": ["kept"]}), HELD,
    ),
    "a kept witness that is not there": (
        old(semlock={"pid": os.getpid(), "witness": "kept"}), HELD,
    ),
    "a kept witness that is not there, of no process": (
        old(semlock={"pid": 2**31 - 1, "witness": "kept"}), STALE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_each_cell_has_its_outcome(row, path):
    content, state = ROWS[row]
    Path(path).write_bytes(content)
    lock = TaskLock(path, "me", audit=False)
    assert task.status(path).state == lock.status().state == state
    assert str(lock.status()).isprintable()
    for release in (lock.release, semlock.Lock(path).release):
        with pytest.raises(semlock.NotHeldError):
            release()
    # Cleaning changes nothing.
    semlock.clean(os.path.dirname(path))
    with pytest.raises(semlock.LockHeldError):
        semlock.remove(path)
    assert Path(path).read_bytes() == content
    if state == STALE:
        assert lock.try_acquire() is True
        assert lock.info == task.status(path).info
        assert task.status(path).verdict == "alive"
        lock.release()
        Path(path).write_bytes(content)
        lock = TaskLock(path, "me", audit=False)
        assert lock.reclaim().owner == "me"
        lock.release()
        assert not os.path.exists(path)
        return
    assert lock.try_acquire() is False
    with pytest.raises(semlock.LockTimeoutError) as told:
        lock.acquire(timeout=0)
    assert str(told.value).isprintable()
    for allow in ((), ("SAME_USER", "HIGHER_PRIVILEGE")):
        with pytest.raises(task.ReclaimDeniedError) as denied:
            lock.reclaim(allow=allow)
        assert denied.value.decision.reason == "LOCK_HELD"
    assert Path(path).read_bytes() == content
    semlock.remove(path, force=True)
    assert not os.path.exists(path)


def test_what_is_no_file_is_told_and_left_alone(path, tmp_path):
    (tmp_path / "target").write_bytes(ROWS["old, over"][0])
    kinds = {
        "directory": os.mkdir,
        "link": lambda place: make_link(place, tmp_path / "target"),
        "dangling link": lambda place: make_link(place, tmp_path / "nothing"),
        "link to itself": lambda place: make_link(place, place),
    }
    if hasattr(os, "mkfifo"):
        kinds["pipe"] = os.mkfifo
    for kind, make in kinds.items():
        place = f"{path}.{kind}"
        make(place)
        before = os.lstat(place)
        lock = TaskLock(place, "me", audit=False)
        for call in (
            lambda place=place: task.status(place),
            lock.try_acquire,
            lambda lock=lock: lock.acquire(timeout=0),
            lock.reclaim,
            lambda place=place: task.migrate(place),
        ):
            with pytest.raises(semlock.LockPathError):
                call()
        semlock.clean(str(tmp_path))
        after = os.lstat(place)
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (tmp_path / "target").read_bytes() == ROWS["old, over"][0]
    assert not (tmp_path / "nothing").exists()


def test_a_directory_that_does_not_exist_is_told(tmp_path):
    lock = TaskLock(tmp_path / "no" / "lock", "me")
    for call in (lock.try_acquire, lock.acquire, lock.reclaim):
        with pytest.raises(semlock.LockPathError, match="does not exist"):
            call()
    assert lock.status().state == "free"
    assert os.listdir(tmp_path) == []


def test_what_may_not_be_read_counts_as_held(common):
    path = os.path.join(common, "the.lock")
    Path(path).write_bytes(ROWS["old, over"][0])
    os.chmod(path, 0)

    def attempt():
        lock = TaskLock(path, "me", audit=False)
        outcomes = [lock.status().state, lock.try_acquire()]
        for call in (lambda: lock.acquire(timeout=0), lock.reclaim, lock.release):
            try:
                call()
            except semlock.SemlockError as error:
                outcomes += [type(error).__name__, "denied" in str(error).lower()]
        outcomes.append(task.migrate(path, audit=False).outcome)
        return outcomes

    assert as_nobody(attempt) == [
        "unreadable", False, "LockTimeoutError", True, "ReclaimDeniedError", True,
        "NotHeldError", False, "unreadable",
    ]  # fmt: skip
    os.chmod(path, 0o600)
    assert Path(path).read_bytes() == ROWS["old, over"][0]


def test_a_log_of_another_user_breaks_no_lock(common):
    log = os.path.join(common, ".lock_audit.log")
    Path(log).touch()
    os.chmod(log, 0o400)

    def attempt():
        with TaskLock(os.path.join(common, "the.lock"), "me") as lock:
            lock.check()
        return os.path.getsize(log)

    assert as_nobody(attempt) == 0
