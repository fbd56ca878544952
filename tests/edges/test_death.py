"""Who is dead: never a process that runs, whatever became of its descriptors, and soon."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import semlock
from support import Child, Taking, mounted, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="namespaces and mounts are Linux's"
)

WITNESS_BYTE = 1 << 61


def works(*command):
    """Tell whether a command can be had here, else skip the test."""
    found = shutil.which(command[0])
    if found is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"{command[0]} is not to be had here")


@pytest.fixture
def other_boot(tmp_path):
    """A command that runs a program with a boot number of its own, as some containers have."""
    file = tmp_path / "boot_id"
    file.write_text(f"{uuid.uuid4()}\n")
    script = f'mount --bind {file} /proc/sys/kernel/random/boot_id && exec "$@"'
    command = ("unshare", "--mount", "sh", "-c", script, "sh")
    works(*command)
    return command


def held_by(child, path, more=""):
    child.run(f"lock = semlock.Lock({path!r}{more}); _ = lock.acquire()")


def robbed(path):
    lock = semlock.Lock(path)
    if not lock.try_acquire():
        return False
    lock.release()
    return True


def test_a_process_that_executes_another_program_holds_until_that_ends(path):
    with Child() as child:
        held_by(child, path)
        child.send("os.execv('/bin/sleep', ['sleep', '60'])")

        def executed():
            found = semlock.status(path)
            assert (found.state, found.verdict) == ("held", "alive")
            return f"process {child.pid} runs; it has closed" in found.evidence

        wait_until(executed, "the other program runs")
        assert "executed another program" in semlock.status(path).evidence
        assert not robbed(path)
        child.kill(reap=False)
        assert semlock.status(path).verdict == "dead"
        assert robbed(path)


def test_who_waits_for_such_a_process_is_woken_by_its_end(path):
    with Child() as child:
        held_by(child, path)
        child.run("os.close(lock._native.file.handle)")
        lock = semlock.Lock(path, timeout=20)
        with Taking(lock.acquire, lock.release) as taking:
            assert not taking.done.wait(0.3)
            ended = time.monotonic()
            child.kill(reap=False)
            assert taking.done.wait(5)
            # Not at its next look, which comes once a second.
            assert time.monotonic() - ended < 0.5


def test_a_poller_sees_a_death_within_a_fifth_of_a_second(tmp_path):
    with Child() as reaped, Child() as zombie:
        locks = {reaped: semlock.Lock(tmp_path / "1"), zombie: semlock.Lock(tmp_path / "2")}
        for child, lock in locks.items():
            held_by(child, lock.path)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert not any(lock.try_acquire() for lock in locks.values())
            time.sleep(0.01)
        for child, lock in locks.items():
            child.kill(reap=child is reaped)
            died = time.monotonic()
            while not lock.try_acquire():
                assert time.monotonic() - died < 0.3
            lock.release()


def test_a_read_lock_on_the_witness_is_no_life(path):
    import fcntl
    import struct

    with Child() as child:
        held_by(child, path)
        reader = os.open(path, os.O_RDONLY)
        wanted = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, WITNESS_BYTE, 1, 0)
        child.kill()
        fcntl.fcntl(reader, getattr(fcntl, "F_OFD_SETLK", 37), wanted)
        assert semlock.status(path).verdict == "dead"
        assert robbed(path)
        os.close(reader)


def test_another_boot_number_is_not_another_boot(path, other_boot):
    """As in a container; its holder gave its descriptor up, or never had one."""
    with Child(wrapper=other_boot) as child:
        held_by(child, path)
        child.run("from semlock._core import capi; os.close(lock._native.file.handle)")
        found = semlock.status(path)
        assert found.info.boot == child.run("capi.identify()[4]")
        assert (found.state, found.verdict) == ("held", "unknown")
        assert not robbed(path)
        child.run("lock.release()")


def test_a_lock_left_for_another_process_by_such_a_container_is_not_robbed(path, other_boot):
    program = (sys.executable, "-m", "semlock", "try", path, "--owner-pid", str(os.getpid()))
    done = subprocess.run([*other_boot, *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert semlock.status(path).verdict == "unknown"
    assert not robbed(path)


def test_a_file_from_before_this_boot_is_dead(path):
    with Child() as child:
        held_by(child, path)
        child.kill()
    content = Path(path).read_bytes()
    boot = semlock.status(path).info.boot
    with open(path, "r+b") as file:
        file.write(content.replace(boot.encode(), str(uuid.uuid4()).encode()))
    # The time of a change of status can't be set, so the time that was read is changed instead.
    found = semlock.status(path)
    assert found.verdict == "unknown"
    found.instance.ctime_ns = semlock._core.capi.boot_time() - 10**10
    from semlock._core.identity import judge

    assert judge(found.info, found.instance)[0] == "dead"


def test_kernel_locks_that_an_overlay_hides_are_no_proof_of_death(tmp_path):
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    # overlayfs on overlayfs is refused, so the layers lie on a filesystem of their own.
    with mounted(tmp_path, "tmpfs", "size=1m", "layers") as layers:
        for name in ("lower", "upper", "work"):
            os.mkdir(os.path.join(layers, name))
        options = ",".join(f"{k}dir={layers}/{k}" for k in ("lower", "upper", "work"))
        with mounted(tmp_path, "overlay", options, "merged") as merged:
            works("unshare", "--pid", "--fork", "--mount-proc")
            with Child(wrapper=("unshare", "--pid", "--fork", "--mount-proc")) as child:
                inside = os.path.join(merged, "the.lock")
                below = os.path.join(layers, "upper", "the.lock")
                held_by(child, inside)
                assert semlock.status(inside).verdict == "alive"  # it helps within one mount
                found = semlock.status(below)
                assert (found.info.witness, found.verdict) == ("left", "unknown")
                assert not robbed(below)
                child.run("lock.release()")
            # The other way about: held below, looked at through the overlay.
            with Child(wrapper=("unshare", "--pid", "--fork", "--mount-proc")) as child:
                held_by(child, below)
                found = semlock.status(inside)
                assert found.verdict != "dead"
                assert found.instance.witness == -1
                child.run("lock.release()")


def test_a_container_sees_by_the_witness_alone(path):
    wrapper = ("unshare", "--pid", "--fork", "--mount-proc")
    works(*wrapper)
    with Child(wrapper=wrapper) as child:
        held_by(child, path)
        assert semlock.status(path).evidence == "its holder keeps the kernel's lock on it"
        child.kill()
        found = semlock.status(path)
        assert (found.verdict, "dropped" in found.evidence) == ("dead", True)


@pytest.mark.parametrize("offset", ["1000000", "12345.678901234"])
def test_the_start_in_a_record_means_the_same_in_every_time_namespace(path, offset):
    wrapper = ("unshare", "--time", "--fork", "--boottime", offset.partition(".")[0])
    works(*wrapper)
    with Child() as child:
        held_by(child, path)
        start = semlock.status(path).info.start
        with Child(wrapper=wrapper) as inside:
            assert inside.run(f"semlock.status({path!r}).verdict") == "alive"
            inside.run("from semlock._core import capi, identity")
            assert abs(inside.run(f"capi.start_time({child.pid})") - start) <= 1
            found = inside.run(f"identity.other_process({child.pid}).start")
            assert abs(found - start) <= 1
            inside.run(f"lock = semlock.Lock({path + '2'!r}); _ = lock.acquire()")
            info = semlock.status(path + "2").info
            assert info.timens is None
            assert abs(semlock._core.capi.start_time(inside.outer_pid) - info.start) <= 1


def test_a_namespace_for_children_says_nothing_of_ours(path):
    """Between unshare and the first child the file of offsets speaks of the new namespace."""
    wrapper = ("unshare", "--time", "--fork", "--boottime", "1000")
    works(*wrapper)
    with Child() as holder, Child(wrapper=wrapper) as child:
        held_by(holder, path)
        child.run("""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x80) == 0  # CLONE_NEWTIME
with open("/proc/self/timens_offsets", "w") as file:
    file.write("boottime 5 0")
from semlock._core import capi
""")
        assert child.run(f"capi.start_time({holder.pid})") == 0
        assert child.run(f"semlock.status({path!r}).verdict") == "alive"


@pytest.mark.parametrize("how", ["status", "list"])
def test_a_process_that_lets_go_and_ends_is_never_called_dead(path, how):
    """It lets go after the witness was looked at, and ends before its process is."""
    from semlock._core import capi, identity

    with Child() as child:
        held_by(child, path)
        child.run("os.close(lock._native.file.handle)")
        judge, found = identity.judge, []

        def judge_late(info, view):
            if child.process.poll() is None:
                child.run("lock.release()")
                child.kill()
            verdict = judge(info, view)
            found.append(verdict[0])
            return verdict

        identity.judge = judge_late
        try:
            assert capi.look(path.encode()) is not None
            if how == "status":
                assert semlock.status(path).state == "free"
            else:
                assert not semlock.Lock(path).status().instance
        finally:
            identity.judge = judge
        assert found == ["dead"]
