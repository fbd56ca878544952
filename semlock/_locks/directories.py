"""The directories of a set of locks, and the files in them that belong to its locks."""

from __future__ import annotations

import os

from semlock._core import inside
from semlock._locks.slots import SlotLock
from semlock._stores.file import InFiles

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

# Where there are more files than this, one reading of the directory gives their numbers.  For
# each name in it that costs so much less than to ask for one.
_FEW = 64
_CHEAPER = 4


class Folder:
    """A directory with locks."""

    __slots__ = ("_numbers", "_unnumbered", "directory", "mark", "names")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.mark = -1
        self.names: dict[bytes, tuple[Any, ...]] = {}  # the locks of each name
        # The names by the numbers of their files, and those whose number is to be asked for
        # (anew: a kept claim goes from name to name); None stands for all.
        self._numbers: dict[int, bytes] = {}
        self._unnumbered: set[bytes] | None = None

    def ask_for(self, name: bytes) -> None:
        """Have the number of a name's file asked for when it is needed: it may be another one."""
        if self._unnumbered is not None:
            self._unnumbered.add(name)
            if len(self._numbers) > 2 * len(self.names) + _FEW:
                self._unnumbered = None  # most are of files that are gone

    def ask_for_all(self) -> None:
        """Have the numbers of all names' files asked for."""
        self._unnumbered = None

    def name_of(self, number: int) -> bytes | None:
        """Find the lock's name that a file has; a file is asked for once."""
        if self._unnumbered is None or self._unnumbered:
            self._number()
        return self._numbers.pop(number, None)

    def _number(self) -> None:
        names, self._unnumbered = self._unnumbered, set()
        if names is None or len(names) > max(_FEW, len(self.names) // _CHEAPER):
            self._numbers = {}
            try:
                with os.scandir(os.fsencode(self.directory)) as entries:
                    for entry in entries:
                        if entry.name in self.names:
                            self._numbers[entry.inode()] = entry.name
            except OSError:
                self._unnumbered = None
            return
        base = os.fsencode(self.directory)
        for name in names:
            try:
                self._numbers[os.lstat(os.path.join(base, name)).st_ino] = name
            except OSError:  # noqa: PERF203 - it is gone again
                continue


def files_of(lock: Any) -> list[str]:
    """Name the files whose change may free a lock."""
    if isinstance(lock, InFiles):
        return [lock.path]
    if isinstance(lock, SlotLock):
        return [slot.path for slot in inside.slots_of(lock)]
    return [lock.path, inside.readers_directory(lock)]


def parts_of(lock: Any) -> list[Any]:
    """Give the locks that a lock is made of."""
    if isinstance(lock, InFiles):
        return [lock]
    return inside.slots_of(lock) if isinstance(lock, SlotLock) else [inside.writer_of(lock)]
