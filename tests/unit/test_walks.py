"""How long the ways through the house are: calls of Python functions, and the files they are in.

Each walk is made in a process of its own, which has held another lock before, except for
``semlock run``.  Comprehensions don't count, nor do the second and later steps of a generator,
because Python's versions count them differently.  ``pytest -s`` prints the numbers.
"""

from __future__ import annotations

import contextlib
import sys
from typing import NamedTuple

import pytest

from crowd import tickets
from support import Child, wait_until, watched_by

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the calls are those of this platform"),
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="CPython's hook counts"),
]

MEASURE = """
import asyncio, os, sys, semlock
from semlock import AsyncLock, sidecar, task
from semlock.cli import main

house = os.path.dirname(semlock.__file__) + os.sep

def walk(call):
    steps, first = [], {}

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(house):
            # A generator that goes on stands behind its first instruction.
            begins = first.setdefault(code, frame.f_lasti) == frame.f_lasti
            if begins and not code.co_name.startswith("<"):
                steps.append((code.co_filename[len(house):], code.co_name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return steps

async def take(lock):
    await lock.acquire()
"""


class Walk(NamedTuple):
    """What is called, the most calls and files that it may take, and what is there before."""

    call: str
    calls: int
    files: int
    before: str = ""
    other: str = ""  # what another process does with the lock
    cold: bool = False


LOCK = "lock = semlock.Lock(path)"
LIVES = "lock.release()"
# What the first wait of a process does once.
WALKED = "from semlock._waiting import waiter; waiter._walk_back()"

WALKS = {
    "acquire": Walk("lock.acquire", 2, 2, f"{LOCK}; lock.acquire(); lock.release()"),
    "release": Walk("lock.release", 1, 1, f"{LOCK}; lock.acquire()"),
    "contended acquire": Walk("lock.acquire", 9, 4, f"{LOCK}; {WALKED}", LIVES),
    "take-over from a dead holder": Walk("lock.acquire", 3, 2, LOCK, "ends"),
    # 55 calls, and one more if the loop runs a timer whose task was woken before.
    "contended AsyncLock, first use": Walk(
        "lambda: asyncio.run(take(lock))", 56, 8, "lock = AsyncLock(path)", LIVES
    ),
    "TaskLock()": Walk(
        "lambda: task.TaskLock(path, owner)", 51, 16, "owner = task.owner_for()"
    ),
    "acquire_file_lock": Walk("lambda: sidecar.acquire_file_lock(path)", 45, 17),
    "semlock run": Walk("lambda: main(['run', path, '--', 'true'])", 92, 21, cold=True),
}


def steps_of(walk: Walk, path: str) -> list[tuple[str, str]]:
    """Make a walk, and list the calls: file and function."""
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(Child(MEASURE))
        if not walk.cold:
            first = f"{path}.first"
            child.run(f"first = semlock.Lock({first!r}); first.acquire(); first.release()")
            child.run("first.acquire(); first.release(); del first")
        child.run(f"path = {path!r}\n{walk.before}\nNone")
        if walk.other:
            holder = stack.enter_context(Child())
            holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        if walk.other == LIVES:
            child.send(f"walk({walk.call})")
            wait_until(lambda: tickets(path) or watched_by(child.pid), "it sleeps")
            holder.run(LIVES)
            return child.receive()
        if walk.other:
            holder.kill()
        return child.run(f"walk({walk.call})")


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_through_the_house_stays_short(name, tmp_path):
    walk = WALKS[name]
    # A process that comes late to the processor goes a few steps again, so the shortest counts.
    steps = steps_of(walk, str(tmp_path / "x"))
    for again in "ab" if len(steps) > walk.calls else "":
        steps = min(steps, steps_of(walk, str(tmp_path / again)), key=len)
    files = {file for file, _ in steps}
    if "hub.py" in str(files) and ("_waiting/hub.py", "_listen_to") not in steps:
        pytest.skip("the system has no event source left: the loop polls, which takes more")
    print(f"\n{name}: {len(steps)} calls in {len(files)} files")
    told = "\n".join(f"{file}: {function}" for file, function in steps)
    assert len(steps) <= walk.calls, told
    assert len(files) <= walk.files, told


COLD = """
import os, sys, semlock

house = os.path.dirname(semlock.__file__) + os.sep
warm, cold, awake = set(), [], False

def note(frame, event, argument):
    global awake
    if event == "call" and frame.f_code.co_filename.startswith(house):
        if awake and frame.f_code not in warm:
            cold.append(frame.f_code.co_name)
        warm.add(frame.f_code)
    elif event == "c_return" and argument.__name__ == "semlock_waiting_again":
        awake = True
"""


def test_a_forked_child_has_walked_the_way_from_the_wake_to_the_caller_before_it_sleeps(
    tmp_path,
):
    """What runs after the wake for the first time in a process copies pages of its parent's."""
    path = str(tmp_path / "x")
    with Child() as holder, Child(COLD) as waiter:
        waiter.run(
            f"from semlock._waiting import waiter; {WALKED}; lock = semlock.Lock({path!r})"
        )
        holder.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        waiter.send(
            "read, write = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    sys.setprofile(note); lock.acquire(); sys.setprofile(None); lock.release()\n"
            "    os.write(write, repr((awake, cold)).encode()); os._exit(0)\n"
            "told = os.read(read, 1000).decode(); os.wait(); told\n"
        )
        wait_until(lambda: tickets(path), "it sleeps")
        holder.run("lock.release()")
        assert waiter.receive() == "(True, [])"
