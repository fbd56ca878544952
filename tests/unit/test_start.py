"""What ``import semlock`` brings at once, and what only later."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = (
    "import json, sys\n"
    "sys.argv[0] = {name!r}\n"
    "import semlock\n"
    "before = set(sys.modules)\n"
    "semlock.Lock, semlock.LockTimeoutError, semlock.LockLostWarning, semlock.status\n"
    "semlock.clean, semlock.remove, semlock.acquire_any, semlock.try_acquire_many\n"
    "semlock.acquire_all, semlock.LockInfo, semlock.proof_of_death\n"
    "print(json.dumps(['asyncio' in sys.modules, len(set(sys.modules) - before)]))"
)


def started(name: str) -> tuple[bool, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    has_asyncio, later = json.loads(done.stdout)
    return has_asyncio, later


@pytest.mark.parametrize("name", ["", "-c", "/srv/build.py", "pytest"])
def test_a_program_has_from_the_start_what_it_uses(name):
    """The first use may come in a forked child, after chroot(), or without a descriptor."""
    assert started(name) == (False, 0)


@pytest.mark.parametrize("name", ["/usr/bin/semlock", "-m"])
def test_the_command_has_no_more_than_it_needs(name):
    has_asyncio, later = started(name)
    assert not has_asyncio
    assert later > 10
