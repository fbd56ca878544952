"""proper-lockfile, whose lock is a directory at the path where semlock's is a file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from nodelib import Peer, PeerError, start_storm
from semlock import sidecar
from semlock.sidecar import RetryOptions, SidecarLock, acquire_file_lock


@pytest.fixture(scope="module")
def peer():
    with Peer("proper-lockfile.mjs") as peer:
        yield peer


def test_its_lock_is_refused_and_left_alone(peer, target, lock_file):
    peer.do("acquire", target=target)
    assert lock_file.is_dir()
    for call in (
        lambda: acquire_file_lock(target, timeout=10),
        lambda: SidecarLock(target).try_acquire(),
        lambda: sidecar.status(target),
        lambda: semlock.remove(lock_file, force=True),
    ):
        with pytest.raises(semlock.LockPathError, match="is a directory"):
            call()
    assert semlock.clean(lock_file.parent) == []
    assert lock_file.is_dir()
    peer.do("release", target=target)
    acquire_file_lock(target, timeout=0).release()


def test_its_lock_that_is_stale_is_refused_and_left_alone_too(peer, target, lock_file):
    lock_file.mkdir()
    os.utime(lock_file, (1, 1))
    with pytest.raises(semlock.LockPathError):
        acquire_file_lock(
            target,
            should_reclaim=lambda _: True,
            stale_recovery="remove-if-unchanged",
            should_remove_stale_lock=lambda _: True,
        )
    assert lock_file.is_dir()
    peer.do("acquire", target=target)
    peer.do("release", target=target)


def test_it_sees_semlocks_lock_as_held(peer, target, lock_file):
    with acquire_file_lock(target) as handle:
        with pytest.raises(PeerError) as caught:
            peer.do("acquire", target=target)
        assert caught.value.code == "ELOCKED"
        assert peer.do("check", target=target) is True
        handle.lock.check()
    assert peer.do("check", target=target) is False
    peer.do("acquire", target=target)
    peer.do("release", target=target)


def test_it_does_not_take_semlocks_lock_when_it_thinks_it_stale(peer, target, lock_file):
    """It tries to remove a directory, which a file is not, and gives up with that error."""
    with acquire_file_lock(target) as handle:
        os.utime(lock_file, (time.time() - 60,) * 2)
        with pytest.raises(PeerError) as caught:
            peer.do("acquire", target=target)
        assert caught.value.code == "ENOTDIR"
        handle.lock.check()


def test_a_refresh_keeps_semlocks_lock_fresh_for_it(peer, target, lock_file):
    with acquire_file_lock(target) as handle:
        os.utime(lock_file, (time.time() - 60,) * 2)
        handle.lock.refresh()
        with pytest.raises(PeerError) as caught:
            peer.do("acquire", target=target)
        assert caught.value.code == "ELOCKED"


WORKER = """
import os, sys, time
import semlock
from semlock import sidecar
target, rounds, judge, report = sys.argv[1:]
retry = sidecar.RetryOptions(min_timeout=0.001, max_timeout=0.003, randomize=True)
won = 0
while won < int(rounds):
    try:
        with sidecar.acquire_file_lock(target, retry=retry, durability="none"):
            won += 1
            try:
                os.close(os.open(judge, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                os.unlink(judge)
            except OSError as error:
                with open(report, "a") as file:
                    file.write(f"semlock: {error}\\n")
    except semlock.LockPathError:
        time.sleep(0.001)  # its directory stands there, which is how it says "held"
"""


def test_a_storm_with_it_has_no_overlap(target, tmp_path, lock_file):
    judge, report = str(tmp_path / "judge"), str(tmp_path / "report")
    workers = [
        start_storm("0.3.0", "proper-lockfile", target, "70", judge, report) for _ in range(2)
    ]
    workers += [
        subprocess.Popen([sys.executable, "-c", WORKER, target, "140", judge, report])
        for _ in range(2)
    ]
    assert [worker.wait(100) for worker in workers] == [0] * 4
    assert not os.path.exists(report), Path(report).read_text()
    assert not lock_file.exists()


def test_retry_options_of_one_try_do_not_hang(peer, target):
    peer.do("acquire", target=target)
    with pytest.raises(semlock.LockPathError):
        acquire_file_lock(target, retry=RetryOptions(retries=0))
    peer.do("release", target=target)
