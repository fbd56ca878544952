"""Removing leftovers: locks of dead holders, kept claims, and tickets of dead waiters.

The library, the command, the sweep and each lock system find leftovers by this module.  A file is
a lock only if a system claims its name and its exact content (``_systems/claims.py``).  A file with
one of the core's own names is compared with what a kill can leave there.  Everything else stays.

A directory is opened once and everything in it is reached by its descriptor, so nothing happens
elsewhere if the path is replaced by a link meanwhile.  Only regular files that are small enough
for a record are opened, without blocking.
"""

from __future__ import annotations

import errno
import os
import stat
from time import time

from semlock import _core
from semlock._core import capi, inside
from semlock._core.errors import LockPathError, LockTimeoutError
from semlock._core.folders import (
    Folder,
    Leftover,
    as_far_as_it_goes,
    is_queue,
    is_ticket,
    opened_here,
    queue_of,
)
from semlock._core.paths import PREFIX, READERS
from semlock._core.records import decode_text
from semlock._core.status import LockStatus, is_unfinished, look_at, remove_exactly, was_removed
from semlock._core.verdicts import GRACE

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from semlock._core.records import LockInfo
    from semlock._core.status import StrPath
    from semlock._core.verdicts import Policy

    Orphan = Callable[[LockStatus], str | None]
    Recogniser = Callable[[str, bytes, bool], LockInfo | None]

_GUARD_GRACE = 30.0
_HEX = frozenset("0123456789abcdef")
_LONGEST_INODE = 32

_UNFINISHED = "it was never finished by the process that began to create it"
_NO_READERS = "the readers of a lock were in it, and none is left"
_CLOSED = "the process that made it has closed it"


class Removed:
    """One file or empty directory that ``clean`` removed, and why."""

    __module__ = "semlock"  # as users write it
    __slots__ = ("info", "path", "reason")

    path: str
    reason: str
    info: LockInfo | None

    def __init__(self, path: str, reason: str, info: LockInfo | None) -> None:
        self.path = path
        self.reason = reason
        self.info = info

    def __repr__(self) -> str:
        return f"Removed({self.path!r}, {self.reason!r})"


def clean(directory_or_path: StrPath) -> list[Removed]:
    """Remove the locks of dead holders, the places of dead waiters, and abandoned files.

    Given a directory, everything directly in it, and the readers of its shared locks; given a
    lock's path, that lock and what semlock keeps beside it.  A file is removed only with proof:
    files of live processes, files that can't be judged, and files that are not exactly a record
    of semlock stay.  Kept claims of this process are removed too.

    ``FileNotFoundError`` if there is no such directory.
    """
    return remove_all(leftovers(directory_or_path))


def remove_all(found: Generator[Leftover, None, None]) -> list[Removed]:
    """Remove what is found, and list it.  Files in use and other users' files stay."""
    try:
        gone = [one for one in found if _remove(one)]
    finally:
        found.close()  # an error's traceback would keep the directory open
    return [Removed(one.path, one.reason, one.info) for one in gone]


def _remove(leftover: Leftover) -> bool:
    try:
        return leftover.remove()
    except (LockTimeoutError, PermissionError, FileNotFoundError):
        return False  # in use, another user's to remove, or gone


def leftovers(
    target: StrPath,
    recognise: Recogniser | None = None,
    policy: Policy | None = None,
    orphan: Orphan | None = None,
    guard: str = "",
) -> Generator[Leftover, None, None]:
    """Find what may be removed in a directory, or what belongs to one lock.

    The directory is open only until the next item is requested, so remove an item before that.

    ``recognise`` claims the files of a lock system (by default semlock's), ``policy`` is its
    rule, and ``orphan`` judges temporary files of semats, which stay without it.  ``guard`` is
    the suffix of the directories by which fs-safe guards a removal.
    """
    text = os.fsdecode(target)
    if not text:
        raise LockPathError("a directory's path can't be empty", path=text, code=errno.ENOENT)
    text = os.path.abspath(text)
    directory, only = (text, None) if os.path.isdir(text) else os.path.split(text)
    capi.drain_pool(directory)
    with Folder(directory) as folder:
        folder.open()
        names = sorted(os.listdir(folder.listed))
        if only is not None:
            names = _belonging_to(only, names, folder)
        search = _Search(folder, recognise, policy, orphan, only, guard)
        for name in names:
            yield from search.at(name)


def _belonging_to(only: str, names: list[str], folder: Folder) -> list[str]:
    """Choose a lock's file, queue, readers and temporary files among the names."""
    from semlock._core.forms import is_lock_name  # noqa: PLC0415 - for those who clean

    queue = os.path.basename(queue_of(folder.path_of(only)))
    chosen = [n for n in names if n == only or n.startswith(f"{only}.")]
    if not (chosen or queue in names or is_lock_name(only)):
        # Nothing there: the lock is free, or the directory's name is misspelt.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder.path_of(only))
    return [n for n in names if n in chosen or n == queue or _is_private(n)]


def sweep(directory: str) -> None:
    """Remove dead processes' temporary files in a directory."""
    with Folder(directory) as folder:
        search = _Search(folder.open())
        for name in os.listdir(folder.listed):
            if _is_private(name) or is_queue(name):
                for leftover in as_far_as_it_goes(search.at(name)):
                    _remove(leftover)


# ---------------------------------------------------------------- names


def _is_private(name: str) -> bool:
    """Tell whether a name has the form of the core's own files."""
    return name.startswith(PREFIX) and name.endswith((".kept", ".tmp"))


def _is_named_as_kept(name: str, inode: int) -> bool:
    number = name.removeprefix(PREFIX).removesuffix(".kept")
    exact = 0 < len(number) <= _LONGEST_INODE and _HEX.issuperset(number)
    # Only the upper half of the 128-bit inode number may be unknown to Python.
    return exact and (int(number, 16) - inode) % 2**64 == 0


def _is_named_as_temporary(name: str) -> bool:
    number = name.removeprefix(PREFIX).removesuffix(".tmp")
    return len(number) == 32 and _HEX.issuperset(number)


def _reason(found: LockStatus) -> str | None:
    """Say why a file may be removed, also if only another user may remove it."""
    barred = inside.barred(found)
    return found.reason if barred is None else barred[0]


def _has_closed(info: LockInfo, look: capi.Instance) -> bool:
    return info.witness == "kept" and look.local and look.witness == 0


# ---------------------------------------------------------------- finding


class _Search:
    """Finds what may be removed in one directory, by the rules of one lock system."""

    __slots__ = ("_folder", "_guard", "_in_use", "_only", "_orphan", "_policy", "_recognise")

    def __init__(
        self,
        folder: Folder,
        recognise: Recogniser | None = None,
        policy: Policy | None = None,
        orphan: Orphan | None = None,
        only: str | None = None,
        guard: str = "",
    ) -> None:
        self._folder = folder
        self._guard = guard
        self._recognise = recognise
        self._policy = policy
        self._orphan = orphan
        self._only = only
        self._in_use: set[tuple[int, int]] | None = None

    def at(self, name: str) -> Iterator[Leftover]:
        """Find what may be removed under a name; it raises only for a file that the user named."""
        try:
            if not was_removed(name):
                yield from self._at(name)
        except (LockPathError, PermissionError):
            if name == self._only:
                raise  # it is no lock, or may not be read
        except (FileNotFoundError, NotADirectoryError):
            pass  # it was removed meanwhile

    def _at(self, name: str) -> Iterator[Leftover]:
        entry = self._folder.entry(name)
        mode = os.lstat(entry).st_mode
        if stat.S_ISDIR(mode):
            yield from self._directory(name)
        elif not stat.S_ISREG(mode):
            if name == self._only:
                look_at(self._folder.path_of(name), os.fsencode(entry), decode_text)
        elif _is_private(name):
            yield from self._private(name)
        else:
            yield from self._lock(name, named=name == self._only)

    # ------------------------------------------------------------------ files

    def _lock(self, name: str, *, named: bool) -> Iterator[Leftover]:
        """Judge a file that a lock system may claim."""
        look = self._look(name)
        if look is None:
            return
        forms = _core.claims[0]()
        path = self._folder.path_of(name)
        info, content = None, look.content
        pid = None if self._orphan is None else forms.temporary(name, self._only)
        if look.boot_mark or is_unfinished(look):
            # No record, or the beginning of one, proves little: the name must be a lock's.
            claimed = named or forms.is_lock_name(name)
        elif pid is not None:
            claimed = forms.is_begun_by_semats(pid, content)
        else:
            if named or self._only is None:
                info = (self._recognise or forms.own)(path, content, named)
            claimed = info is not None
        if claimed:
            found = LockStatus(path, look, info, self._policy)
            orphan = None if pid is None else self._orphan
            reason = _reason(found) if orphan is None else orphan(found)
            if reason is not None:
                yield self._leftover(name, found, reason)

    def _private(self, name: str) -> Iterator[Leftover]:
        """Judge a kept claim, or a file that was to become a lock.

        Such a file is no lock yet.  If its creator is alive after all, its link fails and it
        starts again, so a wrong guess costs only time.  So a free witness is proof enough.
        """
        look = self._look(name)
        if look is None:
            return
        forms = _core.claims[0]()  # seldom: a living owner's isn't judged
        info = forms.own(name, look.content)
        if name.endswith(".kept"):
            left = _is_named_as_kept(name, look.identity[1]) and forms.kept(look.content)
            if left and info is None:
                info = forms.first_record(look.content)
        else:
            left = _is_named_as_temporary(name) and forms.unfinished(look.content)
        if info is None and not left and not look.boot_mark:
            return
        found = LockStatus(self._folder.path_of(name), look, info)
        reason = _reason(found)
        if reason is None and left and info is None and found.unchanged_for(time()) >= GRACE:
            reason = _UNFINISHED
        if reason is None and info is not None and _has_closed(info, look):
            reason = _CLOSED
        if reason is not None:
            yield self._leftover(name, found, reason)

    def _look(self, name: str) -> capi.Instance | None:
        """Look at a file, unless it is in use or unreadable.

        The kernel's lock shows that a holder's file or a kept claim is in use.
        """
        if self._in_use is None:
            self._in_use = opened_here()
        look = self._folder.look(name, self._in_use)
        return None if look is None or look.error or look.witnessed else look

    def _leftover(self, name: str, found: LockStatus, reason: str) -> Leftover:
        return Leftover(
            found.path,
            reason,
            lambda: remove_exactly(found, os.fsencode(self._folder.entry(name)), robs=False),
            found.info,
            None if inside.barred(found) is None else lambda: False,
        )

    # ------------------------------------------------------------------ directories

    def _directory(self, name: str) -> Iterator[Leftover]:
        """Find what is left in a queue, or of the readers of a lock."""
        lock = name.removesuffix(READERS)
        if is_queue(name):
            from semlock._core.places import places_in as find  # noqa: PLC0415 - seldom
        elif lock != name and self._only in (None, lock):
            find = _readers_in
        elif self._is_guard(name):
            find = _guard
        else:
            return
        try:
            with Folder(self._folder.path_of(name), self._folder) as inner:
                yield from find(inner.open())
        except OSError:
            pass  # it is gone, or may not be read

    def _is_guard(self, name: str) -> bool:
        """Tell whether a directory is a guard of fs-safe whose creator was killed."""
        lock = name.removesuffix(self._guard)
        return (
            lock != name
            and lock.endswith(".lock")
            and self._only in (None, lock)
            and abs(time() - os.lstat(self._folder.entry(name)).st_mtime) >= _GUARD_GRACE
        )

    def reader(self, name: str) -> Iterator[Leftover]:
        """Judge a reader's file; its name is a number."""
        if not stat.S_ISREG(os.lstat(self._folder.entry(name)).st_mode):
            return
        if _is_private(name):
            yield from self._private(name)
        elif is_ticket(name):
            yield from self._lock(name, named=True)


def _guard(folder: Folder) -> Iterator[Leftover]:
    why = "the process that made it to remove a stale lock has left it"
    if not os.listdir(folder.listed):
        yield Leftover(folder.path, why, folder.remove_self)


def _readers_in(folder: Folder) -> Iterator[Leftover]:
    """Find the dead readers of a shared lock, and their directory if no reader is left.

    A directory without any reader may be the user's, whatever its name is.
    """
    names = os.listdir(folder.listed)
    search = _Search(folder)
    found: Iterator[Leftover] = (
        leftover
        for name in sorted(names)
        for leftover in as_far_as_it_goes(search.reader(name))
    )
    if names and all(is_ticket(name) or _is_private(name) for name in names):
        found = folder.with_itself(found, _NO_READERS)
    yield from found
