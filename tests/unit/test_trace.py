"""Events: what is told when, to which listener, and that without one it costs nothing."""

import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

import semlock
from semlock import trace
from semlock._core import events as reported
from semlock._events import tap
from semlock._locks.base import BaseLock
from semlock._timeline import reading
from support import (
    HANDLERS_RUN_AT,
    Child,
    Strike,
    chance_of_the_day,
    in_a_fork,
    overlaps,
    take_away,
    wait_until,
    wine_appends_in_two_steps,
)

FAST = {"durability": "none"}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def read(file):
    """Read a trace strictly: each line must be a whole event."""
    with open(file, encoding="ascii") as lines:
        events = [json.loads(line) for line in lines]
    for event in events:
        for name in ("t", "mono", "pid", "thread"):
            assert type(event[name]) is int, event
        if event["event"] not in ("start", "exit"):
            assert os.path.isabs(event["lock"])
    return events


@pytest.fixture
def file(tmp_path):
    directory = tmp_path / "traces"
    directory.mkdir()
    return str(directory / "trace.jsonl")


@pytest.fixture
def events(file):
    """Trace for the time of a test; the value gives the events so far, by name."""
    trace.start(file)
    yield lambda: read(file)[1:]
    trace.stop()
    assert not tap._listeners
    assert reported.sink is None


def kinds(events):
    return [event["event"] for event in events]


# -------------------------------------------------------------------- what is told


def test_a_pair_is_three_events_with_their_durations(path, events):
    before = time.monotonic_ns(), time.time_ns()
    with semlock.Lock(path, tag="why", **FAST) as lock:
        token = lock.token
    after = time.monotonic_ns(), time.time_ns()
    request, acquire, release = events()
    assert kinds(events()) == ["request", "acquire", "release"]
    for event in events():
        assert (event["lock"], event["tag"], event["pid"]) == (path, "why", os.getpid())
        assert event["thread"] == threading.get_native_id()
        assert before[0] <= event["mono"] <= after[0]
        assert before[1] - 10**9 <= event["t"] <= after[1] + 10**9
    assert acquire["waited"] == acquire["mono"] - request["mono"]
    assert release["held"] == release["mono"] - acquire["mono"]
    assert acquire["token"] == release["token"] == token


def test_a_wait_names_the_holder_and_a_timeout_ends_it(path, events):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}, tag='theirs'); lock.acquire(); None")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.Lock(path).acquire(timeout=0.01)
        assert kinds(events()) == ["request", "wait", "timeout"]
        for event in events()[1:]:
            assert (event["holder"], event["holder_tag"]) == (child.pid, "theirs")
        assert events()[2]["waited"] >= 10_000_000
        assert not semlock.Lock(path).try_acquire()
        assert kinds(events())[3:] == ["refused"]


def test_a_wait_that_ends_well_is_told_as_an_acquire(path, events):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        child.send("import time; time.sleep(0.05); lock.release()")
        with semlock.Lock(path, on_wait=lambda *_: None):
            child.receive()
    assert kinds(events()) == ["request", "wait", "acquire", "release"]
    assert events()[2]["waited"] > 0


def test_nested_holds_are_told_once(path, events):
    lock = semlock.Lock(path, reentrant=True)
    with lock, lock, lock.acquire():
        assert lock.try_acquire()
        lock.release()
        assert kinds(events()) == ["request", "acquire"]
    assert kinds(events()) == ["request", "acquire", "release"]


def test_a_lock_that_its_object_holds_is_told_once_whatever_thread_counts(path, events):
    lock = semlock.Lock(path, reentrant=True, held_by="object")
    with lock:
        other = threading.Thread(
            target=lambda: (lock.acquire(), lock.acquire(), lock.release())
        )
        other.start()
        other.join()
        assert kinds(events()) == ["request", "acquire"]
        lock.release()
    assert kinds(events()) == ["request", "acquire", "release"]


@pytest.mark.parametrize("in_a_block", [False, True])
def test_a_hold_that_began_before_the_trace_ends_without_a_duration(path, file, in_a_block):
    lock = semlock.Lock(path)
    if in_a_block:
        with lock:
            trace.start(file)
    else:
        lock.acquire()
        trace.start(file)
        lock.release()
    trace.stop()
    assert kinds(read(file)) == ["start", "release", "exit"]
    assert "held" not in read(file)[1]


def test_refresh_and_the_loss_of_a_lock(path, events):
    lock = semlock.Lock(path)
    lock.acquire()
    lock.refresh()
    take_away(path)
    for operation in (lock.check, lock.check, lock.refresh, lock.release):
        with pytest.raises(semlock.LockLostError):
            operation()
    # However often it is found out, it was lost once.
    assert kinds(events()) == ["request", "acquire", "refresh", "lost"]


def test_a_loss_that_is_only_warned_of_is_told_too(path, events):
    def block():
        with semlock.Lock(path):
            take_away(path)
            raise KeyError

    with pytest.raises(KeyError), pytest.warns(semlock.LockLostWarning):
        block()
    assert kinds(events())[-1] == "lost"


def test_a_reclaim_says_from_which_holder_and_why(path, events):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}, tag='killed'); lock.acquire(); None")
        child.kill()
    with semlock.Lock(path):
        pass
    told = [event for event in events() if event["event"] != "wait"]
    assert kinds(told) == ["request", "reclaim", "acquire", "release"]
    reclaim = told[1]
    assert (reclaim["from"], reclaim["from_tag"]) == (child.pid, "killed")
    assert reclaim["verdict"] == "dead"
    assert str(child.pid) in reclaim["why"]


def test_removing_by_force_is_no_reclaim(path, events):
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        semlock.remove(path, force=True)
    assert kinds(events()) == ["remove"]
    assert (events()[0]["from"], events()[0]["why"]) == (child.pid, "by force")


def test_an_acquire_that_fails_says_how(tmp_path, events):
    with pytest.raises(semlock.LockPathError):
        semlock.Lock(tmp_path / "nowhere" / "lock").acquire()
    assert kinds(events()) == ["request", "failed"]
    assert events()[1]["error"] == "LockPathError"


def test_trying_many_tells_of_those_that_were_taken(tmp_path, events):
    paths = [str(tmp_path / name) for name in "abc"]
    with semlock.Lock(paths[1]):
        taken = [lock for lock in semlock.try_acquire_many(paths) if lock]
        for lock in taken:
            lock.release()
    told = [(event["event"], event["lock"]) for event in events()]
    assert told.count(("acquire", paths[0])) == told.count(("release", paths[2])) == 1
    assert len(told) == 3 + 4


def test_locks_that_are_taken_together_tell_the_same(tmp_path, events):
    before = dict(tap._holds)
    locks = [semlock.Lock(tmp_path / name, **FAST) for name in "ab"]
    with semlock.acquire_all(locks):
        pass
    semlock.acquire_any(locks).release()
    assert kinds(events()).count("acquire") == kinds(events()).count("release") == 3
    assert tap._holds == before


SOME_KINDS = {
    "slots": (
        "semlock.SlotLock(path, 1)",
        "semlock.SlotLock(path, 1).acquire(5)",
        "semlock.AsyncSlotLock(path, 1).acquire(5)",
        "",
    ),
    "a writer": (
        "semlock.Lock(path)",
        "semlock.SharedLock(path).acquire_shared(5)",
        "semlock.AsyncSharedLock(path).acquire_shared(5)",
        "",
    ),
    "readers": (
        "semlock.SharedLock(path)",
        "semlock.SharedLock(path).acquire(5)",
        "semlock.AsyncSharedLock(path).acquire(5)",
        ".readers",
    ),
    "any": (
        "semlock.Lock(path)",
        "semlock.acquire_any([semlock.Lock(path)], 5)",
        "semlock.acquire_any_async([semlock.AsyncLock(path)], 5)",
        "",
    ),
}


@pytest.mark.parametrize("in_a_task", [False, True], ids=["thread", "task"])
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_wait_for_more_than_one_lock_is_told_from_its_beginning_to_its_end(
    path, file, kind, in_a_task
):
    """Held by another process, which lets go of it when the wait has been told."""
    theirs, ours, ours_in_a_task, place = SOME_KINDS[kind]
    acquire = "acquire_shared" if kind == "readers" else "acquire"
    with Child() as child, Child(f"import semlock; path = {path!r}") as waiter:
        child.run(f"path = {path!r}; lock = {theirs}; lock.{acquire}(); None")
        waiter.run(f"import semlock.trace, asyncio; semlock.trace.start({file!r})")
        if in_a_task:
            waiter.run(f"async def wait():\n    held.append(await {ours_in_a_task})\nheld = []")
            waiter.send("asyncio.run(wait())")
        else:
            waiter.send(f"held = {ours}; None")
        wait_until(lambda: "wait" in kinds(read(file)), "the wait is told")
        assert "waited" not in kinds(read(file))
        child.run("lock.release()")
        waiter.receive()
    told = [event for event in read(file) if event["event"] in ("wait", "waited")]
    assert kinds(told) == ["wait", "waited"]
    assert {event["lock"] for event in told} == {path + place}
    assert told[1]["waited"] > 0
    [wait] = reading.read(file).waits
    # The first of several locks may be the one that it ends with.
    assert (wait.lock, wait.ended) == (path + place, "acquire" if kind == "any" else "waited")


def test_what_no_line_can_hold_is_written_escaped(tmp_path, events):
    if sys.platform == "win32":
        pytest.skip("no name can be such bytes there")
    path = os.fsdecode(os.path.join(os.fsencode(tmp_path), b'q" \xff\n\xc3\xa9'))
    with semlock.Lock(path, tag='a "tag" – \\ \U0001f512'):
        pass
    assert {event["lock"] for event in events()} == {path}
    assert events()[0]["tag"] == 'a "tag" – \\ \U0001f512'


# -------------------------------------------------------------------- other kinds of locks


def test_a_task_lock_tells_the_same(path, events):
    from semlock import task

    lock = task.TaskLock(path, task.owner_for(), audit=False)
    with lock:
        assert "test_trace.py" in lock._place[0].co_filename
    assert lock.try_acquire()
    lock.release()
    assert kinds(events()) == ["request", "acquire", "release", "acquire", "release"]


def test_a_sidecar_lock_tells_the_same(tmp_path, events):
    from semlock import sidecar

    with sidecar.acquire_file_lock(tmp_path / "state.json"):
        with pytest.raises(sidecar.FileLockTimeoutError):
            sidecar.acquire_file_lock(tmp_path / "state.json", manager_key="other", timeout=0.3)
    lock = sidecar.SidecarLock(tmp_path / "other.json")
    assert lock.try_acquire()
    lock.release()
    assert kinds(events()) == [
        "request", "acquire", "request", "wait", "timeout", "release", "acquire", "release",
    ]  # fmt: skip


def test_a_sidecar_lock_of_tasks_tells_the_same(tmp_path, events):
    from semlock import sidecar

    async def main():
        async with await sidecar.acquire_file_lock_async(tmp_path / "state.json"):
            pass

    asyncio.run(main())
    assert kinds(events()) == ["request", "acquire", "release"]
    assert {event["task"] for event in events()} == {"Task-1"} or events()[0]["task"]


@pytest.mark.skipif("AsyncLock" not in semlock.__all__, reason="there is no AsyncLock")
def test_tasks_of_one_thread_are_told_apart(path, events):
    async def one():
        async with semlock.AsyncLock(path, **FAST):
            await asyncio.sleep(0.005)

    async def main():
        await asyncio.gather(*(one() for _ in range(3)))

    asyncio.run(main())
    assert kinds(events()).count("acquire") == kinds(events()).count("release") == 3
    by_task = {}
    for event in events():
        by_task.setdefault(event["task"], []).append(event["event"])
    assert len(by_task) == 3
    for told in by_task.values():
        assert [kind for kind in told if kind != "wait"] == ["request", "acquire", "release"]


@pytest.mark.skipif("AsyncLock" not in semlock.__all__, reason="there is no AsyncLock")
def test_tasks_that_share_one_object_are_told_apart(path, events):
    lock = semlock.AsyncLock(path, **FAST)

    async def one():
        async with lock:
            await asyncio.sleep(0.005)

    async def main():
        await asyncio.gather(one(), one())

    asyncio.run(main())
    told = kinds(events())
    assert [told.count(kind) for kind in ("request", "wait", "acquire", "release")] == [
        2,
        1,
        2,
        2,
    ]


def test_a_lock_system_that_is_imported_while_it_is_traced_tells_too(tmp_path, file):
    code = f"""
import json, sys
import semlock.trace
semlock.trace.start({file!r})
assert "semlock._systems.sidecar_lock" not in sys.modules
from semlock import sidecar
with sidecar.acquire_file_lock({str(tmp_path / "x")!r}):
    pass
semlock.trace.stop()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert kinds(read(file)) == ["start", "request", "acquire", "release", "exit"]


# -------------------------------------------------------------------- free when off


def every_method():
    todo, found = [BaseLock], {}
    while todo:
        kind = todo.pop()
        found |= {(kind, name): value for name, value in list(vars(kind).items())}
        todo += kind.__subclasses__()
    return found


def test_nothing_is_left_of_a_trace_that_has_stopped(path, file):
    before = every_method()
    trace.start(file)
    semlock.stats()
    with semlock.Lock(path):
        trace.stop()
        assert reported.sink is not None  # it is still counted
        semlock._events.stats.stop()
        assert reported.sink is None
    after = every_method()
    assert after.keys() == before.keys()
    assert all(after[key] is value for key, value in before.items())
    assert not tap._holds
    assert kinds(read(file)) == ["start", "request", "acquire", "exit"]


def test_a_program_that_doesnt_trace_loads_nothing_that_does(path):
    code = (
        "import sys, semlock\n"
        "assert 'semlock._events.tap' not in sys.modules and 'semlock.trace' not in sys.modules"
    )
    environment = {k: v for k, v in os.environ.items() if k != "SEMLOCK_TRACE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


# -------------------------------------------------------------------- one file, many writers


def test_any_program_can_be_traced_by_its_environment(path, file):
    code = f"import semlock\nwith semlock.Lock({path!r}): pass"
    environment = {**os.environ, "SEMLOCK_TRACE": file}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    told = kinds(read(file))
    assert told == ["start", "request", "acquire", "release", "exit"] * 2
    assert read(file)[0]["command"] == os.path.basename(sys.executable)
    assert read(file)[0]["pid"] != read(file)[5]["pid"]


def test_a_trace_that_cant_be_written_is_no_reason_to_fail(path, tmp_path):
    code = f"import semlock\nwith semlock.Lock({path!r}): print('done')"
    environment = {**os.environ, "SEMLOCK_TRACE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "done\n"
    assert "SEMLOCK_TRACE" in done.stderr


@wine_appends_in_two_steps
def test_many_processes_and_threads_write_whole_lines_and_holds_never_overlap(tmp_path, file):
    code = f"""
import semlock, threading
def work():
    for _ in range(25):
        with semlock.Lock({str(tmp_path / "the.lock")!r}, durability="none"): pass
        with shared: pass
shared = semlock.Lock({str(tmp_path / "shared.lock")!r}, durability="none")
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    environment = {**os.environ, "SEMLOCK_TRACE": file}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)
    ]
    assert [program.wait(60) for program in running] == [0, 0, 0]
    events = read(file)
    begun = {e["token"]: e for e in events if e["event"] == "acquire"}
    ended = {e["token"]: e for e in events if e["event"] == "release"}
    assert len(begun) == 3 * 3 * 25 * 2
    assert begun.keys() == ended.keys()
    locks = {event["lock"]: number for number, event in enumerate(begun.values())}
    holds = [
        (locks[event["lock"]], event["mono"], ended[token]["mono"])
        for token, event in begun.items()
    ]
    assert overlaps(holds) == []


@needs_fork
def test_a_forked_child_writes_under_its_own_name(path, file):
    trace.start(file)
    try:
        with semlock.Lock(path):
            pass

        def child():
            with semlock.Lock(path):
                pass
            return os.getpid()

        pid = in_a_fork(child)
    finally:
        trace.stop()
    events = [event for event in read(file) if event["pid"] == pid]
    assert kinds(events) == ["start", "request", "acquire", "release"]
    assert {event["pid"] for event in read(file)} == {pid, os.getpid()}


@needs_fork
def test_a_forked_child_knows_nothing_of_its_parents_holds(path, events):
    with semlock.Lock(path):
        assert tap._holds
        assert in_a_fork(lambda: len(tap._holds)) == 0


def test_half_a_line_spoils_no_other(path, file, monkeypatch):
    trace.start(file)
    write = os.write
    try:
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
        semlock.Lock(path).acquire().__exit__(None, None, None)
        monkeypatch.undo()
        semlock.Lock(path).acquire().__exit__(None, None, None)
    finally:
        trace.stop()
    with open(file, "rb") as lines:
        whole = [line for line in lines if line.endswith(b"}\n")]
    assert kinds(map(json.loads, whole)) == ["start", "request", "acquire", "release", "exit"]


def test_a_full_disk_is_no_reason_to_fail(path, file, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    trace.start(file)
    try:
        monkeypatch.setattr(os, "write", full)
        with semlock.Lock(path, **FAST) as lock:
            assert lock.held
        monkeypatch.undo()
    finally:
        trace.stop()


def test_a_descriptor_that_became_another_file_is_not_written_to(path, file, tmp_path):
    trace.start(file)
    try:
        number = trace._writer._fd
        theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
        os.dup2(theirs, number)
        with semlock.Lock(path, **FAST):
            pass
        assert trace._writer._fd != number
        assert os.fstat(theirs).st_size == 0
        os.close(theirs)
    finally:
        trace.stop()
        os.close(number)
    assert kinds(read(file)) == ["start", "request", "acquire", "release", "exit"]


# -------------------------------------------------------------------- audit hooks and the log


def test_audit_hooks_hear_of_events_and_may_refuse_an_acquire(path):
    code = f"""
import sys, semlock, semlock.trace
told = []
def hook(event, arguments):
    if event.startswith("semlock."):
        told.append((event, arguments[0]))
        if event == "semlock.request" and refuse:
            raise PermissionError("not now")
sys.addaudithook(hook)
refuse = False
lock = semlock.Lock({path!r})
with lock: pass
assert told == []
semlock.trace.start()
with lock: pass
assert told == [("semlock." + name, {path!r}) for name in ("request", "acquire", "release")]
refuse = True
try:
    lock.acquire()
except PermissionError:
    pass
else:
    raise AssertionError
assert not lock.held and told[-1] == ("semlock.failed", {path!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_log_gets_the_events_at_level_debug(path, events, caplog):
    with caplog.at_level(logging.DEBUG, "semlock.trace"), semlock.Lock(path):
        pass
    assert [record.semlock["event"] for record in caplog.records] == [
        "request",
        "acquire",
        "release",
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "semlock.trace"), semlock.Lock(path):
        pass
    assert not caplog.records


def test_a_listener_that_uses_locks_itself_doesnt_hear_of_them(tmp_path, path):
    heard = []

    def listener(event, lock, at, fields):
        heard.append(lock)
        with semlock.Lock(tmp_path / "of the log", **FAST):
            pass

    tap.listen(listener)
    try:
        with semlock.Lock(path):
            pass
    finally:
        tap.unlisten(listener)
    assert heard == [path] * 3


# -------------------------------------------------------------------- what must not change


def test_errors_name_the_callers_lines_all_the_same(path, events):
    lock = semlock.Lock(path)
    lock.acquire()
    with pytest.raises(semlock.LockDeadlockError) as caught:
        semlock.Lock(path).acquire()
    lock.release()
    assert str(caught.value).count("test_trace.py:") == 2
    assert lock.try_acquire()
    assert "test_trace.py" in lock._place[0].co_filename
    lock.release()


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces bytecodes"
)
@pytest.mark.parametrize("operation", ["acquire", "try_acquire", "block", "nested", "release"])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.stress)])
def test_ctrl_c_anywhere_leaves_the_lock_held_or_free_and_the_trace_true(
    path, file, operation, step
):
    """Struck at each bytecode of what is added to that of ``tests/stress/test_interrupts.py``."""
    lock = semlock.Lock(path, reentrant=True, **FAST)

    def block():
        with lock:
            pass

    first = operation in ("nested", "release")
    untold = []
    begin = chance_of_the_day().randint(1, step)

    def strike_everywhere():
        for at in itertools.count(begin, step):
            if first:
                lock.acquire()
            todo = {"acquire": lock.acquire, "try_acquire": lock.try_acquire, "block": block,
                    "nested": lock.acquire, "release": lock.release}[operation]  # fmt: skip
            strike = Strike(at, todo, ("_events/tap.py", "_core/events.py", "trace.py"))
            assert lock.held == os.path.exists(path)
            depth = 0
            while lock.held:
                lock.check()
                lock.release()
                depth += 1
            won = depth - (operation == "nested")
            if strike.struck and won > 0 and not first and operation != "block":
                rest = [name for name in strike.rest if name.startswith(HANDLERS_RUN_AT)]
                assert not rest, f"done, but a handler could still run: {strike.where}"
            if operation == "nested":
                assert depth in (1, 2)
            if tap._telling:
                # No handler runs where this stays behind; but then no more was told.
                untold.append(at)
                tap._telling.clear()
            if not strike.struck:
                return at
        raise AssertionError

    trace.start(file)
    try:
        assert strike_everywhere() > 10
    finally:
        trace.stop()
    events = read(file)
    begun = {event["token"] for event in events if event["event"] == "acquire"}
    ended = {event["token"] for event in events if event["event"] == "release"}
    assert len(begun) > 10 // step
    assert len(begun - ended) <= len(untold) < 30
