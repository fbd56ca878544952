"""What the fault tests share: the shim, the actors, and a core without its mechanisms."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

import actors
import building
import racestops

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    """The library that stands between the core and the kernel."""
    if not sys.platform.startswith("linux"):
        pytest.skip("faults are preloaded, which is Linux' way")
    if shutil.which(actors.compiler()[0]) is None:
        pytest.skip("faults need a C compiler")
    return building.once(tmp_path_factory, "shim", actors.build_shim)


@pytest.fixture(scope="session")
def crippled(tmp_path_factory) -> Path:
    """Where to import semlock from to have it without one of its mechanisms."""
    return building.once(tmp_path_factory, "crippled", actors.build_crippled)


@pytest.fixture(scope="module")
def cast():
    """Processes that have no part at the moment, where it takes long to begin one."""
    waiting = racestops.Cast()
    yield waiting
    waiting.close()


@pytest.fixture
def actor(request, path):
    """Make other processes that take part, and end them with the test."""
    if sys.platform == "win32":
        with request.getfixturevalue("cast").playing(path) as make:
            yield make
        return
    shim = request.getfixturevalue("shim")
    cast = []

    def make(**options) -> actors.Actor:
        cast.append(actors.Actor(shim, path, **options))
        return cast[-1]

    yield make
    for one in cast:
        one.close()
