"""Who has the kernel's lock on a file: what ``/proc`` says, and what only a try can tell.

``/proc/locks`` lists the locks of this kernel by the file's device and number, with the process
that took each.  It does not list locks of other machines, and in a container only those that were
taken there by a process that still runs.  A lock belongs to an open file, and all that have a copy
of its descriptor hold it: a shell does after ``flock 9``, whose process has ended.  So if the list
names no living process, the descriptors of the processes are searched (``/proc/PID/fdinfo``).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress

from semlock._core import capi
from semlock._core.identity import ALIVE, other_process, this_process
from semlock._core.paths import mount_of
from semlock._core.records import LockInfo, printable
from semlock._core.status import LockStatus

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NamedTuple, TypeAlias

    from semlock._core.identity import Verdict

    # The numbers of a device, as the list writes them: major and minor.
    Device: TypeAlias = tuple[int, int]

    class KernelHolder(NamedTuple):
        """A process that has a kernel lock, as far as it is visible."""

        pid: int | None
        shared: bool
        kind: str
else:
    from collections import namedtuple  # which needs no import of typing

    KernelHolder = namedtuple("KernelHolder", ("pid", "shared", "kind"))  # noqa: PYI024

PROC = "/proc"
_LARGE_LIST = 1 << 20


class KernelInstance:
    """A file that was found at a path, and that the kernel has locked: an ``Instance``."""

    __slots__ = ("ctime_ns", "key", "written_at")

    content = b""
    error = 0
    unfinished = False
    witnessed = True  # the end of the kernel's lock is what ends it

    def __init__(self, key: tuple[int, int, int], written_at: float) -> None:
        self.key = key
        self.ctime_ns = key[2]
        self.written_at = written_at

    def evidence(self, info: LockInfo | None) -> tuple[Verdict, str]:
        """Say how it is known that the holder lives."""
        del info
        return ALIVE, "the kernel keeps its lock on the file, and ends it with its holder"

    def keeper(self, path: str) -> None:
        """Name no user: the file stays, and no process removes it."""


class KernelStatus(LockStatus):
    """What was found out about the kernel's lock on a file.

    :holders:  the processes that have it, as far as they are visible

    The rest is as in ``LockStatus``; ``info`` names the first of them.
    """

    __slots__ = ("holders",)

    def __init__(
        self,
        path: str,
        seen: KernelInstance | None,
        holders: tuple[KernelHolder, ...] = (),
        *,
        exists: bool = True,
    ) -> None:
        self.holders = holders
        super().__init__(path, seen, _info_of(holders))  # type: ignore[arg-type]
        self.age = None  # the file says nothing about who locks it
        if seen is not None:
            self.state = "held"
            self.reason = None
        elif exists:
            self.evidence = "no process has locked the file"

    @property
    def is_by_kernel(self) -> bool:
        """Whether this is about the kernel's lock on the file: always."""
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the file is one that was left: never, as it is locked."""
        return False

    @property
    def holder(self) -> str:
        """Describe the holder in a few words, for messages."""
        if self.state == "free":
            return "no process"
        if not self.holders:
            return (
                "a process that is not visible here: of another user, another container or another "
                "machine"
            )
        words = ", ".join(_named(one.pid) for one in self.holders[:_SHOWN])
        if len(self.holders) > _SHOWN:
            words += f" and {len(self.holders) - _SHOWN} more"
        how = "shared" if all(one.shared for one in self.holders) else "exclusive"
        return f"{words} by the kernel's lock ({how})"

    def __reduce__(self) -> tuple[object, ...]:
        state = {
            name: getattr(self, name) for name in LockStatus.__slots__ if name != "instance"
        }
        return _revive, (state, self.holders)


_SHOWN = 4


def _revive(state: dict[str, object], holders: tuple[KernelHolder, ...]) -> KernelStatus:
    status = KernelStatus.__new__(KernelStatus)
    status.instance = None
    status.holders = holders
    for name, value in state.items():
        setattr(status, name, value)
    return status


def _named(pid: int | None) -> str:
    if pid is None:
        return "a process that is not visible here"
    command = command_of(pid)
    return f"process {pid}" + (f" ({command})" if command else "")


def command_of(pid: int) -> str:
    """Name the program of a process, as far as the system says it."""
    try:
        return printable(capi.read_file(f"{PROC}/{pid}/comm").rstrip("\n"))
    except OSError:
        return ""


def _info_of(holders: tuple[KernelHolder, ...]) -> LockInfo | None:
    pid = next((one.pid for one in holders if one.pid is not None), None)
    if pid is None:
        return None
    process = this_process() if pid == os.getpid() else other_process(pid)
    return LockInfo(
        pid=pid,
        host=process.host or None,
        start=process.start or None,
        boot=process.boot or None,
        pidns=process.pidns or None,
        timens=process.timens or None,
    )


# ---------------------------------------------------------------- what /proc says


def listed(lines: Iterator[str] | list[str]) -> Iterator[tuple[KernelHolder, Device, int]]:
    """Read lines of ``/proc/locks``: each lock that is held, with device and number of its file."""
    for line in lines:
        words = line.split()
        # A second word of "->" marks a process that waits for the lock before it.
        if len(words) < 6 or words[1] not in ("FLOCK", "POSIX", "OFDLCK"):
            continue
        place = words[5].split(":")
        try:
            major, minor, number = int(place[0], 16), int(place[1], 16), int(place[2])
            pid = int(words[4])
        except (IndexError, ValueError):
            continue
        holder = KernelHolder(pid if pid > 0 else None, words[3] == "READ", words[1])
        yield holder, (major, minor), number


def all_listed(number: int | None = None) -> list[tuple[KernelHolder, Device, int]] | None:
    """Read ``/proc/locks``; ``None`` where there is none.

    With the number of a file only lines with this number are read: a machine may have thousands.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        # The kernel makes the list anew for each read, so it is read once, and not twice for room.
        lines = capi.read_file(f"{PROC}/locks", _LARGE_LIST).splitlines()
    except OSError:
        return None
    if number is not None:
        place = f":{number} "
        lines = [line for line in lines if place in line]
    return list(listed(lines))


def _listed_holders(path: str, seen: os.stat_result) -> list[KernelHolder]:
    """Name the processes that the list says have locked a file."""
    return [
        holder
        for holder, device, number in all_listed(seen.st_ino) or ()
        if number == seen.st_ino and holder.kind == "FLOCK" and _same_device(path, seen, device)
    ]


def _same_device(path: str, seen: os.stat_result, device: Device) -> bool:
    """Compare a file's device with that of the list, which is its filesystem's.

    On btrfs and overlayfs the two differ.
    """
    return device in (_numbers(seen.st_dev), _device_of_mount(path))


def _numbers(device: int) -> Device:
    if sys.platform == "win32":
        return 0, device
    return os.major(device), os.minor(device)


def _device_of_mount(path: str) -> Device | None:
    """Give the device numbers that the mount of a path has."""
    words = mount_of(path)
    major, _, minor = words[2].partition(":") if words else ("", "", "")
    return (int(major), int(minor)) if words else None


def _runs(pid: int) -> bool:
    return capi.probe(pid, 0) not in (capi.GONE, capi.ZOMBIE)


def _inherited(seen: os.stat_result) -> Iterator[KernelHolder]:
    """Find the processes that have a descriptor of the file by which it is locked."""
    if not sys.platform.startswith("linux"):
        return
    try:
        pids = [name for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return
    for pid in pids:
        for fd in _descriptors(pid, seen):
            try:
                lines = capi.read_file(f"{PROC}/{pid}/fdinfo/{fd}").splitlines()
            except OSError:
                continue
            locks = [line[len("lock:") :] for line in lines if line.startswith("lock:")]
            for holder, _, _ in listed(locks):
                if holder.kind == "FLOCK":
                    yield holder._replace(pid=int(pid))


def _descriptors(pid: str, seen: os.stat_result) -> Iterator[str]:
    """Find a process's descriptors of a file; nothing of another user's processes."""
    try:
        names = os.listdir(f"{PROC}/{pid}/fd")
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"{PROC}/{pid}/fd/{name}"), seen):
                yield name


# ---------------------------------------------------------------- looking


def kernel_status(path: str, fd: int | None = None) -> KernelStatus:
    """Say whether a file is locked by the kernel's lock, and who holds that.

    If the list names no holder, the file is locked for a moment to find out: a holder may be on
    another machine, or in another container.
    """
    try:
        seen = os.lstat(path) if fd is None else os.fstat(fd)
    except FileNotFoundError:
        return KernelStatus(path, None, exists=False)
    if stat.S_ISLNK(seen.st_mode):
        from semlock._core.explain import link_error  # noqa: PLC0415 - for an error only

        raise link_error(path)
    found = _listed_holders(path if fd is None else f"{PROC}/self/fd/{fd}", seen)
    if not found and not capi.kernel_locked(os.fsencode(path), fd):
        return KernelStatus(path, None)
    if not any(one.pid is not None and _runs(one.pid) for one in found):
        found = list(_inherited(seen)) or [one._replace(pid=None) for one in found]
    holders = tuple(dict.fromkeys(found))
    key = seen.st_dev, seen.st_ino, seen.st_ctime_ns
    if sys.platform == "win32" and (look := capi.look(os.fsencode(path))) is not None:
        key = look.key  # the core has other numbers of a file than Python
    return KernelStatus(path, KernelInstance(key, seen.st_mtime), holders)


def locked_below(directory: str) -> list[str]:
    """List the files below a directory, and itself, that the kernel's list says are locked.

    Also those that are locked by a descriptor of a process of this user, wherever it was opened.
    """
    top = os.path.realpath(directory)
    everything = all_listed()
    if everything is None:
        raise OSError(errno.ENOTSUP, "this system has no list of the kernel's locks", directory)
    numbers = {number for holder, _, number in everything if holder.kind == "FLOCK"}
    found = set()
    for place, directories, files in os.walk(top):
        for path in (place, *(os.path.join(place, name) for name in (*directories, *files))):
            with suppress(OSError):
                if os.lstat(path).st_ino in numbers:
                    found.add(path)
    found.update(
        path for path in _open_and_locked() if (path + "/").startswith(top.rstrip("/") + "/")
    )
    return sorted(found)


def _open_and_locked() -> Iterator[str]:
    """Give the paths of what processes have open by a descriptor that is locked."""
    for name in os.listdir(PROC):
        if not name.isdigit():
            continue
        try:
            numbers = os.listdir(f"{PROC}/{name}/fd")
        except OSError:
            continue
        for number in numbers:
            with suppress(OSError):
                if "\nlock:" in capi.read_file(f"{PROC}/{name}/fdinfo/{number}"):
                    yield os.readlink(f"{PROC}/{name}/fd/{number}")
