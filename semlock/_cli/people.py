"""What is known about a lock, for people: five lines, and more on request."""

from __future__ import annotations

import time

from semlock._cli.columns import COLOURS, PLAIN, ago, fit, wrapped
from semlock._cli.output import describe
from semlock._cli.starting import FREE
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock.systems import System

_COMMAND = 60  # columns for the holder's command

# Fields that the five lines show; the further lines leave them out.
_SAID = (
    "locked", "pid", "timestamp", "tag", "state", "alive", "verdict", "evidence", "reason",
    "age", "host", "command", "waiting", "owner",
)  # fmt: skip


def lines(
    found: LockStatus,
    system: System | None,
    *,
    verbose: bool = False,
    width: int | None = None,
    colour: bool = False,
) -> list[str]:
    """Write the status of a path."""
    if found.state == "free":
        return [FREE]
    fields = describe(found, system)
    verdict = fields["verdict"]
    said = {
        "state": _state(found, fields, system),
        "holder": _holder(found, fields, verbose=verbose),
        "why": fields["tag"] or (None if found.is_by_kernel else "not said"),
        "since": None if found.age is None else _since(found),
        "evidence": f"{verdict}: {fields['evidence']}",
    }
    if verbose:
        said |= {
            name: _text(value)
            for name, value in fields.items()
            if name not in _SAID and value is not None
        }
        said |= {"pid": fields["pid"], "timestamp": fields["timestamp"]}
    label = max(9, *(len(name) + 1 for name in said))
    written = []
    for name, text in said.items():
        if text is None:
            continue
        written += wrapped(f"{name}:".ljust(label) + " ", printable(str(text)), width)
    if colour and verdict in COLOURS:
        written[0] = f"{COLOURS[verdict]}{written[0]}{PLAIN}"
    return written


def _state(found: LockStatus, fields: dict[str, Any], system: System | None) -> str:
    state: str = fields["state"]
    if state == "stale":
        state = "stale: the next process that asks takes it"
        if system is not None and system.fails_closed:
            state = "stale: it stays until its holder or semlock break removes it"
        if fields["reason"] not in (None, fields["evidence"]):
            state += f" ({fields['reason']})"
    elif state == "unreadable":
        state = "held: the file is empty" if found.is_empty else "held: the file is no record"
        if found.instance is not None and found.instance.error:
            state = "held: the file can't be read"
    if fields["waiting"]:
        state += f", {fields['waiting']} waiting"
    if fields["dialect"] not in (None, "semlock"):
        state += f" (a lock of {fields['dialect']})"
    return state


def _holder(found: LockStatus, fields: dict[str, Any], *, verbose: bool) -> str:
    if found.info is None and found.is_by_kernel:
        return found.holder
    if found.info is None:
        if not found.is_empty:
            return "unknown"
        return found.holder if found.is_foreign else "unknown, probably flock or filelock"
    words: str = found.info.holder
    if fields["host"]:
        words += f" on {fields['host']}"
    command = fields["command"]
    if command:
        words += f": {command if verbose else fit(command, _COMMAND).rstrip()}"
    return words


def _since(found: LockStatus) -> str:
    age = found.age or 0.0
    then = time.localtime(time.time() - age)
    form = "%H:%M:%S" if age < 43200 else "%Y-%m-%d %H:%M:%S"
    return f"{ago(age)} ({time.strftime(form, then)})"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
