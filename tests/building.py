"""C programs for the tests, whose common parts are compiled once."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pickle
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

try:
    import fcntl
except ImportError:  # on Windows nothing is compiled
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def compiler_or_skip() -> str:
    """Give the compiler, or skip the test where there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler")
        pytest.skip("no C compiler")
    return compiler


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]):
    """Build something once for all processes of this run, and give what ``build`` gave.

    ``build`` is called with a directory for it.  The other processes wait meanwhile.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each of them has a directory of its own below
        base = base.parent
    place = base / f"built-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    with open(f"{place}.lock", "wb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        record = place / "record"
        if not record.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            record.write_bytes(pickle.dumps(build(place)))
        return pickle.loads(record.read_bytes())


def objects(
    factory: pytest.TempPathFactory, sources: Iterable[Path], flags: list[str]
) -> list[str]:
    """Compile sources, or give what was made of them with the same flags before."""
    sources = [str(source) for source in sources]
    compiler = compiler_or_skip()

    def build(directory: Path) -> list[str]:
        def compiled(source: str) -> str:
            made = str(directory / f"{source.strip(os.sep).replace(os.sep, '_')}.o")
            subprocess.run([compiler, *flags, "-c", source, "-o", made], check=True)
            return made

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compiled, sources))

    return once(factory, repr((flags, sources)), build)


def program(binary: Path, parts: list[str], main: Path, flags: list[str]) -> Path:
    """Compile a program's own source and link it with the parts."""
    command = [compiler_or_skip(), *flags, str(main), *parts, "-o", str(binary), "-pthread"]
    subprocess.run(command, check=True)
    return binary


def library(made: Path, source: Path) -> Path:
    """Compile a library to be preloaded."""
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler_or_skip(), *flags, "-o", str(made), str(source)], check=True)
    return made
