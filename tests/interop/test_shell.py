"""Shell scripts on the same lock files: ``set -C`` creates, ``rm`` lets go."""

import fcntl
import json
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
        subprocess.Popen(["sh", "-c", SCRIPT, "sh", path, judge, "30", out]) for _ in range(3)
    ]
    workers += [
        subprocess.Popen([sys.executable, "-c", script, path, judge, "75", out, kind])
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
def test_flock_on_the_same_path_counts_as_a_holder(path):
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


def told(output):
    """Read what a status says: JSON, ``info: {JSON}``, or a line for each fact."""
    facts = {}
    whole = output.lstrip().startswith("{")  # perhaps over several lines
    for line in [output] if whole else output.splitlines():
        start = line.find("{")
        if start >= 0:
            said = json.loads(line[start:])
            facts.update(said)
            facts.update(said.get("info") or {})
        else:
            name, _, value = line.partition(":")
            facts[name.strip().lower()] = value.strip()
    return {name: str(value) for name, value in facts.items()}


class Peer:
    """A command line of another program on the same files."""

    def __init__(self, words, take, release):
        self.words = words
        self.take = take
        self.release = release

    def run(self, verb, path, *more):
        return subprocess.run(
            [*self.words, verb, path, *more], capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip


PEER = Path(__file__).with_name("peers") / "stand_in.py"

# How each takes a lock, and lets go of one that another process of it took.
WORDS = {
    "SEMA": ("try", ("release",)),
    "SEMATS": ("try-acquire", ("release", "--force")),
    "semlock": ("try", ("release",)),  # has sema's words
}


class TestCommands:
    """Peers that no registry has: a command line in the environment runs the same matrix.

    ``SEMLOCK_PEER_SEMA`` and ``SEMLOCK_PEER_SEMATS`` name the real tools.  Stand-ins that
    behave like them keep these tests such that the real ones can pass.
    """

    @pytest.fixture(
        params=[
            "SEMLOCK_PEER_SEMA", "SEMLOCK_PEER_SEMATS", "like SEMA", "like SEMATS", "semlock",
        ]
    )  # fmt: skip
    def peer(self, request):
        name = request.param
        tool = name.removeprefix("SEMLOCK_PEER_").removeprefix("like ")
        if name == "semlock":
            words = [sys.executable, "-m", "semlock"]
        elif name.startswith("like"):
            words = [sys.executable, str(PEER), tool.lower()]
        elif name in os.environ:
            words = shlex.split(os.environ[name])
        else:
            pytest.skip(f"{name} names no command")
        return Peer(words, *WORDS[tool])

    def test_each_excludes_the_other(self, peer, path):
        with Semaphore(path, tag="ours"):
            assert peer.run(peer.take, path).returncode != 0
        assert peer.run(peer.take, path, "--tag", "theirs").returncode == 0
        assert not Semaphore(path).try_acquire()
        assert Semaphore(path).status().info.tag == "theirs"
        verb, *more = peer.release
        assert peer.run(verb, path, *more).returncode == 0
        with Semaphore(path, timeout=0):
            pass

    @pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
    def test_each_reads_the_others_record(self, peer, form, path):
        with Semaphore(path, tag="a tag = with signs") as lock:
            # Ours writes for people unless it is told otherwise.
            ours = () if form or "semlock" not in peer.words else ("--porcelain",)
            facts = told(peer.run("status", path, *form, *ours).stdout)
            assert facts["pid"] == str(os.getpid())
            assert facts["tag"] == "a tag = with signs"
            assert facts.get("timestamp", str(lock.info.timestamp)) == str(lock.info.timestamp)

    def test_a_young_lock_of_a_process_that_is_gone_is_held(self, peer, path):
        assert peer.run(peer.take, path).returncode == 0
        assert time.time() - Semaphore(path).status().info.timestamp < 60
        assert peer.run(peer.take, path).returncode != 0


@pytest.mark.parametrize(
    "output",
    [
        "Locked\nPID: 7\nTag: a: b\n",
        "locked: true\npid: 7\ntag: a: b\n",
        'locked: true\ninfo: {"pid":7,"timestamp":1,"tag":"a: b"}\n',
        '{"locked":true,"pid":7,"timestamp":1,"tag":"a: b"}\n',
        '{"locked":true,"info":{"pid":7,"timestamp":1,"tag":"a: b"},"isStale":false}\n',
    ],
)
def test_what_a_peer_prints_is_read_in_each_form(output):
    facts = told(output)
    assert (facts["pid"], facts["tag"]) == ("7", "a: b")
