"""``watch``: a live table of the locks in a directory.

At a terminal, keys move through it, show one lock in detail, or remove one after a question.
Exactly the lock that was shown is removed.
"""

from __future__ import annotations

import os
import sys
import time

from semlock._cli import rows as table
from semlock._cli.columns import BOLD, PLAIN, asked_columns, coloured, encodable, fit
from semlock._cli.output import as_lines, describe
from semlock._cli.rows import Directory, Row
from semlock._core.errors import SemlockError
from semlock._core.options import checked_pause
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TextIO

    from semlock._core.status import LockStatus, StrPath

    class Source(Protocol):
        """What has the locks that are shown: a directory, or a space on an engine."""

        @property
        def path(self) -> str:
            """Where they are."""

        def rows(self) -> list[Row]:
            """Look at them again."""

        def remove(self, found: LockStatus) -> LockStatus | None:
            """Remove exactly the lock that was shown."""


_HELP = "↑ ↓ select   i inspect   b break   / filter   s sort   ? keys   q quit"
_KEYS = (
    ("↑ ↓  k j", "select a lock"),
    ("PageUp PageDown", "move by a screen"),
    ("Home End", "the first lock, the last one"),
    ("i  Enter", "all that is known about the selected lock"),
    ("b", "break: remove the selected lock, after a question"),
    ("/", "filter by lock, holder or tag; Enter keeps it, Esc ends it"),
    ("s", "sort by the next column: name, age, holder, verdict, waiting"),
    ("?", "these keys"),
    ("q  Esc", "quit"),
)
_STYLES = {"alive": "green", "dead": "red", "unknown": "yellow"}
_ORDERS: tuple[tuple[str, Callable[[Row], Any]], ...] = (
    ("name", lambda row: row.name),
    ("age", lambda row: -(row.found.age or 0.0)),
    ("holder", lambda row: row.cells[1]),
    ("verdict", lambda row: row.cells[table.VERDICT]),
    ("waiting", lambda row: -len(row.waiting)),
)


def _rich_lines(rows: list[Row], width: int, selected: int | None) -> list[str] | None:
    """Write the table with Rich, if it is installed."""
    try:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - an extra
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return None
    from io import StringIO  # noqa: PLC0415

    shown = table.widths(table.table_of(rows), width - 8)
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column, wide in shown:
        name = table.HEAD[column]
        justify: Any = "right" if name in table.NUMBERS else "left"
        drawn.add_column(name, width=wide, justify=justify, no_wrap=True, overflow="ellipsis")
    for index, row in enumerate(rows):
        cells = [Text(cell) for cell in row.cells]
        cells[table.VERDICT].stylize(_STYLES.get(row.found.verdict or "", ""))
        cells[2].stylize("italic")
        drawn.add_row(
            *(cells[column] for column, _ in shown),
            style="reverse" if index == selected else "",
        )
    out = StringIO()
    Console(file=out, width=width, force_terminal=True, color_system="standard").print(drawn)
    return [line for line in out.getvalue().split("\n") if line.strip()]


def closely(row: Row) -> list[str]:
    """Write everything known about one lock, and its waiters."""
    text = [printable(line) for line in as_lines(describe(row.found, row.system))]
    for number, place in enumerate(row.waiting, 1):
        text.append(f"waiting {number}: {printable(place.holder)}")
    return text


class Screen:
    """What is shown, and what the keys do; it knows no terminal."""

    def __init__(self, source: Source, *, colour: bool = True) -> None:
        self._source = source
        self._colour = colour
        self._selected: str | None = None
        self._all: list[Row] = []
        self._rows: list[Row] = []
        self._closely: str | None = None
        self._asked: Row | None = None
        self._message = ""
        self._filter = ""
        self._types = False  # keys are typed into the filter
        self._keys = False  # the list of keys is shown
        self._order = 0
        self._page = 1
        self.over = False

    def look(self) -> None:
        """Read the locks again."""
        self._all = self._source.rows()
        self._choose()

    def _choose(self) -> None:
        """Apply the filter and the order."""
        wanted = self._filter.casefold()
        self._rows = [
            row
            for row in self._all
            if not wanted or any(wanted in cell.casefold() for cell in row.cells[:3])
        ]
        self._rows.sort(key=lambda row: row.name)
        self._rows.sort(key=_ORDERS[self._order][1])

    def _index(self) -> int | None:
        """Give the index of the selected lock, or 0 if it is gone."""
        for index, row in enumerate(self._rows):
            if row.found.path == self._selected:
                return index
        return 0 if self._rows else None

    def key(self, key: str) -> None:
        """Handle a key."""
        if self._asked is not None:
            row, self._asked = self._asked, None
            self._message = self._break(row) if key == "y" else "Left alone."
            self.look()
            return
        self._message = ""
        index = self._index()
        if key == "\x03":
            self.over = True
        elif self._types:
            self._type(key)
        elif self._keys:
            self._keys = False
        elif self._closely is not None and key != "b":
            self._closely = None
        elif key == "\x1b" and self._filter:
            self._filter = ""
            self._choose()
        elif key in ("q", "\x1b", ""):
            self.over = True
        elif key == "?":
            self._keys = True
        elif key == "/":
            self._types = True
        elif key == "s":
            self._order = (self._order + 1) % len(_ORDERS)
            self._choose()
        elif index is not None:
            self._act(key, index)

    def _act(self, key: str, index: int) -> None:
        """Handle a key for the selected lock."""
        last = len(self._rows) - 1
        moves = {
            "up": index - 1, "k": index - 1, "down": index + 1, "j": index + 1,
            "pageup": index - self._page, "pagedown": index + self._page, "home": 0, "end": last,
        }  # fmt: skip
        if key in moves:
            self._selected = self._rows[min(max(0, moves[key]), last)].found.path
        elif key in ("i", "\r", "\n"):
            self._selected = self._closely = self._rows[index].found.path
        elif key == "b":
            # Only this instance will be removed, whatever is there when the answer comes.
            self._asked = self._rows[index]

    def _type(self, key: str) -> None:
        if key in ("\r", "\n", ""):
            self._types = False
        elif key == "\x1b":
            self._types, self._filter = False, ""
        elif key in ("\x7f", "\b"):
            self._filter = self._filter[:-1]
        elif key.isprintable() and len(key) == 1:
            self._filter += key
        self._choose()

    def _break(self, row: Row) -> str:
        found = row.found
        try:
            gone = self._source.remove(found)
        except (SemlockError, OSError) as error:
            return str(error)
        return f"{found.path} was {'removed' if gone else 'released meanwhile'}."

    def draw(self, width: int, height: int) -> list[str]:
        """Give the lines of the screen."""
        index = self._index()
        foot = self._foot()
        room = max(1, height - len(foot) - 2)
        shown = ""
        if self._keys:
            text = [fit(f"  {keys.ljust(18)}{meaning}", width) for keys, meaning in _KEYS]
        elif self._closely is not None and index is not None:
            text = [fit(line, width) for line in closely(self._rows[index])]
        elif not self._rows:
            text = [self._nothing()]
        else:
            text, shown = self._table(width, room, index or 0)
        text = [*self._title(width, shown), "", *text][: room + 2]
        text += [""] * (height - len(foot) - len(text))
        return [*text[: max(0, height - len(foot))], *(fit(line, width) for line in foot)]

    def _nothing(self) -> str:
        if self._all:
            return f"No lock matches {printable(self._filter)!r}. Esc shows all."
        return "No lock is held here."

    def _table(self, width: int, room: int, index: int) -> tuple[list[str], str]:
        """Give the table as far as there is room, and the range of rows that is shown."""
        drawn = _rich_lines(self._rows, width, index) if self._colour else None
        text = drawn or table.lines(self._rows, width, index, colour=self._colour)
        head = len(text) - len(self._rows)
        self._page = max(1, room - head)
        first = max(0, index - self._page + 1)
        last = min(first + self._page, len(self._rows))
        part = f"{first + 1}-{last} of {len(self._rows)}"
        return text[:head] + text[head + first : head + last], part

    def _title(self, width: int, shown: str) -> list[str]:
        told = [shown] if shown else []
        if self._order:
            told.append(f"by {_ORDERS[self._order][0]}")
        if self._filter and not self._types:
            told.append(f"/{printable(self._filter)}")
        told.append(time.strftime("%H:%M:%S"))
        right = "  ".join(told)
        if len(right) > width - 12:
            right = right[-8:]
        title = fit(printable(self._source.path), max(1, width - len(right) - 1))
        return [f"{BOLD}{title}{PLAIN} {right}" if self._colour else f"{title} {right}"]

    def _foot(self) -> list[str]:
        if self._asked is not None:
            found = self._asked.found
            return [
                f"{printable(found.path)} is held by {found.holder}",
                "Remove it? A living holder learns of it only at its next check. [y/n]",
            ]
        if self._types:
            return [f"/{printable(self._filter)}█"]
        if self._message:
            return [printable(self._message), _HELP]
        if self._keys or self._closely is not None:
            return ["any key: back" + ("   b break" if self._closely is not None else "")]
        return [_HELP]


_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b[7~": "home", "\x1b[8~": "end",
}  # fmt: skip


def keys_of(text: str) -> list[str]:
    """Split input of a terminal into keys; unknown sequences are dropped."""
    keys = []
    while text:
        if text[:2] in ("\x1b[", "\x1bO"):
            end = 2
            while end < len(text) and not "@" <= text[end] <= "~":
                end += 1
            key, text = text[: end + 1], text[end + 1 :]
            if key in _SEQUENCES:
                keys.append(_SEQUENCES[key])
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
    color: str = "auto",
    out: TextIO | None = None,
) -> int:
    """Show the locks of a directory until ``q``; without a terminal, once.

    ``OSError`` if the directory can't be read.  Returns 0.
    """
    return show(
        Directory(directory, dialect), interval=interval, once=once, color=color, out=out
    )


def show(
    seen: Source,
    *,
    interval: float = 1.0,
    once: bool = False,
    color: str = "auto",
    out: TextIO | None = None,
) -> int:
    """Show some locks until ``q``; without a terminal, once."""
    interval = checked_pause(interval, "interval")
    out = sys.stdout if out is None else out
    colour = coloured(color, out)
    if once or not _is_terminal(out):
        rows = seen.rows()
        for line in table.lines(rows, _page_width(out), colour=colour, full=False):
            out.write(f"{encodable(line, out)}\n")
        out.flush()
        return 0
    _run(Screen(seen, colour=colour), interval, out)
    return 0


def _page_width(out: TextIO) -> int:
    try:
        return asked_columns() or os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _is_terminal(out: TextIO) -> bool:
    if sys.platform == "win32" or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return out.isatty() and sys.stdin is not None and sys.stdin.isatty()


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
        # A terminal that doesn't know its size reports 0.
        drawn = screen.draw(max(20, size.columns or 80), max(5, size.lines or 24))
        text = "\x1b[K\r\n".join(drawn)
        # Drawn over the last picture, so that nothing flickers.
        out.write(f"\x1b[H{encodable(text, out)}\x1b[K\x1b[J")
        out.flush()
        for key in read(due - time.monotonic()):
            screen.key(key)
