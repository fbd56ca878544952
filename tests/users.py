"""Other users: how a process becomes one, and where it finds what it needs.

A checkout, an environment and the directories of pytest may be closed to all users but one.  A
process that has become another user can import nothing from there and run no program there.  So
``become`` imports all of semlock first, what starts afresh as another user runs a copy that all
may read (``words``), and what users share is in a directory that all can reach (``shared``).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import inspect
import itertools
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")


# These two are sent to other processes as text, so they import what they need themselves.


def import_all():
    import contextlib
    import importlib
    import pkgutil

    import semlock

    # What its functions import: Python itself may be in a directory of root's.
    names = ["asyncio", "dis", "encodings.utf_16_le", "logging", "pwd", "tempfile"]
    names += [module.name for module in pkgutil.walk_packages(semlock.__path__, "semlock.")]
    for name in names:
        # A program, and what loads packages of others: the clients of two engines take longer than
        # all the rest.
        others = ("__main__", "trio_loop", "otel", "postgresql", "redis")
        if name.rpartition(".")[2] not in others:
            with contextlib.suppress(ImportError):  # it is for another system
                importlib.import_module(name)


def become(user, effective=False):
    import os

    import_all()
    if effective:  # it can become root again
        os.setegid(user)
        os.seteuid(user)
    else:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


SOURCE = inspect.getsource(import_all) + inspect.getsource(become)


def as_user(user: int = NOBODY, *, effective: bool = False) -> str:
    """Give code by which a process that has the tests' semlock becomes another user."""
    return f"{SOURCE}become({user}, {effective})\n"


# Numbers below NOBODY are shared out: a block of them for each process of the tests.
_BLOCKS, _IN_A_BLOCK = 4000, 8
_count = itertools.count()


def of_its_own() -> int:
    """Give a user that no other running test has.

    The kernel counts inotify instances for each user, so a test that uses them up, or counts on
    having some, takes a user of its own.
    """
    first = NOBODY - 1 - os.getpid() % _BLOCKS * _IN_A_BLOCK
    return first - next(_count) % _IN_A_BLOCK


def _open_to_all(path: str) -> bool:
    """Whether all users can reach what is at a path, as far as its directories say so."""
    above = Path(path).resolve().parents
    return all(directory.stat().st_mode & stat.S_IXOTH for directory in above)


@contextlib.contextmanager
def shared(prefix: str = "shared-"):
    """Make a directory like /tmp: all users can reach it and write to it."""
    places = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")
    place = next((one for one in places if _open_to_all(f"{one}/name")), None)
    if place is None:
        pytest.skip("no directory here is open to all users")
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as directory:
        os.chmod(directory, 0o1777)
        yield directory


@functools.cache
def _copy() -> str:
    """Copy semlock, and the runtime of its core, to where all users can import it."""
    import semlock

    keeper = contextlib.ExitStack()
    atexit.register(keeper.close)
    directory = keeper.enter_context(shared("semlock-"))
    os.chmod(directory, 0o755)
    shutil.copytree(Path(semlock.__file__).parent, f"{directory}/semlock")
    backend = importlib.util.find_spec("_cffi_backend")
    if backend is not None and backend.has_location:
        shutil.copy(backend.origin, directory)
    for place, _, files in os.walk(directory):
        os.chmod(place, 0o755)
        for name in files:
            os.chmod(os.path.join(place, name), 0o644)
    return directory


def words(*arguments: str, user: int = NOBODY) -> list[str]:
    """Give the words by which root calls the command as another user."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    python = os.path.realpath(sys.executable)  # outside of an environment
    if not _open_to_all(python):
        pytest.skip("this Python can't be run by others")
    return [
        "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
        "env", f"PYTHONPATH={_copy()}", python, "-m", "semlock", *arguments,
    ]  # fmt: skip
