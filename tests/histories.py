"""Histories of locks on engines: what processes did and when, and the judge of it.

Each process writes its events to a file of its own, one line each, with the time of the clock that
all processes of a machine share.  A register is a file that refuses a write with a fence older
than one that it has seen.  ``violations`` reads all of that afterwards.

=========  =======================================================================
event      what it says
=========  =======================================================================
asks       an acquire begins
holds      it has won, with this fence
claims     until this time no other client can have the lock: time and ``left()``
releases   a release begins
killed     written by the test: a process is about to be killed
=========  =======================================================================
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from semlock._engines.engine import now

try:
    import fcntl
except ImportError:  # Windows, where there are no servers
    fcntl = None


class Recorder:
    """The history of one process, or of one actor in it."""

    def __init__(self, directory, who: str) -> None:
        self.directory, self.who = str(directory), who
        self._file = os.open(
            f"{directory}/{who}.history", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )

    def tell(self, what: str, at: float | None = None, **fields: object) -> None:
        """Write an event, by one call: a killed process leaves whole lines."""
        at = now() if at is None else at
        line = json.dumps({"who": self.who, "what": what, "at": at, **fields})
        os.write(self._file, line.encode() + b"\n")

    def claim(self, lock) -> float:
        """Note for how long the lock can be no other client's."""
        at = now()  # before: what is left is counted from a later time
        left = lock.left()
        self.tell("claims", at, fence=lock.fence, until=at + left)
        return left

    def close(self) -> None:
        os.close(self._file)


class Register:
    """A storage that several processes write to, and that checks fences."""

    def __init__(self, directory, *, checks: bool = True) -> None:
        self._path = f"{directory}/register"
        self._checks = checks

    def write(self, fence: int, who: str) -> bool:
        """Write with a fence; ``False`` if it is older than one that was seen."""
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            newest = max((json.loads(line)["fence"] for line in file), default=0)
            accepted = fence >= newest or not self._checks
            if accepted:
                file.write(json.dumps({"fence": fence, "who": who}).encode() + b"\n")
            return accepted


class Hold(NamedTuple):
    """One acquisition."""

    who: str
    fence: int
    asked: float
    began: float
    ended: float  # when its release began, or its process was killed
    claims: list[tuple[float, float]]


def events_of(directory) -> list[dict]:
    """Read the events of all processes in the order of their times."""
    found = []
    for path in Path(directory).glob("*.history"):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda event: event["at"])


def holds_of(events: list[dict]) -> list[Hold]:
    """Give the acquisitions, in the order of their fences."""
    open_: dict[str, Hold] = {}
    asked: dict[str, float] = {}
    found = []

    def end(who: str, at: float) -> None:
        if (hold := open_.pop(who, None)) is not None:
            found.append(hold._replace(ended=at))

    for event in events:
        who, at = event["who"], event["at"]
        if event["what"] == "asks":
            end(who, at)
            asked[who] = at
        elif event["what"] == "holds":
            open_[who] = Hold(who, event["fence"], asked[who], at, float("inf"), [])
        elif event["what"] == "claims" and who in open_:
            open_[who].claims.append((at, event["until"]))
        elif event["what"] in ("releases", "killed"):
            end(who, at)
    found += open_.values()
    return sorted(found, key=lambda hold: hold.fence)


def violations(directory, *, leases: bool = True) -> list[str]:
    """Say what a history has that no lock may do.

    ``leases`` says that claims hold whatever happens to the server.
    """
    holds = holds_of(events_of(directory))
    found = []
    for before, after in itertools.pairwise(holds):
        if before.fence == after.fence:
            found.append(f"the fence {after.fence} was given twice: {before.who}, {after.who}")
    # By time: a fence that was given earlier must be smaller than one that was asked for later.
    by_asking = sorted(holds, key=lambda hold: hold.asked)
    by_winning = sorted(holds, key=lambda hold: hold.began)
    newest, place = None, 0
    for hold in by_asking:
        while place < len(by_winning) and by_winning[place].began < hold.asked:
            if newest is None or by_winning[place].fence > newest.fence:
                newest = by_winning[place]
            place += 1
        if newest is not None and hold.fence < newest.fence:
            found.append(
                f"the fence {hold.fence} of {hold.who} was given after the fence {newest.fence} "
                f"of {newest.who}"
            )
    for index, hold in enumerate(holds):
        for other in holds[index + 1 :]:
            for at, until in hold.claims if leases else ():
                end = min(until, hold.ended)
                if at < other.began < end:
                    found.append(
                        f"{other.who} had the lock (fence {other.fence}) while {hold.who} held "
                        f"it (fence {hold.fence}) for {end - other.began:.3f} s more"
                    )
                    break
    newest_write = 0
    with contextlib.suppress(FileNotFoundError), open(f"{directory}/register") as file:
        for line in file:
            write = json.loads(line)
            if write["fence"] < newest_write:
                found.append(
                    f"a write of {write['who']} with the fence {write['fence']} was accepted "
                    f"after one with {newest_write}"
                )
            newest_write = max(newest_write, write["fence"])
    return found


def false_clock(seconds: int) -> dict[str, str]:
    """Give the environment of a process whose wall clock is wrong."""
    library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)
    if library is None:
        return {}
    return {
        "LD_PRELOAD": library, "FAKETIME": f"{seconds:+d}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
    }  # fmt: skip


class Workers:
    """Processes that use one lock, and their history."""

    def __init__(self, url, directory, ttl, count, clocks=()) -> None:
        self.clocks = list(clocks)  # what the first processes are told of the time
        self.url, self.directory, self.ttl = url, str(directory), ttl
        self.prefix = uuid.uuid4().hex
        self.test = Recorder(directory, "test")
        self.running = {}
        self._number = 0
        for _ in range(count):
            self.start()

    def start(self, url=None, *, inside=()) -> str:
        """Start one more; ``inside`` are the words of a command that runs it elsewhere."""
        self._number += 1
        who = f"worker-{self._number}"
        words = [url or self.url, self.prefix, str(self.ttl), self.directory, who]
        self.running[who] = subprocess.Popen(
            [*inside, sys.executable, __file__, *words],
            stdin=subprocess.PIPE,
            env={**os.environ, **(self.clocks.pop(0) if self.clocks else {})},
        )
        return who

    def kill(self, who) -> None:
        recorder = Recorder(self.directory, who)
        process = self.running.pop(who)
        recorder.tell("killed")
        process.kill()
        process.communicate()
        recorder.close()

    def held(self) -> int:
        """Count how often the lock was had."""
        return sum(e["what"] == "holds" for e in events_of(self.directory))

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
        codes = [process.wait(60) for process in self.running.values()]
        self.running.clear()
        assert set(codes) <= {0}

    def assert_nothing_left(self) -> None:
        import semlock

        with semlock.connect(self.url, prefix=self.prefix, ttl=self.ttl) as space:
            with space.Lock("the lock", timeout=60):
                pass
            assert space.list() == []

    def close(self) -> None:
        self.test.close()
        for process in self.running.values():
            process.kill()
            process.communicate()


def work(url: str, prefix: str, ttl: float, directory: str, who: str) -> None:
    """Acquire, write, and release, until the standard input ends: one process of a history."""
    import random
    import select

    if "LD_PRELOAD" in os.environ:
        # libfaketime spoils the system call behind time.sleep: it fails with EINVAL now and then.
        time.sleep = lambda seconds: select.select([], [], [], seconds)  # type: ignore[assignment]

    import semlock

    recorder, register = Recorder(directory, who), Register(directory)
    space = None
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            if space is None:
                space = semlock.connect(url, prefix=prefix, ttl=ttl)
            lock = space.Lock("the lock")
            recorder.tell("asks")
            lock.acquire(timeout=random.choice((0.05, 5.0)))
        except (semlock.LockTimeoutError, semlock.LockEngineError):
            continue
        recorder.tell("holds", fence=lock.fence)
        fence = lock.fence
        for _ in range(random.randrange(4)):
            recorder.claim(lock)
            register.write(fence, who)
        recorder.tell("releases", fence=fence)
        with contextlib.suppress(semlock.LockLostError, semlock.LockEngineError):
            lock.release()
    if space is not None:
        space.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5])
