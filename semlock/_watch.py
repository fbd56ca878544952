"""``semlock watch``: a table of the locks in a directory that keeps itself up to date.

At a terminal it can be moved through, a lock can be looked at closely, and broken after a
question.  What is removed then is the lock that was shown, and no other.
"""

from __future__ import annotations

import os
import sys
import time
import unicodedata

from semlock._cli.looking import is_lock, lock_files
from semlock._cli.output import as_lines, describe
from semlock._cli.systems import Eye
from semlock._errors import LockPathError, SemlockError
from semlock._queues import waiters
from semlock._records import printable
from semlock._status import remove

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

    from semlock._status import LockStatus, StrPath

_HEAD = ("LOCK", "HOLDER", "TAG", "AGE", "VERDICT", "WAITING", "TTL")
_NUMBERS = ("AGE", "WAITING", "TTL")
# What gives way first when the terminal is narrow, and how narrow it may become.
_GIVES_WAY = (("TAG", 6), ("LOCK", 12), ("HOLDER", 8))

_HELP = "↑ ↓ select   i inspect   b break   q quit"
_BOLD, _REVERSE, _DIM, _PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[2m", "\x1b[0m"
_COLOURS = {"alive": "\x1b[32m", "dead": "\x1b[31m", "unknown": "\x1b[33m"}
_STYLES = {"alive": "green", "dead": "red", "unknown": "yellow"}


class Row:
    """One lock of the table."""

    __slots__ = ("dialect", "found", "waiting")

    def __init__(self, found: LockStatus, dialect: str | None) -> None:
        self.found = found
        self.dialect = dialect
        self.waiting = waiters(found.path, found.info)

    @property
    def cells(self) -> tuple[str, ...]:
        """What the columns say."""
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
                os.path.basename(found.path),
                holder,
                tag,
                "" if found.age is None else _time(found.age),
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
        return _time(left) if left >= 0 else "over"


def _host() -> str:
    from semlock._identity import this_process  # noqa: PLC0415 - read once it is needed

    return this_process().host


def _time(seconds: float) -> str:
    """Write a duration in two parts at most: 2 h 05 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, size, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {lower}"
    return f"{whole // 60} min {whole % 60:02d} s"


class Directory:
    """The locks of a directory, looked at again and again."""

    def __init__(self, directory: StrPath, dialect: str | None = None) -> None:
        self.path = os.path.abspath(os.fsdecode(directory))
        self._eye = Eye(dialect)
        # Files that were found to be no locks, and need not be read until they change.
        self._others: dict[str, tuple[int, int]] = {}

    def rows(self) -> list[Row]:
        """Look at all locks that are held now."""
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
                continue  # no lock, gone meanwhile, or not ours to see
            if status.state == "free":
                continue
            if is_lock(status, self._eye.seen):
                found.append(Row(status, self._eye.seen))
            else:
                others[path] = identity
        self._others = others
        return found


# -------------------------------------------------------------------- drawing


def _wide(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _fit(text: str, width: int, *, right: bool = False) -> str:
    """Make a text exactly so wide."""
    room = width - _wide(text)
    if room < 0:
        while _wide(text) > width - 1:
            text = text[:-1]
        text += "…"
        room = width - _wide(text)
    return " " * room + text if right else text + " " * room


def _widths(table: list[tuple[str, ...]], width: int | None) -> list[int]:
    widths = [max(_wide(row[column]) for row in table) for column in range(len(_HEAD))]
    if width is not None:
        for name, least in _GIVES_WAY:
            column = _HEAD.index(name)
            over = sum(widths) + 2 * (len(widths) - 1) - width
            if over > 0:
                widths[column] = max(min(widths[column], least), widths[column] - over)
    return widths


def lines(rows: list[Row], width: int | None = None, selected: int | None = None) -> list[str]:
    """Write the table; with colours for a terminal of so many columns."""
    table = [_HEAD, *(row.cells for row in rows)]
    widths = _widths(table, width)
    written = []
    for index, cells in enumerate(table):
        parts = [
            _fit(cell, wide, right=name in _NUMBERS)
            for name, cell, wide in zip(_HEAD, cells, widths, strict=True)
        ]
        line = "  ".join(parts)
        if width is None:
            written.append(line.rstrip())
            continue
        line = _fit(line, width)
        if index == 0:
            line = f"{_BOLD}{line}{_PLAIN}"
        elif index - 1 == selected:
            line = f"{_REVERSE}{line}{_PLAIN}"
        else:
            colour = _COLOURS.get(cells[4].partition(",")[0], "")
            line = line.replace(parts[4], f"{colour}{parts[4]}{_PLAIN}", 1)
        written.append(line)
    return written


def _rich_lines(rows: list[Row], width: int, selected: int | None) -> list[str] | None:
    """Write the table with Rich, if that is there."""
    try:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - an extra
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return None
    from io import StringIO  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name, wide in zip(
        _HEAD, _widths([_HEAD, *(row.cells for row in rows)], width - 8), strict=True
    ):
        justify: Any = "right" if name in _NUMBERS else "left"
        table.add_column(name, width=wide, justify=justify, no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(rows):
        cells = [Text(cell) for cell in row.cells]
        cells[4].stylize(_STYLES.get(row.found.verdict or "", ""))
        cells[2].stylize("italic")
        table.add_row(*cells, style="reverse" if index == selected else "")
    out = StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="standard").print(table)
    return [line for line in out.getvalue().split("\n") if line.strip()]


def closely(row: Row) -> list[str]:
    """Write all that is known of one lock, and who waits for it."""
    text = [printable(line) for line in as_lines(describe(row.found, row.dialect))]
    for number, place in enumerate(row.waiting, 1):
        text.append(f"waiting {number}: {printable(place.holder)}")
    return text


# -------------------------------------------------------------------- the terminal


class Screen:
    """What is shown and what the keys do; it knows nothing of a terminal."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._selected: str | None = None
        self._rows: list[Row] = []
        self._closely: str | None = None
        self._asked: Row | None = None
        self._message = ""
        self.over = False

    def look(self) -> None:
        """Look at the locks again."""
        self._rows = self._directory.rows()

    def _index(self) -> int | None:
        """Find the selected lock, which may have moved, or the first one if it is gone."""
        for index, row in enumerate(self._rows):
            if row.found.path == self._selected:
                return index
        return 0 if self._rows else None

    def key(self, key: str) -> None:
        """Do what a key stands for."""
        if self._asked is not None:
            row, self._asked = self._asked, None
            self._message = self._break(row) if key == "y" else "Left alone."
            self.look()
            return
        self._message = ""
        index = self._index()
        if self._closely is not None and key != "b":
            self._closely = None
        elif key in ("q", "\x03", "\x1b", ""):
            self.over = True
        elif index is None:
            pass
        elif key in ("up", "k", "down", "j"):
            step = -1 if key in ("up", "k") else 1
            index = min(max(0, index + step), len(self._rows) - 1)
            self._selected = self._rows[index].found.path
        elif key in ("i", "\r", "\n"):
            self._selected = self._closely = self._rows[index].found.path
        elif key == "b":
            # What is shown now is what may be removed, whatever is there when the answer comes.
            self._asked = self._rows[index]

    @staticmethod
    def _break(row: Row) -> str:
        found = row.found
        try:
            gone = remove(found.path, only_if=found, force=True)
        except (SemlockError, OSError) as error:
            return str(error)
        return f"{found.path} was {'removed' if gone else 'released meanwhile'}."

    def draw(self, width: int, height: int) -> list[str]:
        """Give the lines of the screen."""
        index = self._index()
        now = time.strftime("%H:%M:%S")
        title = _fit(printable(self._directory.path), max(1, width - len(now) - 1))
        text = [f"{_BOLD}{title}{_PLAIN} {now}", ""]
        if self._closely is not None and index is not None:
            text += [_fit(line, width) for line in closely(self._rows[index])]
        elif not self._rows:
            text.append("No lock is held here.")
        else:
            table = _rich_lines(self._rows, width, index) or lines(self._rows, width, index)
            head = len(table) - len(self._rows)
            room = max(1, height - len(text) - head - 2)
            first = max(0, (index or 0) - room + 1)
            text += table[:head] + table[head + first : head + first + room]
        foot = self._foot()
        room = max(0, height - len(foot))
        text = text[:room] + [""] * (room - len(text))
        return text + [_fit(line, width) for line in foot]

    def _foot(self) -> list[str]:
        if self._asked is not None:
            found = self._asked.found
            return [
                f"{printable(found.path)} is held by {found.holder}",
                "Remove it? A holder that lives goes on as if it held the lock. [y/n]",
            ]
        if self._message:
            return [printable(self._message), _HELP]
        return ["any key: back   b break" if self._closely is not None else _HELP]


_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}


def keys_of(text: str) -> list[str]:
    """Tell the keys in what came from a terminal; an unknown sequence is none of them."""
    keys = []
    while text:
        if text[:2] in ("\x1b[", "\x1bO"):
            end = 2
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            key, text = text[: end + 1], text[end + 1 :]
            if key in _ARROWS:
                keys.append(_ARROWS[key])
        else:
            keys.append(text[0])
            text = text[1:]
    return keys


def watch(
    directory: StrPath,
    *,
    interval: float = 1.0,
    once: bool = False,
    dialect: str | None = None,
    out: TextIO | None = None,
) -> int:
    """Show the locks of a directory until ``q``; without a terminal, once.

    ``OSError`` if the directory can't be read.  Returns 0.
    """
    out = sys.stdout if out is None else out
    seen = Directory(directory, dialect)
    if once or not _is_terminal(out):
        for line in lines(seen.rows()):
            out.write(f"{_for(out, line)}\n")
        out.flush()
        return 0
    _run(Screen(seen), interval, out)
    return 0


def _is_terminal(out: TextIO) -> bool:
    if sys.platform == "win32" or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return out.isatty() and sys.stdin is not None and sys.stdin.isatty()


def _for(out: TextIO, line: str) -> str:
    """Replace what the terminal's encoding hasn't."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _run(screen: Screen, interval: float, out: TextIO) -> None:
    screen.look()  # an error comes before the terminal is changed
    if sys.platform != "win32":
        import termios  # noqa: PLC0415 - for a terminal
        import tty  # noqa: PLC0415

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        try:
            tty.setcbreak(keyboard)
            out.write("\x1b[?1049h\x1b[?25l")
            _loop(screen, interval, out, lambda seconds: _read(keyboard, seconds))
        finally:
            out.write("\x1b[?25h\x1b[?1049l")
            out.flush()
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _read(keyboard: int, seconds: float) -> list[str]:
    import select  # noqa: PLC0415 - for a terminal

    if not select.select([keyboard], [], [], max(0.0, seconds))[0]:
        return []
    text = os.read(keyboard, 1024).decode("utf-8", "replace")
    return keys_of(text) if text else [""]


def _loop(
    screen: Screen, interval: float, out: TextIO, read: Callable[[float], list[str]]
) -> None:
    due = time.monotonic()
    while not screen.over:
        now = time.monotonic()
        if now >= due:
            screen.look()
            due = now + interval
        try:
            size = os.get_terminal_size(out.fileno())
        except OSError:
            size = os.terminal_size((80, 24))
        # A terminal that doesn't know its size says 0.
        drawn = screen.draw(max(20, size.columns or 80), max(5, size.lines or 24))
        text = "\x1b[K\r\n".join(drawn)
        # Drawn over what was there, so that nothing flickers.
        out.write(f"\x1b[H{_for(out, text)}\x1b[K\x1b[J")
        out.flush()
        for key in read(due - time.monotonic()):
            screen.key(key)
