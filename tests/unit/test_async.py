"""AsyncLock: tasks that wait, without their loop, by the kernel's word and not by the clock."""

# The loop of a test may stand still.
# ruff: noqa: ASYNC110, ASYNC115, ASYNC240

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import semlock
from semlock import AsyncLock, Lock
from semlock._core import capi, waits
from semlock._locks import many
from semlock._waiting import async_waiter
from semlock._waiting import hub as _hub
from semlock._waiting import sleeping as _line
from support import Child, in_a_fork, take_away, trio_or_skip

# There a loop can listen to nothing that tells of changes: see test_windows.py for its waits.
FAST = {"durability": "none"}

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

# What a loop is told, by a descriptor that it listens to.
heard_by_a_loop = pytest.mark.skipif(
    sys.platform == "win32", reason="no loop can listen there, and every wait in it pauses"
)


def only_rechecks(monkeypatch):
    monkeypatch.setattr(capi.POOL, "safety", 10**12)


@pytest.fixture(autouse=True)
def no_safety(monkeypatch, request):
    """No waiter looks by the clock, so whatever comes was told."""
    if "safety" not in request.fixturenames:
        only_rechecks(monkeypatch)


@pytest.fixture
def safety():
    """But here they do."""


@pytest.fixture(scope="module")
def neighbour():
    with Child() as child:
        yield child


async def whole(function):
    """Run a coroutine function, and see that the loop's hub has nothing left of it."""
    # In a task of its own, whatever the version, which is gone when its waits are counted.
    await asyncio.wait_for(asyncio.create_task(function()), 60)
    hub = _hub.hub_here()
    assert (hub.waits, hub.sleepers, hub.lines) == (set(), {}, {})


def run(function):
    """Run a coroutine function with an end to it, in debug mode."""
    asyncio.run(whole(function), debug=True)


def files():
    """What this process has open.  Event sources are kept for the next wait, and no others are."""
    for _ in range(1 if sys.implementation.name == "cpython" else 5):
        gc.collect()  # elsewhere what has a finalizer takes several turns
    capi.drain_pool()
    many._end_those_before()  # what a wait for many locks has put off
    if sys.platform == "win32":
        return None  # the system doesn't tell it there
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory itself
            found.append((os.readlink(f"/proc/self/fd/{number}"), int(number)))
    sources = {number for name, number in found if name == "anon_inode:inotify"}
    if sys.implementation.name == "cpython":
        assert sources == {kept - 1 for kept in capi.POOL.idle_events if kept}
    return sorted(name for name, number in found if number not in sources)


@pytest.fixture
def nothing_left(tmp_path):
    """See that no descriptor, no file and no hub is left."""
    before = files()
    yield
    assert files() == before
    assert not list(_hub._alive)
    assert os.listdir(tmp_path) == []


async def waits_once(path):
    async with AsyncLock(path):
        with pytest.raises(TimeoutError):
            await asyncio.create_task(AsyncLock(path).acquire(timeout=0.01))


async def hear_of(hub, wait, until=None):
    heard = hub.hear(wait, until)
    if isinstance(heard, int):
        return heard
    try:
        return await heard.parked
    finally:
        heard.end()


async def heard(hub, wait, paths, until=None):
    """Hear for a wait that takes every holder for one that lives."""
    while (outcome := await hear_of(hub, wait, until)) == capi.LOOK:
        wait.judged(wait.which, capi.look(paths[wait.which]))
    return outcome


async def sleeping(*tasks):
    """Give tasks the time to fall asleep: they don't, unless they wait for something else."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def settled(*tasks):
    """Wait until tasks sleep that have looked for the last time, and do nothing but hear."""
    await sleeping(*tasks)
    hub = _hub.hub_here()
    while any(s.wait.recheck_at for sleepers in hub.sleepers.values() for s in sleepers):
        await asyncio.sleep(0.005)
    await sleeping(*tasks)


# ---------------------------------------------------------------------- what it is


def test_it_is_held_in_its_block(path, names):
    async def main():
        lock = AsyncLock(path, tag="why")
        async with lock as entered:
            assert entered is lock
            assert lock.held
            assert lock.token == lock.info.token
            assert lock.info.tag == "why"
            assert lock.status().verdict == "alive"
            lock.check()
            lock.refresh()
            assert Lock(path).try_acquire() is False
        assert not lock.held
        assert names() == []

    run(main)


def test_acquire_gives_a_manager_that_does_not_acquire_again(path):
    async def main():
        lock = AsyncLock(path)
        async with await lock.acquire(timeout=1) as entered:
            assert entered is lock
            assert lock.held
        assert not lock.held
        acquired = await lock.acquire()
        assert "acquired" in repr(acquired)
        lock.release()
        with pytest.raises(semlock.NotHeldError):
            lock.release()

    run(main)


def test_a_try_needs_no_loop(path):
    lock, other = AsyncLock(path), AsyncLock(path)
    assert lock.try_acquire()
    assert other.try_acquire() is False
    assert lock.try_acquire() is False
    lock.release()
    assert other.try_acquire()
    other.release()


def test_it_decorates_coroutine_functions(path):
    lock = AsyncLock(path)

    @lock
    async def job(number):
        """Do it."""
        assert lock.held
        await asyncio.sleep(0)
        return number

    async def main():
        assert await asyncio.gather(job(1), job(2)) == [1, 2]

    run(main)
    assert job.__doc__ == "Do it."
    with pytest.raises(TypeError, match="coroutine"):
        lock(len)


def test_a_plain_with_says_what_to_do(path):
    lock = AsyncLock(path)
    with pytest.raises(TypeError, match="async with"):
        lock.__enter__()
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(timeout=-1)


def test_a_loss_is_told_at_the_end_of_the_block(path):
    async def main():
        with pytest.raises(semlock.LockLostError):
            async with AsyncLock(path):
                take_away(path)

    run(main)


def test_importing_the_package_does_not_import_asyncio():
    code = (
        "import semlock, sys; assert 'asyncio' not in sys.modules; semlock.AsyncLock; "
        "assert 'asyncio' in sys.modules; assert semlock.AsyncLock.__module__ == 'semlock'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    with pytest.raises(AttributeError):
        _ = semlock.NoSuchThing


# ---------------------------------------------------------------------- which waits for which


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_tasks_exclude_each_other_in_order(path, nothing_left, shared, fair):
    async def main():
        one = AsyncLock(path, fair=fair, **FAST)
        inside, order = [], []

        async def work(number):
            async with one if shared else AsyncLock(path, fair=fair, **FAST):
                inside.append(number)
                await asyncio.sleep(0)
                assert inside == [number]
                order.append(number)
                inside.clear()

        await asyncio.gather(*(work(number) for number in range(30)))
        assert order == list(range(30))

    run(main)


def test_a_task_that_waits_for_itself_is_told(path, tmp_path):
    detour = str(tmp_path / "link" / "the.lock")
    if sys.platform == "win32":
        detour = path.upper()  # which is the same file there
    else:
        (tmp_path / "link").symlink_to(tmp_path)

    async def main():
        lock = AsyncLock(path)
        async with lock:
            for other in (lock, AsyncLock(path), AsyncLock(detour), AsyncLock(path, fair=True)):
                with pytest.raises(semlock.LockDeadlockError, match="very task") as caught:
                    await other.acquire()
                assert __file__ in str(caught.value)
                with pytest.raises(semlock.LockTimeoutError):
                    await other.acquire(timeout=0)
            # With others in line before it too, where no task looks at the file.
            waits = asyncio.create_task(AsyncLock(path).acquire())
            await sleeping(waits)
            with pytest.raises(semlock.LockDeadlockError):
                await AsyncLock(path).acquire()
            waits.cancel()
            with pytest.raises(semlock.LockDeadlockError, match="very thread"):
                Lock(path).acquire()
            assert lock.held
            lock.check()

    run(main)


def test_a_lock_that_the_thread_holds_by_itself_is_waited_for(path):
    async def main():
        lock = Lock(path)
        lock.acquire()
        waits = asyncio.create_task(AsyncLock(path).acquire())
        await sleeping(waits)
        lock.release()
        async with await waits:
            pass

    run(main)


def test_a_wait_that_is_given_up_does_not_take_the_lock_from_another_task(path):
    """The object is one, it was won in the meantime, and it is held by the same thread."""

    async def main():
        lock = AsyncLock(path)
        assert lock.try_acquire()
        waits = asyncio.create_task(lock.acquire())
        await sleeping(waits)
        lock.release()
        assert lock.try_acquire()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert lock.held
        lock.check()
        lock.release()

    run(main)


def test_any_task_may_let_go(path):
    async def main():
        lock = AsyncLock(path)
        await asyncio.create_task(lock.acquire())
        waits = asyncio.create_task(lock.acquire())
        await sleeping(waits)
        lock.release()
        await waits
        lock.release()

    run(main)


def test_several_loops_in_several_threads(path, nothing_left):
    inside, counts = [], []

    async def main(lock):
        for _ in range(20):
            async with lock or AsyncLock(path, **FAST):
                inside.append(1)
                await asyncio.sleep(0)
                assert len(inside) == 1
                inside.clear()
                counts.append(1)

    shared = AsyncLock(path, **FAST)
    threads = [
        threading.Thread(target=lambda lock=lock: asyncio.run(main(lock)))
        for lock in (None, None, shared, shared)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(counts) == 80
    del shared


# ---------------------------------------------------------------------- what it hears


@pytest.mark.parametrize("fair", [False, True])
def test_a_release_elsewhere_wakes(path, neighbour, nothing_left, fair):
    neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")

    async def main():
        waits = asyncio.create_task(AsyncLock(path, fair=fair).acquire())
        await settled(waits)
        assert os.path.exists(path)
        neighbour.run("lock.release()")
        async with await waits:
            assert neighbour.run("lock.try_acquire()") is False

    run(main)
    neighbour.run("semlock._core.capi.drain_pool()")


def test_a_death_wakes(path):
    async def main():
        with Child() as child:
            child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
            waits = asyncio.create_task(AsyncLock(path).acquire())
            await settled(waits)
            child.kill()
            async with await waits as lock:
                assert lock.info.pid == os.getpid()

    run(main)


@pytest.mark.skipif(sys.platform == "win32", reason="no witness is given up there")
def test_who_leaves_no_witness_is_found_out_by_the_clock(path, safety):
    async def main():
        with Child() as child:
            child.run(f"""
lock = semlock.Lock({path!r})
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))  # so it gives up the descriptor
lock.acquire(); None""")
            assert b"witness=left" in Path(path).read_bytes()
            waits = asyncio.create_task(AsyncLock(path).acquire())
            await settled(waits)
            child.kill()
            async with await waits:
                pass

    run(main)


@heard_by_a_loop
def test_what_is_not_told_is_seen_at_last(path, neighbour, monkeypatch, safety):
    monkeypatch.setattr(_hub.Hub, "_read", lambda self: self._marks.read(self.events))
    neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")

    async def main():
        waits = asyncio.create_task(AsyncLock(path).acquire())
        await settled(waits)
        neighbour.run("lock.release()")
        async with await waits:
            pass

    run(main)


@heard_by_a_loop
def test_when_the_kernel_has_lost_count_all_look(path, neighbour, monkeypatch):
    read = waits.Marks.read

    def overflow(self, events):
        if read(self, events):
            self.room[0], self.count = -1, 1
            return [-1]
        return []

    monkeypatch.setattr(waits.Marks, "read", overflow)
    neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")

    async def main():
        other = path + "2"
        with Lock(other):
            waits = asyncio.create_task(AsyncLock(path).acquire())
            also = asyncio.create_task(AsyncLock(other).acquire())
            await settled(waits, also)
            neighbour.run("lock.release()")
            async with await waits:
                await settled(also)
            also.cancel()

    run(main)


@heard_by_a_loop
def test_one_that_ends_does_not_make_another_deaf(path):
    """Two that watch one file have one mark, which the kernel forgets with the first."""

    async def main():
        hub = _hub.hub_here()
        lock = Lock(path)
        lock.acquire()
        mine = Lock(path)
        native = mine._native
        one, other = (waits.Wait((native,), hub=hub) for _ in range(2))
        outcomes = [
            asyncio.create_task(heard(hub, wait, [mine._encoded])) for wait in (one, other)
        ]
        await settled(*outcomes)
        assert one.sources()[0] == other.sources()[0] != []
        outcomes[0].cancel()
        await asyncio.wait([outcomes[0]])
        one.end()
        await settled(outcomes[1])
        lock.release()
        assert await outcomes[1] == capi.FREE
        other.end()

    run(main)


@heard_by_a_loop
def test_a_wait_may_be_for_any_of_some_paths(tmp_path):
    """What locks of several paths wait by."""

    async def main():
        hub = _hub.hub_here()
        held = [Lock(tmp_path / name) for name in "abc"]
        for lock in held:
            lock.acquire()
        mine = [Lock(lock.path) for lock in held]
        wait = waits.Wait([lock._native for lock in mine], hub=hub)
        paths = [lock._encoded for lock in mine]
        outcome = asyncio.create_task(heard(hub, wait, paths))
        await settled(outcome)
        held[1].release()
        assert await outcome == capi.FREE
        assert wait.which == 1
        held[1].acquire()
        end = capi.now_ns() + 10**7
        assert await heard(hub, wait, paths, end) == capi.TIME
        wait.end()
        for lock in held:
            lock.release()

    run(main)


class Deaf(asyncio.SelectorEventLoop):
    """A loop that can't listen to descriptors of others, like Windows' own."""

    def add_reader(self, *_):
        raise NotImplementedError


@pytest.mark.parametrize("core_hears", [False, True])
def test_a_loop_that_can_not_listen_pauses(
    path, neighbour, nothing_left, monkeypatch, core_hears
):
    """Whether the core could hear, which is so on Windows, or could not either."""
    if core_hears:
        wait = waits.Wait.wait

        def hears(self, until):
            outcome = wait(self, until)
            return capi.TIME if outcome == capi.BLIND else outcome

        monkeypatch.setattr(waits.Wait, "wait", hears)
    neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
    loop = Deaf()

    async def main():
        assert _hub.hub_here().events == -1
        lock = AsyncLock(path)
        with pytest.raises(semlock.LockTimeoutError):
            await lock.acquire(timeout=0.01)
        waits = asyncio.create_task(lock.acquire())
        await sleeping(waits)
        neighbour.run("lock.release(); semlock._core.capi.drain_pool()")
        async with await waits:
            pass

    loop.run_until_complete(whole(main))
    loop.close()
    del loop


def test_a_policy_of_the_users_is_asked_at_once_and_again_by_the_clock(path, neighbour):
    """And it is the waiter's own, whatever those think who wait already."""
    asked = []

    def after_some(status):
        asked.append(status)
        return "enough" if len(asked) >= 3 else None

    async def main():
        neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        waits = asyncio.create_task(AsyncLock(path).acquire())
        await settled(waits)
        async with AsyncLock(path, policy=after_some):
            assert len(asked) == 3
            await sleeping(waits)
        async with await waits:
            pass
        with pytest.raises(semlock.LockLostError):
            neighbour.run("lock.release()")

    run(main)


def test_who_waits_tells_of_it(path, monkeypatch):
    monkeypatch.setattr("semlock._waiting._FIRST_GAP", 0.01)
    told = []

    async def main():
        async with AsyncLock(path):
            first = AsyncLock(path, on_wait=lambda *what: told.append(("first", *what)))
            second = AsyncLock(path, on_wait=lambda *what: told.append(("second", *what)))
            waits = [asyncio.create_task(lock.acquire()) for lock in (first, second)]
            while {name for name, _, waited in told if waited > 0} != {"first", "second"}:
                await asyncio.sleep(0.001)
            for wait in waits:
                wait.cancel()
        assert all(status.info.pid == os.getpid() for _, status, _ in told)

        def enough(status, waited):
            raise OverflowError

        async with AsyncLock(path):
            with pytest.raises(OverflowError):
                await asyncio.create_task(AsyncLock(path, on_wait=enough).acquire())

    run(main)


# ---------------------------------------------------------------------- what it costs


@heard_by_a_loop
def test_many_that_wait_need_one_descriptor_and_no_thread(tmp_path):
    count = 300

    async def main():
        held = [Lock(tmp_path / str(number), **FAST) for number in range(count)]
        for lock in held:
            lock.acquire()
        await waits_once(str(tmp_path / "warm"))
        before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()

        async def wait(lock):
            async with AsyncLock(lock.path, **FAST):
                pass

        tasks = [asyncio.create_task(wait(lock)) for lock in held]
        await sleeping(*tasks)
        prepared = len(os.listdir("/proc/self/fd")) - before  # files of the first who wait
        assert 0 <= prepared <= 4
        assert threading.active_count() <= threads  # earlier tests' may end meanwhile
        for lock in held:
            lock.release()
        await asyncio.gather(*tasks)

    run(main)


@heard_by_a_loop
def test_a_place_in_the_queue_comes_with_the_first_lost_race(path, neighbour, names):
    """Before that it would be a descriptor for nothing; fair locks have it from the start."""

    def queues():
        return [name for name in names() if name.endswith(".queue")]

    async def main():
        neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        fair = asyncio.create_task(AsyncLock(path, fair=True).acquire())
        await sleeping(fair)
        assert len(queues()) == 1
        fair.cancel()
        await asyncio.wait([fair])
        lock = AsyncLock(path)
        waits = asyncio.create_task(lock.acquire())
        await sleeping(waits)
        assert queues() == []
        # It is told that the lock is free, and another one is faster.
        neighbour.run("lock.release(); lock.acquire(); None")
        while not queues():
            await asyncio.sleep(0.001)
        assert not waits.done()
        neighbour.run("lock.release()")
        async with await waits:
            assert len(queues()) == 1  # those who came after it wait for the end of its ticket
        assert queues() == []

    run(main)


@heard_by_a_loop
def test_the_end_of_a_holder_is_no_lost_race(path, monkeypatch):
    """It is reported as a release is; the try that fails then finds that no holder lives."""
    stood = []
    monkeypatch.setattr(async_waiter.AsyncWaiter, "stand", lambda wait: stood.append(wait))

    async def main():
        with Child() as child:
            child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
            waits = asyncio.create_task(AsyncLock(path).acquire(timeout=10))
            await sleeping(waits)
            child.kill()
            async with await waits:
                assert not stood

    run(main)


@heard_by_a_loop
def test_of_many_for_one_lock_one_stands_in_the_queue(path, neighbour, tmp_path):
    async def main():
        neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        tasks = [asyncio.create_task(AsyncLock(path).acquire()) for _ in range(20)]
        await sleeping(*tasks)
        while not (queue := [n for n in os.listdir(tmp_path) if n.endswith(".queue")]):
            # Within one tick of the file's times it looks as if nothing had happened.
            neighbour.run("lock.release(); lock.acquire(); None")
            await asyncio.sleep(0.01)
        await sleeping(*tasks)
        waiting = [n for n in os.listdir(tmp_path / queue[0]) if not n.endswith(".who")]
        # On a busy machine the neighbour may have stood there too.
        assert len(waiting) <= 2
        neighbour.run("lock.release()")
        for task in tasks:
            async with await task:
                pass

    run(main)


# ---------------------------------------------------------------------- giving up


def test_time_runs_out(path, nothing_left):
    async def main():
        async with AsyncLock(path):

            async def in_vain(lock, **options):
                with pytest.raises(semlock.LockTimeoutError) as caught:
                    await lock.acquire(**options)
                assert caught.value.status.info.pid == os.getpid()

            await asyncio.gather(
                in_vain(AsyncLock(path, timeout=0.02)),  # the first of the line
                in_vain(AsyncLock(path), timeout=0.02),  # and behind it
                in_vain(AsyncLock(path, fair=True), timeout=0.02),
                in_vain(AsyncLock(path), timeout=0),
            )
            with pytest.raises(asyncio.TimeoutError):
                # In a task of its own: later versions would await it in the one that holds.
                await asyncio.wait_for(asyncio.create_task(AsyncLock(path).acquire()), 0.02)

    run(main)


class Interrupted(BaseException):
    pass


class Driver:
    """Drives a coroutine by hand, and throws something into it at its n-th sleep."""

    def __init__(self, coroutine, at, error, *, late):
        self.coroutine, self.at, self.error, self.late = coroutine, at, error, late
        self.sleeps = 0

    def __await__(self):
        while True:
            try:
                future = self.coroutine.send(None)
            except StopIteration as end:
                return end.value
            if future is None:  # a bare yield, of sleep(0)
                yield None
                continue
            self.sleeps += 1
            future._asyncio_future_blocking = False
            if self.sleeps == self.at and not self.late:
                self.coroutine.throw(self.error())
            future._asyncio_future_blocking = True
            yield future
            if self.sleeps == self.at:
                self.coroutine.throw(self.error())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("kind", ["plain", "fair", "blind", "second"])
def test_a_wait_is_given_up_at_every_sleep(path, nothing_left, kind, error, late):
    """Before it sleeps, or when it was just woken: what it was told then is told to others."""

    async def attempt(at):
        fair = kind == "fair"
        holder = AsyncLock(path, **FAST)
        await holder.acquire()
        lock = AsyncLock(path, fair=fair, **FAST)
        ahead = behind = None
        if kind == "second":
            ahead = asyncio.create_task(AsyncLock(path, **FAST).acquire())
            await sleeping(ahead)
        driver = Driver(lock.acquire(), at, error, late=late)

        async def drive():
            # Caught, for a KeyboardInterrupt would end the loop.
            try:
                return await driver
            except error:
                return None

        driven = asyncio.create_task(drive())
        await sleeping()
        behind = asyncio.create_task(AsyncLock(path, fair=fair, **FAST).acquire())
        await sleeping(behind)
        # Let go, and let another process' win come in between, so that it sleeps again.
        holder.release()
        if ahead is not None:
            async with await ahead:
                await asyncio.sleep(0)
        won = await driven
        if won is None:
            assert not lock.held
        else:
            assert lock.held
            async with won:
                pass
        async with await behind:
            pass
        return driver.sleeps

    async def main():
        if kind == "blind":
            hub = _hub.hub_here()
            events, hub.events = hub.events, -1
        sleeps = await attempt(10**9)
        assert sleeps >= 1
        for at in range(1, sleeps + 1):
            await attempt(at)
        if kind == "blind":
            hub.events = events

    run(main)


@heard_by_a_loop
def test_who_is_woken_and_cancelled_at_once_lets_the_next_have_it(
    path, nothing_left, monkeypatch
):
    leave = _line.Line.leave

    async def main():
        holder = AsyncLock(path)
        await holder.acquire()
        tasks = [asyncio.create_task(AsyncLock(path).acquire()) for _ in range(3)]
        await sleeping(*tasks)
        cancelled = []

        def leave_and_cancel_the_next(line, *left):
            leave(line, *left)
            if len(cancelled) == 1:
                cancelled.append(tasks[1].cancel())

        with monkeypatch.context() as patch:
            patch.setattr(_line.Line, "leave", leave_and_cancel_the_next)
            holder.release()
            hub = _hub.hub_here()
            while not tasks[0]._fut_waiter.done():
                hub._read()
            cancelled.append(tasks[0].cancel())
            async with await tasks[2]:
                pass
        assert cancelled == [True, True]
        assert [task.cancelled() for task in tasks] == [True, True, False]

    run(main)


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="what is dropped is collected late there"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("drop_the_loop_first", [False, True])
def test_a_loop_is_closed_while_tasks_wait(path, nothing_left, drop_the_loop_first):
    holder = Lock(path)
    holder.acquire()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it complains of pending tasks
    fair = [AsyncLock(path, fair=True) for _ in range(2)]
    locks = [AsyncLock(path) for _ in range(3)]
    tasks = [loop.create_task(lock.acquire()) for lock in (*fair, *locks)]

    async def main():
        await sleeping(*tasks)

    loop.run_until_complete(main())
    loop.close()
    if drop_the_loop_first:
        del loop
    tasks.clear()
    gc.collect()
    holder.release()
    again = AsyncLock(path)
    assert again.try_acquire()
    again.release()
    if not drop_the_loop_first:
        del loop
    asyncio.run(waits_once(path))  # the next hub sweeps away what closed loops had


@heard_by_a_loop
def test_an_event_source_is_given_back_by_the_last_who_uses_it(path, nothing_left):
    """The garbage collector may come to a hub before it comes to its waits."""

    def idle():
        return {kept - 1 for kept in capi.POOL.idle_events if kept}

    with Lock(path) as lock:
        for hub_first in (True, False):
            hub = _hub.Hub()
            events = hub.events
            wait = waits.Wait((lock._native,), hub=hub)
            assert wait.wait(capi.now_ns()) == capi.LOOK
            assert events not in idle()
            if hub_first:
                hub.__del__()
                assert events not in idle()
                wait.end()
            else:
                wait.end()
                assert events not in idle()
                hub.__del__()
            assert events in idle()
            del hub, wait


@needs_fork
def test_a_forked_child_waits_for_nothing(path, tmp_path):
    async def main():
        async with AsyncLock(path):
            fair = AsyncLock(path, fair=True)
            waits = [asyncio.create_task(lock.acquire()) for lock in (fair, AsyncLock(path))]
            await sleeping(*waits)
            hub = _hub.hub_here()

            def child():
                found = []
                for number in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(os.readlink(f"/proc/self/fd/{number}"))
                return hub.events, [n for n in found if str(tmp_path) in n or "inotify" in n]

            assert in_a_fork(child) == (-1, [])
            assert hub.events >= 0
            assert [n for n in os.listdir(tmp_path) if n.endswith(".queue")]

        async def use(task):
            async with await task:
                pass

        await asyncio.gather(*map(use, waits))  # in whatever order they win

    run(main)


@needs_fork
def test_a_forked_child_can_wait_in_a_loop_of_its_own(path):
    async def main():
        async with AsyncLock(path):
            waits = asyncio.create_task(AsyncLock(path).acquire())
            await sleeping(waits)

            def child():
                async def in_vain():
                    with contextlib.suppress(semlock.LockTimeoutError):
                        await AsyncLock(path).acquire(timeout=0.05)
                        return "won"
                    return "in vain"

                asyncio.set_event_loop(None)
                return asyncio.run(in_vain())

            assert in_a_fork(child) == "in vain"
            await sleeping(waits)
        async with await waits:
            pass

    run(main)


# ---------------------------------------------------------------------- trio


@pytest.fixture
def trio():
    return trio_or_skip()


def test_trio_tasks_wait_too(trio, path, names, neighbour):
    neighbour.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")

    async def main():
        inside, done = [], []

        async def work(number):
            async with AsyncLock(path, **FAST):
                inside.append(number)
                await trio.sleep(0)
                assert inside == [number]
                inside.clear()
                done.append(number)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(work, number)
                await trio.testing.wait_all_tasks_blocked()
                assert not done
                neighbour.run("lock.release()")
        assert len(done) == 20

    import trio.testing

    trio.run(main)
    capi.drain_pool()
    neighbour.run("semlock._core.capi.drain_pool()")
    assert names() == []


def test_trio_tasks_give_up(trio, path, names):
    async def main():
        lock = AsyncLock(path)
        async with lock:
            with pytest.raises(semlock.LockDeadlockError):
                await AsyncLock(path).acquire()

            async def in_vain():
                with pytest.raises(semlock.LockTimeoutError):
                    await AsyncLock(path).acquire(timeout=0.02)
                with trio.move_on_after(0.02) as scope:
                    await AsyncLock(path, fair=True).acquire()
                assert scope.cancelled_caught

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(in_vain)
            assert lock.held

    trio.run(main)
    capi.drain_pool()
    assert names() == []


@pytest.mark.parametrize("kind", ["lock", "slots", "writer", "reader", "all"])
def test_an_acquire_is_entered_at_once_or_awaited_first(kind, path):
    """Both, and as a task of its own."""

    async def work():
        plain = semlock.AsyncLock(path)
        shared = semlock.AsyncSharedLock(path)
        acquire = {
            "lock": lambda: plain.acquire(timeout=1),
            "slots": lambda: semlock.AsyncSlotLock(path, 2).acquire(timeout=1),
            "writer": lambda: shared.acquire(timeout=1),
            "reader": lambda: shared.acquire_shared(timeout=1),
            "all": lambda: semlock.acquire_all_async([plain], timeout=1),
        }[kind]
        async with acquire():
            assert os.listdir(os.path.dirname(path))
        async with await acquire():
            pass
        async with await asyncio.wait_for(acquire(), 5):
            pass
        if kind == "lock":
            async with await asyncio.create_task(acquire()):
                assert plain.held
            assert not plain.held

    asyncio.run(work())


def test_an_acquire_that_times_out_in_async_with_says_so(path):
    async def work():
        with semlock.Lock(path):
            lock = semlock.AsyncLock(path)

            async def other():
                with pytest.raises(semlock.LockTimeoutError):
                    async with lock.acquire(timeout=0.01):
                        pass

            await asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(other()))

    asyncio.run(work())
