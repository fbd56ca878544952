"""Odd things at a sidecar lock's path: one outcome each, and never a crash, a hang or a robbery."""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest

import semlock
import users
from semlock import sidecar
from semlock.sidecar import RetryOptions, SidecarLock
from support import Child, make_link

# Behind the object stands a token of 128 bits, as tabs and spaces.
OURS = b'{\n  "pid": 1\n}\n' + b"\t \t  \t\t " * 16 + b"\n"
BIG = b'{"pid": 1, "x": "' + b"y" * 2**20 + b'"}'

# What is in the file, what the status is while the file is fresh, and when it is old.
CONTENT = {
    "nothing": (b"", "unreadable", "stale"),
    "a newline": (b"\n", "unreadable", "stale"),
    "half an object": (b'{\n  "pid": 1,\n  "crea', "unreadable", "stale"),
    "an object with CRLF": (b'{\r\n  "pid": 1\r\n}\r\n', "held", "stale"),
    "a byte order mark": (b'\xef\xbb\xbf{"pid": 1}\n', "unreadable", "stale"),
    "NUL": (b"\0" * 100, "unreadable", "stale"),
    "NUL behind the object": (b'{"pid": 1}\n\0', "unreadable", "stale"),
    "a MiB": (BIG, "unreadable", "stale"),
    "bytes that are no UTF-8": (b'{"x": "\xff"}', "held", "stale"),
    "UTF-16": ('{"pid": 1}'.encode("utf-16"), "unreadable", "stale"),
    "an array": (b'[{"pid": 1}]', "unreadable", "stale"),
    "a number": (b"1795006136", "unreadable", "stale"),
    "null": (b"null\n", "unreadable", "stale"),
    "an empty object": (b"{}", "held", "stale"),
    "NaN": (b'{"pid": NaN}', "unreadable", "stale"),
    "Infinity": (b'{"pid": 1, "n": -Infinity}', "unreadable", "stale"),
    "a huge pid": (b'{"pid": 99999999999999999999}', "held", "stale"),
    "a pid of a thousand digits": (b'{"pid": %s}' % (b"9" * 1000), "held", "stale"),
    "a negative pid": (b'{"pid": -1}', "held", "stale"),
    "pid zero": (b'{"pid": 0}', "held", "stale"),
    "a pid in text": (b'{"pid": "1"}', "held", "stale"),
    "a time far ahead": (b'{"createdAt": "2999-01-01T00:00:00.000Z"}', "held", "held"),
    "a time long ago": (b'{"createdAt": "1999-01-01T00:00:00.000Z"}', "stale", "stale"),
    "a time in milliseconds": (b'{"createdAt": 1795006136735}', "held", "stale"),
    "a time that is none": (b'{"createdAt": "soon"}', "held", "stale"),
    "keys that come twice": (b'{"pid": 1, "pid": 2, "pid": 3}', "held", "stale"),
    "a key of Python's": (b'{"__class__": "x", "pid": 1}', "held", "stale"),
    "unicode": ('{"häufig": "🔒\\ud800"}'.encode(), "held", "stale"),
    "newlines and equals signs": (b'{"tag": "a=b\\nc=d"}', "held", "stale"),
    "deep nesting": (b'{"a":' * 20000 + b"1" + b"}" * 20000, "unreadable", "stale"),
    "another system's record": (b"pid=1\ntimestamp=1\n", "unreadable", "stale"),
    "a record of ours": (OURS, "held", "stale"),
    "half a token": (OURS[:-50], "held", "stale"),
    "a token without an object": (OURS[13:], "unreadable", "stale"),
}
OUTCOMES = {
    "held": sidecar.FileLockTimeoutError,
    "unreadable": sidecar.FileLockTimeoutError,
    "stale": sidecar.FileLockStaleError,
}


@pytest.mark.parametrize("name", CONTENT)
class TestContent:
    @pytest.fixture(params=["fresh", "old"])
    def expected(self, request, name, lock_file):
        content, fresh, old = CONTENT[name]
        lock_file.write_bytes(content)
        if request.param == "old":
            os.utime(lock_file, (time.time() - 1000,) * 2)
        yield fresh if request.param == "fresh" else old
        assert lock_file.read_bytes() == content

    def test_status(self, name, expected, target):
        found = sidecar.status(target)
        assert found.state == expected
        assert found.verdict == "unknown"
        assert found.holder
        assert found.age >= 0

    def test_acquire(self, name, expected, target):
        for call in (
            lambda: sidecar.acquire_file_lock(target, retry=RetryOptions(1, min_timeout=0.001)),
            lambda: SidecarLock(target, retry=RetryOptions(retries=0)).acquire(),
        ):
            with pytest.raises(OUTCOMES[expected]) as caught:
                call()
            assert str(caught.value)
        assert SidecarLock(target).try_acquire() is False

    def test_release(self, name, expected, target):
        with pytest.raises(semlock.NotHeldError):
            SidecarLock(target).release()

    def test_clean(self, name, expected, tmp_path, lock_file):
        # No record of semlock's own, which is all that semlock.clean knows, and no proof.
        assert semlock.clean(tmp_path) == []
        assert semlock.clean(lock_file) == []


@pytest.mark.parametrize("name", CONTENT)
def test_content_is_removed_only_when_it_was_shown_to_the_caller(name, target, lock_file):
    content = CONTENT[name][0]
    lock_file.write_bytes(content)
    seen = []

    def remove(snapshot):
        seen.append(snapshot)
        return True

    def acquire():
        return sidecar.acquire_file_lock(
            target,
            should_reclaim=lambda _: True,
            stale_recovery="remove-if-unchanged",
            should_remove_stale_lock=remove,
        )

    if len(content) > 65536:  # more than is read, and so more than can be compared again
        with pytest.raises(sidecar.FileLockStaleError, match="read whole"):
            acquire()
        assert lock_file.read_bytes() == content
        assert seen == []
        return
    acquire().release()
    assert [snapshot.raw for snapshot in seen] == [content.decode("utf-8", "replace")]


KINDS = ["a directory", "a link", "a link to nothing", "a link to itself", "a pipe", "a socket"]


@pytest.mark.parametrize("name", KINDS)
class TestWhatIsNoFile:
    @pytest.fixture(autouse=True)
    def made(self, name, lock_file, tmp_path):
        elsewhere = tmp_path / "elsewhere"
        if sys.platform == "win32" and name in ("a pipe", "a socket"):
            pytest.skip("no file is one there")
        if name == "a directory":
            lock_file.mkdir()
        elif name == "a pipe":
            os.mkfifo(lock_file)
        elif name == "a socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.relpath(lock_file))
        elif name == "a link to itself":
            make_link(lock_file, lock_file)
        else:
            make_link(lock_file, elsewhere)
        if name == "a link":
            elsewhere.write_text("{}")
        before = os.lstat(lock_file)
        yield
        assert os.lstat(lock_file).st_ino == before.st_ino
        assert elsewhere.exists() is (name == "a link")

    def test_status(self, name, target):
        with pytest.raises(semlock.LockPathError, match="left alone"):
            sidecar.status(target)

    def test_acquire(self, name, target):
        for call in (
            lambda: sidecar.acquire_file_lock(target, timeout=10),
            lambda: asyncio.run(sidecar.acquire_file_lock_async(target)),
            lambda: SidecarLock(target).try_acquire(),
        ):
            start = time.process_time()
            with pytest.raises(semlock.LockPathError, match="left alone"):
                call()
            assert time.process_time() - start < 1

    def test_remove_if_unchanged(self, name, target):
        with pytest.raises(semlock.LockPathError):
            sidecar.acquire_file_lock(
                target,
                should_reclaim=lambda _: True,
                stale_recovery="remove-if-unchanged",
                should_remove_stale_lock=lambda _: True,
            )

    def test_release(self, name, target):
        with pytest.raises(semlock.NotHeldError):
            SidecarLock(target).release()

    def test_clean(self, name, tmp_path):
        assert semlock.clean(tmp_path) == []


@users.needs_root
class TestAFileThatMayNotBeRead:
    @pytest.fixture
    def place(self, common):
        target = os.path.join(common, "state.json")
        Path(target + ".lock").write_text("{}")
        os.chmod(target + ".lock", 0o600)
        yield target
        assert Path(target + ".lock").read_text() == "{}"

    @pytest.fixture
    def other(self, place):
        with Child(f"import os\nfrom semlock import sidecar\ntarget = {place!r}") as child:
            child.run(f"import semlock\n{users.as_user()}")
            yield child

    def test_is_held_while_it_is_fresh_and_stale_by_its_time(self, place, other):
        state = "sidecar.status(target).state"
        assert other.run(state) == "unreadable"
        with pytest.raises(sidecar.FileLockTimeoutError, match="Permission denied"):
            other.run("h = sidecar.acquire_file_lock(target, timeout=0)")
        os.utime(place + ".lock", (1, 1))
        assert other.run(state) == "unreadable"
        assert "only root may remove it" in other.run("sidecar.status(target).evidence")
        with pytest.raises(sidecar.FileLockStaleError):
            other.run("h = sidecar.acquire_file_lock(target, timeout=0)")
        assert other.run("semlock.clean(os.path.dirname(target)) == []")

    def test_is_never_removed(self, place, other):
        os.utime(place + ".lock", (1, 1))
        with pytest.raises(sidecar.FileLockStaleError):
            other.run(
                "h = sidecar.acquire_file_lock(target, stale_recovery='remove-if-unchanged', "
                "should_remove_stale_lock=lambda _: True)"
            )
