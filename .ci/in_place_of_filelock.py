"""Source archives from the package index, and environments with semlock.filelock as filelock."""

from __future__ import annotations

import hashlib
import html
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def index_of_pip() -> str:
    """Say which package index pip uses here."""
    if "PIP_INDEX_URL" in os.environ:
        return os.environ["PIP_INDEX_URL"].rstrip("/")
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not told:
        # pip's own default, asked of pip in a process of its own: to import pip replaces modules.
        told = subprocess.run(
            [
                sys.executable,
                "-c",
                "from pip._internal.models.index import PyPI; print(PyPI.simple_url)",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    return told.rstrip("/")


def fetch(name: str, version: str, sha256: str | None, directory: Path) -> Path:
    """Fetch a source archive from the index, and unpack it; its build is not run."""
    page = f"{index_of_pip()}/{name.replace('_', '-')}/"
    wanted = f"{name}-{version}.tar.gz"
    with urllib.request.urlopen(page, timeout=60) as answer:
        text = answer.read().decode()
    for link in re.findall(r'href="([^"]+)"', text):
        url, _, anchor = urllib.parse.urljoin(page, html.unescape(link)).partition("#")
        if url.rsplit("/", 1)[1] == wanted:
            with urllib.request.urlopen(url, timeout=120) as answer:
                archive = answer.read()
            expected = sha256 or anchor.partition("sha256=")[2]
            if hashlib.sha256(archive).hexdigest() != expected:
                raise SystemExit(
                    f"{wanted} is not the archive that is expected: its hash differs"
                )
            place = directory / wanted
            place.write_bytes(archive)
            with tarfile.open(place) as packed:
                packed.extractall(directory, filter="data")
            return directory / f"{name}-{version}"
    raise SystemExit(f"{page} has no {wanted}")


def make_venv(python: str, directory: Path, *packages: str) -> str:
    """Make an environment with semlock under the name of filelock, and with these packages."""
    subprocess.run([python, "-m", "venv", directory / "venv"], check=True)
    own = str(directory / "venv" / "bin" / "python")
    pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, str(ROOT), *packages], check=True)
    subprocess.run([own, "-m", "pip", "uninstall", "-q", "-y", "filelock"], check=True)
    subprocess.run([*pip, "--no-deps", str(write_alias(directory / "alias"))], check=True)
    return own


def write_alias(directory: Path) -> Path:
    """Write the distribution that the page for users has: what it says is what is installed."""
    text = (ROOT / "docs" / "filelock.md").read_text(encoding="utf-8")
    (directory / "filelock").mkdir(parents=True)
    for name in ("pyproject.toml", "filelock/__init__.py"):
        found = re.search(
            rf"^`{re.escape(name)}`:\n+```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE
        )
        assert found is not None, name
        (directory / name).write_text(found[1], encoding="utf-8")
    (directory / "filelock" / "py.typed").touch()
    return directory
