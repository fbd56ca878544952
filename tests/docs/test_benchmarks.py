"""The benchmarks can be run: each of their modules loads, and the command knows each part."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they run on Linux")
ROOT = Path(__file__).resolve().parents[2]
PARTS = {"alone", "fresh", "polls", "waiting", "crowds", "command", "engines"}


def test_each_module_loads(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    package = importlib.import_module("benchmarks")
    names = [module.name for module in pkgutil.walk_packages(package.__path__, "benchmarks.")]
    assert {"benchmarks.users.fresh", "benchmarks.users.polls"} <= set(names)
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)


def test_the_command_offers_each_part_of_the_page():
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    offered = said.partition("{")[2].partition("}")[0].replace("\n", "").replace(" ", "")
    assert set(offered.split(",")) == {"all", *PARTS}


def test_the_command_measures_the_installed_semlock_from_a_checkout():
    """In the checkout lies the stub of the compiled core, and the core itself perhaps not."""
    code = "import benchmarks.__main__ as m; m._find_the_installed_semlock(); import semlock"
    subprocess.run([sys.executable, "-c", code + "; semlock.Lock"], check=True, cwd=ROOT)
