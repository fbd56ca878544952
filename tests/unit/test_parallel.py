"""When the tests run in several processes: never from within one of them, and only for many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import parallel

pytest.importorskip("xdist")
if sys.platform == "win32":
    pytest.skip("the tests of the run itself need no second platform", allow_module_level=True)

TESTS = Path(parallel.__file__).parent

CONFTEST = """
import pytest, parallel

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    parallel.choose(config)

@pytest.fixture(autouse=True)
def turn(request, tmp_path_factory):
    with parallel.turn(request.node, tmp_path_factory):
        yield
"""

# Each test says in which process it was, and those of a group that no other is there.
SOURCE = """
import os, time, pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.one_at_a_time("here")
def test_of_a_group(number):
    os.close(os.open(os.environ["RAN"] + ".here", os.O_CREAT | os.O_EXCL))
    time.sleep(0.05)
    os.unlink(os.environ["RAN"] + ".here")

@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{os.getpid()} ")
"""

# What a pytest in a test would inherit of this one.
OURS = (
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_TESTRUNUID",
    "PYTEST_CURRENT_TEST",
    "PYTEST_ADDOPTS",
)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_some.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -m 'not stress' -p no:randomly\ntestpaths = folder\n"
        "markers =\n    stress\n    one_at_a_time\n"
    )
    return tmp_path


def run(project, *words, **more):
    """Run pytest there, and give the processes that ran tests."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    environment |= {"RAN": str(project / "ran"), "PYTHONPATH": str(TESTS), **more}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("12 passed")
    return set((project / "ran").read_text().split())


def test_many_tests_run_in_several_processes_and_those_of_a_group_one_at_a_time(project):
    assert len(run(project)) > 1


@pytest.mark.parametrize("name", ["PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"])
def test_a_pytest_within_a_test_starts_no_others(project, name):
    assert len(run(project, **{name: "gw0"})) == 1


CHOICES = {
    "": True,
    "folder": True,
    "folder -x": True,
    "folder/test_some.py": False,
    "folder/test_some.py::test_alone": False,
    "-k alone": False,
    "--lf": False,
    "--sw": False,
    "--pdb": False,
    "-s": False,
    "--collect-only": False,
    "-m stress": False,
    "-n 0": False,
    "-n 2": True,
    "-p no:xdist": False,
    "-p no:cacheprovider -p no:debugging": True,
}

# A plugin that says what was chosen, and ends the run there.
ASKS = """
import sys, pytest

class Asks:
    def pytest_cmdline_main(self, config):
        option = config.option
        said.append(bool(getattr(option, "tx", None)) and option.dist == "worksteal")
        return 0

said = []
for words in sys.argv[1:]:
    assert pytest.main(words.split(), [Asks()]) == 0
print(said)
"""


def test_which_calls_have_several_processes(project):
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [sys.executable, "-c", ASKS, *CHOICES],
        cwd=project, env=environment | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == str([*CHOICES.values()]), done.stderr
