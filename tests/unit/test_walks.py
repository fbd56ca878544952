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

WALKS = {
    "acquire": Walk("lock.acquire", 2, 2, f"{LOCK}; lock.acquire(); lock.release()"),
    "release": Walk("lock.release", 1, 1, f"{LOCK}; lock.acquire()"),
    "contended acquire": Walk("lock.acquire", 14, 4, LOCK, LIVES),
    "take-over from a dead holder": Walk("lock.acquire", 3, 2, LOCK, "ends"),
    # 55 calls, and one more if the loop runs a timer whose task was woken before.
    "contended AsyncLock, first use": Walk(
        "lambda: asyncio.run(take(lock))", 56, 10, "lock = AsyncLock(path)", LIVES
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
    steps = steps_of(walk, str(tmp_path / "x"))
    files = {file for file, _ in steps}
    if "hub.py" in str(files) and ("_waiting/hub.py", "_listen_to") not in steps:
        pytest.skip("the system has no event source left: the loop polls, which takes more")
    print(f"\n{name}: {len(steps)} calls in {len(files)} files")
    told = "\n".join(f"{file}: {function}" for file, function in steps)
    assert len(steps) <= walk.calls, told
    assert len(files) <= walk.files, told
