"""Each operation on Windows, with each fault at each of the core's calls.

What is done and what must be true afterwards is in ``windows_ops`` and ``common_ops``; a fault
is an error before or after the call was made, the same error for ever, or the end of the
process.  Then who is denied something, and who else has the file open.
"""

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import semlock
import windows_calls
from actors import ActorError
from support import share
from windows_calls import WindowsActor, bytes_at

pytestmark = pytest.mark.skipif(
    sys.platform != "win32", reason="the table of imports is that of Windows"
)

SOURCE = Path(windows_calls.__file__).with_name("windows_ops.py")
# Read from the sources: importing them would replace the imports of this process.
NAMED = [
    found
    for source in (SOURCE.with_name("common_ops.py"), SOURCE)
    for found in re.findall(
        r"^@operation(.*)\ndef (\w+)", source.read_text(encoding="utf-8"), re.MULTILINE
    )
]
EVERY = [name for _, name in NAMED]
SHORT = [name for options, name in NAMED if not re.search("(long|costly)=True", options)]
KILLED = [name for options, name in NAMED if "kills=True" in options]

# What the core calls that is no call of the system, or none that can fail.
HARMLESS = re.compile(
    r"_|Py|mem|str|abort$|calloc$|free$|fputc$|fwrite$|localeconv$|malloc$|realloc$|vfprintf$"
    r"|wcs|lstr|is(upper|lower|space)$|Current|GetCurrent|(Get|Set)LastError$|GetTickCount64$"
    r"|GetSystemTime|QueryPerformance|SwitchToThread$"
    r"|(Delete|Enter|Initialize|Leave)CriticalSection|IsDBCSLeadByteEx$|InitializeSListHead$"
    r"|(MultiByteTo|)WideChar|Tls|Virtual|Rtl"
    r"|IsDebuggerPresent$|DisableThreadLibraryCalls$"
    r"|IsProcessorFeaturePresent$|(Set|)UnhandledExceptionFilter$|TerminateProcess$"
)


def sweep(name: str, directory: Path, what: str) -> dict:
    """Do an operation with every fault, and see nothing wrong with it."""
    code = "import runpy; runpy.run_module('windows_ops', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        windows_calls.python(code, name, str(directory), what),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tempfile.gettempdir(),
        text=True,
    )
    now = directory / "now"
    at = now.read_text(encoding="utf-8") if now.exists() else "the beginning"
    assert done.returncode == 0, f"it ended or hung at {at}"
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["leaked"] <= 0
    assert report["calls"]
    return report


@pytest.mark.parametrize("name", SHORT)
def test_ends_held_or_in_a_clear_error_with_nothing_left(name, tmp_path):
    report = sweep(name, tmp_path, "errors")
    assert report["cases"] >= len(report["calls"]) * 2


@pytest.mark.stress
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", EVERY)
def test_the_same_with_more_errors(name, tmp_path):
    report = sweep(name, tmp_path, "all-errors")
    assert report["cases"] >= len(report["calls"]) * 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in KILLED else [pytest.mark.stress])
        for name in EVERY
    ],
)
def test_whatever_it_is_killed_at_others_go_on_and_clear_up(name, tmp_path):
    report = sweep(name, tmp_path, "kills")
    assert report["cases"] == len(report["calls"]) + 1


def test_the_table_knows_every_call_of_the_core():
    imported = {name for name in windows_calls.core_imports() if not HARMLESS.match(name)}
    assert imported <= windows_calls.SIGNATURES.keys()
    assert {"CreateFileW", "LockFileEx", "SetFileInformationByHandle"} <= imported


@pytest.fixture
def actor(path):
    """Another process, whose calls can be refused."""
    one = WindowsActor(path)
    yield one
    one.close()


# ---------------------------------------------------------------- what a wait may not do


def test_a_wait_that_fails_is_not_over_before_its_time(actor, path):
    with semlock.Lock(path):
        actor.do(f"refuse('WaitForMultipleObjects', {windows_calls.NO_RESOURCES})")
        actor.have("wait", "waits.Wait((lock._native,))")
        actor.have("until", "native.now_ns() + 50_000_000")
        assert not actor.do("wait.wait(until) == native.TIME and native.now_ns() < until")
        actor.do("wait.end()")


# ---------------------------------------------------------------- who is denied something


@pytest.fixture
def dead(path):
    """The lock of a process that has ended while it held it."""
    windows_calls.leave_dead_lock(path)
    return path


TAKES = ["lock.try_acquire()", "lock.acquire(timeout=0)", "lock.acquire(timeout=30)"]


@pytest.mark.parametrize(
    "call", ["CreateFileW new", "SetFileInformationByHandle rename", "WriteFile"]
)
@pytest.mark.parametrize("error", ["ACCESS_DENIED", "SHARING_VIOLATION"])
def test_what_is_denied_is_an_error_and_no_contention(actor, names, call, error):
    code = getattr(windows_calls, error)
    actor.do(f"refuse({call!r}, {code})")
    for take in TAKES:
        with pytest.raises(ActorError, match=rf"PermissionError: .*WinError {code}\b"):
            actor.do(take)
        assert not actor.do("lock.held")
        assert names() == []


@pytest.mark.parametrize("code", [2, 3, 123, 206])
def test_a_path_that_cannot_be_is_an_error_and_no_contention(actor, names, code):
    actor.do(f"refuse('SetFileInformationByHandle rename', {code})")
    for take in TAKES:
        with pytest.raises(ActorError, match=r"LockPathError|OSError|FileNotFoundError"):
            actor.do(take)
        assert names() == []


def test_a_dead_lock_that_may_not_be_removed_counts_as_held_and_stays(actor, dead):
    left = bytes_at(dead)
    actor.do(f"refuse('CreateFileW delete', {windows_calls.ACCESS_DENIED})")
    assert actor.do("lock.try_acquire()") is False
    for timeout in (0, 0.2):
        with pytest.raises(ActorError, match="LockTimeoutError"):
            actor.do(f"lock.acquire(timeout={timeout})")
    assert bytes_at(dead) == left


def test_a_lock_that_may_not_be_read_counts_as_held(actor, dead):
    actor.do(f"refuse('CreateFileW read', {windows_calls.ACCESS_DENIED})")
    assert actor.do("lock.try_acquire()") is False
    with pytest.raises(ActorError, match="LockTimeoutError"):
        actor.do("lock.acquire(timeout=0.05)")
    assert actor.do("semlock.status(path).state") == "unreadable"
    actor.do("calls.work_as_usual()")
    actor.do("lock.acquire(timeout=1)")


def test_a_lock_that_is_on_its_way_out_is_no_longer_what_was_judged(actor, dead):
    """Until the last one closes it, it can't be opened and is still there."""
    actor.have("seen", "native.look(path.encode())")
    assert actor.do("native.confirm(path.encode(), seen)")
    actor.do(f"refuse('CreateFileW look', {windows_calls.ACCESS_DENIED})")
    assert not actor.do("native.confirm(path.encode(), seen)")


@pytest.fixture
def of_another_user(dead):
    """A dead lock that this user may not read or remove, or skip where that can't be had."""
    everybody = "*S-1-1-0"
    for where, denied in ((dead, "(R,W,D)"), (os.path.dirname(dead), "(DC)")):
        command = ["icacls", where, "/deny", f"{everybody}:{denied}"]
        subprocess.run(command, check=False, capture_output=True)
    try:
        try:
            bytes_at(dead)
        except PermissionError:
            pass
        else:
            pytest.skip("nothing is denied to who runs the tests")
        yield dead
    finally:
        for where in (os.path.dirname(dead), dead):
            command = ["icacls", where, "/remove:d", everybody]
            subprocess.run(command, check=False, capture_output=True)


def test_a_lock_that_belongs_to_another_user_is_held_and_stays(of_another_user):
    lock = semlock.Lock(of_another_user)
    assert lock.try_acquire() is False
    with pytest.raises(semlock.LockTimeoutError):
        lock.acquire(timeout=0.05)
    assert semlock.status(of_another_user).state == "unreadable"
    with pytest.raises(semlock.LockHeldError):
        semlock.remove(of_another_user)
    with pytest.raises(PermissionError):
        semlock.remove(of_another_user, force=True)
    assert os.path.exists(of_another_user)


# ---------------------------------------------------------------- who else has it open

# How a file can be opened that is not written to, and what others may then do with it.
READ, WRITE, DELETE = 1, 2, 4
SHARINGS = [READ, READ | WRITE, READ | DELETE, READ | WRITE | DELETE]


@contextlib.contextmanager
def open_for_reading(path, sharing):
    """Have a file open, or nothing if that is refused: whether it is open."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.CreateFileW.restype = ctypes.c_void_p
    kernel.CreateFileW.argtypes = [
        ctypes.c_wchar_p,
        *windows_calls.SIGNATURES["CreateFileW"][3:],
    ]
    handle = kernel.CreateFileW(path, 0x80000000, sharing, None, 3, 0, None)
    if handle == ctypes.c_void_p(-1).value:
        assert ctypes.get_last_error() == windows_calls.SHARING_VIOLATION
        yield False
        return
    try:
        yield True
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_reader_of_a_held_lock_delays_its_release(path, names, sharing):
    lock = semlock.Lock(path)
    for _ in range(4):  # the first releases delete the file, and later ones keep it
        with contextlib.ExitStack() as readers:
            lock.acquire(timeout=0)
            opened = readers.enter_context(open_for_reading(path, sharing))
            # Who would not let it be written to or deleted does not get it open at all.
            assert opened == (sharing == READ | WRITE | DELETE)
            lock.refresh()
            lock.release()
            assert not os.path.exists(path)
            lock.acquire(timeout=0)
            lock.release()
    semlock.clean(os.path.dirname(path))
    assert names() == []


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_dead_lock_is_taken_as_soon_as_its_reader_lets_it_be_deleted(dead, sharing):
    lock = semlock.Lock(dead)
    with open_for_reading(dead, sharing) as opened:
        assert opened
        if sharing & DELETE:
            lock.acquire(timeout=0)
            lock.release()
        else:
            assert lock.try_acquire() is False
            with pytest.raises(semlock.LockTimeoutError):
                lock.acquire(timeout=0.05)
    with lock.acquire(timeout=5):
        pass


def test_a_reader_sees_the_record_that_it_opened_or_the_next_one_whole(path):
    lock = semlock.Lock(path)
    for _ in range(2):
        with lock:
            pass
    with lock, open(path, "rb", opener=share) as reader:
        before = reader.read()
        lock.release()
        lock.acquire(timeout=0)
        reader.seek(0)
        assert reader.read() in (before, bytes_at(path))
