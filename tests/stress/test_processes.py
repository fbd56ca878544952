"""Processes in every state they can be in: forked, stopped, dead, half dead, in containers.

What is asked each time: does the lock stay with a holder that lives, does it go from one that is
dead at once, and is what can't be known left alone.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
import users
from support import PATIENCE, Child, state_of, wait_until

resource = pytest.importorskip("resource")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux' processes")

TESTS = str(Path(__file__).resolve().parent.parent)
AT_ONCE = 1.0

# Every child can do this: acquire without the kernel's witness, as a process does that is
# near its limit of descriptors, and fork.
SETUP = f"""
import gc, logging, os, resource, select, signal, sys, threading, time, warnings
import semlock
sys.path.insert(0, {TESTS!r})
import support

def without_witness(lock):
    semlock._core.capi.drain_pool()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, hard))
    lock.acquire()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lock.info.witness == "left", lock.info
"""

WITNESSED = "lock.acquire(); None"
UNWITNESSED = "without_witness(lock)"


def child(path=None, **options) -> Child:
    setup = SETUP if path is None else SETUP + f"\nlock = semlock.Lock({path!r})\n"
    return Child(setup, **options)


def need(*command: str) -> None:
    """Skip where the system doesn't permit it; where all is tested, that is a failure."""
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = f"not permitted here: {' '.join(command)}: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def assert_held(path: str, verdict: str = "alive") -> None:
    """See that the lock is not to be had, and that its holder is judged so."""
    found = semlock.status(path)
    assert found.verdict == verdict, found
    assert found.state == "held"
    assert not semlock.Lock(path).try_acquire()


def assert_taken_at_once(path: str) -> None:
    """See that a dead holder's lock is acquired by the next one, with no time to spare."""
    begin = time.monotonic()
    lock = semlock.Lock(path, timeout=AT_ONCE, durability="none")
    with lock:
        lock.check()
    assert time.monotonic() - begin < AT_ONCE


def rewrite(path: str, **fields: str) -> None:
    """Change fields of a record in place, leaving the file and its inode as they are."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    names = [line.partition("=")[0] for line in lines]
    for name, value in fields.items():
        lines[names.index(name)] = f"{name}={value}"
    with open(path, "r+", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.truncate()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "the.lock")


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


# ---------------------------------------------------------------- other users


@users.needs_root
@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_holder_that_may_not_be_signalled_is_judged_all_the_same(common, take):
    os.chmod(common, 0o777)
    path = os.path.join(common, "the.lock")
    with child(path) as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        with pytest.raises(PermissionError):
            judge.run(f"os.kill({holder.pid}, 0)")
        holder.run(take)
        assert judge.run(f"semlock.status({path!r}).verdict") == "alive"
        assert judge.run("lock.try_acquire()") is False
        holder.kill(reap=False)
        assert judge.run(f"semlock.status({path!r}).verdict") == "dead"
        assert judge.run("lock.acquire(timeout=1); lock.held") is True
        judge.run("lock.release()")
        # And it works like any other, kept claims included, without any privilege.
        judge.run("for _ in range(3): lock.acquire(); lock.check(); lock.release()")


@users.needs_root
def test_a_dead_ones_lock_in_a_sticky_directory_counts_as_held_and_the_error_names_it(common):
    path = os.path.join(common, "the.lock")
    with child(path) as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        holder.run(WITNESSED)
        holder.kill()
        with pytest.raises(
            semlock.LockTimeoutError, match="Have root run: semlock clean"
        ) as caught:
            judge.run("lock.acquire(timeout=0.2)")
        assert caught.value.path == path
        assert judge.run("lock.held") is False
        assert os.path.exists(path)
    assert_taken_at_once(path)


@users.needs_root
def test_a_record_that_may_not_be_read_counts_as_held(common):
    path = os.path.join(common, "the.lock")
    with child() as holder, child(path) as judge:
        judge.run(f"{users.as_user()}os.umask(0o022)")
        holder.run(f"lock = semlock.Lock({path!r}, mode=0o600); lock.acquire(); None")
        for end in (lambda: None, holder.kill):
            end()
            found = judge.run(f"found = semlock.status({path!r}); found.state, found.verdict")
            assert found == ("unreadable", "unknown")
            assert judge.run("lock.try_acquire()") is False
            assert judge.run(f"semlock.clean({common!r})") == []
            assert os.path.exists(path)


# ---------------------------------------------------------------- containers

_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def containers(path):
    """Two processes that both are number one, on one directory."""
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as one, child(path, wrapper=_CONTAINER) as two:
        assert one.pid == two.pid == 1
        yield one, two


@pytest.mark.parametrize("turn", [1, -1], ids=["there", "back"])
def test_number_one_of_another_container_excludes_while_it_lives_and_no_longer(
    containers, path, turn
):
    holder, judge = containers[::turn]
    holder.run(WITNESSED)
    assert judge.run("lock.try_acquire()") is False
    assert judge.run("lock.status().verdict") == "alive"
    assert judge.run(f"semlock.clean({os.path.dirname(path)!r})") == []
    assert_held(path)
    holder.kill(reap=False)
    assert judge.run("lock.status().verdict") == "dead"
    assert judge.run("lock.acquire(timeout=1); lock.held") is True
    judge.run("lock.check(); lock.release()")


@pytest.mark.parametrize("turn", [1, -1], ids=["there", "back"])
def test_without_a_witness_the_holder_in_another_container_is_unknown_and_stays(
    containers, path, turn
):
    holder, judge = containers[::turn]
    holder.run(UNWITNESSED)
    for end in (lambda: None, holder.kill):
        end()
        # Its number one lives or is dead; the judge's number one certainly lives.
        assert judge.run("lock.status().verdict") == "unknown"
        assert judge.run("lock.try_acquire()") is False
        assert judge.run(f"semlock.clean({os.path.dirname(path)!r})") == []
        assert_held(path, "unknown")


def test_a_container_is_judged_from_outside_and_the_outside_from_within(path):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as inside:
        with semlock.Lock(path):
            assert inside.run("lock.try_acquire()") is False
            assert inside.run("lock.status().verdict") == "alive"
        inside.run("lock.acquire(timeout=1); None")
        assert_held(path)
        inside.kill(reap=False)
        assert_taken_at_once(path)


def test_a_container_without_its_own_proc_judges_by_the_witness(path):
    """It sees the numbers of the outside in /proc, and must not take them for its own."""
    wrapper = ("unshare", "--pid", "--fork", "--kill-child")
    need(*wrapper)
    with child(path, wrapper=wrapper) as inside, child(path) as outside:
        assert inside.pid == 1
        outside.run(UNWITNESSED)
        assert inside.run("lock.status().verdict") == "unknown"
        outside.run("lock.release()")
        inside.run(WITNESSED)
        assert_held(path)
        assert outside.run("lock.try_acquire()") is False
        assert inside.run("lock.info.start") is None
        # Its children judge it by its number, since no start can be compared.
        inside.run("lock.release()")
        inside.run(UNWITNESSED)
        verdict = inside.run("""
def judge():
    mine = semlock.Lock(lock.path)
    return mine.status().verdict, mine.try_acquire()
support.in_a_fork(judge)
""")
        assert verdict == ("alive", False)


_RECYCLE = """
def take_and_die():
    holder = semlock.Lock(lock.path)
    holder.acquire() if {witness} else without_witness(holder)
    os.kill(os.getpid(), 9)

def new_process_with_number(number):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid

dead = os.fork()
if dead == 0:
    take_and_die()
os.waitpid(dead, 0)
start = lock.status().info.start
# Start times have a grain of a hundredth of a second.
while True:
    again = new_process_with_number(dead)
    if again == dead and semlock._core.capi.start_time(again) != start:
        break
    os.kill(again, 9)
    os.waitpid(again, 0)
found = lock.status()
os.kill(again, 0)  # a process with this number lives
"""


@users.needs_root
@pytest.mark.parametrize("witness", [True, False], ids=["witnessed", "unwitnessed"])
def test_a_process_number_that_was_given_again_keeps_nothing_alive(path, witness):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as number_one:
        number_one.run(_RECYCLE.format(witness=witness))
        assert number_one.run("dead == again == found.info.pid")
        assert number_one.run("found.verdict") == "dead"
        if not witness:
            assert "another process has its number" in number_one.run("found.evidence")
        assert number_one.run("lock.acquire(timeout=1); lock.held") is True


@users.needs_root
def test_a_number_given_again_is_recognized_when_the_record_lost_its_witness(path):
    need(*_CONTAINER)
    with child(path, wrapper=_CONTAINER) as number_one:
        number_one.run(_RECYCLE.format(witness=True))
        rewrite(path, witness="left")
        evidence = number_one.run("lock.status().evidence")
        assert "another process has its number" in evidence
        # Without a start there is nothing to tell the two apart by: the live one counts.
        text = Path(path).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("start=")]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert number_one.run("lock.status().verdict") == "alive"
        assert number_one.run("lock.try_acquire()") is False


# ---------------------------------------------------------------- clocks

_TIME_NAMESPACE = ("unshare", "--time", "--boottime", "1000000", "--monotonic", "500", "--fork")


@pytest.mark.parametrize("shifted", ["holder", "judge"])
@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_shifted_start_time_makes_no_process_dead(path, take, shifted):
    """In a time namespace all processes seem to have begun at another time: that is undone."""
    need(*_TIME_NAMESPACE, "--kill-child")
    wrapper = (*_TIME_NAMESPACE, "--kill-child")
    wrappers = [wrapper, ()] if shifted == "holder" else [(), wrapper]
    with child(path, wrapper=wrappers[0]) as holder, child(path, wrapper=wrappers[1]) as judge:
        seen = [process.run("semlock._core.capi.start_time(1)") for process in (holder, judge)]
        assert abs(seen[0] - seen[1]) <= 1
        holder.run(take)
        assert judge.run("lock.status().verdict") == "alive"
        assert judge.run("lock.try_acquire()") is False
        assert_held(path)
        holder.kill(reap=False)
        assert judge.run("lock.status().verdict") == "dead"
        assert judge.run("lock.acquire(timeout=1); lock.held") is True


def _libfaketime() -> str | None:
    for directory in ("/usr/lib", "/usr/local/lib", "/usr/lib64"):
        for file in sorted(Path(directory).glob("**/faketime/libfaketime.so.1")):
            return str(file)
    return None


class FalseClock:
    """The wall clock that a child sees, which can be put forwards and back at any time."""

    def __init__(self, file: Path) -> None:
        library = _libfaketime()
        if library is None:
            if os.environ.get("CI"):
                pytest.fail("libfaketime is not installed")
            pytest.skip("libfaketime is not installed")
        self._file = file
        self.shift(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def shift(self, seconds: int) -> None:
        """Put the clock away from the real time by so much."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}", encoding="ascii")
        new.replace(self._file)


@pytest.fixture
def clock(tmp_path_factory):
    return FalseClock(tmp_path_factory.mktemp("clock") / "shift")


DECADE = 10 * 365 * 86400


@pytest.mark.parametrize("step", [365 * 86400, -365 * 86400], ids=["forwards", "back"])
def test_a_clock_that_jumps_neither_shortens_nor_prolongs_a_wait(path, clock, step):
    with semlock.Lock(path), child(path, env=clock.environment) as waiter:
        # libfaketime spoils the system call behind time.sleep, but not this one.
        waiter.run("time.sleep = lambda seconds: select.select([], [], [], seconds)")
        clock.shift(step)
        assert abs(waiter.run("time.time()") - time.time() - step) < 100
        begin = time.monotonic()
        waiter.send("lock.acquire(timeout=0.4)")
        shift = step
        while not waiter.answered(0.03):
            shift += step
            clock.shift(shift)
        with pytest.raises(semlock.LockTimeoutError):
            waiter.receive()
        assert 0.4 <= time.monotonic() - begin < 0.4 + PATIENCE / 2
        assert waiter.run("lock.held") is False


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
@pytest.mark.parametrize("shift", [DECADE, -DECADE], ids=["forwards", "back"])
def test_a_clock_that_jumps_takes_no_lock_from_the_living(path, clock, take, shift):
    with child(path) as honest, child(path, env=clock.environment) as deceived:
        honest.run(take)
        clock.shift(shift)
        assert deceived.run("lock.try_acquire()") is False
        assert deceived.run("lock.status().verdict") == "alive"
        assert deceived.run(f"semlock.clean({os.path.dirname(path)!r})") == []
        honest.run("lock.check(); lock.release()")
        deceived.run(take)
        clock.shift(-shift)
        assert honest.run("lock.try_acquire()") is False
        assert_held(path)
        deceived.run("lock.refresh(); lock.check()")
        assert_held(path)
        deceived.kill(reap=False)
        assert honest.run("lock.acquire(timeout=1); lock.held") is True


@pytest.mark.parametrize("shift", [DECADE, -DECADE], ids=["forwards", "back"])
def test_an_unfinished_file_goes_after_its_time_however_the_clock_jumps(path, clock, shift):
    """Its creator was killed before it had written anything; no process ever held it."""
    with child(path, env=clock.environment) as deceived:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o1644))
        clock.shift(shift)
        assert deceived.run("lock.acquire(timeout=10); lock.held") is True


def test_a_heartbeat_goes_on_whatever_the_clock_says(path, clock):
    with child(env=clock.environment) as holder:
        holder.run(f"lock = semlock.Lock({path!r}, heartbeat=0.05); lock.acquire(); None")
        for shift in (DECADE, -DECADE, 0):
            clock.shift(shift)
            wait_until(
                lambda shift=shift: (
                    abs(semlock.status(path).info.timestamp - time.time() - shift) < 1000
                ),
                "the heartbeat has written the time that its clock shows",
            )
        holder.run("lock.check(); lock.release()")


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


# ---------------------------------------------------------------- after a restart

OTHER_BOOT = "00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize("witness", ["kept", "left", "none"])
def test_a_holder_of_another_boot_is_unknown_while_its_file_is_younger_than_this_boot(
    path, witness
):
    """A container may have a boot number of its own, and its process numbers mean nothing."""
    with child(path) as holder:
        holder.run(UNWITNESSED)
        rewrite(path, boot=OTHER_BOOT, witness=witness)
        assert semlock.status(path).verdict == "unknown"
        assert not semlock.Lock(path).try_acquire()
        assert semlock.clean(os.path.dirname(path)) == []
        assert os.path.exists(path)


def test_a_kept_witness_outweighs_whatever_the_record_says(path):
    with child(path) as holder:
        holder.run(WITNESSED)
        for changes in (
            {"boot": OTHER_BOOT},
            {"pid": "4194303"},
            {"start": "1"},
            {"pidns": "1"},
            {"witness": "none"},
            {"witness": "left", "pid": "4194302"},
        ):
            rewrite(path, **changes)
            assert_held(path)
        Path(path).write_bytes(b"no record at all")
        assert semlock.status(path).verdict == "alive"
        assert not semlock.Lock(path).try_acquire()


def test_what_this_module_does_to_limits_stays_in_its_children():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
