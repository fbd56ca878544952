"""The end of a process: no other one enters before what is inside is really over."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

import semlock
from support import PATIENCE

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="a file that is open can't be looked at like this there"
)


class Program:
    """A program that says how far it is by lines, and goes on when it is told to."""

    def __init__(self, script: str, path: object, *options: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(_HEAD + script)
        self._file = file.name
        self.process = subprocess.Popen(
            [sys.executable, "-W", "default", *options, file.name, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tempfile.gettempdir(),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        os.unlink(self._file)

    def says(self) -> str:
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> str:
        """Wait for the end: what it said on the way, errors included."""
        out, errors = self.process.communicate(timeout=PATIENCE)
        return out + errors


_HEAD = """
import atexit, os, sys, threading, time
path = sys.argv[1]

def stop(word, write=os.write, read=os.read):
    write(1, f"{word}\\n".encode())
    read(0, 1)

"""

# A hook that was registered before semlock's own, so it runs after it.
LATE_HOOK = """
atexit.register(stop, "late")
import semlock
"""


def assert_held_until_the_end(path, program: Program, word: str = "late") -> None:
    assert program.says() == word
    other = semlock.Lock(path)
    assert not other.try_acquire()
    assert os.path.exists(path)
    program.go_on()
    said = program.ends()
    assert "Error" not in said, said
    assert "ignored" not in said, said
    with other.acquire(PATIENCE):
        pass


@pytest.fixture
def path(tmp_path):
    return tmp_path / "the.lock"


def test_a_daemon_thread_that_is_inside_when_the_interpreter_ends_is_not_robbed(path):
    script = f"""{LATE_HOOK}
inside = threading.Event()

def work():
    with semlock.Lock(path):
        inside.set()
        while True:
            time.sleep(0.001)

threading.Thread(target=work, daemon=True).start()
inside.wait()
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program)


def test_a_daemon_thread_that_uses_what_the_main_thread_took_is_not_robbed(path):
    script = f"""{LATE_HOOK}
lock = semlock.Lock(path)
lock.acquire()
threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program)
        assert not path.exists()  # our own try took it away


def test_an_event_loop_in_a_daemon_thread_is_not_robbed(path):
    script = f"""{LATE_HOOK}
import asyncio
inside = threading.Event()

async def work():
    async with semlock.AsyncLock(path):
        inside.set()
        await asyncio.sleep(1000)

threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()
inside.wait()
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program)


THREADS = {
    "begun by a late hook": """
def late():
    library = ctypes.CDLL(None)
    library.pthread_create(ctypes.byref(ctypes.c_ulong()), None, library.pause, None)
""",
    "that the system does not list": """
def late():
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))

threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
""",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux lists the threads")
@pytest.mark.parametrize("thread", THREADS)
def test_beside_a_thread_only_the_end_of_the_process_ends_a_lock(path, thread):
    script = f"""
import ctypes, resource
{THREADS[thread]}
atexit.register(late)
import semlock
lock = semlock.Lock(path)
lock.acquire()
"""
    with Program(script, path) as program:
        assert program.ends() == ""
    assert semlock.status(path).state == "stale"


def test_a_late_hook_leaves_no_kept_claim(path):
    script = """
def late():
    for _ in range(3):
        with semlock.Lock(path):
            pass

atexit.register(late)
import semlock
"""
    with Program(script, path) as program:
        assert program.ends() == ""
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("how", ["with", "acquire", "reader", "slot"])
def test_an_exit_hook_that_was_registered_earlier_is_still_inside(path, how):
    take = {
        "with": "semlock.Lock(path).acquire()",
        "acquire": "semlock.Lock(path, reentrant=True).acquire()",
        "reader": "semlock.SharedLock(path).acquire_shared()",
        "slot": "semlock.SlotLock(path, 1).acquire()",
    }[how]
    with Program(f"{LATE_HOOK}\nheld = {take}\n", path) as program:
        assert program.says() == "late"
        if how == "reader":
            other = semlock.SharedLock(path)
        elif how == "slot":
            other = semlock.SlotLock(path, 1)
        else:
            other = semlock.Lock(path)
        assert not other.try_acquire()
        program.go_on()
        assert program.ends() == ""
        with other.acquire(PATIENCE):
            pass


def test_a_destructor_at_the_end_is_still_inside(path):
    script = """
import semlock

class Store:
    def __init__(self):
        self.lock = semlock.Lock(path)
        self.lock.acquire()

    def __del__(self, stop=stop):
        stop("destructor")
        self.lock.check()
        self.lock.release()

store = Store()
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program, "destructor")


def test_what_the_only_thread_still_holds_goes_when_nothing_can_be_inside_any_more(path):
    script = "import semlock\nlock = semlock.Lock(path)\nlock.acquire()\n"
    for more in ("", "os.keep = lock", "cycle = [lock]; cycle.append(cycle)"):
        with Program(script + more, path) as program:
            assert program.ends() == ""
        assert os.listdir(path.parent) == []


def test_os_exit_leaves_a_lock_that_the_next_one_has_at_once(path):
    script = "import semlock\nsemlock.Lock(path).acquire()\nos._exit(0)\n"
    with Program(script, path) as program:
        program.ends()
    assert path.exists()
    other = semlock.Lock(path)
    assert other.try_acquire()
    other.release()


def test_sys_exit_in_a_thread_leaves_its_lock_held_until_the_process_ends(path):
    script = """
import semlock
lock = semlock.Lock(path)

def work():
    lock.acquire()
    sys.exit()

thread = threading.Thread(target=work)
thread.start()
thread.join()
stop("ended")
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program, "ended")


def test_a_worker_of_a_pool_is_waited_for_by_python_and_leaves_by_itself(path):
    script = """
import concurrent.futures, semlock
pool = concurrent.futures.ThreadPoolExecutor()
inside = threading.Event()

def work():
    with semlock.Lock(path) as lock:
        inside.set()
        stop("inside")
        lock.check()

pool.submit(work).add_done_callback(lambda done: done.result())
inside.wait()
"""
    with Program(script, path) as program:
        assert_held_until_the_end(path, program, "inside")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("daemon", [False, True], ids=["thread", "daemon thread"])
def test_a_multiprocessing_child_whose_main_function_returns_is_not_robbed(
    path, method, daemon
):
    script = f"""
import multiprocessing, multiprocessing.util, semlock

def work(path, inside):
    lock = semlock.Lock(path)
    with lock:
        pass
    with lock:
        pass  # so that a claim is kept
    with lock:
        inside.set()
        stop("inside")
        lock.check()

def child(path):
    inside = threading.Event()
    # Finalizers of others, which run after ours, may take their time.
    if {daemon}:
        multiprocessing.util.Finalize(None, stop, ("late",), exitpriority=-1)
    else:
        multiprocessing.util.Finalize(None, time.sleep, (0,), exitpriority=-1)
    body = forever if {daemon} else work
    threading.Thread(target=body, args=(path, inside), daemon={daemon}).start()
    inside.wait()

def forever(path, inside):
    lock = semlock.Lock(path)
    for _ in range(2):
        with lock:
            pass
    with lock:
        inside.set()
        while True:
            time.sleep(0.001)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    process = context.Process(target=child, args=(path,))
    process.start()
    process.join()
    print("exit code", process.exitcode)
"""
    with Program(script, path) as program:
        assert program.says() == ("late" if daemon else "inside")
        other = semlock.Lock(path)
        assert not other.try_acquire()
        program.go_on()
        said = program.ends()
        assert said == "exit code 0\n"
        with other.acquire(PATIENCE):
            pass


ENDS = {
    "normally": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "sys.excepthook = print; raise ValueError",
    "a daemon thread": "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "fork": "child('fork')",
    "spawn": "child('spawn')",
}


@pytest.mark.parametrize("end", ENDS)
def test_no_kept_claims_are_left_behind(path, end):
    script = f"""
import multiprocessing, semlock

def work():
    for _ in range(3):
        with semlock.Lock(path):
            pass
    assert any(name.endswith(".kept") for name in os.listdir(os.path.dirname(path)))

def child(method):
    context = multiprocessing.get_context(method)
    process = context.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0

if __name__ == "__main__":
    if not {end in ("fork", "spawn")}:
        work()
    {ENDS[end]}
"""
    with Program(script, path) as program:
        assert ("ValueError" in program.ends()) == (end == "an exception")
    assert os.listdir(path.parent) == []


def test_a_listener_that_raises_at_a_release_leaves_no_kept_claim(path):
    """A child of multiprocessing removes its kept claims only if it has noted the first one."""
    script = """
import multiprocessing, semlock
from semlock._events import tap
from contextlib import suppress

def refuse(event, *_):
    if event == "release":
        raise ValueError

def work():
    tap.listen(refuse)
    for _ in range(3):
        lock = semlock.Lock(path)
        lock.acquire()
        with suppress(ValueError):
            lock.release()
    assert any(name.endswith(".kept") for name in os.listdir(os.path.dirname(path)))

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    with Program(script, path) as program:
        assert program.ends() == ""
    assert os.listdir(path.parent) == []


def test_the_end_is_silent(path):
    for more in (
        "os.keep = semlock.Lock(path)",
        "os.keep = semlock.SharedLock(path)",
        "os.keep = semlock.SlotLock(path, 3)",
        "os.keep = semlock.Lock(path); os.keep.acquire()",
        "os.keep = semlock.SharedLock(path); os.keep.acquire_shared()",
        "lock = semlock.Lock(path); lock.acquire(); keep = {'lock': lock}; keep['self'] = keep",
        "import asyncio; os.keep = semlock.AsyncLock(path)",
        "sys.keep = semlock.Lock(path); sys.keep.acquire()",
        "lock = semlock.Lock(path, heartbeat=0.001); lock.acquire(); time.sleep(0.01)",
    ):
        with Program(f"import semlock\n{more}\n", path) as program:
            assert program.ends() == "", more
        if path.exists():
            semlock.Lock(path).acquire(PATIENCE).__exit__(None, None, None)


def test_a_lock_that_is_dropped_while_it_is_held_is_told_of_as_before(path):
    script = "import semlock\nlock = semlock.Lock(path)\nlock.acquire()\ndel lock\n"
    with Program(script, path) as program:
        assert "nothing refers to any more" in program.ends()


IN_A_SUBINTERPRETER = """
import sys, _testcapi
code = '''
import os, sys, time
import semlock
told = []
beaten = semlock.Lock(sys.argv[1], heartbeat=0.01, on_lost=lambda *_: told.append(1))
beaten.acquire()
os.unlink(sys.argv[1])
while not told:
    time.sleep(0.01)
other = semlock.Lock(sys.argv[1], heartbeat=60)
with other:
    pass
'''
assert _testcapi.run_in_subinterp(f"import sys; sys.argv = {sys.argv!r}\\n{code}") == 0
print("ended")
"""


def test_a_subinterpreter_that_had_heartbeats_ends(path):
    """As under mod_wsgi.  A thread that is left there aborts the process."""
    pytest.importorskip("_testcapi")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_SUBINTERPRETER, path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"


DROPPED_AT_THE_END = """
import sys, _testcapi
code = '''
import builtins, sys
import semlock
from semlock import task
class Keeper:
    def __init__(self):
        self.locks = [semlock.Lock(sys.argv[1]), task.TaskLock(sys.argv[1] + "2", owner="me")]
        for lock in self.locks:
            lock.acquire()
        self.itself = self
builtins.kept = Keeper()
circle = [semlock.Lock(sys.argv[1] + "3")]
circle[0].acquire()
circle.append(circle)
'''
assert _testcapi.run_in_subinterp(f"import sys; sys.argv = {sys.argv!r}\\n{code}") == 0
print("ended")
"""


def test_a_subinterpreter_that_holds_locks_ends_without_noise(path):
    """Nothing can be imported there any more when the last objects go."""
    pytest.importorskip("_testcapi")
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", DROPPED_AT_THE_END, path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)
