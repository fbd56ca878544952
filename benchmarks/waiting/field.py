"""Who takes part in a run, where their files are, and why somebody does not."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.waiting.crew import WorkerError
from benchmarks.waiting.locks import ENTRANTS, absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from benchmarks.waiting.crew import Crew, Nursery
    from benchmarks.waiting.locks import Entrant
    from benchmarks.waiting.plan import Plan


class Field:
    """What all scenarios of a run share."""

    def __init__(self, nursery: Nursery, root: str, library: str, plan: Plan) -> None:
        self.nursery = nursery
        self.library = library
        self.plan = plan
        self.chance = random.Random(7570)
        self.notes: list[str] = []
        self._begin = time.monotonic()
        self._root = root
        self._count = 0

    def say(self, text: str) -> None:
        """Tell who watches what is going on."""
        passed = time.monotonic() - self._begin
        print(f"{passed:4.0f} s  {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Write down, once, what the reader of the results has to know."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"note: {text}")

    def path(self) -> str:
        """Give a path for a lock, alone in a directory."""
        return self.paths(1)[0]

    def paths(self, count: int) -> list[str]:
        """Give the paths of many locks in one directory."""
        self._count += 1
        directory = os.path.join(self._root, f"waiting-{self._count:05}")
        os.mkdir(directory)
        return [os.path.join(directory, f"{i:05}.lock") for i in range(count)]

    def entrants(self, keys: Iterable[str]) -> list[Entrant]:
        """Give those who can take part."""
        found = []
        for key in keys:
            entrant = ENTRANTS[key]
            reason = entrant.missing()
            if reason:
                self.note(f"{entrant.label} is left out: {reason}")
            else:
                found.append(entrant)
        return found

    def has(self, name: str) -> bool:
        """Say whether semlock has something of this name; if not, note it."""
        reason = absent(name)
        if reason:
            self.note(f"semlock.{name} is left out: {reason}")
        return not reason

    def hold_for(self, entrant: Entrant) -> float:
        """Draw how long a lock is held while somebody waits for it."""
        if entrant.pause:
            return 0.003 + entrant.pause * self.chance.random()
        # From 3 to 30 ms: the short ones in plenty, the long ones to meet what has dozed off.
        return 0.003 * 10 ** self.chance.random()

    @contextlib.contextmanager
    def guarded(self, what: str, crew: Crew | None = None) -> Iterator[None]:
        """Note what fails inside of the block, and go on with fresh workers."""
        try:
            yield
        except WorkerError as error:
            self.note(f"{what} was broken off: {error}")
            if crew is not None:
                crew.renew()

    def in_turns(
        self,
        entrants: list[Entrant],
        rounds: int,
        title: str,
        crew: Crew | None,
        block: Callable[[Entrant], None],
    ) -> None:
        """Give each a block in every round, in a new order; who fails is out of it."""
        left = list(entrants)
        for _ in range(rounds):
            for entrant in self.chance.sample(left, len(left)):
                failures = len(self.notes)
                with self.guarded(f"{title} with {entrant.label}", crew):
                    block(entrant)
                if len(self.notes) > failures:
                    left.remove(entrant)
