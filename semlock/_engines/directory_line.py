"""The line of a name in a shared directory, which changes by one rename.

A name has a directory of its own.  In it is one empty file, whose name is the line's version and
says which file has the line's entries::

    s.41.9f2c...     the line's version is 41; its entries are in
    c.41.9f2c...     this file, which never changes once it is written
    e.42.03aa...     the line's version is 42, and it has no entries

A change writes the new entries to a file of its own, syncs it, and renames ``s.41.*`` to
``s.42.*``.  A rename finds its file or fails, on all filesystems and file servers.  So of two that
change version 41 one is refused and begins again.  A process that was stopped in between is
refused too, however late it goes on, and one that is killed leaves the line as it was.  The version
only grows: the number that an entry gets is the version that took it in, and so it is the fence.

How a client hears of it: on one machine the kernel reports letters, and the end of clients.  What
other machines do, no kernel reports: then letters are looked for at intervals.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from semlock._core.changes import Changes
from semlock._engines.engine import Away, Refused, now

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LETTERS = "letters"  # the file in which a client is written to
_POINTER = re.compile(r"([se])\.(\d{1,18})\.([0-9a-f]{16})")
_CONTENT = re.compile(r"c\.(\d{1,18})\.([0-9a-f]{16})")
_TRIES = 50
_PAUSE = 0.002

# What a file server may do later, and what it refuses.
_LATER = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EINTR", "EIO", "ENOLCK", "ESTALE", "ETIMEDOUT", "EREMOTEIO",
                 "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ECONNRESET")
    if hasattr(errno, name)
)  # fmt: skip


class Item(NamedTuple):
    """One entry of a line."""

    token: str
    number: int
    room: int
    client: str
    record: str


class Line(NamedTuple):
    """A line as it was found: version -1 if the name was never used."""

    directory: str
    version: int
    pointer: str
    items: tuple[Item, ...]
    old: tuple[str, ...]  # files with the entries of this version and of earlier ones


def holders(items: Iterable[Item]) -> list[Item]:
    """Give the entries that hold: the longest beginning in which there is room for each."""
    held: list[Item] = []
    most = sys.maxsize
    for item in items:
        most = min(most, item.room)
        if len(held) + 1 > most:
            break
        held.append(item)
    return held


class Lines:
    """The lines of a space, in a directory."""

    def __init__(self, place: str, mode: int, *, caches: bool) -> None:
        self._place = place
        self._mode = mode
        # Whether this machine may know a directory as it was some time ago.
        self._caches = caches

    def read(self, name: str, *, fresh: bool = False) -> Line:
        """Read the line of a name; ``fresh`` asks the file server for the directory."""
        directory = os.path.join(self._place, hashlib.sha256(name.encode()).hexdigest()[:40])
        return self._read(directory, fresh=fresh)[0]

    def _read(self, directory: str, *, fresh: bool) -> tuple[Line, str]:
        for turn in range(_TRIES):
            if self._caches and (fresh or turn):
                ask_anew(directory)
            try:
                listed = os.listdir(directory)
            except FileNotFoundError:
                if self._caches and fresh and not turn:
                    ask_anew(self._place)
                    continue
                return Line(directory, -1, "", (), ()), ""
            pointers = [m for m in map(_POINTER.fullmatch, listed) if m]
            if not pointers:
                threading.Event().wait(turn * _PAUSE)  # it is renamed at this moment
                continue
            newest = max(pointers, key=lambda m: int(m[2]))
            version, pointer = int(newest[2]), newest[0]
            old = tuple(
                m[0] for m in map(_CONTENT.fullmatch, listed) if m and int(m[1]) <= version
            )
            if newest[1] == "e":
                return Line(directory, version, pointer, (), old), ""
            try:
                name, items = _decoded(os.path.join(directory, f"c.{version}.{newest[3]}"))
            except FileNotFoundError:
                continue  # the line has another version by now
            except PermissionError:
                if sys.platform != "win32":
                    raise
                continue  # it is being removed there
            return Line(directory, version, pointer, items, old), name
        raise Away(f"{directory} changes at each look")

    def replace(self, name: str, line: Line, items: Sequence[Item], *, lasts: bool) -> bool:
        """Change a line that was read; ``False`` if another client has changed it before.

        ``lasts`` says that no power cut may undo it afterwards.
        """
        if line.version < 0:
            self._make(line.directory)
            return False
        version = line.version + 1
        rank = f"{version}.{os.urandom(8).hex()}"
        pointer = os.path.join(line.directory, f"{'s' if items else 'e'}.{rank}")
        content = os.path.join(line.directory, f"c.{rank}")
        if items:
            try:
                _write(content, _encoded(name, items), self._mode & 0o666)
            except BaseException:
                with suppress(OSError):
                    os.unlink(content)
                raise
        # From here on only a later change may remove that file: an answer may be lost.
        done = _rename(os.path.join(line.directory, line.pointer), pointer)
        if done and lasts:
            sync_directory(line.directory)
        if done:
            for one in line.old:
                with suppress(OSError):
                    os.unlink(os.path.join(line.directory, one))
        return done

    def _make(self, directory: str) -> None:
        """Make the directory of a name, with version 0, in one step."""
        made = os.path.join(self._place, f".{os.urandom(8).hex()}")
        make_directory(made, self._mode)
        first = os.path.join(made, f"e.0.{os.urandom(8).hex()}")
        try:
            os.close(os.open(first, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode & 0o666))
            sync_directory(made)
            os.rename(made, directory)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(first)
            with suppress(OSError):
                os.rmdir(made)
            if not (isinstance(error, OSError) and os.path.isdir(directory)):
                raise
        else:
            sync_directory(self._place)

    def all(self) -> list[tuple[str, Line]]:
        """Give the lines that have entries, each with its name."""
        try:
            listed = os.listdir(self._place)
        except FileNotFoundError:
            return []
        found = []
        for one in listed:
            if one.startswith("."):
                continue
            line, name = self._read(os.path.join(self._place, one), fresh=False)
            if line.items:
                found.append((name, line))
        return found


def _encoded(name: str, items: Iterable[Item]) -> bytes:
    return json.dumps({"name": name, "entries": [list(item) for item in items]}).encode("ascii")


def _decoded(path: str) -> tuple[str, tuple[Item, ...]]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        found = json.loads(content)
        return found["name"], tuple(
            Item(str(token), int(number), int(room), str(client), str(record))
            for token, number, room, client, record in found["entries"]
        )
    except (ValueError, KeyError, TypeError):
        raise Refused(
            f"{path} is damaged: it has no entries of a line. If no client is at work, remove "
            f"{os.path.dirname(path)}"
        ) from None


def _write(path: str, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        while content:
            content = content[os.write(fd, content) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename(old: str, new: str) -> bool:
    """Rename a file; ``False`` if it is not there any more.

    If an answer got lost, the request was repeated and found the file gone: then the new name,
    which no other client can have chosen, says that it was done.
    """
    try:
        os.rename(old, new)
    except FileNotFoundError:
        return os.path.exists(new)
    return True


def sync_directory(path: str) -> None:
    """Have changes of a directory survive a power cut, where it can be asked for."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # SMB, FUSE
            raise
    finally:
        os.close(fd)


def ask_anew(directory: str) -> None:
    """Have the file server say anew what is in a directory, by a change of our own.

    A client of a file server may know for a minute what was in a directory, and what was not.
    """
    probe = os.path.join(directory, f"t.{os.urandom(8).hex()}")
    with suppress(FileNotFoundError, PermissionError):
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)


def make_directory(path: str, mode: int) -> None:
    """Make a directory that those may use who may use the space's own."""
    os.mkdir(path)
    os.chmod(path, mode)


def of_failure(error: OSError, place: str) -> Exception:
    """Say whether what failed may succeed later."""
    what = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else place
    if error.errno in _LATER:
        return Away(f"{where}: {what}")
    return Refused(f"{where}: {what}")


# How often letters are looked for while this client waits, and while it does not.
WAITING_PERIOD = 0.1
IDLE_PERIOD = 1.0
# After an event the kernel's proof of a death may take a moment.
_RECHECKS = (0.001, 0.01, 0.1)


class News:
    """What the kernel reports of the directories of clients."""

    def __init__(self, place: str, *, local: bool) -> None:
        self._place = os.fsencode(place)
        self._changes = Changes() if local and sys.platform != "win32" else None
        self._own = -1
        self._marks: dict[int, str] = {}
        # Of each entry of ours that waits: the clients before it, which it watches.
        self._behind: dict[str, frozenset[str]] = {}
        self._again: deque[tuple[float, str]] = deque()
        self._stir = threading.Event()  # ends a sleep without events

    @property
    def are_reported(self) -> bool:
        """Whether the kernel reports letters."""
        return self._own >= 0 and self._changes is not None and self._changes.events >= 0

    def listen(self, client: str) -> None:
        """Have letters to this client be reported."""
        if self._changes is not None:
            self._own = self._changes.watch(os.path.join(self._place, client.encode()))
        self._stir.set()

    def watch(self, client: str) -> None:
        """Have the end of a client be reported from now on."""
        if self._changes is not None and client not in self._marks.values():
            mark = self._changes.watch(os.path.join(self._place, client.encode()))
            if mark >= 0:
                self._marks[mark] = client

    def stand_behind(self, token: str, clients: Iterable[str]) -> None:
        """Note which clients an entry waits for."""
        self._behind[token] = frozenset(clients)
        wanted = set().union(*list(self._behind.values()))
        for mark, client in list(self._marks.items()):
            if client not in wanted and self._changes is not None:
                self._marks.pop(mark, None)
                self._changes.unwatch(mark)
        if not self.are_reported:
            self._stir.set()

    def before(self, token: str) -> frozenset[str]:
        """Give the clients that an entry waits for."""
        return self._behind.get(token, frozenset())

    def forget(self, token: str) -> None:
        """Note that an entry waits no longer."""
        self._behind.pop(token, None)

    def due(self) -> list[tuple[str, int]]:
        """Give the entries that are to be asked for again now."""
        found = []
        for at, token in list(self._again):
            if at <= now():
                with suppress(ValueError):
                    self._again.remove((at, token))
                found.append((token, 0))
        return found

    def sleep(self, seconds: float) -> list[tuple[str, int]]:
        """Sleep until something happens, or it is time to look."""
        for at, _ in list(self._again):
            seconds = min(seconds, max(0.0, at - now()))
        changes = self._changes
        if sys.platform == "win32" or changes is None or not self.are_reported:
            self._stir.wait(min(seconds, WAITING_PERIOD if self._behind else IDLE_PERIOD))
            self._stir.clear()
            return []
        ready = select.poll()
        ready.register(changes.events, select.POLLIN)
        ready.poll(min(seconds, IDLE_PERIOD) * 1000)
        ended: set[str] = set()
        while (count := changes.count()) > 0:
            for mark, _, _, name in changes.read(count):
                if mark < 0:  # too many at once
                    ended = set().union(*list(self._behind.values()))
                elif name != LETTERS.encode():
                    ended.add(self._marks.get(mark, ""))
        if count < 0:
            self._own = -1  # the program has closed it
        told = [token for token, clients in list(self._behind.items()) if clients & ended]
        for pause in _RECHECKS:
            self._again.extend((now() + pause, token) for token in told)
        return [(token, 0) for token in told]

    def end(self) -> None:
        """End a sleep; that with events is ended by the removal of the lease."""
        self._stir.set()

    def close(self) -> None:
        """Listen no longer."""
        if self._changes is not None:
            self._changes.close()
