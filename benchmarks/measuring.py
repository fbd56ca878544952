"""Interleaved measuring: many short blocks of every contender in turn, in one run.

A machine has moods.  Contenders that run one after the other meet different ones; contenders
that take turns every few milliseconds meet the same.  So ratios are taken block by block,
against the block of the floor in the same round, and the median of those is reported.  A
block is shorter than the time that a busy scheduler gives a process, so that most of them
run undisturbed.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    # Does so many operations and returns the nanoseconds that they took.
    Loop = Callable[[int], int]
    Kind = Literal["floor", "c", "semlock", "peer"]

FLOOR = "floor"

_BLOCK_NS = 1_000_000
_WARM_UP_NS = 30_000_000
_FEWEST_ROUNDS = 15


def _nothing() -> None:
    pass


@dataclass
class Contender:
    """One way to do the work."""

    key: str
    label: str
    kind: Kind
    loop: Loop
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing
    step: int = 1  # operations that can't be done one by one: those of a batch
    samples: list[float] = field(default_factory=list)  # nanoseconds per operation


@dataclass(frozen=True)
class Spread:
    """A median, and where the middle half of the samples lies."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high)


@dataclass(frozen=True)
class Group:
    """Contenders that did the same work in the same rounds."""

    title: str
    contenders: list[Contender]

    def find(self, key: str) -> Contender | None:
        return next((c for c in self.contenders if c.key == key), None)

    def ratio(self, key: str, against: str = FLOOR) -> Spread | None:
        """Compare two contenders round by round; ``None`` if one of them is missing."""
        one, other = self.find(key), self.find(against)
        if one is None or other is None:
            return None
        return Spread.of([a / b for a, b in zip(one.samples, other.samples, strict=True)])


def _block(contender: Contender, operations: int) -> float:
    contender.before()
    try:
        # One untimed step first: it meets the caches that the others have left behind, and
        # what became due while the others ran.
        contender.loop(contender.step)
        return contender.loop(operations) / operations
    finally:
        contender.after()


def _operations_per_block(contender: Contender) -> int:
    """Warm up, and find out how many operations make a block."""
    operations = contender.step
    spent = 0.0
    while True:
        each = _block(contender, operations)
        spent += each * operations
        if spent >= _WARM_UP_NS:
            steps = round(_BLOCK_NS / each / contender.step)
            return max(1, steps) * contender.step
        operations = min(operations * 2, 1 << 20)


def measure(
    title: str, contenders: list[Contender], seconds: float, *, fewest: int = _FEWEST_ROUNDS
) -> Group:
    """Let the contenders take turns, in a new order each round, for about so many seconds."""
    order = random.Random(len(title))
    sizes = {c.key: _operations_per_block(c) for c in contenders}
    deadline = time.monotonic() + seconds
    rounds = 0
    gc.collect()
    gc.disable()
    try:
        while rounds < fewest or time.monotonic() < deadline:
            for contender in order.sample(contenders, len(contenders)):
                contender.samples.append(_block(contender, sizes[contender.key]))
            rounds += 1
            gc.collect(0)
    finally:
        gc.enable()
    return Group(title, contenders)
