"""Many at once: waiters that only wait, locks taken together, tasks in one process."""

from __future__ import annotations

import time
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

import semlock
from benchmarks.measuring import Contender, Spread, measure
from benchmarks.waiting.crew import Crew
from benchmarks.waiting.locks import ENTRANTS, semlock_lock
from benchmarks.waiting.results import Idle, Tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from benchmarks.measuring import Loop
    from benchmarks.waiting.crew import Member
    from benchmarks.waiting.field import Field
    from benchmarks.waiting.locks import Entrant

_CROWD = 100
_CROWD_KEYS = ("semlock", "fair", "own", "FileLock", "fasteners", "portalocker")

_TASKS = 1000
_SYNC = 200


def idle(field: Field) -> list[Idle]:
    """Measure what waiters burn, alone and a hundred on one lock."""
    field.say("Waiters that only wait …")
    alone = [e for e in field.entrants(ENTRANTS) if not e.key.startswith("c ")]
    with Crew(field.nursery, 2 * len(alone)) as crew:
        pairs = list(zip(crew.members[::2], crew.members[1::2], strict=True))
        # All kinds at the same time: CPU is counted, not time, and they don't meet.
        ready = [
            (Idle(entrant, 1), [waiter])
            for entrant, (holder, waiter) in zip(alone, pairs, strict=True)
            if _made_wait(field, entrant, holder, [waiter])
        ]
        found = _watch(field, ready)
    for entrant in field.entrants(_CROWD_KEYS):
        with Crew(field.nursery, _CROWD + 1) as crew:
            if _made_wait(field, entrant, crew.members[0], crew.members[1:]):
                found += _watch(field, [(Idle(entrant, _CROWD), crew.members[1:])])
    return found


def _made_wait(field: Field, entrant: Entrant, holder: Member, waiters: list[Member]) -> bool:
    path = field.path()
    with field.guarded(f"waiting with {entrant.label}"):
        for member in (holder, *waiters):
            member.ask("open", entrant.key, [path], field.library)
        holder.ask("enter", 0)
        for waiter in waiters:
            waiter.tell("enter", 0)
        return True
    return False


def _watch(field: Field, ready: list[tuple[Idle, list[Member]]]) -> list[Idle]:
    time.sleep(field.plan.settle)
    for _ in range(field.plan.idle_windows):
        before = [_used(waiters) for _, waiters in ready]
        time.sleep(field.plan.idle)
        for (one, waiters), (begin, spent) in zip(ready, before, strict=True):
            end, spent_now = _used(waiters)
            one.windows.append(100 * (spent_now - spent) / (end - begin))
    for one, waiters in ready:
        if not all(waiter.busy for waiter in waiters):
            field.note(f"{one.entrant.label}: a wait for a lock that was held has ended")
    return [one for one, _ in ready]


def _used(waiters: list[Member]) -> tuple[int, int]:
    return time.monotonic_ns(), sum(waiter.cpu() for waiter in waiters)


def together(field: Field) -> dict[int, dict[str, Spread]]:
    """Measure, for each of many locks, what a call costs that is about all of them."""
    found: dict[int, dict[str, Spread]] = {}
    for count in field.plan.together:
        field.say(f"{count:,} locks together …")
        held = field.paths(count)
        with Crew(field.nursery, 1) as crew, field.guarded(f"{count:,} locks together"):
            crew.members[0].ask("open", "semlock", held, field.library)
            crew.members[0].ask("enter_all")
            found[count] = _costs(field, count, held)
    return found


def _costs(field: Field, count: int, held: list[str]) -> dict[str, Spread]:
    contenders = [
        _together(
            "try_acquire_many(), all held",
            count,
            _try_held([semlock_lock(path) for path in held]),
        ),
        _together(
            "try_acquire_many(), all free, and release() of each",
            count,
            _take_all([semlock_lock(p) for p in field.paths(count)], semlock.try_acquire_many),
        ),
        _together(
            "acquire() and release() of each",
            count,
            _take_each([semlock_lock(p) for p in field.paths(count)]),
        ),
    ]
    if field.has("acquire_all"):
        locks = [semlock_lock(path) for path in field.paths(count)]
        take: Callable[[Any], Any] = getattr(semlock, "acquire_all")  # noqa: B009 - newer
        name = "acquire_all(), all free, and release() of each"
        contenders.append(_together(name, count, _take_all(locks, take)))
    group = measure(f"{count} locks", contenders, field.plan.costs / 3, fewest=3)
    return {c.label: Spread.of(c.samples) for c in group.contenders}


def _together(label: str, count: int, loop: Loop) -> Contender:
    return Contender(label, label, "semlock", loop, step=count)


def _try_held(locks: list[Any]) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations // len(locks)):
            taken = semlock.try_acquire_many(locks)
        spent = perf_counter_ns() - start
        if any(taken):
            raise RuntimeError("a lock that another process holds was acquired")
        return spent

    return run


def _take_all(locks: list[Any], take: Callable[[Any], Any]) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations // len(locks)):
            take(locks)
            for lock in locks:
                lock.release()
        return perf_counter_ns() - start

    return run


def _take_each(locks: list[Any]) -> Loop:
    def run(operations: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, operations // len(locks)):
            for lock in locks:
                lock.acquire()
            for lock in locks:
                lock.release()
        return perf_counter_ns() - start

    return run


def tasks(field: Field) -> Tasks | None:
    """Weigh tasks that wait in one process, and measure their wakes beside a process's."""
    if not field.has("AsyncLock"):
        return None
    field.say(f"{_TASKS:,} tasks …")
    with field.guarded("waiting in tasks"):
        traced, idle_traced, _, _, _ = _task_pass(field, trace=True)
        resident, _, threads, wakes, sync_wakes = _task_pass(field, trace=False)
        return Tasks(_TASKS, wakes, sync_wakes, threads, traced, resident, idle_traced)
    return None


def _task_pass(field: Field, *, trace: bool) -> tuple[float, float, int, list[int], list[int]]:
    """Have a thousand tasks and one process wait, and release their locks in turns."""
    paths = field.paths(_TASKS + 1)
    sync_paths = field.paths(_SYNC)
    with Crew(field.nursery, 3) as crew:
        holder, loop, waiter = crew.members
        holder.ask("open", "semlock", [*paths[:_TASKS], *sync_paths], field.library)
        holder.ask("enter_all")
        loop.tell("wait_in_tasks", paths, trace)
        weight, idle_weight, threads = loop.answer()
        waiter.ask("wait_each", sync_paths)
        order = _mixed(field)
        pause = field.plan.tasks_pause
        times = holder.ask("leave_each", order, pause, patience=60.0)
        left = dict(zip(order, times, strict=True))
        entered = [*loop.answer(), *waiter.answer()]
        wakes = [at - left[index] for index, at in enumerate(entered)]
    return weight, idle_weight, threads, wakes[:_TASKS], wakes[_TASKS:]


def _mixed(field: Field) -> list[int]:
    """Give the tasks' locks in any order, and the other process's in theirs in between."""
    order = field.chance.sample(range(_TASKS), _TASKS)
    every = _TASKS // _SYNC + 1
    for i in range(_SYNC):
        order.insert(i * every, _TASKS + i)
    return order
