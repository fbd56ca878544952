"""The worlds that the suite runs in: each lock system on files, a store in memory, engines."""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from importlib import import_module
from pathlib import Path

import pytest

import memory_store
import semlock
from engine_urls import url_of
from ini_system import INI
from memory_engine import MemoryEngine, Server, space_on
from semlock import systems
from semlock._core.folders import queue_of, tickets
from semlock._engines.address import Address
from semlock._engines.engine import HOLDS, Away
from support import STRANGER, Child, take_away

TESTS = Path(__file__).parent.parent


class Files:
    """One lock of a lock system: a file."""

    def __init__(self, name: str, directory: Path) -> None:
        self.system = INI if name == "ini" else systems.find(name)
        self.name = name
        self.place = str(directory / "the.lock")
        if name == "feature":
            (directory / "specs" / "one").mkdir(parents=True)
            self.place = str(directory / "specs" / "one" / ".lock")
        # The others leave it to chance which waiter is next, as their protocols do.
        self.has_queue = name in ("semlock", "ini")
        # Its waits go on until their time is over, as fs-safe's do.
        self.refuses_itself = name != "sidecar"
        self.taken_on_policy = name != "sidecar"

    def lock(self, **options):
        return self.system.lock(self.place, **options)

    def async_lock(self, **options):
        return self.system.async_lock(self.place, **options)

    def kind(self, name: str, more: str = "", **options):
        """Make a lock of one of semlock's classes at the place, or beside it."""
        if self.name != "semlock":
            if name in ("Lock", "AsyncLock"):
                make = self.system.lock if name == "Lock" else self.system.async_lock
                return make(self.place + more, **options)
            options["system"] = self.system
        return getattr(semlock, name)(self.place + more, **options)

    @property
    def calls(self):
        """What has the calls for several locks."""
        return semlock

    def status(self):
        return self.system.status(self.place)

    def take_away(self) -> None:
        take_away(self.place)

    def waiting(self) -> int:
        """Count those who stand in the queue."""
        try:
            return len(tickets(queue_of(self.place)))
        except OSError:
            return 0

    def stranger(self):
        return Process(self)


class Kernel(Files):
    """One lock that is the kernel's, on a file that stays."""

    def __init__(self, directory: Path) -> None:
        self.name = "kernel"
        self.place = str(directory / "the.lock")
        self.has_queue = self.refuses_itself = True
        self.taken_on_policy = False

    def lock(self, **options):
        return semlock.KernelLock(self.place, **options)

    def async_lock(self, **options):
        return semlock.AsyncKernelLock(self.place, **options)

    def status(self):
        return self.lock().status()

    def take_away(self) -> None:
        if sys.platform == "win32":
            pytest.skip("no program can remove the file while it is held")
        Path(self.place).unlink()

    def needs_names(self) -> None:
        """Skip a test in which another process that holds it must be named."""
        if not sys.platform.startswith("linux"):
            pytest.skip("this system doesn't say which process has a kernel lock")


class Process:
    """Another process, which can hold the lock."""

    def __init__(self, world: Files) -> None:
        self._world = world

    def __enter__(self):
        self._child = Child()
        name = "ini_system:INI" if self._world.name == "ini" else self._world.name
        self._child.run(
            f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
            f"from semlock import KernelLock, systems\n"
            f"kind = KernelLock if {name!r} == 'kernel' else systems.find({name!r}).lock\n"
            f"lock = kind({self._world.place!r})"
        )
        self.pid = self._child.pid
        return self

    def __exit__(self, *_):
        self._child.close()

    def hold(self) -> None:
        self._child.run("assert lock.try_acquire()")

    def release(self) -> None:
        self._child.run("lock.release()")

    def die(self) -> bool:
        """End while it holds; whether the record can prove that."""
        proves = self._world.name == "kernel" or self._world.status().info.witness is not None
        self._child.kill()
        return proves


class OnEngine:
    """One lock on an engine; ``connect`` gives another connection to it."""

    has_queue = refuses_itself = True
    taken_on_policy = False
    ttl = 1.0

    def __init__(self, name: str, space, connect) -> None:
        self.name, self.space, self.connect = name, space, connect
        self.place = "the lock"
        self.outside = connect()

    def lock(self, **options):
        return self.space.Lock(self.place, **options)

    def async_lock(self, **options):
        return self.space.AsyncLock(self.place, **options)

    def kind(self, name: str, more: str = "", **options):
        return getattr(self.space, name)(self.place + more, **options)

    @property
    def calls(self):
        return self.space

    def status(self):
        return self.space.status(self.place)

    def take_away(self) -> None:
        first = self.outside.line(self.place, within=5)[0]
        assert self.outside.remove(self.place, first.token, within=5)

    def waiting(self) -> int:
        return sum(not entry.holds for entry in self.outside.line(self.place, within=5))

    def stranger(self):
        return OtherClient(self)

    def close(self) -> None:
        self.space.close()
        self.outside.close()


class OtherClient:
    """Another client of an engine, which stands for one in another process."""

    pid = STRANGER

    def __init__(self, world: OnEngine) -> None:
        self._world = world
        self._engine = world.connect()
        self._token = "5" * 32
        self._over = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        self._engine.close()

    def hold(self) -> None:
        record = f"pid={self.pid}\ntimestamp=1\ntoken={self._token}\n".encode()
        place = self._engine.enter(
            self._world.place, self._token, record, 1, waits=False, within=5
        )
        assert place.state == HOLDS
        self._over.clear()
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while not self._over.wait(self._world.ttl / 5):
            with contextlib.suppress(Away):
                self._engine.renew([(self._world.place, self._token)], within=5)

    def release(self) -> None:
        self._over.set()
        assert self._engine.leave(self._world.place, self._token, within=5)

    def die(self) -> bool:
        """End without a word: the lease ends, or the connection that is the witness."""
        self._over.set()
        self._engine.close()
        return True


def engine_world(name: str, request):
    """Connect to an engine; the servers are started once."""
    if name == "memory-engine":
        server = Server()
        return OnEngine(
            name, space_on(server, OnEngine.ttl), lambda: MemoryEngine(server, OnEngine.ttl)
        )
    if name == "directory":
        url = request.getfixturevalue("tmp_path").as_uri()
    else:
        url = url_of(request.getfixturevalue(f"{name}_server"))
    prefix = uuid.uuid4().hex

    def connect():
        address = Address(url, prefix=prefix)
        module = import_module(f"semlock._engines.{address.row.module}")
        return module.connect(address, ttl=OnEngine.ttl, client=uuid.uuid4().hex)

    return OnEngine(name, semlock.connect(url, prefix=prefix, ttl=OnEngine.ttl), connect)


ENGINES = ("memory-engine", "redis", "postgresql", "etcd", "directory")


# Stores that are not files: what makes the world of each, in a directory.
STORES = {"memory": memory_store.World}

ON_FILES = [*systems.NAMES, "ini", "kernel"]
WORLDS = [*ON_FILES, *STORES, *ENGINES]
# Where there are all kinds of locks: readers and writers, slots, and calls for several.
# Slots and several locks need more than one place, which a feature lock doesn't have.
ALL_KINDS = ["semlock", "sema", "task", "ini", *ENGINES]
# The worlds of those modules that are not about all.
SOME = {"test_kinds": ALL_KINDS, "test_options": [*ON_FILES, "memory-engine", "directory"]}


def pytest_generate_tests(metafunc) -> None:
    if "world" in metafunc.fixturenames:
        worlds = SOME.get(metafunc.module.__name__.rpartition(".")[2], WORLDS)
        metafunc.parametrize("world", worlds, indirect=True)


@pytest.fixture
def world(request, tmp_path):
    """One lock, and what can be done with it."""
    if request.param in ENGINES:
        found = engine_world(request.param, request)
        yield found
        found.close()
    elif request.param == "kernel":
        yield Kernel(tmp_path)
    else:
        make = STORES.get(request.param)
        yield Files(request.param, tmp_path) if make is None else make(tmp_path)


@pytest.fixture
def stranger(world):
    """Another process that can hold it."""
    with world.stranger() as other:
        yield other


@pytest.fixture
def named(world):
    """Skip the test where a holder of another process can't be named."""
    getattr(world, "needs_names", bool)()


@pytest.fixture
def lock(world):
    return world.lock()


@pytest.fixture
def other(world):
    return world.lock()
