"""What can not be meant for a parameter of the systems is refused in words, not by an accident."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

import pytest

from semlock import (
    LockInfo,
    LockPathError,
    LockRecordError,
    feature,
    sema,
    semats,
    sidecar,
    systems,
    task,
)

OLD = task.decode(b'{"owner": "a", "since": 1700000000000, "ttl": 5}')
ODD = (
    None, "", "x", b"x", "5", -1, 0, 1.5, 1e308, 10**400, float("nan"), float("inf"), True, [], {},
    (), object(), time.time,
)  # fmt: skip
NUMBERS = (0, 1.5, 1e308, 10**400, float("inf"))
FLAGS = (0, True)
TEXTS = ("", "x", "5")
# How Python speaks where nothing has looked at the value.
RAW = (
    "unhashable", "unsupported operand", "has no attribute", "is not callable", "mix str",
    "object is not", "too large to convert", "doesn't define", "got an unexpected", "bytes-like",
    "cannot convert", "to unpack",
)  # fmt: skip


def a_lock(module, **options):
    return module.Semaphore("x.lock", **options)


def a_task_lock(owner="pid-1@here", **options):
    return task.TaskLock("x.lock", owner, audit=options.pop("audit", False), **options)


def a_system(**options):
    given = {"decode": task.decode, "compose": lambda info: b"x"}
    return systems.System(options.pop("name", "zz"), **{**given, **options})


def a_feature(name):
    assert feature.acquire_feature_lock(name)
    feature.release_feature_lock(name)


def a_sidecar(**options):
    with sidecar.acquire_file_lock("t.json", **options):
        pass


def with_async(value):
    return asyncio.run(sidecar.with_file_lock_async("t.json", value))


def written_by(clock):
    task.migrate("old.lock", audit=False, clock=clock)
    return a_task_lock(clock=clock)


# A parameter: what takes it, the values that it may have, and a word of the refusal.
ROWS = {
    "path": (lambda v: (sema.Semaphore(v), semats.Semaphore(v)), ("x", b"x", "5"), "path"),
    "task path": (lambda v: task.TaskLock(v, "a"), ("x", b"x", "5"), "path"),
    "target": (sidecar.SidecarLock, ("x", b"x", "5"), "path"),
    "lock_path": (lambda v: sidecar.SidecarLock("t", lock_path=v), (None, "x", b"x", "5"), "path"),
    "stale_timeout of sema": (lambda v: a_lock(sema, stale_timeout=v), (None, *NUMBERS), "an age"),
    "stale_timeout of semats": (
        lambda v: a_lock(semats, stale_timeout=v), (None, *NUMBERS), "an age",
    ),
    "stale_timeout beside a policy": (
        lambda v: a_lock(sema, stale_timeout=v, policy=time.time), (None, *NUMBERS), "an age",
    ),
    "stale_seconds": (
        lambda v: feature.FeatureLock("a", stale_seconds=v), (None, *NUMBERS), "an age",
    ),
    "stale of a sidecar": (lambda v: a_sidecar(stale=v), (None, *NUMBERS), "stale is"),
    "status by age": (
        lambda v: (sema.status("x", stale_timeout=v), semats.status("x", stale_timeout=v)),
        (None, *NUMBERS), "an age",
    ),
    "retry_interval": (lambda v: a_lock(sema, retry_interval=v), NUMBERS[1:], "a pause"),
    "max_tag_length": (lambda v: a_lock(semats, max_tag_length=v), (0, 10**400), "max_tag_length"),
    "force": (lambda v: a_lock(semats).release(force=v), FLAGS, "force is"),
    "feature": (a_feature, ("x", "5"), "Invalid feature name"),
    "gsd_dir": (
        lambda v: (feature.check_feature_lock("a", v), feature.detect_feature(v, ".")),
        (*TEXTS, b"x"), "path",
    ),
    "state_dir": (lambda v: feature.detect_feature(".", v), (*TEXTS, b"x"), "path"),
    "policy": (
        lambda v: (
            a_lock(sema, policy=v), a_lock(semats, policy=v), a_task_lock(policy=v),
            feature.FeatureLock("a", policy=v), sidecar.SidecarLock("t", policy=v),
            a_system().lock("x.lock", policy=v),
        ),
        (None, time.time), "a policy is",
    ),
    "retry": (
        lambda v: (a_lock(sema, retry=v), a_lock(semats, retry=v), a_task_lock(retry=v)),
        (None, time.time), "a retry schedule is",
    ),
    "durability": (lambda v: a_lock(sema, durability=v), (), "durability is"),
    "payload": (lambda v: sidecar.SidecarLock("t", payload=v), (time.time,), "payload is"),
    "should_reclaim": (
        lambda v: sidecar.SidecarLock("t", should_reclaim=v), (None, time.time),
        "should_reclaim is",
    ),
    "stale_recovery": (
        lambda v: sidecar.SidecarLock("t", stale_recovery=v), (), "stale_recovery is",
    ),
    "manager_key": (lambda v: a_sidecar(manager_key=v), (None, *TEXTS), "manager is"),
    "key": (sidecar.create_file_lock_manager, TEXTS, "manager is"),
    "metadata of a sidecar": (lambda v: a_sidecar(metadata=v), (None, {}), "metadata is"),
    "allow_reentrant": (lambda v: a_sidecar(allow_reentrant=v), FLAGS, "allow_reentrant is"),
    "function": (lambda v: sidecar.with_file_lock("t.json", v), (time.time,), "is a function"),
    "async function": (with_async, (time.time,), "is a function"),
    "retries": (
        lambda v: sidecar.RetryOptions(retries=v), (None, 0, 10**400), "retries is",
    ),
    "factor": (lambda v: sidecar.RetryOptions(factor=v), NUMBERS, "factor is"),
    "randomize": (lambda v: sidecar.RetryOptions(randomize=v), FLAGS, "randomize is"),
    "owner": (a_task_lock, ("x", "5"), "an owner is"),
    "ttl": (lambda v: a_task_lock(ttl=v), (None, 1.5, 1e308), "a ttl is"),
    "auto_refresh": (lambda v: a_task_lock(auto_refresh=v), FLAGS, "auto_refresh is"),
    "network": (lambda v: a_task_lock(network=v), (None, *FLAGS), "network is"),
    "audit": (lambda v: a_task_lock(audit=v), FLAGS, "audit is"),
    "clock": (lambda v: (task.status("x", clock=v), written_by(v)), (time.time,), "clock is"),
    "clock gives": (
        lambda v: (task.status("old.lock", clock=lambda: v), written_by(lambda: v)),
        (-1, 0, 1.5), "the clock gives",
    ),
    "now": (lambda v: task.decide(OLD, "x", now=v), (None, -1, 0, 1.5), "now is"),
    "environment": (
        lambda v: (a_task_lock(environment=v), task.owner_for(environment=v)), (None,),
        "environment is",
    ),
    "purpose": (
        lambda v: (a_task_lock(purpose=v), task.owner_for(purpose=v)), (None,), "purpose is",
    ),
    "environment of owner_for": (
        lambda v: task.owner_for(environment=v, environ={}), (None,), "environment is",
    ),
    "purpose of owner_for": (
        lambda v: task.owner_for(purpose=v, environ={}), (None,), "purpose is",
    ),
    "environ": (lambda v: task.owner_for(environ=v), (None, {}), "environ is"),
    "user": (lambda v: task.owner_for(user=v), (None, "x", "5"), "user is"),
    "allow": (
        lambda v: task.reclaim("x.lock", "a", allow=v, audit=False).release(), ([], {}, ()),
        "allow names",
    ),
    "name of a system": (systems.find, (), "lock system"),
    "registered": (systems.register, (), "registered"),
    "name": (lambda v: a_system(name=v), ("x", "5"), "the name"),
    "guard": (lambda v: a_system(guard=v), TEXTS, "the guard"),
    **{
        part: (lambda v, part=part: a_system(**{part: v}), (time.time,), f"{part} of")
        for part in ("decode", "stale", "resolve", "recognises", "owns_path", "refresh")
    },
    **{
        part: (lambda v, part=part: a_system(**{part: v}), (None, time.time), f"{part} of")
        for part in ("claims", "restamp", "orphan", "audit", "async_lock")
    },
}  # fmt: skip


def is_permitted(value, permitted):
    return any(
        value is other or (type(value), value) == (type(other), other) for other in permitted
    )


@pytest.mark.parametrize("row", ROWS)
def test_what_can_not_be_meant_is_refused_in_words(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    take, permitted, word = ROWS[row]
    for value in ODD:
        (tmp_path / "old.lock").write_text('{"owner": "a", "since": 1700000000000, "ttl": 5}')
        if is_permitted(value, permitted):
            with suppress(semats.NotHeldError):  # a release by force of a lock that is free
                take(value)
            continue
        with pytest.raises((TypeError, ValueError, LockRecordError, LockPathError)) as refusal:
            take(value)
        said = str(refusal.value)
        assert word in said or "PathLike" in said, (value, said)
        assert not any(raw in said for raw in RAW), (value, said)
        assert not os.path.exists("t.json.lock")


def test_a_clock_that_goes_wrong_later_is_told(tmp_path):
    told = [time.time()]
    lock = task.TaskLock(tmp_path / "x.lock", "a", audit=False, clock=lambda: told[0])
    for wrong in (None, "x"):
        told[0] = wrong
        with pytest.raises(LockRecordError, match=f"time {wrong!r}"):
            lock.acquire()
        assert not lock.held
        assert not os.path.exists(lock.path)


def test_a_feature_is_not_waited_for_at_a_pipe(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes with names here")
    os.mkfifo(tmp_path / ".current-feature")
    assert feature.detect_feature(tmp_path, tmp_path / "none") is None


def test_an_age_beyond_all_numbers_is_never_over(tmp_path):
    (tmp_path / "t.json.lock").touch()
    with pytest.raises(sidecar.FileLockTimeoutError, match="stale when it is older than inf s"):
        sidecar.acquire_file_lock(tmp_path / "t.json", stale=10**400, timeout=0)


def test_a_free_lock_of_semats_has_nothing_to_clean(tmp_path):
    assert semats.Semaphore(tmp_path / "job").clean_stale() == []
    with pytest.raises(FileNotFoundError):
        semats.Semaphore(tmp_path / "none" / "job").clean_stale()


def of(
    compose=lambda info: str(info.pid).encode(), decode=lambda record: LockInfo(pid=int(record))
):
    return systems.System("mine", compose=compose, decode=decode)


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        ("5", "and not the bytes of a record"),
        (None, "and not the bytes of a record"),
        (b"", "and not the bytes of a record"),
        (b"x" * 70_000, "would have 70000 bytes, more than the 65536"),
        (b"\xff", "can't read what its compose gives: it is no record of mine"),
    ],
)
def test_a_record_that_no_process_could_read_is_not_written(gives, says, tmp_path):
    """A long one was: the lock was lost at once, and its file stayed for ever."""
    lock = of(lambda info: gives, lambda record: None).lock(tmp_path / "x.lock")
    with pytest.raises(LockRecordError, match=says):
        lock.acquire()
    assert os.listdir(tmp_path) == []


def test_what_reads_a_record_gives_an_info(tmp_path):
    (tmp_path / "x.lock").write_bytes(b"7")
    assert of().status(tmp_path / "x.lock").info.pid == 7
    assert of(decode=lambda record: None).status(tmp_path / "x.lock").state == "unreadable"
    with pytest.raises(
        TypeError, match="decode of the lock system mine gives 'x', not a LockInfo"
    ):
        of(decode=lambda record: "x").status(tmp_path / "x.lock")
