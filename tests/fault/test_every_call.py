"""Each operation, with each fault at each of its system calls.

What is done and what must be true afterwards is in ``faultops``; a fault is an error before
or after the call was made, the same error for ever, or SIGKILL before or after it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import faultlib
from semlock import _core

SOURCE = Path(faultlib.__file__).with_name("faultops.py")
# Read from the source: importing it would want the shim in this process.
OPERATIONS = [
    pytest.param(name, marks=[pytest.mark.stress] if "long=True" in options else [])
    for options, name in re.findall(
        r"^@operation(.*)\ndef (\w+)", SOURCE.read_text(encoding="utf-8"), re.MULTILINE
    )
]

# What the core calls that is no system call, or none that can fail.
HARMLESS = re.compile(
    r"_|Py|semlock_|str|mem|clock_gettime|free|getpid|malloc|pthread_self|pthread_sigmask|sched_yield|sigfillset|snprintf"
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_ends_held_or_in_a_clear_error_with_nothing_left(name, shim, tmp_path):
    done = subprocess.run(
        [sys.executable, SOURCE, name, tmp_path],
        env=faultlib.preloaded(shim),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["calls"]
    assert report["cases"] >= len(report["calls"]) * 18


def test_the_shim_knows_every_system_call_of_the_core(shim):
    imported = names_in(_core.__file__, "--undefined-only")
    known = names_in(shim, "--defined-only")
    assert {name for name in imported if not HARMLESS.match(name)} <= known


def names_in(library, which):
    listed = subprocess.run(
        ["nm", "-D", which, library], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
