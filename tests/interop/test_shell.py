"""Shell scripts on the same lock files: ``set -C`` creates, ``rm`` lets go."""

import fcntl
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock.sema import Semaphore

SCRIPT = r"""
lock=$1; judge=$2; rounds=$3; out=$4
won=0
while [ "$won" -lt "$rounds" ]; do
    record="pid=$$\ntimestamp=$(date +%s)\ntag=shell\n"
    if ( set -C; printf "$record" > "$lock" ) 2>/dev/null; then
        # An independent judge: only one of us may be here.
        if ! mkdir "$judge" 2>/dev/null; then echo overlap >> "$out"; fi
        rmdir "$judge" 2>/dev/null || echo overlap >> "$out"
        rm "$lock"
        won=$((won + 1))
    else
        sleep 0.001
    fi
done
"""

PYTHON = r"""
import os, sys, semlock
from semlock.sema import Semaphore
path, judge, rounds, out, kind = sys.argv[1:]
make = Semaphore if kind == "sema" else semlock.Lock
lock = make(path, durability="none", retry=semlock.retry.Every(0.001))
for turn in range(int(rounds)):
    if turn % 2:
        lock = make(path, durability="none", retry=semlock.retry.Every(0.001))
    with lock:
        try:
            os.mkdir(judge)
            os.rmdir(judge)
        except OSError:
            with open(out, "a") as file:
                file.write("overlap\n")
"""


@pytest.mark.parametrize("kind", ["sema", "default"])
def test_a_storm_of_scripts_and_semlock_has_no_overlap(kind, tmp_path, path):
    judge, out = str(tmp_path / "judge"), str(tmp_path / "out")
    script = "import semlock.retry\n" + PYTHON
    workers = [
        subprocess.Popen(["sh", "-c", SCRIPT, "sh", path, judge, "60", out]) for _ in range(3)
    ]
    workers += [
        subprocess.Popen([sys.executable, "-c", script, path, judge, "150", out, kind])
        for _ in range(3)
    ]
    for worker in workers:
        assert worker.wait(100) == 0
    assert not os.path.exists(out)
    assert not os.path.exists(path)


def test_a_script_excludes_semlock_and_is_left_alone(path):
    program = 'set -C; printf \'pid=%s\\ntimestamp=1\\n\' $$ > "$1"; echo held; read x; rm "$1"'
    with subprocess.Popen(
        ["sh", "-c", program, "sh", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as script:
        assert script.stdout.readline() == b"held\n"
        lock = semlock.Lock(path)
        assert not lock.try_acquire()
        assert semlock.status(path).verdict == "unknown"
        assert semlock.clean(os.path.dirname(path)) == []
        script.communicate(b"\n")
        with lock.acquire(timeout=30):
            pass


def test_semlock_excludes_a_script(path):
    program = 'set -C; : > "$1"'
    with semlock.Lock(path) as lock:
        before = Path(path).read_bytes()
        result = subprocess.run(
            ["sh", "-c", program, "sh", path], capture_output=True, check=False
        )
        assert result.returncode != 0
        assert Path(path).read_bytes() == before
        lock.check()
    assert subprocess.run(["sh", "-c", program, "sh", path], check=False).returncode == 0


def test_a_script_whose_process_is_gone_keeps_its_lock(path):
    """A short-lived command's number is gone while its lock is meant to stay."""
    program = "set -C; printf 'pid=%s\\ntimestamp=1794992549\\n' $$ > \"$1\""
    subprocess.run(["sh", "-c", program, "sh", path], check=True)
    assert not semlock.Lock(path).try_acquire()
    assert not Semaphore(path, stale_timeout=0).try_acquire()


@pytest.mark.skipif(not os.path.exists("/usr/bin/flock"), reason="flock(1) is not installed")
def test_flock_on_the_same_path_counts_as_somebody_who_holds(path):
    """A user of flock(1) sits on the guard, so a dead holder's file is not removed under them."""
    script = "import semlock,sys,os; l=semlock.Lock(sys.argv[1]); l.acquire(); os._exit(0)"
    subprocess.run([sys.executable, "-c", script, path], check=True)
    with subprocess.Popen(
        ["flock", path, "sh", "-c", "echo held; read x"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"held\n"
        assert not semlock.Lock(path).try_acquire()
        with open(path) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.communicate(b"\n")
    with semlock.Lock(path, timeout=30):
        pass


class TestCommands:
    """Peers that no registry has: a command line in the environment runs the same matrix."""

    PEERS = {
        "SEMLOCK_PEER_SEMA": ("try", "release", "status", "--tag"),
        "SEMLOCK_PEER_SEMATS": ("try-acquire", "release", "status", "--tag"),
    }

    @pytest.fixture(params=[*PEERS, "semlock"])
    def peer(self, request):
        if request.param == "semlock":
            # The matrix itself is tried on our own command, which has sema's words.
            words, verbs = (
                [sys.executable, "-m", "semlock"],
                ("try", "release", "status", "--tag"),
            )
        elif request.param in os.environ:
            words = shlex.split(os.environ[request.param])
            verbs = self.PEERS[request.param]
        else:
            pytest.skip(f"{request.param} names no command")
        return words, verbs

    def run(self, peer, verb, path, *more):
        words, verbs = peer
        return subprocess.run(
            [*words, verbs[verb], path, *more], capture_output=True, text=True, check=False
        )

    def test_each_excludes_the_other(self, peer, path):
        with Semaphore(path, tag="ours"):
            assert self.run(peer, 0, path).returncode != 0
        assert self.run(peer, 0, path, peer[1][3], "theirs").returncode == 0
        assert not Semaphore(path).try_acquire()
        assert Semaphore(path).status().info.tag == "theirs"
        assert self.run(peer, 1, path).returncode == 0
        with Semaphore(path, timeout=0):
            pass

    def test_each_reads_the_others_record(self, peer, path):
        with Semaphore(path, tag="a tag = with signs") as lock:
            shown = self.run(peer, 2, path).stdout
            assert f"pid: {os.getpid()}" in shown
            assert f"timestamp: {lock.info.timestamp}" in shown
            assert "a tag = with signs" in shown

    def test_a_young_lock_of_a_process_that_is_gone_is_held(self, peer, path):
        assert self.run(peer, 0, path).returncode == 0
        assert time.time() - Semaphore(path).status().info.timestamp < 60
