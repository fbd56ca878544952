"""What a kernel, a filesystem or a sandbox may lack, and every way in which it says so.

Each row is a call that there is another way for, what it answers, and what is seen to be done
instead.  All operations work then as they do elsewhere: a lock is taken, excludes, is waited
for, taken over and cleaned.  And once the call works again, it is used again: a sandbox or a
server that refused it once is no reason to do without it for ever.
"""

import errno
import itertools
import os
import platform
import subprocess
import sys
import time

import pytest

from actors import Actor, preloaded
from support import state_of, wait_until

# So long a waiter may need that hears of nothing.
SOON = 10

# How long a waiter is left alone, in which one that does not sleep makes thousands of calls.
A_WHILE = 0.02
BUSY = 400

# So many links are made without the better way before it is asked for again.
SELDOM = 300


class Row:
    """Calls that fail, and what is seen instead: ``None`` where nothing takes their place."""

    def __init__(self, calls, errors, instead, *operations):
        self.calls = calls.split()
        self.errors = [getattr(errno, name) for name in errors.split()]
        self.instead = instead
        self.operations = operations

    def cases(self):
        for error, operation in itertools.product(self.errors, self.operations):
            name = f"{'+'.join(self.calls)} {errno.errorcode[error]} {operation}"
            yield pytest.param(self, error, operation, id=name)


WAITS = ("wait", "wait for a death")
ROWS = [
    # Files without a name, and the ways to name them.
    Row("tmpfile", "EISDIR EINVAL EOPNOTSUPP EPERM ENOSYS", "link", "take", "take over"),
    Row("linkfd", "ENOENT EINVAL EPERM", "linkat", "take", "keep", "take over"),
    Row("linkfd", "EOPNOTSUPP ENOSYS", "link", "take"),
    Row("linkfd linkat", "EPERM EOPNOTSUPP ENOSYS", "link", "take"),
    # Hard links: then the file is made at the path.
    Row("linkfd linkat link", "EPERM EOPNOTSUPP ENOSYS", "fchmod", "take", "take over"),
    Row("linkfd linkat link", "EMLINK", "fchmod", "take"),
    Row("tmpfile link", "EPERM EOPNOTSUPP ENOSYS", "fchmod", "take"),
    # The look that can't be early.
    Row("renameat2", "ENOSYS EINVAL EPERM EACCES EOPNOTSUPP", "access", "wait"),
    # Events.
    Row("inotify", "EMFILE ENFILE ENOSYS EPERM EACCES ENOMEM EINVAL", None, *WAITS),
    Row("addwatch", "ENOSPC ENOSYS EPERM EACCES ENOMEM EINVAL", None, *WAITS),
    # The end of a process, where there is no witness.
    Row("pidfd", "ENOSYS EPERM EACCES EINVAL EMFILE EOPNOTSUPP", None, "wait for a process"),
    # Which filesystem it is.
    Row("statfs", "ENOSYS EPERM EACCES", None, *WAITS),
    Row("fstatfs", "ENOSYS EPERM EACCES", None, "take", "keep", "take over", "wait"),
    # The witness.
    Row("setlk", "EINVAL ENOSYS ENOLCK EACCES EPERM EOPNOTSUPP", None, "take", "keep"),
    Row("fcntl", "EINVAL ENOSYS ENOLCK EACCES EPERM EOPNOTSUPP", None, "take over", "wait"),
    # The guard.
    Row("flock", "ENOSYS EOPNOTSUPP ENOLCK EINVAL EPERM", "rename", "take", "take over"),
    Row("flock", "ENOSYS EOPNOTSUPP ENOLCK EINVAL EPERM", None, "refresh"),
    # Places in a queue.
    Row("mkdir", "EPERM EACCES EROFS ENOSPC EOPNOTSUPP ENOSYS", None, "wait fairly"),
    Row("mkfifo", "EPERM EACCES EOPNOTSUPP ENOSYS EINVAL", None, "wait fairly"),
]  # fmt: skip


@pytest.fixture(scope="module")
def cast(shim, tmp_path_factory):
    """One that lacks something, and one that doesn't: both go on from case to case."""
    path = str(tmp_path_factory.mktemp("missing") / "the.lock")
    actors = [Actor(shim, path), Actor(shim, path)]
    yield actors
    for actor in actors:
        actor.close()


@pytest.fixture
def newcomer(shim, row, path):
    """One that has no event source yet, where it must ask for one."""
    if row.calls != ["inotify"]:
        yield None
        return
    actor = Actor(shim, path)
    yield actor
    actor.close()


@pytest.fixture
def pair(cast, newcomer, path):
    """The two of them, with locks on the test's own path that have seen nothing."""
    cast = [newcomer or cast[0], cast[1]]
    for one in cast:
        one.do("refuse_nothing()")
        one.have("path", repr(path))
        one.have("directory", "__import__('os').path.dirname(path)")
        one.have("lock", "new_lock(path)")
    yield cast
    for one in cast:
        one.do("refuse_nothing()")
        one.do("let_go(lock), native.drain_pool()")


def take(subject, other, path):
    """It takes the lock, keeps others out, refreshes, lets go: the calls of all that."""
    calls = []
    for what in ("lock.acquire(timeout=0)", "lock.check()", "lock.refresh()"):
        subject.do(what)
        calls += subject.calls
        assert other.do("lock.try_acquire()") is False
        assert other.do("semlock.status(path).verdict") == "alive"
    subject.do("lock.release()")
    calls += subject.calls
    assert not os.path.exists(path)
    assert other.do("lock.try_acquire()") is True
    assert subject.do("lock.try_acquire()") is False
    other.do("lock.release()")
    return calls


def keep(subject, other, path):
    """The same with a claim that is kept."""
    subject.do("keep_a_claim(path)")
    return subject.calls + take(subject, other, path) + take(subject, other, path)


def refresh(subject, other, path):
    subject.do("lock.acquire(timeout=0)")
    subject.do("lock.refresh()")
    calls = subject.calls
    subject.do("refuse_nothing()")
    subject.do("lock.release()")
    return calls


def take_over(subject, other, path):
    """A dead holder's lock is taken, by a try and by cleaning."""
    other.do("leave_dead_lock(path)")
    assert subject.do("lock.try_acquire()") is True
    calls = subject.calls
    assert other.do("lock.try_acquire()") is False
    subject.do("lock.release()")
    calls += subject.calls
    other.do("leave_dead_lock(path)")
    assert subject.do("[one.path for one in semlock.clean(directory)]") == [path]
    return calls + subject.calls


def waits(subject, other, path, end, lock="lock"):
    subject.ask(f"take({lock}, {SOON})")
    wait_until(lambda: state_of(subject.pid) == "S" and watches(subject), "it waits")
    time.sleep(A_WHILE)
    other.do(end)
    assert subject.finish() is True
    calls = subject.calls
    assert len(calls) < BUSY, "it does not wait, it tries again and again"
    subject.do(f"{lock}.check(), {lock}.release()")
    assert not os.path.exists(path)
    return calls


def watches(subject):
    """Two looks at a process that sleeps: it waits for the lock, and no more for its orders."""
    with open(f"/proc/{subject.pid}/syscall", encoding="ascii") as file:
        number = file.read().split()[0]
    return number not in ("0", "63", "running")


def wait(subject, other, path):
    """It waits for a holder that lets go."""
    other.do("lock.acquire(timeout=0)")
    return waits(subject, other, path, "lock.release()")


def wait_fairly(subject, other, path):
    """The same, in a queue."""
    other.do("lock.acquire(timeout=0)")
    subject.have("fair", "new_lock(path, fair=True)")
    return waits(subject, other, path, "lock.release()", "fair")


def wait_for_a_death(subject, other, path, form="fresh"):
    """It waits for a holder that is killed."""
    other.do(f"raise_holder.func(path, {form!r})")
    return waits(subject, other, path, "end_holder(kill=True)")


def wait_for_a_process(subject, other, path):
    """The same, of a holder without a witness."""
    return wait_for_a_death(subject, other, path, "unwitnessed")


OPERATIONS = {
    "take": take,
    "keep": keep,
    "take over": take_over,
    "refresh": refresh,
    "wait": wait,
    "wait fairly": wait_fairly,
    "wait for a death": wait_for_a_death,
    "wait for a process": wait_for_a_process,
}


@pytest.mark.parametrize(
    ("row", "error", "operation"), [case for row in ROWS for case in row.cases()]
)
def test_another_way_is_found_and_left_again(pair, path, names, row, error, operation):
    subject, other = pair
    work = OPERATIONS[operation]
    for call in row.calls:
        subject.do(f"refuse({call!r}, {error})")
    calls = work(subject, other, path)
    if row.calls[0] not in calls and row.calls == ["mkfifo"]:
        pytest.skip("the core does not make this call there")
    assert row.calls[0] in calls
    if row.instead:
        assert row.instead in calls
    subject.do("refuse_nothing()")
    if "linkfd" in row.calls:
        subject.do("lock.acquire(timeout=0), lock.release()")
        assert ("linkfd" in subject.calls) == (row.instead != "linkat"), (
            "it is to be remembered"
        )
        # Asking for it again each time would cost a call where it is never there.
        subject.do(f"[(lock.acquire(timeout=0), lock.release()) for _ in range({SELDOM})]")
    subject.do("native.drain_pool()")
    subject.have("lock", "new_lock(path)")
    calls = work(subject, other, path)
    assert row.calls[0] in calls, "it is not used any more"
    if row.instead and row.calls != ["renameat2"]:
        # Looking at a path is done for other reasons too.
        assert row.instead not in calls
    for one in pair:
        one.do("native.drain_pool()")
    assert names() == []


SYS_CLONE = {"x86_64": 56, "aarch64": 220}
CLAIMS_SUCCESS = 0  # as qemu does for each advice

FORKS_IN_C = """
import ctypes, os, sys
import faultlib

shim = faultlib.Shim()
shim.refuse("madvise", int(sys.argv[2]))
import semlock

lock = semlock.Lock(sys.argv[1])
lock.acquire()
child = eval(sys.argv[3])
if child == 0:
    try:
        lock.release()
    except semlock.NotHeldError:
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
lock.check()
lock.release()
"""


BY_LIBC = "ctypes.CDLL(None).fork()"
# No handler of pthread_atfork() runs.
BY_THE_KERNEL = (
    f"ctypes.CDLL(None).syscall({SYS_CLONE.get(platform.machine())}, 17, 0, 0, 0, 0)"
)


@pytest.mark.parametrize("fork", [BY_LIBC, BY_THE_KERNEL], ids=["libc", "clone"])
@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EPERM, CLAIMS_SUCCESS])
def test_a_fork_is_noticed_where_no_memory_is_wiped_by_it(shim, path, error, fork):
    if fork is BY_THE_KERNEL and platform.machine() not in SYS_CLONE:
        pytest.skip("the number of clone is not known for this processor")
    subprocess.run(
        [sys.executable, "-c", FORKS_IN_C, path, str(error), fork],
        env=preloaded(shim),
        check=True,
        timeout=30,
    )
