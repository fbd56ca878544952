"""Ctrl-C at every bytecode of every operation, and at random instants of storms.

A tracer raises at the n-th bytecode that runs in semlock's own code, for n from one on
until the operation ends without being struck.  After each strike the world must be whole: the
object holds exactly if its file is there, what was held before is held as often as before,
no process is kept out that need not be, and no descriptor and no file is left.

One thing no program in Python can do is to undo its own last instructions: an exception that
strikes between the win and the return leaves the lock held, and the object says so.  In a
real program no signal handler runs there, because the interpreter runs them at calls, at
jumps back and at the beginning of functions only.  That is what is checked then: that nothing
of the kind comes between the win and the return.
"""

import itertools
import os
import sys
from pathlib import Path

import pytest

import semlock
import semlock.policy
from semlock._core import capi
from semlock._locks import candidates, heartbeat
from support import HANDLERS_RUN_AT as _HANDLERS_RUN_AT
from support import Child, Strike, chance_of_the_day, content_of, take_away

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython traces single bytecodes"
)

FAST = {"durability": "none"}

# To strike at every bytecode takes the square of their number, so the long ones are struck at
# every so-manieth by default, others each day, and at every single one in the storms.
steps = pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.stress)])


@pytest.fixture(scope="module")
def neighbour():
    """Another process, who must be able to take whatever is not held here."""
    with Child("import os, semlock") as child:
        child.run("""
FAST = {"durability": "none"}
from semlock._core import capi
capi.POOL.keep = 0  # it leaves nothing in the directories that are looked at

def can_take(path):
    lock = semlock.Lock(path, **FAST)
    taken = lock.try_acquire()
    if taken:
        lock.release()
    return taken
""")
        yield child


@pytest.fixture(scope="module")
def dead_record(tmp_path_factory) -> bytes:
    """The record of a process that was killed while it held."""
    path = str(tmp_path_factory.mktemp("dead") / "lock")
    with Child() as child:
        child.run(f"lock = semlock.Lock({path!r}); lock.acquire(); None")
        record = content_of(path)
        child.kill()
    return record


@pytest.fixture
def arena(tmp_path, neighbour, dead_record):
    return Arena(str(tmp_path), neighbour, dead_record)


class Arena:
    """Where operations are struck, and how the world is judged afterwards."""

    def __init__(self, directory: str, neighbour: Child, dead_record: bytes) -> None:
        self.directory = directory
        self.neighbour = neighbour
        self.dead_record = dead_record
        self.path = os.path.join(directory, "the.lock")
        self.theirs: list[str] = []  # what the neighbour has put there
        self.strikes = 0

    def strike_everywhere(
        self, prepare, judge, *, at_least: int, modules=("",), step: int = 1
    ) -> None:
        """Strike at every bytecode, or at every one of the modules that are named.

        ``at_least`` is how many there must be, and ``step`` leaves out those between.

        ``prepare()`` gives the locks and the operation, and ``judge(struck, *locks)`` looks at
        them afterwards and releases what is held.  It says whether the operation was done all
        the same, though it was struck.
        """
        for at in itertools.count(chance_of_the_day().randint(1, step), step):
            files = self.open_files()
            *locks, operation = prepare()
            strike = Strike(at, operation, modules)
            try:
                done = judge(strike.struck, *locks)
                if done and strike.struck:
                    handlers = [n for n in strike.rest if n.startswith(_HANDLERS_RUN_AT)]
                    assert not handlers, f"done, but a handler could still run: {strike.rest}"
                del locks, operation
                self.assert_nothing_is_left(files)
            except (AssertionError, semlock.SemlockError) as error:
                raise AssertionError(f"struck at bytecode {at}, {strike.where}") from error
            if not strike.struck:
                break
            self.strikes += 1
        assert self.strikes >= at_least // step

    @staticmethod
    def open_files() -> list[str]:
        capi.drain_pool()
        if not sys.platform.startswith("linux"):
            return []  # the system doesn't list them there
        return sorted(filter(_is_counted, os.listdir("/proc/self/fd")), key=int)

    def assert_nothing_is_left(self, files: list[str]) -> None:
        now = self.open_files()
        assert now == files, {n: _target(n) for n in set(now) ^ set(files)}
        assert os.listdir(self.directory) == self.theirs

    def assert_whole(self, lock: semlock.Lock) -> None:
        """See that the object tells the truth about the path."""
        assert lock.held == os.path.exists(lock.path)
        if lock.held:
            lock.check()
            found = semlock.status(lock.path)
            assert found.verdict == "alive"
            assert found.info.token == lock.token
        assert self.neighbour.run(f"can_take({lock.path!r})") is not lock.held

    def release_fully(self, lock: semlock.Lock) -> int:
        """Let go, and count how often that takes."""
        count = 0
        while lock.held:
            lock.release()
            count += 1
        assert not os.path.exists(lock.path)
        return count

    def judge_free_before(self, struck: bool, lock: semlock.Lock, *_) -> bool:
        """Judge an operation that takes a lock."""
        if not struck:
            assert lock.held
        self.assert_whole(lock)
        return self.release_fully(lock) == 1

    def judge_held_before(self, struck: bool, lock: semlock.Lock, *_) -> bool:
        """Judge an operation that lets go of a lock, and may be struck before it does."""
        assert struck or not lock.held
        self.assert_whole(lock)
        self.release_fully(lock)
        return False


@steps
def test_making_a_lock(arena, step):
    made = []

    def prepare():
        made.clear()
        return (lambda: made.append(semlock.Lock(arena.path, tag="x", timeout=1)),)

    def judge(struck):
        for lock in made:
            arena.judge_free_before(True, lock)
        return False

    arena.strike_everywhere(prepare, judge, at_least=50, step=step)


@steps
def test_the_first_acquire_of_an_object(arena, step):
    def prepare():
        lock = semlock.Lock(arena.path, tag="first", **FAST)
        return lock, lock.acquire

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=60, step=step)


def test_an_acquire_with_a_kept_claim(arena):
    lock = semlock.Lock(arena.path, **FAST)

    def prepare():
        for _ in range(3):
            lock.acquire()
            lock.release()
        assert any(name.endswith(".kept") for name in os.listdir(arena.directory))
        return lock, lock.acquire

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=20)


def test_an_acquire_with_a_timeout_of_its_own(arena):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        return lock, lambda: lock.acquire(timeout=5)

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=60)


def test_an_acquire_that_starts_a_heartbeat(arena):
    def prepare():
        lock = semlock.Lock(arena.path, heartbeat=3600, **FAST)
        return lock, lock.acquire

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=60)
    heartbeat._due.clear()


@steps
@pytest.mark.parametrize("try_only", [False, True])
@pytest.mark.parametrize("judge_here", [False, True])
def test_an_acquire_over_the_lock_of_a_dead_process(arena, judge_here, try_only, step):
    # The core judges a dead holder itself, unless the lock has a policy.
    policy = semlock.policy.ProofOfDeath() if judge_here else None

    def prepare():
        Path(arena.path).write_bytes(arena.dead_record)
        lock = semlock.Lock(arena.path, policy=policy, **FAST)
        return lock, lock.try_acquire if try_only else lock.acquire

    def judge(struck, lock):
        if struck and not lock.held:
            # The dead one's file may be there still, and then the next one takes it.
            assert arena.neighbour.run(f"can_take({lock.path!r})")
            return False
        return arena.judge_free_before(struck, lock)

    at_least = 300 if judge_here else 100
    arena.strike_everywhere(prepare, judge, at_least=at_least, step=step)


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        return str(error)


def _is_counted(descriptor: str) -> bool:
    """Leave out event sources: idle ones are kept for the next wait, some at most."""
    try:
        return "inotify" not in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False  # the one by which the directory was read


@pytest.fixture
def theirs(arena, neighbour):
    """A lock that the neighbour holds all the time."""
    path = os.path.join(arena.directory, "theirs.lock")
    neighbour.run(f"theirs = semlock.Lock({path!r}, **FAST); theirs.acquire(); None")
    arena.theirs = ["theirs.lock"]
    record = content_of(path)
    yield path
    assert content_of(path) == record
    neighbour.run("theirs.release()")


ENGINE = (
    "_core/inside.py",
    "_locks/base.py",
    "_locks/lock_object.py",
    "_stores/file.py",
    "_locks/many.py",
    "_locks/together.py",
    "_core/capi.py",
    "_waiting/steps.py",
    "_waiting/waiter.py",
)


@steps
@pytest.mark.parametrize(("timeout", "modules"), [(0, ("",)), (0.002, ENGINE)])
def test_an_acquire_that_waits_in_vain(arena, theirs, timeout, modules, step):
    def prepare():
        lock = semlock.Lock(theirs, **FAST)
        return lock, lambda: lock.acquire(timeout=timeout)

    def judge(struck, lock):
        assert not lock.held
        return False

    arena.strike_everywhere(prepare, judge, at_least=100, modules=modules, step=step)
    assert isinstance(Strike(10**9, prepare()[-1]).error, semlock.LockTimeoutError)


@steps
def test_an_acquire_that_waits_and_gets_it(arena, neighbour, step):
    neighbour.run(f"theirs = semlock.Lock({arena.path!r}, **FAST)")

    def pauses():
        neighbour.run("if theirs.held: theirs.release()")
        while True:
            yield 0

    def prepare():
        neighbour.run("theirs.acquire(); None")
        lock = semlock.Lock(arena.path, retry=pauses, **FAST)
        return lock, lock.acquire

    def judge(struck, lock):
        neighbour.run("if theirs.held: theirs.release()")
        return arena.judge_free_before(struck, lock)

    arena.strike_everywhere(prepare, judge, at_least=100, modules=ENGINE, step=step)


def test_a_try_that_wins(arena):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        return lock, lock.try_acquire

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=60)


@steps
def test_a_try_that_loses(arena, theirs, step):
    def prepare():
        lock = semlock.Lock(theirs, **FAST)
        return lock, lock.try_acquire

    def judge(struck, lock):
        assert not lock.held
        return False

    arena.strike_everywhere(prepare, judge, at_least=80, step=step)


def test_entering_a_with_block(arena):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        return lock, lock.__enter__

    arena.strike_everywhere(prepare, arena.judge_free_before, at_least=60)


def test_a_whole_with_block(arena):
    """Struck in ``__enter__``, the block does not run; struck in ``__exit__``, it has run."""
    ran = []

    def prepare():
        ran.clear()
        lock = semlock.Lock(arena.path, **FAST)

        def block():
            with lock:
                ran.append(lock.held)

        return lock, block

    def judge(struck, lock):
        assert struck or ran == [True]
        assert ran in ([], [True])
        arena.assert_whole(lock)
        arena.release_fully(lock)
        return False

    arena.strike_everywhere(prepare, judge, at_least=60)


def test_the_exit_of_a_with_block_that_raises(arena):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        lock.acquire()
        error = ValueError("the block's own")
        return lock, lambda: lock.__exit__(ValueError, error, None)

    arena.strike_everywhere(prepare, arena.judge_held_before, at_least=5)


@pytest.mark.parametrize("kept", [False, True])
def test_release(arena, kept):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        if kept:
            lock.acquire()
            lock.release()
        lock.acquire()
        return lock, lock.release

    arena.strike_everywhere(prepare, arena.judge_held_before, at_least=5)


def test_the_first_release_that_keeps_its_claim(arena):
    """It also sweeps the directory, so there is more code to be struck in."""

    def prepare():
        capi.POOL.seen_count = 0
        for place in range(len(capi.POOL.seen)):
            capi.POOL.seen[place] = 0
        lock = semlock.Lock(arena.path, **FAST)
        lock.acquire()
        lock.release()
        lock.acquire()
        return lock, lock.release

    arena.strike_everywhere(prepare, arena.judge_held_before, at_least=30)


def test_the_release_of_a_lock_that_was_removed(arena):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        lock.acquire()
        take_away(arena.path)
        return lock, lock.release

    def judge(struck, lock):
        assert struck or not lock.held
        if lock.held:
            with pytest.raises(semlock.LockLostError):
                lock.release()
        assert not lock.held
        return False

    arena.strike_everywhere(prepare, judge, at_least=60)


def test_a_nested_acquire_leaves_the_outer_one_held_exactly_once(arena):
    lock = semlock.Lock(arena.path, reentrant=True, **FAST)

    def prepare():
        lock.acquire()
        return lock, lock.acquire

    def judge(struck, lock):
        assert lock.held
        arena.assert_whole(lock)
        releases = arena.release_fully(lock)
        assert releases == 2 if not struck else releases in (1, 2)
        return releases == 2

    arena.strike_everywhere(prepare, judge, at_least=15)


def test_a_nested_release_never_ends_the_outer_hold(arena):
    lock = semlock.Lock(arena.path, reentrant=True, **FAST)

    def prepare():
        lock.acquire()
        lock.acquire()
        return lock, lock.release

    def judge(struck, lock):
        assert lock.held
        arena.assert_whole(lock)
        releases = arena.release_fully(lock)
        assert releases == 1 if not struck else releases in (1, 2)
        return False

    arena.strike_everywhere(prepare, judge, at_least=5)


def test_nested_with_blocks_end_free_whatever_strikes_inside_of_the_inner_one(arena):
    lock = semlock.Lock(arena.path, reentrant=True, **FAST)
    depths = []

    def prepare():
        depths.clear()

        def blocks():
            with lock.acquire():
                try:
                    with lock:
                        pass
                finally:
                    depths.append(lock._native.depth)

        return lock, blocks

    def judge(struck, lock):
        arena.assert_whole(lock)
        assert arena.release_fully(lock) <= 2
        return False

    arena.strike_everywhere(prepare, judge, at_least=30)
    assert depths == [1]


def test_refresh(arena):
    def prepare():
        lock = semlock.Lock(arena.path, tag="refreshed", **FAST)
        lock.acquire()
        return lock, lock.refresh

    def judge(struck, lock):
        assert lock.held
        arena.assert_whole(lock)
        found = semlock.status(arena.path)
        assert abs(found.info.timestamp - lock.info.timestamp) <= 1
        assert found.info.tag == "refreshed"
        assert arena.release_fully(lock) == 1
        return False

    arena.strike_everywhere(prepare, judge, at_least=50)


@steps
@pytest.mark.parametrize("operation", ["check", "status"])
def test_looking_at_ones_own_lock(arena, operation, step):
    def prepare():
        lock = semlock.Lock(arena.path, **FAST)
        lock.acquire()
        return lock, getattr(lock, operation)

    def judge(struck, lock):
        arena.assert_whole(lock)
        assert arena.release_fully(lock) == 1
        return False

    arena.strike_everywhere(prepare, judge, at_least=7, step=step)


@steps
def test_trying_many_gives_back_all_that_it_took(arena, theirs, step):
    """In one call: free ones, a dead one's, one that is held already, and another process's."""
    paths = [os.path.join(arena.directory, name) for name in ("a", "dead", "mine", "z")]
    tries = []

    def prepare():
        locks = [semlock.Lock(path, reentrant=True, **FAST) for path in paths]
        for lock in locks:  # their records are laid out now, which is struck elsewhere
            lock.acquire()
            lock.release()
        Path(paths[1]).write_bytes(arena.dead_record)
        locks[2].acquire()
        everything = [*locks[:3], semlock.Lock(theirs, **FAST), locks[3]]
        tries.clear()
        return *locks, lambda: tries.extend(semlock.try_acquire_many(everything))

    def judge(struck, *locks):
        if not struck:
            assert [lock is not None for lock in tries] == [True, True, True, False, True]
        for lock, path in zip(locks, paths, strict=True):
            # The dead one's file may be there still.
            assert lock.held == os.path.exists(path) or path == paths[1]
        # Whatever is held keeps the neighbour out, and nothing else does.
        can_take = arena.neighbour.run(f"[can_take(path) for path in {paths!r}]")
        assert can_take == [not lock.held for lock in locks]
        taken = [arena.release_fully(lock) for lock in locks]
        if not struck or taken != [0, 0, 1, 0]:
            # All or nothing, and all only when nothing came between it and the return.
            assert taken == [1, 1, 2, 1]
        return sum(taken) > 1

    arena.strike_everywhere(prepare, judge, at_least=200, modules=ENGINE, step=step)


@steps
@pytest.mark.parametrize("reported", [True, False])
def test_a_set_gives_back_what_it_took_and_forgets_no_lock(arena, theirs, step, reported):
    """Of a set that has just begun, and of one that takes in reports."""
    paths = [os.path.join(arena.directory, name) for name in ("a", "dead", "z")]
    tries = []

    def prepare():
        locks = [semlock.Lock(path, **FAST) for path in paths]
        some = semlock.LockSet([*locks[:2], semlock.Lock(theirs, **FAST), locks[2]])
        for lock in some.try_acquire() if reported else locks:
            lock.held or lock.acquire()
            lock.release()
        Path(paths[1]).write_bytes(arena.dead_record)
        tries.clear()
        return some, *locks, lambda: tries.extend(some.try_acquire())

    def judge(struck, some, *locks):
        taken = [lock.held for lock in locks]
        can_take = arena.neighbour.run(f"[can_take(path) for path in {paths!r}]")
        assert can_take == [not lock.held for lock in locks]
        if not struck:
            assert set(tries) == set(locks)
        elif any(taken):
            assert all(taken)  # all, or none is held
        for lock in locks:
            arena.release_fully(lock)
        found = set()
        while found != set(locks):
            assert some.wait(5), "a lock is forgotten"
            for lock in some.try_acquire():
                found.add(lock)
                some.discard(lock)
                lock.release()
        some.close()
        return all(taken)

    modules = ("_locks/lock_set.py", "_locks/candidates.py", "_core/changes.py")
    arena.strike_everywhere(prepare, judge, at_least=200, modules=modules, step=step)


@steps
def test_a_set_forgets_no_report(arena, step, monkeypatch):
    """Each name is reported once, and nothing is found by the clock."""
    monkeypatch.setattr(candidates, "_ROUND", 1 << 60)
    paths = [os.path.join(arena.directory, name) for name in "abc"]
    tries = []

    def prepare():
        for path in paths:
            Path(path).write_bytes(b"another program's")
        locks = [semlock.Lock(path, **FAST) for path in paths]
        some = semlock.LockSet(locks)
        while some.wait(0.002):
            assert some.try_acquire() == []
        for path in paths:
            take_away(path)
        tries.clear()
        return some, *locks, lambda: tries.extend(some.try_acquire())

    def judge(struck, some, *locks):
        found = {lock for lock in locks if lock.held}
        assert found in (set(), set(locks))
        done = bool(found)
        assert struck or done
        while found != set(locks):
            assert some.wait(1), "a report is lost"
            found.update(some.try_acquire())
        for lock in locks:
            arena.release_fully(lock)
        some.close()
        return done

    modules = ("_locks/lock_set.py", "_locks/candidates.py", "_core/changes.py")
    arena.strike_everywhere(prepare, judge, at_least=150, modules=modules, step=step)


@steps
def test_removing_and_cleaning(arena, neighbour, step):
    for action in (semlock.remove, semlock.clean):

        def prepare(action=action):
            Path(arena.path).write_bytes(arena.dead_record)
            return (lambda: action(arena.path),)

        def judge(struck):
            assert struck or not os.path.exists(arena.path)
            assert neighbour.run(f"can_take({arena.path!r})")
            return False

        arena.strike_everywhere(prepare, judge, at_least=200, step=step)
