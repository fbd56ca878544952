"""Ctrl-C in the task lock's own steps: the lock is held or free, and its object says which."""

import dis
import functools
import json
import os
import sys
from pathlib import Path

import pytest

import semlock
from semlock import task
from semlock.task import TaskLock
from support import forget_handled

EXPIRED = json.dumps({"owner": "x", "since": 1761229800000, "ttl": 1})

# A strike that never comes: CPython from 3.12 on traces the bytecodes of a function only when
# it has been asked for that once.
NEVER = 1_000_000

cpython = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["acquire", "try_acquire", "with", "reclaim"])
def test_an_interrupt_while_the_log_is_written_leaves_the_lock_free(
    how, reentrant, path, monkeypatch
):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    lock = TaskLock(path, "me", reentrant=reentrant)
    monkeypatch.setattr("semlock._systems.task_audit.log", interrupt)
    enter = lock.__enter__ if how == "with" else getattr(lock, how)
    with pytest.raises(KeyboardInterrupt):
        enter()
    assert not lock.held
    assert not os.path.exists(path)


@functools.cache
def names_of(code):
    return {step.offset: step.opname for step in dis.get_instructions(code)}


class Strike:
    """Run something and raise ``KeyboardInterrupt`` at the n-th chance in the lock's modules.

    A chance is behind each bytecode at which interpreters run the handlers of signals.
    ``calls`` counts the calls that had been made by then.
    """

    CHANCES = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME")
    FILES = tuple(
        os.path.join(os.path.dirname(semlock.__file__), *name.split("/"))
        for name in ("_systems/task_lock.py", "_systems/task_taking.py", "_waiting/steps.py")
    )

    def __init__(self, at, operation):
        self.left, self.struck, self.calls = at, False, 0
        self.last = {}
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            operation()
        except KeyboardInterrupt:
            self.struck = True
        finally:
            sys.settrace(before)
            forget_handled()

    def enter(self, frame, event, argument):
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame, event, argument):
        if event == "opcode":
            last = self.last.get(frame, "")
            self.last[frame] = names_of(frame.f_code)[frame.f_lasti]
            if last.startswith(self.CHANCES):
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
            self.calls += self.last[frame].startswith("CALL")
        return self.step


@cpython
@pytest.mark.parametrize("how", ["acquire", "try_acquire", "reclaim", "expired"])
def test_an_interrupt_anywhere_on_the_way_to_the_lock_leaves_it_free(how, path):
    lock = TaskLock(path, "me", reentrant=True, durability="none")
    take = lock.try_acquire if how == "expired" else getattr(lock, how)

    def assert_whole(held):
        assert lock.held is held
        if held:
            lock.check()
            assert task.status(path).info == lock.info
        elif os.path.exists(path):
            # It had not come to removing what it found.
            assert Path(path).read_text() == EXPIRED
            os.unlink(path)

    def prepare():
        if how == "expired":
            Path(path).write_text(EXPIRED)
            lock._native.look_at = 0

    def strike_again():
        # Held already, an interrupt must undo no more than its own call.
        for at in (NEVER, NEVER, *range(1, 1000)):
            strike = Strike(at, take)
            if at == NEVER:
                lock.release()
                continue
            assert_whole(held=True)
            assert lock._native.depth == (1 if strike.struck else 2)
            if not strike.struck:
                lock.release()
                break

    for at in (NEVER, NEVER, *range(1, 1000)):
        prepare()
        strike = Strike(at, take)
        if at == NEVER:
            lock.release()
            continue
        assert_whole(held=not strike.struck)
        if not strike.struck:
            break
    if how in ("acquire", "try_acquire"):
        strike_again()
    lock.release()
    assert at > 5


@cpython
@pytest.mark.parametrize("how", ["acquire", "try_acquire", "reclaim"])
def test_an_interrupt_while_ones_own_expired_lock_begins_anew_leaves_it_held_or_free(how, path):
    now = [1761229800.0]
    lock = TaskLock(path, "me", ttl=1, durability="none", clock=lambda: now[0])
    take = getattr(lock, how)

    for at in (NEVER, NEVER, *range(1, 1000)):
        assert lock.held or lock.try_acquire()
        token = lock.token
        now[0] += 2
        strike = Strike(at, take)
        assert lock.held is os.path.exists(path)
        if lock.held:
            lock.check()
            assert task.status(path).info == lock.info
        if at != NEVER and not strike.struck:
            assert lock.token != token
            break
    lock.release()
    assert at > 5  # CPython 3.10 has fewer chances than later ones


@cpython
@pytest.mark.parametrize("how", ["release", "with"])
def test_an_interrupt_of_a_release_lets_go_all_the_same(how, path):
    lock = TaskLock(path, "me", durability="none")
    release = lock.release if how == "release" else lambda: lock.__exit__(None, None, None)

    for at in (NEVER, NEVER, *range(1, 1000)):
        lock.acquire()
        strike = Strike(at, release)
        if at == NEVER:
            continue
        assert lock.held is os.path.exists(path)
        if lock.held:
            assert strike.calls == 0  # before anything was done
            lock.release()
        if not strike.struck:
            break
    assert at > 1
