"""A module that another thread is just importing is in `sys.modules`, without its attributes."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from semlock._core import registry

# A thread imports a module of this name, and stops in the middle of it.
HALF = """
import sys, threading
begun, go_on = threading.Event(), threading.Event()
sys.modules["the_test"] = sys.modules["__main__"]
def bring_in():
    __import__(sys.argv[1])
thread = threading.Thread(target=bring_in, daemon=True)
thread.start()
begun.wait()
assert sys.argv[1] in sys.modules
"""
MODULE = """
import the_test, types
the_test.begun.set()
the_test.go_on.wait()
lowlevel = types.SimpleNamespace(in_trio_task=lambda: False)
"""
END = """
go_on.set()
thread.join()
print("done")
"""

# What looks into the module if the program has it.
OF_LOGGING = """
import semlock, semlock.filelock, semlock.trace
semlock.trace.start("trace.jsonl")
try:
    semlock.Lock("x.lock").acquire(timeout=0.01)
except semlock.LockTimeoutError:
    pass
with semlock.filelock.FileLock("y.lock"):
    pass
"""
OF_LOGGING_IN_A_PLAIN_WAIT = """
import semlock
with semlock.Lock("z.lock", held_by="object"):
    try:
        semlock.Lock("z.lock").acquire(timeout=0.01)
    except semlock.LockTimeoutError:
        pass
"""
OF_TRIO = """
semlock.trace.start("trace.jsonl")
async def main():
    try:
        await semlock.AsyncLock("x.lock").acquire(timeout=0.01)
    except semlock.LockTimeoutError:
        pass
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("name", "first", "use"),
    [
        ("logging", "", OF_LOGGING),
        ("logging", "", OF_LOGGING_IN_A_PLAIN_WAIT),
        ("trio", "import asyncio, semlock, semlock.trace\n", OF_TRIO),
    ],
)
def test_is_not_used_before_it_is_whole(name, first, use, tmp_path):
    """A wait beside a thread that was importing `logging` ended with an AttributeError."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{name}.py").write_text(MODULE)
    (tmp_path / "x.lock").write_text("pid=1\n")
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'modules')!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", first + path + HALF + use + END, name],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_is_given_when_it_is_whole(monkeypatch):
    module = types.ModuleType("half_of_it")
    assert registry.imported("half_of_it") is None
    monkeypatch.setitem(sys.modules, "half_of_it", module)
    assert registry.imported("half_of_it") is module  # made by hand: it has no spec
    assert registry.imported("sys") is sys
