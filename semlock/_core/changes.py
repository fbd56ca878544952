"""Many locks at a time: tries in one call of the core, and reports of changed directories."""

from __future__ import annotations

from _struct import Struct

from semlock._core import HELD, capi
from semlock._core.capi import POOL
from semlock._core.compiled import ffi, lib

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence

    from semlock._core.compiled import semlock_lock

NAME_MADE = lib.SEMLOCK_NAME_MADE
NAME_GONE = lib.SEMLOCK_NAME_GONE
FILE_CLOSED = lib.SEMLOCK_FILE_CLOSED
WATCH_OVER = lib.SEMLOCK_WATCH_OVER
READ_AGAIN = lib.SEMLOCK_READ_AGAIN

# The mark of a change that may be in any directory.
ANY = -1

# A semlock_change, whose fields cost less when they are read in one step.  It ends as C aligns it.
_CHANGE = Struct("@qQiii0q")


class Changes:
    """Watches on directories, and one event source for all of them."""

    __slots__ = ("_changes", "_life", "_marks", "_names", "_news", "_source")

    def __init__(self) -> None:
        self._marks: set[int] = set()
        self._life = capi.life()
        source = ffi.new("int64_t *")
        source[0] = -1
        self._source = source
        self._news = news = ffi.new("semlock_news *")
        self._changes = ffi.buffer(news.changes)
        self._names = ffi.buffer(news.names)

    @property
    def events(self) -> int:
        """The event source; -1 if none is available."""
        return self._source[0]

    def watch(self, directory: bytes) -> int:
        """Watch a directory: its mark, which is the same each time; -1 if it can't be watched."""
        if self.events < 0:
            lib.semlock_folders_begin(self._source, capi.POOL)  # perhaps one is available now
            if self.events < 0:
                return -1
        mark: int = lib.semlock_folder_watch(self.events, directory)
        if mark < 0:
            return -1
        self._marks.add(mark)
        return mark

    def unwatch(self, mark: int) -> None:
        """Watch a directory no longer."""
        self._marks.discard(mark)
        lib.semlock_folder_unwatch(self.events, mark)

    def count(self) -> int:
        """Read the next changes; 0 if there are none.

        A negative number says that the event source is gone: the program has closed it, or
        this is a forked child.
        """
        return lib.semlock_folder_changes(self._source[0], self._life, POOL, self._news)

    def read(self, count: int) -> list[tuple[int, int, int, bytes]]:
        """Give the mark, the kind, the inode number and the name of each change."""
        names = self._names
        found = _CHANGE.iter_unpack(self._changes[: count * _CHANGE.size])
        return [(mark, what, number, names[at : at + n]) for mark, number, what, at, n in found]

    def close(self) -> None:
        """Give the event source back; it may be called twice."""
        if self._life != capi.life():
            self._source[0] = -1  # it is the parent's
        for mark in self._marks:
            lib.semlock_folder_unwatch(self.events, mark)
        lib.semlock_folders_end(self._source, capi.POOL)

    def __del__(self) -> None:
        # __init__ may have been interrupted before there was anything to give back, and at the end
        # of the program this module may be empty already: the system closes the source then.
        if getattr(self, "_source", None) is not None and globals().get("capi") is not None:
            self.close()


class Batch:
    """The outcomes of many tries in one call; their memory exists before the call begins."""

    __slots__ = ("_errors", "_locks", "_outcomes", "count")

    def __init__(self, locks: Sequence[semlock_lock]) -> None:
        self.count = len(locks)
        self._locks = ffi.new("semlock_lock *[]", locks)
        self._errors = ffi.new("int32_t[]", self.count)
        self._outcomes = ffi.new("char[]", bytes((HELD,)) * self.count)

    def run(self, *, anyway: bool = True) -> None:
        """Try all locks without the GIL; ``anyway`` ignores waiters, except for fair locks."""
        self._run(lib.SEMLOCK_ANYWAY if anyway else lib.SEMLOCK_IN_TURN)

    def look(self) -> bytes:
        """Look at all locks, and list FREE, HELD and LOOK."""
        self._run(lib.SEMLOCK_ONLY_LOOK)
        return self.outcomes

    def _run(self, how: int) -> None:
        lib.semlock_try_many(self._locks, self._outcomes, self._errors, self.count, how, POOL)

    @property
    def outcomes(self) -> bytes:
        """List the outcomes; 255 stands for an error."""
        return ffi.buffer(self._outcomes, self.count)[:]

    def error(self, index: int) -> int:
        """Give the native error of one try."""
        return self._errors[index]
