"""One lock by whatever path, form and object: a wait for oneself is told, and never endless."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading

import pytest

import semlock
from semlock import sema, sidecar, task
from semlock._locks import mine
from support import Child, wait_until

# How a path may be spelled otherwise, given the directory and a symlink to it.
SPELLINGS = {
    "the same": lambda at, link: os.path.join(at, "t.lock"),
    "through a symlink": lambda at, link: os.path.join(link, "t.lock"),
    "bytes": lambda at, link: os.fsencode(os.path.join(at, "t.lock")),
    "relative": lambda at, link: "t.lock",
    "relative with a dot": lambda at, link: "./t.lock",
}

# How a thread holds a lock, and how it may ask for it: each as a context manager.
FORMS = {
    "Lock": semlock.Lock,
    "fair Lock": lambda path: semlock.Lock(path, fair=True),
    "reentrant Lock": lambda path: semlock.Lock(path, reentrant=True),
    "Semaphore": sema.Semaphore,
    "TaskLock": lambda path: task.TaskLock(path, "me"),
    "writer": lambda path: semlock.SharedLock(path),
    "reader": lambda path: semlock.SharedLock(path).shared(),
    "any": lambda path: Any(path),
    "all": lambda path: All(path),
}
# Which form blocks which: readers and plain locks do not see each other.
PAIRS = [
    pair
    for pair in itertools.product(FORMS, repeat=2)
    if pair not in {("reader", other) for other in FORMS if other not in ("reader", "writer")}
]
ASYNC = {
    "AsyncLock": semlock.AsyncLock,
    "fair AsyncLock": lambda path: semlock.AsyncLock(path, fair=True),
    "async writer": semlock.AsyncSharedLock,
    "async reader": lambda path: semlock.AsyncSharedLock(path).shared(),
    "async any": lambda path: AsyncAny(path),
    "async all": lambda path: AsyncAll(path),
}


class Any:
    def __init__(self, path):
        self._locks = [semlock.Lock(path)]

    def __enter__(self):
        self._won = semlock.acquire_any(self._locks)

    def __exit__(self, *_):
        self._won.release()


class All:
    def __init__(self, path):
        self._locks = [semlock.Lock(path)]

    def __enter__(self):
        self._all = semlock.acquire_all(self._locks)

    def __exit__(self, *_):
        self._all.release()


class AsyncAny:
    def __init__(self, path):
        self._locks = [semlock.AsyncLock(path)]

    async def __aenter__(self):
        self._won = await semlock.acquire_any_async(self._locks)

    async def __aexit__(self, *_):
        self._won.release()


class AsyncAll(AsyncAny):
    async def __aenter__(self):
        self._won = await semlock.acquire_all_async(self._locks)


@pytest.fixture
def where(tmp_path, monkeypatch):
    """Give a directory, which is the working directory, and a symlink to it."""
    at, link = tmp_path / "at", tmp_path / "link"
    at.mkdir()
    try:
        link.symlink_to(at)
    except OSError:
        pytest.skip("no symlinks here")
    if not link.is_dir():
        pytest.skip("Wine makes no symlinks, and says that it does")
    monkeypatch.chdir(at)
    return str(at), str(link)


@pytest.fixture(autouse=True)
def a_wait_for_oneself_ends():
    """Let a test that waits for itself fail, and not hang."""
    import faulthandler

    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def in_the_way(first, second):
    """Tell whether a writer's two forms exclude each other: readers know only writers."""
    return "reader" not in first or "writer" in second or "reader" in second


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_thread_is_told_that_it_would_wait_for_itself(where, spelling):
    for first, second in PAIRS:
        held = FORMS[first](os.path.join(where[0], "t.lock"))
        asked = FORMS[second](SPELLINGS[spelling](*where))
        if (first, second) == ("reader", "reader") and spelling not in ("the same", "bytes"):
            continue  # no process writes, so there is nothing to wait for
        with held:
            with pytest.raises(semlock.LockDeadlockError, match="would wait for") as caught:
                asked.__enter__()
            assert str(caught.value).count(__file__) == 2 or {"any", "all"} & {first, second}
    assert os.listdir(where[0]) in ([], ["t.lock"]) or not os.path.exists("t.lock")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_task_is_told_that_it_would_wait_for_itself(where, spelling):
    async def main():
        for first, second in itertools.product(ASYNC, repeat=2):
            if not in_the_way(first, second):
                continue
            if first == second == "async reader" and spelling not in ("the same", "bytes"):
                continue
            async with ASYNC[first](os.path.join(where[0], "t.lock")):
                with pytest.raises(semlock.LockDeadlockError, match="very task"):
                    await ASYNC[second](SPELLINGS[spelling](*where)).__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_thread_is_told_that_it_would_stop_the_loop_whose_task_holds(where, spelling):
    async def main():
        for first, second in itertools.product(ASYNC, FORMS):
            if "reader" in first and second not in ("writer", "reader"):
                continue
            if "reader" in first and "reader" in second:
                continue
            async with ASYNC[first](os.path.join(where[0], "t.lock")):
                with pytest.raises(semlock.LockDeadlockError):
                    FORMS[second](SPELLINGS[spelling](*where)).__enter__()

    asyncio.run(main())


async def use(lock):
    async with lock:
        pass


async def begins(caplog):
    """Wait until a task has begun to wait, which the log says."""
    while not caplog.records:  # noqa: ASYNC110 - the event is a line of the log
        await asyncio.sleep(0)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_log_says_that_a_task_waits_for_what_its_thread_holds_by_a_form_for_threads(
    where, spelling, caplog
):
    """Which task took it is not known, so it is waited for, and let go of here."""

    async def main(first, second):
        holder = FORMS[first](os.path.join(where[0], "t.lock"))
        holder.__enter__()
        asked = ASYNC[second](SPELLINGS[spelling](*where))
        waits = asyncio.ensure_future(use(asked))
        await begins(caplog)
        holder.__exit__(None, None, None)
        await waits

    for first, second in itertools.product(("Lock", "writer", "reader", "Semaphore"), ASYNC):
        if not in_the_way(first, second) or (first == "reader" and "reader" in second):
            continue
        caplog.clear()
        mine._warned.clear()
        asyncio.run(main(first, second))
        (told,) = caplog.records
        assert told.levelname == "WARNING"
        assert "t.lock" in told.getMessage()
        assert told.getMessage().count(__file__) == 2 or second in ("async any", "async all")


def test_the_log_says_it_once_for_a_crowd_of_tasks(where, caplog):
    path = os.path.join(where[0], "t.lock")

    async def main():
        with semlock.Lock(path):
            crowd = [asyncio.ensure_future(use(semlock.AsyncLock(path))) for _ in range(5)]
            await begins(caplog)
            await asyncio.sleep(0)
        await asyncio.gather(*crowd)

    asyncio.run(main())
    assert len(caplog.records) == 1


def test_a_task_waits_for_what_another_task_holds_by_the_form_for_threads(where):
    path = os.path.join(where[0], "t.lock")

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work(form):
            if form == "sync":
                with semlock.Lock(path):
                    begun.set()
                    await go_on.wait()
            else:
                await begun.wait()
                asked.set()
                async with semlock.AsyncLock(path):
                    pass
            return "had it"

        asked = asyncio.Event()
        tasks = [asyncio.ensure_future(work(form)) for form in ("sync", "async")]
        await asked.wait()
        await asyncio.sleep(0)
        go_on.set()
        assert (await asyncio.gather(*tasks))[1] == "had it"

    asyncio.run(main())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_who_has_all_slots_is_told(where, spelling):
    path = os.path.join(where[0], "t.lock")
    with semlock.SlotLock(path, 2), semlock.SlotLock(os.path.join(where[1], "t.lock"), 2):
        with pytest.raises(semlock.LockDeadlockError):
            semlock.SlotLock(SPELLINGS[spelling](*where), 2).acquire()

    async def main():
        other = os.path.join(where[1], "t.lock")
        async with semlock.AsyncSlotLock(path, 2), semlock.AsyncSlotLock(other, 2):
            with pytest.raises(semlock.LockDeadlockError, match="very task"):
                await semlock.AsyncSlotLock(SPELLINGS[spelling](*where), 2).acquire()
            with pytest.raises(semlock.LockDeadlockError, match="event loop"):
                semlock.SlotLock(SPELLINGS[spelling](*where), 2).acquire()

    asyncio.run(main())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_path_twice_is_refused_however_it_is_spelled(where, spelling):
    paths = (os.path.join(where[0], "t.lock"), SPELLINGS[spelling](*where))
    for call in (semlock.acquire_all, semlock.acquire_any):
        with pytest.raises(ValueError, match="is there twice"):
            call([semlock.Lock(path) for path in paths])
    for call in (semlock.acquire_all_async, semlock.acquire_any_async):
        with pytest.raises(ValueError, match="is there twice"):
            call([semlock.AsyncLock(path) for path in paths])


@pytest.mark.leaves("queue")
def test_another_objects_holder_is_known_before_one_stands_in_a_queue(where):
    """A waiter behind others looks at the lock only when they have gone."""
    path = os.path.join(where[0], "t.lock")
    with Child() as child, semlock.Lock(path, fair=True):
        child.send(f"semlock.Lock({path!r}, fair=True).acquire(timeout=20).__enter__(); None")
        wait_until(lambda: any(".queue" in name for name in os.listdir(where[0])), "it waits")
        with pytest.raises(semlock.LockDeadlockError):
            semlock.Lock(os.path.join(where[1], "t.lock"), fair=True).acquire()


def test_it_is_known_among_many_objects_too(where):
    path = os.path.join(where[0], "t.lock")
    crowd = [semlock.Lock(f"{path}.{number}") for number in range(200)]
    with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError):
        semlock.Lock(os.path.join(where[1], "t.lock")).acquire()
    with Child() as child:
        child.run(f"held = semlock.Lock({path!r}); held.acquire(); None")
        for _ in range(2):
            with pytest.raises(semlock.LockTimeoutError):
                semlock.Lock(os.path.join(where[1], "t.lock")).acquire(0.01)
        child.run("held.release()")
    del crowd


def test_what_another_thread_holds_is_waited_for(where):
    path = os.path.join(where[0], "t.lock")
    for form in ("Lock", "writer", "reader"):
        taken, let_go = threading.Event(), threading.Event()

        def hold(form=form, taken=taken, let_go=let_go):
            with FORMS[form](path):
                taken.set()
                let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        threading.Timer(0.01, let_go.set).start()
        with FORMS["writer"](os.path.join(where[1], "t.lock")):
            thread.join()


def test_a_sidecar_lock_knows_its_target_by_every_spelling(where):
    with (
        sidecar.SidecarLock(os.path.join(where[0], "state")),
        pytest.raises(semlock.LockDeadlockError),
    ):
        sidecar.SidecarLock(os.path.join(where[1], "state")).acquire()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts are made by unshare")
def test_one_lock_is_known_through_a_bind_mount(tmp_path):
    """And by names that differ in case, where the directory makes no difference of that."""
    (tmp_path / "at").mkdir()
    (tmp_path / "bound").mkdir()
    code = f"""
import semlock
at, bound = {str(tmp_path / "at")!r} + "/t.lock", {str(tmp_path / "bound")!r} + "/t.lock"
for held, asked in (
    (semlock.Lock(at), semlock.Lock(bound)),
    (semlock.SharedLock(at), semlock.SharedLock(bound).shared()),
    (semlock.SharedLock(at).shared(), semlock.SharedLock(bound)),
):
    with held:
        try:
            asked.__enter__()
        except semlock.LockDeadlockError:
            print("told")
"""
    script = f'mount --bind "$1" "$2" && exec {sys.executable} -c "$3"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", tmp_path / "at", tmp_path / "bound"]
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    done = subprocess.run([*command, code], capture_output=True, text=True, timeout=20, cwd="/")
    assert done.stdout.split() == ["told"] * 3, done.stderr


@pytest.mark.parametrize("form", ["Lock", "reader of tasks"])
def test_a_task_waits_for_what_another_one_took_by_the_same_helper(where, form):
    path = os.path.join(where[0], "t.lock")
    locks = {"Lock": semlock.Lock(path), "reader of tasks": semlock.AsyncSharedLock(path)}

    async def take(lock):
        if isinstance(lock, semlock.Lock):
            lock.acquire()
            return lock
        if lock is locks[form]:
            return await lock.acquire_shared()
        return await lock.acquire()

    async def main():
        taken, waits = asyncio.Event(), asyncio.Event()

        async def hold():
            held = await take(locks[form])
            taken.set()
            await waits.wait()
            await asyncio.sleep(0)
            if form == "Lock":
                held.release()
            else:
                await held.__aexit__(None, None, None)

        async def wait():
            await taken.wait()
            waits.set()
            other = semlock.AsyncSharedLock(os.path.join(where[1], "t.lock"))
            async with await take(other):
                return "had it"

        assert (await asyncio.gather(hold(), wait()))[1] == "had it"

    asyncio.run(main())


def test_a_crowd_of_tasks_knows_who_of_them_holds(where):
    """More objects than are looked through each time: what was found is remembered."""
    path = os.path.join(where[0], "t.lock")

    async def main():
        held = semlock.AsyncLock(path)
        await held.acquire()
        crowd = [semlock.AsyncLock(os.path.join(where[1], "t.lock")) for _ in range(100)]
        for lock in crowd[:2]:
            with pytest.raises(semlock.LockDeadlockError):
                await lock.acquire()

        async def use(lock):
            async with lock:
                pass

        others = [asyncio.ensure_future(use(lock)) for lock in crowd]
        await asyncio.sleep(0.01)
        held.release()
        await asyncio.gather(*others)

    asyncio.run(main())


LINKED = {
    "Lock": lambda path: semlock.Lock(path).acquire,
    "AsyncLock": lambda path: semlock.AsyncLock(path).acquire,
    "SlotLock": lambda path: semlock.SlotLock(path, 2).acquire,
    "AsyncSlotLock": lambda path: semlock.AsyncSlotLock(path, 2).acquire,
    "writer": lambda path: semlock.SharedLock(path).acquire,
    "reader": lambda path: semlock.SharedLock(path).acquire_shared,
    "KernelLock": lambda path: semlock.KernelLock(path).acquire,
}


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a right there")
@pytest.mark.parametrize("leads_to", ["t.lock", "missing/t.lock", "link.lock"])
@pytest.mark.parametrize("form", LINKED)
def test_a_link_is_no_lock_and_nothing_is_made_where_it_leads(tmp_path, form, leads_to):
    """Two programs, of which one names the link, would each hold a lock of their own."""
    link = tmp_path / "link.lock"
    link.symlink_to(leads_to)
    with pytest.raises(semlock.LockPathError, match="symbolic link"):
        taken = LINKED[form](str(link))(timeout=0)
        if form.startswith("Async"):
            asyncio.run(taken)
    assert os.readlink(link) == leads_to
    assert os.listdir(tmp_path) == ["link.lock"]
