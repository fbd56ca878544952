"""The nursery of a kill storm: it raises workers, stops and kills them at random, and counts.

It is a program of its own, with one thread and nothing else in it, so that raising a worker
is one fork, which lets hundreds of them die in a second.  The test starts it with a plan as
JSON on its input and reads its report as JSON from its output.

A storm has rounds.  Each ends with the death of all workers in one instant; then a process
that knows nothing of them takes every lock, and after a cleaning the directory must be empty.

HOW OVERLAP IS JUDGED, three times over and never by semlock itself

    The record    Every worker writes when it entered and left, see ``support.HoldRecord``.
    The token     Every lock has a word of shared memory (and a file, for shell scripts) into
                  which the holder writes a number of its own on entering.  If another one
                  stands there when it leaves, another process entered meanwhile.
    The bailiff   Inside of the lock, the holder takes an fcntl lock on a file of its own
                  without waiting for it.  That fails if another process is inside.

The bailiff is a POSIX lock and not flock(2) because of what the kernel does with a killed
process: it drops the POSIX locks while it closes the descriptors, and what hangs on the open
file descriptions, as semlock's witness does, when it is done with all of them.  So no process can
get in by the witness before the bailiff has let go as well.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
import traceback

import semlock
from semlock._core import capi
from semlock._core.verdicts import GRACE
from support import EVENT_SIZE, HoldRecord, InPlaceLock, overlaps, read_holds

_WORD = 8

# What a shell script does with the same lock, knowing nothing but its name.  It stops when
# the file that lets it run is gone, because a foreign holder must not be killed: no process would
# ever be allowed to take its lock.
_SHELL = r"""
n=0
while [ -e "$GO" ]; do
    if (set -C; printf 'pid=%s\ntimestamp=1700000000\ntag=shell\n' "$$" > "$LOCK") 2>/dev/null
    then
        n=$((n + 1))
        printf '%s\n' "$$.$n" > "$TOKEN"
        echo E >> "$COUNT"
        read -r now < "$TOKEN"
        [ "$now" = "$$.$n" ] || echo "a shell found $now in the place of its $$.$n" >> "$WRONG"
        rm "$LOCK" || echo "a shell found its lock removed" >> "$WRONG"
    else
        sleep 0.002
    fi
done
"""


class Worker:
    """What one process does until it is killed: hold one lock after the other."""

    def __init__(self, plan: dict, words: memoryview, name: str, seed: int) -> None:
        self.plan = plan
        self.name = name
        self.random = random.Random(seed)
        self.words = words
        self.record = HoldRecord(f"{plan['records']}/{name}.holds")
        # The bailiffs are opened once and first: closing any descriptor of such a file would
        # drop the lock, and lower numbers are closed earlier when the process is killed.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.bailiffs = [
            os.open(f"{plan['records']}/{i}.bailiff", flags) for i in range(len(plan["locks"]))
        ]
        self.tokens = [
            os.open(f"{plan['records']}/{i}.token", flags) for i in range(len(plan["locks"]))
        ]
        self.kept = [self.new_lock(i) for i in range(len(plan["locks"]))]

    def new_lock(self, index: int) -> semlock.Lock:
        kind = InPlaceLock if self.plan["in_place"] else semlock.Lock
        tag = self.random.choice((None, "storm", "räuber & gendarm", "x" * 900))
        return kind(self.plan["locks"][index], tag=tag, durability=self.plan["durability"])

    def wrong(self, text: str) -> None:
        with open(self.plan["wrong"], "a", encoding="utf-8") as file:
            file.write(f"{self.name}: {text}\n")

    def run(self) -> None:
        while True:
            index = self.random.randrange(len(self.kept))
            chance = self.random.random()
            if chance < 0.3:
                # As a process that comes for the first time: with an inode of its own making.
                capi.drain_pool()
            elif chance < 0.32:
                semlock.clean(self.plan["directory"])
            reused = self.random.random() < 0.7
            self.cycle(index, self.kept[index] if reused else self.new_lock(index))

    def cycle(self, index: int, lock: semlock.Lock) -> None:
        if self.random.random() < 0.5:
            if not lock.try_acquire():
                return
        else:
            try:
                lock.acquire(timeout=0.02)
            except semlock.LockTimeoutError:
                return
        serial = self.record.enter(index)
        self.hold(index, lock, os.getpid() << 32 | serial)
        self.record.leave(index)
        self.let_go(lock)

    def hold(self, index: int, lock: semlock.Lock, mine: int) -> None:
        try:
            fcntl.lockf(self.bailiffs[index], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.wrong(f"another process was inside of lock {index}")
            return
        self.words[index] = mine
        shared = self.plan["shells"] > 0
        text = b"%20d\n" % mine
        if shared:
            os.ftruncate(self.tokens[index], 0)
            os.pwrite(self.tokens[index], text, 0)
        chance = self.random.random()
        if chance < 0.2:
            lock.refresh()
        elif chance < 0.4:
            lock.check()
        elif chance < 0.7:
            # Long enough for the others to gather at the lock before its holder is killed.
            time.sleep(self.random.random() / 500)
        if self.words[index] != mine:
            self.wrong(f"another entered lock {index} while it was held")
        if shared and os.pread(self.tokens[index], 64, 0) != text:
            self.wrong(f"a token was written while lock {index} was held")
        fcntl.lockf(self.bailiffs[index], fcntl.LOCK_UN)

    def let_go(self, lock: semlock.Lock) -> None:
        while True:
            try:
                lock.release()
            except semlock.LockTimeoutError:
                # A remover was stopped with the guard in its hands, over an inode number
                # that was used again.  The lock is still held, and the storm will pass.
                continue
            return


class Nursery:
    """The supervisor: it has no part in the locks, and knows every death in advance."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan
        self.random = random.Random(plan["seed"])
        self.board = mmap.mmap(-1, _WORD * len(plan["locks"]))
        self.words = memoryview(self.board).cast("Q")
        self.alive: dict[int, str] = {}  # pid: name
        self.dying: list[int] = []  # killed and not reaped yet
        self.stopped: dict[int, float] = {}  # pid: when it goes on
        self.killed_at: dict[str, int] = {}
        self.report = {
            "kills": 0, "kills_while_stopped": 0, "stops": 0, "holds": 0, "open_holds": 0,
            "shell_holds": 0, "rounds": 0, "slowest": 0.0, "dead_locks": 0, "orphans": 0,
        }  # fmt: skip
        self.wrong: list[str] = []
        self.born = 0

    def raise_worker(self) -> None:
        self.born += 1
        name = f"{self.born}"
        seed = self.random.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            worker = None
            try:
                worker = Worker(self.plan, self.words, name, seed)
                worker.run()
            except BaseException:
                with open(self.plan["wrong"], "a", encoding="utf-8") as file:
                    file.write(f"{name}: {traceback.format_exc()}\n")
            finally:
                os._exit(1)
        self.alive[pid] = name

    def kill(self, pid: int) -> None:
        self.report["kills"] += 1
        self.report["kills_while_stopped"] += self.stopped.pop(pid, None) is not None
        self.killed_at[self.alive.pop(pid)] = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        self.dying.append(pid)

    def victim(self) -> int:
        """Choose a process: at times the one that was inside of a lock a moment ago."""
        if self.random.random() < 0.7:
            word = self.random.choice(self.words)
            if word >> 32 in self.alive:
                return word >> 32
        return self.random.choice(list(self.alive))

    def length_of_stop(self) -> float:
        """Choose for how long to stop a worker: sometimes longer than the grace time."""
        if self.plan["in_place"] and self.random.random() < 0.1:
            return GRACE + self.random.random()
        return self.random.expovariate(50)

    def round(self, seconds: float) -> None:
        shells = self.start_shells()
        while len(self.alive) < self.plan["workers"]:
            self.raise_worker()
        end = time.monotonic() + seconds
        pause = 1 / self.plan["kills_per_second"]
        while time.monotonic() < end:
            time.sleep(self.random.expovariate(1 / pause))
            now = time.monotonic()
            for pid in [pid for pid, at in self.stopped.items() if at <= now]:
                del self.stopped[pid]
                os.kill(pid, signal.SIGCONT)
            pid = self.victim()
            if self.random.random() < 0.25 and pid not in self.stopped:
                self.report["stops"] += 1
                self.stopped[pid] = now + self.length_of_stop()
                os.kill(pid, signal.SIGSTOP)
            else:
                self.kill(pid)
                # Sometimes no process reaps the dead one until later: a zombie holds nothing.
                self.bury(block=False)
                self.raise_worker()
        for pid in list(self.alive):
            self.kill(pid)
        leave_zombies = hasattr(os, "waitid") and self.random.random() < 0.5
        if leave_zombies:
            for pid in self.dying:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
        self.bury(block=not leave_zombies)
        self.end_shells(shells)

    def bury(self, *, block: bool) -> None:
        """Reap the killed, sometimes, and find out who ended without having been killed."""
        for pid in list(self.dying):
            if block or self.random.random() < 0.5:
                if os.waitpid(pid, 0 if block else os.WNOHANG)[0]:
                    self.dying.remove(pid)
        for pid in list(self.alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                # What went wrong it has written down itself.
                self.killed_at[self.alive.pop(pid)] = 0
                self.stopped.pop(pid, None)
                self.wrong.append("a worker ended before it was killed")

    def start_shells(self) -> list[subprocess.Popen]:
        plan = self.plan
        go = f"{plan['records']}/go"
        with open(go, "w", encoding="utf-8"):
            pass
        shells = []
        for number in range(plan["shells"]):
            which = number % len(plan["locks"])
            names = {
                "GO": go,
                "LOCK": plan["locks"][which],
                "TOKEN": f"{plan['records']}/{which}.token",
                "COUNT": f"{plan['records']}/shells.count",
                "WRONG": plan["wrong"],
            }
            shells.append(subprocess.Popen(["sh", "-c", _SHELL], env={**os.environ, **names}))
        return shells

    def end_shells(self, shells: list[subprocess.Popen]) -> None:
        os.unlink(f"{self.plan['records']}/go")
        for shell in shells:
            if shell.wait(30) != 0:
                self.wrong.append("a shell ended with an error")

    def aftermath(self) -> None:
        """Take every lock, as a process that was not there, then clean and count."""
        directory = self.plan["directory"]
        before = os.listdir(directory)
        self.report["rounds"] += 1
        self.report["orphans"] += sum(name.startswith(".semlock-") for name in before)
        for index, path in enumerate(self.plan["locks"]):
            self.report["dead_locks"] += os.path.basename(path) in before
            begin = time.monotonic()
            lock = semlock.Lock(path, timeout=self.plan["patience"], durability="none")
            try:
                lock.acquire()
                lock.release()
            except semlock.SemlockError as error:
                self.wrong.append(f"after round {self.report['rounds']}, lock {index}: {error}")
            self.report["slowest"] = max(self.report["slowest"], time.monotonic() - begin)
        semlock.clean(directory)
        left = os.listdir(directory)
        if left:
            self.wrong.append(f"after round {self.report['rounds']} there is left: {left}")

    def judge(self) -> None:
        holds: list[tuple[int, int, int]] = []
        records = self.plan["records"]
        for number in range(1, self.born + 1):
            file = f"{records}/{number}.holds"
            if not os.path.exists(file):
                continue  # it was killed before it had opened its record
            own = read_holds(file, self.killed_at.get(str(number)))
            holds += own
            if own and own[-1][2] == self.killed_at.get(str(number)):
                self.report["open_holds"] += 1
        self.report["holds"] = len(holds)
        self.wrong += overlaps(holds)
        if os.path.exists(f"{records}/shells.count"):
            self.report["shell_holds"] = os.path.getsize(f"{records}/shells.count") // 2
        if os.path.exists(self.plan["wrong"]):
            with open(self.plan["wrong"], encoding="utf-8") as file:
                self.wrong += file.read().splitlines()

    def is_strong(self) -> bool:
        """Tell whether enough has happened: on a busy machine that takes longer."""
        holds = open_holds = 0
        for entry in os.scandir(self.plan["records"]):
            if entry.name.endswith(".holds"):
                events = entry.stat().st_size // EVENT_SIZE
                holds += (events + 1) // 2
                open_holds += events % 2
        wanted = self.plan["kills"]
        return self.report["kills"] >= wanted and holds >= wanted and open_holds > 0

    def run(self) -> dict:
        end = time.monotonic() + self.plan["seconds"]
        last = end + self.plan["seconds"] + 60
        while (now := time.monotonic()) < end or (now < last and not self.is_strong()):
            self.round(self.plan["round"])
            self.aftermath()
        self.bury(block=True)
        self.judge()
        return {**self.report, "wrong": self.wrong}


def main() -> None:
    plan = json.load(sys.stdin)
    nursery = Nursery(plan)
    try:
        report = nursery.run()
    finally:
        for pid in (*nursery.alive, *nursery.dying):
            os.kill(pid, signal.SIGKILL)
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
