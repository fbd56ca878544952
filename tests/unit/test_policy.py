"""Policies and retry schedules as values: what each permits, and how they compose."""

import asyncio
import os
import re
import sys
import time
from pathlib import Path

import pytest

import semlock
from semlock.policy import (
    Age,
    All,
    Any,
    Gone,
    LeftByKernelLock,
    ProofOfDeath,
    Unreadable,
    never,
)
from semlock.retry import Every, Growing
from support import Child, set_time


@pytest.fixture
def held(path):
    """A foreign lock, an hour old, of a process that can't exist."""
    Path(path).write_text(f"pid={2**31 - 2}\ntimestamp={int(time.time()) - 3600}\n")
    return path


def taken(path, policy):
    lock = semlock.Lock(path, policy=policy)
    won = lock.try_acquire()
    if won:
        lock.release()
    return won


@pytest.mark.parametrize(
    ("policy", "permits"),
    [
        (ProofOfDeath(), False), (Age(4000), False), (Age(3000), True), (Age(None), False),
        (Age(0), False), (Gone(), True), (Gone() & Age(4000), False), (Gone() & Age(3000), True),
        (ProofOfDeath() | Gone(), True), (ProofOfDeath() & Gone(), False), (never, False),
        (Any(), False), (All(), False), (lambda found: found.info.pid > 5, True),
        (ProofOfDeath() | (lambda found: True), True), ((lambda found: False) & Gone(), False),
        ((lambda found: "why") | ProofOfDeath(), True), (Unreadable(), False),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),  # the same in every process
)  # fmt: skip
def test_each_permits_what_it_says(held, policy, permits):
    assert taken(held, policy) is permits


def test_a_status_says_why_it_may_be_taken(held):
    lock = semlock.Lock(held, policy=Gone() & Age(60))
    found = lock.status()
    assert found.state == "stale"
    assert "does not exist here and it is 36" in found.reason
    assert semlock.status(held).reason is None


def test_unreadable_waits_for_the_grace_time(path, monkeypatch):
    Path(path).write_text("half")
    assert not taken(path, Unreadable())
    real = time.time
    set_time(monkeypatch, lambda: real() + 3)
    assert taken(path, Unreadable())


def test_unreadable_is_not_forbidden(path, monkeypatch):
    """A file that may not be read can be a record for all we know."""
    Path(path).write_text("pid=1\ntimestamp=1\n")
    real = semlock._core.capi.look
    monkeypatch.setattr(
        semlock._core.capi,
        "look",
        lambda p: semlock._core.capi.Instance(real(p).view, b"", -13),
    )
    assert semlock.Lock(path, policy=Unreadable(0)).status().state == "unreadable"


def test_a_files_own_time_counts_only_if_asked_for(path):
    Path(path).write_text("garbage")
    os.utime(path, (1, 1))
    assert not taken(path, Age(60))
    assert taken(path, Age(60, or_file=True))


def test_policies_are_values():
    assert Age(5) == Age(5) != Age(6)
    assert (Gone() & Age(5)) == (Gone() & Age(5))
    assert len({Age(5), Age(5)}) == 1
    assert repr(Gone() | Age(5)) == "Any((Gone(), Age(5, False)))"
    with pytest.raises(ValueError, match="age"):
        Age(-1)


def test_every_is_steady_and_may_be_bounded():
    assert list(Every(0.1, retries=3)()) == [0.1] * 3
    endless = Every(0.1)()
    assert [next(endless) for _ in range(100)] == [0.1] * 100


def test_growing_grows_up_to_its_bound():
    pauses = list(Growing(0.1, factor=2, longest=0.5, retries=5)())
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_growing_at_random_stays_within_once_and_twice():
    for pause in Growing(0.1, factor=1, longest=1, retries=200, randomize=True)():
        assert 0.1 <= pause < 0.2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Every(0), lambda: Every(1, retries=-1), lambda: Growing(0),
        lambda: Growing(2, longest=1), lambda: Growing(factor=0.5),
    ],
)  # fmt: skip
def test_a_schedule_that_means_nothing_is_refused(make):
    with pytest.raises(ValueError, match=r"pause|retries|factor"):
        make()


def test_a_wait_ends_when_its_retries_are_used_up(path):
    with semlock.Lock(path):
        lock = semlock.Lock(path, retry=Every(0.001, retries=3), policy=never)
        waits = []
        with pytest.raises(semlock.LockTimeoutError):
            waits.append(_elsewhere(lock.acquire))


def _elsewhere(function):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.mark.skipif(sys.platform == "win32", reason="the holders call flock and fcntl")
@pytest.mark.parametrize(
    "holds",
    ["flock(file, fcntl.LOCK_EX)", "flock(file, fcntl.LOCK_SH)", "lockf(file, fcntl.LOCK_EX)",
     "lockf(file, fcntl.LOCK_EX, 1)", None],
)  # fmt: skip
def test_an_empty_file_is_taken_that_no_program_locks(path, holds):
    policy = LeftByKernelLock(0)
    with Child() as child:
        child.run(f"import fcntl; file = open({path!r}, 'w')")
        if holds:
            child.run(f"fcntl.{holds}")
            assert semlock.Lock(path, policy=policy).status().reason is None
            assert not taken(path, policy)
            child.kill()
    assert taken(path, policy)


def test_an_empty_file_is_left_while_it_is_young_and_one_with_content_always(path):
    with open(path, "w") as file:
        pass
    assert not taken(path, LeftByKernelLock(60))
    due = LeftByKernelLock(60).due_in(semlock.status(path))
    assert 50 < due <= 60
    with pytest.raises(semlock.LockTimeoutError, match=r"LeftByKernelLock\(seconds\)"):
        semlock.Lock(path).acquire(timeout=0)
    with open(path, "w") as file:
        file.write("text")
    assert not taken(path, LeftByKernelLock(0))
    assert LeftByKernelLock(0).due_in(semlock.status(path)) is None


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1", None, True])
def test_the_age_of_what_was_left_is_checked(wrong):
    with pytest.raises(ValueError, match="an age is"):
        LeftByKernelLock(wrong)


class Patient:
    """Permits when it has been asked more often than about each second."""

    def __init__(self):
        self.asked = 0

    def __call__(self, status):
        self.asked += 1
        return "enough" if self.asked > 11 else None


KINDS = {
    "lock": lambda lock, path, rule: lock("Lock")(path, policy=rule).acquire(5),
    "slots": lambda lock, path, rule: lock("SlotLock")(path, 1, policy=rule).acquire(5),
    "readers": lambda lock, path, rule: lock("SharedLock")(path, policy=rule).acquire_shared(5),
    "any": lambda lock, path, rule: lock("acquire_any")([lock("Lock")(path, policy=rule)], 5),
    "all": lambda lock, path, rule: lock("acquire_all")([lock("Lock")(path, policy=rule)], 5),
}


def for_threads(name):
    return getattr(semlock, name)


def for_tasks(name):
    return getattr(semlock, f"{name}_async" if name.islower() else f"Async{name}")


@pytest.fixture
def holder(path):
    """Another process that has the lock and its only slot, and lives."""
    with Child() as child:
        child.run(f"held = [semlock.Lock(p) for p in ({path!r}, {path + '.1'!r})]")
        child.run("[lock.try_acquire() for lock in held]")
        yield child


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_no_event_reports_is_asked_all_along_a_wait(path, holder, kind):
    rule = Patient()
    got = KINDS[kind](for_threads, path, rule)
    got.release() if kind == "any" else got.__exit__(None, None, None)


@pytest.mark.parametrize("gives_up", [False, True], ids=["", "after one before it gave up"])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_by_a_task(path, holder, kind, gives_up):
    rule = Patient()

    async def use():
        got = await KINDS[kind](for_tasks, path, rule)
        got.release() if kind == "any" else await got.__aexit__(None, None, None)

    async def main():
        before = [asyncio.ensure_future(use()) for _ in range(gives_up)]
        await asyncio.sleep(0)
        last = asyncio.ensure_future(use())
        await asyncio.sleep(0)
        for task in before:
            task.cancel()
        rule.asked = 0
        await last

    asyncio.run(main())


def test_a_wait_for_any_of_many_judges_each_of_them_rarely(path):
    paths, rule = [f"{path}.{number}" for number in range(200)], Patient()
    rule.asked = -1_000_000
    with Child() as child:
        child.run(
            f"held = [semlock.Lock(p) for p in {paths!r}]; semlock.try_acquire_many(held); None"
        )
        with pytest.raises(semlock.LockTimeoutError):
            semlock.acquire_any([semlock.Lock(p, policy=rule) for p in paths], timeout=1.2)
    assert rule.asked + 1_000_000 <= 6 * len(paths)
