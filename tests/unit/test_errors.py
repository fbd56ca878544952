"""The errors: what they are, what they carry, and that they cross process borders."""

import asyncio
import os
import pickle
import re
import sys
from pathlib import Path

import pytest

import semlock
from semlock import cli, feature, sema, semats, task
from support import Child

KINDS = [
    semlock.SemlockError,
    semlock.LockHeldError,
    semlock.LockTimeoutError,
    semlock.LockLostError,
    semlock.NotHeldError,
    semlock.LockRecordError,
    semlock.LockDeadlockError,
    semlock.LockPathError,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_survives_pickling_with_all_that_it_carries(kind, path):
    with semlock.Lock(path, tag="why"):
        error = kind("what happened", path=path, status=semlock.status(path))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "what happened"
    assert again.path == path
    assert again.status.info == error.status.info
    assert again.args == error.args


def test_a_path_error_keeps_errno_and_filename(tmp_path):
    with pytest.raises(semlock.LockPathError) as caught:
        semlock.status(tmp_path)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.errno, again.filename) == (caught.value.errno, str(tmp_path))
    assert again.errno == 21


def test_each_is_what_a_caller_would_catch():
    assert all(issubclass(kind, semlock.SemlockError) for kind in KINDS)
    assert issubclass(semlock.LockTimeoutError, TimeoutError)
    assert issubclass(semlock.LockTimeoutError, semlock.LockHeldError)
    assert issubclass(semlock.LockRecordError, ValueError)
    assert issubclass(semlock.LockPathError, OSError)
    assert issubclass(semlock.NotHeldError, RuntimeError)
    assert issubclass(semlock.LockDeadlockError, RuntimeError)


def test_names_are_those_that_users_import():
    for name in semlock.__all__:
        assert getattr(semlock, name).__module__ == "semlock"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (semlock.Lock, "Lock"),
        (semlock.SlotLock, "SlotLock"),
        (semlock.SharedLock, "SharedLock"),
        (semlock.AsyncLock, "AsyncLock"),
        (semlock.AsyncSlotLock, "AsyncSlotLock"),
        (semlock.AsyncSharedLock, "AsyncSharedLock"),
        (sema.Semaphore, "Semaphore"),
        (sema.AsyncSemaphore, "AsyncSemaphore"),
        (semats.Semaphore, "Semaphore"),
        (feature.FeatureLock, "FeatureLock"),
        (feature.AsyncFeatureLock, "AsyncFeatureLock"),
        (task.TaskLock, "TaskLock"),
        (task.AsyncTaskLock, "AsyncTaskLock"),
    ],
)
def test_a_wrong_call_is_told_with_the_class_that_was_called(kind, name):
    for arguments in ((), ("x", 5, 7)):
        with pytest.raises(TypeError, match=rf"^{name}[.(]"):
            kind(*arguments)
    with pytest.raises(TypeError, match=rf"^{name}[.(].*unexpected.*'times'"):
        kind(
            "x",
            *{"Slot": (5,), "Task": ("me",)}.get(name.removeprefix("Async")[:4], ()),
            times=5,
        )


def test_a_wrong_call_of_a_method_is_told_with_the_public_name(path):
    with pytest.raises(TypeError, match=r"^Lock\.acquire\(\)"):
        semlock.Lock(path).acquire(blocking=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "644"}, "mode is a number from 0 to 0o777, such as 0o644, not '644'"),
        ({"mode": 644}, "mode is a number from 0 to 0o777, such as 0o644, not 644"),
        ({"on_wait": 5}, "on_wait is a function, not 5"),
        ({"on_lost": "f"}, "on_lost is a function, not 'f'"),
    ],
)
def test_a_wrong_value_is_told_at_once(path, options, says):
    with pytest.raises((TypeError, ValueError)) as caught:
        semlock.Lock(path, **options)
    assert str(caught.value) == says


def test_the_way_out_of_a_deadlock_is_one_that_the_class_has(path):
    shared, slots = semlock.SharedLock(path), semlock.SlotLock(path, 1)
    with slots, pytest.raises(semlock.LockDeadlockError) as of_slots:
        slots.acquire()
    with shared.shared(), pytest.raises(semlock.LockDeadlockError) as of_reader:
        shared.acquire()
    with shared, pytest.raises(semlock.LockDeadlockError) as of_writer:
        shared.acquire_shared()
    assert str(of_slots.value).endswith("or use one lock object with reentrant=True")
    for caught in (of_reader, of_writer):  # no reader becomes the writer, nor the reverse
        assert str(caught.value).endswith(". Release it first")
    with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError, match="reentrant=True"):
        semlock.Lock(path).acquire()


def test_a_wait_for_oneself_is_not_said_to_last_for_ever(path):
    with semlock.Lock(path), pytest.raises(semlock.LockDeadlockError) as caught:
        semlock.Lock(path).acquire(timeout=1)
    assert "ever" not in str(caught.value).replace(path, "")


@pytest.mark.parametrize(
    ("take", "name"),
    [
        ("sidecar.SidecarLock({0!r}[:-5])", "sidecar"),
        ("feature.FeatureLock('f', {0!r})", "feature"),
        ("task.TaskLock({0!r}, 'pid-{1}@here', audit=False)", "task"),
    ],
)
def test_a_lock_of_another_system_is_named_with_its_holder(path, take, name):
    """It was called a file without a readable record, to be removed by force."""
    with Child() as child:
        child.run("from semlock import feature, sidecar, task")
        child.run(f"lock = {take.format(path, child.process.pid)}; _ = lock.acquire()")
        there = child.run("lock.path")
        for call in (lambda: semlock.remove(there), lambda: semlock.Lock(there).acquire(0)):
            with pytest.raises(semlock.LockHeldError) as caught:
                call()
            said = str(caught.value)
            assert re.search(rf"{child.process.pid}.*, by a lock of {name}; alive: ", said)
            assert "force" not in said
            assert "end its holder" in said
        child.run("lock.release()")


@pytest.mark.parametrize("system", ["semats", "feature", "sidecar", "task"])
def test_a_scripts_lock_is_named_by_systems_that_can_not_read_it(system, tmp_path):
    """It was called an unknown program's, though its one line says which process holds it."""
    place = tmp_path / "specs" / "f" / ".lock"
    place.parent.mkdir(parents=True)
    place.write_text(f"pid={os.getppid()}\n")  # as of: echo "pid=$$" > x.lock
    said = semlock.systems.find(system).status(place).holder
    assert said.startswith(f"process {os.getppid()} since ")
    assert said.endswith(", by a lock of sema; unknown: its record is another system's")


def test_a_file_that_says_no_time_is_not_said_to_have_any_left(tmp_path, capsys):
    (tmp_path / "x.lock").write_text("no record")
    assert cli.main(["reclaim", str(tmp_path / "x.lock")]) == 1
    said = capsys.readouterr().err
    assert "its file is no readable record" not in said  # once, and not in two forms
    assert said.count("no readable record") == 1
    assert "no reason to take it: it says no time and no owner" in said
    cli.main(["migrate", str(tmp_path / "x.lock")])
    assert "or semlock break in a shell" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"12:30", b"{}", b'{"pid": 3}', b"[1]", b"owner", b"\xff"])
def test_any_other_content_is_of_no_known_system(path, content):
    Path(path).write_bytes(content)
    assert "no readable record" in semlock.status(path).holder


def test_a_path_that_is_there_twice_is_named(tmp_path):
    locks = [semlock.Lock(tmp_path / name) for name in ("a", "b", "c", "./b", "d", "a")]
    locks[3] = semlock.Lock(f"{tmp_path}/./b")
    if sys.platform != "win32":  # paths are made plain there
        assert locks[3].path.endswith("/./b")
    for count in (4, 5, 6):
        with pytest.raises(ValueError, match=re.escape(f"{locks[3].path} is there twice")):
            semlock.acquire_all(locks[:count])
    with pytest.raises(ValueError, match=re.escape(f"{locks[0].path} is there twice")):
        semlock.acquire_any([locks[0], locks[5]])


def test_what_is_no_lock_is_told_with_what_there_should_be(path):
    with pytest.raises(TypeError, match="each of the locks is a Lock, not 'a'"):
        semlock.acquire_any(["a"])

    async def mixed():
        await semlock.acquire_all_async([semlock.Lock(path)])

    with pytest.raises(TypeError, match="such as AsyncLock, not <Lock"):
        asyncio.run(mixed())


@pytest.mark.skipif(sys.platform == "win32", reason="nothing replaces an open file there")
def test_a_loss_says_what_is_there_instead(path):
    lock = semlock.Lock(path)
    lock.acquire()
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(semlock.LockLostError, match="is a directory") as told:
        lock.release()
    assert "nothing is there" not in str(told.value)
