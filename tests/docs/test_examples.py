"""The examples of the documentation run as they stand, each page in an empty directory."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import bucket_of_objects
from engine_urls import url_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [Path("README.md"), *(p.relative_to(ROOT) for p in (ROOT / "docs").glob("**/*.md"))]
# Here the commands of all kinds of work stand for themselves, and not in the order of a script.
OVERVIEWS = {"README.md", "docs/cli.md"}
# What .ci/run does, and what needs a server.
NOT_HERE = (
    "python3 -m venv",
    "pip install",
    "SEMLOCK_MOUNTED=",
    "# needs a server",
    "# DATABASE_URL",
)
WITH_SERVERS = ROOT / "docs" / "howto" / "fences.md"
END_OF_BLOCK = "\0"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(language, pages):
    """Give each page that has examples in a language, and all of them as one program."""
    programs = []
    for page in sorted(pages):
        found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
        blocks = [b for kind, b in found if kind == language and not b.startswith(NOT_HERE)]
        if blocks:
            # Python's blocks go on where the last one ended, a shell's are scripts of their own.
            between = "\n" if language == "python" else END_OF_BLOCK
            programs.append(pytest.param(between.join(blocks), id=str(page)))
    return programs


def run(command, tmp_path, program, **changes):
    scripts = sysconfig.get_path("scripts")
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", **changes}
    result = subprocess.run(
        [*command, program], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, f"{program}\n{result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    left = [name for name in os.listdir(tmp_path) if name.endswith((".lock", ".queue"))]
    assert not left, f"the examples leave {left}"
    return result.stdout


@pytest.mark.parametrize("program", examples("python", PAGES))
def test_the_python_examples_run(program, tmp_path):
    run([sys.executable, "-X", "dev", "-c"], tmp_path, program)


@pytest.fixture
def bucket():
    """An object store that takes conditional writes, as S3 does."""
    with closing(bucket_of_objects.serve()) as server:
        yield server.url


WITH_DATABASE = [
    block
    for kind, block in BLOCK.findall(WITH_SERVERS.read_text(encoding="utf-8"))
    if kind == "python"
]


@pytest.mark.parametrize("program", WITH_DATABASE, ids=["rows", "objects"])
def test_the_examples_with_fences_run(program, tmp_path, postgresql_server, bucket):
    pytest.importorskip("psycopg")
    servers = {"DATABASE_URL": url_of(postgresql_server), "BUCKET_URL": bucket}
    assert program.startswith("# DATABASE_URL")
    for _ in range(2):  # on what the first run has left, too
        said = run([sys.executable, "-X", "dev", "-c"], tmp_path, program, **servers)
        assert said == "the late write was refused\n"
    # Without the condition the late write is taken.
    without = program.replace(" WHERE report.fence <= EXCLUDED.fence", " ").replace(
        '"WHERE report.fence <= EXCLUDED.fence', '"'
    )
    without = without.replace('["fence"] > fence', '["fence"] > fence + 10**30')
    assert without != program
    with pytest.raises(AssertionError):
        assert run([sys.executable, "-c"], tmp_path, without, **servers) == said


@pytest.fixture
def shell():
    """The words before a script; the test is skipped where there is no shell, or no command."""
    scripts = sysconfig.get_path("scripts")
    if shutil.which("bash") is None or shutil.which("semlock", path=scripts) is None:
        pytest.skip("no bash, or the command is not installed")
    return ["bash", "-uc"]


SCRIPTS = [page for page in PAGES if page.as_posix() not in OVERVIEWS]


@pytest.mark.parametrize("program", examples("sh", SCRIPTS))
def test_the_shell_examples_run(program, tmp_path, shell):
    for script in program.split(END_OF_BLOCK):
        run(shell, tmp_path, f"set -e\n{script}")


# Before the examples of an overview: programs that they start, and what they find.
STAGE = """
mkdir -p bin .zfunc .config/fish/completions dist
for name in make pg_dump jq render work job swap encode build; do
    printf '#!/bin/sh\\nexit 0\\n' > bin/$name
    chmod +x bin/$name
done
ln -sf bin/* .
export HOME=$PWD PATH=$PWD/bin:$PATH USER=somebody SEMLOCK_TRACE=t.jsonl
command semlock run any.lock -- true
unset SEMLOCK_TRACE
# The lock of an example is its shell's, so this has to be called there.
semlock() {
    command semlock "$@"
    local code=$?
    echo "$code semlock $*" >> codes
    return $code
}
(
"""


@pytest.mark.parametrize(
    "program", examples("sh", [page for page in PAGES if page.as_posix() in OVERVIEWS])
)
def test_the_command_takes_the_examples_of_an_overview(program, tmp_path, shell):
    """Each is right usage, whatever it finds: a lock to refresh may be missing."""

    def take(number: int, script: str) -> None:
        work = tmp_path / str(number)
        work.mkdir()
        run(shell, work, f"{STAGE}{script}\n)\ncommand semlock clean -qy .\ntrue")
        lines = (work / "codes").read_text(encoding="utf-8").splitlines()
        assert lines, script
        assert not [line for line in lines if line.startswith("2 ")], lines

    # They mostly sleep, so some at a time.
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(take, itertools.count(), program.split(END_OF_BLOCK)):
            pass
