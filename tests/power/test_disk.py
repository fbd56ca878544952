"""The disk whose write cache a power cut loses: what was flushed stays, what was not may go."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from disk import SECTOR, Disk

sys.path.pop(0)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its server is a Unix socket")


@pytest.fixture
def make(tmp_path):
    disks = []

    def make(**options):
        disks.append(Disk(str(tmp_path / f"{len(disks)}.disk"), bytes(64 * SECTOR), **options))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


def cut_often(disk, write):
    """Give what the disk has after many cuts that each follow these writes."""
    seen = set()
    for seed in range(60):
        disk.write(0, bytes(64 * SECTOR))
        disk.flush()
        write()
        disk.cut(random.Random(seed))
        seen.add(disk.read(0, 64 * SECTOR))
    return seen


def test_what_was_not_flushed_may_be_lost_and_a_later_write_may_come_without_an_earlier(make):
    disk = make()

    def write():
        disk.write(0, b"a" * SECTOR)
        disk.write(SECTOR, b"b" * SECTOR)
        assert disk.read(0, SECTOR) == b"a" * SECTOR

    pairs = {(left[:1], left[SECTOR : SECTOR + 1]) for left in cut_often(disk, write)}
    assert pairs == {(b"\0", b"\0"), (b"a", b"\0"), (b"\0", b"b"), (b"a", b"b")}


def test_a_write_may_come_in_part(make):
    disk = make()
    left = cut_often(disk, lambda: disk.write(0, b"a" * 8 * SECTOR))
    assert any(0 < one.count(b"a") < 8 * SECTOR for one in left)


def test_what_was_flushed_stays_and_so_does_what_was_written_through_the_cache(make):
    disk = make()

    def write():
        disk.write(0, b"a" * SECTOR)
        disk.flush()
        disk.write(SECTOR, b"b" * SECTOR)
        disk.write(SECTOR, b"c" * SECTOR, through=True)

    left = cut_often(disk, write)
    assert {one[: 2 * SECTOR] for one in left} == {b"a" * SECTOR + b"c" * SECTOR}


def test_a_disk_without_a_cache_loses_nothing(make):
    disk = make(caches=False)
    left = cut_often(disk, lambda: disk.write(0, b"a" * 8 * SECTOR))
    assert {one[: 8 * SECTOR] for one in left} == {b"a" * 8 * SECTOR}
