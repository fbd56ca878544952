"""Files, records, processes and policies.  The only room that calls C; it knows no lock object.

Its own names are what a store's calls say, as numbers: the same ones that the core uses for files.
``csrc/semlock.h`` tells for each call of the core which of them it gives.  What is below zero is
the negative number of an operating system's error.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Loads what the lock systems claim, which this room may not import: the package appends it.
claims: list[Callable[[], ModuleType]] = []

OK = 0
HELD = 1  # held by another, whose life was not asked about
LOOK = 2  # held, and the time has come to judge the holder
MINE = 3  # held by this thread through this object, which is not reentrant
FREE = 4  # there is nothing to release, or nothing to wait for any more
LOST = 5  # it was held here, and another program took it away
CHANGED = 6
GUARDED = 7  # another process keeps it locked for a moment, and it can't be changed now
ALIVE = 8
NESTED = 9  # acquired again by its holder, or released but not for the last time
KEPT = 10  # released, and something is kept that makes the next acquire cheap
TURN = 11  # free, and others come first
ARMED = 12
BLIND = 13
TIME = 14
FORKED = 15  # this object's state is that of the parent process
OTHER_THREAD = 16  # another thread holds by this object, so this one can't release it
RACED = 17

# Whether waiters stand in a queue, and when those who try make way for them.
NO_TURNS = 0
TAKE_TURNS = 1
FAIR = 2

# How much of its holder's life and death the core judges itself.
BY_CALLER = 0
BY_WITNESS = 1
BY_PROOF = 2
