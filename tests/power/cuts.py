"""Cut the power of a virtual machine again and again, and look at what is left of its locks.

    python tests/power/cuts.py --cuts 20 --only ext4

The machine runs the semlock of this Python, on several filesystems at once.  Processes in it take
and release locks until the machine is killed and its disks lose a part of what was not flushed.
Then it starts anew, and tries each name that is left: no lock may block, and none that it took may
be taken from it.  The status is 0 if all was well.

    --durability full   the control: the same with fsync
    --durability none   the ablation: without mark and fsync, locks must block (the status is 1)
    --cold              boot each time; else the booted machine is saved once, and restored

It needs qemu, a kernel with its modules, busybox, cpio, and the filesystems' mkfs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gzip
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from disk import Disk

HERE = os.path.dirname(os.path.abspath(__file__))
MEGA = 2**20

# The filesystem, its size, how it is made and mounted, and whether its disk has a write cache:
# without barriers a filesystem does not flush, and is for disks that lose nothing.
DISKS = {
    "ext4": ("ext4", 48, ["mkfs.ext4", "-q"], "commit=1", True),
    "ext4-default": ("ext4", 48, ["mkfs.ext4", "-q"], "rw", True),
    "ext4-writeback": ("ext4", 48, ["mkfs.ext4", "-q"], "data=writeback,commit=1", True),
    "ext4-nobarrier": ("ext4", 48, ["mkfs.ext4", "-q"], "nobarrier,commit=1", False),
    "ext4-small": (
        "ext4", 48, ["mkfs.ext4", "-q", "-b", "1024", "-I", "128"], "commit=1", True,
    ),
    "ext4-fast": ("ext4", 48, ["mkfs.ext4", "-q", "-O", "fast_commit"], "commit=1", True),
    "xfs": ("xfs", 320, ["mkfs.xfs", "-q"], "rw", True),
    "btrfs": ("btrfs", 160, ["mkfs.btrfs", "-q"], "commit=1", True),
    "f2fs": ("f2fs", 96, ["mkfs.f2fs", "-q"], "rw", True),
}  # fmt: skip
USUAL = ("ext4", "ext4-default", "ext4-writeback", "ext4-nobarrier", "xfs", "btrfs", "f2fs")
DRIVERS = ("virtio_pci", "virtio_blk")

# The machine's clock stands so much later at each start.
BETWEEN = 3600.0
PATIENCE = float(os.environ.get("SEMLOCK_PATIENCE", "5"))


# ---------------------------------------------------------------- what the machine is made of


def kernel() -> str:
    """Find a kernel that has its modules."""
    found = [
        name for name in os.listdir("/lib/modules")
        if os.path.exists(f"/boot/vmlinuz-{name}") and os.path.isdir(f"/lib/modules/{name}/kernel")
    ]  # fmt: skip
    if not found:
        raise SystemExit("there is no kernel with modules in /boot and /lib/modules")
    return max(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def initramfs(to: str, version: str, kinds: set[str]) -> None:
    """Pack busybox, the modules of the kernel, and what this Python needs for semlock."""
    root = f"{to}.d"
    for name in ("bin", "modules", "proc", "sys", "dev", "tmp", "disks"):
        os.makedirs(os.path.join(root, name))
    shutil.copy(shutil.which("busybox") or "/bin/busybox", os.path.join(root, "bin/busybox"))
    os.symlink("busybox", os.path.join(root, "bin/sh"))
    loads = []
    for module in (*DRIVERS, *sorted(kinds)):
        shown = subprocess.run(
            ["modprobe", "--set-version", version, "--show-depends", module],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for file in re.findall(r"^insmod (\S+)", shown, re.MULTILINE):
            plain = "/modules/" + os.path.basename(file).split(".ko")[0] + ".ko"
            if plain not in loads:
                loads.append(plain)
                unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-dc"]}
                how = unpack.get(os.path.splitext(file)[1], ["cat"])
                with open(root + plain, "wb") as unpacked:
                    subprocess.run([*how, file], check=True, stdout=unpacked)
    guest = os.path.join(HERE, "guest.py")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    needs = json.loads(
        subprocess.run(
            [sys.executable, guest, "--needs"],
            check=True, capture_output=True, env=environment,
        ).stdout
    )  # fmt: skip
    python = os.path.realpath(sys.executable)
    # The first module that is loaded says where the others are.
    landmarks = [os.path.join(os.path.dirname(os.__file__), "os.py")]
    loader = re.findall(r"\S*/ld[-\w.]*\.so\S*", " ".join(needs["files"]))
    for file in {*needs["files"], *landmarks, python, guest, *loader}:
        for name in {file, os.path.realpath(file)}:
            if os.path.isfile(name) and not name.startswith(("/dev/", "/proc/")):
                os.makedirs(root + os.path.dirname(name), exist_ok=True)
                shutil.copy(name, root + name)
    with open(python, "rb") as program:
        interpreter = re.search(rb"/lib[^\0]*/ld[^\0]*", program.read(4096))
    if interpreter:
        name = os.fsdecode(interpreter[0])
        os.makedirs(root + os.path.dirname(name), exist_ok=True)
        shutil.copy(os.path.realpath(name), root + name)
    libraries = ":".join(
        sorted({os.path.dirname(file) for file in needs["files"] if ".so" in file})
    )
    with open(os.path.join(root, "init"), "w", encoding="utf-8") as init:
        init.write("#!/bin/sh\nexport PATH=/bin\n")
        init.write("busybox mount -t proc proc /proc; busybox mount -t sysfs sysfs /sys\n")
        init.write("busybox mount -t devtmpfs dev /dev\n")
        init.writelines(f"busybox insmod {module}\n" for module in loads)
        init.write(
            "busybox stty -F /dev/ttyS1 raw -echo\n"
            f"export LD_LIBRARY_PATH={libraries} PYTHONPATH={':'.join(needs['path'])}\n"
            f"exec {python} -S -B {guest} </dev/ttyS1 >/dev/ttyS1 2>&1\n"
        )
    os.chmod(os.path.join(root, "init"), 0o755)
    packed = subprocess.run(
        "find . | cpio --quiet -o -H newc",
        shell=True, cwd=root, check=True, stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    with gzip.open(to, "wb", compresslevel=1) as file:
        file.write(packed)
    shutil.rmtree(root)


def make(work: str, name: str) -> Disk:
    """Make a filesystem, and a disk with it."""
    _, size, words, _, caches = DISKS[name]
    image = os.path.join(work, f"{name}.img")
    with open(image, "wb") as file:
        file.truncate(size * MEGA)
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    subprocess.run(
        [*words, image], check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PATH": path}
    )
    with open(image, "rb") as file:
        content = file.read()
    os.unlink(image)
    return Disk(os.path.join(work, f"{name}.disk"), content, caches=caches)


# ---------------------------------------------------------------- the machine


class Machine:
    """A running machine: what it says, and its end."""

    def __init__(self, work: str, disks: list[str], arguments: list[str]) -> None:
        self._paths = [os.path.join(work, name) for name in ("talk", "control")]
        listeners = []
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
            listener.settimeout(60 * PATIENCE)
            listeners.append(listener)
        drives = []
        for name in disks:
            place = os.path.join(work, f"{name}.disk")
            server = f"file.driver=nbd,file.server.type=unix,file.server.path={place}"
            drives += ["-drive", f"if=virtio,format=raw,{server}"]
        self._process = subprocess.Popen(
            [
                "qemu-system-x86_64", "-machine", "pc", "-accel", "tcg", "-cpu", "max", "-smp",
                "1", "-m", "384", "-nodefaults", "-display", "none", "-no-reboot", *drives,
                "-serial", f"file:{work}/console", "-serial", f"unix:{self._paths[0]}",
                "-qmp", f"unix:{self._paths[1]}", *arguments,
            ],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: os.nice(19),
        )  # fmt: skip
        self._talk, self._control = (listener.accept()[0] for listener in listeners)
        for listener in listeners:
            listener.close()
        self._talk.settimeout(120 * PATIENCE)
        self._control.settimeout(120 * PATIENCE)
        self._heard = self._talk.makefile("r", encoding="utf-8", errors="replace")
        self._answers = self._control.makefile("r", encoding="utf-8")
        self._answers.readline()
        self.order("qmp_capabilities")

    def order(self, what: str, **arguments: object) -> object:
        """Give an order to the emulator."""
        self._control.sendall(
            json.dumps({"execute": what, "arguments": arguments}).encode() + b"\n"
        )
        while True:
            answer = json.loads(self._answers.readline())
            if "error" in answer:
                raise SystemExit(f"{what}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def until(self, what: str, key: str, *states: str) -> None:
        """Wait until the emulator is in a state."""
        while True:
            found = self.order(what)
            if isinstance(found, dict) and found.get(key) in states:
                return
            time.sleep(0.02)

    def hear(self) -> tuple[str, dict]:
        """Give the next thing that the machine says; other lines are its errors."""
        while True:
            line = self._heard.readline()
            if not line:
                raise EOFError
            word, _, rest = line.strip().partition(" ")
            with contextlib.suppress(ValueError):
                if word.isupper():
                    return word, json.loads(rest)
            print("    the machine:", line.rstrip(), flush=True)

    def tell(self, what: dict) -> None:
        """Send the line for which it waits."""
        # Its serial line has no flow control, and a buffer that is read while it is filled.
        for part in re.findall(r".{1,64}", json.dumps(what)):
            self._talk.sendall(part.encode())
        self._talk.sendall(b"\n")

    def kill(self) -> None:
        """End it without a word."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for end in (self._heard, self._talk, self._answers, self._control):
            end.close()


# ---------------------------------------------------------------- cutting


class Cuts:
    """Starts the machine, lets it work, cuts its power, and counts what it finds."""

    def __init__(self, work: str, given: argparse.Namespace) -> None:
        self.work = work
        self.given = given
        self.names = given.only or list(USUAL)
        self.chance = random.Random(given.seed)
        version = kernel()
        kinds = {DISKS[name][0] for name in self.names}
        initrd = os.path.join(work, "initrd")
        initramfs(initrd, version, kinds)
        self.boot = [
            "-kernel", f"/boot/vmlinuz-{version}", "-initrd", initrd,
            "-append", "console=ttyS0 panic=-1 loglevel=4",
        ]  # fmt: skip
        self.disks = {name: make(work, name) for name in self.names}
        self.found = {name: collections.Counter() for name in self.names}
        self.broken: set[str] = set()
        self.boots: set[str] = set()
        self.saved: list[str] | None = None
        self.bad = 0

    def save(self) -> None:
        """Boot once, and save the machine that waits for its orders."""
        state = os.path.join(self.work, "state")
        machine = Machine(self.work, self.names, self.boot)
        assert machine.hear()[0] == "READY"
        machine.order("migrate", uri=f"exec:cat >{state}")
        machine.until("query-migrate", "status", "completed")
        machine.kill()
        self.saved = ["-incoming", f"exec:cat {state}"]

    def orders(self, number: int) -> dict:
        """Tell the machine what it has, and the time."""
        letters = "abcdefghijklmnop"
        return {
            "time": 1.9e9 + number * BETWEEN,
            "chance": self.chance.randbytes(32).hex(),
            "durability": self.given.durability,
            "noise": self.chance.random() < 0.7,
            "disks": {
                name: [f"/dev/vd{letters[index]}", DISKS[name][0], DISKS[name][3]]
                for index, name in enumerate(self.names)
            },
        }

    def one(self, number: int) -> None:
        """Start, look, work, and cut."""
        if not self.given.cold and self.saved is None:
            self.save()
        began = time.monotonic()
        machine = Machine(self.work, self.names, self.saved or self.boot)
        try:
            if self.saved:
                machine.until("query-status", "status", "running")
            else:
                assert machine.hear()[0] == "READY"
            machine.tell(self.orders(number))
            word = ""
            while word != "STORM":
                word, what = machine.hear()
                self.note(number, word, what)
                if word == "FAILED":
                    return
            looked = time.monotonic() - began
            time.sleep(self.chance.uniform(*self.given.seconds))
        finally:
            machine.kill()
            for name, disk in self.disks.items():
                disk.cut(self.chance)
                if name in self.broken:  # the next cuts are to show something again
                    disk.close()
                    self.disks[name] = make(self.work, name)
            self.broken.clear()
        worked = time.monotonic() - began - looked
        print(f"cut {number}: looked {looked:.1f} s, worked {worked:.1f} s", flush=True)

    def note(self, number: int, word: str, what: dict) -> None:
        """Count what the machine has found."""
        if word == "BOOT":
            if what["id"] in self.boots:
                self.fault(number, "the machine has the boot id of an earlier start")
            self.boots.add(what["id"])
        elif word == "LOOKED":
            examples = what.pop("examples")
            counts = self.found[what.pop("name")]
            counts.update(what)
            counts["cuts"] += number > 0
            for example in examples:
                self.fault(number, example)
        elif word == "BROKEN":
            self.broken.add(what["name"])
            self.found[what["name"]]["broken"] += 1
            print(f"cut {number}: {what['error']}, and is made anew", flush=True)
        elif word == "FAILED":
            self.fault(number, f"{word}: {what}")

    def fault(self, number: int, what: str) -> None:
        """Report what must not be."""
        self.bad += 1
        print(f"cut {number}: {what}", flush=True)

    def report(self) -> None:
        """Say what was found, for each filesystem."""
        keys = (
            "cuts",
            "names",
            "empty",
            "zeros",
            "torn",
            "whole",
            "blocked",
            "robbed",
            "broken",
        )
        print(f"{'durability ' + self.given.durability:20}" + "".join(f"{k:>9}" for k in keys))
        for name, counts in self.found.items():
            print(f"{name:20}" + "".join(f"{counts[key]:9,}" for key in keys), flush=True)


def main() -> int:
    """Run as many cuts as asked for, or as the time allows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=sorted(DISKS), help="these filesystems")
    parser.add_argument(
        "--durability", default="safe", choices=["safe", "full", "data", "none"]
    )
    parser.add_argument("--seconds", type=float, nargs=2, default=(0.5, 6.0), metavar="S",
                        help="how long the locks are worked before a cut: between")  # fmt: skip
    parser.add_argument("--within", type=float, default=float("inf"), metavar="S",
                        help="begin no cut after so many seconds")  # fmt: skip
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cold", action="store_true", help="boot at each start")
    given = parser.parse_args()
    end = time.monotonic() + given.within
    with tempfile.TemporaryDirectory(prefix="power-") as work:
        cuts = Cuts(work, given)
        for number in range(given.cuts + 1):  # the last cut is looked at by one more start
            if number and time.monotonic() > end:
                break
            cuts.one(number)
            if number % 20 == 0 and number:
                cuts.report()
        cuts.report()
    # A filesystem that has lost itself says nothing about locks.
    if any(counts["broken"] > 1 + counts["cuts"] // 100 for counts in cuts.found.values()):
        print("a filesystem could not be mounted after more than one cut in a hundred")
        return 1
    for name, counts in cuts.found.items():
        few = given.durability not in ("safe", "none") or counts["cuts"] < 20
        if not few and not counts["empty"] + counts["zeros"]:
            print(f"no cut has left an empty record on {name}: this has shown nothing")
            return 1
    return 1 if cuts.bad else 0


if __name__ == "__main__":
    sys.exit(main())
