"""What a worker can be asked to do.  Every public method is one order; see ``crew``."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import os
import resource
import time
import tracemalloc
from array import array
from time import monotonic_ns, process_time_ns, thread_time_ns
from typing import TYPE_CHECKING

from benchmarks.waiting.locks import ENTRANTS, LibraryLock, semlock_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from typing import Any

# After a release, before answering: who asked shall not wake beside the one who waits.
_DISCRETION = 0.001
# The end of a hold is spun, so that it is exact; the rest is slept.  A holder that spins all of
# it can have the CPU of the one that it was handed the lock by, which then comes late to ask
# again: what that measures is the scheduler, and which other programs are running.
_SPUN_NS = 200_000
_PR_SET_TIMERSLACK = 29
_SETTLE = 0.5
_LONGEST = 60.0


def _until(moment: int) -> None:
    """Sleep up to a moment on CLOCK_MONOTONIC."""
    left = moment - monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


def _hold(until: int) -> None:
    """Sleep, and spin the last part, up to a moment on CLOCK_MONOTONIC."""
    _until(until - _SPUN_NS)
    while monotonic_ns() < until:
        pass


def _resident() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class Worker:
    """One process that holds, waits, or contends."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._locks: list[Any] = []

    def open(self, key: str, paths: Sequence[str], library: str) -> None:
        """Make locks of one kind; those that were made before are forgotten."""
        self._locks = [ENTRANTS[key].make(path, library) for path in paths]

    def enter(self, index: int) -> tuple[int, int, int]:
        """Wait for a lock; tell when it was entered, and the CPU and the time of the wait."""
        cpu, begin = process_time_ns(), monotonic_ns()
        entered: int = self._locks[index].enter()
        return entered, process_time_ns() - cpu, entered - begin

    def pass_through(self, index: int) -> int:
        """Wait for a lock and let go of it at once; tell when it was entered."""
        entered: int = self._locks[index].enter()
        self._locks[index].leave()
        return entered

    def poll(self, index: int) -> int:
        """Try again and again, and tell when it was entered."""
        lock = self._locks[index].lock
        end = monotonic_ns() + int(_LONGEST * 1e9)
        while not lock.try_acquire() and monotonic_ns() < end:
            time.sleep(0.005)
        return monotonic_ns()

    def crowd(self, loop: str, kind: str, path: str, count: int) -> dict[str, float]:
        """Be a crowd of tasks or threads: see ``benchmarks.crowds.tasks``."""
        tasks = importlib.import_module("benchmarks.crowds.tasks")
        crowd = tasks.TaskCrowd(self._channel, kind, path, count)
        lags: dict[str, float] = tasks.LOOPS[loop](crowd)
        return lags

    def enter_all(self) -> None:
        """Take every lock."""
        for lock in self._locks:
            lock.enter()

    def enter_any(self, count: int) -> tuple[int, int]:
        """Wait for one of the first locks; tell which, and when it was entered."""
        # Sliced and wrapped before the wait, so that nothing of it is in the wake.
        locks = [lock.lock for lock in self._locks[:count]]
        acquire_any = importlib.import_module("semlock").acquire_any
        won = acquire_any(locks, timeout=_LONGEST)
        entered = monotonic_ns()
        return next(i for i, lock in enumerate(locks) if lock is won), entered

    def leave(self, index: int, after: float = 0.0) -> int:
        """Release a lock after so many seconds; tell when that began."""
        if after:
            time.sleep(after)
        left: int = self._locks[index].leave()
        if after:
            time.sleep(_DISCRETION)
        return left

    def leave_each(self, order: Sequence[int], pause: float) -> list[int]:
        """Release locks one after the other; tell when each release began."""
        left = []
        for index in order:
            time.sleep(pause)
            left.append(self._locks[index].leave())
        return left

    def wait_each(self, paths: Sequence[str]) -> list[int]:
        """Wait for one lock after the other; tell when each was entered."""
        locks = [LibraryLock(semlock_lock(path)) for path in paths]
        self._channel.send(("done", None))
        entered = []
        for lock in locks:
            entered.append(lock.enter())
            lock.leave()
        return entered

    def contend(
        self, key: str, path: str, library: str, start: int, stop: int, hold: int
    ) -> tuple[array[int], int, int, int]:
        """Take a lock again and again between two moments, and hold it for so long each time.

        Tells the intervals in which it was held, the CPU time, how much of that was used
        while holding, and the longest wait.  A wait that the end cuts off counts as far as it
        went.
        """
        lock = ENTRANTS[key].make(path, library)
        enter, leave = lock.enter, lock.leave
        intervals = array("q")
        held_cpu = longest = 0
        # Sleeps end when they are to, and not up to 50 us later.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1))
        _until(start)
        cpu = process_time_ns()
        begin = monotonic_ns()
        while begin < stop:
            entered = enter()
            longest = max(longest, min(entered, stop) - begin)
            if entered >= stop:
                leave()
                break
            if hold:
                holding = thread_time_ns()
                _hold(entered + hold)
                held_cpu += thread_time_ns() - holding
            left = leave()
            intervals.append(entered)
            intervals.append(left)
            begin = monotonic_ns()
        return intervals, process_time_ns() - cpu, held_cpu, longest

    def wait_in_tasks(self, paths: Sequence[str], trace: bool) -> list[int]:
        """Wait for each lock in a task of its own; tell when each was entered.

        An answer in between tells what so many waiting tasks cost, beside as many that wait
        for nothing but a future.
        """
        return asyncio.run(_Tasks(self._channel, trace).run(paths))


class _Tasks:
    """Many tasks, each of which waits for a lock, and what they weigh."""

    def __init__(self, channel: Connection, trace: bool) -> None:
        self._channel = channel
        self._trace = trace
        self._entered: list[int] = []

    async def run(self, paths: Sequence[str]) -> list[int]:
        self._entered = [0] * len(paths)
        # The last path is free.  Taking it brings what comes once for the process.
        await self._wait(len(paths) - 1, paths[-1])
        idle = 0.0
        if self._trace:
            tracemalloc.start()
            # Not without tracing: what these tasks leave behind would be used again by the
            # next ones, and the process would not grow.
            idle = await self._weigh_idle(len(paths) - 1)
        threads, before = _threads(), self._weight()
        tasks = [
            asyncio.ensure_future(self._wait(i, path)) for i, path in enumerate(paths[:-1])
        ]
        await asyncio.sleep(_SETTLE)
        weight = (self._weight() - before) / len(tasks)
        self._channel.send(("done", (weight, idle, _threads() - threads)))
        tracemalloc.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), _LONGEST)
        return self._entered[:-1]

    def _weight(self) -> int:
        return tracemalloc.get_traced_memory()[0] if self._trace else _resident()

    async def _wait(self, index: int, path: str) -> None:
        async with importlib.import_module("semlock").AsyncLock(path):
            self._entered[index] = monotonic_ns()

    async def _weigh_idle(self, count: int) -> float:
        """Say what a task weighs that waits for a future of its own."""
        loop = asyncio.get_running_loop()
        before = self._weight()
        futures = [loop.create_future() for _ in range(count)]

        async def wait(future: asyncio.Future[None]) -> None:
            await future

        tasks = [asyncio.ensure_future(wait(future)) for future in futures]
        await asyncio.sleep(_SETTLE / 10)
        weight = (self._weight() - before) / count
        for future in futures:
            future.set_result(None)
        await asyncio.gather(*tasks)
        return weight
