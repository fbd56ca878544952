"""The clients of a shared directory: this one's lease and letters, and which others live.

Each client has a directory.  In it are

* ``lease``, a lock file of the core, whose record this client changes three times in the time of a
  lease.  It is there exactly while the client may hold anything.  It is published, changed and
  removed by the core, so a change finds out that the file was removed, and a removal finds out that
  it was changed;
* ``letters``, to which others append the token of an entry that holds now, or was removed.

A client is over when its lease is gone.  Another client removes it when the holder is proven dead,
as that of any lock file, or when this machine's own clock has seen no change of it for ``ttl``
and for as long as the mount may show an old state.  No clock is compared with another one.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from contextlib import suppress
from typing import NamedTuple

from semlock._core import FREE, GUARDED, LOST, OK, capi
from semlock._core.errors import LockRecordError
from semlock._core.identity import DEAD, judge
from semlock._core.records import decode_text
from semlock._engines.directory_line import LETTERS, ask_anew, make_directory
from semlock._engines.engine import Away, now
from semlock._locks.lock import Lock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core import capi as core

LEASE = "lease"

_TERMS = re.compile(r"ttl=(\d{1,9}) ms, change \d+")
_LONGEST = 65536
_TRIES = 10
_PAUSE = 0.01


class _LeaseFile(Lock):
    """The core's lock file, whose text has the count of its changes."""

    __slots__ = ("_changes", "_ttl")

    def __init__(self, path: str, ttl: float, mode: int) -> None:
        self._changes = itertools.count()
        self._ttl = int(ttl * 1000)
        super().__init__(path, tag=self._terms(), mode=mode)
        self._native.fleeting = 1

    def _terms(self) -> str:
        return f"ttl={self._ttl} ms, change {next(self._changes):018}"

    def _text(self, record: core.Record, stamp: int) -> bytes:
        before, key, rest = super()._text(record, stamp).partition(b"\ntag=")
        return before + key + self._terms().encode() + rest[rest.index(b"\n") :]

    def publish(self) -> None:
        """Have it appear; ``OSError`` if that fails."""
        outcome = self._try()
        if outcome != OK:
            raise self._error(min(outcome, -1))

    def change(self) -> int:
        """Change it, if it is still there: an outcome."""
        outcome = self._rewrite()
        if outcome == OK and not self._native.file.local:
            # The core's guard makes an NFS client write it out; this has the answer, and serves
            # mounts whose locks are their machine's own.
            fd = os.open(self.path, os.O_RDWR)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        return outcome

    def end(self) -> None:
        """Remove it."""
        capi.release_lock(self._native, capi.POOL)


class Lease:
    """The lease of this client, under a new name each time that it was lost."""

    def __init__(self, place: str, ttl: float, mode: int) -> None:
        self._place, self._ttl, self._mode = place, ttl, mode
        self._file: _LeaseFile | None = None
        self._mutex = threading.Lock()
        self._read = 0  # so many bytes of the letters
        # Its name, and when the last change was begun that is known to be done: one step for both.
        self.claim: tuple[str, float] = ("", 0.0)

    @property
    def directory(self) -> str:
        """The directory of this client."""
        return os.path.join(self._place, self.claim[0])

    def make(self) -> bool:
        """Begin a lease, unless there is one."""
        with self._mutex:
            if self._file is not None:
                return False
            for turn in itertools.count():
                client = os.urandom(16).hex()
                directory = os.path.join(self._place, client)
                file = _LeaseFile(os.path.join(directory, LEASE), self._ttl, self._mode & 0o666)
                began = now()
                try:
                    make_directory(directory, self._mode)
                    # In this order: letters without a lease are what a client has left.
                    file.publish()
                    _append(os.path.join(directory, LETTERS), b"", self._mode & 0o666)
                except FileNotFoundError:
                    if turn > _TRIES:
                        raise
                    continue  # another client took it for a rest
                except BaseException:
                    file.end()
                    remove_rest(directory)
                    raise
                break
            self._read = 0
            self.claim, self._file = (client, began), file
            return True

    def renew(self) -> bool:
        """Change the lease; ``False`` if it is over.  ``Away`` if it is not known."""
        file, client = self._file, self.claim[0]
        if file is None:
            return False
        for _ in range(_TRIES):
            began = now()
            outcome = file.change()
            if outcome == OK:
                with self._mutex:
                    if self.claim[0] == client:
                        self.claim = client, max(self.claim[1], began)
                return True
            if outcome in (LOST, FREE):
                self.forget()
                return False
            if outcome < 0:
                capi.raise_os_error(outcome, file.path)
            if outcome == GUARDED:
                threading.Event().wait(_PAUSE)
        raise Away(f"another process keeps the guard of {file.path}")

    def forget(self) -> None:
        """Note that the lease is over."""
        with self._mutex:
            file, self._file = self._file, None
        if file is not None:
            file.end()
            remove_rest(os.path.dirname(file.path))

    def letters(self) -> list[tuple[str, int]] | None:
        """Read what has come: tokens with numbers; ``None`` if some may be lost."""
        path = os.path.join(self.directory, LETTERS)
        if self._file is None:
            return []
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return []
        try:
            size = os.fstat(fd).st_size
            if size == self._read:
                return []
            os.lseek(fd, self._read, os.SEEK_SET)
            text = os.read(fd, _LONGEST)
        finally:
            os.close(fd)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        if size < self._read or self._read > _LONGEST:
            os.truncate(path, 0)
            self._read = 0
            return None
        found = []
        for words in map(bytes.split, whole.splitlines()):
            if len(words) != 2 or not words[1].isdigit():  # two machines wrote at once
                return None
            found.append((words[0].decode("ascii", "replace"), int(words[1])))
        return found


class Seen(NamedTuple):
    """A lease of another client, as it was seen last."""

    key: tuple[object, ...]
    since: float  # when it was first seen so, by this machine's clock
    ends: float  # when it counts as over unless it changes


class Others:
    """What this client knows of the others."""

    def __init__(self, place: str, slack: float, *, caches: bool) -> None:
        self._place, self._slack, self._caches = place, slack, caches
        self._seen: dict[str, Seen] = {}

    def lives(self, client: str, *, only_look: bool = False) -> bool:
        """Tell whether a client's lease lasts; remove it exactly if it does not."""
        path = os.fsencode(os.path.join(self._place, client, LEASE))
        found = capi.look(path)
        if found is None and self._caches:
            # This machine may remember that it was not there before it was made.
            ask_anew(os.path.join(self._place, client))
            found = capi.look(path)
        if found is None:
            self._seen.pop(client, None)
            return False
        try:
            info = decode_text(found.content)
        except LockRecordError:
            info = None
        dead = judge(info, found)[0] == DEAD
        terms = _TERMS.fullmatch((info and info.tag) or "")
        key = (found.identity, found.content, found.ctime_ns)
        seen, at = self._seen.get(client), now()
        if seen is None or seen.key != key:
            # Without its terms the file is not finished, or not ours.
            ttl = float(terms[1]) / 1000 if terms else 86400.0
            seen = self._seen[client] = Seen(key, at, at + ttl + self._slack)
        if not dead and at < seen.ends:
            return True
        if only_look:
            return not dead
        gone = capi.remove(path, found, despite_witness=not dead)
        if gone == OK or (gone == LOST and capi.look(path) is None):
            self._seen.pop(client, None)
            remove_rest(os.path.join(self._place, client))
            return False
        return True  # it has changed, or another process is at it

    def left(self, client: str) -> float | None:
        """Say in how many seconds a client's lease ends unless it is renewed."""
        seen = self._seen.get(client)
        return None if seen is None else max(0.0, seen.ends - now())

    def tell(self, client: str, token: str, number: int) -> None:
        """Write a letter to a client; one that is over gets none."""
        path = os.path.join(self._place, client, LETTERS)
        with suppress(OSError):  # it asks by itself a moment later
            _append(path, f"{token} {number}\n".encode("ascii"))

    def clear(self, own: str) -> None:
        """Remove what clients have left that ended without removing it."""
        with suppress(OSError):
            for client in os.listdir(self._place):
                if client != own and client not in self._seen:
                    with suppress(OSError):
                        if not self.lives(client):
                            remove_rest(os.path.join(self._place, client))


def remove_rest(directory: str) -> None:
    """Remove a client's directory when its lease is gone."""
    with suppress(OSError):
        os.rmdir(directory)  # of one that was ended before it had a lease
        return
    with suppress(OSError):
        if not os.path.lexists(os.path.join(directory, LEASE)):
            os.unlink(os.path.join(directory, LETTERS))
            os.rmdir(directory)


def _append(path: str, text: bytes, create: int | None = None) -> None:
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags if create is None else flags | os.O_CREAT, create or 0)
    try:
        if text:
            os.write(fd, text)
    finally:
        os.close(fd)
