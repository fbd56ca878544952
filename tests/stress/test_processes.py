"""Processes in every state they can be in: forked, stopped, dead, half dead, in containers.

What is asked each time: does the lock stay with a holder that lives, does it go from one that is
dead at once, and is what can't be known left alone.
"""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import semlock
from processlib import (
    UNWITNESSED,
    WITNESSED,
    assert_held,
    assert_taken_at_once,
    child,
)
from support import state_of, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux' processes")


# ---------------------------------------------------------------- fork


def test_a_forked_child_holds_nothing_and_says_so(path):
    with child(path) as parent:
        parent.run(f"""
lock.acquire()
other = semlock.Lock({path + ".2"!r})
for _ in range(3):
    other.acquire(); other.release()

def look():
    seen = dict(held=lock.held, token=lock.token, info=lock.info)
    seen["files"] = support.files_open_in({os.path.dirname(path)!r})
    for name in ("release", "check", "refresh"):
        try:
            getattr(lock, name)()
        except semlock.NotHeldError as error:
            seen[name] = str(error)
    seen["taken"] = lock.try_acquire()
    seen["other"] = other.try_acquire()
    return seen
""")
        seen = parent.run("support.in_a_fork(look)")
        assert seen["held"] is False
        assert seen["token"] is None
        assert seen["info"] is None
        assert seen["files"] == []
        for name in ("release", "check", "refresh"):
            assert "before this process was forked" in seen[name]
        assert seen["taken"] is False
        assert seen["other"] is True
        parent.run("lock.check()")
        assert_held(path)


def test_a_with_block_that_a_child_leaves_is_the_parents(path):
    with child(path) as parent:
        parent.run("""
def both():
    with lock:
        pid = os.fork()
        if pid:
            status = os.waitpid(pid, 0)[1]
            lock.check()
    if not pid:
        os._exit(7 if lock.held else 0)
    return status, lock.held
""")
        assert parent.run("both()") == (0, False)
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "sys.exit(0)",
        "os.kill(os.getpid(), 9)",
        "os.execv('/bin/true', ['true'])",
    ],
)
def test_however_a_child_ends_the_parents_lock_stays(path, end):
    script = f"""
import os, sys, semlock
lock = semlock.Lock({path!r})
spare = semlock.Lock({path + ".spare"!r})
for _ in range(3):
    spare.acquire(); spare.release()
lock.acquire()
pid = os.fork()
if pid == 0:
    {end}
os.waitpid(pid, 0)
lock.check()
assert semlock.status({path!r}).verdict == "alive"
spare.acquire()  # its kept claim is still there, and its own
spare.check()
spare.release()
lock.release()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_parents_death_is_noticed_though_its_child_lives_on(path, take):
    with child(path) as parent:
        parent.run("for _ in range(3): lock.acquire(); lock.release()")
        parent.run(take)
        orphan = parent.run("""
pid = os.fork()
if pid == 0:
    while True:
        signal.pause()
pid
""")
        try:
            parent.kill()
            assert_taken_at_once(path)
            wait_until(lambda: state_of(orphan) == "S", "its child sleeps and is not stopped")
        finally:
            os.kill(orphan, signal.SIGKILL)


_THREADS = """
paths = [os.path.join({directory!r}, f"{{n}}.lock") for n in range({threads})]
busy = True

def work(number):
    lock = semlock.Lock(paths[number], durability="none")
    count = 0
    while busy:
        count += 1
        if count % 5 == 0:
            lock = semlock.Lock(paths[number], durability="none")
        lock.acquire()
        lock.refresh()
        lock.release()
        if count % 50 == 0:
            semlock.status(paths[number - 1])

threads = [threading.Thread(target=work, args=(n,)) for n in range({threads})]
for thread in threads:
    thread.start()

def look():
    files = support.files_open_in({directory!r})
    own = semlock.Lock(os.path.join({directory!r}, f"child-{{os.getpid()}}"), durability="none")
    own.acquire()
    own.check()
    own.release()
    return files, own.held

def fork_many(count):
    wrong = []
    for _ in range(count):
        found = support.in_a_fork(look)
        if found != ([], False):
            wrong.append(found)
    return wrong

def raise_sleepers(count):
    sleepers = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        sleepers.append(pid)
    return sleepers
"""


def test_children_forked_while_threads_take_locks_keep_none_of_their_descriptors(tmp_path):
    directory = str(tmp_path)
    # From 3.12 on Python warns of forks beside threads, which is the point here.
    with child(options=("-W", "ignore::DeprecationWarning")) as parent:
        parent.run(_THREADS.format(directory=directory, threads=8))
        assert parent.run("fork_many(25)", timeout=60) == []
        sleepers = parent.run("raise_sleepers(15)")
        try:
            parent.kill()
            for number in range(8):
                assert_taken_at_once(os.path.join(directory, f"{number}.lock"))
            assert not {state_of(pid) for pid in sleepers} & {"Z", ""}  # all go on
        finally:
            for pid in sleepers:
                os.kill(pid, signal.SIGKILL)
    semlock.clean(directory)
    assert os.listdir(directory) == []


# ---------------------------------------------------------------- multiprocessing, subprocesses

_MODULE = """
import os
import semlock

def take_again_and_again(path):
    lock = semlock.Lock(path, timeout=30, durability="none")
    for _ in range(5):
        with lock:
            lock.check()
    kept = [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".kept")]
    return len(kept) > 0

def end_while_holding(path):
    global lock
    lock = semlock.Lock(path, timeout=30)
    lock.acquire()
"""


@pytest.fixture
def module(tmp_path):
    """A module whose functions other processes can import, and a directory for locks."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "takers.py").write_text(_MODULE, encoding="utf-8")
    locks = tmp_path / "locks"
    locks.mkdir()
    with child(env={"PYTHONPATH": os.pathsep.join([str(code), *_own_path()])}) as it:
        it.run("import concurrent.futures, multiprocessing, takers")
        yield it, str(locks)


def _own_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_leave_no_litter(module, method):
    user, locks = module
    path = os.path.join(locks, "the.lock")
    user.run(f"""
takers.take_again_and_again({path!r})
context = multiprocessing.get_context({method!r})
function = takers.take_again_and_again
processes = [context.Process(target=function, args=({path!r},)) for _ in range(3)]
for process in processes:
    process.start()
for process in processes:
    process.join()
codes = [process.exitcode for process in processes]
""")
    assert user.run("codes") == [0, 0, 0]
    user.run(f"semlock.clean({locks!r})")
    assert os.listdir(locks) == []
    assert user.finish() == 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_leaves_no_litter(module, method):
    user, locks = module
    path = os.path.join(locks, "the.lock")
    user.run(f"""
context = multiprocessing.get_context({method!r})
with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
    kept = list(pool.map(takers.take_again_and_again, [{path!r}] * 6))
""")
    assert any(user.run("kept"))
    assert os.listdir(locks) == []
    assert user.finish() == 0


def test_a_process_of_multiprocessing_that_ends_while_it_holds_leaves_a_lock_to_be_taken(
    module,
):
    user, locks = module
    path = os.path.join(locks, "the.lock")
    user.run(f"""
context = multiprocessing.get_context("fork")
process = context.Process(target=takers.end_while_holding, args=({path!r},))
process.start()
process.join()
""")
    assert_taken_at_once(path)


def test_subprocesses_inherit_no_descriptor_and_keep_nothing_alive(path):
    with child(path) as parent:
        parent.run("""
import subprocess
for _ in range(3):
    lock.acquire(); lock.release()
other = semlock.Lock(lock.path + ".kept")
for _ in range(3):
    other.acquire(); other.release()
lock.acquire()
heir = subprocess.Popen(["sleep", "1000"], close_fds=False)
""")
        heir = parent.run("heir.pid")
        try:
            # Popen returns when exec has happened, which is when descriptors are closed.
            inherited = [
                os.readlink(f"/proc/{heir}/fd/{n}") for n in os.listdir(f"/proc/{heir}/fd")
            ]
            assert not [name for name in inherited if os.path.dirname(path) in name]
            parent.kill()
            assert_taken_at_once(path)
            wait_until(lambda: state_of(heir) == "S", "the heir sleeps")
        finally:
            os.kill(heir, signal.SIGKILL)


# ---------------------------------------------------------------- how processes end


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise SystemExit", "raise ValueError('on purpose')"]
)
def test_a_process_that_ends_as_programs_do_leaves_nothing(path, end):
    script = f"""
import sys, semlock
lock = semlock.Lock({path!r}, reentrant=True)
for _ in range(3):
    lock.acquire(); lock.release()
lock.acquire(); lock.acquire()
{end}
"""
    subprocess.run([sys.executable, "-c", script], check=False, stderr=subprocess.DEVNULL)
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 15)", "os.abort()"])
def test_a_process_that_ends_abruptly_leaves_a_lock_that_is_taken_at_once(path, end):
    script = f"""
import os, resource, semlock
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
lock = semlock.Lock({path!r})
for _ in range(3):
    lock.acquire(); lock.release()
lock.acquire()
{end}
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert os.path.exists(path)
    assert semlock.status(path).state == "stale"
    assert_taken_at_once(path)
    semlock.clean(os.path.dirname(path))
    assert os.listdir(os.path.dirname(path)) == []


# ---------------------------------------------------------------- stopped, dead, half dead


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_stopped_holder_still_holds(path, take):
    with child(path) as holder:
        holder.run(take)
        holder.stop()
        assert_held(path)
        assert semlock.clean(os.path.dirname(path)) == []
        with pytest.raises(semlock.LockHeldError):
            semlock.remove(path)
        holder.resume()
        holder.run("lock.check(); lock.release()")
    assert not os.path.exists(path)


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
@pytest.mark.parametrize("reap", [False, True], ids=["zombie", "reaped"])
def test_a_killed_holders_lock_is_taken_at_once_even_from_a_zombie(path, take, reap):
    with child(path) as holder:
        holder.run(take)
        assert_held(path)
        holder.kill(reap=reap)
        assert state_of(holder.pid) == ("" if reap else "Z")
        assert semlock.status(path).verdict == "dead"
        assert_taken_at_once(path)


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_process_whose_first_thread_has_ended_is_no_zombie(path, take):
    with child(path) as holder:
        holder.run("import __main__, ctypes")
        holder.send(f"""
def go_on():
    {take}
    __main__.serve(sys.stdin.buffer, __main__.answers)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
""")
        assert holder.run("lock.held") is True
        wait_until(lambda: state_of(holder.pid) == "Z", "the first thread has ended")
        assert_held(path)
        holder.kill(reap=False)
        assert_taken_at_once(path)


# ---------------------------------------------------------------- few descriptors


def test_without_a_descriptor_left_an_acquire_says_so_and_leaves_nothing(path):
    with child(path) as poor:
        poor.run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
lock.acquire()
lock.release()
hoard = []

def fill():
    while True:
        try:
            hoard.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return

def spend(count):
    for _ in range(count):
        os.close(hoard.pop())
fill()
""")
        for name in ("acquire()", "try_acquire()", "__enter__()"):
            with pytest.raises(OSError) as caught:
                poor.run(f"lock.{name}")
            assert caught.value.errno == errno.EMFILE
            assert caught.value.filename == path
            assert poor.run("lock.held") is False
            assert os.listdir(os.path.dirname(path)) == []
        poor.run("spend(1); lock.acquire(); lock.held")
        assert poor.run("lock.info.witness") == "left"
        assert_held(path)
        # Letting go needs one for a moment, and has one for that.
        poor.run("fill(); lock.release()")
        assert not os.path.exists(path)


def test_idle_claims_are_given_up_before_an_acquire_fails(path, tmp_path_factory):
    elsewhere = str(tmp_path_factory.mktemp("elsewhere") / "the.lock")
    with child(path) as poor:
        poor.run(f"""
for _ in range(3):
    lock.acquire(); lock.release()
other = semlock.Lock({elsewhere!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
hoard = []
try:
    while True:
        hoard.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
""")
        assert any(name.endswith(".kept") for name in os.listdir(os.path.dirname(path)))
        assert poor.run("other.acquire(); other.held") is True
        assert os.listdir(os.path.dirname(path)) == []
        poor.run("os.close(hoard.pop()); other.release()")


def test_a_lock_without_a_witness_is_refreshed_checked_released_and_reclaimed_exactly(path):
    with child(path) as poor:
        poor.run(UNWITNESSED)
        record = semlock.status(path).info
        assert record.witness == "left"
        assert not poor.run(f"support.files_open_in({os.path.dirname(path)!r})")
        poor.run("lock.check()")
        poor.run("lock.refresh()")
        refreshed = semlock.status(path).info
        assert refreshed.token == record.token
        assert refreshed.timestamp >= record.timestamp
        assert_held(path)
        poor.run("lock.release()")
        assert not os.path.exists(path)
        poor.run(UNWITNESSED)
        poor.kill()
        assert_taken_at_once(path)


@pytest.mark.parametrize("by", ["refresh", "check", "release"])
def test_a_lock_without_a_witness_knows_its_successor_even_with_the_same_inode(path, by):
    with child(path) as poor:
        poor.run(UNWITNESSED)
        inode = os.stat(path).st_ino
        # The inode's number is free for the next file, and on many filesystems is its number.
        semlock.remove(path, force=True)
        spares = []
        successor = semlock.Lock(path)
        for _ in range(20):
            successor.acquire()
            if os.stat(path).st_ino == inode:
                break
            successor.release()
        else:
            spares.append("another inode will do as well")
            successor.acquire()
        record = Path(path).read_bytes()
        with pytest.raises(semlock.LockLostError):
            poor.run(f"lock.{by}()")
        assert Path(path).read_bytes() == record
        successor.check()
        successor.release()
