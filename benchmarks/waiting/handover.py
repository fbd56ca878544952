"""From hand to hand: a release, or the death of the holder, until the next one is in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.waiting.crew import Crew
from benchmarks.waiting.locks import ENTRANTS
from benchmarks.waiting.results import Wakes

if TYPE_CHECKING:
    from benchmarks.waiting.crew import Member
    from benchmarks.waiting.field import Field
    from benchmarks.waiting.locks import Entrant

_KILLED = ("semlock", "fair", "own", "c own", "FileLock")
_FEWEST = 3  # of a block, for those who poll at leisure
_ANY = (1, 1000)
# Asking a thousand locks, and watching them, takes longer than one: what is measured begins
# when that is over for both.
_ANY_HOLD = 0.03


def handovers(field: Field) -> dict[str, Wakes]:
    """Measure from the call of release() in one process to the return of acquire() in another."""
    field.say("Hand-over …")
    entrants = field.entrants(ENTRANTS)
    found = {entrant.key: Wakes(entrant) for entrant in entrants}
    with Crew(field.nursery, 2) as crew:

        def block(entrant: Entrant) -> None:
            wakes = found[entrant.key]
            wakes.rounds.append(_handover_block(field, crew.members, entrant, wakes.cpu))

        field.in_turns(entrants, field.plan.handover_rounds, "hand-over", crew, block)
    return _complete(found)


def _complete(found: dict[str, Wakes]) -> dict[str, Wakes]:
    return {key: wakes for key, wakes in found.items() if wakes.rounds}


def _handover_block(
    field: Field, members: list[Member], entrant: Entrant, cpu: list[int]
) -> list[int]:
    holder, waiter = members
    path = field.path()
    for member in members:
        member.ask("open", entrant.key, [path], field.library)
    samples: list[int] = []
    deadline = time.monotonic() + field.plan.handover
    first = True
    while len(samples) < _FEWEST or time.monotonic() < deadline:
        holder.ask("enter", 0)
        waiter.tell("enter", 0)
        left = holder.ask("leave", 0, field.hold_for(entrant))
        entered, spent, _ = waiter.answer()
        waiter.ask("leave", 0)
        if not first:  # which loads what is loaded late
            samples.append(entered - left)
            cpu.append(spent)
        first = False
    return samples


def kills(field: Field) -> dict[str, Wakes]:
    """Measure from a SIGKILL of the holder to the return of acquire() in another process."""
    field.say("SIGKILL …")
    entrants = field.entrants(_KILLED)
    found = {entrant.key: Wakes(entrant) for entrant in entrants}
    with Crew(field.nursery, 1) as crew:

        def block(entrant: Entrant) -> None:
            wakes = found[entrant.key]
            wakes.rounds.append(_kill_block(field, crew.members[0], entrant, wakes.cpu))

        field.in_turns(entrants, field.plan.kill_rounds, "SIGKILL", crew, block)
    return _complete(found)


def _kill_block(field: Field, waiter: Member, entrant: Entrant, cpu: list[int]) -> list[int]:
    path = field.path()
    waiter.ask("open", entrant.key, [path], field.library)
    samples: list[int] = []
    deadline = time.monotonic() + field.plan.kill
    while len(samples) < 2 or time.monotonic() < deadline:
        with Crew(field.nursery, 1) as victims:
            [victim] = victims.members
            victim.ask("open", entrant.key, [path], field.library)
            victim.ask("enter", 0)
            waiter.tell("enter", 0)
            time.sleep(field.hold_for(entrant))
            killed = victim.kill()
            entered, spent, _ = waiter.answer()
            waiter.ask("leave", 0)
            samples.append(entered - killed)
            cpu.append(spent)
    return samples


def any_of_many(field: Field) -> dict[int, Wakes]:
    """Measure the wake of one that waits for any of one lock, and of any of a thousand."""
    if not field.has("acquire_any"):
        return {}
    field.say("acquire_any() …")
    found = {count: Wakes(ENTRANTS["semlock"]) for count in _ANY}
    paths = field.paths(max(_ANY))
    with Crew(field.nursery, 2) as crew, field.guarded("acquire_any()"):
        holder, waiter = crew.members
        for member in crew.members:
            member.ask("open", "semlock", paths, field.library)
        holder.ask("enter_all")
        for _ in range(field.plan.any_rounds):
            rounds: dict[int, list[int]] = {count: [] for count in _ANY}
            deadline = time.monotonic() + 2 * field.plan.any
            while time.monotonic() < deadline:
                for count in field.chance.sample(_ANY, len(_ANY)):
                    rounds[count].append(_any_sample(field, holder, waiter, count))
            for count, samples in rounds.items():
                found[count].rounds.append(samples)
    return {count: wakes for count, wakes in found.items() if wakes.rounds}


def _any_sample(field: Field, holder: Member, waiter: Member, count: int) -> int:
    index = field.chance.randrange(count)
    waiter.tell("enter_any", count)
    left = holder.ask("leave", index, _ANY_HOLD)
    won, entered = waiter.answer()
    waiter.ask("leave", won)
    holder.ask("enter", won)
    return int(entered - left)
