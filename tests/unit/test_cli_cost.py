"""What the calls cost that scripts make most: modules and system calls, which are countable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import semlock

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or sys.implementation.name != "cpython",
    reason="the short way is for POSIX, and what a start imports is CPython's",
)

# In one process: a call, and the same again.  Between the marks nothing is imported any more.
PROGRAM = """
import os, sys
sys.path[:0] = {places!r}
before = set(sys.modules)
sys.argv[0] = "/usr/bin/semlock"
from semlock.cli import main

after, words = sys.argv[1], sys.argv[2:]


def mark(name):
    try:
        os.stat("/semlock-mark/" + name)
    except OSError:
        pass


code = main(words)
new = sorted(set(sys.modules) - before)
if words[0] == "try":
    os.unlink(words[-1])
if words[0] == "release":
    os.rename(after, words[-1])
mark("begin")
again = main(words)
mark("end")
sys.stdout.flush()
sys.stderr.write(" ".join([str(code), str(again), *new]))
"""

START = {"", "_cli", "_core", "cli"}
CORE = {
    "_cli.plain", "_core.capi", "_core.compiled", "_core.compiled.lib", "_core.identity",
    "_core.paths", "_core.records",
}  # fmt: skip
TABLES = {
    "_cli.flock_verb", "_cli.options", "_cli.parsing", "_cli.table", "_cli.verbs", "systems",
}  # fmt: skip
# Small ones of Python, which import nothing.
OTHERS = {"__future__", "_cffi_backend", "_operator", "_signal", "errno"}

OWNER = ["--owner-pid", str(os.getpid())]
CALLS = {
    "status": (["status"], START | {"_cli.starting"}, 7),
    "try": (["try"], START | CORE | {"_cli.owners"}, None),
    "try, for an owner": (["try", *OWNER], START | CORE | TABLES, 40),
    "release": (
        ["release"],
        START | CORE | {"_cli.owners"},
        None,
    ),
    "release, of an owner": (["release", *OWNER], None, 29),
    "run": (["run"], START | CORE | {"_cli.passing"}, 51),
}


def called(words, path, *before) -> tuple[set[str], set[str]]:
    """Call the command twice in a process, and give the modules of semlock and of others."""
    rest = ["--", "true"] if words[0] == "run" else []
    if words[0] == "release":
        for name in (path, f"{path}.2"):
            with open(name, "xb"):
                pass
            os.unlink(name)
            took = [sys.executable, "-m", "semlock", "try", *OWNER, name]
            subprocess.run(took, check=True)
    # Isolated and without site, which imports modules itself for editable packages.
    places = [str(Path(semlock.__file__).parent.parent), *filter(None, sys.path)]
    done = subprocess.run(
        [
            *before, sys.executable, "-I", "-S", "-c", PROGRAM.format(places=places),
            f"{path}.2", *words, path, *rest,
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, again, *modules = done.stderr.split()
    assert (code, again) == ("0", "0"), done
    own = {name for name in modules if name.split(".")[0] == "semlock"}
    return {name.partition(".")[2] for name in own}, set(modules) - own


@pytest.mark.parametrize("name", [name for name, row in CALLS.items() if row[1]])
def test_a_short_call_imports_these_modules_and_no_other(path, name):
    words, expected, _ = CALLS[name]
    own, others = called(words, path)
    assert own == expected
    assert others <= OTHERS


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace lists the calls")
@pytest.mark.parametrize("name", [name for name, row in CALLS.items() if row[2]])
def test_a_short_call_makes_few_system_calls(path, tmp_path, name):
    words, _, most = CALLS[name]
    log = tmp_path / "calls"
    called(words, path, "strace", "-o", str(log))
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    begin, end = (
        next(at for at, line in enumerate(lines) if f'"/semlock-mark/{mark}"' in line)
        for mark in ("begin", "end")
    )
    # Where a signal comes is a matter of time.
    calls = [
        line for line in lines[begin + 1 : end] if not line.startswith(("---", "rt_sigreturn"))
    ]
    assert len(calls) <= most, "\n".join(calls)
