"""The core's own tests, plain and under everything that finds what tests don't see."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sources import sources

import building

ROOT = Path(__file__).resolve().parents[2]
CORE = [ROOT / "csrc" / name for name in sources()]

WAYS = {
    "plain": [],
    "address and undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread"],
    "valgrind": [],
}

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts descriptors in /proc"
)


# What valgrind runs is the plain program, and by default the quicker one.
LATER = [("plain", "core"), ("plain", "portable"), ("valgrind", "portable")]


@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=pytest.mark.stress if (way, name) in LATER else ())
        for way in WAYS
        for name in ("core", "portable")
    ],
)
def test_the_core_is_well(way, name, tmp_path, tmp_path_factory):
    if way == "valgrind" and shutil.which("valgrind") is None:
        if os.environ.get("CI"):
            pytest.fail("valgrind is not installed")
        pytest.skip("no valgrind")
    flags = [
        "-std=c11", "-g1", "-O1", "-Wall", "-Wextra", "-Werror", "-D_FILE_OFFSET_BITS=64",
        *WAYS[way], "-I", str(ROOT / "csrc"),
    ]  # fmt: skip
    made = building.objects(tmp_path_factory, CORE, flags)
    program = building.program(tmp_path / name, made, ROOT / "tests" / "c" / f"{name}.c", flags)
    work = tmp_path / "work"
    work.mkdir()
    command = [str(program), str(work)]
    if way == "valgrind":
        command = [
            "valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--track-fds=no",
            "--fair-sched=yes", *command,
        ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("all well\n")
