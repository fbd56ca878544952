"""What a space asks of an engine: a line of entries for each name, and news about them.

Each request for a lock is an entry, named by a token of its own.  The entries of a name stand in
the order in which the engine took them in, and each has a number that is larger than
that of all entries of this name before it, for ever: the fence.  An entry has ``room``: it holds
only while at most so many entries hold.

====================  ==================
kind of lock          room of its entries
====================  ==================
a lock, a writer      1
one of n slots        n
a reader              ``READERS``
====================  ==================

The entries that hold are the longest beginning of the line for which that is true.  An entry
stays as long as its lease is renewed, or as long as the connection lives that is its witness.

An engine has no loop that waits, no thread and no lock object.  ``_engines/keeper.py`` renews and
hears for all locks of a space in one thread; ``_engines/wait.py`` waits.  Each call but ``hear``
ends within ``within`` seconds.  It raises ``Away`` if it is not known what was done: the call is
then repeated with the same token, and must not do anything twice.  It raises ``Refused`` if to
repeat it makes no sense.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# An entry with this room holds beside any number of others.
READERS = 2**31 - 1

# The state of an entry.
HOLDS = 1
WAITS = 2
GONE = 3  # there is no such entry: it ended, was removed, or was never taken in


class Away(Exception):  # noqa: N818 - a state of the engine, and not a mistake
    """The engine gave no answer in time, so it is not known what was done."""


class Refused(Exception):  # noqa: N818
    """The engine answers, and can't do this: a wrong password, no permission, a full disk."""


class Place(NamedTuple):
    """What the engine says of one entry."""

    state: int
    fence: int = 0  # its number; 0 if it is gone
    again: float | None = None  # when it waits: ask again after so many seconds without news
    # From when on its lease counts, by ``clock.now``, if that is earlier than the request.
    since: float | None = None


class Entry(NamedTuple):
    """One entry of a line, as others see it."""

    token: str
    fence: int
    room: int
    record: bytes  # what the holder says of itself, in semlock's text format
    holds: bool
    left: float | None  # seconds until its lease ends; None if a connection is its witness


class Fact(NamedTuple):
    """One line of ``semlock doctor``: what it is about, how it is, and whether that is well."""

    what: str
    value: str
    well: bool = True
    advice: str = ""  # what follows if it is not well
    promised: bool = False  # whether it says what is guaranteed, and not what was found


class Engine(Protocol):
    """A connection to an engine.  All calls may come from several threads at once.

    It is made by the function ``connect(address, *, ttl, client, within)`` of its module, which
    raises ``Away`` or ``Refused``.  ``client`` is a name of this space alone, for its news.
    """

    def enter(
        self, name: str, token: str, record: bytes, room: int, *, waits: bool, within: float
    ) -> Place:
        """Put an entry at the end of a line, or ask for one that is there; extend its lease.

        If it can't hold at once and ``waits`` is false, nothing of it stays, and the answer is
        ``GONE``.  Must be safe to repeat: an entry that is there keeps its number.
        """

    def leave(self, name: str, token: str, *, within: float) -> bool:
        """Take an entry out, and tell those that hold for it now; ``False`` if it was gone."""

    def renew(self, entries: Sequence[tuple[str, str]], *, within: float) -> list[Place]:
        """Extend the leases of entries (name and token), and say where each stands.

        It also takes out entries before them whose lease is over, and tells those that hold.
        """

    def hear(self, seconds: float) -> Sequence[tuple[str, int]] | None:
        """Wait at most so long for news: the tokens that hold now, each with its number.

        The number is 0 if only a question can tell how an entry stands.  ``None`` if news may
        have been lost: all entries are renewed then.  Only the thread of the space calls it.
        """

    def line(self, name: str, *, within: float) -> list[Entry]:
        """List the entries of a name that live, in order."""

    def names(self, *, within: float) -> list[str]:
        """List the names that have entries."""

    def remove(self, name: str, token: str, *, within: float) -> bool:
        """Take out another client's entry, by force: as ``leave``; its owner is told.

        The owner hears of its token with the number 0, asks, and finds it gone.
        """

    def facts(self, *, within: float) -> list[Fact]:
        """Say what is known of the server, and what it guarantees: see ``_engines/facts.py``."""

    def close(self) -> None:
        """Close the connections, which ends a ``hear`` that another thread is in."""


_time: Any = time
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Give the seconds since some time in the past."""
    seconds: float = time.monotonic() if _BOOTTIME is None else _time.clock_gettime(_BOOTTIME)
    return seconds
