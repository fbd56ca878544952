"""Whatever a call did and however it ended, it is over afterwards: forks wait for none.

A fork waits until no call of the core is under way, for up to ten seconds; so a call that
never counts as ended makes each later fork take that long.
"""

import ctypes
import gc
import os
import sys

import pytest

import semlock
from semlock._core import registry
from semlock._core.changes import Batch
from support import Child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

# Half of what a fork waits at most.
AT_ONCE = 5.0

SETUP = """
import contextlib, os, resource, sys, threading, time
import semlock
from semlock._core import capi, registry

path = {path!r}
lock = semlock.Lock(path)

def fork_time():
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - begin

@contextlib.contextmanager
def any_error():
    try:
        yield
    except (semlock.SemlockError, OSError):
        pass

@contextlib.contextmanager
def short_of_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    hoard = []
    with contextlib.suppress(OSError):
        while True:
            hoard.append(os.open("/dev/null", os.O_RDONLY))
    yield
    for fd in hoard:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

def kept():
    for _ in range(3):
        with lock: pass

def waits(other, then):
    thread = threading.Timer(0.02, then)
    with any_error():
        other.acquire(timeout=0.05)
        other.release()
"""

# ResourceWarnings of what is still held are of no interest here.
CALLS = {
    "a try that wins": "lock.try_acquire()",
    "a try of a held lock": "lock.acquire(); semlock.Lock(path).try_acquire()",
    "a release": "lock.acquire(); lock.release()",
    "kept claims": "kept()",
    "a release of what is not held": "with any_error(): lock.release()",
    "a release of a lost lock": "lock.acquire(); os.unlink(path)\nwith any_error(): lock.release()",
    "a refresh": "lock.acquire(); lock.refresh()",
    "a refresh of what is not held": "with any_error(): lock.refresh()",
    "a refresh of a lost lock": "lock.acquire(); os.unlink(path)\nwith any_error(): lock.refresh()",
    "a check": "lock.acquire(); lock.check()",
    "a check of what is not held": "with any_error(): lock.check()",
    "a check of a lost lock": "lock.acquire(); os.unlink(path)\nwith any_error(): lock.check()",
    "a status": "semlock.status(path); lock.acquire(); semlock.status(path)",
    "a removal": "lock.acquire(); semlock.remove(path, force=True)",
    "a cleaning": "kept(); lock.acquire(); semlock.clean(os.path.dirname(path))",
    "a wait that times out": (
        "lock.acquire()\nwith any_error(): semlock.Lock(path, fair=True).acquire(timeout=0.01)"
    ),
    "a wait that wins": (
        "lock.acquire()\n"
        "t = threading.Thread(target=lambda: semlock.Lock(path).acquire(timeout=10)); t.start()\n"
        "time.sleep(0.02); lock.release(); t.join()"
    ),
    "many tries": "won = semlock.try_acquire_many([path, path + '2', path])",
    "a directory that does not exist": (
        "with any_error(): semlock.Lock(path + '/no/where').try_acquire()"
    ),
    "descriptors are short": (
        "kept()\n"
        "with short_of_descriptors():\n"
        "    with any_error(): lock.acquire(timeout=0)\n"
        "    with any_error(): lock.acquire(timeout=0.02)\n"
        "    with any_error(): semlock.status(path)"
    ),
    "readers and a writer": (
        "s = semlock.SharedLock(path)\nwith s.shared(): semlock.SharedLock(path).try_acquire()\n"
        "with s: pass"
    ),
    "slots": "s = semlock.SlotLock(path, 2)\nwith s: semlock.SlotLock(path, 2).try_acquire()",
    "any of some": "won = semlock.acquire_any([lock, semlock.Lock(path + '2')])",
    "all of some": "won = semlock.acquire_all([lock, semlock.Lock(path + '2')])",
    "kernel locks": (
        "one, two = [semlock.KernelLock(path + '.file', timeout=0.01) for _ in range(2)]\n"
        "one.status(); one.acquire(); one.check(); two.status(); two.try_acquire()\n"
        "with any_error(): two.acquire()\n"
        "one.release(); one.status()"
    ),
    "a set": (
        "some = semlock.LockSet([lock, semlock.Lock(path + '2')])\n"
        "won = some.try_acquire(limit=1); won[0].release(); some.wait(timeout=0.01)\n"
        "lock.try_acquire(); some.wait(timeout=0.01); some.close()"
    ),
    "tasks": (
        "import asyncio\n"
        "async def one():\n"
        "    async with semlock.AsyncLock(path): await asyncio.sleep(0.01)\n"
        "async def both(): await asyncio.gather(one(), one())\n"
        "asyncio.run(both())"
    ),
    "a lock left to another process": (
        "lock.acquire(); capi.detach_lock(lock._native); os.unlink(path)"
    ),
    "a rewritten record": (
        "open(path, 'w').write('theirs'); p = os.fsencode(path)\n"
        "capi.rewrite(p, capi.look(p), b'theirs, migrated'); os.unlink(path)"
    ),
}


@pytest.fixture(scope="module")
def forker():
    """One process for all calls: each is followed by a fork, and tells of itself."""
    with Child() as child:
        yield child


@pytest.mark.parametrize("call", CALLS)
def test_a_fork_after_a_call_waits_for_nothing(forker, path, call):
    forker.run(SETUP.format(path=path))
    try:
        forker.run(CALLS[call])
        assert forker.run("fork_time()") < AT_ONCE
    finally:
        forker.run("with any_error(): lock.release()\nwon = None")


BLOCKED = """
import ctypes, os, sys, threading, time

entered, asked, acquired = threading.Event(), threading.Event(), threading.Event()
library = ctypes.CDLL(None)
early = []

def in_the_middle():
    # All that semlock does before a fork is done: it came later, so it goes first.
    if entered.is_set():
        return
    entered.set()
    asked.wait(10)
    early.append(acquired.wait(0.05))
    lock = semlock.Lock(f"{path}.2")  # a hook of the program's may use locks
    early.append(lock.try_acquire() and lock.release())

in_c = ctypes.CFUNCTYPE(None)(in_the_middle)
library.__register_atfork(in_c, None, None, None)

import semlock
from semlock._core import capi

capi.drain_pool()  # the first call of all

def call(path):
    entered.wait(10)
    lock = semlock.Lock(path)
    asked.set()
    lock.acquire()
    acquired.set()
    lock.release()
    semlock.Lock(path).acquire(timeout=1)

def fork():
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - begin
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it hooks the C library")
def test_a_call_waits_for_a_fork_and_counts_once(path):
    """It asks again and again while the fork is under way, and each asking must be taken back."""
    if not hasattr(ctypes.CDLL(None), "__register_atfork"):
        pytest.skip("this C library has another way to such a hook")
    with Child(BLOCKED) as child:
        child.run(f"path = {path!r}; thread = threading.Thread(target=call, args=(path,))")
        child.run("thread.start()")
        assert child.run("fork()") < AT_ONCE
        child.run("thread.join(10); assert not thread.is_alive()")
        assert child.run("early") == [False, None]  # what it had open would be in the child too
        assert child.run("fork()") < AT_ONCE


KINDS = {
    "Lock": semlock.Lock,
    "SlotLock": lambda path: semlock.SlotLock(path, 2),
    "SharedLock": semlock.SharedLock,
    "AsyncLock": semlock.AsyncLock,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_object_that_is_gone_is_in_no_list_any_more(path, kind):
    """The process lists its lock objects, to forget them in a forked child."""
    gc.collect()
    before = len(registry._locks)
    some = [KINDS[kind](path) for _ in range(10)]
    assert len(registry._locks) >= before + 10
    del some
    gc.collect()
    assert len(registry._locks) <= before


def test_many_tries_in_several_directories_each_look_at_their_own(tmp_path):
    """What is held in one directory says nothing of the same name in the next one."""
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths += [str(tmp_path / name / last) for last in ("one", "two", "three")]
    for held in (paths[:3], paths[3:], paths[1:5]):
        with Child() as child:
            child.run(f"held = semlock.acquire_all([semlock.Lock(p) for p in {held!r}]); None")
            locks = [semlock.Lock(path) for path in paths]
            for lock in locks:
                lock._lay_out()
            # Without the second look that a lock seen held for the first time is worth.
            batch = Batch([lock._native for lock in locks])
            batch.run()
            won = [
                path for path, outcome in zip(paths, batch.outcomes, strict=True) if not outcome
            ]
            for lock in locks:
                if lock.held:
                    lock.release()
            assert won == [path for path in paths if path not in held]
            child.run("held.release()")


POOR = """
import os, resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
lock = semlock.Lock(path)
lock.acquire(timeout=0)
lock.info.witness
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the witness is given up there"
)
@pytest.mark.parametrize("what", ["release", "refresh", "check"])
def test_a_strangers_lock_in_an_inode_used_again_is_left_alone(path, what):
    """A holder short of descriptors has only the token to know its file by."""
    with Child() as poor:
        poor.run(f"path = {path!r}")
        assert poor.run(POOR) == "left"
        # The inode comes back to the path with what another holder has written.
        os.rename(path, path + ".aside")
        stranger = semlock.Lock(path)
        with stranger, open(path, "rb") as file:
            record = file.read()
        with open(path + ".aside", "r+b") as file:
            file.truncate(0)
            file.write(record)
        os.rename(path + ".aside", path)
        with pytest.raises(semlock.LockLostError):
            poor.run(f"lock.{what}()")
        with open(path, "rb") as file:
            assert file.read() == record
