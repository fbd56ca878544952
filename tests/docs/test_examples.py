"""The examples of the documentation run as they stand, each page in an empty directory."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    "tutorial.md",
    "waiting.md",
    *(f"howto/{p.name}" for p in (DOCS / "howto").glob("*.md")),
]
END_OF_BLOCK = "\0"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(language):
    """Give each page that has examples in a language, and all of them as one program."""
    programs = []
    for page in sorted(PAGES):
        blocks = [b for kind, b in BLOCK.findall((DOCS / page).read_text()) if kind == language]
        if blocks:
            # Python's blocks go on where the last one ended, a shell's are scripts of their own.
            between = "\n" if language == "python" else END_OF_BLOCK
            programs.append(pytest.param(between.join(blocks), id=page))
    return programs


def run(command, tmp_path, program):
    scripts = sysconfig.get_path("scripts")
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [*command, program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, f"{program}\n{result.stdout}{result.stderr}"
    left = [name for name in os.listdir(tmp_path) if name.endswith((".lock", ".queue"))]
    assert not left, f"the examples leave {left}"


@pytest.mark.parametrize("program", examples("python"))
def test_the_python_examples_run(program, tmp_path):
    run([sys.executable, "-X", "dev", "-c"], tmp_path, program)


@pytest.mark.parametrize("program", examples("sh"))
def test_the_shell_examples_run(program, tmp_path):
    if (
        shutil.which("bash") is None
        or shutil.which("semlock", path=sysconfig.get_path("scripts")) is None
    ):
        pytest.skip("no bash, or the command is not installed")
    for script in program.split(END_OF_BLOCK):
        run(["bash", "-euc"], tmp_path, script)
