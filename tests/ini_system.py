"""A lock system that semlock doesn't know: its record is a section of an ini file."""

from __future__ import annotations

from semlock import LockInfo, LockRecordError, systems
from semlock.policy import Age, ProofOfDeath

HEAD = "[lock]"
NUMBERS = ("pid", "timestamp", "start", "pidns")
TEXTS = ("tag", "host", "boot", "token", "witness")


def compose(info: LockInfo) -> bytes:
    known = {name: value for name, value in info.as_dict().items() if value is not None}
    lines = [f"{name} = {known[name]}" for name in (*NUMBERS, *TEXTS) if name in known]
    return "\n".join([HEAD, *lines, ""]).encode()


def decode(content: bytes) -> LockInfo:
    try:
        head, *lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise LockRecordError(f"the record is no text: {error}") from None
    if head != HEAD or lines[-1:] != [""]:
        raise LockRecordError("the record is no section [lock] of whole lines")
    fields = dict(line.split(" = ", 1) for line in lines if " = " in line)
    numbers = {name: fields.get(name, "") for name in NUMBERS}
    if not all(text.isdigit() for name, text in numbers.items() if name in fields):
        raise LockRecordError("the record has a number that is none")
    if not (numbers["pid"] and numbers["timestamp"]):
        raise LockRecordError("the record has no pid or no timestamp")
    return LockInfo(
        **{name: int(text) for name, text in numbers.items() if text},
        **{name: fields[name] for name in TEXTS if name in fields},
    )


INI = systems.System(
    "ini", compose=compose, decode=decode, stale=lambda: ProofOfDeath() | Age(3600)
)
