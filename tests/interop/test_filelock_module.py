"""filelock itself and ``semlock.filelock`` on one path: they exclude each other, both ways."""

import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import oldest_filelock
import semlock.filelock as ours
from support import Child, overlaps, read_holds, wait_until

pytest.importorskip("filelock", "4.2.10")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it kills by signals")

SETUP = "import os, {module} as module; lock = module.{kind}({path!r}{options})"
MODULES = ["filelock", "semlock.filelock"]
PAIRS = [("filelock", "semlock.filelock"), ("semlock.filelock", "filelock")]
OLD = "filelock 3.0.4"
OLD_PAIRS = [(OLD, "semlock.filelock"), ("semlock.filelock", OLD)]
# Kind, how it is taken without waiting, how it is taken in a second, further options.
KINDS = {
    "FileLock": ("lock.acquire(timeout=0)", "lock.acquire(timeout=20)", ""),
    "SoftFileLock": ("lock.acquire(timeout=0)", "lock.acquire(timeout=20)", ""),
    "ReadWriteLock": (
        "lock.acquire_write(blocking=False)",
        "lock.acquire_write(timeout=20)",
        ", is_singleton=False",
    ),
}


def child_with(module: str, kind: str, path: str) -> Child:
    env = {"PYTHONPATH": oldest_filelock.directory()} if module == OLD else {}
    code = SETUP.format(
        module=module.partition(" ")[0], kind=kind, path=path, options=KINDS[kind][2]
    )
    return Child(code, env=env)


def pairs(*of_old: str) -> pytest.MarkDecorator:
    """Give all kinds with both modules, and some kinds with filelock 3.0.4 too."""
    rows = [(*pair, kind) for kind in KINDS for pair in PAIRS]
    rows += [(*pair, kind) for kind in of_old for pair in OLD_PAIRS]
    return pytest.mark.parametrize(("holder", "contender", "kind"), rows)


def is_refused(child: Child, call: str) -> bool:
    return child.run(
        f"try:\n    {call}\nexcept module.Timeout:\n    refused = True\n"
        "else:\n    refused = False\nrefused"
    )


@pairs("FileLock", "SoftFileLock")
def test_it_is_excluded_while_held_and_gets_in_after_the_release(path, kind, holder, contender):
    attempt, wait, _ = KINDS[kind]
    with child_with(holder, kind, path) as one, child_with(contender, kind, path) as other:
        one.run(f"{attempt} and None")
        assert is_refused(other, attempt)
        other.send(f"{wait} and None")
        assert not other.answered(0.2)
        one.run("lock.release()")
        other.receive()
        assert is_refused(one, attempt)
        other.run("lock.release()")
        assert not is_refused(one, attempt)


@pairs("FileLock")
@pytest.mark.leaves("queue")  # the second holder ends without a release
def test_a_killed_holder_blocks_no_waiter(path, kind, holder, contender):
    attempt, wait, _ = KINDS[kind]
    with child_with(holder, kind, path) as one, child_with(contender, kind, path) as other:
        one.run(f"{attempt} and None")
        assert is_refused(other, attempt)
        other.send(f"{wait} and None")
        os.kill(one.pid, signal.SIGKILL)
        one.process.wait()
        other.receive()


def test_a_killed_soft_lock_without_a_record_is_never_taken_and_can_be_broken(path):
    """filelock 3.0.4 writes nothing into its file, so that nothing tells whether it is held."""
    with child_with(OLD, "SoftFileLock", path) as one:
        one.run("lock.acquire(timeout=0) and None")
        one.process.kill()
        one.process.wait()
    lock = ours.SoftFileLock(path)
    with pytest.raises(ours.Timeout, match="recorded no PID"):
        lock.acquire(timeout=0.2)
    lock.break_lock()
    with lock.acquire(timeout=0):
        assert lock.is_lock_held_by_us


@pytest.mark.parametrize(("reader", "writer"), PAIRS)
def test_readers_share_and_a_writer_waits_for_them(path, reader, writer):
    with (
        child_with(reader, "ReadWriteLock", path) as one,
        child_with(writer, "ReadWriteLock", path) as other,
    ):
        one.run("lock.acquire_read(blocking=False) and None")
        assert not is_refused(other, "lock.acquire_read(blocking=False)")
        other.run("lock.release()")
        assert is_refused(other, "lock.acquire_write(blocking=False)")
        one.run("lock.release()")
        assert not is_refused(other, "lock.acquire_write(blocking=False)")
        assert is_refused(one, "lock.acquire_read(blocking=False)")


@pytest.mark.parametrize(("holder", "contender"), PAIRS)
def test_either_sweeps_the_private_link_of_a_killed_process_of_the_other(
    tmp_path, holder, contender
):
    """In a directory that others can write to, the database is opened by such a link."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    path = str(shared / "lock.db")
    with child_with(holder, "ReadWriteLock", path) as one:
        one.run("lock.acquire_read(blocking=False) and None")
        assert len(os.listdir(shared)) == 2
        with child_with(contender, "ReadWriteLock", path) as other:
            assert is_refused(other, "lock.acquire_write(blocking=False)")
            assert len(os.listdir(shared)) == 2
        one.process.kill()
        one.process.wait()
    with child_with(contender, "ReadWriteLock", path) as other:
        other.run("lock.acquire_write(blocking=False); lock.release()")
        assert os.listdir(shared) == ["lock.db"]


def test_an_old_file_that_is_empty_or_of_a_living_process_is_never_taken(path):
    """Waited for both at once, for longer than the age from which a cut off record is taken.

    An old filelock writes no record, and one that is about to write has an empty file.
    """
    empty = f"{path}.empty"
    open(empty, "w").close()
    with child_with("filelock", "SoftFileLock", path) as one, ThreadPoolExecutor() as pool:
        one.run("lock.acquire() and None")
        for name in (path, empty):
            os.utime(name, (1, 1))
        lock = ours.SoftFileLock(empty)
        waits = [pool.submit(it.acquire, timeout=2.5) for it in (lock, ours.SoftFileLock(path))]
        with pytest.raises(ours.Timeout, match="recorded no PID"):
            waits[0].result()
        with pytest.raises(ours.Timeout) as raised:
            waits[1].result()
        assert f"process {one.pid}" in "".join(getattr(raised.value, "__notes__", [""])) or (
            sys.version_info < (3, 11)
        )
    lock.break_lock()
    with lock:
        assert lock.is_lock_held_by_us


@pytest.mark.leaves("queue")  # tickets of those that were killed
@pytest.mark.parametrize("kind", ["FileLock", "SoftFileLock"])
@pytest.mark.stress
def test_a_storm_of_both_with_kills_has_one_holder_at_a_time(tmp_path, path, kind):
    seconds = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "20"))
    work = (
        "import time\nfrom support import HoldRecord\n"
        "record = HoldRecord({file!r})\n"
        "while True:\n"
        "    with lock:\n"
        "        record.enter(0)\n"
        "        time.sleep(0.0005)\n"
        "        record.leave(0)\n"
    )
    here = os.path.dirname(sys.modules["support"].__file__)
    rng = random.Random(17)
    holds, count = [], 0
    running: list[tuple[Child, str]] = []

    def begin() -> None:
        nonlocal count
        count += 1
        file = str(tmp_path / f"record-{count}")
        child = child_with(MODULES[count % 2], kind, path)
        child.run(f"import sys; sys.path.insert(0, {here!r})")
        child.send(work.format(file=file))
        running.append((child, file))

    def end(index: int) -> None:
        child, file = running.pop(index)
        killed_at = time.monotonic_ns()
        child.process.kill()
        child.process.wait()
        holds.extend(read_holds(file, killed_at) if os.path.exists(file) else [])
        child.close()

    finish = time.monotonic() + seconds
    for _ in range(4):
        begin()
    while time.monotonic() < finish:
        time.sleep(rng.uniform(0.02, 0.2))
        end(rng.randrange(len(running)))
        begin()
    while running:
        end(0)
    assert len(holds) > 20
    assert overlaps(holds) == []
    if kind == "SoftFileLock" and os.path.exists(path) and not os.path.getsize(path):
        # filelock was killed between making its file and writing into it.  That of a living
        # old filelock looks the same, so it is not taken over.
        os.unlink(path)
    last = getattr(ours, kind)(path)
    wait_until(lambda: taken(last), "the last killed holder's lock is free")


def taken(lock) -> bool:
    try:
        lock.acquire(blocking=False)
    except ours.Timeout:
        return False
    lock.release()
    return True
