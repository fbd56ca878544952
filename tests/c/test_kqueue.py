"""Waiting as on macOS and the BSDs, on a kqueue that is made of what Linux has."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

WAYS = {
    "plain": [],
    "address and undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="its kqueue is made of inotify and pidfd"
)


def sources():
    # As in test_core.py.  The seam to Linux, but for its events, is included by the program.
    text = (ROOT / "csrc" / "build_ffi.py").read_text()
    names = {}
    exec(text[text.index("SHARED =") : text.index("def sources")], names)
    core = [*names["SHARED"], *names["POSIX"], "kqueue_events.c"]
    return [str(ROOT / "csrc" / name) for name in core]


@pytest.mark.parametrize("way", WAYS)
def test_what_kqueue_tells_is_heard(way, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler")
        pytest.skip("no C compiler")
    program = tmp_path / "kqueue"
    build = [
        compiler, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_DEFAULT_SOURCE",
        "-D_FILE_OFFSET_BITS=64", *WAYS[way], "-I", str(HERE / "kqueue"),
        "-I", str(ROOT / "csrc"), str(HERE / "kqueue.c"), str(HERE / "kqueue" / "event.c"),
        *sources(), "-o", str(program), "-pthread",
    ]  # fmt: skip
    subprocess.run(build, check=True)
    work = tmp_path / "work"
    work.mkdir()
    command = [str(program), str(work)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("all well\n")
