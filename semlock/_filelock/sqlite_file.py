"""A lock inside of the file of a SQLite database, as filelock takes it.

A reader has SQLite's shared lock on the file, a writer its exclusive one; nothing is written, and
no table is read.  On POSIX a lock on a file ends when its process closes any descriptor of that
file.  So the descriptor by which a file was examined stays open as long as this process has any
connection to that file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from contextlib import suppress
from time import sleep
from weakref import WeakSet

from semlock._filelock.sqlite_link import (
    CAN_LINK,
    PrivateLink,
    Use,
    identity_of,
    in_child,
    is_shared,
    sweep,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal

    from semlock._filelock.sqlite_link import Identity

_OPEN = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO at the path must not block the call
    | getattr(os, "O_BINARY", 0)
)
_MAGIC = b"SQLite format 3\x00"
_WAL = 2
_TIME_TO_GIVE_WAY = 0.002
# A reader's lock begins with the first thing that it reads.  The header is enough: the schema,
# which may be of any size, is not loaded.
_BEGIN = {"read": "BEGIN; PRAGMA user_version", "write": "BEGIN EXCLUSIVE"}


class _File:
    """A file that this process has connections to."""

    __slots__ = ("connections", "idle")

    def __init__(self) -> None:
        self.connections = 0
        self.idle: list[int] = []  # descriptors that no connection needs any more


class _Table:
    """The files that connections of this process are open to, and those of its parent."""

    def __init__(self, parents: set[Identity]) -> None:
        self.files: dict[Identity, _File] = {}
        self.parents = parents
        self.lock = threading.RLock()  # a finalizer may come at any time


_table = _Table(set())
# Connections of the parent process: the child must neither use nor close them.
_of_parent: list[Any] = []


class _Probe:
    """A descriptor of the database."""

    __slots__ = ("fd", "identity")

    def __init__(self, path: str, shown: str) -> None:
        with _table.lock:
            _close_idle()
            self.fd = _adopt(path)
            if self.fd < 0:
                self.fd = _open(path)
            found = os.fstat(self.fd)
            self.identity = identity_of(found)
            file = _table.files.setdefault(self.identity, _File())
            file.connections += 1
        try:
            self._check(found, shown)
        except BaseException:
            self.give_back()
            raise

    def _check(self, found: os.stat_result, shown: str) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "refusing a non-regular file as database", shown)
        if self.identity in _table.parents:
            raise RuntimeError(
                f"{shown} was active across fork(); exec or exit: SQLite would take the parent's "
                "lock for that of this process"
            )

    def is_wal(self) -> bool:
        """Tell whether a writer would not exclude readers."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        head = os.read(self.fd, 20)
        return head.startswith(_MAGIC) and _WAL in head[18:20]

    def give_back(self) -> None:
        """Keep the descriptor until the last connection to this file has ended."""
        with _table.lock:
            fd, self.fd = self.fd, -1
            file = _table.files.get(self.identity)
            if fd >= 0 and file is not None:
                file.connections -= 1
                file.idle.append(fd)
            _close_idle()


def _open(path: str) -> int:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.open(path, _OPEN, 0o600)


def _adopt(path: str) -> int:
    """Take an idle descriptor of the file at a path; -1 if there is none."""
    try:
        file = _table.files.get(identity_of(os.lstat(path)))
    except FileNotFoundError:
        return -1
    return file.idle.pop() if file is not None and file.idle else -1


def _close_idle() -> None:
    """Close the descriptors of files without connections; an interrupted call is made up for."""
    for identity, file in list(_table.files.items()):
        while file.idle and not file.connections:
            os.close(file.idle.pop())
        if not file.connections:
            _table.files.pop(identity, None)


class Database:
    """One connection to the database of a lock, from its opening to its end."""

    def __init__(self, path: str, shown: str) -> None:
        self._path = path
        self._shown = shown
        self._pid = os.getpid()
        self._link: PrivateLink | None = None
        self._connection: Any = None
        with Use():
            self._probe = _Probe(path, shown)
            try:
                self._refuse_wal()
                self._connection = self._connect()
                _databases.add(self)
                self._refuse_replaced()  # before SQLite looks for a journal
            except BaseException:
                self._close()
                raise

    def _connect(self) -> sqlite3.Connection:
        name = self._path
        if CAN_LINK and is_shared(os.path.dirname(name)):
            sweep(name, self._probe.identity)
            self._link = PrivateLink(name, self._probe.identity)
            name = self._link.path
        return sqlite3.connect(
            name,
            check_same_thread=False,
            factory=sqlite3.Connection,
            cached_statements=0,
            timeout=0,
        )

    def _refuse_wal(self) -> None:
        if self._probe.is_wal():
            raise ValueError(
                f"refusing a WAL-mode lock database: {self._shown!r}: give ReadWriteLock a file of "
                "its own"
            )

    def _refuse_replaced(self) -> None:
        try:
            here = identity_of(os.lstat(self._path)) == self._probe.identity
        except FileNotFoundError:
            here = False
        if not here:
            raise OSError(
                f"lock database {self._shown!r} was unlinked or replaced while acquiring: leave it "
                "in place"
            )

    def begin(self, mode: Literal["read", "write"], seconds: float) -> bool:
        """Begin the transaction that is the lock; ``False`` if the time is over."""
        with Use():
            try:
                self._connection.executescript(
                    f"PRAGMA busy_timeout={int(seconds * 1000)}; {_BEGIN[mode]}"
                ).close()
            except sqlite3.OperationalError as error:
                if self._connection.in_transaction:
                    self._connection.rollback()
                if _is_busy(error):
                    return False
                raise
            self._refuse_replaced()
            self._refuse_wal()
        return True

    def give_way(self) -> None:
        """End the transaction for longer than a waiting writer needs between two of its calls."""
        with Use():
            self._connection.rollback()
        sleep(_TIME_TO_GIVE_WAY)

    @property
    def is_locked(self) -> bool:
        """Whether the transaction has begun and not ended."""
        return self._connection is not None and bool(self._connection.in_transaction)

    def end(self) -> None:
        """End the transaction, and close the file; if SQLite refuses, it stays locked."""
        with Use():
            try:
                if self.is_locked:
                    self._connection.rollback()
            finally:
                if not self.is_locked:
                    self._close()

    def _close(self) -> None:
        try:
            if self._connection is not None:
                self._connection.close()
        finally:  # also if an interrupt came right behind that
            self._connection = None
            link, self._link = self._link, None
            if link is not None:
                link.remove()
            self._probe.give_back()

    def forget(self) -> None:
        """Let go of a connection of the parent process, without closing it."""
        _of_parent.append(self._connection)
        self._connection = None
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._probe.fd >= 0:
            os.close(self._probe.fd)
            self._probe.fd = -1

    def __del__(self) -> None:
        if self.__dict__.get("_connection") is not None and self._pid == os.getpid():
            with suppress(Exception):  # there is no caller to tell
                self.end()


_databases: WeakSet[Database] = WeakSet()


def _is_busy(error: sqlite3.OperationalError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # Python 3.11
    return "locked" in str(error) if code is None else code & 0xFF in (5, 6)


def _after_fork() -> None:
    global _table  # noqa: PLW0603 - what was open is the parent's
    for database in list(_databases):
        database.forget()
    _databases.clear()
    for file in _table.files.values():
        while file.idle:  # a child has no locks that this would end
            os.close(file.idle.pop())
    _table = _Table({*_table.parents, *_table.files})


in_child(_after_fork)
