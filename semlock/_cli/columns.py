"""Text for people: widths on a screen, columns that a narrow one cuts, the lines of a status."""

from __future__ import annotations

import os
import sys
import time
import unicodedata

from semlock._cli.output import describe
from semlock._cli.starting import FREE
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TextIO

    from semlock._core.status import LockStatus
    from semlock.systems import System

GAP = "  "
_DEFAULT = 80

PLAIN, BOLD, REVERSE = "\x1b[0m", "\x1b[1m", "\x1b[7m"
COLOURS = {"alive": "\x1b[32m", "dead": "\x1b[31m", "unknown": "\x1b[33m"}


def wide(text: str) -> int:
    """Count the columns of a text: East Asian letters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_width_of, text))


def _width_of(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Cut or pad a text to this width."""
    if wide(text) > width:
        used, kept = 0, []
        for letter in text:
            used += _width_of(letter)
            if used > width - 1:
                break
            kept.append(letter)
        text = "".join(kept) + "…" if width > 0 else ""
    room = " " * (width - wide(text))
    return room + text if right else text + room


def columns_of(out: TextIO | None) -> int | None:
    """Give a terminal's width; ``None`` if there is no terminal, so that nothing is cut."""
    try:
        if out is None or not out.isatty():
            return None
        own = os.get_terminal_size(out.fileno()).columns
    except (OSError, ValueError):
        own = 0
    return asked_columns() or own or _DEFAULT


def asked_columns() -> int:
    """Give the value of ``COLUMNS``, 0 if there is none."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0


def coloured(when: str, out: TextIO | None) -> bool:
    """Tell whether to use colours: as asked for, by default on a terminal that has them."""
    if when != "auto":
        return when == "always"
    return (
        out is not None
        and out.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def layout(
    table: Sequence[Sequence[str]],
    width: int | None,
    narrows: Sequence[tuple[int, int]],
    leaves: Sequence[int],
    without: Sequence[int] = (),
) -> list[tuple[int, int]]:
    """Choose the columns that are shown, and their widths, as far as there is room.

    ``narrows`` lists the columns that may be cut and their least widths, the least important
    first; ``leaves`` lists those that are left out if that isn't enough.
    """
    shown = {
        column: max(wide(row[column]) for row in table)
        for column in range(len(table[0]))
        if column not in without
    }
    if width is None:
        return list(shown.items())
    least = dict(narrows)

    def over(widths: dict[int, int]) -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - width

    for column in (column for column in leaves if column in shown):
        if over({c: min(w, least.get(c, w)) for c, w in shown.items()}) <= 0:
            break
        del shown[column]
    for column, narrowest in narrows:
        if column in shown:
            shown[column] -= max(0, min(over(shown), shown[column] - narrowest))
    return list(shown.items())


def wrapped(label: str, text: str, width: int | None) -> list[str]:
    """Write a label and a text after it, broken between words at the terminal's width."""
    if width is None or wide(label) + wide(text) <= width:
        return [label + text]
    room = max(20, width - wide(label))
    lines, line = [], ""
    for word in _words(text, room):
        if line and wide(line) + 1 + wide(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    indent = " " * wide(label)
    return [label + lines[0], *(indent + line for line in lines[1:])]


def _words(text: str, room: int) -> list[str]:
    """Split a text where lines may break: between words, and within scripts without spaces.

    Other long words, such as paths, are not broken, so that they can be copied.
    """
    found = []
    for word in text.split(" "):
        left = word
        while wide(left) > room and not left.isascii():
            part = left[:1]
            while wide(part + left[len(part)]) <= room:
                part += left[len(part)]
            found.append(part)
            left = left[len(part) :]
        found.append(left)
    return found


def encodable(text: str, out: TextIO | None = None) -> str:
    """Replace characters that an output's encoding lacks."""
    encoding = getattr(sys.stdout if out is None else out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def duration(seconds: float) -> str:
    """Write a duration in two parts at most: 2 h 05 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, size, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {lower}"
    return f"{whole // 60} min {whole % 60:02d} s"


def ago(seconds: float) -> str:
    """Say how long ago something was."""
    if seconds < 1:
        return "just now"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds / size)} {unit} ago"
    return f"{int(seconds)} s ago"


_COMMAND = 60  # columns for the holder's command

# Fields that the five lines show; the further lines leave them out.
_SAID = (
    "locked", "pid", "timestamp", "tag", "state", "alive", "verdict", "evidence", "reason",
    "age", "host", "command", "waiting", "owner",
)  # fmt: skip


def status_lines(
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
