"""C programs for the tests, whose common parts are compiled once."""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_made: dict[tuple[str, ...], list[str]] = {}


def compiler_or_skip() -> str:
    """Give the compiler, or skip the test where there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler")
        pytest.skip("no C compiler")
    return compiler


def objects(directory: Path, sources: Iterable[Path], flags: list[str]) -> list[str]:
    """Compile sources, or give what was made of them with the same flags before."""
    sources = [str(source) for source in sources]
    key = (*flags, *sources)
    if key not in _made:
        compiler = compiler_or_skip()

        def compiled(source: str) -> str:
            made = str(directory / f"{source.strip(os.sep).replace(os.sep, '_')}.o")
            subprocess.run([compiler, *flags, "-c", source, "-o", made], check=True)
            return made

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            _made[key] = list(pool.map(compiled, sources))
    return _made[key]


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
