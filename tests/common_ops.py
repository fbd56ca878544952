"""The operations that are the same on every system, each with whatever fault its case has.

``faultops`` and ``windows_ops`` do them, and add those of which their systems have kinds of
their own.
"""

from __future__ import annotations

import semlock
from faultcase import BadEndingError, Case, leave_dead, must, operation
from faultlib import Always, keep_a_claim, new_lock
from semlock._core import capi

# ---------------------------------------------------------------- what operations are made of


def make_pool_new() -> None:
    """Have the pool as it is in a process that has taken no lock yet."""
    pool = capi.POOL
    capi.drain_pool()
    for counts in (pool.seen, pool.holding):
        for place in range(len(counts)):
            counts[place] = 0


def acquires(case: Case, lock: semlock.Lock, *, left: bytes | None = None) -> None:
    with case.under_fault():
        lock.acquire(timeout=0)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)


def releases(case: Case, lock: semlock.Lock) -> None:
    with case.under_fault():
        lock.release()
    if case.is_clear(OSError):
        case.holds(lock)
        lock.release()
    case.is_free(lock)


def fails_to_take(
    case: Case, holder: semlock.Lock, other: semlock.Lock, *, opened: tuple[int, ...] = (-1, 0)
) -> None:
    with case.under_fault():
        case.value = other.try_acquire()
    must(case.is_clear(OSError) or case.value is False, f"{case.value!r} on a held lock")
    case.leaks_nothing(*opened)
    must(not other.held, "two hold one lock")
    case.holds(holder)
    case.lets_go(holder)


def tries_a_batch(case: Case, names: str) -> None:
    """Try to take several locks, of which a process has the second one."""
    held = new_lock(case.beside(names[1]))
    held.acquire(timeout=0)
    locks = [new_lock(case.beside(name)) for name in names]
    with case.under_fault():
        case.value = semlock.try_acquire_many(locks)
    must(not locks[1].held, "two hold one lock")
    if case.is_clear(OSError):
        for lock in locks:
            # Where a lock can't even be let go of, its object says that it is still held.
            must(not lock.held or isinstance(case.fault, Always), "a failed batch holds on")
            if lock.held:
                lock.release()
        case.value = semlock.try_acquire_many(locks)
    for lock, taken in zip(locks, case.value, strict=True):
        if lock is locks[1]:
            must(taken is None, "a held lock counts as taken")
        else:
            must(taken is lock, "a free lock was not taken")
            case.holds(lock)
            case.lets_go(lock)
    case.holds(held)
    case.lets_go(held)


def reclaims(case: Case, left: bytes) -> None:
    lock = new_lock(case.path)
    with case.under_fault():
        lock.acquire(timeout=0)
    if isinstance(case.error, semlock.LockTimeoutError):
        # What can't be looked at counts as held.
        must(case.bytes_at(case.path) == left, "a lock that can't be looked at was changed")
        case.error = None
        lock._native.look_at = 0
        lock.acquire(timeout=1)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)
    semlock.clean(case.directory)


def finds_its_loss(lock: semlock.Lock, otherwise: str) -> None:
    try:
        lock.release()
    except semlock.LockLostError:
        pass
    else:
        raise BadEndingError(otherwise)


def refreshes(case: Case, lock: semlock.Lock) -> None:
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.refresh()
    case.is_clear(OSError)
    case.leaks_nothing()
    case.holds(lock)
    lock.refresh()
    case.holds(lock)
    case.lets_go(lock)


def checks(case: Case, lock: semlock.Lock) -> None:
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.check()
    case.is_clear(OSError)
    case.leaks_nothing()
    case.holds(lock)
    case.lets_go(lock)


def removes(case: Case, **options: object) -> None:
    with case.under_fault():
        semlock.remove(case.path, **options)
    if case.is_clear(OSError, semlock.LockHeldError):
        must(case.bytes_at(case.path) is not None, f"it is gone, in spite of {case.error!r}")
        semlock.remove(case.path, **options)
    case.leaks_nothing()
    must(case.bytes_at(case.path) is None, "what was removed is still there")
    semlock.clean(case.directory)


def cleans(case: Case) -> None:
    """Clean the directory, in which a held lock is to stay."""
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        semlock.clean(case.directory)
    case.is_clear(OSError)
    case.leaks_nothing()
    case.holds(lock)
    semlock.clean(case.directory)
    must(case.names == ["the.lock"], f"clean left {case.names}")
    case.lets_go(lock)


# ---------------------------------------------------------------- the operations


@operation(kills=True)
def fresh_acquire(case):
    acquires(case, new_lock(case.path))


@operation(costly=True)
def first_acquire_of_a_process(case):
    make_pool_new()
    semlock._core.identity._this_process = None
    semlock._stores.file._shared.clear()  # the records that name it
    acquires(case, new_lock(case.path))


@operation(kills=True)
def acquire_with_a_kept_claim(case):
    keep_a_claim(case.path)
    acquires(case, new_lock(case.path))


@operation(costly=True)
def acquire_with_a_kept_claim_and_a_shorter_record(case):
    lock = new_lock(case.path, tag="a long tag")
    for _ in range(2):
        lock.acquire(timeout=0)
        lock.release()
    acquires(case, new_lock(case.path))


@operation(grace=True)
def acquire_in_place(case):
    acquires(case, new_lock(case.path, in_place=True))


@operation(costly=True)
def acquire_detached(case):
    acquires(case, new_lock(case.path, detached=True))


@operation
def failed_try(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    fails_to_take(case, holder, other, opened=(0,))


@operation(costly=True)
def failed_try_with_a_kept_claim(case):
    keep_a_claim(case.path)
    holder, other = new_lock(case.path, detached=True), new_lock(case.path)
    holder.acquire(timeout=0)
    fails_to_take(case, holder, other)


@operation(costly=True)
def failed_try_again(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    other.try_acquire()
    fails_to_take(case, holder, other)


@operation
def reclaim(case):
    reclaims(case, leave_dead(case.path))


@operation(kills=True)
def release_that_keeps(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    lock.release()
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(costly=True)
def release_that_keeps_and_sweeps(case):
    leave_dead(case.beside(".semlock-1.kept"))
    leave_dead(case.beside(".semlock-0123456789abcdef0123456789abcdef.tmp"))
    release_that_keeps(case)
    semlock.clean(case.directory)


@operation(costly=True)
def release_of_a_kept_claim(case):
    keep_a_claim(case.path)
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(costly=True)
def release_in_place(case):
    lock = new_lock(case.path, in_place=True)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(costly=True)
def release_that_finds_the_lock_lost(case):
    lock, successor = new_lock(case.path), new_lock(case.path)
    lock.acquire(timeout=0)
    semlock.remove(case.path, force=True)
    successor.acquire(timeout=0)
    with case.under_fault():
        lock.release()
    if isinstance(case.error, semlock.LockLostError):
        case.error = None
    else:
        must(case.is_clear(OSError), "a lost lock was released without a word")
        must(lock.held, "the loss was not told, and now it can't be")
        finds_its_loss(lock, "a lost lock was released without a word")
    must(not lock.held, "a lost lock counts as held")
    case.holds(successor)
    case.lets_go(successor)


@operation
def refresh(case):
    refreshes(case, new_lock(case.path))


@operation(costly=True)
def check(case):
    checks(case, new_lock(case.path))


@operation(costly=True)
def status_of_a_held_lock(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state in ("held", "unreadable"), f"a held lock is {case.value.state}")
        must(case.value.verdict != "dead", f"a living holder is dead: {case.value.evidence}")
    case.leaks_nothing()
    case.holds(lock)
    case.lets_go(lock)


@operation(costly=True)
def status_of_a_dead_lock(case):
    leave_dead(case.path)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state != "free", "a lock that is there is free")
    case.leaks_nothing()
    semlock.remove(case.path)


@operation(costly=True)
def remove_by_force(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    removes(case, force=True)
    finds_its_loss(lock, "a robbed holder released without a word")


@operation(foreign=True, costly=True)
def remove_a_file_that_is_no_record(case):
    with open(case.path, "wb"):
        pass
    removes(case, force=True)


@operation(costly=True)
def giving_up_kept_claims(case):
    keep_a_claim(case.path)
    with case.under_fault():
        capi.drain_pool()
    semlock.clean(case.directory)
