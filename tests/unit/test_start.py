"""What ``import semlock`` brings at once, and what only later."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it forks")

PROGRAM = """
import json, os, sys
sys.argv[0] = {name!r}
before = set(sys.modules)
import semlock
at_once = set(sys.modules) - before
{then}
print(json.dumps([sorted(at_once), sorted(set(sys.modules) - before - at_once)]))
"""

# All that Lock does: it is made, taken, refreshed, waits, judges a dead holder, is handed over,
# lost, cancelled, and raises each of its errors.
LIFE = """
import threading, time

directory = {directory!r}
path = os.path.join(directory, "a.lock")
beating = semlock.Lock(path + "3", heartbeat=1)
imports = []
sys.addaudithook(lambda event, args: event == "import" and imports.append(args[0]))


def holder(ends):
    at, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = semlock.Lock(path)
        mine.acquire()
        os.write(told, b"!")
        ends(mine)
        os._exit(0)
    os.close(told)
    os.read(at, 1)
    os.close(at)
    return pid


def fails(kind, call, *args, **options):
    try:
        call(*args, **options)
    except kind as error:
        str(error), repr(error)
    else:
        raise AssertionError(kind)


lock, fair = semlock.Lock(path, tag="x"), semlock.Lock(path, fair=True, on_wait=lambda *_: None)
for _ in range(2):
    with lock, beating, semlock.Lock(path + "2", reentrant=True, durability="none", make_dirs=True):
        lock.refresh(), lock.check(), str(lock.status()), lock.held
fails(RuntimeError, lock.release)
fails(OSError, semlock.Lock(path + "/no/x").acquire)
fails(ValueError, semlock.Lock, path, timeout=-1)
lock.acquire()
fails(Exception, semlock.Lock(path).acquire)  # it would wait for itself
os.unlink(path)
fails(Exception, lock.release)
for one in (lock, fair):
    pid = holder(lambda mine: time.sleep(60))
    assert not one.try_acquire() and str(one.status())
    fails(TimeoutError, one.acquire, timeout=0.02)
    threading.Timer(0.02, one.cancel).start()
    fails(Exception, one.acquire, timeout=60)
    threading.Timer(0.02, os.kill, (pid, 9)).start()
    with one:
        os.waitpid(pid, 0)
    pid = holder(lambda mine: time.sleep(0.02) or mine.release())
    with one:
        os.waitpid(pid, 0)
    os.waitpid(holder(lambda mine: os._exit(0)), 0)  # dead, and its file is there
    one.acquire(timeout=0)
    one.release()
assert not imports, imports
"""

# What Lock needs.  More would make each start of a program slower, so it has to be worth that.
LOCK = {
    "", "_core", "_core.capi", "_core.compiled", "_core.compiled.lib", "_core.errors",
    "_core.events", "_core.explain", "_core.identity", "_core.inside", "_core.options",
    "_core.paths", "_core.records", "_core.registry", "_core.status",
    "_core.verdicts", "_core.waits", "_locks", "_locks.base", "_locks.lock",
    "_locks.lock_object", "_locks.mine", "_stores", "_stores.file",
    "_waiting", "_waiting.steps", "_waiting.waiter",
}  # fmt: skip
# Of Python's own, those that are compiled into it, and one that is nearly empty.
OTHERS = {"__future__", "_cffi_backend", "_operator", "atexit", "errno"}


def started(name: str = "", then: str = "") -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(name=name, then=then)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["", "-c", "/srv/build.py", "pytest"])
def test_a_program_has_lock_from_the_start_and_nothing_else(name):
    at_once, later = started(name, "semlock.Lock")
    own = {module.partition(".")[2] for module in at_once if module.startswith("semlock")}
    assert (own, later) == (LOCK, [])
    if sys.implementation.name == "cpython":
        assert {module for module in at_once if not module.startswith("semlock")} <= OTHERS


def test_whatever_a_lock_does_imports_nothing(tmp_path):
    """It may come in a forked child, after chroot(), or without a descriptor."""
    started(then=LIFE.format(directory=str(tmp_path)))


VERBS = """
import asyncio
from semlock import (
    AsyncLock, AsyncSharedLock, AsyncSlotLock, KernelLock, LockSet, SharedLock, SlotLock,
    acquire_all, acquire_any, once, status, try_acquire_many,
)

directory = {directory!r}
at = os.path.join(directory, "a.lock")
asyncio.run(asyncio.sleep(0))
imports = []
sys.addaudithook(lambda event, args: event == "import" and imports.append(args[0]))


async def tasks():
    for lock in (AsyncLock(at), AsyncSharedLock(at + "3"), AsyncSlotLock(at + "4", 2)):
        async with lock:
            pass


for lock in (SharedLock(at + "3"), SlotLock(at + "4", 2), KernelLock(at + "5")):
    with lock:
        pass
both = [semlock.Lock(at), semlock.Lock(at + "2")]
with acquire_all(both):
    status(at)
acquire_any(both).release()
for lock in try_acquire_many([at, at + "2"]) + LockSet(both).try_acquire():
    lock.release()
once(at + "once", lambda path: open(path, "w").close())
asyncio.run(tasks())
assert not imports, imports
"""


def test_a_name_that_was_imported_needs_no_module_later(tmp_path):
    """So a program can have it before chroot(), or before it has no descriptor left."""
    started(then=VERBS.format(directory=str(tmp_path)))


@pytest.mark.parametrize("name", ["/usr/bin/semlock", "-m"])
def test_the_command_has_no_more_than_it_needs(name):
    at_once, later = started(name, "semlock.Lock")
    assert "semlock._locks.lock" in later
    assert "asyncio" not in at_once + later


NO_MODULES = """
directory = {directory!r}
for number in range(2):  # as killed processes leave them: there is something to tidy
    with open(os.path.join(directory, f".semlock-{{number:032x}}.tmp"), "w"):
        pass
with open(os.path.join(directory, "odd.lock"), "w") as file:
    file.write("of another program")
sys.meta_path.clear()  # as after chroot()
lock = semlock.Lock(os.path.join(directory, "a.lock"))
for _ in range(3):
    with lock:
        pass
try:
    semlock.Lock(os.path.join(directory, "odd.lock")).acquire(timeout=0)
except TimeoutError as error:
    assert "unknown program" in str(error)
"""


@pytest.mark.leaves("tmp")
def test_where_no_module_can_be_loaded_locks_work_without_what_they_can_do_without(tmp_path):
    """The tidying after the first release, and telling which lock system an odd file is of."""
    assert started(then=NO_MODULES.format(directory=str(tmp_path)))[1] == []


KERNEL = """
import fcntl
from semlock import KernelLock

path = os.path.join({directory!r}, "a.lock")
file = open(path, "w")
fcntl.flock(file, fcntl.LOCK_EX)
sys.meta_path.clear()  # as after chroot()
try:
    KernelLock(path).acquire(timeout=0.01)
except semlock.LockTimeoutError as error:
    assert "by the kernel's lock" in str(error), error
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fcntl")
def test_a_wait_for_a_kernel_lock_needs_no_module_that_its_class_did_not_bring(tmp_path):
    started(then=KERNEL.format(directory=str(tmp_path)))


FORKS_MEANWHILE = """
import signal, threading

directory = {directory!r}
for number in range(2):
    with open(os.path.join(directory, f".semlock-{{number:032x}}.tmp"), "w"):
        pass
begun, goes_on = threading.Event(), threading.Event()


def stop(event, args):
    if event == "exec" and args[0].co_filename.endswith("cleaning.py"):
        begun.set()
        goes_on.wait()


def use(name):
    for _ in range(2):  # the second release keeps its file, and tidies
        with semlock.Lock(os.path.join(directory, name)):
            pass


sys.addaudithook(stop)
first = threading.Thread(target=use, args=("a.lock",), daemon=True)
first.start()
assert begun.wait(10), os.listdir(directory)
pid = os.fork()
if pid == 0:
    signal.alarm(10)  # its default ends the process
    use("b.lock")
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
goes_on.set()
first.join()
"""


@pytest.mark.leaves("tmp")
def test_a_child_forked_while_the_tidying_is_loaded_does_not_wait_for_it(tmp_path):
    """The thread that loads it is not in the child, and would hold the import's lock for ever."""
    assert os.listdir(tmp_path) == []
    later = started(then=FORKS_MEANWHILE.format(directory=str(tmp_path)))[1]
    assert "semlock._core.cleaning" in later


CORE = """
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "semlock._core.compiled":
            raise {error}


sys.meta_path.insert(0, Finder())
import semlock
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ModuleNotFoundError(name=name)", "compiled core is missing"),
        ("ImportError('it does not support loading in subinterpreters')", "subinterpreters"),
    ],
)
def test_why_the_core_cant_be_loaded_is_said_as_it_is(error, said):
    done = subprocess.run(
        [sys.executable, "-c", CORE.format(error=error)], capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert said in last
    assert ("missing" in last) == ("missing" in said)
