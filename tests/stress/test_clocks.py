"""Locks while a clock jumps, and where clocks and start times differ."""

import os
import sys
import time
from pathlib import Path

import pytest

import semlock
from processlib import UNWITNESSED, WITNESSED, assert_held, child, need
from support import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is about Linux' processes")

_TIME_NAMESPACE = ("unshare", "--time", "--boottime", "1000000", "--monotonic", "500", "--fork")


@pytest.mark.parametrize("shifted", ["holder", "judge"])
@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
def test_a_shifted_start_time_makes_no_process_dead(path, take, shifted):
    """In a time namespace all processes seem to have begun at another time: that is undone."""
    need(*_TIME_NAMESPACE, "--kill-child")
    wrapper = (*_TIME_NAMESPACE, "--kill-child")
    wrappers = [wrapper, ()] if shifted == "holder" else [(), wrapper]
    with child(path, wrapper=wrappers[0]) as holder, child(path, wrapper=wrappers[1]) as judge:
        seen = [process.run("semlock._core.capi.start_time(1)") for process in (holder, judge)]
        assert abs(seen[0] - seen[1]) <= 1
        holder.run(take)
        assert judge.run("lock.status().verdict") == "alive"
        assert judge.run("lock.try_acquire()") is False
        assert_held(path)
        holder.kill(reap=False)
        assert judge.run("lock.status().verdict") == "dead"
        assert judge.run("lock.acquire(timeout=1); lock.held") is True


def _libfaketime() -> str | None:
    for directory in ("/usr/lib", "/usr/local/lib", "/usr/lib64"):
        for file in sorted(Path(directory).glob("**/faketime/libfaketime.so.1")):
            return str(file)
    return None


class FalseClock:
    """The wall clock that a child sees, which can be put forwards and back at any time."""

    def __init__(self, file: Path) -> None:
        library = _libfaketime()
        if library is None:
            if os.environ.get("CI"):
                pytest.fail("libfaketime is not installed")
            pytest.skip("libfaketime is not installed")
        self._file = file
        self.shift(0)
        self.environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def shift(self, seconds: int) -> None:
        """Put the clock away from the real time by so much."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}", encoding="ascii")
        new.replace(self._file)


@pytest.fixture
def clock(tmp_path_factory):
    return FalseClock(tmp_path_factory.mktemp("clock") / "shift")


DECADE = 10 * 365 * 86400


@pytest.mark.parametrize("step", [365 * 86400, -365 * 86400], ids=["forwards", "back"])
def test_a_clock_that_jumps_neither_shortens_nor_prolongs_a_wait(path, clock, step):
    with semlock.Lock(path), child(path, env=clock.environment) as waiter:
        # libfaketime spoils the system call behind time.sleep, but not this one.
        waiter.run("time.sleep = lambda seconds: select.select([], [], [], seconds)")
        clock.shift(step)
        assert abs(waiter.run("time.time()") - time.time() - step) < 100
        begin = time.monotonic()
        waiter.send("lock.acquire(timeout=0.4)")
        shift = step
        while not waiter.answered(0.03):
            shift += step
            clock.shift(shift)
        with pytest.raises(semlock.LockTimeoutError):
            waiter.receive()
        assert 0.4 <= time.monotonic() - begin < 0.4 + PATIENCE / 2
        assert waiter.run("lock.held") is False


@pytest.mark.parametrize("take", [WITNESSED, UNWITNESSED])
@pytest.mark.parametrize("shift", [DECADE, -DECADE], ids=["forwards", "back"])
def test_a_clock_that_jumps_takes_no_lock_from_the_living(path, clock, take, shift):
    with child(path) as honest, child(path, env=clock.environment) as deceived:
        honest.run(take)
        clock.shift(shift)
        assert deceived.run("lock.try_acquire()") is False
        assert deceived.run("lock.status().verdict") == "alive"
        assert deceived.run(f"semlock.clean({os.path.dirname(path)!r})") == []
        honest.run("lock.check(); lock.release()")
        deceived.run(take)
        clock.shift(-shift)
        assert honest.run("lock.try_acquire()") is False
        assert_held(path)
        deceived.run("lock.refresh(); lock.check()")
        assert_held(path)
        deceived.kill(reap=False)
        assert honest.run("lock.acquire(timeout=1); lock.held") is True


@pytest.mark.parametrize("shift", [DECADE, -DECADE], ids=["forwards", "back"])
def test_an_unfinished_file_goes_after_its_time_however_the_clock_jumps(path, clock, shift):
    """Its creator was killed before it had written anything; no process ever held it."""
    with child(path, env=clock.environment) as deceived:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o1644))
        clock.shift(shift)
        assert deceived.run("lock.acquire(timeout=10); lock.held") is True


def test_a_heartbeat_goes_on_whatever_the_clock_says(path, clock):
    with child(env=clock.environment) as holder:
        holder.run(f"lock = semlock.Lock({path!r}, heartbeat=0.05); lock.acquire(); None")
        for shift in (DECADE, -DECADE, 0):
            clock.shift(shift)
            wait_until(
                lambda shift=shift: (
                    abs(semlock.status(path).info.timestamp - time.time() - shift) < 1000
                ),
                "the heartbeat has written the time that its clock shows",
            )
        holder.run("lock.check(); lock.release()")
