"""The storm, the faults and the waits on every filesystem that can be mounted here.

What a filesystem gives differs, so what is expected differs with it, and only where it must:

    LOCAL   The kernel's own: everything that is promised holds.
    NAMED   Served by a program, with hard links but without unnamed files.  A kill while a
            lock is made leaves a file under a private name, which goes after the grace time,
            and so does a fault of the very call that would remove it.
    NETWORK Mounted by the caller from a server, and named in SEMLOCK_MOUNTED as
            ``name=directory,…``.  A server may lose and repeat requests: what is asked of it is
            that one holder at most is inside, and that who waits is served.
    BARE    Without hard links, and without the bit that tells an unfinished lock from an empty
            one.  A kill in the microseconds between creating and writing leaves a file that
            counts as a held lock.  That one holder at most is inside is true here as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import actors
import building
from support import chance_of_the_day

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import filesystem_table  # noqa: E402
import mounts  # noqa: E402

sys.path.remove(str(HERE))

LOCAL = ("ext4", "xfs", "btrfs", "tmpfs", "overlay")
NAMED = ("bindfs", "ntfs-3g")
BARE = ("exfat-fuse", "vfat")
NETWORK = tuple(mounts.MOUNTED)

# One of each sort that the core tells apart; on a local filesystem it meets all of them.
ERRORS = ["ENOSPC", "EIO", "EINTR", "EACCES"]

OPERATIONS = {
    LOCAL: [
        "fresh_acquire", "acquire_with_a_kept_claim", "acquire_in_place", "release_that_keeps",
        "release_in_place", "reclaim", "refresh", "remove_by_force",
    ],
    NAMED: [
        "fresh_acquire", "release_that_keeps", "release_in_place", "reclaim", "refresh",
        "remove_by_force",
    ],
    BARE: ["release_that_keeps", "release_in_place", "refresh", "remove_by_force"],
}  # fmt: skip

PAGE = HERE.parents[1] / "docs" / "filesystems.md"


# One of each sort is put to every test each time; the others are like it as far as we know.
TYPICAL = ("ext4", "bindfs", *BARE, *NETWORK)
KINDS = (*LOCAL, *NAMED, *BARE, *NETWORK)

each_kind = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in TYPICAL else pytest.mark.stress) for kind in KINDS],
)


@pytest.fixture
def mountable(kind) -> None:
    """Skip the test where this kind can't be mounted."""
    if kind in mounts.MOUNTED:
        return
    reason = mounts.absence(kind)
    if reason is not None:
        # .ci/run installs every tool, so there a missing one is a test that is not made.
        if os.environ.get("CI") and sys.platform.startswith("linux") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
    if not mounts.is_known(kind):
        pytest.skip(f"this kernel knows no {kind}")


@pytest.fixture
def put_through(kind, mountable, request):
    """Put a fresh filesystem through an ordeal, and give its report."""

    def put_through(name: str, options: object = ()) -> dict:
        words = [sys.executable, str(HERE / "ordeals.py"), name, json.dumps(options)]
        place = None
        if kind in mounts.MOUNTED:
            place = os.path.join(
                mounts.MOUNTED[kind], f"{os.getpid()}-{request.node.originalname}"
            )
            os.mkdir(place)
        else:
            words = mounts.command(kind, *words)
        done = subprocess.run(
            words, cwd=place, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)}, timeout=110 * mounts.PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return put_through


@each_kind
def test_at_most_one_holds_whatever_is_killed(kind, put_through, tmp_path):
    kills = 15
    plan: dict[str, object] = {"records": str(tmp_path / "records"), "seconds": 0.5}
    if kind in BARE:
        # Where a kill may leave a lock for ever there must be many, or none is left.
        plan |= {"locks": 60, "kills_per_second": 80, "round": 0.7, "patience": 0.05}
    if kind in NETWORK:
        # A process must live for many answers of the server, or no process ever holds one.
        pace = 10 * mounts.PATIENCE
        plan |= {
            "workers": 3, "kills_per_second": 200 / pace, "round": pace / 4, "seconds": pace / 2,
            "patience": pace,
        }  # fmt: skip
    report = put_through("storm", {"kills": kills, **plan})
    print(report)
    assert report["kills"] >= kills
    assert report["holds"] >= kills
    assert report["open_holds"] > 0, "no process was killed while it held"
    wrong = report["wrong"]
    if kind in (*NAMED, *NETWORK):
        wrong = [one for one in wrong if not only_unfinished_files_are_left(one)]
    if kind in BARE:
        wrong = [one for one in wrong if not re.match(r"after round \d+", one)]
    assert wrong == []
    if kind not in BARE:
        assert report["left"] == []


def only_unfinished_files_are_left(message: str) -> bool:
    found = re.fullmatch(r"after round \d+ there is left: \[(.*)\]", message)
    return found is not None and all(
        re.fullmatch(r"'\.semlock-[0-9a-f]{32}\.tmp'", name) for name in found[1].split(", ")
    )


@each_kind
def test_a_fault_of_any_call_ends_held_or_in_a_clear_error(kind, put_through, tmp_path_factory):
    if kind in NETWORK:
        pytest.skip("a server's own delays and retries are faults enough")
    operations = next(names for kinds, names in OPERATIONS.items() if kind in kinds)
    shim = building.once(tmp_path_factory, "shim", actors.build_shim)
    # What each error does is tried by tests/fault; filesystems differ in how a lock is made.
    errors = ERRORS
    if kind in TYPICAL:
        errors = chance_of_the_day().sample(ERRORS, 1)
        operations = chance_of_the_day().sample(operations, len(operations) // 2)
    report = put_through("faults", [str(shim), errors, *operations])
    problems = report["problems"]
    if kind in NAMED:
        unremoved = re.compile(r"\w+: left behind: \['\.semlock-\w+\.tmp'\]: .*unlink")
        problems = [one for one in problems if not unremoved.match(one)]
    assert problems == []
    assert report["cases"] >= len(operations) * 25


@each_kind
def test_who_waits_is_served(kind, put_through):
    report = put_through("waits")
    for what in ("release", "removal by name", "death"):
        # Where the kernel tells, at once; else after a pause.  A busy machine takes longer.
        assert 0 <= report[what] < 5 * mounts.PATIENCE
    assert 0.4 <= report["timeout"] < 5 * mounts.PATIENCE
    if kind in LOCAL:
        assert report["in order"]


@pytest.mark.usefixtures("mountable")
@pytest.mark.parametrize("kind", KINDS)
def test_the_table_in_the_documentation_is_what_is_measured(kind):
    row = filesystem_table.row(kind, filesystem_table.measure(kind, mounts.MOUNTED.get(kind)))
    assert row in PAGE.read_text(encoding="utf-8").splitlines()
