"""``once``, ``open_atomic`` and ``open_locked``: results that appear whole, made by one process."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import semlock
from support import Child

no_kernel_file = pytest.mark.skipif(sys.platform == "win32", reason="not there on Windows")


def test_the_result_is_made_once_and_its_path_given(tmp_path, names):
    calls = []

    def make(temporary):
        calls.append(temporary)
        with open(temporary, "w") as file:
            file.write("whole")

    target = tmp_path / "result"
    for _ in range(3):
        assert semlock.once(target, make) == str(target)
    assert len(calls) == 1
    assert target.read_text() == "whole"
    assert kept_aside(names()) == ["result"]


def test_a_directory_may_be_the_result(tmp_path):
    def make(temporary):
        os.makedirs(os.path.join(temporary, "inner"))

    found = semlock.once(tmp_path / "deep" / "tree", make)
    assert os.listdir(found) == ["inner"]


def test_many_threads_make_it_once(tmp_path):
    calls = []

    def make(temporary):
        calls.append(temporary)
        time.sleep(0.05)
        with open(temporary, "w") as file:
            file.write("x")

    threads = [
        threading.Thread(target=semlock.once, args=(tmp_path / "r", make)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def kept_aside(found):
    """Leave out what semlock keeps for the next lock here."""
    return [name for name in found if not name.startswith(".semlock-")]


def test_a_failure_leaves_nothing_and_the_next_one_tries(tmp_path, names):
    def fail(temporary):
        with open(temporary, "w") as file:
            file.write("half")
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        semlock.once(tmp_path / "r", fail)
    assert kept_aside(names()) == []
    semlock.once(tmp_path / "r", lambda temporary: open(temporary, "w").close())
    assert kept_aside(names()) == ["r"]


def test_a_make_that_makes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="has made no file"):
        semlock.once(tmp_path / "r", lambda temporary: None)


@pytest.mark.skipif(sys.platform == "win32", reason="it kills by signals")
def test_a_killed_process_leaves_nothing_that_is_taken_for_the_result(tmp_path, names):
    target = str(tmp_path / "r")
    with Child() as other:
        other.send(
            f"def make(t):\n    open(t, 'w').write('half')\n    os.kill({os.getpid()}, 0)\n"
            "    import time; time.sleep(60)\n"
            f"semlock.once({target!r}, make)"
        )
        end = time.monotonic() + 20
        while not any(name.endswith(".part") for name in names()):
            assert time.monotonic() < end
            time.sleep(0.001)
        os.kill(other.pid, signal.SIGKILL)
        other.process.wait()
    assert not os.path.exists(target)

    def make(temporary):
        with open(temporary, "w") as file:
            file.write("whole")

    semlock.once(target, make)
    with open(target) as file:
        assert file.read() == "whole"
    assert kept_aside(names()) == ["r"]


def test_a_lock_that_was_taken_by_force_puts_nothing_in_place(tmp_path):
    target = tmp_path / "r"

    def make(temporary):
        open(temporary, "w").close()
        semlock.remove(f"{target}.lock", force=True)

    with (
        pytest.warns(semlock.LockLostWarning),
        pytest.raises(semlock.LockLostError),
    ):
        semlock.once(target, make)
    assert not target.exists()


def test_tasks_make_it_once(tmp_path):
    calls = []

    async def make(temporary):
        calls.append(temporary)
        await asyncio.sleep(0.01)
        os.mkdir(temporary)

    async def all_of_them():
        paths = [semlock.once_async(tmp_path / "r", make) for _ in range(5)]
        return await asyncio.gather(*paths)

    assert asyncio.run(all_of_them()) == [str(tmp_path / "r")] * 5
    assert len(calls) == 1


@pytest.mark.stress
@pytest.mark.skipif(sys.platform == "win32", reason="it kills by signals")
def test_under_kills_it_is_whole_or_absent_and_never_made_twice(tmp_path):
    """Each process that makes it appends a line before and after; kills come at any time."""
    seconds = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "20"))
    code = (
        "import os, semlock\n"
        "def make(t):\n"
        "    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "    os.write(log, b'begin %d\\n' % os.getpid())\n"
        "    with open(t, 'w') as file:\n"
        "        for _ in range(200):\n"
        "            file.write('x' * 100); file.flush()\n"
        "    os.write(log, b'end %d\\n' % os.getpid())\n"
        "semlock.once({target!r}, make)\n"
    )
    import random
    import subprocess

    rng = random.Random(3)
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rounds += 1
        target, log = str(tmp_path / f"r{rounds}"), str(tmp_path / f"log{rounds}")
        started = [
            subprocess.Popen([sys.executable, "-c", code.format(target=target, log=log)])
            for _ in range(3)
        ]
        time.sleep(rng.uniform(0.02, 0.25))
        for process in started[:2]:
            process.kill()
        assert started[2].wait(60) == 0
        for process in started:
            process.wait()
        assert os.path.getsize(target) == 20_000
        subprocess.run([sys.executable, "-c", code.format(target=target, log=log)], check=True)
        lines = Path(log).read_text().split("\n")[:-1]
        begun = [line.split()[1] for line in lines if line.startswith("begin")]
        assert lines[-1] == f"end {begun[-1]}"  # none began after the one that succeeded
        running = None
        for line in lines:  # a new one begins only when the one before has ended or was killed
            word, pid = line.split()
            if word == "begin":
                assert running in (None, str(started[0].pid), str(started[1].pid))
                running = pid
            else:
                assert running == pid
    assert rounds > 1


# ---------------------------------------------------------------- open_atomic


def test_an_atomic_file_appears_at_the_end_of_the_block(tmp_path, names):
    target = tmp_path / "state"
    target.write_text("old")
    os.chmod(target, 0o640)
    with semlock.open_atomic(target) as file:
        file.write("new")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    if sys.platform != "win32":
        assert target.stat().st_mode & 0o777 == 0o640
    assert names() == ["state"]


def test_a_block_that_fails_changes_nothing(tmp_path, names):
    target = tmp_path / "state"
    with pytest.raises(ValueError, match="no"), semlock.open_atomic(target, "wb") as file:
        file.write(b"half")
        raise ValueError("no")
    assert kept_aside(names()) == []


def test_an_exclusive_atomic_file_replaces_nothing(tmp_path, names):
    target = tmp_path / "state"
    with semlock.open_atomic(target, "x") as file:
        file.write("first")
    with pytest.raises(FileExistsError), semlock.open_atomic(target, "x"):
        pass
    assert (target.read_text(), names()) == ("first", ["state"])


@pytest.mark.parametrize("mode", ["r", "a", "w+", "", "rw"])
def test_other_modes_are_refused(tmp_path, mode):
    with pytest.raises(ValueError, match="mode is"), semlock.open_atomic(tmp_path / "x", mode):
        pass


# ---------------------------------------------------------------- open_locked


@no_kernel_file
def test_an_open_file_is_locked_to_the_end_of_the_block(tmp_path):
    target = tmp_path / "state"
    with semlock.open_locked(target, "w") as file:
        file.write("one")
        with pytest.raises(semlock.LockTimeoutError):
            semlock.KernelLock(target).acquire(timeout=0)
    assert target.read_text() == "one"
    with semlock.open_locked(target, "a") as file:
        file.write(" two")
    with semlock.open_locked(target, "r+") as file:
        assert file.read() == "one two"
        file.seek(0)
        file.write("ONE")
    with semlock.open_locked(target) as one, semlock.open_locked(target, "rb") as other:
        assert (one.read(), other.read()) == ("ONE two", b"ONE two")


@no_kernel_file
def test_a_file_is_emptied_only_once_it_is_locked(tmp_path):
    target = tmp_path / "state"
    target.write_text("kept")
    with semlock.KernelLock(target):
        with (
            pytest.raises((semlock.LockTimeoutError, semlock.LockDeadlockError)),
            semlock.open_locked(target, "w", timeout=0),
        ):
            pass
    assert target.read_text() == "kept"


@no_kernel_file
def test_reading_what_is_not_there_makes_no_file(tmp_path, names):
    with pytest.raises(FileNotFoundError), semlock.open_locked(tmp_path / "none"):
        pass
    assert kept_aside(names()) == []


@no_kernel_file
@pytest.mark.parametrize("mode", ["x", "rw", "", "b"])
def test_odd_modes_are_refused(tmp_path, mode):
    with pytest.raises(ValueError, match="mode is"), semlock.open_locked(tmp_path / "x", mode):
        pass
