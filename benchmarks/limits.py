"""Why bars are not met: what the measurements show to be in the way."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.results import Judged

_USED_AGAIN = """
*Used again*: most of the time is that of the system calls alone, as the C loop of them shows.
Those beyond a plain file show that the descriptor and the user are still the same, that the
path names the same file, and that only it is removed. The rest is two calls from Python into C.
"""
_NOTHING_KEPT = """
*Nothing kept*: a new file needs its own proof of life and, on disk, its boot mark before it
gets its name. On tmpfs the C loop of these system calls is already over the bar.
"""
_ON_DISK = """
*Faster than FileLock, on disk*: the bar asks for less time than the C loop of the system calls
needs.
"""
_IMPORT = """
*Import*: what a lock needs when it waits is loaded with it. So nothing is imported between a
wake and its use, after chroot() or without a free descriptor.
"""
_FILELOCK = """
*Faster than filelock*: filelock looks every 50 ms, so its median is about 25 ms. A 300th of
that is 83 µs, less than a wake by flock(2) on the holder's own file needs here.
"""
_TASK = """
*Memory of a task*: a fifth is asyncio's own task and future. The others are the lock, its wait,
and the generators that stand still meanwhile.
"""
_LONGEST = """
*The longest round* of a poll: each judges a bounded share of the holders, so with pauses the
longest makes 1.4 times as many system calls as the mean. The rest is what else the processor did
meanwhile. So the longest of C's rounds that take as long stands beside it.
"""
_KILLED = """
*Holder killed*: the 13 system calls that prove a death and remove exactly that file, and the
kernel's disposal of the file, take more than half as long as taking a free lock.
"""
# By a pattern of a row and its bar.  The first one that fits counts.
_REASONS = {
    r"the longest round": _LONGEST,
    r"killed, until all are taken": _KILLED,
    r"used again .* C floor": _USED_AGAIN,
    r"nothing kept": _NOTHING_KEPT,
    r"by default .* FileLock": _ON_DISK,
    r"import semlock": _IMPORT,
    r"faster than filelock": _FILELOCK,
    r"memory of each, with its task": _TASK,
}


def limits(judged: Sequence[Judged]) -> Iterator[str]:
    """Give a paragraph for each known reason why some of these rows are not met."""
    rows = [f"{row.what} {row.bar}" for row in judged if not row.met]
    reasons = dict.fromkeys(reason for row in rows if (reason := _reason(row)))
    if reasons:
        yield ""
        yield "What limits rows that are not met:"
        yield ""
    for reason in reasons:
        text = " ".join(reason.split())
        yield textwrap.fill(text, 98, initial_indent="- ", subsequent_indent="  ")


def _reason(row: str) -> str | None:
    return next(
        (reason for pattern, reason in _REASONS.items() if re.search(pattern, row)), None
    )
