"""The record of filelock's locks: a process, as others read it and judge whether it is gone.

Protocol 1 has a line for the process number, one for the host, and on Linux a third one: the start
of the process in clock ticks since the boot, below the 128 bits of the boot's id.  The host ends in
``?pidns-`` and a number where the process is in a PID namespace of its own.  Records of protocol 2
(``filelock/2``, then ``key=value`` lines) are read too.
"""

from __future__ import annotations

import os
import sys

from semlock._core import capi
from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._core.records import LockInfo

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.identity import Process

RECORD_LIMIT = 1024
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
    start = start_of(process)
    text = f"{process.pid}\n{host_name(process)}\n" + (f"{start}\n" if start else "")
    return text.encode("ascii")


def start_of(process: Process) -> int:
    """Give the number of a process's start and its boot; 0 where there is none."""
    # In another time namespace the start is another number, which says nothing to others.
    if sys.platform == "linux" and process.start and not process.timens:
        return _boot_number(process) << 64 | process.start
    return 0


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
    return info_of(pid, lines[1], lines[2] if len(lines) == 3 else None)


def info_of(pid: int, host: str, start: str | None) -> LockInfo:
    """Give what is known of a process by its number, its host and its start."""
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


def is_gone(info: LockInfo) -> str | None:
    """Say why a process is known to be gone; ``None`` if it lives, or may live."""
    me = this_process()
    if info.pid is None or info.host != host_name(me):
        return None
    if sys.platform == "linux" and not me.boot:
        return None  # nothing tells the PID namespace, which the host's name would name
    if info.boot and me.boot and info.boot != me.boot:
        return f"process {info.pid} ran before this machine was started anew"
    start = (info.start or 0) if sys.platform == "linux" and not me.timens else 0
    fate = capi.probe(info.pid, start)
    if fate in (capi.GONE, capi.RECYCLED, capi.ZOMBIE):
        return f"process {info.pid} does not exist here"
    return None
