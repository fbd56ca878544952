"""What may be free of a set of locks: reports of the kernel, and looks by the clock.

The directories of the locks are watched.  The kernel reports each name that goes and each file that
a holder's end closes.  A report only says which lock to try.

What could free a lock without a report is found by looking, in turns and by the clock, at 1 % of a
processor at most: the lock of a foreign holder that died, and each lock in a directory that can't
be watched (a network filesystem; any directory on macOS, the BSDs and Windows).
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from collections import OrderedDict
from itertools import takewhile

from semlock._core import inside
from semlock._core.capi import FREE, HELD, LOOK, TURN, now_ns
from semlock._core.changes import (
    ANY,
    FILE_CLOSED,
    NAME_GONE,
    NAME_MADE,
    READ_AGAIN,
    WATCH_OVER,
    Batch,
    Changes,
)  # fmt: skip
from semlock._locks.base import BaseLock
from semlock._locks.directories import Folder, files_of, parts_of
from semlock._locks.shared import SharedLock
from semlock._locks.slots import SlotLock
from semlock._stores.file import InFiles

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# After a report without visible effect: the first look again, and the last; doubled each time.
_FIRST_CHECK = 50_000
_LAST_CHECK = 25_600_000
# The same for a fair lock that is free for another waiter, until that is over.
_TURN_CHECK = 5_000_000

# Looking by the clock: so many locks at a time, a look at each in so long, and at most a
# hundredth of the time.
_AT_A_TIME = 60
_ROUND = 1_500_000_000
_SHARE = 100
# At most so many readings of reports in a call: those of a full queue.  Others may change the
# directory faster than this process reads.
_READS = 600


def _have_judged(lock: Any) -> None:
    """Have the holder of a lock judged at the next look or try."""
    if isinstance(lock, InFiles):
        inside.native(lock).look_at = 0
        return
    for part in parts_of(lock):
        inside.native(part).look_at = 0


def _refusal(lock: Any) -> TypeError:
    text = f"a LockSet has locks that are held while their file is there, not {lock!r}"
    if isinstance(lock, InFiles):
        text += "; acquire_any() waits for any of several KernelLocks"
    elif isinstance(lock, BaseLock):
        text += "; acquire_any() of its space waits for any of several locks on a server"
    elif isinstance(lock, (str, bytes, os.PathLike)):
        text += "; make a Lock of the path"
    return TypeError(text)


class Candidates:
    """Locks, and which of them may be free."""

    __slots__ = (
        "_again", "_changes", "_due", "_folders", "_for_tasks", "_look_at", "_lost", "_marks",
        "_members", "_mutex", "_order", "_ready", "_stale", "_unsure",
    )  # fmt: skip

    def __init__(self) -> None:
        self._mutex = RLock()
        self._for_tasks: bool | None = None
        self._members: dict[Any, None] = {}
        self._folders: dict[str, Folder] = {}
        self._changes: Changes | None = None
        self._marks: dict[int, list[Folder]] = {}
        # Locks that may be free, in the order in which they became so, and whether a report
        # said it.
        self._ready: OrderedDict[Any, bool] = OrderedDict()
        # Locks to be tried again although they seem held, and after how long.
        self._again: dict[Any, int] = {}
        # Locks to be looked at once more, and when: a call that was reported before they were
        # watched, or while reports were lost, may have been under way at the first look.
        self._unsure: dict[Any, int] = {}
        # The rest of the locks of this round by the clock, and when to go on with it.
        self._order: list[Any] = []
        self._look_at = 0
        self._due = 0
        self._stale = True  # whether some folder is to be watched
        self._lost = False  # whether reports were lost

    # ------------------------------------------------------------------ the members

    def add(self, lock: Any) -> None:
        """Add a lock; one that is there already stays as it is."""
        if (
            inside.native(lock).kernel
            if isinstance(lock, InFiles)
            else not isinstance(lock, (SlotLock, SharedLock))
        ):
            raise _refusal(lock)
        for_tasks = hasattr(lock, "__aenter__")
        with self._mutex:
            if self._members and for_tasks is not self._for_tasks:
                raise TypeError(
                    f"{lock!r} can't be in this LockSet: its locks are all of threads or all of "
                    "tasks"
                )
            if lock in self._members:
                return
            self._for_tasks = for_tasks
            for path in files_of(lock):
                directory, _, name = path.rpartition(os.sep)
                folder = self._folders.get(directory)
                if folder is None:
                    folder = self._folders[directory] = Folder(directory or os.sep)
                    self._stale = True
                encoded = os.fsencode(name)
                others = folder.names.get(encoded)
                folder.names[encoded] = (lock,) if others is None else (*others, lock)
                folder.ask_for(encoded)
            self._members[lock] = None
            self._ready[lock] = False
            self._doubt((lock,))

    def discard(self, lock: Any) -> None:
        """Remove a lock from the set, if it is there; it stays as it is, held or not."""
        with self._mutex:
            if lock not in self._members:
                return
            del self._members[lock]
            self._ready.pop(lock, None)
            self._again.pop(lock, None)
            self._unsure.pop(lock, None)
            for path in files_of(lock):
                directory, _, name = path.rpartition(os.sep)
                names = self._folders[directory].names
                left = tuple(x for x in names[os.fsencode(name)] if x is not lock)
                if left:
                    names[os.fsencode(name)] = left
                else:
                    del names[os.fsencode(name)]
                if not names:
                    self._drop(directory)

    def _drop(self, directory: str) -> None:
        """Watch a directory no longer that has no lock of the set."""
        folder = self._folders.pop(directory)
        others = self._marks.get(folder.mark)
        if others is not None and self._changes is not None:
            others.remove(folder)
            if not others:
                del self._marks[folder.mark]
                self._changes.unwatch(folder.mark)

    def close(self) -> None:
        """Give back the descriptor; the next call would open it again."""
        with self._mutex:
            changes, self._changes = self._changes, None
            self._forget()
        if changes is not None:
            changes.close()

    def _forget(self) -> None:
        """Watch all directories anew at the next call."""
        self._marks = {}
        for folder in self._folders.values():
            folder.mark = -1
        self._stale = True

    def _forget_after_fork(self) -> None:
        """Forget a thread of the parent, which may have had the mutex."""
        self._mutex = RLock()

    # ------------------------------------------------------------------ what has changed

    def _hear(self) -> None:
        """Take in what was reported, and do what is due by the clock."""
        with self._mutex:
            try:
                if self._stale:
                    self._watch()
                if self._lost:
                    self._lost = False
                    self._take_in(ANY, 0, 0, b"")
                changes = self._changes
                if changes is not None:
                    for _ in range(_READS):
                        count = changes.count()
                        if count <= 0:
                            break
                        for change in (found := changes.read(count)):
                            self._take_in(*change)
                        if found[-1][1] != READ_AGAIN:
                            break
                    if count < 0:
                        self._changes = None
                        self._forget()
                        self._watch()
                if self._due <= now_ns():
                    self._by_clock(now_ns())
            except BaseException:
                self._lost = True  # an interrupt came after the kernel had handed them out
                raise

    def _watch(self) -> None:
        """Watch the directories that are not watched, and have their locks looked at."""
        self._stale = False
        if self._changes is None:
            self._changes = Changes()
        for folder in self._folders.values():
            mark = self._changes.watch(os.fsencode(folder.directory))
            if mark == folder.mark:
                continue
            old, folder.mark = folder.mark, mark
            if old in self._marks:
                self._marks[old].remove(folder)
                if not self._marks[old]:
                    del self._marks[old]
                    self._changes.unwatch(old)
            if mark >= 0:
                self._marks.setdefault(mark, []).append(folder)
            self._look_at_all(folder)

    def _look_at_all(self, folder: Folder) -> None:
        """Look at the locks of a directory: something may have changed before it was watched."""
        folder.ask_for_all()
        some = {lock: None for locks in folder.names.values() for lock in locks}
        self._look_anew(some)
        self._doubt(some)

    def _look_anew(self, some: Iterable[Any]) -> None:
        for lock in some:
            _have_judged(lock)
        self._look(some)

    def _doubt(self, some: Iterable[Any]) -> None:
        """Have locks looked at once more."""
        at = now_ns() + _LAST_CHECK
        for lock in some:
            self._unsure.pop(lock, None)  # so that the first is the first that is due
            self._unsure[lock] = at
        self._due = min(self._due, at)

    def _take_in(self, mark: int, what: int, number: int, name: bytes) -> None:
        """Take in one report."""
        if mark == ANY:
            for folder in list(self._folders.values()):
                self._look_at_all(folder)
            return
        for folder in self._marks.get(mark, ()):
            if what == WATCH_OVER:
                self._stale = True
                self._due = self._look_at = 0
                continue
            if what == FILE_CLOSED and number:
                found = folder.name_of(number)
                if found is None:
                    continue
                name = found
            locks = folder.names.get(name)
            if locks is None:
                continue
            for lock in locks:
                if what == NAME_MADE:
                    if isinstance(lock, BaseLock):
                        self._ready.pop(lock, None)
                        self._again.pop(lock, None)
                elif isinstance(lock, InFiles):  # as _told does, in fewer steps
                    native = inside.native(lock)
                    native.look_at = 0
                    if what == NAME_GONE:
                        # The try makes no look first: a link waits for a removal in progress,
                        # and says as well whether the lock is held again.
                        native.expect_held = 0
                    self._ready[lock] = True
                else:
                    self._told(lock)
            if what == NAME_MADE:
                folder.ask_for(name)

    def _told(self, lock: Any) -> None:
        """Note that a lock may be free, or that its holder may have died."""
        _have_judged(lock)
        self._tried_later(lock, told=True)

    def _tried_later(self, lock: Any, *, told: bool) -> None:
        """Have a lock tried after the others, if it is a member still."""
        with self._mutex:
            if lock in self._members:
                self._ready[lock] = told

    def _check_again(self, lock: Any, outcome: int) -> None:
        """Try a lock again soon: a report can come before its effect is visible."""
        pause = _TURN_CHECK if outcome == TURN else 2 * self._again.get(lock, _FIRST_CHECK // 2)
        if pause > _LAST_CHECK:
            self._again.pop(lock, None)
            return
        self._again[lock] = pause
        self._due = min(self._due, now_ns() + pause)

    def _by_clock(self, now: int) -> None:
        for lock in [*self._again]:
            if lock not in self._ready:
                self._told(lock)
        due = [*takewhile(lambda lock: self._unsure[lock] <= now, self._unsure)]
        if due:
            self._look_anew(due)
            for lock in due:
                self._unsure.pop(lock, None)
        if self._look_at <= now:
            self._stale = False
            self._watch()
            if not self._order:
                self._order = list(self._members)
            blind = any(folder.mark < 0 for folder in self._folders.values())
            count = len(self._order) if blind else _AT_A_TIME
            some, self._order = self._order[:count], self._order[count:]
            self._look(lock for lock in some if lock in self._members)
            ended = now_ns()
            pause = _SHARE * (ended - now)
            if not blind:
                pause = max(pause, _ROUND * len(some) // max(1, len(self._members)))
            self._look_at = ended + pause
        self._due = min(self._look_at, next(iter(self._unsure.values()), self._look_at))

    def _look(self, locks: Iterable[Any]) -> None:
        """Look at some locks, and note which ones may be free."""
        owners = [(lock, part) for lock in locks for part in parts_of(lock)]
        outcomes = Batch([inside.native(part) for _, part in owners]).look()
        if outcomes.count(HELD) == len(outcomes):
            return
        for (lock, part), outcome in zip(owners, outcomes, strict=True):
            if (
                outcome == FREE or (outcome == LOOK and _may_be_free(lock, part))
            ) and lock in self._members:  # a signal handler may have discarded it
                self._ready.setdefault(lock, False)


def _may_be_free(lock: Any, part: Any) -> bool:
    """Judge the holder of a lock."""
    if lock is not part or type(lock).try_acquire is not BaseLock.try_acquire:
        return True  # the lock's own try does it
    try:
        return inside.judge(lock, sys._getframe(), may_wait=False)
    except OSError:
        return True  # the try will say what is wrong
