"""Each line of `docs/systems/commands.md` runs, and does what its table of exit codes says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.clilib import command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "systems" / "commands.md"
TEXT = PAGE.read_text(encoding="utf-8")
LINES = re.findall(
    r"^\| `(sema|semats) ([a-z-]+|…)[^|]*\| `semlock ([^`|]+)` \|$", TEXT, re.MULTILINE
)
HELD = f"pid={os.getpid()}\ntimestamp=4000000000\n"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the owner is the caller there")

# What a lock is like after it, and the exit code: when it was free, and when it was held.
TAKES = {"try", "try-acquire", "acquire", "…"}
ENDS = {
    **dict.fromkeys(TAKES, ((True, 0), (True, 1))),
    "status": ((False, 0), (True, 1)),
    "wait": ((False, 0), (True, 1)),
    "clean": ((False, 0), (True, 0)),
}


def test_the_page_has_every_verb_of_both_tools():
    verbs = {(tool, verb) for tool, verb, _ in LINES}
    assert {verb for tool, verb in verbs if tool == "sema"} >= {
        "try", "acquire", "release", "status", "wait",
    }  # fmt: skip
    assert {verb for tool, verb in verbs if tool == "semats"} >= {
        "try-acquire", "acquire", "release", "status", "clean",
    }  # fmt: skip


@pytest.mark.parametrize(("tool", "verb", "words"), LINES)
@pytest.mark.parametrize("held", [False, True])
def test_a_line_does_what_it_says(tool, verb, words, held, tmp_path):
    path = tmp_path / "x.lock"
    if held:
        path.write_text(HELD)
    # A wait that would last is as long as it has to be here.
    line = [
        "0.2" if word == "5" else str(path) if word == "PATH" else word
        for word in words.split()
    ]
    if verb == "acquire" and "--timeout" not in line and held:
        line[1:1] = ["--timeout", "0"]
    if line[0] in ("try", "acquire", "release"):
        line[1:1] = ["--owner-pid", str(os.getpid())]
    result = command(*line)
    assert "usage:" not in result.stderr
    if verb == "release":
        assert (path.exists(), result.returncode) == (False, 0 if held else 1)
    else:
        assert (path.exists(), result.returncode) == ENDS[verb][held]
    if "TAG" in line and not held:
        assert "tag=TAG\n" in path.read_text()
