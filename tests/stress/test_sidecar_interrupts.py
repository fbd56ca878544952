"""Ctrl-C at every bytecode of what managers of sidecar locks do; see ``test_interrupts``.

After each strike the file is there exactly if the manager says that it holds the lock, and
whatever is held can be let go of in the ordinary way.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from semlock import sidecar
from semlock._core import capi
from semlock.sidecar import SidecarLock
from stress.test_interrupts import _HANDLERS_RUN_AT, Strike, chance_of_the_day
from stress.test_interrupts import pytestmark as only_cpython

pytestmark = only_cpython

# Where a sidecar lock is won, entered in the table and let go; not the writing of JSON.
MODULES = (
    "sidecar.py", "_systems/sidecar_manager.py", "_systems/sidecar_held.py",
    "_systems/sidecar_waiting.py", "_systems/sidecar_lock.py", "_waiting/steps.py",
    "_locks/base.py", "_locks/lock_object.py", "_stores/file.py", "_core/inside.py",
)  # fmt: skip
FAST = {"durability": "none", "payload": lambda: {"pid": 1}}


class Place:
    """Where operations are struck, and how the world is judged afterwards."""

    def __init__(self, directory, step):
        self.directory = directory
        self.step = step
        self.target = os.path.join(directory, "state.json")
        self.file = self.target + ".lock"
        self.locks = sidecar.create_file_lock_manager(f"interrupts in {directory}")
        self.made = []

    def acquire(self, **options):
        """Acquire, and see that the handle is not lost between here and there."""
        self.made.append(self.locks.acquire(self.target, **FAST, **options))

    def strike_everywhere(self, prepare, judge, *, at_least):
        with ThreadPoolExecutor(1) as thread:  # see test_interrupts
            strikes = thread.submit(self._strike_everywhere, prepare, judge).result()
        assert strikes >= at_least

    def _strike_everywhere(self, prepare, judge):
        files = self.open_files()
        for at in itertools.count(chance_of_the_day().randint(1, self.step), self.step):
            self.made.clear()
            strike = Strike(at, prepare(), MODULES)
            try:
                assert strike.error is None
                if judge(strike.struck) and strike.struck:
                    handlers = [n for n in strike.rest if n.startswith(_HANDLERS_RUN_AT)]
                    assert not handlers, f"done, but a handler could still run: {strike.rest}"
                assert self.locks.held_entries() == []
                assert self.open_files() == files
                assert os.listdir(self.directory) == []
            except AssertionError as error:
                raise AssertionError(f"struck at bytecode {at}, {strike.where}") from error
            if strike._left > 0:  # it ended before that bytecode
                return at
        return 0

    @staticmethod
    def open_files():
        capi.drain_pool()
        if not sys.platform.startswith("linux"):
            return []  # the system doesn't list them there
        return sorted(os.listdir("/proc/self/fd"), key=int)

    def held(self):
        """Say whether the manager holds the lock, and see that the file agrees."""
        entries = self.locks.held_entries()
        assert len(entries) == os.path.exists(self.file)
        return len(entries) == 1


@pytest.fixture(params=[5, pytest.param(1, marks=pytest.mark.stress)])
def place(tmp_path, request):
    return Place(str(tmp_path), request.param)


def test_acquiring_holds_or_leaves_nothing(place):
    def judge(struck):
        done = place.held()
        assert done or struck
        place.locks.drain()
        return done

    place.strike_everywhere(lambda: place.acquire, judge, at_least=300)


# A strike in the __del__ of the lock object that joining makes needless ends there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_joining_leaves_the_first_holder_as_it_was(place):
    def prepare():
        place.acquire()
        return lambda: place.acquire(allow_reentrant=True)

    def judge(struck):
        assert place.held()
        outer, *inner = place.made
        outer.release()
        done = place.held()
        assert done >= bool(inner)
        place.locks.drain()
        return done

    place.strike_everywhere(prepare, judge, at_least=100)


def test_releasing_can_be_done_again(place):
    def prepare():
        place.acquire()
        return place.made[0].release

    def judge(struck):
        assert struck or not place.held()
        place.held()
        place.made[0].release()
        assert not place.held()
        return False

    place.strike_everywhere(prepare, judge, at_least=50)


def test_draining_can_be_done_again(place):
    def prepare():
        place.acquire()
        return place.locks.drain

    def judge(struck):
        assert struck or not place.held()
        place.locks.drain()
        assert not place.held()
        return False

    place.strike_everywhere(prepare, judge, at_least=50)


@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
def test_the_lock_object_tells_the_truth(place, verb):
    lock = SidecarLock(place.target, **FAST)

    def judge(struck):
        assert lock.held == os.path.exists(place.file)
        done = lock.held
        assert done or struck
        if done:
            lock.check()
            assert lock.token == lock.status().info.token
            lock.release()
        return done

    place.strike_everywhere(lambda: getattr(lock, verb), judge, at_least=150)


def test_refreshing_leaves_it_held(place):
    lock = SidecarLock(place.target, **FAST)

    def prepare():
        lock.acquire()
        return lock.refresh

    def judge(struck):
        lock.check()
        assert lock.info == lock.status().info
        lock.release()
        return False

    place.strike_everywhere(prepare, judge, at_least=20)
