"""Who holds a lock by one object, for stores that have no C structure."""

from __future__ import annotations

from semlock._core import FAIR

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engines.ticket import Ticket


class Hold:
    """A ``Hold`` of ``_stores/store.py``: owner, depth, and what counts wins and releases."""

    __slots__ = (
        "by_object",
        "depth",
        "endings",
        "held",
        "owner",
        "reentrant",
        "serial",
        "ticket",
        "turns",
    )

    def __init__(self, *, reentrant: bool) -> None:
        self.owner = self.depth = self.held = self.serial = self.endings = 0
        self.reentrant = int(reentrant)
        self.by_object = 0
        self.turns = FAIR
        self.ticket: Ticket | None = None  # the entry that holds

    def win(self, ticket: Ticket, owner: int) -> None:
        """Note the win of an entry; an interrupt leaves it noted, or not begun.

        The serial number comes last: a call that sees it raised sees all of the win.
        """
        before = self.serial
        try:
            self.ticket = ticket
            self.depth = self.held = 1
            self.owner = owner
            self.serial = before + 1
        except BaseException:
            if self.serial == before:
                self.depth = self.held = self.owner = 0
            raise

    def nest(self) -> None:
        """Note one more acquisition by the thread that holds."""
        before, depth = self.serial, self.depth
        try:
            self.depth = depth + 1
            self.serial = before + 1
        except BaseException:
            if self.serial == before:
                self.depth = depth
            raise

    def unnest(self) -> None:
        """Note a release that is not the last one."""
        before, depth = self.endings, self.depth
        try:
            self.depth = depth - 1
            self.endings = before + 1
        except BaseException:
            if self.endings == before:
                self.depth = depth
            raise

    def end(self) -> None:
        """Note the last release."""
        before, owner = self.endings, self.owner
        try:
            self.depth = self.owner = self.held = 0
            self.endings = before + 1
        except BaseException:
            if self.endings == before:
                self.depth, self.owner, self.held = 1, owner, 1
            raise
