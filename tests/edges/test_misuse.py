"""What can't be meant is refused in words, and what Python does with every object works."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import subprocess
import sys
import weakref

import pytest

import semlock

KINDS = [
    semlock.Lock, semlock.AsyncLock, lambda path, **options: semlock.SlotLock(path, 2, **options),
    semlock.SharedLock, semlock.KernelLock,
]  # fmt: skip
kinds = pytest.mark.parametrize(
    "kind", KINDS, ids=["Lock", "AsyncLock", "SlotLock", "SharedLock", "KernelLock"]
)


@kinds
@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_one_lock_is_never_two(path, kind, twice):
    with pytest.raises(TypeError, match="same path in the other process"):
        twice(kind(path))


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_set_is_never_two(path, twice):
    # They would share what reports that a lock is free, and each would lose reports.
    with pytest.raises(TypeError, match=r"copied or pickled|same path"):
        twice(semlock.LockSet([semlock.Lock(path)]))
    with pytest.raises(TypeError, match="copied or pickled"):
        twice(semlock.LockSet())


@kinds
def test_a_lock_can_be_referred_to_weakly(path, kind):
    lock = kind(path)
    assert weakref.ref(lock)() is lock


@kinds
@pytest.mark.parametrize("number", [0o600, 0, 1, None, "yes"])
def test_permissions_are_not_taken_for_a_yes(path, kind, number):
    # A file meant for its user only would be readable for all.
    with pytest.raises(TypeError, match="exact_mode is True or False"):
        kind(path, exact_mode=number)


@pytest.mark.parametrize("wrong", [[], {}, None, 1, "fast"])
def test_durability_is_one_of_four_words(path, wrong):
    with pytest.raises(ValueError, match="durability is"):
        semlock.Lock(path, durability=wrong)


@kinds
@pytest.mark.skipif(sys.platform == "win32", reason="each text has a form in UTF-16 there")
def test_a_path_that_has_no_bytes_is_no_lock(path, kind):
    with pytest.raises(semlock.LockPathError, match="it has no bytes"):
        kind(str(path) + "\ud800")
    assert kind(str(path) + "\udcff\xe9").path.endswith("\udcff\xe9")  # bytes that are no text


@pytest.mark.parametrize("kind", [semlock.Lock, semlock.KernelLock])
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such files")
def test_a_socket_is_no_lock(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("it")
        lock = kind("it", timeout=0)
        with pytest.raises(semlock.LockPathError, match="not a regular file"):
            lock.try_acquire()
        assert not lock.held
    assert os.path.exists("it")


EXECUTES = """
import os, sys, semlock
lock = semlock.Lock(sys.argv[1])
lock.acquire()
again = '''
import sys, semlock
try:
    semlock.Lock(sys.argv[1], timeout=0).acquire()
except semlock.LockTimeoutError as error:
    print(error)
'''
os.execv(sys.executable, [sys.executable, "-c", again, sys.argv[1]])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="exec is another process there")
def test_a_program_that_executes_itself_is_told_that_its_own_process_holds(path):
    done = subprocess.run(
        [sys.executable, "-c", EXECUTES, str(path)],
        cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "this very process" in done.stdout
    assert "before it executed this program" in done.stdout
    assert "it ends with this process" in done.stdout
    assert done.stderr == ""
