"""One run of everything about waiting."""

from __future__ import annotations

import resource
import tempfile
from typing import TYPE_CHECKING

from benchmarks import facts
from benchmarks.floor import Floor
from benchmarks.waiting import contention, crowds, handover
from benchmarks.waiting.crew import Nursery
from benchmarks.waiting.field import Field
from benchmarks.waiting.results import WaitingResults

if TYPE_CHECKING:
    from benchmarks.waiting.plan import Plan

_DESCRIPTORS = 16_384


def raise_the_limit() -> None:
    """Allow the ten thousand descriptors of as many held locks, here and in the workers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _DESCRIPTORS:
        return
    limit = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def measure_waiting(memory: str, plan: Plan) -> WaitingResults:
    """Measure in this directory in memory."""
    run = facts.Run()
    raise_the_limit()
    found = WaitingResults()
    with tempfile.TemporaryDirectory() as build, Nursery() as nursery:
        field = Field(nursery, memory, Floor(build).path, plan)
        found.handover = handover.handovers(field)
        found.kill = handover.kills(field)
        found.idle = crowds.idle(field)
        found.contests, found.rushes = contention.contests(field)
        found.any = handover.any_of_many(field)
        found.costs = crowds.together(field)
        found.tasks = crowds.tasks(field)
        found.notes = field.notes
    samples = ", ".join(f"{len(w.every)} ({k})" for k, w in found.handover.items())
    found.facts = run.facts(memory, Samples=samples)
    return found
