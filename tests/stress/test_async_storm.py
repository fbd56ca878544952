"""Tasks in storms: many in many processes on few locks, cancelled and killed; Ctrl-C anywhere."""

import asyncio
import contextlib
import gc
import itertools
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from semlock import AsyncLock
from semlock._core import capi
from semlock._waiting import hub
from support import HANDLERS_RUN_AT, Child, Strike, overlaps, read_holds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is heard there yet")

SECONDS = float(os.environ.get("SEMLOCK_STRESS_SECONDS", "20"))

# Tasks take locks, hold them for a moment, and give up at random: by time, or cancelled.
_STORM = """
import asyncio, random, time
import sys; sys.path.insert(0, {tests!r})
from semlock import AsyncLock, LockTimeoutError
from support import HoldRecord

chance = random.Random({seed})
# A HoldRecord is of one hold at a time, so each lock has its own.
records = [HoldRecord({log!r} + str(i)) for i in range({locks})]

async def work(shared, end):
    done = 0
    while time.monotonic() < end:
        which = chance.randrange({locks})
        path = {directory!r} + "/" + str(which)
        lock = chance.choice([shared[which], AsyncLock(path, durability="none"),
                              AsyncLock(path, durability="none", fair=True)])
        try:
            async with asyncio.timeout(chance.choice([0.0005, 0.005, 5])):
                async with await lock.acquire(timeout=chance.choice([0.001, 5])):
                    records[which].enter(which)
                    try:
                        await asyncio.sleep(chance.choice([0, 0, 0.0005]))
                    finally:
                        records[which].leave(which)
                    done += 1
        except TimeoutError:
            pass
    return done

async def storm(end):
    shared = [AsyncLock({directory!r} + "/" + str(i), durability="none") for i in range({locks})]
    return sum(await asyncio.gather(*(work(shared, end) for _ in range({tasks}))))
"""


@pytest.mark.stress
@pytest.mark.timeout(SECONDS * 4 + 120)
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.skipif(sys.version_info < (3, 11), reason="uses asyncio.timeout")
def test_a_storm_of_tasks(tmp_path, kills):
    locks, rounds = 3, max(1, int(SECONDS // 4))
    arena, logs = tmp_path / "arena", tmp_path / "logs"
    arena.mkdir()
    logs.mkdir()
    chance = random.Random(7)
    holds, done = [], 0
    for turn in range(rounds):
        children = []
        for number in range(3):
            child = Child()
            log = str(logs / f"{turn}.{number}.")
            child.run(
                _STORM.format(
                    tests=os.path.dirname(os.path.dirname(__file__)),
                    seed=100 * turn + number,
                    log=log,
                    directory=str(arena),
                    locks=locks,
                    tasks=20,
                )
            )
            children.append((child, log))
        for child, _ in children:
            child.send("asyncio.run(storm(time.monotonic() + 2))")
        killed_at = None
        if kills:
            time.sleep(chance.uniform(0.2, 1.5))
            killed_at = time.monotonic_ns()
            children[0][0].kill()
        for number, (child, log) in enumerate(children):
            killed = killed_at if kills and number == 0 else None
            if killed is None:
                done += child.receive(60)
            child.close()
            for which in range(locks):
                holds += read_holds(log + str(which), killed)
    assert done > 100 * rounds
    assert overlaps(holds) == []
    # A process that comes afterwards can take all, and finds nothing of what was before.
    for which in range(locks):
        lock = AsyncLock(arena / str(which))
        asyncio.run(lock.acquire(timeout=10))
        lock.release()
    assert not [name for name in os.listdir(arena) if name.endswith(".queue")]


@pytest.mark.stress
@pytest.mark.timeout(SECONDS * 4 + 120)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="uses asyncio.timeout")
def test_a_storm_of_signals_in_one_process(tmp_path):
    """Ctrl-C cancels what runs; whenever it comes, all is as if nothing had been."""
    path = str(tmp_path / "the.lock")
    with Child() as child:
        child.run(f"""
import asyncio, gc, signal, random, semlock
from semlock import AsyncLock; from semlock._core import capi
path = {path!r}
shared = AsyncLock(path, durability="none")
chance = random.Random(3)

async def main():
    # Only now: CPython has two gaps before.  A Ctrl-C in create_task() leaves a main task that
    # runs and that nothing cancels; one that comes while asyncio sets its handler cancels the
    # main task and is then forgotten, so that run() raises CancelledError.
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.02))
    async def work():
        while True:
            lock = chance.choice([shared, AsyncLock(path, durability="none")])
            async with lock:
                await asyncio.sleep(0)
    await asyncio.gather(*(work() for _ in range(10)))

def once():
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    assert not shared.held
    lock = semlock.Lock(path, durability="none")
    assert lock.try_acquire()
    lock.release()

# What asyncio makes of Ctrl-C: the main task is cancelled.
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
once()
""")
        child.run("""
import os
def files():
    gc.collect()
    capi.drain_pool()
    idle = {kept - 1 for kept in capi.POOL.idle_events if kept}
    return [number for number in os.listdir("/proc/self/fd") if int(number) not in idle]
""")
        before = child.run("len(files())")
        end = time.monotonic() + SECONDS / 2
        rounds = 0
        while time.monotonic() < end:
            child.run("for _ in range(20): once()")
            rounds += 20
        assert child.run("len(files())") == before
    assert rounds >= 20
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------- Ctrl-C anywhere

_MODULES = (
    "_locks/async_form.py",
    "_waiting/async_waiter.py",
    "_waiting/hub.py",
    "_waiting/sleeping.py",
)


class Arena:
    def __init__(self, path, neighbour):
        self.path = path
        self.neighbour = neighbour

    def strike_everywhere(self, prepare, step, *, at_least):
        # In a thread of its own, as in test_interrupts.py.
        with ThreadPoolExecutor(1) as thread:
            strikes = thread.submit(self._strike_everywhere, prepare, step).result()
        assert strikes >= at_least

    def _strike_everywhere(self, prepare, step):
        warm, operation, finish = prepare()
        operation()  # an event source stays with the process
        finish()
        if warm.held:
            warm.release()
        self.neighbour.run("if theirs.held: theirs.release()")
        for at in itertools.count(1, step):
            before = self.files()
            lock, operation, finish = prepare()
            strike = Strike(at, operation, _MODULES)
            try:
                finish()
                self.neighbour.run("if theirs.held: theirs.release()")
                self.judge(lock, strike)
                del lock, operation, finish
                assert self.files() == before
                left = os.listdir(os.path.dirname(self.path))
                assert [name for name in left if not name.endswith(".kept")] == []
            except AssertionError as error:
                raise AssertionError(f"struck at bytecode {at}, {strike.where}") from error
            # Struck in a __del__, no caller hears of it.
            if not strike.struck and not strike.where:
                return at - 1
        return None

    @staticmethod
    def files():
        gc.collect()
        capi.drain_pool()
        return len(os.listdir("/proc/self/fd"))

    def judge(self, lock, strike):
        assert lock.held == os.path.exists(self.path)
        if not strike.struck:
            assert lock.held
        if lock.held:
            if strike.struck:
                handlers = [n for n in strike.rest if n.startswith(HANDLERS_RUN_AT)]
                assert not handlers, f"done, but a handler could still run: {strike.rest}"
            lock.release()
        taken = self.neighbour.run(
            "taken = theirs.try_acquire(); taken and theirs.release(); taken"
        )
        assert taken


@pytest.fixture
def arena(tmp_path, monkeypatch):
    # What is struck in a __del__ would be kept for a report, with all that it refers to; and
    # a coroutine that is struck before it could be awaited says so.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    path = str(tmp_path / "the.lock")
    with Child() as neighbour:
        neighbour.run(f"""
semlock._core.capi.POOL.keep = 0
theirs = semlock.Lock({path!r}, durability="none")""")
        yield Arena(path, neighbour)


def _prepared(function, arena, **options):
    """Give a lock, and what runs a coroutine function with it in a loop that has its hub.

    An event source that is taken in the moment of a strike is lost with it; that is once.
    """
    lock = AsyncLock(arena.path, durability="none", **options)
    loop = asyncio.new_event_loop()

    async def listen():
        hub.hub_here()

    def finish():  # as asyncio.run() does
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        loop.close()

    loop.run_until_complete(listen())
    return lock, lambda: loop.run_until_complete(function(lock)), finish


# Every bytecode takes its time, so mostly it is one of some.
steps = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.stress)])


@steps
def test_ctrl_c_in_an_acquire_of_a_free_lock(arena, step):
    async def acquire(lock):
        await lock.acquire()

    arena.strike_everywhere(lambda: _prepared(acquire, arena), step, at_least=100)


@steps
def test_ctrl_c_in_a_try(arena, step):
    def prepare():
        lock = AsyncLock(arena.path, durability="none")
        return lock, lock.try_acquire, lambda: None

    arena.strike_everywhere(prepare, step, at_least=30)


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.stress)])
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fair", [False, True])
def test_ctrl_c_in_a_wait(arena, fair, step):
    async def acquire(lock):
        loop = asyncio.get_running_loop()
        loop.call_soon(arena.neighbour.run, "theirs.release()")
        await lock.acquire()

    def prepare():
        arena.neighbour.run("theirs.acquire(); None")
        return _prepared(acquire, arena, fair=fair)

    arena.strike_everywhere(prepare, step, at_least=200)
