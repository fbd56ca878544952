"""Node programs that take the same locks as semlock, told what to do line by line.

``.ci/node-peers`` installs them.  Where Node or the packages are missing the tests are skipped
with the reason, except in CI, where they fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

PATIENCE = 30.0
DRIVERS = Path(__file__).resolve().parent / "interop" / "node"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semlock/node-peers"

# The folder of each version, and the variable that names its node_modules directory instead.
FOLDERS = {
    "0.3.0": ("03", "SEMLOCK_NODE_MODULES_03"),
    "0.21.0": ("021", "SEMLOCK_NODE_MODULES_021"),
}


def _missing(reason: str):
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; .ci/node-peers installs it")
    pytest.skip(f"{reason}: run .ci/node-peers")


def modules_of(version: str) -> str:
    """Give the node_modules directory with a version of fs-safe and what goes with it."""
    folder, variable = FOLDERS[version]
    modules = os.environ.get(variable) or str(CACHE / folder / "node_modules")
    package = Path(modules, "@openclaw", "fs-safe", "package.json")
    others = ["proper-lockfile"] if version == "0.3.0" else []
    if not package.exists() or not all(Path(modules, other).exists() for other in others):
        _missing(f"not all of {', '.join(['fs-safe ' + version, *others])} is in {modules}")
    assert json.loads(package.read_text())["version"] == version
    return modules


def node_for(modules: str) -> str:
    """Give the Node that is installed beside the packages, or else the one on the path."""
    beside = os.path.join(modules, ".bin", "node")
    node = beside if os.access(beside, os.X_OK) else shutil.which("node")
    if node is None:
        _missing("there is no Node")
    return node


class Peer:
    """A Node program that does what it is told."""

    def __init__(self, driver: str, version: str = "0.3.0") -> None:
        modules = modules_of(version)
        self.process = subprocess.Popen(
            [node_for(modules), str(DRIVERS / driver), modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self.process.pid
        self._buffer = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()

    def send(self, verb: str, **options: object) -> None:
        """Tell it to do something, without waiting for the end of it."""
        self._write({"verb": verb, **options})

    def do(self, verb: str, **options: object):
        """Tell it to do something, and give what comes of it."""
        self.send(verb, **options)
        return self.receive()

    def receive(self):
        """Wait for what it says next: a value, or ``PeerError``."""
        said = self._read()
        if "error" in said:
            raise PeerError(said["error"]["code"], said["error"]["message"])
        return said["question"] if "question" in said else said["value"]

    def reply(self, answer: object) -> None:
        """Answer its question."""
        self._write({"answer": answer})

    def is_quiet_for(self, seconds: float) -> bool:
        """Tell whether it says nothing for so long."""
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def kill(self) -> None:
        """Kill it, and see that it is dead."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _write(self, message: object) -> None:
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def _read(self):
        end = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            ready = select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))
            if not ready[0]:
                raise TimeoutError("the Node program does not answer")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise EOFError("the Node program has ended")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


class PeerError(Exception):
    """What the Node program's call was rejected with."""

    def __init__(self, code: str | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def start_storm(version: str, *arguments: str):
    """Start a Node program that takes a lock many times; see ``storm.mjs``."""
    modules = modules_of(version)
    return subprocess.Popen(
        [node_for(modules), str(DRIVERS / "storm.mjs"), modules, *arguments]
    )
