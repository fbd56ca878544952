"""The folders of csrc/, and which headers each may read.

docs/architecture.md tells what each folder is for.  Without a system's headers the code of
common/ cannot make a system call, and one platform's folder cannot use what only another has.
"""

import re
from pathlib import Path

import pytest
from sources import sources

CSRC = Path(__file__).resolve().parents[2] / "csrc"
PLATFORMS = ("linux", "darwin", "freebsd14", "netbsd10", "openbsd7", "win32")

# What the C standard has without asking the system; errno.h gives the names of errors.
STANDARD = {"errno.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"}

# The headers of the core that each folder may read.  None: only those of the C standard.
OWN = {
    "": {"semlock_api.h"},
    "common": {"core.h"},
    "posix": {"core.h", "posix/system.h", "posix/waiting.h"},
    "linux": {"posix/system.h"},
    "kqueue": {"posix/system.h"},
    "darwin": {"posix/system.h"},
    "bsd": {"posix/system.h"},
    "windows": {"core.h", "windows/system.h"},
}
WITHOUT_SYSTEM = {"", "common"}

# Calls of stdio.h and stdlib.h that ask the system for something.
CALLS = re.compile(r"\b(?:f?open|fclose|remove|rename|tmpfile|getenv|system|exit|abort)\s*\(")
FILES = sorted(path.relative_to(CSRC).as_posix() for path in CSRC.rglob("*.[ch]"))


def folder_of(file):
    return file.rpartition("/")[0]


@pytest.mark.parametrize("file", FILES)
def test_a_file_reads_only_the_headers_that_its_folder_may(file):
    folder = folder_of(file)
    text = (CSRC / file).read_text(encoding="utf-8")
    own = set(re.findall(r'^\s*#\s*include "([^"]+)"', text, re.MULTILINE))
    others = set(re.findall(r"^\s*#\s*include <([^>]+)>", text, re.MULTILINE))
    assert own <= OWN[folder]
    if folder in WITHOUT_SYSTEM:
        # Atomics are the compiler's, and MSVC has a header for them.
        assert others - {"intrin.h"} <= STANDARD
    if folder == "common":
        assert not CALLS.findall(text)


def test_each_file_belongs_to_a_platform():
    named = {name for platform in PLATFORMS for name in sources(platform)}
    assert named == {file for file in FILES if file.endswith(".c")}


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_one_room(file):
    # The header of the calls is one file because cffi reads one.
    if file != "semlock_api.h":
        assert len((CSRC / file).read_text(encoding="utf-8").splitlines()) <= 400


def test_the_header_says_what_each_call_returns():
    text = (CSRC / "semlock_api.h").read_text(encoding="utf-8")
    table = text[text.index("WHAT EACH CALL RETURNS") : text.index("/* Outcomes. */")]
    told = set()
    for name, more in re.findall(r"(semlock_\w+)((?:, _\w+)*)", table):
        told |= {name, *(name + end for end in more.replace(",", "").split())}
    calls = set(re.findall(r"^(?:u?int\w*) (semlock_\w+)\(", text, re.MULTILINE))
    assert len(calls) > 30
    assert calls - told == set()
