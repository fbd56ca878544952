"""macOS and the BSDs, as far as they can be run on Linux: their own sources, on their kernels.

The kernels are stand-ins (``bsd/`` and ``kqueue/``), made of what Linux has and of what is
known of those systems.  So the sources' logic is run here, and not the systems.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sources import sources

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

# The word by which the sources know each system.
SYSTEMS = {
    "darwin": "__APPLE__",
    "freebsd14": "__FreeBSD__",
    "netbsd10": "__NetBSD__",
    "openbsd7": "__OpenBSD__",
}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernels are made of what Linux has"
)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("program", ["bsd", "core", "kqueue"])
def test_the_sources_of_other_systems_are_well(program, system, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler")
        pytest.skip("no C compiler")
    binary = tmp_path / program
    build = [
        compiler, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-D{SYSTEMS[system]}=1",
        "-D_FILE_OFFSET_BITS=64", *SANITIZERS, "-I", str(HERE / "bsd"), "-I", str(HERE / "kqueue"),
        "-I", str(ROOT / "csrc"), "-include", str(HERE / "bsd" / "kernel.h"),
        str(HERE / f"{program}.c"), str(HERE / "bsd" / "kernel.c"),
        str(HERE / "kqueue" / "event.c"),
        *(str(ROOT / "csrc" / name) for name in sources(system)),
        "-o", str(binary), "-pthread",
    ]  # fmt: skip
    subprocess.run(build, check=True)
    work = tmp_path / "work"
    work.mkdir()
    command = [str(binary), str(work)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("all well\n")
