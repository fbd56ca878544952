"""Waits that ``cancel`` can end, and the wait that a lock keeps for its next one.

A process that waits for a crowded lock runs with cold caches: there each object and each call of
Python costs several times as much as in a loop.  So the wait of a thread for one lock without
special options is one call into the core, by an object that the lock keeps.
"""

from __future__ import annotations

import errno
import sys
from _weakref import ref

from semlock._core import explain, inside, registry, waits
from semlock._core.capi import OK, POOL, now_ns
from semlock._waiting import INFO, notice_of

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._core.capi import Record
    from semlock._core.compiled import semlock_lock
    from semlock._core.status import LockStatus
    from semlock._waiting import Notice

_CORE_LOOKS = sys.platform != "win32"
_FOREVER = 1 << 60  # nanoseconds: longer than any wait
_again = waits.again
_PLAIN = (None, None, None, None, None, False)

# The waits that ``cancel`` can end, each by a weak reference: one that is interrupted before its
# ``end`` leaves its queue with the last reference.
_under_way: set[ref[Stoppable]] = set()
_forget = _under_way.discard  # one step, in whatever thread drops the last reference
registry.on_fork(_under_way.clear)

_named: Any = None


class Stoppable:
    """What all kinds of waits share: it is of a lock, whose ``cancel`` ends it."""

    __slots__ = ("__weakref__", "_notice", "of", "stopped")

    _notice: Notice | None
    of: Any

    def begin(self, lock: Any, status: Callable[[], LockStatus] | None = None) -> Notice | None:
        """Enter the wait, if it is of one lock: its notice, if there is anything to tell or ask.

        ``status`` looks at what is waited for, if that is not the lock.
        """
        global _named  # noqa: PLW0603 - there is one logger of this name
        self.of = lock
        self.stopped = False
        if lock is None:
            return None
        _under_way.add(ref(self, _forget))
        if _named is None and (find := getattr(sys.modules.get("logging"), "getLogger", None)):
            _named = find("semlock")  # kept: getLogger takes a lock
        logger = _named if _named is not None and _named.isEnabledFor(INFO) else None
        call, check = inside.on_wait(lock), inside.cancel(lock)
        if call is logger is check is None:
            return None
        return notice_of(lock, status or lock.status, call, logger)

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        raise NotImplementedError

    def report(self, now: float) -> None:
        """End the wait if it was stopped, or report what is due."""
        if self.stopped:
            self.end_if_stopped()
        if self._notice is not None:
            self._notice.tell(now)

    def end_if_stopped(self) -> None:
        """Raise the error of a wait that was stopped."""
        if self.stopped:
            raise explain.cancelled_error(self.of, "cancel()")


def cancel(lock: Any) -> int:
    """End the waits for a lock that are under way: how many there were."""
    count = 0
    for reference in list(_under_way):
        wait = reference()
        if wait is not None and wait.of is lock:
            wait.stop()
            count += 1
    return count


class KeptWait(Stoppable):
    """One wait for one lock; after it has won, one thread can begin it again.

    ``heir`` is what goes on with it, if the core could not end it.
    """

    __slots__ = ("heir", "listed", "record", "wait")

    def __init__(self, native: semlock_lock, record: Record | None) -> None:
        self.of = None
        self.stopped = False
        self.heir: Stoppable | None = None
        self.record = record
        self.wait: Any = waits.Wait((native,), native, record, prepares=native)
        self.listed: tuple[int, Any] = id(self.wait), ref(self.wait)
        _under_way.add(ref(self, _forget))

    def stop(self) -> None:
        """Have the wait end, from any thread."""
        self.stopped = True
        self.wait.stop()
        if self.heir is not None:
            self.heir.stop()


def may_keep(lock: Any, native: semlock_lock) -> bool:
    """Tell whether a lock may wait so: it is a file with a queue, without special options."""
    global _named  # noqa: PLW0603 - there is one logger of this name
    if not native.turns or native.kernel or not _CORE_LOOKS:
        return False
    if inside.special(lock) != _PLAIN:
        return False
    if _named is None and (find := getattr(sys.modules.get("logging"), "getLogger", None)):
        _named = find("semlock")  # kept: getLogger takes a lock
    return _named is None or not _named.isEnabledFor(INFO)


def take(
    lock: Any,
    native: semlock_lock,
    record: Record | None,
    kept: list[KeptWait],
    timeout: float | None,
) -> tuple[int, KeptWait, int] | None:
    """Wait for a lock until it is won, with a wait that it has kept, or with a new one.

    If the wait must go on in another way: what the core said, the wait, which ``cancel`` still
    finds, and when it began.  That is so if the holder must be judged, the time is over, or no
    events come.
    """
    began = now_ns()
    end = began + (_FOREVER if timeout is None else min(int(timeout * 1e9), _FOREVER))
    try:
        mine = kept.pop()
    except IndexError:
        mine = KeptWait(native, record)
    if mine.record is not record or mine.stopped:
        mine = KeptWait(native, record)
    key, listed = mine.listed
    wait = mine.wait
    try:
        mine.of = lock
        wait.__class__ = waits.Wait
        waits.under_way[key] = listed
        outcome = _again(wait.cdata, native, POOL, end)
        while outcome == -errno.EINTR:  # Python's handlers have run meanwhile
            mine.end_if_stopped()
            outcome = waits.take(wait.cdata, native, POOL, end)
        if outcome == OK:
            mine.of = None
            # As its end() does; the core has ended it.
            waits.under_way.pop(key, None)
            wait.__class__ = waits.EndedWait
    except BaseException:
        mine.of = None
        wait.end()
        raise
    if outcome != OK:
        return outcome, mine, began
    if not kept:
        kept.append(mine)
    return None
