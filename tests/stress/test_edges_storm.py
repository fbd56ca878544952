"""A storm of processes that are not neat: they fork, exec, close what is not theirs, and end.

Each kind of worker is in ``edge_worker``.  They share a few locks, in a directory with a
hundred files that are no locks.  From outside they are stopped in groups and killed.
Judged by hold intervals, which know nothing of semlock: no two processes are inside at a time,
no holder is told that it was robbed, one that comes in the end has each lock at once, and of
the other files not one has changed.

``SEMLOCK_STORM_KINDS`` names the kinds for the mixed storm, ``SEMLOCK_STORM_SEED`` repeats one.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import building
import semlock
import users
from stress import edge_worker
from support import overlaps

pytestmark = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="it is about Linux' processes"
    ),
    pytest.mark.stress,
]

LONG = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "60"))
KINDS = os.environ.get("SEMLOCK_STORM_KINDS", " ".join(edge_worker.KINDS)).split()
BOUND = 5.0
YEAR = 365 * 86400
HERE = Path(__file__).resolve().parent

RECORD = b"[semlock 1]\npid=12345\nhost=elsewhere\ntimestamp=1700000000\ntag=quoted\n"
CONTENTS = [
    b"SQLite format 3\0" + bytes(range(256)) * 8,
    b'{"state": "well", "pid": 4711, "timestamp": "2020-01-01T00:00:00Z"}\n',
    b"the service starts at 12:30\n",
    b"PASSWORD=secret\npid=1\n",
    b"A lock's file looks like this:\n\n" + RECORD,
    b"",
    b"4711\n",
    b"pid=4711\ntimestamp=1700000000\n# a configuration\n",
]
NAMES = [
    "state-{}.json", "base-{}.sqlite", "notes-{}.md", "{}.env", "{}.txt", ".semlock-notes-{}",
    "0.lock.bak{}", "0.lock~{}", "{}.lock.swp", ".semlock-{}.kept.txt", "x.readers.{}",
    "{}.pid.conf",
]  # fmt: skip


def bystanders(directory: str) -> list[str]:
    """Put a hundred files there that are no locks, most of them old."""
    made = []
    for number in range(100):
        path = os.path.join(directory, NAMES[number % len(NAMES)].format(number))
        content = CONTENTS[number % len(CONTENTS)]
        Path(path).write_bytes(content)
        os.chmod(path, 0o666 if number % 3 else 0o640)
        os.utime(path, (time.time() - 86400 * number,) * 2)
        made.append(path)
    return made


def looks(path: str) -> tuple:
    """What must stay as it is of a file; its time of access and its links come and go."""
    seen = os.lstat(path)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return seen.st_ino, seen.st_mode, seen.st_uid, seen.st_size, seen.st_mtime_ns, digest


class Freezer:
    """A control group that can be frozen, as a suspended container is; or none."""

    def __init__(self) -> None:
        self.directory = None
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if os.path.exists(os.path.join(root, "cgroup.procs")):
                directory = os.path.join(root, f"semlock-{os.getpid()}-{time.monotonic_ns()}")
                with contextlib.suppress(OSError):
                    os.mkdir(directory)
                    self.directory = directory
                    self.freeze(False)
                    return
        self.close()

    def _write(self, name: str, what: object) -> None:
        with open(os.path.join(self.directory, name), "w", encoding="ascii") as file:
            file.write(str(what))

    def add(self, pid: int) -> None:
        if self.directory is not None:
            self._write("cgroup.procs", pid)

    def freeze(self, yes: bool) -> None:
        if self.directory is not None:
            self._write("cgroup.freeze", int(yes))

    def close(self) -> None:
        if self.directory is not None:
            self.freeze(False)
            end = time.monotonic() + 5
            while os.path.exists(self.directory) and time.monotonic() < end:
                try:
                    os.rmdir(self.directory)
                except OSError:
                    time.sleep(0.01)  # the dead are not gone at once
            self.directory = None


class Storm:
    """Workers of some kinds, for some seconds."""

    def __init__(self, root: str, kinds: list[str], seed: int, *, workers: int = 6) -> None:
        self.random = random.Random(seed)
        self.kinds = kinds
        self.count = workers
        self.directory = os.path.join(root, "locks")
        self.records = os.path.join(root, "records")
        self.side = os.path.join(root, "side")
        for place in (root, self.directory, self.records, self.side):
            os.makedirs(place, exist_ok=True)
            os.chmod(place, 0o777)
        self.locks = [os.path.join(self.directory, f"{number}.lock") for number in range(2)]
        self.bystanders = bystanders(self.directory)
        self.before = {path: looks(path) for path in self.bystanders}
        self.plan = os.path.join(root, "plan.json")
        with open(self.plan, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "directory": self.directory,
                    "records": self.records,
                    "side": self.side,
                    "locks": self.locks,
                    "bystanders": [path for path in self.bystanders if looks(path)[3]],
                    "stay": 1.0,
                    "become": users.as_user(),
                },
                file,
            )
        self.clock = os.path.join(root, "clock")
        self.clock_library = building.library(Path(root, "clock.so"), HERE / "clock.c")
        self.jump()
        self.freezer = Freezer()
        self.workers: list[tuple[str, subprocess.Popen]] = []
        self.started: dict[str, int] = {}
        self.killed: set[str] = set()
        self.failed: list[str] = []

    def start(self, kind: str) -> None:
        name = f"{kind}-{self.started.get(kind, 0)}"
        self.started[kind] = self.started.get(kind, 0) + 1
        with open(os.path.join(self.records, f"{name}.err"), "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, edge_worker.__file__, self.plan, name, kind,
                 str(self.random.getrandbits(30))],
                stdin=subprocess.DEVNULL, stderr=errors, cwd=tempfile.gettempdir(),
                start_new_session=True, env={**os.environ, **self.environment(kind)},
            )  # fmt: skip
        if self.random.random() < 0.5:
            self.freezer.add(process.pid)
        self.workers.append((name, process))

    def environment(self, kind: str) -> dict[str, str]:
        if kind != "clock":
            return {}
        return {"LD_PRELOAD": str(self.clock_library), "STORM_CLOCK": self.clock}

    def jump(self) -> None:
        """Have the clocks of some say another time."""
        with open(f"{self.clock}.new", "w", encoding="ascii") as file:
            file.write(str(self.random.choice([0, -7, 7, -3600, 3600, -20 * YEAR, 40 * YEAR])))
        os.replace(f"{self.clock}.new", self.clock)

    def signal(self, process: subprocess.Popen, number: int) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass

    def trouble(self) -> None:
        """Stop half of them for a moment, or kill one, with all that it has started."""
        chance = self.random.random()
        if chance < 0.15:
            group = self.random.sample(self.workers, len(self.workers) // 2)
            for _, process in group:
                self.signal(process, signal.SIGSTOP)
            time.sleep(self.random.random() * 0.4)
            for _, process in group:
                self.signal(process, signal.SIGCONT)
        elif chance < 0.2:
            self.freezer.freeze(True)
            time.sleep(self.random.random() * 0.4)
            self.freezer.freeze(False)
        elif chance < 0.3:
            self.jump()
        elif chance < 0.42:
            name, process = self.random.choice(self.workers)
            self.killed.add(name)
            self.signal(process, signal.SIGKILL)

    def rage(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                alive = []
                for name, process in self.workers:
                    if process.poll() is None:
                        alive.append((name, process))
                    else:
                        self.over(name, process)
                self.workers = alive
                while len(self.workers) < self.count:
                    # One half is neat: they are those who would be let in too early.
                    neat = len(self.workers) % 2 == 0
                    self.start("plain" if neat else self.random.choice(self.kinds))
                self.trouble()
                time.sleep(0.02)
            wait = time.monotonic() + 10
            for name, process in self.workers:
                try:
                    process.wait(max(0.0, wait - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.failed.append(f"{name} does not end")
                else:
                    self.over(name, process)
        finally:
            for _, process in self.workers:
                self.signal(process, signal.SIGKILL)
                process.wait()
            self.freezer.close()

    def over(self, name: str, process: subprocess.Popen) -> None:
        # What it has started ends with it.
        self.signal(process, signal.SIGKILL)
        if process.returncode and name not in self.killed:
            said = Path(self.records, f"{name}.err").read_text(errors="replace")
            self.failed.append(f"{name} ended with {process.returncode}: {said[-1500:]}")

    def problems(self) -> list[str]:
        """Judge it when all are dead."""
        found = list(self.failed)
        for name in sorted(os.listdir(self.records)):
            if name.endswith(".wrong"):
                found.append(Path(self.records, name).read_text())
        found += overlaps(self.holds())
        for path in self.locks:
            lock = semlock.Lock(path, mode=0o666)
            try:
                lock.acquire(timeout=BOUND)
                lock.release()
            except semlock.SemlockError as error:
                found.append(f"in the end: {error}")
        shutil.rmtree(self.side)
        for path, before in self.before.items():
            try:
                after = looks(path)
            except OSError as error:
                found.append(f"a file of others is gone: {error}")
                continue
            if after != before:
                found.append(f"a file of others has changed: {path}: {before} is {after}")
            if os.lstat(path).st_nlink != 1:
                found.append(f"a file of others has another name: {path}")
        return found

    def holds(self) -> list[tuple[int, int, int]]:
        """Put the events of each hold together, whatever program wrote them."""
        seen: dict[int, list[int]] = {}
        for name in os.listdir(self.records):
            if not name.endswith(".holds"):
                continue
            data = Path(self.records, name).read_bytes()
            size = edge_worker.EVENT.size
            for _, which, at, hold in edge_worker.EVENT.iter_unpack(
                data[: len(data) // size * size]
            ):
                span = seen.setdefault(hold, [which, at, at])
                span[1], span[2] = min(span[1], at), max(span[2], at)
        return [(which, begin, end) for which, begin, end in seen.values()]


@pytest.fixture
def root():
    """A place that every user reaches, unlike the tests' own directories."""
    place = tempfile.mkdtemp(prefix="edges-")
    yield place
    shutil.rmtree(place)


def storm(root, kinds, seconds):
    seed = int(os.environ.get("SEMLOCK_STORM_SEED", random.getrandbits(30)))
    one = Storm(root, kinds, seed)
    one.rage(seconds)
    problems = one.problems()
    holds = one.holds()
    print(f"seed {seed}: {len(holds)} holds by {one.started}, {len(one.killed)} killed")
    assert not problems, "\n".join([f"seed {seed}, {len(problems)} problems:", *problems[:12]])
    assert len(holds) > seconds * 2


@pytest.mark.parametrize("kind", edge_worker.KINDS)
def test_beside_one_kind_of_process_one_holds_at_most(root, kind):
    if kind == "user" and os.getuid() != 0:
        pytest.skip("it needs root")
    storm(root, [kind], min(LONG, 4))


def test_beside_all_kinds_of_processes_one_holds_at_most(root):
    storm(root, [kind for kind in KINDS if kind != "user" or os.getuid() == 0], LONG)
