"""The table of locks that ``list`` and ``watch`` show."""

from __future__ import annotations

import os
import sys
import time

from semlock._cli.columns import (
    BOLD,
    COLOURS,
    GAP,
    PLAIN,
    REVERSE,
    coloured,
    columns_of,
    duration,
    encodable,
    fit,
    layout,
)
from semlock._cli.looking import is_lock, lock_files, name_of
from semlock._cli.output import write
from semlock._cli.systems import Eye
from semlock._core.errors import LockPathError
from semlock._core.folders import waiters
from semlock._core.records import printable
from semlock._core.status import remove

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._cli import Options
    from semlock._core.status import LockStatus, StrPath
    from semlock.systems import System

HEAD = ("LOCK", "HOLDER", "TAG", "AGE", "VERDICT", "WAITING", "TTL")
NUMBERS = ("AGE", "WAITING", "TTL")
VERDICT = HEAD.index("VERDICT")
# Which columns are cut first on a narrow terminal, and down to which width; then which are left
# out.
NARROWS = tuple(
    (HEAD.index(name), least) for name, least in (("TAG", 6), ("LOCK", 12), ("HOLDER", 8))
)
LEAVES = tuple(HEAD.index(name) for name in ("TTL", "WAITING", "TAG", "AGE", "VERDICT"))


class Row:
    """One lock of the table."""

    __slots__ = ("found", "name", "system", "waiting")

    def __init__(
        self,
        found: LockStatus,
        system: System | None,
        name: str | None = None,
        waiting: Sequence[Any] | None = None,
    ) -> None:
        self.found = found
        self.system = system
        self.name = name_of(found.path) if name is None else name
        self.waiting = waiters(found.path, found.info) if waiting is None else waiting

    @property
    def cells(self) -> tuple[str, ...]:
        """Give the text of each column."""
        found, info = self.found, self.found.info
        holder, tag = "?", ""
        if info is not None:
            holder = info.holder.removeprefix("process ")
            holder += f" on {info.host}" if info.host and info.host != _host() else ""
            tag = info.tag or ""
        verdict: str = found.verdict or ""
        if found.reason is not None and verdict != "dead":
            verdict = f"{verdict}, stale"
        return tuple(
            printable(cell)
            for cell in (
                # Before its width is known: bytes that are no UTF-8 as \xff.
                os.fsencode(self.name).decode("utf-8", "backslashreplace"),
                holder,
                tag,
                "" if found.age is None else duration(found.age),
                verdict,
                str(len(self.waiting) or ""),
                self._left(),
            )
        )

    def _left(self) -> str:
        info = self.found.info
        ttl = getattr(info, "ttl", None)
        if ttl is None or info is None or info.timestamp is None:
            return ""
        left = info.timestamp + ttl - time.time()
        return duration(left) if left >= 0 else "over"


def _host() -> str:
    from semlock._core.identity import this_process  # noqa: PLC0415 - read once it is needed

    return this_process().host


def show(found: list[Row], options: Options) -> None:
    """Write a table of locks for people, if there are any."""
    if found:
        colour = coloured(options.color, sys.stdout)
        for line in lines(found, columns_of(sys.stdout), colour=colour, full=False):
            write(encodable(line))


class Directory:
    """The locks of a directory, read again at each refresh."""

    def __init__(self, directory: StrPath, dialect: str | None = None) -> None:
        self.path = os.path.abspath(os.fsdecode(directory))
        self._eye = Eye(dialect)
        # Files that are no locks: not read again until they change.
        self._others: dict[str, tuple[int, int]] = {}

    @staticmethod
    def remove(found: LockStatus) -> LockStatus | None:
        """Remove exactly the lock that was shown."""
        return remove(found.path, only_if=found, force=True)

    def rows(self) -> list[Row]:
        """Give a row for each lock that is held."""
        found = []
        others: dict[str, tuple[int, int]] = {}
        for path in lock_files(self.path):
            try:
                seen = os.stat(path, follow_symlinks=False)
                identity = (seen.st_ino, seen.st_mtime_ns)
                if self._others.get(path) == identity:
                    others[path] = identity
                    continue
                status = self._eye.look(path)
            except (LockPathError, OSError):
                continue  # no lock, gone meanwhile, or not readable
            if status.state == "free":
                continue
            if is_lock(status, self._eye.seen):
                found.append(Row(status, self._eye.seen))
            else:
                others[path] = identity
        self._others = others
        return found


def table_of(rows: list[Row]) -> list[tuple[str, ...]]:
    """Give the cells, with the heads of the columns first."""
    return [HEAD, *(row.cells for row in rows)]


def widths(
    table: list[tuple[str, ...]], width: int | None, *, drops: bool = False
) -> list[tuple[int, int]]:
    """Choose the columns that are shown, and their widths.

    ``drops`` are left out if they are empty in all rows.
    """
    empty = [c for c in LEAVES if drops and not any(row[c] for row in table[1:])]
    return layout(table, width, NARROWS, LEAVES, empty)


def lines(
    rows: list[Row],
    width: int | None = None,
    selected: int | None = None,
    *,
    colour: bool = True,
    full: bool = True,
) -> list[str]:
    """Write the table with this many columns; ``None``: nothing is cut.

    ``full`` pads the lines to the width, for a screen that is drawn over.
    """
    table = table_of(rows)
    shown = widths(table, width, drops=not full)
    used = sum(wide for _, wide in shown) + len(GAP) * (len(shown) - 1)
    written = []
    for index, cells in enumerate(table):
        parts = {
            column: fit(cells[column], wide, right=HEAD[column] in NUMBERS)
            for column, wide in shown
        }
        is_plain = not colour or index == 0 or index - 1 == selected
        if not is_plain and VERDICT in parts and (width is None or used <= width):
            paint = COLOURS.get(cells[VERDICT].partition(",")[0], "")
            parts[VERDICT] = f"{paint}{parts[VERDICT]}{PLAIN}" if paint else parts[VERDICT]
        line = GAP.join(parts.values())
        if not full:
            line = line.rstrip()
        elif width is not None:
            line = fit(line, width) if used > width else line + " " * (width - used)
        if colour and index == 0:
            line = f"{BOLD}{line}{PLAIN}"
        elif colour and index - 1 == selected:
            line = f"{REVERSE}{line}{PLAIN}"
        written.append(line)
    return written
