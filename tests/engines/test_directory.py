"""A shared directory as an engine: across processes and hosts, with events and without."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

import histories
import semlock
from histories import Recorder, Register, Workers, false_clock, violations
from semlock._core import capi
from semlock._core.records import decode_text
from semlock._engines import directory_client, directory_line, ticket
from semlock._engines.address import Address
from semlock._engines.directory_facts import mount_of, slack_of
from semlock._engines.engine import Away, now
from support import PATIENCE, wait_until

STRESS_SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "10"))
TTL = 1.0
pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the suites of spaces and of behaviour run there"
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux'")

HOLDER = """
import sys, time
true = time.time
time.time = lambda: true() + float(sys.argv[3])
import semlock
space = semlock.connect(sys.argv[1], ttl=float(sys.argv[2]))
lock = space.Lock("deploy", on_lost=lambda *_: None)
lock.acquire()
print(lock.fence, flush=True)
for line in sys.stdin:
    print(lock.held, round(lock.left(), 3), flush=True)
"""


@pytest.fixture
def url(tmp_path):
    (tmp_path / "locks").mkdir()
    return f"file://{tmp_path}/locks"


@pytest.fixture
def space(url):
    with semlock.connect(url, ttl=TTL) as space:
        yield space


class Holder:
    """Another process, which holds the lock until it is told to end."""

    def __init__(self, url, ttl=TTL, before=(), clock=0) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", HOLDER, url, str(ttl), str(clock)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.fence = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def asked(self) -> tuple[bool, float]:
        """Ask whether it holds, and for how long."""
        print(file=self.process.stdin, flush=True)
        held, left = self.process.stdout.readline().split()
        return held == "True", float(left)


@pytest.fixture
def other_host(tmp_path):
    """A command that runs a program as on another machine: other names, PIDs and boot."""
    file = tmp_path / "boot_id"
    file.write_text(f"{uuid.uuid4()}\n")
    script = (
        f"mount -t proc proc /proc && mount --bind {file} /proc/sys/kernel/random/boot_id && "
        'hostname node42 && exec "$@"'
    )
    namespaces = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child")
    command = (*namespaces, "sh", "-c", script, "sh")
    if (
        not shutil.which("unshare")
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("no namespaces can be made here")
    return command


# ---------------------------------------------------------------- one machine


def test_a_killed_holder_of_this_machine_is_dead_at_once(url, space):
    for _ in range(3):
        with Holder(url, ttl=60) as holder:
            threading.Timer(0.2, holder.process.kill).start()
            began = time.monotonic()
            with space.Lock("deploy").acquire(timeout=PATIENCE) as lock:
                assert time.monotonic() - began < 0.9 * PATIENCE
                assert lock.fence > holder.fence
    assert os.listdir(f"{url[7:]}/semlock.locks/clients") == [
        space.client.engine._lease.claim[0]
    ]


def test_a_holder_that_is_stopped_beyond_its_lease_has_lost(url, space):
    with Holder(url) as holder:
        holder.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            assert time.monotonic() - began > 0.6 * TTL
            holder.process.send_signal(signal.SIGCONT)
            assert holder.asked() == (False, 0.0)
            wait_until(lambda: space.status("deploy").info.pid == os.getpid(), "it is ours")


def test_the_renewal_of_many_locks_is_one_file(url, space, monkeypatch):
    changed, read = [], []
    locks = [space.Lock(str(number)) for number in range(40)]
    for lock in locks:
        lock.acquire()
    change, look = directory_client._LeaseFile.change, directory_line.Lines.read
    monkeypatch.setattr(
        directory_client._LeaseFile, "change", lambda self: changed.append(1) or change(self)
    )
    monkeypatch.setattr(
        directory_line.Lines, "read", lambda *a, **k: read.append(1) or look(*a, **k)
    )
    time.sleep(2 * TTL)
    assert 4 <= len(changed) <= 7
    assert read == []
    assert all(lock.held for lock in locks)
    for lock in locks:
        lock.release()


def test_a_released_name_keeps_its_number_and_nothing_else(url, space):
    fences = []
    for _ in range(3):
        with semlock.connect(url, ttl=TTL) as one, one.Lock("deploy") as lock:
            fences.append(lock.fence)
    assert fences == sorted(set(fences))
    place = Path(url[7:], "semlock.locks")
    assert os.listdir(place / "clients") == []
    (line,) = (place / "lines").iterdir()
    (pointer,) = os.listdir(line)
    assert pointer.startswith("e.6.")


def test_a_change_that_comes_late_is_refused(url, space, monkeypatch):
    """A client is stopped before the rename, others change the line, and then it goes on."""
    rename, late = directory_line._rename, []

    def stopped(old, new):
        if not late:
            late.append((old, new))
            with semlock.connect(url, ttl=TTL) as other, other.Lock("deploy") as lock:
                late.append(lock.fence)
        return rename(old, new)

    monkeypatch.setattr(directory_line, "_rename", stopped)
    with space.Lock("deploy") as lock:
        assert late[1] < lock.fence
        assert space.status("deploy").info.token == lock.token


def test_without_that_refusal_a_late_change_undoes_others(url, space, monkeypatch):
    """The ablation: a change that names no version overwrites what came meanwhile."""
    rename, late = directory_line._rename, []

    def unconditional(old, new):
        if not late:
            late.append(semlock.connect(url, ttl=TTL))
            late.append(late[0].Lock("deploy"))
            late[1].acquire()
            directory = os.path.dirname(old)
            for name in os.listdir(directory):
                if name[0] in "se":
                    os.rename(f"{directory}/{name}", new)
            return True
        return rename(old, new)

    with space.Lock("deploy"):
        pass  # the name is known
    monkeypatch.setattr(directory_line, "_rename", unconditional)
    with space.Lock("deploy") as lock:
        assert late[1].held
        assert lock.held  # two
    late[0].close()


def test_an_answer_that_was_lost_is_recognised(url, space, monkeypatch):
    rename, lost = os.rename, []

    def answered_twice(old, new):
        rename(old, new)
        if not lost:
            lost.append(old)
            rename(old, new)  # the client's kernel asks again, and the file is gone

    with space.Lock("deploy"):
        pass
    monkeypatch.setattr(os, "rename", answered_twice)
    with space.Lock("deploy") as lock:
        assert lost
        assert len(space.client.line("deploy")) == 1
        lock.check()
    assert space.list() == []


# ---------------------------------------------------------------- another host


@linux
def test_a_killed_holder_of_another_host_is_dead_after_its_lease(url, space, other_host):
    with Holder(url, before=other_host) as holder:
        found = space.status("deploy")
        assert (found.state, found.info.host) == ("held", "node42")
        held, left = holder.asked()
        assert held
        began = time.monotonic()
        holder.process.kill()
        with space.Lock("deploy").acquire(timeout=PATIENCE) as lock:
            passed = time.monotonic() - began
            assert left - 0.01 < passed < 2.5 * TTL
            assert lock.fence > holder.fence


@linux
def test_a_living_holder_of_another_host_keeps_its_lock(url, space, other_host):
    with Holder(url, before=other_host) as holder:
        with pytest.raises(semlock.LockTimeoutError, match="node42"):
            space.Lock("deploy").acquire(timeout=2.5 * TTL)
        assert holder.asked()[0]


# ---------------------------------------------------------------- a mount without events


@pytest.fixture
def mounted(tmp_path, url):
    """The same directory by a FUSE mount: nothing is reported, and its server can be stopped."""
    if not shutil.which("bindfs") or not os.path.exists("/dev/fuse"):
        pytest.skip("needs bindfs")
    (tmp_path / "mount").mkdir()
    server = subprocess.Popen(["bindfs", "-f", url[7:], str(tmp_path / "mount")])
    try:
        wait_until(lambda: os.path.ismount(tmp_path / "mount"), "it is mounted")
        yield f"file://{tmp_path}/mount", server
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", str(tmp_path / "mount")], check=True)
        server.kill()
        server.wait()


@linux
def test_a_lock_passes_on_between_mounts_without_events(space, mounted):
    assert mount_of(mounted[0][7:])[0].startswith("fuse")
    with semlock.connect(mounted[0], ttl=TTL) as other:
        for holder, waiter in ((space, other), (other, space)) * 2:
            lock = holder.Lock("deploy")
            lock.acquire()
            release_at = now() + 0.3
            threading.Timer(0.3, lock.release).start()
            with waiter.Lock("deploy").acquire(timeout=PATIENCE) as mine:
                assert 0 <= now() - release_at < 2.0
                assert mine.fence > lock.ticket.fence


@linux
def test_a_file_server_that_hangs_is_told_in_time(url, mounted):
    with semlock.connect(mounted[0], ttl=TTL) as space:
        lost = []
        lock = space.Lock("deploy", on_lost=lambda *_: lost.append(now()))
        lock.acquire()
        mounted[1].send_signal(signal.SIGSTOP)
        until = now() + lock.left()
        try:
            began = now()
            with pytest.raises(semlock.LockEngineError, match="gave no answer in time"):
                space.Lock("other").acquire(timeout=0.3)
            assert now() - began < TTL
            # The waiter is on the file server's own machine.
            with semlock.connect(url, ttl=TTL) as other:
                with other.Lock("deploy").acquire(timeout=PATIENCE) as mine:
                    assert now() >= until - 0.01
                    wait_until(lambda: lost, "the loss is told")
                    assert (lock.held, lock.left()) == (False, 0.0)
                    mounted[1].send_signal(signal.SIGCONT)
                    with pytest.raises(semlock.LockLostError):
                        lock.release()
                    mine.check()
                with other.Lock("other").acquire(timeout=PATIENCE):
                    pass
        finally:
            mounted[1].send_signal(signal.SIGCONT)


def test_the_slack_of_a_mount_is_that_of_its_attribute_cache():
    for kind, options, slack in (
        ("nfs4", "rw,relatime,rw,vers=4.2,hard", 60),
        ("nfs", "rw,vers=3,acregmin=3,acregmax=7,acdirmax=9", 7),
        ("nfs", "rw,vers=3,noac", 0),
        ("nfs4", "rw,acregmax=0", 0),
        ("cifs", "rw,vers=3.1.1,actimeo=5", 5),
        ("cifs", "rw", 1),
        ("fuse.sshfs", "rw", 20),
        ("fuse", "rw", 1),
        ("strange", "rw", 60),
    ):
        assert slack_of(kind, options) == slack, (kind, options)


@linux
def test_a_holder_behind_an_attribute_cache_has_its_slack_more(url, space):
    space.client.engine._others._slack = 1.5
    with Holder(url) as holder:
        holder.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with space.Lock("deploy").acquire(timeout=PATIENCE):
            assert time.monotonic() - began > TTL + 0.5


# ---------------------------------------------------------------- what can be wrong


@pytest.mark.parametrize(
    ("address", "what"),
    [("file:///nowhere/at/all", "No such file"), ("file:///etc/hostname", "not a directory"),
     ("file:///tmp%00x", "null"), ("file:///" + "x" * 5000, "too long"),
     ("file:///tmp?color=red", "color")],
)  # fmt: skip
def test_a_directory_that_can_be_none_is_told_at_once(address, what):
    began = time.monotonic()
    with pytest.raises(semlock.LockEngineError, match=what):
        semlock.connect(address)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "address", ["file://tmp/locks", "file://u:SECRET@h/locks", "file:/tmp"]
)
def test_a_wrong_address_of_a_directory_is_told(address):
    with pytest.raises(ValueError) as failure:
        semlock.connect(address)
    assert "SECRET" not in str(failure.value)


def test_an_address_with_a_lock_is_split_at_the_last_slash():
    one = Address("file:///net/a%20b/x%2Fy%25?ttl=3&prefix=p", named=True)
    if sys.platform != "win32":
        assert one.database == "/net/a b"
    assert (one.path, one.url) == ("x/y%", "file:///net/a%20b?ttl=3&prefix=p")
    assert one.path_of(one.path) == "file:///net/a b/x%2Fy%25"
    assert Address(one.path_of("ü?#/%\n"), named=True).path == "ü?#/%\n"
    assert Address("file:///", named=False).path_of("x") == "file:///x"


@linux
def test_a_directory_that_may_not_be_written_is_told(tmp_path):
    script = """
        import os, sys, semlock
        with semlock.connect("file://" + sys.argv[1]) as space:
            os.setuid(65534)
            assert space.status("a").state == "free"
            assert space.list() == []
            try:
                space.Lock("a").acquire(timeout=5)
            except semlock.LockEngineError as error:
                assert "Permission denied" in str(error), error
            else:
                raise SystemExit("it was acquired")
    """
    if os.geteuid() != 0:
        pytest.skip("root writes everywhere, and becomes another user")
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        words = [sys.executable, "-c", textwrap.dedent(script), directory]
        subprocess.run(words, check=True, timeout=60)
        assert os.listdir(directory) == []


@linux
def test_on_a_full_disk_nothing_is_held_and_nothing_left(tmp_path, other_host):
    script = f"""
        import os, semlock
        with semlock.connect("file://{tmp_path}", ttl=2) as space:
            with space.Lock("a"):
                pass
            with open("{tmp_path}/large", "wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
            for lock in (space.Lock("a"), space.Lock("b")):
                try:
                    lock.acquire(timeout=5)
                except semlock.LockEngineError as error:
                    assert "No space" in str(error), error
                else:
                    raise SystemExit("it was acquired")
                assert not lock.held
            os.unlink("{tmp_path}/large")
            assert space.list() == []
            for lock in (space.Lock("a"), space.Lock("b")):
                with lock:
                    lock.check()
            lines = "{tmp_path}/semlock.locks/lines"
            for line in os.listdir(lines):
                assert len(os.listdir(f"{{lines}}/{{line}}")) == 1
    """
    mount = f'mount -t tmpfs -o size=128k tmpfs {tmp_path} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c"]
    subprocess.run([*command, textwrap.dedent(script)], check=True, timeout=60)


def test_a_damaged_line_is_told_with_its_place(url, space):
    with space.Lock("deploy"):
        (line,) = Path(url[7:], "semlock.locks", "lines").iterdir()
        (content,) = line.glob("c.*")
        whole = content.read_bytes()
        content.write_bytes(whole[:-5])
        with pytest.raises(semlock.LockEngineError, match=r"is damaged.*remove"):
            space.Lock("deploy").try_acquire()
        content.write_bytes(whole)


def test_a_directory_that_is_emptied_is_used_anew(url, space):
    lock = space.Lock("deploy")
    lock.acquire()
    shutil.rmtree(f"{url[7:]}/semlock.locks")
    wait_until(lambda: not lock.held, "the loss is noticed")
    with pytest.raises(semlock.LockLostError):
        lock.release()
    with space.Lock("deploy").acquire(timeout=PATIENCE) as lock:
        lock.check()


# ---------------------------------------------------------------- the command


def test_the_command_takes_directories(url, space):
    def call(*words, **environment):
        return subprocess.run(
            [sys.executable, "-m", "semlock", *words], capture_output=True, text=True,
            timeout=60, check=False, env={**os.environ, **environment},
        )  # fmt: skip

    with space.Lock("a/b", tag="mine"):
        done = call("status", f"{url}/a%2Fb")
        assert (done.returncode, "mine" in done.stdout) == (1, True), done.stderr
        assert "a/b" in call("list", url).stdout
        assert "mine" in call("run", "-n", f"{url}/a%2Fb", "--", "true").stderr
        assert call("run", "-n", "a", "--", "true", SEMLOCK_URL=url).returncode == 0
    assert call("run", f"{url}/a%2Fb", f"{url}/c", "--", "true").returncode == 0
    done = call("doctor", url)
    assert done.returncode == 0, done.stderr
    for word in ("rename", "create", "link", "events", "exclusion", "fence"):
        assert word in done.stdout
    assert os.listdir(url[7:]) == ["semlock.locks"]
    assert call("run", "file:///nowhere/a", "--", "true").returncode not in (0, 1)


# ---------------------------------------------------------------- histories


def test_a_short_history_in_a_directory(url, tmp_path):
    made = Workers(url, tmp_path, 2.0, 2, [false_clock(36000), false_clock(-36000)])
    try:
        end = time.monotonic() + PATIENCE
        while made.held() < 10 and time.monotonic() < end:
            time.sleep(0.02)
        made.kill(next(iter(made.running)))
        held = made.held()
        wait_until(lambda: made.held() > held + 2, "the other goes on")
        made.end()
        assert violations(tmp_path) == []
        made.assert_nothing_left()
    finally:
        made.close()


@linux
@pytest.mark.stress
@pytest.mark.timeout(600)
def test_a_long_history_in_a_directory_with_faults(url, tmp_path, mounted):
    """Kills, stops beyond the lease, wrong clocks, and a file server that hangs."""
    made = Workers(url, tmp_path, 2.0, 3, [false_clock(36000), false_clock(-36000)])
    try:
        for _ in range(2):
            made.start(mounted[0])
        done, end = [], time.monotonic() + STRESS_SECONDS
        while time.monotonic() < end:
            time.sleep(random.uniform(0.1, 0.6))
            done.append(random.choice(("kill", "stop", "hang")))
            who = random.choice(list(made.running))
            if done[-1] == "kill":
                made.kill(who)
                made.start(random.choice((made.url, mounted[0])))
            elif done[-1] == "stop":
                made.running[who].send_signal(signal.SIGSTOP)
                time.sleep(made.ttl * 1.5)
                made.running[who].send_signal(signal.SIGCONT)
            else:
                mounted[1].send_signal(signal.SIGSTOP)
                time.sleep(made.ttl * random.uniform(0.2, 1.8))
                mounted[1].send_signal(signal.SIGCONT)
        held = made.held()
        wait_until(lambda: made.held() >= held + 5, f"it goes on after {done}")
        made.end()
        assert violations(tmp_path) == [], f"after {done}"
        made.assert_nothing_left()
    finally:
        made.close()


@pytest.fixture
def pair(url, tmp_path):
    """Two spaces in a directory, and a recorder for each."""
    with semlock.connect(url, ttl=TTL) as one, semlock.connect(url, ttl=TTL) as two:
        recorders = Recorder(tmp_path, "one"), Recorder(tmp_path, "two")
        yield one, two, *recorders
        for recorder in recorders:
            recorder.close()


def take(space, recorder, name="the lock"):
    lock = space.Lock(name)
    recorder.tell("asks")
    lock.acquire(PATIENCE)
    recorder.tell("holds", fence=lock.fence)
    return lock


def cut_off(space) -> None:
    """Have no renewal of a space come to the directory any more."""

    def away():
        raise Away("cut off")

    space.client.engine._lease.renew = away


@pytest.mark.skipif(histories.fcntl is None, reason="the register needs flock()")
@pytest.mark.parametrize("checks", [True, pytest.param(False, marks=pytest.mark.stress)])
def test_without_the_fence_a_late_write_is_accepted(pair, tmp_path, checks):
    one, two, recorder_one, recorder_two = pair
    register = Register(tmp_path, checks=checks)
    first = take(one, recorder_one)
    fence = first.fence
    recorder_one.claim(first)
    cut_off(one)
    register.write(fence, "one")
    second = take(two, recorder_two)
    register.write(second.fence, "two")
    register.write(fence, "one")  # it looks at no clock
    second.release()
    with pytest.raises(semlock.LockLostError):
        first.release()
    assert ["was accepted after" in words for words in violations(tmp_path)] == [True][checks:]


@pytest.mark.parametrize(
    "counts", ["from before", pytest.param("from after", marks=pytest.mark.stress)]
)
def test_a_lease_that_counts_from_after_its_renewal_lets_two_hold(
    pair, tmp_path, monkeypatch, counts
):
    """A renewal is done at once and answered late; then its client is cut off."""
    one, two, recorder_one, recorder_two = pair
    first = take(one, recorder_one)
    lease, change = one.client.engine._lease, directory_client._LeaseFile.change
    late = []

    def answers_late(self):
        outcome = change(self)
        if self is lease._file and not late:
            late.append(1)
            time.sleep(0.6 * TTL)
            cut_off(one)
        return outcome

    monkeypatch.setattr(directory_client._LeaseFile, "change", answers_late)
    if counts == "from after":
        renew = lease.renew

        def renewed_now():
            found = renew()
            lease.claim = lease.claim[0], now()
            return found

        lease.renew = renewed_now
        take_in = ticket.Ticket.take_in
        monkeypatch.setattr(
            ticket.Ticket, "take_in", lambda self, place, _: take_in(self, place, now())
        )
    waiter = threading.Thread(target=lambda: take(two, recorder_two).release())
    waiter.start()  # it watches the lease from here on
    wait_until(lambda: late and lease.renew.__name__ == "away", "it is cut off")
    time.sleep(0.05)  # the answer is taken note of
    recorder_one.claim(first)
    waiter.join()
    assert ["two had the lock" in words for words in violations(tmp_path)] == (
        [True] if counts == "from after" else []
    )
    with pytest.raises(semlock.LockLostError):
        first.release()


def by_wall_clock(others, client, *, only_look=False):
    """Judge as this engine must not: by the time in the record."""
    path = os.fsencode(os.path.join(others._place, client, directory_client.LEASE))
    found = capi.look(path)
    if found is None:
        return False
    if time.time() < decode_text(found.content).timestamp + TTL + 5 or only_look:
        return True
    capi.remove(path, found, despite_witness=True)
    return False


@linux
@pytest.mark.parametrize(
    "judges", ["by its own clock", pytest.param("by wall clock", marks=pytest.mark.stress)]
)
def test_a_holder_whose_clock_is_wrong_is_robbed_by_those_who_compare_clocks(
    url, tmp_path, monkeypatch, judges
):
    if judges == "by wall clock":
        monkeypatch.setattr(directory_client.Others, "lives", by_wall_clock)
    with Holder(url, clock=-36000) as holder, semlock.connect(url, ttl=TTL) as space:
        time.sleep(0.5 * TTL)  # it has renewed its lease
        try:
            with space.Lock("deploy").acquire(timeout=2 * TTL):
                robbed = True
        except semlock.LockTimeoutError:
            robbed = False
        assert robbed == (judges == "by wall clock")
        assert holder.asked()[0]  # by wall clock, both have it
