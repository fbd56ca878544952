"""A child process owns nothing of its parent's, by whatever call it was forked.

Python's ``os.fork`` runs hooks, a C library's ``fork`` runs those of C only, and a bare
``clone`` none at all.
"""

import os
import re
import signal
import sys

import pytest

import semlock
from crowd import tickets
from support import Child, files_open_in, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the calls are made by Linux's numbers"
)

# What the program under test has: a lock that it holds, a claim that it keeps, a way to fork.
SETUP = """
import ctypes, os, signal, sys, time
import semlock
from semlock._core import capi, registry

libc = ctypes.PyDLL(None, use_errno=True)  # which keeps Python's lock, as a C library does
NUMBER_OF_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)


def clone():
    return libc.syscall(NUMBER_OF_CLONE, signal.SIGCHLD, 0, 0, 0, 0)


def in_a_child(function, fork):
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            answer = repr(function())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer


def keep(directory):
    for name in ("x", "y"):
        with semlock.Lock(f"{directory}/{name}"):
            pass
"""

FORKS = ["libc.fork", "clone", "os.fork"]

# A lock that the parent has had before the fork, so the core knows its directory.
USED_BEFORE = """
other = semlock.Lock(directory + "/other.lock")
with other:
    pass
"""


@pytest.fixture
def program(tmp_path):
    with Child(SETUP + f"directory = {str(tmp_path)!r}\nkeep(directory)\n") as child:
        if child.run("NUMBER_OF_CLONE is None"):
            pytest.skip("the number of clone is not known here")
        child.run("lock = semlock.Lock(directory + '/the.lock'); _ = lock.acquire()")
        yield child


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_that_ends_as_programs_do_leaves_its_parents_locks_alone(program, path, fork):
    program.run("keep(directory + '/')\nbefore = sorted(os.listdir(directory))")
    program.run(f"""
child = {fork}()
if child == 0:
    registry.give_up_idle()  # what runs at exit
    os._exit(0)
os.waitpid(child, 0)
""")
    assert program.run("sorted(os.listdir(directory)) == before")
    assert semlock.status(path).info.pid == program.pid
    program.run("lock.check(); lock.release()")


@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize(
    ("act", "answer"),
    [
        ("lock.release()", "NotHeldError: .*before this process was forked off.*"),
        ("lock.check()", "NotHeldError: .*before this process was forked off.*"),
        ("lock.refresh()", "NotHeldError: .*before this process was forked off.*"),
        ("lock.held, lock.token, lock.info", r"\(False, None, None\)"),
        ("lock.try_acquire()", "False"),
        ("lock.__exit__(None, None, None)", "None"),
        ("semlock.try_acquire_many([lock])", r"\[None\]"),
        ("repr(lock)", ".*not held.*"),
    ],
)
def test_a_child_can_do_nothing_with_what_its_parent_holds(program, path, fork, act, answer):
    found = program.run(f"in_a_child(lambda: ({act}), {fork})")
    assert re.fullmatch(answer, found), found
    program.run("lock.check()")
    assert semlock.status(path).verdict == "alive"


@pytest.mark.parametrize("fork", FORKS)
def test_the_children_of_a_server_clear_away_what_those_before_them_left(
    program, tmp_path, fork
):
    program.run("keep(directory)")  # so the server itself has looked for leftovers here
    claims = [name for name in os.listdir(tmp_path) if name.endswith(".kept")]
    for _ in range(5):
        # os._exit runs no hook that gives the kept claim up.
        assert program.run(f"in_a_child(lambda: keep(directory), {fork})") == "None"
    left = {name for name in os.listdir(tmp_path) if name.endswith(".kept")}
    assert len(left - set(claims)) == 1, left  # that of the last child


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_takes_locks_under_its_own_name(program, tmp_path, fork):
    program.run(USED_BEFORE)
    program.run("""
def use():
    with other:
        here = semlock.status(other.path).info.pid == os.getpid() == other.info.pid
        new = semlock.Lock(directory + "/new.lock")
        with new:
            return here and new.info.pid == os.getpid() and new.info.token != lock.token
""")
    assert program.run(f"in_a_child(use, {fork})") == "True"
    assert program.run("with other: owner = other.info.pid\nowner") == program.pid


@pytest.mark.parametrize("fork", FORKS)
def test_a_childs_first_wait_stands_in_the_queue_and_can_be_cancelled(program, path, fork):
    program.run(USED_BEFORE)
    program.run("""
def wait():
    seen = []

    def look(*_):
        seen.extend(name[-6:] for name in os.listdir(directory) if name.endswith(".queue"))
        seen.append(other.cancel())

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        other.acquire(timeout=5)
    except semlock.LockCancelledError:
        return seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
""")
    with semlock.Lock(os.path.join(os.path.dirname(path), "other.lock")):
        assert program.run(f"in_a_child(wait, {fork})") == "['.queue', 1]"


@pytest.mark.parametrize("take", ["acquire", "acquire_shared"])
@pytest.mark.parametrize("fork", FORKS)
def test_a_childs_first_wait_leaves_nothing(program, tmp_path, take, fork):
    name = str(tmp_path / "other.lock")
    program.run(f"other, take = semlock.SharedLock({name!r}), {take!r}")
    program.run("""
with getattr(other, take)():
    pass

def wait():
    with getattr(other, take)(timeout=5):
        pass
    return [name for name in os.listdir(directory) if name.endswith(".queue")]
""")
    with semlock.SharedLock(name):
        program.send(f"in_a_child(wait, {fork})")
        wait_until(lambda: tickets(name), "the child waits")
    assert program.receive() == "[]"


@pytest.mark.parametrize("fork", FORKS)
def test_a_childs_first_reader_is_known_to_its_thread(program, path, fork):
    program.run("""
table = semlock.SharedLock(directory + "/the.table")
with table.shared():
    pass

def read():
    with table.shared(), semlock.SharedLock(table.path).acquire(timeout=0.5):
        pass
""")
    assert program.run(f"in_a_child(read, {fork})").startswith("LockDeadlockError")


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_refreshes_its_locks(program, fork):
    program.run("""
beats = semlock.Lock(directory + "/a.lock", heartbeat=0.01)
_ = beats.acquire()

def hold():
    with semlock.Lock(directory + "/b.lock", tag="the child's", heartbeat=0.01) as held:
        began, end = os.stat(held.path).st_mtime_ns, time.monotonic() + 5
        while time.monotonic() < end:
            time.sleep(0.01)
            if os.stat(held.path).st_mtime_ns != began:
                return "refreshed"
""")
    assert program.run(f"in_a_child(hold, {fork})") == "'refreshed'"


@pytest.mark.parametrize("fork", FORKS)
def test_a_child_reads_and_writes_by_itself(program, path, fork):
    program.run("""
lock.release()
shared = semlock.SharedLock(directory + "/s.lock", timeout=0.2)
slots = semlock.SlotLock(directory + "/slots", 2, timeout=0.2)
reading = shared.shared()
_ = reading.__enter__()
_ = slots.acquire()

def use():
    reading.__exit__(None, None, None)  # the block was entered by the parent
    own = semlock.SharedLock(shared.path, timeout=0.2)
    with shared.shared():
        readers = sorted(status.info.pid for status in own.readers())
        there = readers == sorted({os.getpid(), os.getppid()})
    try:
        own.acquire()  # the parent reads
    except semlock.LockTimeoutError:
        there = there and shared.held is None
    with slots:
        pass
    return there
""")
    assert program.run(f"in_a_child(use, {fork})") == "True"
    program.run("reading.__exit__(None, None, None); slots.release(); _ = lock.acquire()")


@pytest.mark.parametrize("fork", FORKS)
def test_parent_and_child_give_no_token_twice(program, fork):
    program.run("""
def tokens():
    found = []
    for _ in range(5):
        with semlock.Lock(f"{directory}/{os.getpid()}.lock") as own:
            found.append(own.token)
    return found
""")
    theirs = program.run(f"in_a_child(tokens, {fork})")
    ours = program.run("tokens()")
    assert len(set(eval(theirs)) | set(ours)) == 10


@pytest.mark.parametrize("fork", ["libc.fork", "os.fork"])
def test_a_childs_copies_of_the_descriptors_are_closed_at_once(program, tmp_path, fork):
    program.run(f"""
stays, tells = os.pipe()
told, tell = os.pipe()
child = {fork}()
if child == 0:
    os.write(tell, b"1")
    os.read(stays, 1)  # it makes no call of semlock's
    os._exit(0)
found = os.read(told, 1)
""")
    child = program.run("child")
    try:
        assert files_open_in(str(tmp_path), child) == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_of_a_bare_clone_closes_its_copies_at_its_first_call(program, tmp_path):
    program.run("""
stays, tells = os.pipe()
told, tell = os.pipe()
child = clone()
if child == 0:
    semlock.Lock(directory + "/new.lock").try_acquire()
    os.write(tell, b"1")
    os.read(stays, 1)
    os._exit(0)
found = os.read(told, 1)
""")
    child = program.run("child")
    try:
        (only,) = files_open_in(str(tmp_path), child)
        number = only.partition(" ")[0]
        assert os.path.samefile(f"/proc/{child}/fd/{number}", tmp_path / "new.lock")
    finally:
        os.kill(child, signal.SIGKILL)


def test_ctrl_c_in_a_hook_of_the_fork_leaves_nothing_undone(program, path):
    program.run("""
def interrupt():
    raise KeyboardInterrupt

os.register_at_fork(after_in_child=interrupt, before=interrupt, after_in_parent=interrupt)
""")
    found = program.run("in_a_child(lambda: (lock.held, lock.try_acquire()), os.fork)")
    assert found == "(False, False)"
    program.run("lock.check()")


def test_no_call_is_left_counted_as_under_way(program):
    program.run("in_a_child(lambda: keep(directory), os.fork)")
    assert program.run("capi.lib.semlock_busy()") == 0
    found = program.run("in_a_child(lambda: capi.lib.semlock_busy(), libc.fork)")
    assert found == "0"


def test_a_handler_that_forks_while_its_thread_waits_leaves_both_waiting(program, tmp_path):
    other = str(tmp_path / "waited.lock")
    with semlock.Lock(other) as held:
        program.run(f"""
import threading
children = []

def handler(number, frame):
    children.append(os.fork())

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
waited = semlock.Lock({other!r}, timeout=20, fair=True)
""")
        program.send("""
waited.acquire()
mine = waited.info.pid, semlock.status(waited.path).info.pid
waited.release()
if children[0] == 0:
    os._exit(0 if mine == (os.getpid(),) * 2 else 1)
(mine == (os.getpid(),) * 2, os.waitpid(children[0], 0)[1])
""")
        # The child stands in the queue too, behind its parent.
        tickets = ".semlock-*.queue/" + 16 * "[0-9a-f]"
        wait_until(lambda: len([*tmp_path.glob(tickets)]) == 2, "both have tickets")
        assert not program.answered(0.1)
        held.release()
        assert program.receive() == (True, 0)
        held.acquire()
