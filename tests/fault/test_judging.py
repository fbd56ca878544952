"""The core judges dead holders of semlock's own records, and only as Python's rule would."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import semlock
from semlock._core import capi
from semlock._core.identity import this_process
from semlock._locks.base import BaseLock
from support import Child, state_of, wait_until, watched_by

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere no witness is kept, or Wine judges"
)

WITNESS = 2**61
ENDED = ("gone", "zombie", "recycled")


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[str, tuple[int, int]]]:
    """Give the number and the start time of a process in each state."""
    runs, stopped, zombie, gone = (sleeper() for _ in range(4))
    start = {process: capi.start_time(process.pid) for process in (runs, stopped, zombie, gone)}
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(stopped.pid) == "T", "it is stopped")
    os.kill(zombie.pid, signal.SIGKILL)
    wait_until(lambda: state_of(zombie.pid) == "Z", "it is a zombie")
    gone.kill()
    gone.wait()
    yield {
        "runs": (runs.pid, start[runs]),
        "stopped": (stopped.pid, start[stopped]),
        "zombie": (zombie.pid, start[zombie]),
        "gone": (gone.pid, start[gone]),
        "recycled": (runs.pid, start[runs] - 1),
    }
    for process in (runs, stopped, zombie):
        process.kill()
        process.wait()


def lines(pid: int, start: int) -> list[bytes]:
    me = this_process()
    return [
        b"pid=%d" % pid, b"timestamp=1700000000", b"tag=a build", b"host=" + me.host.encode(),
        b"start=%d" % start, b"boot=" + me.boot.encode(), b"pidns=%d" % me.pidns,
        b"token=" + b"0123456789abcdef" * 2, b"witness=kept",
    ]  # fmt: skip


def text(some: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in some)


def odd_values(value: bytes) -> list[bytes]:
    """Give values that are no good, or that only lenient readers take for the same."""
    return [
        b"", b" " + value, value + b" ", value + b"\t", value + b"\r", b"0" + value, b"+" + value,
        b"-" + value, b"0x" + value, value + b".0", value + b"0", value[:-1], value[1:],
        value.upper() + b"z", value + b"\0", value + "é".encode(), value + b"\xff", b"9" * 30,
        b"0" * 30 + value, b"4294967296", b"2147483648", b"18446744073709551616", b"0", b"1",
        b"left", b"none", b"over", b"KEPT",
    ]  # fmt: skip


def variations(good: list[bytes]) -> Iterator[bytes]:
    """Give records that are wrong in one thing each."""
    whole = text(good)
    for i, line in enumerate(good):
        key, _, value = line.partition(b"=")
        yield text(good[:i] + good[i + 1 :])
        yield text([*good[:i], line, *good[i:]])
        for odd in odd_values(value):
            changed = key + b"=" + odd
            yield text([*good[:i], changed, *good[i + 1 :]])
            yield text([*good[:i], changed, *good[i:]])
            yield text([*good[: i + 1], changed, *good[i + 1 :]])
        for other in (
            key.upper() + b"=" + value,
            b" " + line,
            key + b" = " + value,
            key + value,
        ):
            yield text([*good[:i], other, *good[i + 1 :]])
        for more in (b"", b"timens=4026531834", b"x=1", b"pid=1", b"# note", b"witness=left"):
            yield text([*good[:i], more, *good[i:]])
        if i:
            yield text([*good[: i - 1], good[i], good[i - 1], *good[i + 1 :]])
    yield from (whole[:length] for length in range(len(whole)))
    chance = random.Random(15)
    for at in range(len(whole)):
        yield whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :]
    for _ in range(100):
        some = bytearray(whole)
        for _ in range(chance.randrange(2, 6)):
            some[chance.randrange(len(some))] = chance.choice(b"0123456789abc=\n \r\0\xc3")
        yield bytes(some)
    yield from (whole + more for more in (b"\n", b"x", b"\0", b" ", b"pid=1\n", whole))
    yield whole.replace(b"tag=a build", b"tag=" + b"x" * 2000)
    yield from (b"\0" * len(whole), b'{"pid": 1, "token": "x"}', b"%d\n" % os.getpid())


def judged_by_both(path: str, content: bytes) -> tuple[bool, str | None]:
    """Say whether the core took the lock from the writer of this content; and Python's verdict."""
    with open(path, "wb") as file:
        file.write(content)
    verdict = semlock.status(path).verdict
    lock = semlock.Lock(path, durability="none")
    lock._lay_out()
    outcome = capi.try_lock(lock._native, capi.POOL)
    assert outcome in (capi.OK, capi.HELD, capi.LOOK)
    if outcome == capi.OK:
        lock.release()
    else:
        with open(path, "rb") as file:
            assert file.read() == content, "a file that was not judged dead was changed"
        os.unlink(path)
    return outcome == capi.OK, verdict


@pytest.fixture
def path(memory) -> str:
    return os.path.join(memory, "dead.lock")


@pytest.fixture
def memory(tmp_path) -> Iterator[str]:
    """A directory on a local filesystem, where the core trusts a witness."""
    probe = semlock.Lock(tmp_path / "probe.lock", durability="none")
    with probe:
        if probe.info.witness != "kept":
            pytest.skip("no witness is kept here")
    return str(tmp_path)


@pytest.mark.parametrize("state", ["runs", "stopped", *ENDED])
def test_the_core_takes_the_record_of_an_ended_process_and_no_other(path, processes, state):
    dead = state in ENDED
    for left_out in ({}, {2}, {3}, {2, 3}):  # the tag and the host
        some = lines(*processes[state])
        content = text([line for i, line in enumerate(some) if i not in left_out])
        assert judged_by_both(path, content) == (dead, "dead" if dead else "alive")


@pytest.mark.parametrize("state", ["runs", "gone", "recycled"])
def test_what_is_dead_to_the_core_is_dead_by_the_rule(path, processes, state):
    taken = 0
    for content in variations(lines(*processes[state])):
        by_core, verdict = judged_by_both(path, content)
        assert not by_core or verdict == "dead", content
        taken += by_core
    assert taken > 0 or state == "runs"


@pytest.mark.parametrize(
    ("number", "other"),
    [(5, b"boot=00000000-0000-4000-8000-000000000000"), (6, b"pidns=4026530000")],
    ids=["boot", "PID namespace"],
)
def test_another_boot_or_pid_namespace_is_left_to_the_caller(path, processes, number, other):
    some = lines(*processes["gone"])
    some[number] = other
    assert not judged_by_both(path, text(some))[0]


def test_a_taken_witness_keeps_the_lock_of_an_ended_process(path, processes):
    with open(path, "wb") as file:
        file.write(text(lines(*processes["gone"])))
        file.flush()
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, WITNESS, 1, 0)
        fcntl.fcntl(file, 37, request)  # F_OFD_SETLK
        assert not semlock.Lock(path).try_acquire()
    lock = semlock.Lock(path, durability="none")
    assert lock.try_acquire()
    lock.release()


def test_before_the_process_has_named_itself_nothing_is_judged(path, processes):
    this_process()
    name, capi.POOL.boot_id = capi.ffi.string(capi.POOL.boot_id), b""
    try:
        assert judged_by_both(path, text(lines(*processes["gone"]))) == (False, "dead")
    finally:
        capi.POOL.boot_id = name


def test_a_forked_child_names_itself_anew(path):
    this_process()
    pid = os.fork()
    if pid == 0:
        capi.life()
        os._exit(int(capi.POOL.boot_id[0] != b"\0"))
    assert os.waitpid(pid, 0)[1] == 0


# ---------------------------------------------------------------- without a judgement in Python


@pytest.fixture
def no_judge(monkeypatch):
    """Python judges nothing in this test."""

    def judge(*_, **__):
        raise AssertionError("the holder was judged in Python")

    monkeypatch.setattr(BaseLock, "_judge", judge)


def killed_holder(paths: list[str]) -> None:
    with Child() as child:
        child.run(f"locks = [semlock.Lock(p, durability='none') for p in {paths!r}]")
        child.run("[lock.acquire() for lock in locks]; None")
        child.kill()


def test_one_call_takes_a_dead_lock(no_judge, path):
    killed_holder([path])
    lock = semlock.Lock(path)
    assert lock.try_acquire()
    lock.release()


def test_one_call_takes_many_dead_locks(no_judge, memory):
    paths = [os.path.join(memory, f"{i}.lock") for i in range(100)]
    killed_holder(paths)
    locks = semlock.try_acquire_many(paths)
    assert all(locks)
    for lock in locks:
        lock.release()


MAKERS = {
    "plain": lambda path: semlock.Lock(path),
    "fair": lambda path: semlock.Lock(path, fair=True),
    "slots": lambda path: semlock.SlotLock(path, 1),
    "writer": lambda path: semlock.SharedLock(path),
}


@pytest.fixture
def seldom() -> Iterator[None]:
    """A wait does not look by the clock in this test."""
    capi.set_safety(60)
    yield
    capi.set_safety(0)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_a_wait_wins_by_itself_when_the_holder_dies(no_judge, path, seldom, make):
    before = watched_by()
    with Child() as child:
        child.run(f"lock = semlock.Lock({path + ('.1' if make is MAKERS['slots'] else '')!r})")
        child.run("lock.acquire(); None")
        lock = make(path)

        def end() -> None:
            # Not while the first try looks at it: what is just dying then is left to Python.
            wait_until(lambda: watched_by() > before, "it waits")
            child.kill()

        ending = threading.Thread(target=end)
        ending.start()
        try:
            lock.acquire(timeout=20)
        finally:
            ending.join()
        lock.release()


def test_a_holder_that_closed_its_file_keeps_it_until_its_process_ends(no_judge, path, seldom):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        lock = semlock.Lock(path)
        won = threading.Event()

        def take() -> None:
            with lock.acquire(timeout=20):
                won.set()

        waiter = threading.Thread(target=take)
        waiter.start()
        child.run(f"same = lambda fd: os.path.samefile(f'/proc/self/fd/{{fd}}', {path!r})")
        child.run(
            "[os.close(fd) for fd in range(3, 99) if os.path.exists(f'/proc/self/fd/{fd}')"
            " and same(fd)]; None"
        )
        assert not won.wait(0.2)
        child.kill()
        assert won.wait(10), "the end of the process did not wake the waiter"
        waiter.join()


# ---------------------------------------------------------------- what is left to Python


def test_a_policy_is_asked(path):
    killed_holder([path])
    asked = []
    lock = semlock.Lock(path, policy=lambda status: asked.append(status.verdict))
    assert not lock.try_acquire()
    assert asked == ["dead"]


def test_what_another_process_keeps_locked_is_named_as_that(path):
    killed_holder([path])
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock = semlock.Lock(path)
        assert not lock.try_acquire()
        with pytest.raises(semlock.LockTimeoutError, match=r"; dead: .*keeps its file locked"):
            lock.acquire(timeout=0.05)
    with lock.acquire(timeout=20):
        pass


def test_a_listener_is_told_of_the_removal(path):
    from semlock._events import tap

    killed_holder([path])
    told = []

    def listener(event: str, *_: object) -> None:
        told.append(event)

    tap.listen(listener)
    try:
        lock = semlock.Lock(path)
        assert lock.try_acquire()
        lock.release()
    finally:
        tap.unlisten(listener)
    assert told == ["reclaim", "acquire", "release"]
    assert not capi.POOL.watched
