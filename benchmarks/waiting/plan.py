"""How long everything takes: enough for a page, or only a look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Rounds, and seconds of each block within a round."""

    handover_rounds: int
    handover: float
    kill_rounds: int
    kill: float
    idle_windows: int
    idle: float
    settle: float  # pauses that grow have grown by then
    contention_rounds: int
    contention: float  # each lock held for a moment
    rush: float  # each lock held for no time
    any_rounds: int
    any: float
    costs: float
    together: tuple[int, ...]
    tasks_pause: float


FULL = Plan(
    handover_rounds=10,
    handover=0.5,
    kill_rounds=5,
    kill=0.8,
    idle_windows=4,
    idle=1.0,
    settle=1.0,
    contention_rounds=3,
    contention=1.2,
    rush=0.4,
    any_rounds=10,
    any=0.5,
    costs=2.0,
    together=(10, 1000, 10_000),
    tasks_pause=0.003,
)

QUICK = Plan(
    handover_rounds=3,
    handover=0.25,
    kill_rounds=2,
    kill=0.25,
    idle_windows=2,
    idle=0.3,
    settle=0.4,
    contention_rounds=1,
    contention=0.4,
    rush=0.15,
    any_rounds=3,
    any=0.3,
    costs=0.3,
    together=(10, 1000),
    tasks_pause=0.001,
)
