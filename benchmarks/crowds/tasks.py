"""A crowd of tasks or threads in one process, as a worker lives it."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import importlib
import os
import threading
import time
from itertools import pairwise
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from typing import Any

_TICK = 0.002
_QUIET = 0.5
_BATCH = 100  # so many are begun before the loop may do something else
_LONGEST = 30.0
_STACK = 256 * 1024  # of a thread
SLOTS = 2
# Not a lock: what as many tasks cost the loop by themselves.
BARE = "no lock, an Event"


def wait_until_they_stand(path: str, count: int) -> None:
    """Wait until so many stand in the queue of the lock."""
    end = time.monotonic() + _LONGEST
    rooms = os.path.join(glob.escape(os.path.dirname(path)), ".semlock-*.queue")
    while time.monotonic() < end:
        standing = 0
        for room in glob.glob(rooms):
            with contextlib.suppress(FileNotFoundError):
                standing += sum(len(name) == 16 for name in os.listdir(room))
        if standing >= count:
            return
        time.sleep(_TICK / 4)


def manager_of(kind: str, path: str) -> Callable[[], Any]:
    """Give what makes the context manager by which one task uses the lock."""
    semlock: Any = importlib.import_module("semlock")
    fair = kind.startswith("fair")
    if kind.endswith("slots"):
        slots = semlock.AsyncSlotLock(path, SLOTS, fair=fair, durability="none")
        return lambda: slots
    if kind.endswith(("readers", "writers")):
        shared = semlock.AsyncSharedLock(path, fair=fair, durability="none")
        return shared.shared if kind.endswith("readers") else lambda: shared
    lock = semlock.AsyncLock(path, fair=fair, durability="none")
    return lambda: lock


class _Bare:
    """An event in the place of a lock."""

    def __init__(self, event: Any) -> None:
        self.event = event

    async def __aenter__(self) -> None:
        await self.event.wait()

    async def __aexit__(self, *error: object) -> None:
        """Release nothing."""


class TaskCrowd:
    """Tasks that wait for one lock, which another process holds."""

    def __init__(self, channel: Connection, kind: str, path: str, count: int) -> None:
        self._channel = channel
        self._bare: _Bare | None = None
        self._manager = manager_of(kind, path) if kind != BARE else lambda: self._bare
        self._kind, self._path = kind, path
        self._count = count
        self._asked: list[int] = []
        self._entered: list[tuple[int, int]] = []
        self._lag = 0
        self._quiet = False
        self._lags: dict[str, float] = {}

    async def _use(self) -> None:
        number = len(self._asked)
        self._asked.append(monotonic_ns())
        async with self._manager():
            self._entered.append((number, monotonic_ns()))

    async def _watch(self, sleep: Any) -> None:
        """See how long the loop does nothing else, by what its thread has used meanwhile."""
        while True:
            before = thread_time_ns()
            await sleep(_QUIET if self._quiet else _TICK)
            self._lag = max(self._lag, thread_time_ns() - before)

    def _note(self, what: str) -> None:
        self._lags[what], self._lag = self._lag / 1e6, 0

    def run_in_threads(self) -> None:
        """Begin, wait, and go through, in threads."""
        semlock: Any = importlib.import_module("semlock")
        fair = self._kind == "fair"

        def use() -> None:
            with semlock.Lock(self._path, fair=fair, durability="none"):
                self._entered.append((numbers[threading.get_ident()], monotonic_ns()))

        numbers: dict[int, int] = {}
        threading.stack_size(_STACK)
        threads = []
        for number in range(self._count):
            thread = threading.Thread(target=use, daemon=True)
            threads.append(thread)
            thread.start()
            numbers[thread.ident or 0] = number
            if fair:
                wait_until_they_stand(self._path, number + 1)
        wait_until_they_stand(self._path, self._count)
        self._channel.send(("done", None))
        self._channel.recv()
        self._channel.send(("done", None))
        for thread in threads:
            thread.join(_LONGEST)
        self._channel.send(("done", self._answer()))
        self._channel.recv()

    def _answer(self) -> dict[str, Any]:
        numbers = [number for number, _ in self._entered]
        late = sum(a > b for a, b in pairwise(numbers))
        last = max((at for _, at in self._entered), default=0)
        return {"last": last, "inside": len(numbers), "late": late, "lags": self._lags}

    async def run(
        self, sleep: Any, spawn: Callable[[Any], None], cancel: Any, event: Any
    ) -> None:
        """Begin, wait, go through; and begin again, to be cancelled."""
        self._bare = _Bare(event())
        self._lag = 0
        for number in range(self._count):
            spawn(self._use)
            if number % _BATCH == _BATCH - 1:
                await sleep(0)
        while len(self._asked) < self._count:
            await sleep(_TICK)
        await sleep(0.2)
        self._note("begin")
        self._quiet = True
        self._channel.send(("done", None))
        # The parent reads what CPU those who wait use, and nothing else runs here.
        while not self._channel.poll():
            await sleep(_QUIET)
        self._channel.recv()
        self._quiet = False
        await sleep(_QUIET)
        self._lag = 0
        self._channel.send(("done", None))
        if self._kind == BARE:
            self._bare.event.set()
        end = time.monotonic() + _LONGEST
        while len(self._entered) < self._count and time.monotonic() < end:
            await sleep(_TICK)
        self._note("through")
        self._channel.send(("done", self._answer()))
        while not self._channel.poll():
            await sleep(_TICK)
        self._channel.recv()
        self._bare = _Bare(event())
        for number in range(self._count):
            spawn(self._use)
            if number % _BATCH == _BATCH - 1:
                await sleep(0)
        await sleep(0.3)
        self._lag = 0
        cancel()
        await sleep(0.2)
        self._note("cancel")


def run_in_asyncio(crowd: TaskCrowd) -> dict[str, float]:
    """Be a crowd in asyncio's loop."""

    async def main() -> None:
        watch = asyncio.ensure_future(crowd._watch(asyncio.sleep))
        tasks: list[asyncio.Task[None]] = []

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        await crowd.run(
            asyncio.sleep,
            lambda use: tasks.append(asyncio.create_task(use())),
            cancel,
            asyncio.Event,
        )
        watch.cancel()

    asyncio.run(main())
    return crowd._lags


def run_in_uvloop(crowd: TaskCrowd) -> dict[str, float]:
    """Be a crowd in uvloop's loop."""
    importlib.import_module("uvloop").install()
    return run_in_asyncio(crowd)


def run_in_trio(crowd: TaskCrowd) -> dict[str, float]:
    """Be a crowd in trio."""
    trio: Any = importlib.import_module("trio")

    async def whole() -> None:
        async with trio.open_nursery() as outer:
            scopes = []

            async def hold(*, task_status: Any) -> None:
                async with trio.open_nursery() as nursery:
                    scopes.append(nursery)
                    task_status.started()
                    await trio.sleep_forever()

            await outer.start(hold)
            outer.start_soon(crowd._watch, trio.sleep)
            nursery = scopes[0]
            await crowd.run(
                trio.sleep, nursery.start_soon, nursery.cancel_scope.cancel, trio.Event
            )
            outer.cancel_scope.cancel()

    trio.run(whole)
    return crowd._lags


def run_in_threads(crowd: TaskCrowd) -> dict[str, float]:
    """Be a crowd of threads, without a loop."""
    crowd.run_in_threads()
    return {}


THREADS = "threads"
LOOPS = {
    "asyncio": run_in_asyncio,
    "uvloop": run_in_uvloop,
    "trio": run_in_trio,
    THREADS: run_in_threads,
}


def missing(loop: str) -> str | None:
    """Say why a loop can't be had."""
    if loop not in ("asyncio", THREADS):
        with contextlib.suppress(ImportError):
            importlib.import_module(loop)
            return None
        return f"{loop} is not installed"
    return None
