"""What each form of lock says while it is held: how often, by which holder, and how it was lost."""

import asyncio
import os
import pickle
import sys
import threading
import time

import pytest

import semlock
from memory_engine import Server, space_on
from support import take_away, wait_until

FORMS = {
    "Lock": lambda path, **options: semlock.Lock(path, **options),
    "SlotLock": lambda path, **options: semlock.SlotLock(path, 1, **options),
    "SharedLock": lambda path, **options: semlock.SharedLock(path, **options),
    "a reader": lambda path, **options: Reader(path, **options),
}
ASYNC_FORMS = {
    "AsyncLock": lambda path, **options: semlock.AsyncLock(path, **options),
    "AsyncSlotLock": lambda path, **options: semlock.AsyncSlotLock(path, 1, **options),
    "AsyncSharedLock": lambda path, **options: semlock.AsyncSharedLock(path, **options),
}


class Reader(semlock.SharedLock):
    """A shared lock whose ``acquire`` reads."""

    acquire = semlock.SharedLock.acquire_shared
    try_acquire = semlock.SharedLock.try_acquire_shared


def file_of(form, path):
    """Name the file that is held by a form."""
    if form == "a reader":
        (name,) = os.listdir(f"{path}.readers")
        return os.path.join(f"{path}.readers", name)
    return f"{path}.1" if "Slot" in form else path


# ---------------------------------------------------------------- how often


@pytest.mark.parametrize("form", FORMS)
def test_a_lock_counts_one_hold(path, form):
    lock = FORMS[form](path)
    assert lock.count == 0
    with lock.acquire():
        assert lock.count == 1
    assert lock.count == 0


@pytest.mark.parametrize("form", ASYNC_FORMS)
def test_a_lock_of_tasks_counts_one_hold(path, form):
    async def main() -> None:
        lock = ASYNC_FORMS[form](path)
        assert lock.count == 0
        async with lock:
            assert lock.count == 1
        assert lock.count == 0

    asyncio.run(main())


def test_a_kernel_lock_counts_one_hold(path):
    with semlock.KernelLock(path) as lock:
        assert lock.count == 1
    assert lock.count == 0


def test_a_reentrant_lock_counts_its_holds(path):
    lock = semlock.Lock(path, reentrant=True)
    counts = []
    with lock, lock:
        with lock:
            counts.append(lock.count)
        counts.append(lock.count)
    assert [*counts, lock.count] == [3, 2, 0]


# ---------------------------------------------------------------- how it was lost


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("told", ["check", "release", "heartbeat"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_loss_has_a_reason(path, form, told, replaced):
    if replaced and sys.platform == "win32":
        pytest.skip("a file that is open is not replaced there")
    losses = []
    options = (
        {"heartbeat": 0.01, "on_lost": lambda lock, error: losses.append((lock, error))}
        if told == "heartbeat"
        else {}
    )
    lock = FORMS[form](path, **options)
    lock.acquire()
    file = file_of(form, path)
    if replaced:  # in one step, or a heartbeat may see the path free
        with open(f"{path}.new", "w") as new:
            new.write("another's")
        os.replace(f"{path}.new", file)
    else:
        take_away(file)
    if told == "heartbeat":
        wait_until(lambda: losses, "the loss is told")
        assert losses[0][0] is lock
    else:
        with pytest.raises(semlock.LockLostError) as raised:
            getattr(lock, told)()
        losses.append((lock, raised.value))
    assert losses[0][1].reason == ("replaced" if replaced else "removed")
    assert pickle.loads(pickle.dumps(losses[0][1])).reason == losses[0][1].reason
    if told != "release":
        with pytest.raises(semlock.LockLostError):
            lock.release()


def test_a_kernel_lock_whose_file_was_replaced_says_so(path):
    if sys.platform == "win32":
        pytest.skip("a locked file is not removed there")
    for replaced in (False, True):
        lock = semlock.KernelLock(path)
        lock.acquire()
        os.unlink(path)
        if replaced:
            open(path, "x").close()
        with pytest.raises(semlock.LockLostError) as raised:
            lock.check()
        assert raised.value.reason == ("replaced" if replaced else "removed")
        with pytest.raises(semlock.LockLostError):
            lock.release()


@pytest.mark.parametrize("kind", ["Lock", "SlotLock", "SharedLock"])
@pytest.mark.parametrize("reason", ["removed", "replaced", "expired", "unreachable"])
def test_a_loss_on_an_engine_has_a_reason(kind, reason):
    server, losses = Server(), []
    lasts = 0.3 if reason in ("expired", "unreachable") else 1
    with space_on(server, ttl=lasts) as space, space_on(server, ttl=1) as other:
        options = {"slots": 1} if kind == "SlotLock" else {}
        lock = getattr(space, kind)("x", on_lost=lambda _, e: losses.append(e), **options)
        lock.acquire()
        if reason == "unreachable":
            server.away = True
        elif reason == "expired":
            with server.guard:  # as if this process were suspended
                time.sleep(2 * lasts)
        else:
            with server.guard:  # in one step for the thread that renews
                server.lines.clear()
                thief = other.Lock("x")
                if reason == "replaced":
                    thief.acquire()
            with pytest.raises(semlock.LockLostError) as raised:
                lock.check()
            losses.append(raised.value)
            if thief.held:
                thief.release()
        wait_until(lambda: losses, "the loss is told")
        server.away = False
        assert losses[0].reason == reason


@pytest.mark.parametrize("form", ASYNC_FORMS)
def test_a_loss_of_a_task_has_a_reason(path, form):
    losses = []

    async def main() -> None:
        lock = ASYNC_FORMS[form](
            path, heartbeat=0.01, on_lost=lambda lock, error: losses.append((lock, error))
        )
        with pytest.raises(semlock.LockLostError):
            async with lock:
                take_away(file_of(form, path))
                await asyncio.to_thread(wait_until, lambda: losses, "the loss is told")
        assert losses[0][0] is lock
        assert losses[0][1].reason == "removed"

    asyncio.run(main())


def test_a_shared_lock_refreshes_each_readers_record(path):
    if sys.platform == "win32":
        pytest.skip("the time of a file says it here")
    lock = Reader(path, heartbeat=0.02)
    with lock.acquire():
        file = file_of("a reader", path)
        before = os.stat(file).st_mtime_ns
        wait_until(lambda: os.stat(file).st_mtime_ns > before, "the record is refreshed")
    assert threading.active_count() < 50
