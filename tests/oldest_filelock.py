"""filelock 3.0.4, the oldest 3.x that pip still installs and that keeps others out.

3.0.2 and 3.0.3 do not install.  3.0.0 removes its file after it has unlocked it, so that two can
hold it, also two that both use 3.0.0.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import pytest

VERSION = "3.0.4"
_SHA256 = "011327d4ed939693a5b28c0fdf2fd9bda1f68614c1d6d0643a89382ce9843a71"
_CI = Path(__file__).resolve().parent.parent / ".ci"


@functools.cache
def directory() -> str:
    """Fetch it from the package index, and give the directory that a process finds it in."""
    if not _CI.is_dir():
        pytest.skip("what fetches an archive is in a checkout only")
    sys.path.append(str(_CI))
    try:
        from in_place_of_filelock import fetch
    finally:
        sys.path.remove(str(_CI))
    _kept.append(made := tempfile.TemporaryDirectory(prefix="filelock-3.0.4-"))
    try:
        return str(fetch("filelock", VERSION, _SHA256, Path(made.name)))
    except OSError as error:
        pytest.skip(f"the package index does not answer: {error}")


_kept: list[tempfile.TemporaryDirectory[str]] = []
