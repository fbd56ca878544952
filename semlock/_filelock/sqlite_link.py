"""A private name for the database of a lock whose directory others may write to.

SQLite derives names from the name that it opens: it plays back and deletes a ``-journal`` beside
it, and removes a ``-wal``.  A user who can create such files could make it change or delete files
of this user.  So in such a directory the database is opened by a hard link in a directory that only
this user can enter.  The directory is named and laid out as filelock does, so that either removes
what the other's killed processes left: ``.filelock-PID-START-HOST-RANDOM/RANDOM/lock.db``.

And calls of SQLite beside forks: a child must not go on with a database that its parent has open.
A fork waits until no other thread is inside of such a call, which takes a tenth of a second at
most.  If the forking thread itself is inside of one, as a signal's handler may be, the child ends
at once, with the status 70: what it would return to works on the parent's database.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
import threading
from _thread import get_ident
from contextlib import suppress
from hashlib import sha256
from weakref import WeakSet

from semlock._core.identity import this_process
from semlock._filelock.record import host_name, info_of, is_gone, start_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int]

_NAME = "lock.db"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)
# Windows, which has other rules, opens the database by its own name.
CAN_LINK = os.open in os.supports_dir_fd and os.link in os.supports_follow_symlinks


def is_shared(directory: str) -> bool:
    """Tell whether other users (except root) may create names in a directory."""
    if sys.platform == "win32":
        return False
    found = os.stat(directory)
    return found.st_uid not in (0, os.geteuid()) or bool(found.st_mode & 0o022)


def identity_of(found: os.stat_result) -> Identity:
    """Give what tells a file from all others of this machine."""
    return found.st_dev, found.st_ino


class PrivateLink:
    """A hard link to a database, in a new directory beside it."""

    def __init__(self, database: str, identity: Identity) -> None:
        # The name inside is a secret: if the directory is swapped, there is no such name.
        inner = os.urandom(8).hex()
        prefix = f".filelock-{os.getpid()}-{start_of(this_process()) or ''}-{_host_digest()}-"
        self._directory = tempfile.mkdtemp(prefix=prefix, dir=os.path.dirname(database))
        self._inner = inner
        self._fd = -1
        self.path = os.path.join(self._directory, inner, _NAME)
        try:
            self._enter()
            os.mkdir(inner, 0o700, dir_fd=self._fd)
            os.link(database, self.path, follow_symlinks=False)
            self._check(database, identity)
        except BaseException:
            self.remove()
            raise

    def _check(self, database: str, identity: Identity) -> None:
        if identity_of(os.lstat(self.path)) != identity:
            raise OSError(f"lock database changed while a link to it was made: {database!r}")

    def _enter(self) -> None:
        """Open the directory, and make sure that only this user can write to it."""
        if sys.platform == "win32":
            return
        fd = self._fd = os.open(self._directory, os.O_RDONLY | _NO_LINK)
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or os.listdir(fd):
            raise OSError(
                f"the directory of a private link was replaced while opening it: {self}"
            )
        if found.st_mode & 0o077:  # by a default ACL
            with suppress(PermissionError):
                os.fchmod(fd, 0o700)
            if os.fstat(fd).st_mode & 0o077:
                raise OSError(
                    f"the directory of a private link must be writable by its owner only: {self}"
                )

    def __str__(self) -> str:
        return repr(self._directory)

    def remove(self) -> None:
        """Remove the link and its directory, unless another one has its name by now."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            with suppress(OSError):
                os.rmdir(self._directory)
            return
        try:
            with suppress(OSError):
                os.unlink(f"{self._inner}/{_NAME}", dir_fd=fd)
            with suppress(OSError):
                os.rmdir(self._inner, dir_fd=fd)
            with suppress(OSError):
                if identity_of(os.lstat(self._directory)) == identity_of(os.fstat(fd)):
                    os.rmdir(self._directory)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close what is open in a forked child; the link is its parent's."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _host_digest() -> str:
    return sha256(host_name().encode()).hexdigest()[:16]


def sweep(database: str, identity: Identity) -> None:
    """Remove the links to this database that processes of this user left when they died."""
    directory = os.path.dirname(database)
    pattern = re.compile(rf"\.filelock-([0-9]{{1,10}})-([0-9]*)-{_host_digest()}-[^-]+")
    try:
        names = os.listdir(directory)
    except OSError:  # a directory that can be written to, and not read
        return
    for name in names:
        found = pattern.fullmatch(name)
        if found is not None and 0 < int(found[1]) < 2**31:
            with suppress(OSError):
                _sweep_one(os.path.join(directory, name), found[1], found[2], identity)


def _sweep_one(directory: str, pid: str, start: str, identity: Identity) -> None:
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY | _NO_LINK)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return
        if not is_gone(info_of(int(pid), host_name(), start or None)):
            return
        for name in os.listdir(fd):
            if name == _NAME:  # filelock before 4.2.1 had the link here
                _unlink(fd, identity)
                continue
            with suppress(OSError):
                inner = os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=fd)
                try:
                    _unlink(inner, identity)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=fd)
        os.rmdir(directory)  # fails if anything else is in it
    finally:
        os.close(fd)


def _unlink(directory: int, identity: Identity) -> None:
    with suppress(FileNotFoundError):
        found = os.stat(_NAME, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and identity_of(found) == identity:
            os.unlink(_NAME, dir_fd=directory)


# A call that takes longer hangs: the fork goes on, and the child ends at once.
_LONGEST_CALL = 10.0
_INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class Use:
    """One use of SQLite by one thread, as a ``with`` block; blocks may be nested.

    Uses are known by weak references: one whose ``__exit__`` was not called because a signal's
    handler raised just before ends with the frame that made it.
    """

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()

    def __enter__(self) -> None:
        with _state.changed:
            while _state.forking not in (None, self.thread) and not _uses_by(self.thread):
                _state.changed.wait()
            _state.uses.add(self)

    def __exit__(self, *_: object) -> None:
        _state.uses.discard(self)
        with _state.changed:
            _state.changed.notify_all()


class _State:
    def __init__(self) -> None:
        self.uses: WeakSet[Use] = WeakSet()
        self.changed = threading.Condition()
        self.forking: int | None = None  # the thread that forks
        self.child_ends = False


_state = _State()
_in_child: list[Callable[[], None]] = []


def in_child(function: Callable[[], None]) -> None:
    """Call a function in each process that is forked from this one."""
    _in_child.append(function)


def _uses_by(thread: int) -> bool:
    return any(use.thread == thread for use in list(_state.uses))


def _is_used_by_others(me: int) -> bool:
    return any(use.thread != me for use in list(_state.uses))


def _before_fork() -> None:
    me = get_ident()
    with _state.changed:
        while _state.forking not in (None, me):
            _state.changed.wait()
        _state.forking = me
        _state.child_ends = _uses_by(me)
        if not _state.child_ends:
            _state.child_ends = not _state.changed.wait_for(
                lambda: not _is_used_by_others(me), _LONGEST_CALL
            )


def _after_fork_in_parent() -> None:
    with _state.changed:
        _state.forking = None
        _state.changed.notify_all()


def _after_fork_in_child() -> None:
    global _state  # noqa: PLW0603 - the parent's threads do not exist here
    if _state.child_ends:
        os._exit(_INTERNAL_ERROR)
    _state = _State()
    for function in _in_child:
        function()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
