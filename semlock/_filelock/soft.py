"""``SoftFileLock``: its file's existence is the lock, in the form that filelock writes and reads.

Its record (protocol 1) has a line for the process number, one for the host, and on Linux a third
one: the start of the process in clock ticks since the boot, below the 128 bits of the boot's id.
The host ends in ``?pidns-`` and a number where the process is in a PID namespace of its own.
Records of protocol 2 (``filelock/2``, then ``key=value`` lines) are read too.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from time import time

from semlock._core import capi
from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._core.outcomes import TAKE_TURNS
from semlock._core.records import LockInfo
from semlock._filelock.held import HeldBySemlock
from semlock._filelock.options import UNSET_MODE
from semlock._locks.lock import FileLock as LockInFile
from semlock._stores.file import InFiles

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Process
    from semlock._core.status import LockStatus
    from semlock._filelock.context import Context

RECORD_LIMIT = 1024
# What a file must be for so long before it counts as cut off, and not as being written.
CUT_OFF_AFTER = 2.0
# Written by strict soft locks into the path of a plain one, so that it is held for ever.
_SENTINEL = b"1\nfilelock-strict-v1\x00\n0\n"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_HOST_LIMIT = 253
_DIGEST = 8
_PID_LIMIT = 2**31 - 1
_MARK = "?pidns-"


def host_name(process: Process | None = None) -> str:
    """Name this machine and PID namespace as the record does."""
    process = process or this_process()
    name = os.uname().nodename if hasattr(os, "uname") else process.host
    given = name.encode("utf-8", "surrogateescape")
    text = "".join(
        chr(byte) if 0x20 < byte < 0x7F and byte != 0x3F else f"?{byte:02x}" for byte in given
    )
    if process.pidns not in (0, _INITIAL_PID_NAMESPACE):
        text += f"{_MARK}{process.pidns:x}"
    if len(text) > _HOST_LIMIT:
        from hashlib import sha256  # noqa: PLC0415 - hosts with such names are rare

        kept = _HOST_LIMIT - _DIGEST - 1
        text = f"{text[:kept]}-{sha256(text[kept:].encode()).hexdigest()[:_DIGEST]}"
    return text or "?"


def _boot_number(process: Process) -> int:
    try:
        return int(process.boot.replace("-", ""), 16)
    except ValueError:
        return 0


def compose(process: Process) -> bytes:
    """Write the record of a process."""
    text = f"{process.pid}\n{host_name(process)}\n"
    # In another time namespace the start is another number, which says nothing to others.
    if sys.platform == "linux" and process.start and not process.timens:
        text += f"{_boot_number(process) << 64 | process.start}\n"
    return text.encode("ascii")


def decode(content: bytes) -> LockInfo:
    """Read a record of protocol 1 or 2; ``LockRecordError`` if it is none."""
    if len(content) > RECORD_LIMIT or not content.endswith(b"\n"):
        raise LockRecordError("the record is too long, or was cut off")
    try:
        lines = content.decode("utf-8").strip().splitlines()
    except UnicodeDecodeError:
        raise LockRecordError("the record is no text") from None
    if lines[:1] == ["filelock/2"]:
        fields = dict(line.partition("=")[::2] for line in lines[1:])
        lines = [fields.get("pid", ""), fields.get("host", "")]
        if fields.get("start"):
            lines.append(fields["start"])
    numbers = lines[0::2]
    if len(lines) not in (2, 3) or not all(n.isascii() and n.isdigit() for n in numbers):
        raise LockRecordError("the record is not a process number, a host and a start")
    pid = int(lines[0]) if len(lines[0]) < 11 else 0
    if not 1 <= pid <= _PID_LIMIT:
        raise LockRecordError(f"the record's process number is out of range: {lines[0]:.20}")
    return _info(pid, lines[1], lines[2] if len(lines) == 3 else None)


def _info(pid: int, host: str, start: str | None) -> LockInfo:
    number = int(start) if start is not None and len(start) < 60 else None
    info = LockInfo(pid=pid, host=host, start=number)
    if number is None or sys.platform != "linux":
        return info
    info.start = number % 2**64
    # What tells processes apart is comparable only with a boot; a record without one has 0.
    boot = f"{number >> 64:032x}"
    if number >> 64:
        info.boot = "-".join((boot[:8], boot[8:12], boot[12:16], boot[16:20], boot[20:]))
    base, mark, namespace = host.partition(_MARK)
    if mark and base:
        try:
            info.pidns = int(namespace, 16)
        except ValueError:
            info.pidns = 1
    else:
        info.pidns = _INITIAL_PID_NAMESPACE
    return info


class Stale:
    """When a soft lock may be taken: its process is gone, it was cut off, or it is too old."""

    __slots__ = ("lifetime",)

    def __init__(self, lifetime: float | None) -> None:
        self.lifetime = lifetime

    def __call__(self, status: LockStatus) -> str | None:
        """Give the reason, or ``None``."""
        seen = status.instance
        if seen is None:
            return None
        if self.lifetime is not None:
            age = time() - seen.written_at
            if age >= self.lifetime:
                return f"it is {age:.0f} s old, and its lifetime is {self.lifetime:g} s"
        content = seen.content
        if status.info is None:
            # An old filelock writes nothing into its file: an empty one may be held.
            if content in (b"", _SENTINEL) and seen.error == 0 and seen.kind == capi.REGULAR:
                return None
            unchanged = status.unchanged_for(time())
            if unchanged < CUT_OFF_AFTER or seen.error == -13:
                return None
            return f"it has been no readable record for {unchanged:.0f} s"
        return None if seen.witnessed else self._is_gone(status.info)

    @staticmethod
    def _is_gone(info: LockInfo) -> str | None:
        me = this_process()
        if info.pid is None or info.host != host_name(me):
            return None
        if info.boot and me.boot and info.boot != me.boot:
            return f"process {info.pid} ran before this machine was started anew"
        start = (info.start or 0) if sys.platform == "linux" and not me.timens else 0
        fate = capi.probe(info.pid, start)
        if fate in (capi.GONE, capi.RECYCLED, capi.ZOMBIE):
            return f"process {info.pid} does not exist here"
        return None


class SoftLock(LockInFile):
    """semlock's lock with filelock's record."""

    __slots__ = ("_permissions",)

    # Waiters of this package stand in a queue; the core tries for the first of them.
    _turns = TAKE_TURNS

    def __init__(self, path: str, mode: int, lifetime: float | None, **options: Any) -> None:
        # Others act on what the record says, so they may not write it.
        super().__init__(
            path,
            mode=0o644 if mode == UNSET_MODE else mode & 0o755,
            policy=Stale(lifetime),
            durability="none",
            **options,
        )
        self._permissions = None if mode == UNSET_MODE else mode & 0o755
        self._native.fleeting = 1  # the directory has no other files than filelock would leave

    def _compose(self, owner: Process | None) -> capi.Record:
        return capi.Record(
            compose(owner or this_process()),
            stamp_at=-1,
            token_at=-1,
            witness_at=-1,
            mode=self._mode,
            durability=capi.DURABILITY[self._durability],
        )

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def fileno(self) -> int:
        """Give the descriptor of the held file, with the permissions that were asked for."""
        fd = int(self._native.file.handle)
        if self._permissions is not None and fd >= 0 and sys.platform != "win32":
            os.fchmod(fd, self._permissions)
        return fd


class SoftFileLock(HeldBySemlock):
    """A lock that is held exactly while a file exists at its path.

    It excludes filelock's ``SoftFileLock`` and is excluded by it.  The parameters are those of
    ``BaseFileLock``.
    """

    _lifetime_supported = True
    _preserve_lock_file_supported = False
    _on_acquired_supported = False
    _is_soft = True
    _inner_kind: Any = SoftLock

    def _new_inner(self, context: Context, path: str) -> Any:
        return self._inner_kind(path, context.mode, context.lifetime)

    def _before_try(self, context: Context, inner: Any) -> None:
        if inner._policy.lifetime != context.lifetime:  # noqa: SLF001 - it can be set at any time
            inner._policy.lifetime = context.lifetime  # noqa: SLF001

    def _look(self) -> LockInfo | None:
        try:
            return self._inner(self._context).status().info  # type: ignore[no-any-return]
        except OSError:
            return None

    @property
    def pid(self) -> int | None:
        """The process that holds the lock by its record; ``None`` if there is none to read."""
        info = self._look()
        return None if info is None else info.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the record names this process."""
        info, me = self._look(), this_process()
        if info is None or info.pid != me.pid or info.host != host_name(me):
            return False
        if info.start is None or sys.platform != "linux":
            return info.start is None
        return info.start == me.start and info.boot in (None, me.boot)

    def break_lock(self) -> None:
        """Remove the lock file, whichever process holds the lock."""
        with suppress(OSError):
            os.unlink(self._inner(self._context).path)

    def _unseen_holder(self, context: Context) -> str | None:
        try:
            found = self._inner(context).status()
        except OSError:
            return None
        if found.instance is not None and found.instance.content == b"":
            return "an owner that recorded no PID (an old filelock, or one that writes it now)"
        info = found.info
        if info is not None and info.host != host_name():
            return f"pid {info.pid} on {info.host}"
        return None


__all__ = ["InFiles", "SoftFileLock", "SoftLock", "compose", "decode", "host_name"]
