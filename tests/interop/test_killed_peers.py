"""Storms on one lock file in which its holders are killed: fs-safe, semlock and shell scripts."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import semlock
from nodelib import DRIVERS, modules_of, node_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.stress,
    pytest.mark.leaves("queue"),
    pytest.mark.skipif(sys.platform == "win32", reason="a shell and kill(2)"),
]

SECONDS = 8.0
PACKAGE = "@openclaw/fs-safe/file-lock"

JUDGE = """
import os, sys, time

def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

def judge(place, name):
    with open(f"{place}/holders/{os.getpid()}", "w"):
        pass
    for other in os.listdir(f"{place}/holders"):
        if int(other) == os.getpid() or not lives(int(other)):
            continue
        time.sleep(0.2)  # one that is being killed may pass for alive until it is reaped
        if lives(int(other)):
            with open(f"{place}/report", "a") as file:
                file.write(f"{name}: {os.getpid()} beside {other}\\n")
    time.sleep(0.0005)
    os.unlink(f"{place}/holders/{os.getpid()}")

def won(place, name):
    with open(f"{place}/won", "a") as file:
        file.write(f"{name}\\n")
"""

# It alone removes the locks of the killed: fs-safe has no guard for that in the one version, and
# leaves one for ever when it is killed in the other.
SIDECAR = (
    JUDGE
    + """
from semlock import sidecar
target, place = sys.argv[1:]

def is_gone(told):
    pid = (told.payload or {}).get("pid")
    if isinstance(pid, int):
        return not lives(pid)
    try:  # killed between making the file and writing it, or just doing so
        return time.time() - os.stat(told.lock_path).st_mtime > 1
    except OSError:
        return False

options = dict(
    retry=sidecar.RetryOptions(min_timeout=0.001, max_timeout=0.004, randomize=True),
    stale_recovery="remove-if-unchanged", should_reclaim=is_gone,
    should_remove_stale_lock=is_gone, durability="none",
)
while not os.path.exists(f"{place}/stop"):
    with sidecar.acquire_file_lock(target, **options):
        judge(place, "semlock")
    won(place, "semlock")
"""
)

# Not killed: what a script has started to remove its lock would live on, and remove the next one.
SCRIPT = r"""
lock=$1.lock place=$2
while ! [ -e "$place/stop" ]; do
    if (set -C; echo "{\"pid\": $$}" > "$lock") 2>/dev/null; then
        : > "$place/holders/$$"
        for other in "$place"/holders/*; do
            pid=${other##*/}
            if [ "$pid" != $$ ] && kill -0 "$pid" 2>/dev/null &&
                sleep 0.2 && kill -0 "$pid" 2>/dev/null; then
                echo "script: $$ beside $pid" >> "$place/report"
            fi
        done
        rm "$place/holders/$$"
        rm "$lock"
        echo script >> "$place/won"
    else
        sleep 0.002
    fi
done
"""

TEXT = (
    JUDGE
    + """
import semlock
from semlock import retry, semats, sema
kind, path, place = sys.argv[1:]
while not os.path.exists(f"{place}/stop"):
    lock = {
        "semlock": lambda: semlock.Lock(path, durability="none"),
        "sema": lambda: sema.Semaphore(path, durability="none", retry_interval=0.002),
        "semats": lambda: semats.Semaphore(path, durability="none", retry_interval=0.002),
    }[kind]()
    with lock:
        judge(place, kind)
    won(place, kind)
"""
)


class Storm:
    """Workers that are killed and begun anew, and one place where all is on record."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.begun: list[tuple[list[str], bool]] = []
        self.running: list[subprocess.Popen] = []
        (place / "holders").mkdir()

    def begin(self, *command: str, killed: bool = True) -> None:
        self.begun.append((list(command), killed))
        self.running.append(subprocess.Popen(command))

    def rage(self, seconds: float) -> int:
        """Kill one after another for so long, and give how many."""
        kills, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(random.uniform(0.02, 0.15))
            which = random.randrange(len(self.running))
            command, killed = self.begun[which]
            if not killed:
                continue
            self.running[which].kill()
            self.running[which].wait()  # a process that was not reaped would pass for alive
            self.running[which] = subprocess.Popen(command)
            kills += 1
        return kills

    def end(self) -> Counter[str]:
        """Have all come to their end, and give who won how often."""
        (self.place / "stop").touch()
        assert [worker.wait(60) for worker in self.running] == [0] * len(self.running)
        report = self.place / "report"
        assert not report.exists(), report.read_text()
        return Counter((self.place / "won").read_text().split())

    def kill_all(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.wait()


@pytest.fixture
def storm(tmp_path):
    storm = Storm(tmp_path)
    yield storm
    storm.kill_all()


def test_fs_safe_and_semlock_and_scripts_stay_alone_though_holders_are_killed(storm, tmp_path):
    target = str(tmp_path / "state.json")
    for version in ("0.3.0", "0.21.0"):
        modules = modules_of(version)
        for _ in range(2):
            storm.begin(
                node_for(modules), str(DRIVERS / "killed.mjs"), modules, PACKAGE, target,
                str(tmp_path),
            )  # fmt: skip
    for _ in range(2):
        storm.begin(sys.executable, "-c", SIDECAR, target, str(tmp_path))
    storm.begin(sys.executable, "-c", SIDECAR, target, str(tmp_path), killed=False)
    storm.begin("sh", "-c", SCRIPT, "sh", target, str(tmp_path), killed=False)
    kills = storm.rage(SECONDS)
    won = storm.end()
    assert kills > 20
    assert min(won[name] for name in ("node", "semlock", "script")) > 10, won


@pytest.mark.parametrize("kind", ["semlock", "sema", "semats"])
def test_locks_of_text_and_scripts_stay_alone_though_holders_are_killed(storm, tmp_path, kind):
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    path = str(tmp_path / "x")
    for _ in range(4):
        storm.begin(sys.executable, "-c", TEXT, kind, f"{path}.lock", str(tmp_path))
    storm.begin("sh", "-c", SCRIPT, "sh", path, str(tmp_path), killed=False)
    kills = storm.rage(SECONDS / 2)
    won = storm.end()
    assert kills > 10
    assert min(won[name] for name in (kind, "script")) > 10, won
    # The last one that was killed may have held it when no other worker was left to take it.
    with semlock.Lock(f"{path}.lock", timeout=0):
        pass
