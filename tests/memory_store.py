"""A store in memory: it shows what a lock needs of a store, and that it needs no file.

A ``Space`` has names.  What is held under a name is a ``Found``, which never changes: a refresh
puts another in its place.  Those who wait stand in a line, and a release wakes the first of it.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress

from ini_system import compose, decode
from semlock import LockInfo
from semlock._core import (
    FAIR,
    FREE,
    HELD,
    LOOK,
    LOST,
    MINE,
    NESTED,
    OK,
    OTHER_THREAD,
    TURN,
)  # fmt: skip
from semlock._core.capi import this_thread
from semlock._core.identity import this_process
from semlock._core.options import taken
from semlock._core.status import LockStatus
from semlock._locks.async_form import AsyncForm
from semlock._locks.base import BaseLock
from semlock._waiting.hub import trio_here
from semlock._waiting.steps import Stoppable
from support import STRANGER

LOOK_AGAIN_NS = 10_000_000


class Found:
    """What is held under a name, as it was found there."""

    error = 0
    unfinished = witnessed = False

    def __init__(self, lock, content: bytes) -> None:
        self.lock = lock  # None: another process's
        self.content = content
        self.ctime_ns = time.time_ns()
        self.written_at = self.ctime_ns / 1e9
        self.key = (id(self), self.ctime_ns)
        self.dead = False

    def evidence(self, info):
        return ("dead", "its holder has ended") if self.dead else ("alive", "its holder runs")

    def keeper(self, path):
        return None


class Space:
    """Names, what is held under them, and those who wait."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.held: dict[str, Found] = {}
        self.lines: dict[str, list[Wait]] = {}
        self.dropped: list[object] = []

    def put(self, name: str, found: Found | None) -> None:
        """Put something under a name, or nothing, and wake the first who waits for it."""
        with self.guard:
            if found is None:
                self.held.pop(name, None)
            else:
                self.held[name] = found
            self.wake(name)

    def wake(self, name: str) -> None:
        for first in self.lines.get(name, ())[:1]:
            first.wake()


class State:
    """What ``Hold`` asks for: who holds by one object."""

    def __init__(self, reentrant: bool) -> None:
        self.owner = self.depth = self.held = self.serial = self.endings = 0
        self.reentrant = int(reentrant)
        self.by_object = 0
        self.turns = FAIR
        self.look_at = 0


class Wait(Stoppable):
    """One wait: an ``Attempt``."""

    outcome: int | None = None

    def __init__(self, lock: InMemory, timeout: float | None) -> None:
        self.lock, self.space = lock, lock._space
        self.began = time.monotonic()
        self.end_at = None if timeout is None else self.began + timeout
        self.again_at: int | None = None
        self.judge: bool | None = None
        self.wake = lambda: None
        self._notice = self.begin(lock)

    @property
    def waited(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float | None:
        return None if self.end_at is None else self.end_at - time.monotonic()

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        line = self.space.lines.get(self.lock.path)
        return not line or line[0] is self

    def stop(self) -> None:
        self.stopped = True
        self.wake()

    def _enter(self) -> None:
        # Not before: the caller ends a wait that it has, and could be struck before it has it.
        self.outcome = None
        with self.space.guard:
            line = self.space.lines.setdefault(self.lock.path, [])
            if self not in line:
                line.append(self)

    def follow(self, pid: int, start: int) -> None:
        pass

    def judged(self, seen: Found, again_at: int | None) -> None:
        self.judge, self.again_at = None, again_at

    def end(self, won: State | None = None) -> None:
        with self.space.guard:
            line = self.space.lines.get(self.lock.path, [])
            if self in line:
                line.remove(self)
                if not line:
                    del self.space.lines[self.lock.path]
                if self.lock.path not in self.space.held:
                    self.space.wake(self.lock.path)

    def _ready(self) -> bool:
        """Tell whether there is something to do, and otherwise hear of the next change."""
        found = self.space.held.get(self.lock.path)
        if found is not None and found.dead:
            self.judge = True
        due = self.again_at is not None and self.lock._store_time() >= self.again_at
        return (self.in_turn(fair=True) and (found is None or found.dead)) or due

    def _sleep_for(self) -> float | None:
        """Say how long to sleep at most; 0 if the time is over."""
        self.report(time.monotonic())
        ends = [] if self.left is None else [self.left]
        if self.again_at is not None:
            ends.append((self.again_at - self.lock._store_time()) / 1e9)
        return max(0.0, min(ends)) if ends else None

    def _is_over(self) -> bool:
        return self.left is not None and self.left <= 0

    def pause(self) -> bool:
        self._enter()
        event = threading.Event()
        self.wake = event.set
        while not self._ready():
            if self._is_over():
                return False
            event.wait(self._sleep_for())
            event.clear()
        return True

    async def pause_async(self) -> bool:
        self._enter()
        trio = trio_here()
        event = (trio or asyncio).Event()
        if trio:
            token = trio.lowlevel.current_trio_token()
            self.wake = lambda: token.run_sync_soon(event.set)
        else:
            loop = asyncio.get_running_loop()
            self.wake = lambda: loop.call_soon_threadsafe(event.set)
        while not self._ready():
            if self._is_over():
                return False
            limit = self._sleep_for()
            if trio:
                with trio.move_on_after(float("inf") if limit is None else limit):
                    await event.wait()
                return True
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), limit)
            event.clear()
        return True


class InMemory:
    """Makes of ``BaseLock`` a lock in a ``Space``: the methods of ``Store``."""

    __slots__ = ()

    def __init__(self, space, name, **options) -> None:
        given = taken(self, options)
        super().__init__(name, given)
        self._space = space
        self._mine = None
        self._native = State(given["reentrant"])

    def _try(self) -> int:
        return self._try_once(first=False)

    def _try_again(self) -> int:
        return self._try_once(first=True)

    def _try_once(self, *, first: bool) -> int:
        state = self._native
        with self._space.guard:
            if state.owner:
                if state.owner != this_thread():
                    return HELD
                if not state.reentrant:
                    return MINE
                state.depth += 1
                state.serial += 1
                return NESTED
            if self.path in self._space.held:
                return LOOK if self._look_is_due() else HELD
            if not first and self._space.lines.get(self.path):
                return TURN
            me = this_process()
            info = LockInfo(
                pid=me.pid, timestamp=int(time.time()), tag=self.tag, host=me.host,
                start=me.start, boot=me.boot, pidns=me.pidns, token=secrets.token_hex(16),
            )  # fmt: skip
            self._mine = self._space.held[self.path] = Found(self, compose(info))
            state.depth = state.held = 1
            state.serial += 1
            state.owner = this_thread()
            return OK

    def _let_go(self) -> int:
        state = self._native
        with self._space.guard:
            if not state.held:
                return FREE
            if state.reentrant and state.owner != this_thread():
                return OTHER_THREAD
            state.depth -= 1
            state.endings += 1
            if state.depth:
                return NESTED
            state.held = state.owner = 0
            if self._is_lost():
                return LOST
            self._space.put(self.path, None)
            return OK

    def _is_lost(self) -> bool:
        return self._space.held.get(self.path) is not self._mine

    def _rewrite(self) -> int:
        with self._space.guard:
            if (outcome := self._confirm()) == OK:
                info = decode(self._mine.content).replace(timestamp=int(time.time()))
                self._mine = self._space.held[self.path] = Found(self, compose(info))
            return outcome

    def _confirm(self) -> int:
        return LOST if self._native.held and self._is_lost() else self._holds()

    def _holds(self) -> int:
        return OK if self._native.held else FREE

    def _is_of_thread(self) -> bool:
        return self._native.owner == this_thread()

    def _token(self) -> str:
        return decode(self._mine.content).token

    def _record_held(self):
        return decode(self._mine.content)

    def status(self) -> LockStatus:
        found = self._space.held.get(self.path)
        info = None if found is None else decode(found.content)
        return LockStatus(self.path, found, info, self._policy)

    def _clear(self, found, *, robs):
        with self._space.guard:
            seen = self._space.held.get(self.path)
            if seen is not found.instance or not (seen.dead or robs):
                return False
            self._space.put(self.path, None)
            return True

    def _holder_of(self, seen):
        return seen.lock

    def _holder_here(self):
        found = self._space.held.get(self.path)
        return None if found is None else found.lock

    def _store_time(self) -> int:
        return time.monotonic_ns()

    def _look_again_later(self, key) -> int:
        self._native.look_at = self._store_time() + LOOK_AGAIN_NS
        return self._native.look_at

    def _look_is_due(self) -> bool:
        return self._store_time() >= self._native.look_at

    def _waiter(self, timeout, asked):
        return Wait(self, timeout)

    def _mend(self, outcome):
        raise self._error(outcome)

    def _error(self, outcome):
        return OSError(-outcome, "the store in memory fails", self.path)

    def _give_way(self) -> None:
        time.sleep(0)

    def _place_kept(self):
        return id(self._space)

    def _dropped(self) -> bool:
        if self._native.held:
            self._space.dropped.append(self)
        return bool(self._native.held)


class MemoryLock(InMemory, BaseLock):
    """A lock in memory."""

    __slots__ = ("_mine", "_space")


class AsyncMemoryLock(AsyncForm, MemoryLock):
    """A lock in memory for tasks."""

    __slots__ = ("_holder",)


class World:
    """One lock in memory, for the suite in ``tests/behaviour``."""

    has_queue = refuses_itself = taken_on_policy = True
    name = "memory"
    place = "the lock"

    def __init__(self, directory) -> None:
        del directory  # it needs no file
        self.space = Space()

    def lock(self, **options):
        return MemoryLock(self.space, self.place, **options)

    def async_lock(self, **options):
        return AsyncMemoryLock(self.space, self.place, **options)

    def status(self):
        return self.lock().status()

    def take_away(self) -> None:
        self.space.put(self.place, None)

    def waiting(self) -> int:
        return len(self.space.lines.get(self.place, ()))

    def stranger(self):
        return Stranger(self)


class Stranger:
    """Stands for another process: what it holds names no object of this one."""

    pid = STRANGER

    def __init__(self, world: World) -> None:
        self._space, self._place = world.space, world.place

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def hold(self) -> None:
        assert self._place not in self._space.held
        content = compose(LockInfo(pid=self.pid, timestamp=1))
        self._space.put(self._place, Found(None, content))

    def release(self) -> None:
        self._space.put(self._place, None)

    def die(self) -> bool:
        with self._space.guard:
            self._space.held[self._place].dead = True
            self._space.wake(self._place)
        return True
