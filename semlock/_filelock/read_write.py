"""``ReadWriteLock``: filelock's protocol for readers and writers, a lock inside of SQLite's file.

A reader keeps SQLite's shared lock on the file, a writer its exclusive one; nothing is written.
So it excludes filelock's lock of that name.  No event tells the end of such a lock: the wait is
SQLite's.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from weakref import WeakValueDictionary

from semlock._filelock import options as opt
from semlock._filelock.errors import Timeout
from semlock._filelock.making import canonical
from semlock._filelock.read_write_making import ReadWriteLockMeta
from semlock._filelock.reporting import AcquireReturnProxy

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Any, Literal

    from typing_extensions import Self

# SQLite waits for so many seconds in one call, in which no signal is handled.
_SLICE = 0.1
_MAGIC = b"SQLite format 3\x00"
_WAL = 2
_STEPS_OF_A_SCHEMA = 100_000

# Connections of the parent process: the child must neither use nor close them.
_parents: list[Any] = []
_open_at_fork: set[str] = set()


class ReadWriteLock(metaclass=ReadWriteLockMeta):
    """Many readers or one writer, in the file of a SQLite database that is the lock's alone.

    :param lock_file: the path of that file
    :param timeout: seconds to wait by default; -1 for no limit
    :param blocking: whether to wait by default
    :param is_singleton: whether there is one object for each path

    An object can be acquired again in the same mode.  A thread that holds it in one mode gets
    ``RuntimeError`` if it asks for the other.
    """

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,  # noqa: ARG002 - the metaclass has seen to it
    ) -> None:
        self.lock_file = os.fspath(lock_file)
        self.timeout = timeout
        self.blocking = blocking
        self._path = canonical(lock_file)
        self._pid = os.getpid()
        self._closed = False
        self._con: sqlite3.Connection | None = None
        self._mode: Literal["read", "write"] | None = None
        # How often each holder has it; a holder is a thread, or what stands for a task.
        self._depths: dict[object, int] = {}
        self._gate = threading.RLock()
        self._acquiring: set[object] = set()
        if self._path in _open_at_fork:
            raise RuntimeError(
                f"{self.lock_file} was active across fork(); exec or exit: SQLite would take the "
                "parent's lock for that of this process"
            )
        _objects[id(self)] = self
        self._refuse_others()

    @classmethod
    def get_lock(
        cls, lock_file: str | os.PathLike[str], timeout: float = -1, *, blocking: bool = True
    ) -> Self:
        """Give the one object of a path."""
        found: Self = cls(lock_file, timeout, blocking=blocking)
        return found

    # ------------------------------------------------------------------ acquiring

    def acquire_read(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AcquireReturnProxy:
        """Take the lock as a reader; ``Timeout`` when the time is over."""
        return self._take("read", timeout, blocking)

    def acquire_write(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> AcquireReturnProxy:
        """Take the lock as the writer; ``Timeout`` when the time is over."""
        return self._take("write", timeout, blocking)

    def _take(
        self,
        mode: Literal["read", "write"],
        timeout: float | None,
        blocking: bool | None,
    ) -> AcquireReturnProxy:
        limit, blocking = self._limits(timeout, blocking)
        me = threading.get_ident()
        proxy = AcquireReturnProxy(self)
        self._refuse_if_unusable()
        end = monotonic() + limit
        if me in self._acquiring:
            raise RuntimeError(f"{self.lock_file} is being acquired by this thread already")
        while not self._gate.acquire(timeout=_pause(end, limit) if blocking else 0):
            if not blocking or 0 <= limit <= monotonic() - end + limit:
                raise Timeout(self.lock_file)
        try:
            if self._depths and self._con is not None and not self._con.in_transaction:
                self._clear_lock_state()
            if self._depths:
                self._nest(mode, me)
                return proxy
            self._acquiring.add(me)
            try:
                self._begin(mode, limit, end, blocking)
            except BaseException:
                self._finish_connection()
                raise
            finally:
                self._acquiring.discard(me)
            self._mode, self._depths = mode, {me: 1}
        finally:
            self._gate.release()
        return proxy

    def _limits(self, timeout: float | None, blocking: bool | None) -> tuple[float, bool]:
        given = self.timeout if timeout is None else opt.seconds("timeout", timeout)
        waits = opt.checked_blocking(self.blocking if blocking is None else blocking)
        if given == inf:
            given = -1
        if waits and given < 0 and given != -1:
            raise ValueError(f"timeout must be a non-negative number or -1, not {given!r}")
        return opt.wait_limit(given, blocking=waits), waits

    def _refuse_if_unusable(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"ReadWriteLock on {self.lock_file} was invalidated by fork(): make a new one in "
                "the child"
            )
        if self._closed:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")

    def _nest(self, mode: Literal["read", "write"], me: object) -> None:
        """Count once more, if the same mode is held, and by this thread if it is the writer's."""
        if mode != self._mode:
            if me in self._depths:
                direction = "downgrade" if mode == "read" else "upgrade"
                why = f"already holding a {self._mode} lock ({direction} not allowed)"
            else:
                why = (
                    f"another thread holds a {self._mode} lock on this instance: threads that "
                    "wait for each other need one each, with is_singleton=False"
                )
            raise RuntimeError(
                f"Cannot acquire {mode} lock on {self.lock_file} (lock id: {id(self)}): {why}"
            )
        if mode == "write" and me not in self._depths:
            raise RuntimeError(
                f"Cannot acquire write lock on {self.lock_file} (lock id: {id(self)}) from thread "
                f"{me} while it is held by thread {next(iter(self._depths))}"
            )
        self._depths[me] = self._depths.get(me, 0) + 1

    def _begin(
        self,
        mode: Literal["read", "write"],
        limit: float,
        end: float,
        blocking: bool,
    ) -> None:
        """Open the database and begin the transaction that is the lock."""
        self._finish_connection()
        made = not os.path.lexists(self._path)
        if made and not os.path.isdir(os.path.dirname(self._path)):
            raise FileNotFoundError(2, os.strerror(2), self.lock_file)
        before = self._identity()
        self._refuse_others()
        self._con = sqlite3.connect(
            self._path, timeout=0, check_same_thread=False, isolation_level=None
        )
        self._con.set_progress_handler(_Budget(self.lock_file), 1000)
        statement = "BEGIN EXCLUSIVE" if mode == "write" else "BEGIN"
        while True:
            left = 0.0 if not blocking else _pause(end, limit)
            try:
                self._con.execute(f"PRAGMA busy_timeout={int(left * 1000)}").close()
                self._con.execute("PRAGMA journal_mode=MEMORY").close()
                self._con.execute(statement).close()
                if mode == "read":  # a reader's lock begins with the first thing that it reads
                    self._con.execute("SELECT name FROM sqlite_master LIMIT 1").close()
            except sqlite3.OperationalError as error:
                if self._con.in_transaction:
                    self._con.rollback()
                if "interrupt" in str(error):
                    raise ValueError(
                        f"the schema of {self.lock_file!r} is too large for a lock: give "
                        "ReadWriteLock a file of its own"
                    ) from None
                if not _is_busy(error):
                    raise
                if not blocking or 0 <= limit <= monotonic() - end + limit:
                    raise Timeout(self.lock_file) from None
            else:
                break
        after = self._identity()
        if after is None or (before is not None and before != after):
            raise OSError(
                f"lock database {self.lock_file!r} was unlinked or replaced while acquiring: leave "
                "it in place"
            )

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_others(self) -> None:
        """Refuse a database in which a writer does not exclude readers, and what is no file.

        Opening the file here must not be closed while this process has it locked: POSIX would end
        the lock.  So this is asked only while no object of this process has the path.
        """
        if any(
            other._con is not None and other._path == self._path  # noqa: SLF001 - of this class
            for other in list(_objects.values())
        ):
            return
        try:
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                raise OSError(errno.EINVAL, "a lock database is a regular file", self.lock_file)
            with open(self._path, "rb") as file:
                head = file.read(20)
        except FileNotFoundError:
            return
        if head.startswith(_MAGIC) and _WAL in head[18:20]:
            raise ValueError(
                f"refusing a WAL-mode lock database: {self.lock_file!r}: give ReadWriteLock a file "
                "of its own"
            )

    # ------------------------------------------------------------------ releasing

    def release(self, *, force: bool = False) -> None:
        """Release the lock once; with ``force`` as often as it is held, by all threads."""
        self._give(threading.get_ident(), force=force)

    def _give(self, me: object, *, force: bool) -> None:
        if self._pid != os.getpid():
            return
        if me in self._acquiring:
            raise RuntimeError(f"{self.lock_file} is being acquired by this thread")
        with self._gate:
            if not force:
                self._refuse_if_not_mine(me)
                if sum(self._depths.values()) > 1:
                    self._depths[me] -= 1
                    if not self._depths[me]:
                        del self._depths[me]
                    return
            try:
                self._finish_connection()
            finally:
                if self._con is None or not self._con.in_transaction:
                    self._clear_lock_state()

    def _refuse_if_not_mine(self, me: object) -> None:
        named = f"{self.lock_file} (lock id: {id(self)})"
        if not self._depths:
            raise RuntimeError(f"Cannot release a lock on {named} that is not held")
        if me not in self._depths:
            if self._mode == "write":
                owner = next(iter(self._depths))
                why = f"from thread {me} while it is held by thread {owner}"
            else:
                why = f"from thread {me}, which does not hold it"
            raise RuntimeError(f"Cannot release {self._mode} lock on {named} {why}")

    def _clear_lock_state(self) -> None:
        self._mode, self._depths = None, {}

    def _finish_connection(self) -> None:
        """End the transaction, and close the file."""
        connection = self._con
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.rollback()
        finally:
            if not connection.in_transaction:
                self._con = None
                connection.close()

    def close(self) -> None:
        """Release the lock for all threads; the object can't be used any more."""
        if self._pid == os.getpid():
            self._give(threading.get_ident(), force=True)
            self._closed = True

    def __del__(self) -> None:
        if self.__dict__.get("_con") is not None and self._pid == os.getpid():
            with suppress(Exception):  # there is no caller to tell
                self._finish_connection()

    # ------------------------------------------------------------------ blocks

    @contextmanager
    def read_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None, None, None]:
        """Hold the lock as a reader in a ``with`` block."""
        self.acquire_read(timeout, blocking=blocking)
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def write_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None, None, None]:
        """Hold the lock as the writer in a ``with`` block."""
        self.acquire_write(timeout, blocking=blocking)
        try:
            yield
        finally:
            self.release()

    def _release_in_context(self, error: BaseException | None) -> None:
        del error
        self.release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


_objects: Any = WeakValueDictionary()


class _Budget:
    """Ends a statement that loads a schema of a size that no lock has."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return int(self.calls * 1000 > _STEPS_OF_A_SCHEMA)


def _pause(end: float, limit: float) -> float:
    """Give the seconds of the next part of a wait."""
    return _SLICE if limit < 0 else max(0.0, min(_SLICE, end - monotonic()))


def _is_busy(error: sqlite3.OperationalError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # Python 3.11
    return "locked" in str(error) if code is None else code & 0xFF in (5, 6)


def _after_fork() -> None:
    for lock in list(_objects.values()):
        if lock._con is not None:  # noqa: SLF001 - of this module
            _parents.append(lock._con)  # noqa: SLF001
            _open_at_fork.add(lock._path)  # noqa: SLF001
            lock._con = None  # noqa: SLF001
        lock._clear_lock_state()  # noqa: SLF001
        lock._gate = threading.RLock()  # noqa: SLF001
        lock._acquiring = set()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
