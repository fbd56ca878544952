"""A lock object that has waited before waits by what it kept: all must be as the first time."""

import os
import sys
import threading
import time

import pytest

import semlock
from crowd import tickets
from semlock._core import TURN, capi, waits
from semlock._waiting import steps
from semlock._waiting.waiter import goes_on
from semlock.policy import Age
from support import PATIENCE, Child, in_a_fork, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="on Windows no wait is kept"),
]


def let_go_soon(holder):
    holder.send("import time; time.sleep(0.03); lock.release()")


@pytest.fixture
def held(path):
    with Child() as holder:
        holder.run(f"import semlock; lock = semlock.Lock({path!r}); lock.acquire(); None")
        yield holder


@pytest.fixture
def used(path, held):
    """Make a lock that has waited, by a wait that was kept and begun again."""
    lock = semlock.Lock(path)
    for _ in range(2):
        let_go_soon(held)
        with lock.acquire(timeout=PATIENCE):
            held.receive()
        held.run("lock.acquire(); None")
    assert len(lock._kept) == 1
    return lock


def no_queue(path):
    return not any(name.endswith(".queue") for name in os.listdir(os.path.dirname(path)))


def test_it_is_begun_again_without_new_objects(path, used, held, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a new wait")

    monkeypatch.setattr(waits.Wait, "__init__", refuse)
    let_go_soon(held)
    used.acquire(timeout=PATIENCE)
    held.receive()
    assert used.held
    used.release()


def test_its_time_ends(path, used, held):
    begin = time.monotonic()
    with pytest.raises(semlock.LockTimeoutError):
        used.acquire(timeout=0.15)
    assert 0.1 < time.monotonic() - begin < 5
    assert no_queue(path)
    with pytest.raises(semlock.LockTimeoutError):
        used.acquire(timeout=0.01)


def test_it_is_cancelled_and_later_ones_wait_as_ever(path, used, held):
    for _ in range(2):
        assert used.cancel() == 0  # none is under way, so this ends no later one
        said = []

        def wait(said=said) -> None:
            with pytest.raises(semlock.LockCancelledError):
                used.acquire()
            said.append("cancelled")

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: used.cancel() == 1, "it waits")
        thread.join(PATIENCE)
        assert said == ["cancelled"]
    assert no_queue(path)
    held.run("lock.release()")
    with used:
        pass


# What runs between the call into the core that a kept wait makes and what goes on with it.
HAND_OVER = {"take", "goes_on", "__init__", "begin", "takes_note"}


def cancel_at(lock, line, found_before):
    """Wait in a thread, and cancel before so many lines of the hand-over, or else behind it.

    Says whether there is such a line, and what ``cancel`` said first.  With ``found_before`` it is
    as if ``cancel`` had found the wait when it began, and ended it only now.
    """
    passed, said, ended, found = 0, [], [], []

    def trace(frame, event, _):
        nonlocal passed
        module, name = frame.f_globals["__name__"], frame.f_code.co_name
        if module not in (steps.__name__, goes_on.__module__):
            return None
        if event == "line" and not any(said):
            passed += name in HAND_OVER
            if not found:
                found.extend(
                    wait for r in list(steps._under_way) if (wait := r()) and wait.of is lock
                )
            if passed >= line or name == "pause":
                if not found_before:
                    said.append(lock.cancel())
                elif found:
                    found[0].stop()
                    said.append(1)
        return trace

    def wait() -> None:
        sys.settrace(trace)
        try:
            with pytest.raises(semlock.LockCancelledError):
                lock.acquire(timeout=1)
            ended.append(True)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(PATIENCE)
    assert ended, f"a cancel at line {line} of the hand-over was lost"
    return passed >= line, said[0]


@pytest.mark.parametrize("found_before", [False, True])
def test_a_cancel_while_the_kept_wait_is_handed_on_is_not_lost(path, found_before):
    lock = semlock.Lock(path)
    with semlock.Lock(path):
        finds, more = [], True
        while more:
            more, said = cancel_at(lock, len(finds) + 1, found_before)
            finds.append(said > 0)
    assert len(finds) > 20
    assert finds == sorted(finds)  # from when on it waits, it is found


def test_two_threads_wait_by_it_at_once(path, used, held):
    won = []

    def wait() -> None:
        with used:
            won.append(used.held)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(tickets(path)) == 3, "all three wait")
    held.run("lock.release()")
    for thread in threads:
        thread.join(PATIENCE)
    assert won == [True] * 3
    assert no_queue(path)


def test_a_thread_that_would_wait_for_itself_is_refused(path, used, held):
    held.run("lock.release()")
    with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError):
        used.acquire()
    with used:
        pass


def test_the_lock_of_a_dead_holder_is_taken(path, used, held):
    thread = threading.Timer(0.05, held.kill)
    thread.start()
    with used.acquire(timeout=PATIENCE):
        thread.join()


INTERRUPTED = """
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    lock.acquire()
except KeyboardInterrupt:
    pass
lock.held
"""


def test_an_interrupt_leaves_the_queue(path, held):
    with Child("import os, semlock, signal, threading") as waiter:
        waiter.run(f"lock = semlock.Lock({path!r})")
        let_go_soon(held)
        waiter.run("lock.acquire(); lock.release()")
        held.receive()
        held.run("lock.acquire(); None")
        assert waiter.run("len(lock._kept)") == 1
        assert waiter.run(INTERRUPTED) is False
        assert no_queue(path)
        held.run("lock.release()")
        waiter.run("lock.acquire(); lock.release()")


def test_a_forked_child_waits_by_its_own(path, used, held):
    def wait() -> None:
        with pytest.raises(semlock.LockTimeoutError):
            used.acquire(timeout=0.05)

    in_a_fork(wait)
    held.run("lock.release()")
    with used:
        assert used.info.pid == os.getpid()
    assert no_queue(path)


@pytest.mark.parametrize(
    "options",
    [
        {"on_wait": lambda *_: None},
        {"retry": lambda: [0.01] * 1000},
        {"policy": Age(60)},
    ],
    ids=["on_wait", "retry", "policy"],
)
def test_a_lock_with_special_options_keeps_none(path, held, options):
    lock = semlock.Lock(path, **options)
    let_go_soon(held)
    with lock:
        held.receive()
    assert lock._kept is None


def test_a_call_that_waits_joins_a_queue_before_it_asks_who_is_in_it(path, held):
    with Child("import semlock") as waiter:
        waiter.send(f"semlock.Lock({path!r}).acquire()")
        wait_until(lambda: tickets(path), "it waits")
        waiter.kill()
    held.run("lock.release()")
    lock = semlock.Lock(path)
    lock._lay_out()
    for state in capi.POOL.bursts:  # this process has had its locks again and again
        state.began, state.released = 0, 2**62
    assert waits.try_or_wait(lock._native, capi.POOL) == TURN
    assert len(tickets(path)) == 1  # a dead waiter's
    with lock.acquire(timeout=PATIENCE):
        assert len(tickets(path)) <= 1  # its own
    assert no_queue(path)
