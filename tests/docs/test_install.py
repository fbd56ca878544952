"""What a new user meets first: the package's description, the README, and a build that can't be."""

import email
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def test_each_link_of_the_readme_leads_to_a_file():
    links = [link for link in LINK.findall(README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_on_an_index_the_links_are_absolute_and_the_project_has_its_addresses(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    made = tmp_path / "semlock.egg-info" / "PKG-INFO"
    found = email.message_from_string(made.read_text(encoding="utf-8"))
    text = found.get_payload()
    assert LINK.findall(text)
    assert [link for link in LINK.findall(text) if "://" not in link] == []
    urls = {line.split(",")[0] for line in found.get_all("Project-URL")}
    assert urls == {"documentation", "source", "changelog", "issues"}
    extras = {"rich", "otel", "etcd", "postgresql", "redis"}
    assert set(found.get_all("Provides-Extra")) == extras


def test_the_readme_has_two_commands_for_a_checkout_whose_lines_fit_a_screen():
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    commands = [block for block in blocks if "python3 -m venv" in block]
    assert len(commands) == 2
    assert README.index("pip install semlock") < README.index(commands[0])
    assert all(len(line) <= 96 for block in commands for line in block.splitlines())
    assert README.splitlines().index("## From a checkout") < 40  # the first part is one screen


def test_the_packages_of_the_readme_are_those_that_the_build_names():
    said = (ROOT / "setup.py").read_text(encoding="utf-8")
    for command in re.findall(r"`((?:apt|dnf|apk) (?:install|add) [^`]*)`", README):
        packages = [
            word for word in command.split()[2:] if word not in ("python3-venv", "python3")
        ]
        assert f'"{" ".join([*command.split()[:2], *packages])}"' in said


@pytest.mark.skipif(sys.platform == "win32", reason="the compiler is found otherwise there")
@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ({"CC": "no-such-compiler"}, "a C compiler (no-such-compiler)"),
        ({"CFLAGS": "-nostdinc"}, "the headers of the C library (stdlib.h)"),
    ],
)
def test_a_build_that_lacks_something_ends_with_one_sentence(change, lack, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", str(tmp_path)],
        cwd=ROOT, env={**os.environ, **change}, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"To build semlock from source you need {lack}")
    assert done.stdout == ""
