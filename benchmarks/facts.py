"""On what it was measured: enough to judge the numbers, nothing that names the machine."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import time

import semlock
from benchmarks.contenders import installed

_QUIET = 1.5  # the load of a machine on which times mean something


def kernel() -> str:
    """Give the kernel's version without what a distributor or owner has added to it."""
    found = re.match(r"[\d.]+", platform.release())
    return f"{platform.system()} {found[0].rstrip('.') if found else platform.release()}"


def python() -> str:
    """Name the interpreter."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def processor() -> str:
    """Name the processor, and how many of it there are."""
    model = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = " ".join(line.partition(":")[2].split())
                break
    count = len(os.sched_getaffinity(0))
    return f"{model}, {count} core{'s' if count != 1 else ''}"


def filesystem(directory: str) -> str:
    """Name the kind of filesystem that a directory is on."""
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kind = "unknown filesystem"
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                kind = after.split()[0]
    return kind


def disk(directory: str) -> str:
    """Name the kind of filesystem, and of ext4 whether it has a journal.

    By default semlock syncs where it has none.
    """
    kind = filesystem(directory)
    if kind != "ext4":
        return kind
    device = os.stat(directory).st_dev
    link = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    with open(f"/sys/fs/ext4/{os.path.basename(link)}/journal_task", encoding="ascii") as task:
        return "ext4 without a journal" if task.read(1) == "<" else "ext4 with a journal"


def load() -> str:
    """Say how busy the machine has been in the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def load_after() -> str:
    """Say how busy the machine was in the last minute of a run, and what that means."""
    noisy = ": the machine was busy, so the times are noisy"
    return f"{load()} after{noisy if os.getloadavg()[0] > _QUIET else ''}"


def versions() -> list[str]:
    """Name the libraries with their versions."""
    peers = [f"{name} {importlib.metadata.version(name)}" for name in installed()]
    return [f"semlock {semlock.__version__}", *peers]


def today() -> str:
    """Give the date."""
    return dt.datetime.now(tz=dt.timezone.utc).date().isoformat()


class Run:
    """A run that begins now: what the page says about it."""

    def __init__(self) -> None:
        self._load, self._began = load(), time.monotonic()

    def facts(self, *directories: str, **more: str) -> dict[str, str]:
        """Say when and on what it was measured, at its end."""
        on = {"Filesystems": " and ".join(map(disk, directories))} if directories else {}
        return {
            "Date": today(),
            "Kernel": kernel(),
            "Python": python(),
            "Processor": processor(),
            **on,
            "Load": f"{self._load} before, {load()} after, of which the run itself is a part",
            "Time": f"{time.monotonic() - self._began:.0f} s",
            **more,
            "Versions": ", ".join(versions()),
        }
