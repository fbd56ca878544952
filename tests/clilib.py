"""The command as tests call it, and a judge of what it writes as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import json_objects

PATIENCE = 60


def words(*arguments: str) -> list[str]:
    """Give the words of a call of the command."""
    return [sys.executable, "-m", "semlock", *arguments]


def program(code: str, *arguments: str) -> tuple[str, ...]:
    """Give the words of a command that there is on every system: some Python."""
    return (sys.executable, "-c", code, *arguments)


def echo(*arguments: str) -> tuple[str, ...]:
    """Give the words of a command that prints its arguments."""
    return program("import sys; print(*sys.argv[1:])", *arguments)


# A command that says that it runs, and runs until it is given a line.
HOLDING = program("print('ready', flush=True); input()")


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run the command, and give what it wrote and how it ended."""
    settings = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE}
    return subprocess.run(words(*arguments), **(settings | options))


def start(*arguments: str, **options) -> subprocess.Popen:
    """Start the command, with its output as text."""
    settings = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(words(*arguments), **(settings | options))


_KINDS = {
    json_objects.TEXT: str,
    json_objects.WHOLE: int,
    json_objects.NUMBER: (int, float),
    json_objects.TRUTH: bool,
}


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return True
    if kind != json_objects.TRUTH and isinstance(value, bool):
        return False
    return isinstance(value, _KINDS[kind])


def _refuse(word: str):
    raise ValueError(f"{word} is not JSON")


def checked(line: str, kind: str) -> dict:
    """Parse one line of strict JSON, and check it against the json_objects."""
    line.encode("ascii")
    fields = json.loads(line, parse_constant=_refuse)
    json.dumps(fields, ensure_ascii=False).encode("utf-8")  # no half characters
    _, always, sometimes = json_objects.OBJECTS[kind]
    missing = [name for name, _, _ in always if name not in fields]
    assert not missing, f"{kind} lacks {missing}"
    known = {name: what for name, what, _ in (*always, *sometimes)}
    for name, value in fields.items():
        assert name in known, f"{kind} has {name}, which is not in its schema"
        assert _fits(value, known[name]), f"{name} of {kind} is {value!r}, not {known[name]}"
    if "path" in known:
        assert os.path.isabs(fields["path"])
    return fields


def checked_lines(output: str, kind: str) -> list[dict]:
    """Read lines of JSON of one kind."""
    return [checked(line, kind) for line in output.splitlines()]


def install(directory: str) -> None:
    """Make a program ``semlock`` in a directory, and have the shells of this test find it."""
    path = os.path.join(directory, "semlock")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec {" ".join(words())} "$@"\n')
    os.chmod(path, 0o755)
    os.environ["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
