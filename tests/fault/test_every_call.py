"""Each operation, with each fault at each of its system calls.

What is done and what must be true afterwards is in ``faultops`` and ``common_ops``; a fault is
an error before or after the call was made, the same error for ever, or SIGKILL before or after
it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import actors
import faultlib
from semlock._core import compiled
from support import chance_of_the_day

SOURCE = Path(faultlib.__file__).with_name("faultops.py")
COMMON = SOURCE.with_name("common_ops.py")
# Those that the core tells from others, and one of the others: each operation meets them by
# default, and with -m stress every one.
TYPICAL = ["EIO", "EINTR", "EACCES"]
# Those that wait or take long meet one of these by default, another one each day.
SLOW = (
    "acquire_where_there_are_no_links", "clean", "reclaim_of_a_kept_claim",
    "release_that_keeps_and_sweeps", "wait_behind_another", "wait_for_a_death",
)  # fmt: skip
EVERY = ["ENOSPC", "EIO", "EMFILE", "EINTR", "ENOLCK", "EACCES", "EROFS", "ESTALE"]


def operations():
    """Read them from the sources: importing them would want the shim in this process."""
    text = "".join(source.read_text(encoding="utf-8") for source in (COMMON, SOURCE))
    for options, name in re.findall(r"^@operation(.*)\ndef (\w+)", text, re.MULTILINE):
        yield pytest.param(name, EVERY, marks=pytest.mark.stress, id=name)
        if "long=True" not in options:
            some = [chance_of_the_day().choice(TYPICAL)] if name in SLOW else TYPICAL
            yield pytest.param(name, some, id=f"{name}, some errors")


# What the core calls that is no system call, or none that can fail; and those by which it starts
# a command, whose errors tests/edges/test_run_at_once.py makes.
HARMLESS = re.compile(
    r"_|Py|semlock_|str|mem|clock_gettime|free|getpid|gete[ug]id|getres[ug]id|malloc|calloc|pthread_|sched_yield"
    r"|sig|vfork|execve|environ|pipe2|snprintf|sscanf|nanosleep|sysconf|mmap|munmap|madvise|unshare|lseek"
)


@pytest.fixture(scope="module")
def sweeps(shim):
    """The process that does the operations, each in a child of its own."""
    process = subprocess.Popen(
        [sys.executable, SOURCE],
        env=actors.preloaded(shim),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


@pytest.fixture
def directory(tmp_path):
    """In memory where there is such a place: thousands of cases have a directory each."""
    shm = "/dev/shm"
    if not os.access(shm, os.W_OK):
        yield str(tmp_path)
        return
    made = tempfile.mkdtemp(dir=shm)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(("name", "errors"), [*operations()])
def test_ends_held_or_in_a_clear_error_with_nothing_left(name, errors, sweeps, directory):
    sweeps.stdin.write(json.dumps([name, directory, errors]) + "\n")
    sweeps.stdin.flush()
    report = json.loads(sweeps.stdout.readline())
    assert report["problems"] == []
    assert report["calls"]
    assert report["cases"] >= len(report["calls"]) * 2 * (len(errors) + 1)


def test_the_shim_knows_every_system_call_of_the_core(shim):
    imported = names_in(compiled.__file__, "--undefined-only")
    known = names_in(shim, "--defined-only")
    assert {name for name in imported if not HARMLESS.match(name)} <= known


def names_in(library, which):
    listed = subprocess.run(
        ["nm", "-D", which, library], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
