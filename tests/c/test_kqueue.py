"""macOS and the BSDs, as far as they can be run on Linux: their own sources, on their kernels.

The kernels are stand-ins (``bsd/`` and ``kqueue/``), made of what Linux has and of what is
known of those systems.  So the sources' logic is run here, and not the systems.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from sources import sources

import building

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

# The word by which the sources know each system.
SYSTEMS = {
    "darwin": "__APPLE__",
    "freebsd14": "__FreeBSD__",
    "netbsd10": "__NetBSD__",
    "openbsd7": "__OpenBSD__",
}
# Of the BSDs one by default: their sources differ in a few lines.
BY_DEFAULT = [
    ("core", "darwin"), ("kqueue", "darwin"), ("bsd", "freebsd14"), ("kqueue", "freebsd14"),
]  # fmt: skip
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernels are made of what Linux has"
)


@pytest.mark.leaves("queue")
@pytest.mark.parametrize(
    ("program", "system"),
    [
        pytest.param(
            program, system, marks=() if (program, system) in BY_DEFAULT else pytest.mark.stress
        )
        for program in ("bsd", "core", "kqueue")
        for system in SYSTEMS
    ],
)
def test_the_sources_of_other_systems_are_well(program, system, tmp_path, tmp_path_factory):
    flags = [
        "-std=c11", "-g1", "-O0", "-Wall", "-Wextra", "-Werror", f"-D{SYSTEMS[system]}=1",
        "-D_FILE_OFFSET_BITS=64", *SANITIZERS, "-I", str(HERE / "bsd"), "-I", str(HERE / "kqueue"),
        "-I", str(ROOT / "csrc"), "-include", str(HERE / "bsd" / "kernel.h"),
    ]  # fmt: skip
    parts = [HERE / "bsd" / "kernel.c", HERE / "kqueue" / "event.c"]
    parts += [ROOT / "csrc" / name for name in sources(system)]
    made = building.objects(tmp_path_factory, parts, flags)
    binary = building.program(tmp_path / program, made, HERE / f"{program}.c", flags)
    work = tmp_path / "work"
    work.mkdir()
    command = [str(binary), str(work)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=55)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("all well\n")
