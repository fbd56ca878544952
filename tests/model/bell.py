"""The model of the bell: is the end of a FIFO's owner told to the one that follows it?

The owner makes the FIFO, opens it for reading and writing, and is gone at any time.  The follower
opens it for reading, asks whether it has a writer, and polls it if so.  What the kernel does is
in ``fs/pipe.c``: poll reports a hang-up if there is no writer and there has been one since the
reader opened the FIFO, or there was one when it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

SLEEPS_ON: Final = "sleeps on"

MADE: Final = "has made it"
OPEN: Final = "has it open"
GONE: Final = "is gone"

START: Final = "begins"
ASKED: Final = "has asked by another descriptor"
OPENED: Final = "has it open to read"
POLLS: Final = "polls"
KNOWS: Final = "knows that it is a dead one's"


class State(NamedTuple):
    """One moment: ``hears`` says whether the end of the last writer will be told."""

    owner: str
    follower: str
    hears: bool


@dataclass(frozen=True)
class Config:
    """Which mechanisms work."""

    asks_after_opening: bool = True


class Bell:
    """The model, for the search."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        """Begin with the FIFO made, and no process that has it open."""
        return State(MADE, START, False)

    def canonical(self, state: State) -> State:
        """Give the state itself: no two are alike."""
        return state

    def successors(self, s: State) -> Iterator[tuple[str, State]]:
        """List every step of the owner and of the follower."""
        if s.owner == MADE:
            # A writer that comes later counts as one that was there since the FIFO was opened.
            hears = s.follower in (OPENED, POLLS)
            yield "owner: open", s._replace(owner=OPEN, hears=hears)
        if s.owner != GONE:
            yield "owner: end", s._replace(owner=GONE)
        if s.follower == START and not self.config.asks_after_opening:
            yield from self._ask(s, ASKED)
        elif s.follower in (START, ASKED):
            now = s._replace(follower=OPENED, hears=s.owner == OPEN)
            yield "follower: open", now
        elif s.follower == OPENED:
            if self.config.asks_after_opening:
                yield from self._ask(s, POLLS)
            else:
                yield "follower: poll", s._replace(follower=POLLS)

    @staticmethod
    def _ask(s: State, then: str) -> Iterator[tuple[str, State]]:
        alive = s.owner == OPEN
        yield "follower: ask", s._replace(follower=then if alive else KNOWS)

    def violation(self, s: State) -> str | None:
        """Find a follower that polls, and will not be told that the owner is gone."""
        if s.follower == POLLS and s.owner == GONE and not s.hears:
            return SLEEPS_ON
        return None
