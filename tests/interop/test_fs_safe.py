"""fs-safe 0.3.0 and 0.21.0, the real programs: each excludes the other and reads its payload."""

import asyncio
import json
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from nodelib import Peer, PeerError, start_storm
from semlock import sidecar
from semlock._core.json_records import decode_object, encode_object, parse_iso_time
from semlock._systems.sidecar_record import compose, token_of
from semlock.sidecar import RetryOptions, SidecarLock, acquire_file_lock
from support import iso

RECORDS = Path(__file__).resolve().parent / "records" / "sidecar"
VERSIONS = ["0.3.0", "0.21.0"]
PACKAGE = "@openclaw/fs-safe/file-lock"
ONCE = RetryOptions(retries=0)

# Of the golden files: the payload that fs-safe was given.
PAYLOAD = {
    "pid": 7570,
    "host": "builder",
    "createdAt": "2026-11-18T12:48:56.735Z",
    "what": 'Zürich 🔒 "quoted" \\ \u2028\t',
    "ratio": 0.1,
    "big": 1e21,
    "small": 1e-7,
    "deep": {"list": [1, [], {}, None, True]},
}


@pytest.fixture(scope="module")
def running():
    """One Node program of each version for the whole file: starting one takes a while."""
    peers = {}

    def get(version):
        if version not in peers:
            peers[version] = Peer("fs-safe.mjs", version)
        return peers[version]

    yield get
    for peer in peers.values():
        with peer:
            pass


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def peer(running, version):
    peer = running(version)
    peer.do("told")
    return peer


@pytest.fixture
def own_peer(version):
    """A Node program that the test may kill."""
    with Peer("fs-safe.mjs", version) as peer:
        yield peer


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "state.json")


@pytest.fixture
def lock_file(target):
    return Path(target + ".lock")


def try_once(peer, target, **more):
    return peer.do("acquire", target=target, options={"retry": {"retries": 0}}, **more)


class TestExclusion:
    def test_of_the_peer_while_semlock_holds(self, peer, target):
        with acquire_file_lock(target), pytest.raises(PeerError) as caught:
            peer.do("acquire", target=target, options={"timeoutMs": 150})
        assert caught.value.code == "file_lock_timeout"
        try_once(peer, target)
        peer.do("release")

    def test_of_semlock_while_the_peer_holds(self, peer, target):
        peer.do("acquire", target=target)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, timeout=0.15)
        assert SidecarLock(target).try_acquire() is False
        assert sidecar.status(target).state == "held"
        peer.do("release")
        acquire_file_lock(target, timeout=0).release()

    def test_ends_for_the_peer_when_semlock_lets_go(self, peer, target):
        with acquire_file_lock(target):
            peer.send("acquire", target=target)
            assert peer.is_quiet_for(0.15)
        assert peer.receive()["lockPath"] == target + ".lock"
        assert SidecarLock(target).try_acquire() is False
        peer.do("release")

    def test_ends_for_semlock_when_the_peer_lets_go(self, peer, target):
        peer.do("acquire", target=target)
        timer = threading.Timer(0.1, lambda: peer.do("release"))
        timer.start()
        with acquire_file_lock(target, timeout=30):
            timer.join()

    def test_is_by_the_same_file_whatever_links_lead_there(self, peer, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        found = peer.do("acquire", target=str(tmp_path / "link" / "x"))
        assert found["normalizedTargetPath"] == str(tmp_path / "real" / "x")
        with pytest.raises(sidecar.FileLockTimeoutError) as caught:
            acquire_file_lock(tmp_path / "link" / "x", retry=ONCE)
        assert caught.value.lock_path == found["lockPath"]
        assert caught.value.normalized_target_path == found["normalizedTargetPath"]
        peer.do("release")

    def test_leaves_the_others_lock_to_be_released_by_its_owner(self, peer, target, lock_file):
        peer.do("acquire", target=target)
        before = lock_file.read_bytes()
        sidecar.status(target)
        assert SidecarLock(target).try_acquire() is False
        assert semlock.clean(lock_file.parent) == []
        assert lock_file.read_bytes() == before
        peer.do("release")
        assert not lock_file.exists()
        handle = acquire_file_lock(target)
        with pytest.raises(PeerError):
            try_once(peer, target)
        handle.lock.check()
        handle.release()
        assert not lock_file.exists()


class TestPayloads:
    def test_of_semlock_are_read_by_the_peer(self, peer, target):
        with acquire_file_lock(target, payload=lambda: PAYLOAD), pytest.raises(PeerError):
            try_once(peer, target, reclaim=False)
        (told,) = peer.do("told")
        assert told["payload"] == PAYLOAD
        assert told["lockPath"] == target + ".lock"

    def test_of_semlocks_default_are_read_by_the_peer(self, peer, target):
        with acquire_file_lock(target) as handle:
            payload = handle.lock.info.payload
            with pytest.raises(PeerError):
                try_once(peer, target, reclaim=False)
        (told,) = peer.do("told")
        assert told["payload"] == payload
        assert told["payload"]["pid"] == os.getpid()

    def test_of_the_peer_are_read_by_semlock(self, peer, target, version):
        peer.do("acquire", target=target, payload=PAYLOAD)
        told = []
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE, should_reclaim=told.append)
        assert told[0].payload == PAYLOAD
        info = sidecar.status(target).info
        assert info.payload == PAYLOAD
        assert (info.pid, info.host, info.timestamp) == (7570, "builder", 1795006136.735)
        assert (info.token is None) is (version == "0.3.0")
        peer.do("release")

    def test_of_the_peers_are_the_golden_bytes(self, peer, target, lock_file, version):
        peer.do("acquire", target=target, payload=PAYLOAD)
        golden = (RECORDS / f"fs-safe-{version}.lock").read_bytes()
        found = lock_file.read_bytes()
        assert len(found) == len(golden)
        text = golden.partition(b"\n\t\t\t\t\t\t\t\t")[0]
        assert found.startswith(text)
        assert text.rstrip(b"\n").decode() == encode_object(PAYLOAD)
        mode = 0o644 if version == "0.3.0" else 0o600
        assert lock_file.stat().st_mode & 0o777 == mode
        peer.do("release")

    def test_of_both_sides_have_the_same_form(self, peer, target, lock_file, version):
        """By either side: the same JSON, and in 0.21 the same white space behind it."""
        peer.do("acquire", target=target, payload=PAYLOAD)
        theirs = lock_file.read_bytes()
        peer.do("release")
        with acquire_file_lock(target, payload=lambda: PAYLOAD):
            ours = lock_file.read_bytes()
        assert ours.startswith(encode_object(PAYLOAD).encode() + b"\n")
        if version == "0.3.0":
            assert ours.startswith(theirs)
        else:
            assert len(ours) == len(theirs)
            assert token_of(ours)
            assert token_of(theirs)
            assert token_of(ours) != token_of(theirs)


class TestGoldenFiles:
    @pytest.mark.parametrize("name", ["fs-safe-0.3.0", "fs-safe-0.21.0", "semlock"])
    def test_are_read_as_they_stand(self, name):
        info = sidecar.decode((RECORDS / f"{name}.lock").read_bytes())
        assert info.payload == PAYLOAD
        assert (info.pid, info.timestamp) == (7570, 1795006136.735)
        tokens = {
            "fs-safe-0.3.0": None,
            "fs-safe-0.21.0": "b85245a34ad7b948f2d1fe3460a4db1f",
            "semlock": "0123456789abcdef0123456789abcdef",
        }
        assert info.token == tokens[name]

    def test_of_our_own_do_not_change_unseen(self, monkeypatch):
        name = bytes.fromhex("0123456789abcdef0123456789abcdef")
        monkeypatch.setattr("os.urandom", lambda _: name)
        assert compose(PAYLOAD) == (RECORDS / "semlock.lock").read_bytes()

    def test_are_all_of_them(self):
        assert {file.name for file in RECORDS.iterdir()} == {
            "README.md", "fs-safe-0.3.0.lock", "fs-safe-0.21.0.lock", "semlock.lock",
        }  # fmt: skip


class TestStaleLocks:
    def test_of_the_peer_are_stale_for_semlock(self, peer, target, lock_file):
        peer.do("acquire", target=target, payload={"createdAt": iso(time.time() - 60)})
        with pytest.raises(sidecar.FileLockStaleError):
            acquire_file_lock(target)
        assert lock_file.exists()
        peer.do("release")
        assert not lock_file.exists()

    def test_of_semlock_are_stale_for_the_peer_even_while_it_lives(self, peer, target):
        """The peer knows no witness.  It fails closed, and the lock stays."""
        with acquire_file_lock(
            target, payload=lambda: {"createdAt": iso(time.time() - 60)}
        ) as handle:
            with pytest.raises(PeerError) as caught:
                peer.do("acquire", target=target)
            assert caught.value.code == "file_lock_stale"
            handle.lock.check()

    def test_of_semlock_are_fresh_for_the_peer_after_a_refresh(self, peer, target):
        lock = SidecarLock(target, payload=lambda: {"createdAt": iso(time.time() - 60)})
        with lock:
            lock.refresh()
            with pytest.raises(PeerError) as caught:
                try_once(peer, target)
            assert caught.value.code == "file_lock_timeout"

    @pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": NaN}'])
    def test_that_are_no_record_are_judged_by_both_by_their_time(
        self, peer, target, lock_file, content
    ):
        lock_file.write_text(content)
        for age, ours, theirs in (
            (0, sidecar.FileLockTimeoutError, "file_lock_timeout"),
            (60, sidecar.FileLockStaleError, "file_lock_stale"),
        ):
            os.utime(lock_file, (time.time() - age,) * 2)
            with pytest.raises(ours):
                acquire_file_lock(target, retry=ONCE)
            with pytest.raises(PeerError) as caught:
                try_once(peer, target)
            assert caught.value.code == theirs
        with pytest.raises(PeerError):
            try_once(peer, target, reclaim=False)
        assert peer.do("told")[-1]["payload"] is None

    def test_of_a_killed_peer_are_removed_by_semlock_when_the_caller_agrees(
        self, own_peer, target
    ):
        own_peer.do("acquire", target=target)
        pid = sidecar.status(target).info.pid
        assert pid == own_peer.pid
        own_peer.kill()
        with acquire_file_lock(
            target,
            stale_recovery="remove-if-unchanged",
            should_reclaim=lambda told: told.payload["pid"] == pid,
            should_remove_stale_lock=lambda told: told.payload["pid"] == pid,
        ) as handle:
            assert handle.lock.info.pid == os.getpid()

    def test_of_killed_semlock_are_removed_by_the_peer_when_the_caller_agrees(
        self, peer, target, lock_file
    ):
        script = "import sys, os\nfrom semlock import sidecar\n"
        script += "h = sidecar.acquire_file_lock(sys.argv[1]); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", script, target], check=False)
        raw = lock_file.read_text()
        peer.do(
            "acquire",
            target=target,
            options={"staleMs": 1, "staleRecovery": "remove-if-unchanged"},
            reclaim=True,
            remove=True,
        )
        told = [t for t in peer.do("told") if t["name"] == "remove"]
        assert told[0]["raw"] == raw
        assert told[0]["payload"] == json.loads(raw)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE)
        peer.do("release")

    def test_that_a_peer_is_about_to_remove_are_not_taken_by_semlock_meanwhile(
        self, running, target, lock_file
    ):
        """0.21 removes by name.  Semlock must not win between its last look and its removal."""
        peer = running("0.21.0")
        lock_file.write_text("{}")
        peer.send(
            "acquire",
            target=target,
            options={"staleRecovery": "remove-if-unchanged"},
            reclaim=True,
            remove="ask",
        )
        assert peer.receive() == "remove"
        lock_file.unlink()  # its owner lets go of it, late
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, timeout=0.05)
        peer.reply(True)
        assert peer.receive()["lockPath"] == str(lock_file)
        with pytest.raises(sidecar.FileLockTimeoutError):
            acquire_file_lock(target, retry=ONCE)
        peer.do("release")
        acquire_file_lock(target, timeout=5).release()


class TestTheLanguage:
    """What Node itself makes of numbers, text and dates is what semlock makes of them."""

    def test_numbers_are_written_alike(self, running):
        numbers = [value for value in map(number_of, range(4000)) if abs(value) < 1e308]
        numbers += [n * 10.0**e for n in (1, 1.5, 123456789.125) for e in range(-30, 30)]
        (text,) = running("0.3.0").do("stringify", values=[{"n": numbers}])
        assert encode_object({"n": numbers}) == text

    def test_objects_are_written_alike(self, running):
        values = [
            PAYLOAD, {}, {"a": {}, "b": [], "c": [[], {}]}, {"": "", " ": None},
            {"controls": "".join(map(chr, range(160)))}, {"half": "\ud800x\udfff"},
            {"nested": {"a": [{"b": [1, 2]}]}},
        ]  # fmt: skip
        texts = running("0.3.0").do("stringify", values=values)
        assert [encode_object(value) for value in values] == texts
        assert [decode_object(text.encode()) for text in texts] == values

    def test_dates_are_read_alike(self, running):
        texts = [
            "2026-11-18T12:48:56.735Z", "2026-11-18", "2026-11", "2026", "2026-11-18T12:48",
            "2026-06-01T10:00:05", "2026-06-01T10:00:05.1", "2026-06-01T10:00:05.123456+02:00",
            "2026-06-01T24:00:00Z", "2026-06-01T24:00:01Z", "2026-13-01", "2026-06-01T10Z",
            "2026-06-01T10:00:60Z", "x", "", "2026T10:00Z", "2026-06-01T10:00+24:00",
            "2026-06-01T10:00:05,5Z", "9999-12-31T23:59:59.999Z", "2026-06-01T10:00:05.Z",
            "1969-12-31T23:59:59.5Z", "2026-06-01T10:00-00:00",
        ]  # fmt: skip
        expected = running("0.3.0").do("dates", values=texts)
        found = [parse_iso_time(text) for text in texts]
        assert [None if time is None else time * 1000 for time in found] == expected


def number_of(seed):
    """Give some float, the same for each seed: any bits."""
    bits = (seed * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
    value = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return value if value == value else 0.0


WORKER = """
import asyncio, os, sys
from semlock import sidecar
kind, target, rounds, judge, report = sys.argv[1:]
retry = sidecar.RetryOptions(factor=1.3, min_timeout=0.001, max_timeout=0.005, randomize=True)
options = dict(retry=retry, durability="none", stale=60)

def work():
    try:
        os.close(os.open(judge, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(judge)
    except OSError as error:
        with open(report, "a") as file:
            file.write(f"{kind}: {error}\\n")

async def main():
    async def one(count):
        for _ in range(count):
            await sidecar.with_file_lock_async(target, work, **options)
    await asyncio.gather(*(one(int(rounds) // 2) for _ in range(2)))

if kind == "async":
    asyncio.run(main())
else:
    for _ in range(int(rounds)):
        sidecar.with_file_lock(target, work, **options)
"""


def test_a_storm_of_both_versions_and_semlock_has_no_overlap(target, tmp_path, lock_file):
    judge, report = str(tmp_path / "judge"), str(tmp_path / "report")
    workers = [
        start_storm(version, PACKAGE, target, "150", judge, report) for version in VERSIONS * 2
    ]
    workers += [
        subprocess.Popen([sys.executable, "-c", WORKER, kind, target, "300", judge, report])
        for kind in ("sync", "async")
    ]
    assert [worker.wait(100) for worker in workers] == [0] * 6
    assert not os.path.exists(report), Path(report).read_text()
    assert not lock_file.exists()


REMOVER = """
import os, random, sys, time
from semlock import sidecar
target, rounds, judge, report = sys.argv[1:]

def is_dead(told):
    return told.payload is not None and told.payload.get("dead") is True

def is_dead_after_a_while(told):
    time.sleep(random.random() * 0.003)  # long enough for others to come in between
    return is_dead(told)

options = dict(
    retry=sidecar.RetryOptions(min_timeout=0.001, max_timeout=0.004, randomize=True),
    stale_recovery="remove-if-unchanged",
    should_reclaim=is_dead,
    should_remove_stale_lock=is_dead_after_a_while,
    durability="none",
)
for _ in range(int(rounds)):
    with sidecar.acquire_file_lock(target, **options):
        try:
            os.close(os.open(judge, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            time.sleep(0.0005)
            os.unlink(judge)
        except OSError as error:
            with open(report, "a") as file:
                file.write(f"semlock: {error}\\n")
    try:
        with open(target + ".lock", "x") as file:
            file.write('{"dead": true}')
    except FileExistsError:
        pass
"""


def test_a_storm_in_which_all_remove_dead_locks_has_no_overlap_and_no_loss(target, tmp_path):
    """0.21 removes by name; without heed to its guard this has five overlaps in each run."""
    judge, report = str(tmp_path / "judge"), str(tmp_path / "report")
    workers = [
        start_storm("0.21.0", PACKAGE, target, "80", judge, report, "removing")
        for _ in range(2)
    ]
    workers += [
        subprocess.Popen([sys.executable, "-c", REMOVER, target, "160", judge, report])
        for _ in range(3)
    ]
    assert [worker.wait(100) for worker in workers] == [0] * 5
    assert not os.path.exists(report), Path(report).read_text()


def test_an_event_loop_waits_for_a_peer(running, target):
    peer = running("0.3.0")
    peer.do("acquire", target=target)

    async def main():
        waiting = asyncio.create_task(sidecar.acquire_file_lock_async(target))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        peer.do("release")
        await (await waiting).release_async()

    asyncio.run(main())
