"""Kill storms: whatever is killed or stopped at whatever instant, one holder at most.

Every storm also shows that nothing wedges: after each of its rounds all workers are dead in
one instant, every lock is taken within a second, and a cleaning leaves an empty directory.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# For so long an unfinished file is left alone: see docs/guarantees.md.
GRACE = 2.0

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="it forks and signals; test_windows_storm is for there"
)

# There a kill between creating and writing leaves what may be a held lock.
no_mark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="this system marks no unfinished file"
)

HERE = Path(__file__).resolve().parent
LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
MEMORY = "/dev/shm"


def _is_memory(directory: str) -> bool:
    with open("/proc/mounts", encoding="utf-8") as mounts:
        kinds = dict(line.split()[1:3] for line in mounts)
    return kinds.get(directory) == "tmpfs"


@pytest.fixture(params=["disk", "tmpfs"])
def place(request, tmp_path):
    """A directory for the locks: on the disk, where inode numbers return at once, or not."""
    if request.param == "disk":
        yield str(tmp_path)
        return
    if sys.platform != "linux" or not _is_memory(MEMORY):
        pytest.skip(f"{MEMORY} is no tmpfs here")
    directory = tempfile.mkdtemp(dir=MEMORY, prefix="storm-")
    yield directory
    shutil.rmtree(directory)


def storm(place: str, *, kills: int, **changes) -> dict:
    """Let a storm pass, and give its report if it was one and nothing was wrong with it."""
    directory = os.path.join(place, "locks")
    records = os.path.join(place, "records")
    os.mkdir(directory)
    os.mkdir(records)
    in_place = changes.get("in_place", False)
    plan = {
        "directory": directory,
        "records": records,
        "wrong": os.path.join(records, "wrong"),
        "locks": [os.path.join(directory, f"{i}.lock") for i in range(changes.pop("locks", 2))],
        "workers": 6,
        "shells": 0,
        "in_place": in_place,
        "durability": "none",
        # Proof of death comes at once.  An unfinished file names no process, so it comes later.
        "patience": 1.0 + (GRACE + 0.5 if in_place else 0.0),
        "kills": kills,
        "kills_per_second": 400,
        "seed": random.getrandbits(32),
        **changes,
    }
    process = subprocess.Popen(
        [sys.executable, str(HERE / "nursery.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *_own_path()])},
        start_new_session=True,
        text=True,
    )
    try:
        out, errors = process.communicate(json.dumps(plan), timeout=plan["seconds"] * 3 + 100)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has left no process behind
    assert process.returncode == 0, errors
    report = json.loads(out)
    print({name: value for name, value in report.items() if name != "wrong"})
    assert not report["wrong"], "\n".join(report["wrong"][:20])
    # Its strength is what makes the result worth something.
    assert report["kills"] >= kills
    assert report["stops"] >= kills / 20
    assert report["holds"] >= kills
    assert report["open_holds"] > 0, "no process was killed while it held"
    return report


def _own_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def test_of_workers_that_are_killed_and_stopped_at_random_one_holds_at_most(place):
    storm(place, seconds=0.5, round=0.5, locks=1, workers=8, kills=25)


def test_the_same_with_the_record_on_the_disk_before_the_lock_is_visible(tmp_path):
    storm(str(tmp_path), seconds=0.4, round=0.4, durability="full", kills=20)


@no_mark
def test_the_same_where_the_lock_is_created_at_its_path(place):
    storm(place, seconds=0.8, round=0.8, in_place=True, locks=40, kills_per_second=80, kills=16)


def test_workers_and_shell_scripts_exclude_each_other(tmp_path):
    report = storm(str(tmp_path), seconds=1, round=1, shells=3, kills=40)
    assert report["shell_holds"] > 0


@pytest.mark.stress
@pytest.mark.timeout(LONG * 3 + 120)
@pytest.mark.parametrize("durability", ["none", "full"])
def test_a_long_storm(place, durability):
    storm(place, seconds=LONG, round=1.5, durability=durability, kills=int(20 * LONG))


@pytest.mark.stress
@pytest.mark.timeout(LONG * 3 + 120)
def test_a_long_storm_on_one_lock_with_many_workers(place):
    storm(place, seconds=LONG, round=1.0, locks=1, workers=16, kills=int(20 * LONG))


@no_mark
@pytest.mark.stress
@pytest.mark.timeout(LONG * 3 + 120)
def test_a_long_storm_where_locks_are_created_at_their_path(place):
    storm(
        place,
        seconds=LONG,
        round=7,
        in_place=True,
        locks=40,
        kills_per_second=80,
        kills=int(8 * LONG),
    )


@pytest.mark.stress
@pytest.mark.timeout(LONG * 3 + 120)
def test_a_long_storm_of_workers_and_shell_scripts(place):
    report = storm(place, seconds=LONG, round=3, shells=4, kills=int(20 * LONG))
    assert report["shell_holds"] > 0
