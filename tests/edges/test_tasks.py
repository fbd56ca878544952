"""Tasks that wait: in the order of asking, behind those who are stopped, and for ever."""

# The loop of a test may stand still.

import asyncio
import math
import os
import signal
import sys
import time

import pytest

import semlock
from semlock import AsyncLock, AsyncSharedLock, AsyncSlotLock, Lock
from semlock._core import capi, waits
from semlock._locks import base, reading, slots
from semlock._waiting import hub as _hub
from semlock._waiting import sleeping as _sleeping
from semlock._waiting.hub import hub_here
from support import Child, in_a_fork, trio_or_skip, wait_until

# Those who are killed leave their tickets to the next one who waits, or cleans.
pytestmark = pytest.mark.leaves("queue")

FAST = {"durability": "none"}

# A busy machine needs more than the 0.3 s that are promised of an idle one; without the
# mechanism it is for ever, or some seconds for each that is stopped.
BOUND = 2.0

queues_by_fifo = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="tickets are FIFOs there"
)


@pytest.fixture
def neighbour():
    with Child() as child:
        yield child


def run(function):
    async def whole():
        answer = await asyncio.wait_for(asyncio.create_task(function()), 60)
        hub = hub_here()
        assert (hub.waits, hub.lines, hub.sleepers) == (set(), {}, {})
        return answer

    return asyncio.run(whole())


async def sleeping(*tasks):
    """Give tasks the time to fall asleep: they don't, unless they wait for something else."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def tickets(directory):
    """List the tickets of those who wait and have done all to be seen."""
    queues = [name for name in os.listdir(directory) if name.endswith(".queue")]
    if not queues:
        return []
    queue = os.path.join(directory, queues[0])
    try:
        found = sorted(os.path.join(queue, name) for name in os.listdir(queue))
    except FileNotFoundError:
        return []
    return [name for name in found if capi.ticket_state(os.fsencode(name)) == capi.TICKET_WAITS]


async def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


# ---------------------------------------------------------------------- in order of asking


async def _order_beside(path, neighbour, *, cancel_the_first):
    """Have two tasks ask for a fair lock, and then another process: who has it in which order."""
    order = []
    directory = os.path.dirname(path)
    holder = Lock(path, **FAST)
    holder.acquire()

    async def use(name):
        async with AsyncLock(path, fair=True, **FAST):
            order.append((time.monotonic(), name))
        if name == "first":
            # Its ticket has gone by now.  Another process needs less to come in before those
            # who have none, and more to take one that is there for stopped.
            time.sleep(0.04)  # noqa: ASYNC251

    tasks = [asyncio.create_task(use(name)) for name in ("first", "second")]
    await sleeping(*tasks)
    neighbour.run("import threading, time, semlock")
    neighbour.run(f"""
def use():
    with semlock.Lock({path!r}, fair=True, durability="none"):
        got.append(time.monotonic())
got = []
thread = threading.Thread(target=use)
thread.start()""")
    await until(lambda: len(tickets(directory)) == 2)
    if cancel_the_first:
        tasks[0].cancel()
    holder.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    neighbour.run("thread.join()")
    order.append((neighbour.run("got[0]"), "other"))
    return [name for _, name in sorted(order)]


@queues_by_fifo
def test_a_task_in_line_is_before_a_process_that_asked_later(path, neighbour):
    order = run(lambda: _order_beside(path, neighbour, cancel_the_first=False))
    assert order == ["first", "second", "other"]


@queues_by_fifo
def test_so_it_is_when_the_first_of_the_line_gives_up(path, neighbour):
    order = run(lambda: _order_beside(path, neighbour, cancel_the_first=True))
    assert order == ["second", "other"]


@pytest.mark.parametrize("kind", ["plain", "fair", "slots", "writer"])
def test_who_lets_go_and_asks_again_comes_after_those_who_wait(path, kind):
    order = []
    lock = {
        "plain": lambda: AsyncLock(path, **FAST),
        "fair": lambda: AsyncLock(path, fair=True, **FAST),
        "slots": lambda: AsyncSlotLock(path, 1, **FAST),
        "writer": lambda: AsyncSharedLock(path, **FAST),
    }[kind]()

    async def main():
        async def use(name):
            async with lock:
                order.append(name)
                await asyncio.sleep(0)

        async with lock:
            tasks = [asyncio.create_task(use(name)) for name in "abcd"]
            await sleeping(*tasks)
        await use("again")
        await asyncio.gather(*tasks)

    run(main)
    assert order == ["a", "b", "c", "d", "again"]


@pytest.mark.parametrize("fair", [False, True])
def test_readers_go_in_together_up_to_the_next_writer(path, fair):
    inside, seen = set(), []
    lock = AsyncSharedLock(path, fair=fair, **FAST)

    async def main():
        both = {pair: asyncio.Event() for pair in ("ab", "cd")}

        async def read(name):
            pair = next(pair for pair in both if name in pair)
            async with lock.shared():
                inside.add(name)
                if inside >= set(pair):
                    seen.append("".join(sorted(inside)))
                    both[pair].set()
                await both[pair].wait()
                inside.discard(name)

        async def write():
            async with lock:
                seen.append("".join(sorted(inside | {"w"})))

        async with lock:
            tasks = [
                asyncio.create_task(what)
                for what in (read("a"), read("b"), write(), read("c"), read("d"))
            ]
            await sleeping(*tasks)
        await asyncio.gather(*tasks)

    run(main)
    assert seen == ["ab", "w", "cd"]


# ---------------------------------------------------------------------- for ever


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e9])
@pytest.mark.parametrize("kind", ["plain", "slots", "reader", "any"])
def test_an_endless_timeout_is_none(path, loop, timeout, kind):
    async def main(sleep, begin):
        lock = AsyncLock(path, timeout=timeout, **FAST)
        shared = AsyncSharedLock(path, timeout=timeout, **FAST)
        take = {
            "plain": lock.acquire,
            "slots": AsyncSlotLock(path, 1, timeout=timeout, **FAST).acquire,
            "reader": shared.acquire_shared,
            "any": lambda: semlock.acquire_any_async([lock], timeout),
        }[kind]
        done = []

        async def use():
            got = await take()
            done.append(1)
            got.release() if kind == "any" else await got.__aexit__(None, None, None)

        holder = Lock(f"{path}.1" if kind == "slots" else path, **FAST)
        holder.acquire()
        for _ in range(3):  # also behind others
            begin(use)
        await sleep(0.05)
        assert not done
        holder.release()
        while len(done) < 3:
            await sleep(0.001)

    if loop == "trio":
        trio = trio_or_skip()

        async def whole():
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    await main(trio.sleep, nursery.start_soon)

        trio.run(whole)
        return
    tasks = []
    uvloop = pytest.importorskip("uvloop") if loop == "uvloop" else None
    runs = main(asyncio.sleep, lambda f: tasks.append(asyncio.ensure_future(f())))
    if uvloop is not None:
        made = uvloop.new_event_loop()
        try:
            made.run_until_complete(asyncio.wait_for(runs, 30))
        finally:
            made.close()
    else:
        asyncio.run(asyncio.wait_for(runs, 30))


# ---------------------------------------------------------------------- behind the stopped


@pytest.fixture
def stopped(path):
    """Give what stops processes in the queue of a lock, or of slots, before anyone else."""
    children = []

    def stop(count, make):
        for _ in range(count):
            child = Child()
            children.append(child)
            child.run("import semlock, threading, os")
            child.run(f"lock = {make}")
            before = len(tickets(os.path.dirname(path)))
            child.run("threading.Thread(target=lock.acquire, daemon=True).start()")
            wait_until(
                lambda n=before: len(tickets(os.path.dirname(path))) > n, "it stands there"
            )
            pid = child.run("os.getpid()")
            os.kill(pid, signal.SIGSTOP)

    yield stop
    for child in children:
        child.kill()
        child.close()


_WAYS = {
    "plain": ("semlock.Lock({!r}, fair=True)", lambda p: AsyncLock(p, **FAST)),
    "fair": ("semlock.Lock({!r}, fair=True)", lambda p: AsyncLock(p, fair=True, **FAST)),
    "slots": (
        "semlock.SlotLock({!r}, 1, fair=True)",
        lambda p: AsyncSlotLock(p, 1, fair=True, **FAST),
    ),
    "reader": (
        "semlock.Lock({!r}, fair=True)",
        lambda p: AsyncSharedLock(p, fair=True, **FAST).shared(),
    ),
    "writer": (
        "semlock.Lock({!r}, fair=True)",
        lambda p: AsyncSharedLock(p, fair=True, **FAST),
    ),
}


@queues_by_fifo
@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.stress)])
@pytest.mark.parametrize("kind", list(_WAYS))
def test_a_task_behind_the_stopped_has_a_free_lock_soon(path, stopped, kind, count):
    theirs, ours = _WAYS[kind]
    holder = Lock(f"{path}.1" if kind == "slots" else path, **FAST)
    holder.acquire()
    stopped(count, theirs.format(path))

    async def main():
        async def use():
            async with ours(path):
                return time.monotonic()

        # Two, so that what is behind the first of the line comes to it as well.
        tasks = [asyncio.create_task(use()) for _ in range(2)]
        await sleeping(*tasks)
        began = time.monotonic()
        holder.release()
        return max(await asyncio.gather(*tasks)) - began

    assert run(main) < BOUND


def asking(kind, path):
    """Give a fair lock of a kind, its way to wait and its way to try."""
    lock = {
        "fair": lambda: AsyncLock(path, fair=True, **FAST),
        "slots": lambda: AsyncSlotLock(path, 1, fair=True, **FAST),
    }.get(kind, lambda: AsyncSharedLock(path, fair=True, **FAST))()
    if kind == "reader":
        return lock, lock.acquire_shared, lock.try_acquire_shared
    return lock, lock.acquire, lock.try_acquire


@queues_by_fifo
@pytest.mark.parametrize("kind", ["fair", "slots", "writer", "reader"])
@pytest.mark.parametrize("way", ["try_acquire", "acquire(0)"])
def test_who_only_asks_behind_the_stopped_has_a_free_lock_soon(path, stopped, way, kind):
    theirs, _ = _WAYS[kind]
    holder = Lock(f"{path}.1" if kind == "slots" else path, **FAST)
    holder.acquire()
    stopped(1, theirs.format(path))
    holder.release()

    async def main():
        lock, take, attempt = asking(kind, path)
        began = time.monotonic()
        if way == "acquire(0)":
            # In one call: it may sleep, but not for long.
            async with await asyncio.create_task(take(timeout=0)):
                return time.monotonic() - began
        while True:
            if attempt():
                break
            await asyncio.sleep(0.01)
            assert time.monotonic() - began < 30
        lock.release()
        return time.monotonic() - began

    assert asyncio.run(main()) < BOUND


@queues_by_fifo
@pytest.mark.parametrize("kind", ["fair", "slots", "writer", "reader"])
def test_who_only_asks_for_what_is_held_is_told_at_once(path, stopped, kind, monkeypatch):
    """And a try never sleeps, whichever is first: it would hold up the loop."""
    theirs, _ = _WAYS[kind]

    def never(*_):
        raise AssertionError("it would sleep")

    for module in (base, reading, slots):
        monkeypatch.setattr(module, "insisting", never)
    with Lock(f"{path}.1" if kind == "slots" else path, **FAST):
        stopped(1, theirs.format(path))

        async def main():
            _, take, attempt = asking(kind, path)
            monkeypatch.setattr(_hub.Hub, "rest", never)
            with pytest.raises(semlock.LockTimeoutError):
                await asyncio.create_task(take(timeout=0))
            return attempt

        attempt = asyncio.run(main())

    async def only_try():
        assert not attempt()  # it is free now, but another one is first

    asyncio.run(only_try())


@queues_by_fifo
def test_a_loop_that_stands_still_holds_up_no_other_and_goes_on(path):
    """Its task is the first in the queue, and loses its ticket; later it has its old place."""
    with Child() as child, Child() as holder:
        holder.run(f"import semlock; lock = semlock.Lock({path!r}); lock.acquire(); None")
        child.run(f"""
import asyncio, semlock, time
async def main():
    async def use():
        async with semlock.AsyncLock({path!r}, fair=True):
            return True
    tasks = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0.1)
    go_on.wait(30)
    return await asyncio.wait_for(asyncio.gather(*tasks), 30)
import threading
go_on = threading.Event()
""")
        child.run("""
result = []
thread = threading.Thread(target=lambda: result.append(asyncio.run(main())))
thread.start()""")
        wait_until(lambda: tickets(os.path.dirname(path)), "it stands in the queue")
        time.sleep(0.3)
        mine = Lock(path, fair=True, **FAST)
        with pytest.raises(semlock.LockTimeoutError):
            mine.acquire(timeout=0.01)
        began = time.monotonic()
        holder.run("lock.release()")
        mine.acquire(timeout=30)
        took = time.monotonic() - began
        child.run("go_on.set()")
        time.sleep(0.3)
        assert child.run("result") == []
        mine.release()
        child.run("thread.join()")
        assert child.run("result") == [[True, True, True]]
        assert took < BOUND


# ---------------------------------------------------------------------- bells


@queues_by_fifo
def test_who_has_no_event_source_hears_of_the_one_before(path, neighbour, monkeypatch):
    """By the end of its ticket: no look comes between."""
    monkeypatch.setattr(waits, "take_events", lambda pool: -1)
    neighbour.run(f"""
import semlock, threading
lock, second = (semlock.Lock({path!r}, fair=True) for _ in range(2))
lock.acquire()
stay, there = threading.Event(), threading.Event()
def wait():
    with second:
        there.set()
        stay.wait(30)
thread = threading.Thread(target=wait)
thread.start()""")
    looks = []

    async def main():
        await until(lambda: tickets(os.path.dirname(path)))
        neighbour.run("lock.release(); there.wait(30)")
        waiting = asyncio.create_task(AsyncLock(path, fair=True).acquire())
        await until(lambda: tickets(os.path.dirname(path)))  # the other one holds by now
        await asyncio.sleep(0.3)
        wait = waits.Wait.wait
        monkeypatch.setattr(
            waits.Wait, "wait", lambda self, at: (looks.append(1), wait(self, at))[1]
        )
        await asyncio.sleep(0.5)
        assert len(looks) <= 6
        rung = []
        look, read = _sleeping.Sleeper.look, _sleeping.Bells.read.__code__

        def noted(self, **how):
            if sys._getframe(1).f_code is read:
                rung.append(1)
            look(self, **how)

        monkeypatch.setattr(_sleeping.Sleeper, "look", noted)
        neighbour.run("stay.set(); thread.join()")
        async with await waiting:
            assert rung

    run(main)


@queues_by_fifo
def test_a_bell_is_not_taken_for_another_one_of_its_number():
    rung = []

    class Listener:
        def __init__(self, name):
            self.name = name

        def look(self):
            rung.append(self.name)

    bells = _sleeping.Bells()
    one, other = Listener("one"), Listener("other")
    first = os.pipe()
    bells.listen(first[0], one)
    os.close(first[0])
    os.close(first[1])
    second = os.pipe()
    assert second == first
    bells.listen(second[0], other)
    bells.ignore(first[0], one)  # late: the number is the other's by now
    bells.read()
    assert rung == []
    os.close(second[1])
    bells.read()
    assert rung == ["other"]
    # It is told once, although nothing takes it out.
    assert bells._poll.poll(0) == []
    os.close(second[0])
    bells.close()


@queues_by_fifo
def test_a_forked_child_has_no_copy_of_what_hears_bells():
    async def main():
        hub = hub_here()
        theirs, ours = os.pipe()
        assert hub.hear_bell(theirs, None)
        assert hub._bells is not None
        assert in_a_fork(lambda: hub._bells) is None
        os.close(theirs)
        os.close(ours)

    run(main)


# ---------------------------------------------------------------------- short of descriptors


@queues_by_fifo
def test_tasks_wait_also_without_a_descriptor_to_spare(path, neighbour):
    neighbour.run(f"import semlock; lock = semlock.Lock({path!r}); lock.acquire(); None")
    with Child() as child:
        child.run(f"""
import asyncio, resource, semlock, os
async def main():
    loop = asyncio.get_running_loop()
    async def use(fair):
        async with semlock.AsyncLock({path!r}, fair=fair, durability="none"):
            return True
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))  # one for the lock's file
    tasks = [asyncio.create_task(use(n % 2 == 1)) for n in range(6)]
    await asyncio.sleep(0.2)
    started.set()
    return await asyncio.wait_for(asyncio.gather(*tasks), 30)
import threading
started, result = threading.Event(), []
thread = threading.Thread(target=lambda: result.append(asyncio.run(main())))
thread.start()
started.wait(30)
None""")
        neighbour.run("lock.release()")
        child.run("thread.join()")
        assert child.run("result") == [[True] * 6]


def test_who_may_hold_up_a_loop_is_counted_in_its_line_only(path):
    """The list of lines that says whether to look for one at all is empty when no task waits."""

    async def main():
        assert not _sleeping.crowded
        async with AsyncLock(path, **FAST):
            waits = asyncio.create_task(AsyncLock(path, **FAST).acquire())
            await sleeping(waits)
            assert _sleeping.crowded == {id(hub_here())}
        async with await waits:
            assert not _sleeping.crowded

    run(main)
