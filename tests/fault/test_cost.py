"""What an operation costs, in numbers that are the same on every run.

Time is asserted nowhere: it depends on the machine and its mood.  The speed of a lock file
is the number of its system calls, which strace lists, and the length of the way to them,
which callgrind counts in instructions.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

import semlock
from crowd import tickets
from support import Child, state_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="strace and callgrind count calls of Linux"
)

HELD = 1000
MANY = 1000  # pairs or failed tries of which the instructions are counted

# Before 3.11 every call of a Python function was a way through the interpreter's own C.
PAIR_INSTRUCTIONS = 12_000 if sys.version_info >= (3, 11) else 14_000
TRY_INSTRUCTIONS = 6_000

# One name for what a system call does, however the C library and the processor spell it.
NAMES = {
    "lstat": "stat",
    "fstat": "stat",
    "newfstatat": "stat",
    "fstatat64": "stat",
    "statx": "stat",
    "faccessat": "access",
    "faccessat2": "access",
    "open": "openat",
    "unlinkat": "unlink",
    "renameat": "rename",
    "renameat2": "rename",
    "prlimit64": "getrlimit",
    "fstatfs64": "fstatfs",
    "fcntl64": "fcntl",
    "_llseek": "lseek",
}

# Python's memory, which comes and goes at its own times.
MEMORY = {"brk", "mmap", "munmap", "mremap", "madvise"}

# Before a claim is used: is it of the user and group that run now, which only a process is asked
# that may change them, and is its descriptor ours still?  The second lseek asks the latter again:
# anything may be closed while it is held.
WHO = ["geteuid", "getegid"]
PAIR = ["lseek", "pwrite64", "linkat", "lseek", "flock", "stat", "unlink", "flock"]


def _may_become_another_user() -> bool:
    with open("/proc/self/status", encoding="ascii") as status:
        permitted = int(status.read().partition("CapPrm:")[2].split()[0], 16)
    one = len({*os.getresuid()}) == len({*os.getresgid()}) == 1
    return not one or permitted & 0b11000000 != 0  # CAP_SETGID, CAP_SETUID


ASKED = WHO if sys.platform == "linux" and _may_become_another_user() else []
KEPT_PAIR = [*ASKED, *PAIR]
FRESH_PAIR = [
    "access", "openat", "stat", *ASKED, "lseek", "fstatfs", "getrlimit", "fcntl", "pwrite64",
    "linkat", "lseek", "flock", "stat", "unlink", "close",
]  # fmt: skip

TRACED = """
import os, sys, time
import semlock
from semlock._core import capi

directory, held, many = sys.argv[1], sys.argv[2], sys.argv[3:]
FAR = 2**62


def begin(name, burst=False):
    # How slow strace is must not decide whether this process has kept others out for long.
    for state in capi.POOL.bursts:
        state.began = 0
        state.released = FAR if burst else 0
    for slot in capi.POOL.slots:
        slot.file.asked = FAR  # nor that a second is over, and the umask to be asked for
    try:
        os.stat(f"/semlock-mark/{name}")
    except OSError:
        pass


def pairs(durability):
    # A directory of its own, because what is kept is kept for a directory.
    place = os.path.join(directory, durability)
    os.mkdir(place)
    lock = semlock.Lock(os.path.join(place, "a.lock"), durability=durability)
    with lock:
        pass
    lock = semlock.Lock(os.path.join(place, "b.lock"), durability=durability)
    capi.POOL.keep = 0
    begin(f"fresh pair, {durability}")
    with lock:
        pass
    begin("")
    capi.POOL.keep = 16
    for _ in range(3):
        with lock:
            pass
    begin(f"kept pair, {durability}")
    with lock:
        pass
    begin(f"kept pair that ends a burst, {durability}", burst=True)
    with lock:
        pass
    begin("")
    other = semlock.Lock(os.path.join(place, "c.lock"), durability=durability)
    begin(f"kept pair of a new object, {durability}")
    with other:
        pass
    begin("")


for durability in ("none", "data", "full", "safe"):
    pairs(durability)

lock = semlock.Lock(held)
assert not lock.try_acquire()  # sees it, and judges its holder
lock._native.look_at = FAR  # however slow strace is: no time to judge it again
begin("failed try")
assert not lock.try_acquire()
begin("")

locks = [semlock.Lock(path) for path in many]
time.sleep(0.1)  # so that the time of the next change of the directory is another one
assert not any(semlock.try_acquire_many(locks))
for lock in locks:
    lock._native.look_at = FAR
    lock._native.seen_in = 0
begin("batch")
assert not any(semlock.try_acquire_many(locks))
begin("batch, the directory as before")
assert not any(semlock.try_acquire_many(locks))
begin("")
os.close(os.open(os.path.join(os.path.dirname(many[0]), "new"), os.O_CREAT))
begin("batch, the directory changed")
assert not any(semlock.try_acquire_many(locks))
begin("")
"""

COUNTED = """
import sys
import semlock

free, held, pairs, tries = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
lock = semlock.Lock(free, durability="none")
other = semlock.Lock(held, durability="none")


def pair(count):
    for _ in range(count):
        with lock:
            pass


def failed_try(count):
    for _ in range(count):
        if other.try_acquire():
            raise SystemExit("the lock is not held")


pair(200)
failed_try(200)  # the interpreter knows both by now, and the holder has been judged
with lock:
    assert lock.info.witness == "kept", "the witness is not to be had here"
other._native.look_at = 2**62
pair(pairs)
failed_try(tries)
"""


def tool(name: str, *probe: str) -> str:
    """Find a tool that works; without it the test is skipped, but not where it must run."""
    path = shutil.which(name)
    reason = f"{name} is not installed"
    if path is not None:
        found = subprocess.run([path, *probe], capture_output=True, text=True)
        if found.returncode == 0:
            return path
        reason = f"{name} does not work here: {found.stderr.strip()[-200:]}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def directory() -> Iterator[str]:
    """In memory where there is such a place: there every call is known to work."""
    shm = "/dev/shm"
    usable = os.path.isdir(shm) and os.access(shm, os.W_OK)
    with tempfile.TemporaryDirectory(dir=shm if usable else None) as found:
        yield found


@pytest.fixture(scope="module")
def held(directory: str) -> Iterator[list[str]]:
    """Many locks that another process, this one, holds."""
    os.mkdir(os.path.join(directory, "held"))
    paths = [os.path.join(directory, "held", f"{i:04}.lock") for i in range(HELD)]
    locks = [semlock.Lock(path, durability="none") for path in paths]
    for lock in locks:
        lock.acquire()
    yield paths
    for lock in locks:
        lock.release()


@pytest.fixture(scope="module")
def calls(directory: str, held: list[str]) -> dict[str, list[str]]:
    """The system calls of every marked part of the traced program."""
    strace = tool("strace", "-o", os.devnull, sys.executable, "-c", "pass")
    log = os.path.join(directory, "calls.log")
    # A bare name, and not a path: the program must find the installed package.
    subprocess.run(
        [strace, "-o", log, sys.executable, "-c", TRACED, directory, held[0], *held],
        check=True,
        cwd=directory,
    )
    found: dict[str, list[str]] = {}
    part = ""
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            mark = re.search(r'"/semlock-mark/([^"]*)"', line)
            if mark:
                part = mark[1]
                found.setdefault(part, [])
            elif part and (call := re.match(r"(\w+)\(", line)):
                name = NAMES.get(call[1], call[1])
                if name not in MEMORY:
                    found[part].append(name)
    return found


def test_a_failed_try_on_a_lock_seen_before_is_one_system_call(calls):
    assert calls["failed try"] == ["access"]


def test_a_pair_with_a_kept_claim_writes_links_and_removes_exactly(calls):
    assert calls["kept pair, none"] == KEPT_PAIR


def test_a_long_burst_costs_one_look_at_who_waits(calls):
    assert calls["kept pair that ends a burst, none"] == ["access", *KEPT_PAIR]


def test_a_new_object_uses_what_another_object_left_in_its_directory(calls):
    assert calls["kept pair of a new object, none"] == KEPT_PAIR


def test_a_pair_without_a_kept_claim_makes_one_file_and_leaves_none(calls):
    assert calls["fresh pair, none"] == FRESH_PAIR


@pytest.mark.parametrize(("durability", "sync"), [("full", "fsync"), ("data", "fdatasync")])
def test_durability_is_one_sync_of_a_fresh_file_before_it_is_visible(calls, durability, sync):
    expected = list(FRESH_PAIR)
    expected.insert(expected.index("linkat"), sync)
    assert calls[f"fresh pair, {durability}"] == expected


@pytest.mark.parametrize("durability", ["full", "data"])
def test_durability_is_one_sync_of_data_of_a_kept_file(calls, durability):
    expected = list(KEPT_PAIR)
    expected.insert(expected.index("linkat"), "fdatasync")
    assert calls[f"kept pair, {durability}"] == expected


@pytest.mark.parametrize(("part", "expected"), [("fresh", FRESH_PAIR), ("kept", KEPT_PAIR)])
def test_in_memory_the_default_needs_neither_a_sync_nor_a_mark(calls, part, expected):
    assert calls[f"{part} pair, safe"] == expected


def test_a_batch_reads_the_directory_and_asks_for_no_single_lock(calls):
    ahead = {
        "batch": ["openat", "stat", "fstatfs"],
        "batch, the directory changed": ["stat", "openat", "stat"],
    }
    for name, first in ahead.items():
        batch = calls[name]
        assert batch == [*first, *["getdents64"] * (len(batch) - len(first) - 1), "close"]
        assert len(batch) < HELD / 20


def test_a_batch_reads_no_directory_that_is_as_before(calls):
    assert calls["batch, the directory as before"] == ["stat"]


WAITER = """
import asyncio, ctypes, os, semlock, sys
path = sys.argv[1]

def keeping(lock):
    # With a kept claim in its directory.
    for _ in range(2):
        with semlock.Lock(path + ".other"):
            pass
    return lock

lock = %s
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # who is no parent may trace it
os.write(1, b"ready")
os.read(0, 1)
if hasattr(lock, "__aenter__"):
    asyncio.run(lock.acquire())
else:
    lock.acquire()
os.write(1, b"won")
"""
QUEUED = 0.2  # seconds: longer than a wait without a ticket, or without its .who file
SLEEPS = ("ppoll(", "epoll_wait(")
WIN = ["lseek", "pwrite64", "linkat"]
# One more: has a waiter that asked earlier come back to the queue?
FAIR_WIN = ["stat", *WIN]
# Which of several it is, is read from the event source, after a look that the source is ours.
READ = ["fcntl", "read"]
# The witness and the record of a holder, and whether its process is there.
JUDGED = ["openat", "fcntl", "stat", "fstatfs", "pread64", "pidfd_open"]
REMOVED = ["flock", "pread64", "fcntl", "stat", "unlink", "flock", "close"]
WAITS = {
    "plain": ("semlock.Lock(path)", WIN),
    "fair": ("semlock.Lock(path, fair=True)", FAIR_WIN),
    # Whose the kept claim is was asked before the sleep.
    "kept": ("keeping(semlock.Lock(path))", WIN),
    "fair, kept": ("keeping(semlock.Lock(path, fair=True))", FAIR_WIN),
    "three slots, kept": ("keeping(semlock.SlotLock(path, 3))", [*READ, *WIN]),
    "writer": ("semlock.SharedLock(path)", WIN),
    "one slot": ("semlock.SlotLock(path, 1)", WIN),
    "one fair slot": ("semlock.SlotLock(path, 1, fair=True)", FAIR_WIN),
    "three slots": ("semlock.SlotLock(path, 3)", [*READ, *WIN]),
    "three fair slots": ("semlock.SlotLock(path, 3, fair=True)", [*READ, *FAIR_WIN]),
    "any": (  # Python tries
        "type('', (), {'acquire': lambda _: semlock.acquire_any([semlock.Lock(path)])})()",
        ["rt_sigprocmask", *WIN],
    ),
    # Its file is in another directory, so Python looks whether the writer's is gone.
    "reader": (
        "type('', (), {'acquire': semlock.SharedLock(path).acquire_shared})()",
        ["rt_sigprocmask", "stat", *WIN],
    ),
    "fair reader": (
        "type('', (), {'acquire': semlock.SharedLock(path, fair=True).acquire_shared})()",
        ["stat", "rt_sigprocmask", "stat", *WIN],
    ),
    # Its loop goes round once between the event and the task.
    "task": ("semlock.AsyncLock(path)", [*READ, "epoll_wait", *WIN]),
    "fair task": ("semlock.AsyncLock(path, fair=True)", [*READ, "stat", "epoll_wait", *WIN]),
    "task, three slots": (
        "semlock.AsyncSlotLock(path, 3)",
        [*READ, "epoll_wait", "getpid", *WIN],
    ),
    "task, three fair slots": (
        "semlock.AsyncSlotLock(path, 3, fair=True)",
        [*READ, "stat", "epoll_wait", "getpid", *WIN],
    ),
}


@pytest.mark.parametrize("queued", [False, True], ids=["soon", "from the queue"])
@pytest.mark.parametrize(("code", "expected"), WAITS.values(), ids=WAITS.keys())
def test_the_system_calls_between_wake_and_win(directory, tmp_path, code, expected, queued):
    def prepare(path):
        slots = re.search(r"path, (\d)", code)
        numbers = range(1, int(slots[1]) + 1) if slots else []
        held = [semlock.Lock(f"{path}.{n}") for n in numbers] or [semlock.Lock(path)]
        for lock in held:
            lock.acquire()
        yield lambda _: held[len(held) // 2].release()
        for lock in held:
            if lock.held:
                lock.release()

    log, sleeps = tmp_path / "calls", expected.count("epoll_wait")
    assert traced_wait(directory, log, code, queued, prepare, sleeps) == expected


def traced_wait(directory, log, code: str, queued: bool, prepare, sleeps: int = 0) -> list[str]:
    """Name the calls between the wake and the win; so many sleeps are among them.

    ``prepare`` holds the lock of a path, gives what frees it, which is told the waiter's PID, and
    tidies up.  The first sleeps of a wait are short.  Where one of them ended by itself before the
    lock was free, on a busy machine, all is done once more.
    """
    # A task stands in the queue only where that is fair, a wait for any only when it lost a race.
    wanted = queued and ("AsyncLock" not in code or "fair" in code) and "_any" not in code
    for _ in range(20):
        path = os.path.join(tempfile.mkdtemp(dir=directory), "wait.lock")
        steps = prepare(path)
        lines = trace(log, code, path, QUEUED if queued else 0, next(steps))
        next(steps, None)
        slept = [i for i, line in enumerate(lines) if line.startswith(SLEEPS)][-1 - sleeps]
        stands = any(".who" in line for line in lines)
        if stands is wanted and not lines[slept].endswith(("= 0", "= 0 (Timeout)")):
            names = [line.partition("(")[0] for line in lines[slept + 1 :]]
            return [NAMES.get(name, name) for name in names]
    raise AssertionError(f"the lock was never freed in the sleep that was meant: {lines}")


def trace(log, code: str, path: str, before: float, end) -> list[str]:
    """Trace a waiter, up to its win: ``end`` is called in its first sleep after some seconds."""
    strace = tool("strace", "-o", os.devnull, sys.executable, "-c", "pass")
    with contextlib.ExitStack() as stack:
        waiter = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", WAITER % code, path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.path.dirname(path),
            )
        )  # fmt: skip
        stack.callback(waiter.kill)
        assert waiter.stdout.read(5) == b"ready"
        # From here on: to trace how an interpreter starts takes a second.
        tracer = stack.enter_context(
            subprocess.Popen(
                [strace, "-o", str(log), "-p", str(waiter.pid)], stderr=subprocess.PIPE
            )
        )
        stack.callback(waiter.kill)  # the tracer ends with it
        assert b"attached" in tracer.stderr.readline()
        waiter.stdin.write(b".")
        waiter.stdin.flush()
        asked = time.monotonic()

        def sleeps() -> bool:
            traced = log.read_text(errors="replace")
            return "inotify_add_watch" in traced and traced.splitlines()[-1].startswith(SLEEPS)

        wait_until(lambda: sleeps() and time.monotonic() - asked > before, "it sleeps")
        end(waiter.pid)
        assert waiter.stdout.read() == b"won"
        tracer.wait(30)
    lines = log.read_text(errors="replace").splitlines()
    return lines[: 1 + max(i for i, line in enumerate(lines) if line.startswith("linkat("))]


@pytest.mark.parametrize("queued", [False, True], ids=["soon", "from the queue"])
def test_between_the_death_of_a_holder_and_the_win_nothing_is_looked_at_twice(
    directory, tmp_path, queued
):
    """A try at the event, one judgement, one removal, one try; Python does none of it.

    The event comes a moment before the kernel drops the witness.  So that the try finds it dropped,
    the waiter is stopped meanwhile.
    """

    def prepare(path):
        with Child() as holder:
            holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")

            def die(waiter: int) -> None:
                os.kill(waiter, signal.SIGSTOP)
                wait_until(lambda: state_of(waiter) in ("T", "t"), "it is stopped")
                holder.kill()
                os.kill(waiter, signal.SIGCONT)

            yield die

    calls = traced_wait(directory, tmp_path / "calls", WAITS["plain"][0], queued, prepare)
    assert calls == [*WIN, *JUDGED, *REMOVED, *WIN]


def test_a_dying_holder_is_left_the_processor_until_it_has_ended(directory, tmp_path):
    """Its witness is free before its process has ended: the judgement sleeps until then.

    The holder executes a program that ends at once, so the waiter meets it in between; on a busy
    machine not each time.
    """

    def prepare(path):
        with Child() as holder:
            holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
            yield lambda _: holder.send("os.execvp('true', ['true'])")

    log, code = tmp_path / "calls", WAITS["plain"][0]
    for _ in range(10):
        # It sleeps once for the event, and once, 5 ms at most, for the end.
        calls = traced_wait(directory, log, code, False, prepare, sleeps=1)
        if calls == [*WIN, *JUDGED, "ppoll", "close", *REMOVED, *WIN]:
            assert re.search(r"ppoll.*tv_nsec=5000000}, NULL, \d+\) = 1 ", log.read_text())
            return
    pytest.fail(f"each time it did something else: {calls}")


CROWDED = """
import semlock, sys, time
from semlock._core.capi import POOL
lock = semlock.Lock(sys.argv[1], durability="none")
for _ in range(int(sys.argv[2])):
    with lock:
        time.sleep(0.002)
    # However slow strace is: it had the lock for long, and asks again at once.
    for state in POOL.bursts:
        state.began, state.released = 0, 2**62
"""
TURNS = 25
# Of one that waits behind others: its ticket, who is before it, and that one's ticket.
JOIN = [
    "mknodat", "openat", "flock", "stat", "fcntl",
    "openat", "stat", "getdents64", "getdents64", "close",
    "openat", "stat", "read", "fcntl", "ppoll",
]  # fmt: skip
# That one says that it was the first, and is gone.  Its own ticket is in its place: it tries.
NEXT = ["fcntl", "fcntl", "read", "fcntl", "close", "fcntl", "stat"]
WON = ["fcntl", "stat", "flock"]
IN_CROWD = 52  # of a whole turn, beside what Python and the program do


def test_a_turn_in_a_crowd_asks_for_nothing_twice(directory, tmp_path):
    """Who comes again judges the holder once; who is told to be first tries."""
    path = os.path.join(tempfile.mkdtemp(dir=directory), "crowd.lock")
    strace = tool("strace", "-o", os.devnull, sys.executable, "-c", "pass")
    log = tmp_path / "calls"
    program = [sys.executable, "-c", CROWDED, path]
    others = [subprocess.Popen([*program, "100000"], cwd=directory) for _ in range(3)]
    try:
        wait_until(lambda: len(tickets(path)) == 3, "there is a crowd")
        traced = [strace, "-o", str(log), *program, str(TURNS)]
        subprocess.run(traced, cwd=directory, check=True, timeout=60)
    finally:
        for other in others:
            other.kill()
            other.wait()
    semlock.clean(os.path.dirname(path))
    calls = [line.partition("(")[0] for line in log.read_text(errors="replace").splitlines()]
    calls = [NAMES.get(call, call) for call in calls]
    begins = [i for i, call in enumerate(calls) if call == "mknodat"]
    turns = [calls[i:j] for i, j in itertools.pairwise(begins)]
    sleeps = ("clock_nanosleep", "clock_gettime", "getrlimit")
    turns = [[call for call in turn if call not in sleeps] for turn in turns]
    assert len(turns) > TURNS / 2
    turns.sort(key=len)
    usual = turns[len(turns) // 2]
    expected = [*JOIN, *NEXT, *ASKED, *WIN, *WON]
    assert usual[: len(expected)] == expected
    assert len(usual) <= IN_CROWD, " ".join(usual[len(expected) :])


@pytest.fixture(scope="module")
def instructions(directory: str, held: list[str]) -> dict[str, float]:
    """The instructions of a pair, and of a failed try: what a program that does more takes more."""
    if platform.python_implementation() != "CPython":
        pytest.skip("the bars are for CPython: a JIT compiler's instructions say nothing")
    if sysconfig.get_config_var("Py_DEBUG"):
        pytest.skip("the bars are for a CPython without its debugging checks")
    valgrind = tool("valgrind", "--tool=none", "-q", "true")
    callgrind = [valgrind, "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    # What another test makes them compile, or not, must be the same for all three.
    quiet = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""}

    def words(what: str, pairs: int, tries: int) -> list[str]:
        # Each has a directory of its own: one that finds what another has there loads what judges
        # that.
        place = os.path.join(directory, what)
        os.mkdir(place)
        lock = os.path.join(place, "a.lock")
        return [sys.executable, "-c", COUNTED, lock, held[0], str(pairs), str(tries)]

    options = {"cwd": directory, "env": {**os.environ, **quiet}}
    # It compiles all that they import, also what only a failed try needs.
    subprocess.run(words("first", 1, 1), check=True, **options)
    # Side by side, because each takes seconds, and the bill is the same for all that.
    programs = {
        what: subprocess.Popen(
            [*callgrind, *words(what, pairs, tries)],
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        for what, pairs, tries in (("bare", 0, 0), ("pair", MANY, 0), ("try", 0, MANY))
    }  # fmt: skip
    counts = {}
    for what, program in programs.items():
        with program:
            report = program.stderr.read() if program.stderr else ""
        collected = re.search(r"Collected : (\d+)", report)
        assert program.returncode == 0, report
        assert collected is not None, report
        counts[what] = int(collected[1])
    return {what: (counts[what] - counts["bare"]) / MANY for what in ("pair", "try")}


def test_a_pair_stays_below_its_bar_of_instructions(instructions):
    assert instructions["pair"] <= PAIR_INSTRUCTIONS


def test_a_failed_try_stays_below_its_bar_of_instructions(instructions):
    assert instructions["try"] <= TRY_INSTRUCTIONS
