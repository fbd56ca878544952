"""One run of everything about crowds."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks import facts
from benchmarks.crowds.results import FEW, HEARS, NOTHING, Crowd, CrowdResults, Stopped
from benchmarks.crowds.tasks import BARE, SLOTS, THREADS, missing, wait_until_they_stand
from benchmarks.floor import Floor
from benchmarks.waiting.crew import Crew, Nursery, WorkerError
from benchmarks.waiting.field import Field
from benchmarks.waiting.plan import FULL, QUICK
from benchmarks.waiting.run import raise_the_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENTS = (HEARS, FEW, NOTHING)
_SETTLE = 4.0  # without events most of a crowd looks more often in the first 3 seconds
_APART = 0.002
_PATIENCE = 60.0


@dataclass(frozen=True)
class _Plan:
    processes: tuple[int, ...]
    tasks: tuple[int, ...]
    threads: tuple[int, ...]
    idle: float
    stopped: tuple[int, ...]
    rounds: int


_FULL = _Plan((1, 10, 100, 1000), (100, 5000), (100, 1000), 3.0, (1, 8, 64), 3)
_QUICK = _Plan((1, 10, 100), (100, 1000), (100,), 1.0, (1, 8), 2)

# Of tasks, all kinds are measured in asyncio, and some in the other loops and without events.
_KINDS = ("plain", "fair", "slots", "fair slots", "readers", "fair readers", "writers")
_SOME = ("plain", "fair")


@contextlib.contextmanager
def _medium(events: str, memory: str, field: Field) -> Iterator[tuple[list[str], str] | None]:
    """Give how workers are started, and where, so that they hear as much."""
    if events == HEARS:
        yield [], memory
        return
    if events == FEW:
        # A user namespace has limits of its own.
        limit = "echo 4 > /proc/sys/user/max_inotify_instances"
        wrapper = ["unshare", "-U", "-r", "sh", "-c", f'{limit} && exec "$0" "$@"']
        if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
            field.note("few instances of inotify are left out: no user namespace can be had")
            yield None
            return
        yield wrapper, memory
        return
    with tempfile.TemporaryDirectory() as mirror:
        command = ["bindfs", memory, mirror]
        if (
            shutil.which("bindfs") is None
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            field.note("no events is left out: it needs bindfs, and leave to mount")
            yield None
            return
        try:
            yield [], mirror
        finally:
            subprocess.run(["umount", "-l", mirror], check=False)


def _processes(field: Field, kind: str, events: str, count: int, idle: float) -> Crowd | None:
    """Have processes wait for one lock, and then go through."""
    key = "fair" if kind == "fair" else "semlock"
    path = field.path()
    patience = _PATIENCE + count * 0.05
    with (
        field.guarded(f"{count} processes, {kind}, {events}"),
        Crew(field.nursery, count + 1) as crew,
    ):
        holder, *waiters = crew.members
        for member in crew.members:
            member.ask("open", key, [path], field.library)
        holder.ask("enter", 0)
        for number, waiter in enumerate(waiters):
            waiter.tell("pass_through", 0)
            if kind == "fair":
                wait_until_they_stand(path, number + 1)  # so it asks before the next one
            else:
                time.sleep(_APART)
        wait_until_they_stand(path, count)
        time.sleep(_SETTLE)
        before, began = sum(waiter.cpu() for waiter in waiters), time.monotonic_ns()
        time.sleep(idle)
        used = sum(waiter.cpu() for waiter in waiters) - before
        percent = 100 * used / (time.monotonic_ns() - began)
        left = holder.ask("leave", 0)
        passed = []
        end = time.monotonic() + patience
        for number, waiter in enumerate(waiters):
            with contextlib.suppress(WorkerError):
                passed.append((waiter.answer(max(0.0, end - time.monotonic())), number))
        passed.sort()
        late = sum(a > b for (_, a), (_, b) in pairwise(passed))
        through = (passed[-1][0] - left) / 1e6 if passed else 0.0
        return Crowd("processes", kind, events, count, percent, through, len(passed), late)
    return None


def _tasks(
    field: Field, loop: str, kind: str, events: str, count: int, idle: float
) -> Crowd | None:
    """Have tasks of one process wait for one lock, and then go through."""
    path = field.path()
    held = [path]
    if kind.endswith("slots"):
        held = [f"{path}.{number}" for number in range(1, SLOTS + 1)]
    with (
        field.guarded(f"{count} tasks, {loop}, {kind}, {events}"),
        Crew(field.nursery, 2) as crew,
    ):
        holder, crowd = crew.members
        holder.ask("open", "semlock", held, field.library)
        holder.ask("enter_all")
        crowd.tell("crowd", loop, kind, path, count)
        crowd.answer(_PATIENCE)
        # As long as processes: threads wait as these do.
        time.sleep(_SETTLE if loop == THREADS else 0.5)
        before, began = crowd.cpu(), time.monotonic_ns()
        time.sleep(idle)
        percent = 100 * (crowd.cpu() - before) / (time.monotonic_ns() - began)
        crowd.ask("go through")
        left = holder.ask("leave_each", range(len(held)), 0.0)[-1]
        found = crowd.answer(_PATIENCE)
        holder.ask("enter_all")
        crowd.tell("go on")
        lags = crowd.answer(_PATIENCE)
        through = (found["last"] - left) / 1e6
        return Crowd(
            loop if loop == THREADS else f"tasks in {loop}",
            kind,
            events,
            count,
            percent,
            through,
            found["inside"],
            found["late"],
            lags,
        )
    return None


def _behind_stopped(
    field: Field, kind: str, way: str, count: int, rounds: int
) -> Stopped | None:
    """Stop those who stand in the queue, let go, and see when another one has the lock."""
    key = "fair" if kind == "fair" else "semlock"
    times = []
    with field.guarded(f"{count} stopped, {kind}, {way}"), Crew(field.nursery, 2) as crew:
        holder, live = crew.members
        for _ in range(rounds):
            path = field.path()
            for member in (holder, live):
                member.ask("open", key, [path], field.library)
            holder.ask("enter", 0)
            with Crew(field.nursery, count) as dead:
                for member in dead.members:
                    member.ask("open", "fair", [path], field.library)
                    member.tell("enter", 0)
                time.sleep(0.3)
                for member in dead.members:
                    os.kill(member.pid, signal.SIGSTOP)
                if way.startswith("waiting"):
                    live.tell("enter", 0)
                    time.sleep(0.3)
                    left = holder.ask("leave", 0)
                    entered = live.answer()[0]
                else:
                    left = holder.ask("leave", 0)
                    entered = live.ask("poll", 0)
                times.append((entered - left) / 1e6)
                live.ask("leave", 0)
        return Stopped(kind, way, count, times)
    return None


def measure_crowds(memory: str, *, quick: bool) -> CrowdResults:
    """Measure in this directory in memory."""
    plan = _QUICK if quick else _FULL
    run = facts.Run()
    raise_the_limit()
    found = CrowdResults()
    with tempfile.TemporaryDirectory() as build:
        library = Floor(build).path
        for events in _EVENTS:
            field = Field(None, memory, library, QUICK if quick else FULL)  # type: ignore[arg-type]
            with _medium(events, memory, field) as medium:
                if medium is not None:
                    wrapper, root = medium
                    with Nursery(wrapper) as nursery:
                        field = Field(
                            nursery,
                            tempfile.mkdtemp(dir=root),
                            library,
                            QUICK if quick else FULL,
                        )
                        _measure(field, events, plan, found)
            found.notes += field.notes
    found.facts = run.facts()
    return found


def _measure(field: Field, events: str, plan: _Plan, found: CrowdResults) -> None:
    for kind in _SOME:
        for count in plan.processes:
            field.say(f"{count:,} processes, {kind}, {events} …")
            crowd = _processes(field, kind, events, count, plan.idle)
            found.crowds += [] if crowd is None else [crowd]
    for loop in ("asyncio", "uvloop", "trio"):
        why = missing(loop)
        if why is not None:
            field.note(f"tasks in {loop} are left out: {why}")
            continue
        everything = loop == "asyncio" and events == HEARS
        for kind in _KINDS if everything else _SOME:
            for count in plan.tasks if everything else plan.tasks[-1:]:
                field.say(f"{count:,} tasks in {loop}, {kind}, {events} …")
                crowd = _tasks(field, loop, kind, events, count, plan.idle)
                found.crowds += [] if crowd is None else [crowd]
        if events == HEARS:
            field.say(f"{plan.tasks[-1]:,} tasks in {loop}, {BARE} …")
            crowd = _tasks(field, loop, BARE, events, plan.tasks[-1], plan.idle)
            found.crowds += [] if crowd is None else [crowd]
    for kind in _SOME:
        for count in plan.threads:
            field.say(f"{count:,} threads, {kind}, {events} …")
            crowd = _tasks(field, THREADS, kind, events, count, plan.idle)
            found.crowds += [] if crowd is None else [crowd]
    if events in (HEARS, NOTHING):
        unheard = "" if events == HEARS else f", {events}"
        for way in (f"waiting{unheard}", f"try_acquire again and again{unheard}"):
            for count in plan.stopped:
                field.say(f"{count} stopped, {way} …")
                for kind in _SOME if way.startswith("waiting") else ("fair",):
                    stopped = _behind_stopped(field, kind, way, count, plan.rounds)
                    found.stopped += [] if stopped is None else [stopped]
