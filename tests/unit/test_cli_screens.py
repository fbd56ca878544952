"""What a user sees, to the letter: each action at a terminal of 80 and 132 columns and in a pipe.

The screens stand in ``screens.txt``.  ``SEMLOCK_SCREENS=write`` writes them anew; look at what has
changed before it is committed.
"""

import os
import re
import shutil
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

import pytest

from clilib import command, words

if sys.platform == "win32":
    pytest.skip("there is no pseudo-terminal here", allow_module_level=True)

from terminal import Terminal

SCREENS = Path(__file__).with_name("screens.txt")

# The name of a screen, and the words behind `semlock`.
ACTIONS = {
    "status": ["status", "build.lock"],
    "status of all": ["status", "--verbose", "build.lock"],
    "status of wide letters": ["status", "席.lock"],
    "status of a free lock": ["status", "free.lock"],
    "status of an empty file": ["status", "empty.lock"],
    "status for programs": ["status", "--porcelain", "build.lock"],
    "list": ["list"],
    "list of what is not there": ["list", "nowhere"],
    "list of a pattern": ["list", "b*.lock", "empty.lock"],
    "list without colours": ["list", "--color", "never"],
    "watch once": ["watch", "--once"],
    "run refused": ["run", "-n", "build.lock", "--", "true"],
    "run refused by an empty file": ["run", "-n", "empty.lock", "--", "true"],
    "try refused": ["try", "build.lock"],
    "a value that is no lock": ["run", "-n", "10", "build.lock", "--", "true"],
    "a duration that is none": ["run", "-w", "soon", "build.lock", "--", "true"],
    "an option that is not there": ["run", "--timout", "3", "build.lock", "--", "true"],
    "a verb that is not there": ["statsu", "build.lock"],
    "no directory": ["run", "no/where.lock", "--", "true"],
    "no trace": ["timeline", "build.lock"],
    "help of a topic": ["help", "exit-codes"],
    "help of topics": ["help", "topics"],
}
FORMS = (80, 132, "pipe")


@pytest.fixture
def place(monkeypatch):
    """A directory whose path is as long on every machine, with locks of other programs."""
    directory = tempfile.mkdtemp(prefix="screens-", dir="/tmp")
    monkeypatch.chdir(directory)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
        os.unsetenv(name)  # readline, which pytest loads, sets it behind Python's back
    monkeypatch.setenv("TZ", "UTC")
    stamp = int(time.time()) - 3 * 60
    record = "pid=1234567\ntimestamp={}\ntag={}\nhost=elsewhere\n"
    wide = "広い文字のタグは二倍の幅をとるので切る場所が違う" * 2
    Path("build.lock").write_text(record.format(stamp, "nightly build"))
    Path("席.lock").write_text(record.format(stamp, wide))
    Path("empty.lock").touch()
    os.utime("empty.lock", (stamp, stamp))
    yield directory
    shutil.rmtree(directory)


def seen(action, form, place):
    """What is shown, with all that differs from one time to the next made alike."""
    if form == "pipe":
        done = command(*ACTIONS[action])
        text = done.stdout + done.stderr
        code = done.returncode
    else:
        with Terminal(*words(*ACTIONS[action]), columns=form) as terminal:
            code = terminal.ends()
            text = terminal.seen.replace("\r\n", "\n")
    text = text.replace(place, "/tmp/screens-DIRECTOR").replace("\x1b", "\\e")
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "HH:MM:SS", text)
    text = re.sub(r"\b3 min 0\d s\b", "3 min 00 s", text)
    text = re.sub(r"(timestamp: +)\d+", r"\1T", text)
    text = re.sub(r"age: \d+\.\d+", "age: A", text)
    return f"{text.rstrip()}\n({code})\n"


def read():
    parts = re.split(
        r"^=== (.+) \| (.+)\n", SCREENS.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {(parts[i], parts[i + 1]): parts[i + 2] for i in range(1, len(parts), 3)}


def columns(text: str) -> int:
    """Count the columns of a text: East Asian letters take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_screen_is_as_it_was_agreed(action, form, place):
    text = seen(action, form, place)
    if os.environ.get("SEMLOCK_SCREENS") == "write":
        found = read() if SCREENS.exists() else {}
        found[action, str(form)] = text
        order = [(name, str(f)) for name in ACTIONS for f in FORMS]
        SCREENS.write_text(
            "".join(f"=== {a} | {f}\n{found[a, f]}" for a, f in order if (a, f) in found),
            encoding="utf-8",
        )
    assert text == read()[action, str(form)]
    if form == "pipe":
        assert "\\e" not in text
    elif action != "status for programs":
        plain = re.sub(r"\\e\[[0-9;]*m", "", text)
        too_wide = [line for line in plain.splitlines() if columns(line) > form]
        assert [line for line in too_wide if " " in line.strip() and "usage" not in line] == []


def test_no_colours_where_the_environment_says_so(place, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Terminal(*words("list")) as terminal:
        assert terminal.ends() == 0
    assert "\x1b" not in terminal.seen
    with Terminal(*words("list", "--color", "always")) as terminal:
        assert terminal.ends() == 0
    assert "\x1b[33munknown" in terminal.seen
    monkeypatch.delenv("NO_COLOR")
    with Terminal(*words("status", "build.lock"), term="dumb") as terminal:
        assert terminal.ends() == 1
    assert "\x1b" not in terminal.seen
