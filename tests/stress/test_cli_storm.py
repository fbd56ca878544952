"""A storm of ``semlock run`` and of shell scripts with ``set -C`` on one lock, with kills.

The one that is inside makes a directory and removes it again; ``mkdir`` fails for a second, which
writes that down.  Some of the semlock processes are killed at random instants.  Their locks
follow the command, so even then no other process may come in before the command has ended.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from clilib import words
from support import wait_until

LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
PATIENCE = 60.0

INSIDE = """
mkdir inside || echo "$1 met another" >> wrong
sleep 0.02
rmdir inside
echo "$1" >> done
"""

# What any shell can do.  In the file there is what it likes: it is held while it exists.
SHELL = """
while ! [ -e stop ]; do
    if (set -C; echo "pid=$$" > the.lock) 2>/dev/null; then
        sh inside.sh shell
        rm the.lock
        sleep 0.01
    else
        sleep 0.002
    fi
done
"""


class Runner(threading.Thread):
    """Runs the command under the lock again and again, and kills semlock now and then."""

    def __init__(self, place, seed, until, follow):
        super().__init__()
        self.killed = 0
        self.codes = set()
        self._place = place
        self._random = random.Random(seed)
        self._until = until
        self._line = words(
            "run", "-q", "-t", str(PATIENCE), "--durability", "none", "--follow", follow,
            "the.lock", "--", "sh", "inside.sh", follow,
        )  # fmt: skip
        self._kills = follow == "child"

    def run(self):
        while time.monotonic() < self._until:
            process = subprocess.Popen(self._line, cwd=self._place)
            if self._kills and self._random.random() < 0.5:
                if self._random.random() < 0.5:
                    self._until_one_is_inside(process)
                else:
                    time.sleep(self._random.random() * 0.15)
                process.kill()
            code = process.wait()
            if code == -signal.SIGKILL:
                self.killed += 1
            else:
                self.codes.add(code)

    def _until_one_is_inside(self, process):
        while process.poll() is None and not (self._place / "inside").exists():
            time.sleep(0.001)


def storm(place: Path, seconds: float, seed: int) -> None:
    print(f"seed {seed}")
    (place / "inside.sh").write_text(INSIDE)
    (place / "shell.sh").write_text(SHELL)
    until = time.monotonic() + seconds
    runners = [
        Runner(place, seed + i, until, follow)
        for i, follow in enumerate(("child", "child", "self", "self"))
    ]
    shells = [subprocess.Popen(["sh", "shell.sh"], cwd=place) for _ in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    (place / "stop").touch()
    for shell in shells:
        assert shell.wait(PATIENCE) == 0
    # Commands whose semlock was killed may still be inside, and hold the lock themselves.
    lock = semlock.Lock(place / "the.lock", timeout=PATIENCE)
    with lock:
        assert not (place / "inside").exists()
    assert not (place / "wrong").exists(), (place / "wrong").read_text()
    assert {code for runner in runners for code in runner.codes} == {0}
    done = (place / "done").read_text().split()
    counts = {who: done.count(who) for who in ("shell", "child", "self")}
    killed = sum(runner.killed for runner in runners)
    print(counts, killed)
    # Its strength is what makes the result worth something.
    assert min(counts.values()) >= seconds / 2
    assert killed >= seconds / 2
    left_by_the_killed(place)


def left_by_the_killed(place: Path) -> None:
    """Whatever the killed have left is removed by a cleaning, and nothing is a lock."""

    def clean() -> bool:
        semlock.clean(place)
        known = {"inside.sh", "shell.sh", "stop", "done"}
        return set(os.listdir(place)) == known

    wait_until(clean, "nothing is left behind")


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no sh")


def test_runs_and_shell_scripts_exclude_each_other(tmp_path):
    storm(tmp_path, 1.5, random.getrandbits(32))


@pytest.mark.stress
@pytest.mark.timeout(LONG * 2 + 120)
def test_a_long_storm_of_runs_and_shell_scripts(tmp_path):
    storm(tmp_path, LONG, random.getrandbits(32))
