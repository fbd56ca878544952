"""What runs in the machine whose power is cut: the same semlock that is tested elsewhere.

It says READY and waits for a line, so that the machine can be saved in this state and started
from there again and again.  Each start then looks at every name that the last cut has left, and
takes and releases locks until the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import pkgutil
import random
import signal
import sys
import time
import traceback

import semlock
from semlock._core import capi
from semlock._core.identity import this_process

RESEED = 0x5207  # RNDRESEEDCRNG
NAMES = 60
SHOWN = 3  # examples of each fault


def say(word: str, **what: object) -> None:
    print(word, json.dumps(what), flush=True)


def start(told: dict) -> None:
    """Make a restored machine one that has just been started: its time, chance and boot differ."""
    time.clock_settime(time.CLOCK_REALTIME, told["time"])
    with open("/dev/urandom", "r+b", buffering=0) as chance:
        chance.write(bytes.fromhex(told["chance"]))
        fcntl.ioctl(chance, RESEED)
    capi.start_pool()
    random.seed(told["chance"])


def mount(device: str, kind: str, options: str, place: str) -> None:
    os.makedirs(place, exist_ok=True)
    words = ["busybox", "mount", "-t", kind, "-o", options, device, place]
    if os.spawnvp(os.P_WAIT, words[0], words) != 0:
        raise OSError(f"{kind} on {device} can't be mounted")


def content_of(path: str) -> str:
    with open(path, "rb") as file:
        content = file.read()
    if not content:
        return "empty"
    if not content.strip(b"\0"):
        return "zeros"
    return "whole" if semlock.status(path).info is not None else "torn"


def others_opinion(locks: list[semlock.Lock], place: str) -> list[str]:
    """Let another process try to take what is held here, and clean."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            taken = [lock.path for lock in locks if semlock.Lock(lock.path).try_acquire()]
            paths = {lock.path for lock in locks}
            taken += [gone.path for gone in semlock.clean(place) if gone.path in paths]
            os.write(write, json.dumps(taken[:SHOWN]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return json.loads(said) if said else ["the other process ended early"]


def look(place: str, durability: str) -> dict:
    """Take each lock that the cut has left, hold them all, let others try, and release them."""
    found = {"names": 0, "empty": 0, "zeros": 0, "torn": 0, "whole": 0}
    blocked, robbed, held = [], [], []
    for name in sorted(os.listdir(place)):
        path = os.path.join(place, name)
        if not name.endswith(".lock"):
            continue
        found["names"] += 1
        found[content_of(path)] += 1
        lock = semlock.Lock(path, durability=durability)
        if lock.try_acquire():
            held.append(lock)
        else:
            blocked.append(f"{path}: {semlock.status(path).holder}")
            os.unlink(path)
    robbed += others_opinion(held, place)
    for lock in held:
        try:
            lock.check()
            lock.release()
        except semlock.LockError as error:
            robbed.append(str(error))
    removed = len(semlock.clean(place))
    left = [name for name in os.listdir(place) if not name.startswith("noise")]
    for name in left:
        blocked.append(f"{name} is left in {place}")
        path = os.path.join(place, name)
        if not os.path.isdir(path):
            os.unlink(path)
    return {
        **found, "removed": removed, "blocked": len(blocked), "robbed": len(robbed),
        "examples": blocked[:SHOWN] + robbed[:SHOWN],
    }  # fmt: skip


def storm(place: str, durability: str) -> None:
    """Take and release locks in all ways that differ on disk, for ever."""
    held: list[semlock.Lock] = []
    number = 0
    while True:
        number += 1
        name = random.choice(
            [f"again-{random.randrange(4)}", f"{os.getpid()}-{number % NAMES}"]
        )
        lock = semlock.Lock(os.path.join(place, f"{name}.lock"), durability=durability)
        if random.random() < 0.3:
            capi.drain_pool(place)
        if not lock.try_acquire():
            continue
        if random.random() < 0.2:
            held.append(lock)
        else:
            lock.release()
        if len(held) > NAMES // 3:
            held.pop(random.randrange(len(held))).release()


def noise(places: list[str]) -> None:
    """Sync other files beside the locks, which brings the names of locks to the disk too."""
    while True:
        place = random.choice(places)
        way = random.randrange(4)
        if random.random() < 0.05:
            os.sync()
        path = os.path.join(place, f"noise-{random.randrange(5)}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600) if way < 2 else -1
        if way < 2:
            os.write(fd, os.urandom(random.choice([1, 100, 10_000])))
            (os.fsync if way else os.fdatasync)(fd)
            os.close(fd)
        elif way == 2:
            fd = os.open(place, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
        time.sleep(random.random() * 0.2)


def run(told: dict) -> None:
    start(told)
    say("BOOT", id=this_process().boot)
    places = {}
    for name, (device, kind, options) in told["disks"].items():
        root = f"/disks/{name}"
        try:
            mount(device, kind, options, root)
        except OSError as error:
            say("BROKEN", name=name, error=str(error))
            continue
        places[name] = os.path.join(root, "locks")
        os.makedirs(places[name], exist_ok=True)
    durability = told["durability"]
    for name, place in places.items():
        say("LOOKED", name=name, **look(place, durability))
    for place in places.values():
        if os.fork() == 0:
            storm(place, durability)
    say("STORM")
    if told["noise"]:
        noise(list(places.values()))
    signal.pause()


def import_all() -> None:
    """Import what is imported only when it is needed."""
    for name in ("_core", "_waiting", "_stores", "_locks", "_systems"):
        room = importlib.import_module(f"semlock.{name}")
        for module in pkgutil.iter_modules(room.__path__):
            with contextlib.suppress(ImportError):  # trio's, where trio is missing
                importlib.import_module(f"semlock.{name}.{module.name}")


def main() -> None:
    say("READY")
    told = json.loads(sys.stdin.readline())
    try:
        run(told)
    except BaseException:
        say("FAILED", error=traceback.format_exc())


if __name__ == "__main__":
    if sys.argv[1:] == ["--needs"]:
        import_all()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = {line.split()[-1] for line in maps if line.split()[-1].startswith("/")}
        modules = {getattr(module, "__file__", None) for module in sys.modules.values()}
        print(
            json.dumps(
                {
                    "files": sorted(mapped | modules - {None}),
                    "path": [*sys.path, os.path.dirname(os.path.dirname(semlock.__file__))],
                }
            )
        )
    else:
        main()
