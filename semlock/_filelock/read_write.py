"""``ReadWriteLock``: filelock's protocol for readers and writers, a lock inside of SQLite's file.

A reader keeps SQLite's shared lock on the file, a writer its exclusive one; nothing is written.
So it excludes filelock's lock of that name.  No event tells the end of such a lock: the wait is
SQLite's.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager
from math import inf, isnan
from time import monotonic
from weakref import WeakSet, WeakValueDictionary

from semlock._filelock import making as opt
from semlock._filelock.making import canonical
from semlock._filelock.reporting import AcquireReturnProxy, Timeout
from semlock._filelock.sqlite_file import Database
from semlock._filelock.sqlite_link import in_child

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Literal

    from typing_extensions import Self


class ReadWriteLockMeta(type):
    """Gives one object for each path, unless told otherwise."""

    def __init__(cls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        cls._instances: Any = WeakValueDictionary()
        cls._instances_pid = os.getpid()
        cls._instances_lock = threading.RLock()
        cls._making: set[str] = set()

    def _give(
        cls,
        lock_file: Any,
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        **own: Any,
    ) -> Any:
        """Make a lock object, or give the one that exists for this path."""
        opt.checked_blocking(blocking)
        timeout = opt.seconds("timeout", timeout)
        given = {"blocking": blocking, "is_singleton": is_singleton, **own}
        if not is_singleton:
            return super().__call__(lock_file, timeout, **given)
        if cls._instances_pid != os.getpid():
            cls._instances, cls._instances_lock, cls._making = (
                WeakValueDictionary(),
                threading.RLock(),
                set(),
            )
            cls._instances_pid = os.getpid()
        key = canonical(lock_file)
        with cls._instances_lock:
            found = cls._instances.get(key)
            if found is None:
                if key in cls._making:  # by this thread: an audit hook or a finalizer
                    raise RuntimeError(
                        f"Singleton lock construction is already active for {lock_file}"
                    )
                try:
                    cls._making.add(key)
                    found = super().__call__(lock_file, timeout, **given)
                finally:
                    cls._making.discard(key)
                cls._instances[key] = found
        if not _same(found.timeout, timeout) or found.blocking != blocking:
            raise ValueError(
                f"Singleton lock created with timeout={found.timeout}, blocking={found.blocking}, "
                f"cannot be changed to timeout={timeout}, blocking={blocking}"
            )
        return found

    if (
        not TYPE_CHECKING
    ):  # which reads __init__ and not this, so that the types are the class's
        __call__ = _give


def _same(one: float, other: float) -> bool:
    endless = (-1, inf)
    return (
        one == other or (one in endless and other in endless) or (isnan(one) and isnan(other))
    )


# SQLite waits for so many seconds in one call, in which no signal is handled.
_SLICE = 0.1


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
        self._database: Database | None = None
        self._mode: Literal["read", "write"] | None = None
        # The holders, and how often each has it: threads by their numbers, and holds of tasks.
        self._depths: dict[object, int] = {}
        self._gate = threading.RLock()
        self._acquiring: set[int] = set()
        # Where tasks that share this object wait for each other; made when it is needed.
        self.line: Any = None
        _locks.add(self)
        Database(self._path, self.lock_file).end()

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
        self, mode: Literal["read", "write"], timeout: float | None, blocking: bool | None
    ) -> AcquireReturnProxy:
        limit, blocking = self.limits(timeout, blocking)
        proxy = AcquireReturnProxy(self)
        self.take(mode, limit, threading.get_ident(), blocking=blocking)
        return proxy

    def take(
        self,
        mode: Literal["read", "write"],
        limit: float,
        holder: object,
        *,
        blocking: bool,
        is_cancelled: Callable[[], bool] = bool,
    ) -> None:
        """Take the lock for a holder: a thread, or what stands for a task."""
        self.refuse_if_unusable()
        self._refuse_within_acquire("acquire")
        end = monotonic() + limit

        def is_over() -> bool:
            return not blocking or is_cancelled() or (limit >= 0 and monotonic() >= end)

        while not self._gate.acquire(timeout=_pause(end, limit) if blocking else 0):
            if is_over():
                raise Timeout(self.lock_file)
        try:
            self.refuse_if_unusable()
            if self._depths and not self._is_locked():
                self._clear_lock_state()
            if self._depths:
                self._nest(mode, holder)
                return
            me = threading.get_ident()
            self._acquiring.add(me)
            try:
                self._end_database()
                self._database = Database(self._path, self.lock_file)
                if not self._database.begin(mode, 0):
                    self._wait(self._database, mode, lambda: _pause(end, limit), is_over)
                self._mode, self._depths = mode, {holder: 1}
            except BaseException:
                self._end_database()
                raise
            finally:
                self._acquiring.discard(me)
        finally:
            self._gate.release()

    def _wait(
        self,
        database: Database,
        mode: Literal["read", "write"],
        pause: Callable[[], float],
        is_over: Callable[[], bool],
    ) -> None:
        has_it = False
        while not has_it:
            if is_over():
                raise Timeout(self.lock_file)
            has_it = database.begin(mode, pause())
            # A writer that waits keeps readers out, but for the moment between two of its calls.  A
            # reader that gets in then goes back, and does not find a second such moment.
            if has_it and mode == "read":
                database.give_way()
                has_it = database.begin(mode, 0)

    def limits(self, timeout: float | None, blocking: bool | None) -> tuple[float, bool]:
        """Check what a call was told, and fill in what the lock was told."""
        given = self.timeout if timeout is None else opt.seconds("timeout", timeout)
        waits = opt.checked_blocking(self.blocking if blocking is None else blocking)
        if given == inf:
            given = -1
        if waits and given < 0 and given != -1:
            raise ValueError(f"timeout must be a non-negative number or -1, not {given!r}")
        return opt.wait_limit(given, blocking=waits), waits

    def _refuse_within_acquire(self, operation: str) -> None:
        """Refuse calls from within an acquire of this thread: from an audit hook or a finalizer."""
        if threading.get_ident() in self._acquiring:
            raise RuntimeError(
                f"Cannot {operation} ReadWriteLock on {self.lock_file} while acquisition is active "
                "in this thread"
            )

    def refuse_if_unusable(self) -> None:
        """Refuse an object of the parent process, and one that was closed."""
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

    # ------------------------------------------------------------------ releasing

    def release(self, *, force: bool = False) -> None:
        """Release the lock once; with ``force`` as often as it is held, by all threads."""
        self.give(threading.get_ident(), force=force)

    def give(self, holder: object, *, force: bool = False, operation: str = "release") -> None:
        """Release the lock once for a holder; with ``force`` for all."""
        if self._pid != os.getpid():
            return
        self._refuse_within_acquire(operation)
        with self._gate:
            if not force:
                self._refuse_if_not_mine(holder)
                if sum(self._depths.values()) > 1:
                    self._depths[holder] -= 1
                    if not self._depths[holder]:
                        del self._depths[holder]
                    return
            try:
                self._end_database()
            finally:
                if not self._is_locked():
                    self._clear_lock_state()

    def is_held_by(self, holder: object) -> bool:
        """Tell whether a holder has the lock; a forced release may have ended that."""
        return holder in self._depths and self._is_locked()

    def _is_locked(self) -> bool:
        database = self._database
        return database is not None and database.is_locked

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

    def _end_database(self) -> None:
        database = self._database
        if database is not None:
            try:
                database.end()
            finally:
                if not database.is_locked:
                    self._database = None

    def close(self) -> None:
        """Release the lock for all threads; the object can't be used any more."""
        if self._pid == os.getpid():
            self.give(threading.get_ident(), force=True, operation="close")
            self._closed = True

    # ------------------------------------------------------------------ blocks

    @contextmanager
    def read_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None, None, None]:
        """Hold the lock as a reader in a ``with`` block."""
        with self.acquire_read(timeout, blocking=blocking):
            yield

    @contextmanager
    def write_lock(
        self, timeout: float | None = None, *, blocking: bool | None = None
    ) -> Generator[None, None, None]:
        """Hold the lock as the writer in a ``with`` block."""
        with self.acquire_write(timeout, blocking=blocking):
            yield

    def _release_in_context(self, error: BaseException | None) -> None:
        del error
        self.release()


_locks: WeakSet[ReadWriteLock] = WeakSet()


def _pause(end: float, limit: float) -> float:
    """Give the seconds of the next part of a wait."""
    return _SLICE if limit < 0 else max(0.0, min(_SLICE, end - monotonic()))


def _after_fork() -> None:
    for lock in list(_locks):
        lock._database = None  # noqa: SLF001 - of this module
        lock._clear_lock_state()  # noqa: SLF001
        lock._gate = threading.RLock()  # noqa: SLF001
        lock._acquiring = set()  # noqa: SLF001


in_child(_after_fork)
