"""One worker of the storm of edges: a program that holds locks and does one unusual thing.

    edge_worker.py PLAN NAME KIND SEED

It writes when it entered a lock, that it is still inside, and when it left, in a file of its
own; each event is on the disk's side of a write before it goes on.  A hold ends with the last
event, whatever became of the process; so one that enters before that was let in too early.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import platform
import random
import signal
import struct
import subprocess
import sys
import threading
import time

EVENT = struct.Struct("<c7xQQQ")
ENTER, INSIDE, LEAVE = b"E", b"I", b"L"
RECORD = 900  # the record's descriptor, which is not closed by those who close all others
# Nothing here takes so long, as long as no process is stopped.
LIMIT = 5.0
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())


class ChildError(Exception):
    """How a forked child ends."""


class Worker:
    """What all kinds have in common: the record, the locks and how one is held."""

    def __init__(self, plan: dict, name: str, seed: int) -> None:
        self.plan = plan
        self.name = name
        self.random = random.Random(seed)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        fd = os.open(os.path.join(plan["records"], f"{name}.holds"), flags, 0o666)
        os.dup2(fd, RECORD)
        os.close(fd)
        self.serial = 0
        self.end = time.monotonic() + plan["stay"]

    def wrong(self, text: str) -> None:
        path = os.path.join(self.plan["records"], f"{self.name}.wrong")
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{self.name}: {text}\n")

    def write(self, event: bytes, which: int, hold: int) -> None:
        os.write(RECORD, EVENT.pack(event, which, time.monotonic_ns(), hold))

    def begin(self, which: int) -> int:
        self.serial += 1
        hold = os.getpid() << 24 | self.serial
        self.write(ENTER, which, hold)
        return hold

    def stay(self, which: int, hold: int, seconds: float | None = None) -> None:
        """Be inside for a while, and say so again and again."""
        end = time.monotonic() + (self.random.random() / 300 if seconds is None else seconds)
        while time.monotonic() < end:
            self.write(INSIDE, which, hold)
            time.sleep(0.0003)

    def lock(self, which: int):
        import semlock

        return semlock.Lock(
            self.plan["locks"][which],
            fair=self.random.random() < 0.3,
            durability="none",
            mode=0o666,
        )

    def take(self, lock) -> bool:
        import semlock

        if self.random.random() < 0.4:
            return lock.try_acquire()
        try:
            lock.acquire(timeout=self.random.choice((0, 0.02, 0.5)))
        except semlock.LockTimeoutError:
            return False
        return True

    def holds(self, during=None) -> bool:
        """Take a lock, be inside, do what is unusual, be inside again and let go."""
        which = self.random.randrange(len(self.plan["locks"]))
        lock = self.lock(which)
        if not self.take(lock):
            return False
        hold = self.begin(which)
        self.stay(which, hold)
        if during is not None:
            during(lock, which, hold)
            self.stay(which, hold)
        self.write(LEAVE, which, hold)
        lock.release()
        return True

    def again_and_again(self, during=None) -> None:
        while time.monotonic() < self.end:
            self.holds(during)

    # ------------------------------------------------------------------ the kinds

    def plain(self) -> None:
        self.again_and_again()

    def clock(self) -> None:
        """Its clock jumps, by years: the storm sees to that."""
        self.again_and_again()

    def fork(self) -> None:
        """A child that believes to be the holder, and ends like a program or at once."""

        def during(lock, which, hold):
            child = os.fork()
            if child == 0:
                self.be_a_child(lock)
            os.waitpid(child, 0)

        self.again_and_again(during)

    def be_a_child(self, lock) -> None:
        import semlock

        with contextlib.suppress(semlock.SemlockError, OSError):
            lock.release()
        with contextlib.suppress(semlock.SemlockError, OSError):
            lock.refresh()
        way = self.random.choice(("exit", "_exit", "exception"))
        if way == "_exit":
            os._exit(0)
        if way == "exit":
            sys.exit(0)
        sys.stderr = open(os.devnull, "w")
        raise ChildError("the child ends as programs do that fail")

    def fork_in_c(self) -> None:
        """The same behind Python's back: no hook of its own runs."""
        library = ctypes.CDLL(None)

        def during(lock, which, hold):
            child = library.fork()
            if child == 0:
                self.be_a_child(lock)
            os.waitpid(child, 0)

        self.again_and_again(during)

    def clone(self) -> None:
        """The same behind the C library's back too."""
        library = ctypes.CDLL(None)

        def during(lock, which, hold):
            child = library.syscall(SYS_CLONE, int(signal.SIGCHLD), 0, 0, 0, 0)
            if child == 0:
                self.be_a_child(lock)
            os.waitpid(child, 0)

        self.again_and_again(during)

    def start(self) -> None:
        """Programs are started all the time, while others wait and hold."""

        def during(lock, which, hold):
            subprocess.run(["true"], check=True)

        self.again_and_again(during)

    def exec(self) -> None:
        """The process becomes another program while it holds, and is inside for a while yet."""

        def during(lock, which, hold):
            argument = json.dumps([which, hold])
            os.execv(sys.executable, [sys.executable, *sys.argv[:3], "executed", argument])

        self.again_and_again(during)

    def closerange(self) -> None:
        """A daemon closes what it has open, and opens files of its own."""

        def during(lock, which, hold):
            os.closerange(3, RECORD)
            opened = [
                os.open(path, os.O_RDWR)
                for path in self.random.sample(self.plan["bystanders"], 12)
            ]
            self.stay(which, hold)
            lock.check()
            lock.refresh()
            self.after = opened

        while time.monotonic() < self.end:
            self.after = []
            self.holds(during)
            self.holds()
            for fd in self.after:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def dup2(self) -> None:
        """Each descriptor of semlock's becomes one of a database."""

        def during(lock, which, hold):
            with_base = self.random.choice(self.plan["bystanders"])
            base = os.open(with_base, os.O_RDWR)
            for number in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/self/fd/{number}")
                    mine = target.startswith(self.plan["directory"]) or "inotify" in target
                    if mine and int(number) != base:
                        os.dup2(base, int(number))
                        self.after.append(int(number))
            self.after.append(base)
            self.stay(which, hold)
            lock.check()
            lock.refresh()

        while time.monotonic() < self.end:
            self.after = []
            self.holds(during)
            self.holds()
            for fd in self.after:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def threads(self) -> None:
        """The interpreter ends while a daemon thread is inside."""
        # Registered first, so it runs last: what is let in now is let in beside the thread.
        atexit.register(time.sleep, 0.01)
        inside = threading.Event()

        def work():
            which = self.random.randrange(len(self.plan["locks"]))
            lock = self.lock(which)
            with contextlib.suppress(Exception):
                lock.acquire(timeout=1)
                hold = self.begin(which)
                inside.set()
                self.stay(which, hold, 100)

        threading.Thread(target=work, daemon=True).start()
        inside.wait(1.5)

    def user(self) -> None:
        """A service that begins as root gives that up while it holds."""
        self.holds()

        def during(lock, which, hold):
            if os.getuid() == 0:
                exec(self.plan["become"], {})

        self.again_and_again(during)

    def run(self) -> None:
        """A command runs under the lock, and is inside."""
        while time.monotonic() < self.end:
            which = self.random.randrange(len(self.plan["locks"]))
            argument = json.dumps([which, os.getpid() << 24 | self.random.getrandbits(24)])
            subprocess.run(
                [sys.executable, "-m", "semlock", "run", "--timeout", "0.5",
                 self.plan["locks"][which], "--",
                 sys.executable, *sys.argv[:3], "command", argument],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip

    def clean(self) -> None:
        """Another process cleans the directory, as a library and as a command."""
        import semlock

        directory = self.plan["directory"]
        while time.monotonic() < self.end:
            if self.random.random() < 0.8:
                semlock.clean(directory)
                time.sleep(0.002)
            else:
                kind = self.random.choice(
                    [[], ["--dialect", "sidecar"], ["--dialect", "feature"]]
                )
                command = [sys.executable, "-m", "semlock", "clean", "-y", *kind, directory]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if "Traceback" in done.stderr:
                    self.wrong(done.stderr)

    def copy(self) -> None:
        """A snapshot of the tree by hard links, which is removed again some time later."""
        while time.monotonic() < self.end:
            side = os.path.join(self.plan["side"], f"{self.name}-{self.serial}")
            self.serial += 1
            # Names vanish meanwhile, which cp says and goes on.
            command = ["cp", "-al", self.plan["directory"], side]
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
            time.sleep(0.01)
            subprocess.run(["rm", "-rf", side], check=False)


KINDS = (
    "plain", "fork", "fork_in_c", "clone", "start", "exec", "closerange", "dup2", "threads",
    "user", "run", "clean", "copy", "clock",
)  # fmt: skip


def main() -> None:
    """Be a worker, or what one has become."""
    plan_path, name, kind, rest = sys.argv[1:5]
    with open(plan_path, encoding="utf-8") as file:
        plan = json.load(file)
    if kind in ("executed", "command"):
        # The lock is held by this process, or for it: it is inside, and knows no semlock.
        worker = Worker(plan, f"{name}-{kind}-{os.getpid()}", 0)
        which, hold = json.loads(rest)
        worker.write(ENTER if kind == "command" else INSIDE, which, hold)
        worker.stay(which, hold, 0.02)
        os._exit(0)
    worker = Worker(plan, name, int(rest))
    try:
        getattr(worker, kind)()
    except BaseException as error:
        if not isinstance(error, (SystemExit, KeyboardInterrupt, ChildError)):
            worker.wrong(f"{kind}: {error!r}")
        raise


if __name__ == "__main__":
    # For `sys.argv[:3]` above: the script, the plan and the name.
    main()
