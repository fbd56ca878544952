"""Crowds of tasks that want one lock: what they cost is counted, not timed."""

# The loop of a test may stand still.

import asyncio
import collections
import gc
import itertools
import os
import sys
import threading
import time
import types

import pytest

import semlock
from semlock import AsyncLock, AsyncSharedLock, AsyncSlotLock
from semlock._core import capi, waits
from semlock._waiting import async_waiter, sleeping
from semlock._waiting.hub import hub_here
from support import Child, trio_or_skip

CROWD = 300
FAST = {"durability": "none"}
KINDS = ("plain", "fair", "slots", "fair slots", "readers", "fair readers", "writers")

heard_by_a_loop = pytest.mark.skipif(
    sys.platform == "win32", reason="no loop can listen there, and every wait in it pauses"
)


step_by_step = pytest.mark.skipif(
    sys.platform == "win32",
    reason="a step does all that is due within a tick of its clock there",
)


@pytest.fixture(scope="module")
def neighbour():
    with Child() as child:
        yield child


def descriptors():
    return 0 if sys.platform == "win32" else len(os.listdir("/proc/self/fd"))


class Crowd:
    """Tasks of one kind that want one lock, and what holds it."""

    def __init__(self, kind, path):
        fair = kind.startswith("fair")
        self.path = f"{path}.1" if kind.endswith("slots") else path
        if kind in ("plain", "fair"):
            lock = AsyncLock(path, fair=fair, **FAST)
        elif kind.endswith("slots"):
            lock = AsyncSlotLock(path, 1, fair=fair, **FAST)
        else:
            lock = AsyncSharedLock(path, fair=fair, **FAST)
        self.manager = lock.shared if kind.endswith("readers") else lambda: lock
        self.asked, self.entered = [], []

    async def use(self, number):
        self.asked.append(number)
        async with self.manager():
            self.entered.append(number)

    def holder(self):
        lock = semlock.Lock(self.path)
        lock.acquire()
        return lock


class Counted:
    """How often the core was asked, and how many waits were made for that."""

    def __init__(self, monkeypatch):
        self.looks = self.waits = 0
        wait, start = waits.Wait.wait, async_waiter.Wait.__init__

        def counted_wait(this, until):
            self.looks += 1
            return wait(this, until)

        def counted_start(this, *arguments, **options):
            self.waits += 1
            start(this, *arguments, **options)

        monkeypatch.setattr(waits.Wait, "wait", counted_wait)
        monkeypatch.setattr(async_waiter.Wait, "__init__", counted_start)

    def reset(self):
        self.looks = self.waits = 0


@pytest.fixture
def counted(monkeypatch):
    return Counted(monkeypatch)


of_cpython = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="the objects are those of CPython's collector"
)


def stop_the_clock(monkeypatch, after=0):
    """Let no millisecond be over, which lets as many begin or end again, however busy it is."""
    monkeypatch.setattr(capi, "now_ns", itertools.count(capi.now_ns() + after).__next__)


async def all_wait():
    """Let all tasks begin to wait: the hub has a few of them begin in each step."""
    hub = hub_here()
    while True:
        for _ in range(20):
            await asyncio.sleep(0)
        if not hub.gate.tasks:
            return


def run(function):
    async def whole():
        answer = await asyncio.wait_for(asyncio.create_task(function()), 60)
        hub = hub_here()
        assert (hub.waits, hub.lines, list(hub.gate.tasks)) == (set(), {}, [])
        return answer

    return asyncio.run(whole())


# ---------------------------------------------------------------------- what they cost


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_that_waits_costs_what_one_costs(path, counted, kind):
    crowd = Crowd(kind, path)

    async def main():
        holder = crowd.holder()
        first = asyncio.create_task(crowd.use(-1))
        await asyncio.sleep(0.05)
        had, threads = descriptors(), threading.active_count()
        counted.reset()
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(CROWD)]
        await all_wait()
        assert counted.waits == 0
        counted.reset()
        # Some of those looks that come about every second, however many wait.
        await asyncio.sleep(0.4)
        assert counted.looks <= (12 if sys.platform != "win32" else 24)
        # The first one stands in the queue at last, which is a descriptor.
        assert descriptors() <= had + 1
        assert threading.active_count() <= threads  # earlier tests' may end meanwhile
        holder.release()
        await asyncio.gather(first, *tasks)

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_is_through_in_order_with_so_many_looks_for_each(path, counted, kind):
    crowd = Crowd(kind, path)

    async def main():
        holder = crowd.holder()
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(CROWD)]
        await all_wait()
        counted.reset()
        holder.release()
        await asyncio.gather(*tasks)

    run(main)
    assert crowd.entered == crowd.asked == list(range(CROWD))
    assert counted.looks <= 6 * CROWD


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_that_is_cancelled_makes_no_waits_and_leaves_nothing(
    path, names, counted, kind
):
    crowd = Crowd(kind, path)

    async def main():
        holder = crowd.holder()
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(CROWD)]
        await all_wait()
        counted.reset()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # Each that is cancelled is the first for a moment, which is no reason for a ticket.
        assert counted.waits <= 2
        holder.release()

    run(main)
    capi.drain_pool()
    assert names() == []


def objects():
    """Count what a full pass of the garbage collector walks over."""
    gc.collect()
    # Python 3.10 has a frame for each generator besides.
    return sum(type(one) is not types.FrameType for one in gc.get_objects())


# How many objects a task that waits has beyond those of one that waits for an Event.  A pass over
# all of them is the longest step of a loop in which thousands wait.
OBJECTS = {
    "plain": 6, "fair": 6, "slots": 6, "fair slots": 6, "readers": 10, "fair readers": 10,
    "writers": 8,
}  # fmt: skip


@of_cpython
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_waits_is_few_objects_for_the_garbage_collector(path, monkeypatch, kind):
    crowd = Crowd(kind, path)

    async def each(use):
        tasks = [asyncio.create_task(use()) for _ in range(20)]
        await all_wait()
        before = objects()
        tasks += [asyncio.create_task(use()) for _ in range(100)]
        await all_wait()
        found = (objects() - before) / 100
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return found

    async def main():
        holder = crowd.holder()
        stop_the_clock(monkeypatch)  # so most of them wait for their turn to begin
        bare = await each(asyncio.Event().wait)
        found = await each(lambda: crowd.use(0))
        monkeypatch.undo()
        holder.release()
        return found - bare - 1  # the coroutine of Crowd.use

    assert run(main) < OBJECTS[kind] + 0.5


@step_by_step
def test_few_begin_to_wait_in_one_step_of_the_loop(path, monkeypatch):
    crowd = Crowd("plain", path)
    in_line = []

    async def main():
        holder = crowd.holder()
        hub = hub_here()
        stop_the_clock(monkeypatch)
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(CROWD)]
        while not in_line or in_line[-1] < CROWD:
            await asyncio.sleep(0)
            in_line.append(sum(len(line) for line in hub.lines.values()))
        monkeypatch.undo()
        holder.release()
        await asyncio.gather(*tasks)

        return hub.in_a_step

    width = run(main)
    steps = [after - before for before, after in zip([0, *in_line], in_line, strict=False)]
    assert max(steps) <= 64 + width
    assert crowd.entered == list(range(CROWD))


@step_by_step
@pytest.mark.parametrize("given_up", [False, True], ids=["", "after all in line gave up"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_task_begins_before_one_that_asked_earlier_and_was_held_back(
    path, monkeypatch, kind, given_up
):
    crowd = Crowd(kind, path)

    async def main():
        holder, hub = crowd.holder(), hub_here()
        stop_the_clock(monkeypatch)
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(100)]
        await asyncio.sleep(0)
        in_line = 100 - len(hub.gate.tasks) if given_up else 0
        while not given_up and len(hub.gate.tasks) > hub.in_a_step:  # noqa: ASYNC110 - steps
            await asyncio.sleep(0)
        # All these are few enough for the milliseconds in which they come.  The last ones ask just
        # before those go on that were held back longest.
        for some in (tasks[:in_line:2], tasks[1:in_line:2]):
            stop_the_clock(monkeypatch, after=2_000_000)
            for task in some:
                task.cancel()
        holder.release()
        tasks += [asyncio.create_task(crowd.use(100 + number)) for number in range(20)]
        await asyncio.sleep(0)
        monkeypatch.undo()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert crowd.asked == list(range(120))
        assert crowd.entered == crowd.asked[in_line:]
        await all_wait()
        assert not sleeping.crowded

    run(main)


@step_by_step
def test_few_give_up_in_one_step_of_the_loop(path):
    """To say who holds the lock they look at it, which takes its time."""
    steps = collections.Counter()

    async def main():
        async with AsyncLock(path, **FAST):
            step = 0

            async def in_vain():
                with pytest.raises(semlock.LockTimeoutError):
                    await AsyncLock(path).acquire(timeout=0.3)
                steps[step] += 1

            tasks = [asyncio.create_task(in_vain()) for _ in range(300)]
            await all_wait()
            time.sleep(0.4)  # noqa: ASYNC251 - so that all of their times are over at once
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                step += 1

    run(main)
    assert sum(steps.values()) == 300
    assert max(steps.values()) <= 64


@pytest.mark.parametrize("let_go", [False, True], ids=["held", "let go at the same time"])
def test_a_crowd_that_is_cancelled_at_once_ends_in_many_steps(path, monkeypatch, let_go):
    """By itself asyncio runs all that are cancelled in a single step of its loop."""
    crowd = Crowd("fair", path)
    ended = []

    async def use(number):
        try:
            await crowd.use(number)
        except asyncio.CancelledError as error:
            ended.append(str(error))
            raise

    async def main():
        holder = crowd.holder()
        tasks = [asyncio.create_task(use(number)) for number in range(CROWD)]
        await all_wait()
        stop_the_clock(monkeypatch)
        for task in tasks:
            assert task.cancel("enough")
            assert task.cancel("more")
        if let_go:
            holder.release()
        steps = [0]
        while len(ended) < CROWD:
            await asyncio.sleep(0)
            steps.append(len(ended))
        monkeypatch.undo()
        assert max(b - a for a, b in itertools.pairwise(steps)) <= 2 * 64
        # None has it, though it was free before most of them were ended.
        assert crowd.entered == []
        if not let_go:
            holder.release()
        with semlock.Lock(path, timeout=5):
            pass

    run(main)
    assert ended == ["enough"] * CROWD


def test_times_that_are_over_take_no_room(path):
    async def main():
        hub = hub_here()
        async with AsyncLock(path, **FAST):
            keeps = asyncio.create_task(AsyncLock(path).acquire(timeout=60))
            await all_wait()
            for _ in range(20):
                tasks = [
                    asyncio.create_task(AsyncLock(path).acquire(timeout=60)) for _ in range(50)
                ]
                await all_wait()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            assert len(hub.timers._heap) <= 200
        async with await keeps:
            pass

    run(main)


# ---------------------------------------------------------------------- without events


@heard_by_a_loop
@pytest.mark.parametrize("kind", ["plain", "fair", "slots", "readers"])
def test_a_crowd_that_hears_nothing_costs_what_one_costs(path, counted, monkeypatch, kind):
    monkeypatch.setattr(waits, "take_events", lambda pool: -1)
    crowd = Crowd(kind, path)

    async def main():
        holder = crowd.holder()
        tasks = [asyncio.create_task(crowd.use(number)) for number in range(CROWD)]
        await all_wait()
        await asyncio.sleep(0.3)  # pauses that grow have grown
        counted.reset()
        await asyncio.sleep(0.4)
        # A look about every 25 to 75 ms, and perhaps a second one beside it.
        assert counted.looks <= 40
        counted.reset()
        holder.release()
        await asyncio.gather(*tasks)

    run(main)
    assert crowd.entered == list(range(CROWD))
    assert counted.looks <= 6 * CROWD


@heard_by_a_loop
def test_who_lets_go_has_the_next_of_its_loop_look_at_once(path, monkeypatch):
    """Where nothing is heard, each of a crowd that holds for a while would else pause."""
    monkeypatch.setattr(waits, "take_events", lambda pool: -1)
    monkeypatch.setattr(sleeping.Sleeper, "on_time", lambda _: None)

    async def main():
        lock = AsyncLock(path, **FAST)

        async def use():
            async with lock:
                for _ in range(5):
                    await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(*(use() for _ in range(50))), 10)

    run(main)


# ---------------------------------------------------------------------- trio


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd_in_trio_costs_the_same(path, counted, kind):
    trio = trio_or_skip()
    crowd = Crowd(kind, path)

    async def main():
        holder = crowd.holder()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(CROWD):
                    nursery.start_soon(crowd.use, number)
                await trio.sleep(0.1)
                while hub_here().gate.tasks:
                    await trio.sleep(0.01)
                counted.reset()
                await trio.sleep(0.3)
                assert counted.waits == 0
                assert counted.looks <= 10
                holder.release()
            hub = hub_here()
            assert (hub.waits, hub.lines) == (set(), {})

    trio.run(main)
    assert crowd.entered == crowd.asked
    assert counted.looks <= 6 * CROWD


@of_cpython
@pytest.mark.parametrize(("kind", "limit"), [("plain", 5), ("readers", 9)])
def test_a_task_of_trio_that_waits_is_few_objects_too(path, kind, limit):
    trio = trio_or_skip()
    crowd = Crowd(kind, path)

    async def each(use):
        async with trio.open_nursery() as nursery:

            async def begin(count):
                for _ in range(count):
                    nursery.start_soon(use)
                await trio.sleep(0.1)
                while hub_here().gate.tasks:
                    await trio.sleep(0.01)

            await begin(20)
            before = objects()
            await begin(100)
            found = (objects() - before) / 100
            nursery.cancel_scope.cancel()
        return found

    async def main():
        holder = crowd.holder()
        bare = await each(trio.Event().wait)
        found = await each(lambda: crowd.use(0))
        holder.release()
        return found - bare - 1  # the coroutine of Crowd.use

    assert trio.run(main) < limit + 0.5


@pytest.mark.parametrize("let_go", [False, True], ids=["held", "let go at the same time"])
def test_a_crowd_in_trio_that_is_cancelled_at_once_ends_in_many_steps(
    path, monkeypatch, let_go
):
    """By itself trio runs all that one call cancels in a single step of its loop."""
    trio = trio_or_skip()
    crowd = Crowd("fair", path)
    ended = []

    async def use(number):
        try:
            await crowd.use(number)
        finally:
            ended.append(number)

    async def main():
        holder = crowd.holder()
        steps = [0]
        with trio.fail_after(60):
            async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
                for number in range(CROWD):
                    nursery.start_soon(use, number)
                await trio.sleep(0.1)
                while hub_here().gate.tasks:
                    await trio.sleep(0.01)

                async def watch(*, task_status):
                    task_status.started()
                    while len(ended) < CROWD:
                        await trio.sleep(0)
                        steps.append(len(ended))

                await outer.start(watch)
                stop_the_clock(monkeypatch)
                if let_go:
                    holder.release()
                nursery.cancel_scope.cancel()
            monkeypatch.undo()
            # Two steps of 64 may end between two looks, and a few that were not asleep.
            assert (
                max(after - before for before, after in itertools.pairwise(steps)) < CROWD / 2
            )
            hub = hub_here()
            assert (hub.waits, hub.lines) == (set(), {})
        if not let_go:
            holder.release()
        with semlock.Lock(path, timeout=5):
            pass

    trio.run(main)
    assert sorted(ended) == list(range(CROWD))
