"""``semlock.filelock``: what is its own, beside filelock's tests (``.ci/filelock-suite``)."""

import asyncio
import glob
import os
import pickle
import subprocess
import sys
import threading
from time import monotonic

import pytest

import semlock
import semlock.filelock as filelock
from runlib import needs, root
from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._filelock import record
from support import PATIENCE, Child, wait_until

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as on Linux")


def test_a_record_says_what_it_was_composed_of():
    me = this_process()
    text = record.compose(me)
    info = record.decode(text)
    assert len(text) <= record.RECORD_LIMIT
    assert text.splitlines()[:2] == [str(me.pid).encode(), record.host_name(me).encode()]
    assert (info.pid, info.host) == (me.pid, record.host_name(me))
    if sys.platform.startswith("linux"):
        assert (info.start, info.boot) == (me.start, me.boot)


@linux
@root
@needs("unshare")
def test_where_the_pid_namespace_is_unknown_no_holder_is_judged_by_its_number(tmp_path):
    """The holder is a program of filelock's in the first namespace, the reader in another one."""
    path = tmp_path / "soft.lock"
    path.write_text(f"{os.getpid()}\n{os.uname().nodename}\n")
    reader = (
        "import sys; from semlock.filelock import SoftFileLock, Timeout\n"
        "try: SoftFileLock(sys.argv[1], timeout=0.1).acquire()\n"
        "except Timeout: print('held')\n"
    )
    enter = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc; exec unshare -pf "$@"')
    line = (*enter, "sh", sys.executable, "-c", reader, str(path))
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == "held\n"


def test_a_record_of_the_second_protocol_is_read():
    info = record.decode(b"filelock/2\npid=77\nhost=other\nmode=exclusive\n")
    assert (info.pid, info.host) == (77, "other")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"12\n",
        b"12\nhost",
        b"-1\nhost\n",
        b"0\nhost\n",
        b"+5\nhost\n",
        b"1_0\nhost\n",
        b"99999999999999999999\nhost\n",
        b"12\nhost\nx\n",
        b"12\nhost\n1\n2\n",
        b"\xff\xfe\nhost\n",
        "\u0661\nhost\n".encode(),
        b"12\nhost\n" + b" " * 1024 + b"\n",
        b"filelock/2\nhost=other\n",
        b"1\nfilelock-strict-v1\x00\n0\n" + b"9" * 2000,
    ],
    ids=repr,
)
def test_what_is_no_record_is_refused(content):
    with pytest.raises(LockRecordError):
        record.decode(content)


def test_a_cut_off_record_is_taken_after_two_seconds_and_not_before(path):
    with open(path, "w") as file:
        file.write("12\nhos")
    lock = filelock.SoftFileLock(path)
    with pytest.raises(filelock.Timeout):
        lock.acquire(timeout=0.3)
    with lock.acquire(timeout=10):
        assert lock.pid == os.getpid()


def test_the_note_of_a_timeout_names_the_holder(path):
    with Child(f"import semlock.filelock as f; lock = f.SoftFileLock({path!r})") as other:
        other.run("lock.acquire() and None")
        with pytest.raises(filelock.Timeout) as raised:
            filelock.SoftFileLock(path).acquire(timeout=0.05)
        if sys.version_info >= (3, 11):
            assert f"process {other.pid}" in raised.value.__notes__[0]
        assert pickle.loads(pickle.dumps(raised.value)).lock_file == path


@pytest.mark.parametrize(
    "name",
    ["SoftFileLease", "StrictSoftFileLock", "MarkerSoftFileLock", "AsyncSoftReadWriteLock"],
)
def test_what_is_not_there_says_what_to_use(name, path):
    kind = getattr(filelock, name)
    with pytest.raises(filelock.NotProvidedError, match="use semlock"):
        kind(path)


def test_each_thread_holds_by_itself_unless_told_otherwise(path):
    for thread_local, count in ((True, 0), (False, 1)):
        lock = filelock.SoftFileLock(path, thread_local=thread_local)
        seen = []
        with lock:
            thread = threading.Thread(target=lambda: seen.append(lock.lock_counter))  # noqa: B023
            thread.start()
            thread.join()
        assert seen == [count]


def test_an_interrupted_wait_of_another_thread_ends_by_cancel_check(path):
    stop = threading.Event()
    ended = []

    def wait() -> None:
        with pytest.raises(filelock.Timeout):
            filelock.SoftFileLock(path).acquire(cancel_check=stop.is_set, poll_interval=0.01)
        ended.append(True)

    with filelock.SoftFileLock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        stop.set()
        thread.join(10)
    assert ended == [True]


def test_tasks_wait_for_each_other_and_for_threads(path):
    async def both() -> list[str]:
        order = []

        async def hold(name: str) -> None:
            async with filelock.AsyncSoftFileLock(path):
                order.append(f"{name} in")
                await asyncio.sleep(0.01)
                order.append(f"{name} out")

        await asyncio.gather(*(hold(name) for name in "abc"))
        return order

    order = asyncio.run(both())
    assert [word.split()[1] for word in order] == ["in", "out"] * 3


def test_a_soft_lock_leaves_nothing_behind(path, names):
    with filelock.SoftFileLock(path):
        assert names() == ["the.lock"]
    assert names() == []


def test_all_names_are_there():
    for name in filelock.__all__:
        assert getattr(filelock, name) is not None
    assert set(filelock.__all__) <= set(dir(filelock))
    theirs = pytest.importorskip("filelock", "4.2.10")
    assert set(theirs.__all__) <= set(filelock.__all__)


@pytest.mark.parametrize("prefix", ["", "Async"])
def test_the_class_of_another_system_is_no_base_of_this_ones_and_locks_nothing(prefix, path):
    kinds = [getattr(filelock, f"{prefix}{name}FileLock") for name in ("Unix", "Windows")]
    own, other = reversed(kinds) if sys.platform == "win32" else kinds
    assert getattr(filelock, f"{prefix}FileLock") is own
    assert not issubclass(own, other)
    lock = other(path)
    with pytest.raises(NotImplementedError, match="of another system"):
        result = lock.acquire(timeout=0)
        asyncio.run(result)
    assert not lock.is_locked


@pytest.mark.parametrize(
    "name", ["FileLock", "SoftFileLock", "AsyncFileLock", "AsyncSoftFileLock"]
)
def test_a_warning_about_a_lifetime_points_at_its_caller(name, path):
    with pytest.warns((UserWarning, filelock.SoftFileLockLifetimeWarning)) as told:
        getattr(filelock, name)(path, lifetime=5)
    assert [one.filename for one in told] == [__file__]


def test_what_is_logged_of_a_try_is_as_with_filelock(path, caplog):
    with filelock.FileLock(path), caplog.at_level("DEBUG", "filelock"):
        caplog.clear()
        for options in ({"timeout": 0}, {"blocking": False}):
            with pytest.raises(filelock.Timeout):
                filelock.FileLock(path).acquire(**options)
    assert [one.message.split()[0] for one in caplog.records] == [
        "Attempting", "Timeout", "Attempting", "Failed",
    ]  # fmt: skip


def test_its_import_takes_no_modules_that_take_long():
    place = os.path.dirname(os.path.dirname(filelock.__path__[0]))
    code = (
        f"import sys; sys.path.append({place!r}); import semlock; before = set(sys.modules)\n"
        "import semlock.filelock\n"
        "print(*(n for n in set(sys.modules) - before if not n.startswith('semlock.')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() in ([], ["math"])


@linux
@pytest.mark.parametrize("kind", ["FileLock", "SoftFileLock"])
def test_one_that_takes_it_again_and_again_makes_way_for_those_that_wait(path, kind):
    lock = getattr(filelock, kind)(path)
    with Child("import semlock.filelock") as waiter:
        with lock:
            waiter.send(f"semlock.filelock.{kind}({path!r}).acquire()")
            queue = f"{os.path.dirname(path)}/.semlock-*.queue/*.who"
            wait_until(lambda: glob.glob(queue), "it stands in the queue")
            waiter.stop()
        # The lock is left to it for a fifth of a second, and then it counts as stopped.
        longest, end = 0.0, monotonic() + PATIENCE
        while longest < 0.15 and monotonic() < end:
            began = monotonic()
            with lock:
                longest = max(longest, monotonic() - began)
    assert longest >= 0.15
    semlock.clean(os.path.dirname(path))


@pytest.mark.parametrize("kind", ["FileLock", "SoftFileLock"])
def test_a_relative_path_is_that_of_the_directory_at_each_acquire(tmp_path, monkeypatch, kind):
    lock = getattr(filelock, kind)("a.lock")
    for name in ("one", "two", "two"):
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        with lock:
            assert lock._lock_path == str(place / "a.lock")
            assert (place / "a.lock").exists()
