"""Migrating old lock files: in place, while their holder goes on holding them."""

import errno
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import semlock
from actors import Actor, ActorError, build_shim, compiler
from faultlib import die_after, die_before, fail, stop_after, stop_before
from semlock import task
from semlock._core import capi
from semlock.task import TaskLock, decode, migrate
from support import Child, content_of, make_link, set_everywhere

T0 = 1761229800.0  # 2025-10-23T14:30:00.000Z
RECORDS = Path(__file__).resolve().parents[1] / "interop" / "records" / "task"
OLD = (RECORDS / "old.lock").read_bytes()
NEW = (RECORDS / "migrated.lock").read_bytes()


def at_three():
    return T0 + 1800  # the time in the golden file


def old(**changes):
    record = {"owner": "agent-7", "since": int(T0 * 1000), "ttl": 3600, **changes}
    return json.dumps(record, indent=2).encode()


# ---------------------------------------------------------------- what comes of a file


def test_an_old_record_becomes_what_the_specification_makes_of_it(path):
    Path(path).write_bytes(OLD)
    before = os.stat(path)
    result = migrate(path, clock=at_three)
    assert result
    assert (result.outcome, result.path) == ("migrated", path)
    assert result.info == decode(NEW)
    assert "agent-7" in result.message
    assert Path(path).read_bytes() == NEW
    after = os.stat(path)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_it_is_done_once(path):
    Path(path).write_bytes(OLD)
    assert migrate(path, clock=at_three)
    again = migrate(path)
    assert not again
    assert again.outcome == "enhanced"
    assert Path(path).read_bytes() == NEW


@pytest.mark.parametrize(
    ("owner", "migrated"),
    [
        ("agent-7", "pid-agent-7"), ("12345", "pid-12345"), ("pid-1@box", "pid-1@box"),
        ("user-a@session-b", "user-a@session-b"), ("ci-github-7", "ci-github-7"),
        ("token-eyJhbGciOi", "token-eyJhbGciOi"), ("tokens", "pid-tokens"), ("ü🔒", "pid-ü🔒"),
        ("x" * 252, "pid-" + "x" * 252),
    ],
)  # fmt: skip
def test_an_owner_of_a_known_kind_stays_and_another_was_a_process(owner, migrated, path):
    Path(path).write_bytes(old(owner=owner, ttl=0.5))
    info = migrate(path, audit=False).info
    assert info.owner == migrated
    assert (info.ttl, info.timestamp) == (0.5, T0)
    assert info == task.status(path).info


@pytest.mark.parametrize("length", [80, 300, 4096])
def test_a_record_that_was_longer_is_followed_by_blanks(length, path):
    content = OLD.ljust(length)
    Path(path).write_bytes(content)
    assert migrate(path, clock=at_three)
    assert Path(path).read_bytes() == NEW.ljust(length)
    assert decode(Path(path).read_bytes()) == decode(NEW)


LEFT_ALONE = {
    "enhanced": (RECORDS / "enhanced-ci.lock", "enhanced"),
    "refreshed by the specification's own code": (RECORDS / "refreshed.lock", "enhanced"),
    "of semlock": (RECORDS / "semlock.lock", "enhanced"),
    "empty": (b"", "unreadable"),
    "half": (OLD[:30], "unreadable"),
    "text": (b"pid=1\ntimestamp=2\n", "unreadable"),
    "no owner": (old(owner=""), "unreadable"),
    "no ttl": (old(ttl=0), "unreadable"),
    "a time in seconds": (old(since=int(T0)), "unreadable"),
    "one MiB": (OLD + b" " * (1 << 20), "unreadable"),
    "owner too long for a prefix": (old(owner="x" * 253), "unfit"),
    "a time that no calendar has": (old(since=8_640_000_000_000_000), "unfit"),
    "more than a page": (OLD.ljust(4097), "unfit"),
    "half a character": (old(owner="\ud800"), "migrated"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_not_old_or_can_not_be_migrated_is_left_alone(name, path):
    content, outcome = LEFT_ALONE[name]
    content = content if isinstance(content, bytes) else content.read_bytes()
    Path(path).write_bytes(content)
    before = os.stat(path)
    result = migrate(path, audit=False)
    assert result.outcome == outcome
    assert result.message
    assert repr(result)
    if outcome != "migrated":
        assert Path(path).read_bytes() == content
        assert os.stat(path).st_mtime_ns == before.st_mtime_ns


def test_nothing_is_made_where_nothing_is(path, names):
    assert migrate(path).outcome == "free"
    assert names() == []


def test_it_is_on_record(path):
    Path(path).write_bytes(old(owner="token-eyJhbGciOi"))
    os.chmod(path, 0o640)
    migrate(path, clock=at_three)
    log = Path(path).with_name(".lock_audit.log")
    line = json.loads(log.read_text())
    shown = task.owner_for(token="eyJhbGciOi").owner
    assert line["operation"] == "migrate"
    assert line["details"] == {"existingOwner": shown, "newOwner": shown}
    if sys.platform != "win32":  # where files have no permission bits
        assert log.stat().st_mode & 0o777 == 0o640
    migrate(path)
    assert len(log.read_text().splitlines()) == 1


def test_the_lock_of_a_semlock_process_is_left_alone_whatever_it_says(path):
    """Another lock system of semlock may have a record that looks like an old one."""

    class Looksalike(TaskLock):
        __slots__ = ()

        def _compose(self, owner):
            return capi.Record(
                OLD, stamp_at=-1, token_at=-1, witness_at=-1, mode=0o600, durability=0
            )

    lock = Looksalike(path, "x", audit=False)
    lock.acquire()
    result = migrate(path)
    assert result.outcome == "alive"
    assert "keeps the kernel's lock" in result.message
    assert content_of(path) == OLD
    lock.release()


def test_the_holder_of_the_old_form_goes_on_holding(path):
    Path(path).write_bytes(OLD)
    migrate(path, clock=at_three)
    assert TaskLock(path, "me", clock=at_three).try_acquire() is False
    # It releases as it always did, by the name, and asks for no owner.
    os.unlink(path)
    with TaskLock(path, "me"):
        pass


def test_a_migrated_lock_is_over_when_the_old_one_would_have_been(path):
    Path(path).write_bytes(OLD)
    migrate(path, clock=at_three)
    assert task.status(path, clock=lambda: T0 + 3600).state == "held"
    assert task.status(path, clock=lambda: T0 + 3600.001).state == "stale"
    with TaskLock(path, "me", clock=lambda: T0 + 3601) as lock:
        assert lock.info.metadata["reclaimed_from"] == "pid-agent-7"


@pytest.mark.skipif(sys.platform == "win32", reason="no other program takes the guard there")
def test_who_sits_on_the_guard_is_waited_for_but_not_for_ever(path, monkeypatch):
    set_everywhere(monkeypatch, "GUARD_PATIENCE", 0.003)
    Path(path).write_bytes(OLD)
    with Child("import os, fcntl") as child:
        child.run(f"f = open({path!r}); fcntl.flock(f, fcntl.LOCK_EX)")
        with pytest.raises(semlock.LockTimeoutError, match="can't be migrated now"):
            migrate(path)
    assert Path(path).read_bytes() == OLD


def test_a_file_that_changes_at_every_look_is_left_alone(path, monkeypatch):
    Path(path).write_bytes(OLD)
    monkeypatch.setattr(capi, "rewrite", lambda *_: capi.CHANGED)
    assert migrate(path).outcome == "changed"


def test_the_core_refuses_what_would_cut_the_file(path):
    Path(path).write_bytes(OLD)
    seen = capi.look(os.fsencode(path))
    refused = -87 if sys.platform == "win32" else -errno.EINVAL  # ERROR_INVALID_PARAMETER
    for text in (OLD[:-1], b"", b"x" * 4097):
        assert capi.rewrite(os.fsencode(path), seen, text) == refused
    assert Path(path).read_bytes() == OLD
    os.unlink(path)
    assert capi.rewrite(os.fsencode(path), seen, OLD) == capi.LOST
    assert not os.path.exists(path)
    make_link(path, "elsewhere")
    assert capi.rewrite(os.fsencode(path), seen, OLD) == capi.LOST


# ---------------------------------------------------------------- races and faults


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """The library that stops a process at a system call of its core."""
    if not sys.platform.startswith("linux") or shutil.which(compiler()[0]) is None:
        pytest.skip("faults are preloaded, which needs Linux and a C compiler")
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def migrator(shim, path):
    """A process that migrates, and can be stopped, failed and killed while it does."""
    made = []

    def make():
        one = Actor(shim, path)
        made.append(one)
        one.have("task", "__import__('semlock.task').task")
        return one

    yield make
    for one in made:
        one.close()


MIGRATE = f"task.migrate(path, audit=False, clock=lambda: {T0 + 1800}).outcome"


def every_stop(one, ready):
    """Begin to migrate again and again, and stop it at one call after the other."""
    for stop in (stop_before, stop_after):
        for number in itertools.count(1):
            ready()
            if not one.begin(MIGRATE, stop(nth=number)):
                one.finish()
                assert number > 10
                break
            yield


def test_no_reader_sees_half_a_record_wherever_it_is_stopped(migrator, path):
    one = migrator()
    seen = set()
    for _ in every_stop(one, lambda: Path(path).write_bytes(OLD)):
        content = Path(path).read_bytes()
        seen.add(content)
        # What the old program makes of it too: it parses, and says who holds the lock.
        assert json.loads(content)["owner"] in ("agent-7", "pid-agent-7")
        assert decode(content).timestamp == T0
        assert one.finish() == "migrated"
        assert Path(path).read_bytes() == NEW
    assert seen == {OLD, OLD.ljust(len(NEW)), NEW}


def test_a_lock_that_is_released_meanwhile_stays_released(migrator, path):
    one = migrator()
    for _ in every_stop(one, lambda: Path(path).write_bytes(OLD)):
        os.unlink(path)
        assert one.finish() in ("migrated", "free")
        assert not os.path.lexists(path)


def test_a_lock_that_changes_hands_meanwhile_is_not_touched(migrator, path):
    one = migrator()
    outcomes = set()
    other = old(owner="the next one")
    for _ in every_stop(one, lambda: Path(path).write_bytes(OLD)):
        os.unlink(path)
        Path(path).write_bytes(other)
        outcomes.add(one.finish())
        info = decode(Path(path).read_bytes())
        # Looked at anew, it may be migrated in its turn, but never be taken for the old one.
        assert info.owner in ("the next one", "pid-the next one")
        assert info.owner == "the next one" or info.metadata["migrated"]
        os.unlink(path)
    assert outcomes == {"migrated"}


def test_a_holder_that_writes_its_file_anew_meanwhile_is_not_overwritten(migrator, path):
    """The old program takes an old lock over by writing to its file, without a question.

    Between the last look and the write, two system calls, nothing can be done about it.
    """
    one = migrator()
    other = old(owner="the next one")
    overwritten = []
    for number, _ in enumerate(every_stop(one, lambda: Path(path).write_bytes(OLD))):
        Path(path).write_bytes(other)
        one.finish()
        content = Path(path).read_bytes()
        owner = json.loads(content)["owner"]
        if owner not in ("the next one", "pid-the next one"):
            overwritten.append(number)
    # After the call that looked last, and before the one that writes.
    assert len(overwritten) == 2


def test_who_reclaims_meanwhile_gets_a_lock_of_his_own(migrator, path):
    one, other = migrator(), migrator()
    other.have("late", "task.TaskLock(path, 'late', audit=False, clock=lambda: 1e10)")
    outcomes = set()
    for _ in every_stop(one, lambda: Path(path).write_bytes(OLD)):
        taken = other.do("late.try_acquire()")
        outcomes.add((taken, one.finish()))
        if taken:
            other.do("late.check()")
            assert decode(Path(path).read_bytes()).owner == "late"
            other.do("late.release()")
        else:
            assert Path(path).read_bytes() == NEW
            os.unlink(path)
        other.do("setattr(late._native, 'look_at', 0)")
    # Taken first, and then there is nothing old any more; or under the guard, and then not;
    # or when it had been migrated.
    assert outcomes == {(True, "enhanced"), (False, "migrated"), (True, "migrated")}


@pytest.mark.parametrize("die", [die_before, die_after])
def test_a_kill_leaves_a_whole_record_that_can_be_migrated(die, migrator, path):
    one = migrator()
    for number in itertools.count(1):
        Path(path).write_bytes(OLD)
        if not one.do(f"in_a_child(lambda: {MIGRATE})", die(nth=number)):
            break
        assert Path(path).read_bytes() in (OLD, OLD.ljust(len(NEW)), NEW)
        assert migrate(path, audit=False, clock=at_three).outcome in ("migrated", "enhanced")
        assert Path(path).read_bytes() == NEW
    assert number > 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EINTR])
def test_a_call_that_fails_leaves_a_whole_record(code, migrator, path):
    one = migrator()
    files = one.do("len(__import__('os').listdir('/proc/self/fd'))")
    for number in itertools.count(1):
        Path(path).write_bytes(OLD)
        one.do("None")
        try:
            outcome = one.do(MIGRATE, fail(code, nth=number))
        except ActorError as error:
            outcome = error.kind
        calls = len(one.calls)
        assert outcome in (
            "migrated", "enhanced", "unreadable", "OSError", "PermissionError", "LockTimeoutError",
        )  # fmt: skip
        assert Path(path).read_bytes() in (OLD, OLD.ljust(len(NEW)), NEW)
        if outcome == "migrated":
            assert Path(path).read_bytes() == NEW
        assert one.do("len(__import__('os').listdir('/proc/self/fd'))") == files
        if number > calls:
            break
    assert number > 10


def test_a_write_that_comes_halfway_is_taken_back(migrator, path):
    """As far as a test can see: the last write fails, and the old record is there again."""
    one = migrator()
    Path(path).write_bytes(OLD)
    with pytest.raises(ActorError, match="OSError"):
        one.do(MIGRATE, fail(errno.EIO, "pwrite", nth=2))
    assert one.calls.count("pwrite") == 3
    assert Path(path).read_bytes() == OLD.ljust(len(NEW))


def test_without_a_guard_it_works_as_well(migrator, path):
    one = migrator()
    Path(path).write_bytes(OLD)
    one.do(f"refuse('flock', {errno.ENOLCK})")
    assert one.do(MIGRATE) == "migrated"
    assert Path(path).read_bytes() == NEW


def test_many_migrate_at_once_and_one_does_it(path):
    children = [Child("from semlock import task") for _ in range(4)]
    try:
        for _ in range(12):
            Path(path).write_bytes(OLD)
            for child in children:
                child.send(f"task.migrate({path!r}, audit=False).outcome")
            outcomes = [child.receive() for child in children]
            assert outcomes.count("migrated") == 1
            assert set(outcomes) <= {"migrated", "enhanced"}
            assert decode(Path(path).read_bytes()).owner == "pid-agent-7"
    finally:
        for child in children:
            child.close()


@pytest.mark.skipif(sys.platform == "win32", reason="what is open can't be unlinked there")
def test_migrating_races_with_holders_that_come_and_go(path):
    """Old programs take, release and take again; each sees its own file until it lets go."""
    holder = f"""
import os, json
record = {{"owner": "", "since": {int(T0 * 1000)}, "ttl": 3600}}
for number in range(400):
    record["owner"] = f"agent-{{number}}"
    handle = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(handle, json.dumps(record, indent=2).encode())
    for again in range(1000):
        try:
            seen = json.loads(open({path!r}).read())
            break
        except ValueError:
            pass  # a reader that asks for nothing may see a mixture for a moment
    assert seen["owner"] in (record["owner"], "pid-" + record["owner"]), seen
    os.unlink({path!r})
    os.close(handle)
"""
    with Child() as theirs, Child("from semlock import task") as ours:
        theirs.send(holder)
        outcomes = set()
        while not theirs.answered(0):
            outcomes.add(ours.run(f"task.migrate({path!r}, audit=False).outcome"))
        theirs.receive()
        assert outcomes <= {"migrated", "enhanced", "free", "unreadable", "changed"}
    assert not os.path.exists(path)
