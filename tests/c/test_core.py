"""The core's own tests, plain and under everything that finds what tests don't see."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc"))

WAYS = {
    "plain": [],
    "address and undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread"],
    "valgrind": [],
}

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts descriptors in /proc"
)


def sources():
    # cffi is not needed for the list, so the file is read and not imported.
    text = (ROOT / "csrc" / "build_ffi.py").read_text()
    names = {}
    exec(text[text.index("SHARED =") : text.index("def sources")], names)
    own = ["linux_system.c", "linux_events.c"]
    return [str(ROOT / "csrc" / n) for n in [*names["SHARED"], *names["POSIX"], *own]]


@pytest.mark.parametrize("way", WAYS)
def test_the_core_is_well(way, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None or (way == "valgrind" and shutil.which("valgrind") is None):
        if os.environ.get("CI"):
            pytest.fail(f"{way}: the tools for it are not installed")
        pytest.skip("no C compiler, or no valgrind")
    program = tmp_path / "core"
    build = [
        compiler, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_FILE_OFFSET_BITS=64",
        *WAYS[way], "-I", str(ROOT / "csrc"), str(ROOT / "tests" / "c" / "core.c"), *sources(),
        "-o", str(program), "-pthread",
    ]  # fmt: skip
    subprocess.run(build, check=True)
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
