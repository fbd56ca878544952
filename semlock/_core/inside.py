"""What the package's own modules do with a lock, a status or a record beyond its public methods.

They are functions, so that users see only the methods that are for them.  Only this module uses
private names of other modules.  What stands on the way of each wait is made by ``attrgetter``
or ``methodcaller``, which need no Python frame.
"""

from __future__ import annotations

import sys
from _operator import attrgetter, methodcaller

from semlock._core import FAIR

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, TypeVar

    from semlock._core.capi import Record
    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._core.verdicts import Policy

    T = TypeVar("T", bound=Callable[..., Any])


# ---------------------------------------------------------------- acquiring and releasing


# The core's structure of a lock: who holds it, how often, and its file.
native: Callable[[Any], semlock_lock] = attrgetter("_native")


def is_fair(lock: Any) -> bool:
    """Tell whether a lock is only taken in turn."""
    return native(lock).turns == FAIR


def lay_out(*locks: Any) -> None:
    """Make the records of some locks that have none yet."""
    for lock in locks:
        if lock._record is None:
            lock._lay_out()


# Try a lock, unless waiters come first: the core's outcome.
try_once: Callable[[Any], int] = methodcaller("_try")

# The same for a caller whose turn it is.
try_anyway: Callable[[Any], int] = methodcaller("_try_again")


def has_won(lock: Any, outcome: int, frame: FrameType) -> bool:
    """Act on the outcome of a try of one of several locks; ``True`` if it is held now."""
    return bool(lock._has_won(outcome, frame))


def made_dirs(lock: Any, outcome: int) -> bool:
    """Make a lock's missing directories, if a try failed for them and the lock may make them."""
    return bool(lock._made_dirs(outcome))


def makes_dirs(lock: Any) -> bool:
    """Tell whether a lock may make them."""
    return bool(lock._make_dirs)


def judge(lock: Any, frame: FrameType, *, may_wait: bool, waiter: Any = None) -> bool:
    """Judge the holder, and remove the lock if that is allowed; ``True`` if it may be free."""
    return bool(lock._judge(frame, may_wait=may_wait, waiter=waiter))


def acquiring(lock: Any, *arguments: Any, **options: Any) -> Any:
    """Give the steps that acquire a lock, within a timeout and for a frame."""
    return lock._acquiring(*arguments, **options)


def undo(lock: Any, before: int) -> None:
    """Release what an interrupted call has won since the lock's serial number was read."""
    lock._undo(before)


def taking(lock: Any, timeout: float | None, frame: FrameType, *, reads: bool) -> Any:
    """Give the steps by which a task takes a lock, as a reader or not, and what they win."""
    steps = (lock._reading if reads else lock._steps)(timeout, frame)
    return steps, lock._wins()


def part_here(lock: Any) -> tuple[Any, Any]:
    """Give the running task, and the part of a lock that it has."""
    found: tuple[Any, Any] = lock._part_here()
    return found


def give_back(lock: Any, me: object, before: Any) -> None:
    """Release the part of a call that failed, unless the caller had it before."""
    lock._give_back(me, before)


def leave(lock: Any, me: object, *error: object) -> Any:
    """Release what a task holds, at the end of a block; the result may be awaited."""
    return lock._leave(me, *error)


def end(lock: Any) -> None:
    """Release a lock once."""
    lock._end(lock._native.endings)


def end_as(lock: Any, held: semlock_lock, outcome: int) -> None:
    """Act on the outcome of a release of what is held by another structure, and free that."""
    lock._native = held
    lock._finish_release(outcome)


def refresh(lock: Any, patience: float) -> bool:
    """Write the present time into the record; ``False`` if the guard was taken all the time."""
    return bool(lock._refresh(patience))


def leave_to(lock: Any, owner: Process, *, guarded: bool) -> None:
    """Have a lock's record name another process as its holder."""
    lock._leave_to(owner, guarded=guarded)


def forget_after_fork(lock: Any) -> None:
    """Forget what the parent holds by this object."""
    lock._forget_after_fork()


def lend(lock: Any, fd: int) -> None:
    """Have a kernel lock use a descriptor of the caller, which leads to the lock's path."""
    lock._lend(fd)


# ---------------------------------------------------------------- the end of a block

# In CPython 3.11 and later a function's own first bytecode is RESUME 0, behind some that make its
# cells.  RESUME 2 stands behind `yield from`.
_HAS_RESUME = sys.implementation.name == "cpython" and sys.version_info >= (3, 11)
_RESUME = (lambda: None).__code__.co_code[:1]
_AT_START, _BEHIND_YIELD_FROM = 0, 2


def unstruck(function: T) -> T:
    """Let no handler of a signal run before the function's first statement.

    CPython runs handlers at the first bytecode of a function, ``RESUME 0``, which no ``try`` of the
    function covers.  What a handler raises there, as for Ctrl-C, would end an ``__exit__`` that
    has released nothing.  At a ``RESUME 2`` it runs none; there is no other difference.  A function
    that Nuitka or Cython has compiled has no bytecode to change, and is of another type.
    """
    if _HAS_RESUME and type(function).__name__ == "function":
        text = bytearray(function.__code__.co_code)
        at = text[::2].find(_RESUME) * 2 + 1
        if text[at] == _AT_START:
            text[at] = _BEHIND_YIELD_FROM
            function.__code__ = function.__code__.replace(co_code=bytes(text))
    return function


@unstruck
def found(find: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that finds what the caller is about to release.

    If an exception of a signal's handler ends it, what it finds is released here.
    """
    try:
        return find(*arguments)
    except BaseException:
        if (part := find(*arguments)) is not None:
            end(part)
        raise


# ---------------------------------------------------------------- who holds it


def is_for_tasks(lock: Any) -> bool:
    """Tell whether tasks hold a lock, and not threads."""
    return bool(lock._for_tasks)


def is_mine(lock: Any) -> bool:
    """Tell whether the caller, a thread or a task, holds a lock by this object."""
    return bool(lock._is_mine())


def is_of_thread(lock: Any) -> bool:
    """Tell whether this thread holds a lock."""
    return bool(lock._is_of_thread())


def holder_here(lock: Any) -> Any:
    """Find the object of this process that holds what stands under a lock's name."""
    return lock._holder_here()


def holder_by(lock: Any, token: str | None) -> Any:
    """Find the object of this process that holds by an entry of an engine, in any space."""
    client = getattr(lock, "client", None)
    return None if client is None or token is None else client.holder_by(token)


def token(lock: Any) -> str:
    """Name the acquisition that is held, or was held last."""
    name: str = lock._token()
    return name


def is_held_by(lock: Any, task: object) -> bool:
    """Tell whether a task holds a lock by this object."""
    return bool(lock._is_held_by(task))


def held_part(lock: Any) -> Any:
    """Give the lock that the caller holds of a shared lock or of slots; ``None`` if none."""
    return lock._mine()


def won_by(lock: Any, frame: FrameType) -> None:
    """Note that the running task has won a lock, called from this frame."""
    lock._won_by(frame)


def place(lock: Any) -> tuple[CodeType, int] | None:
    """Give the place in the program where a lock was acquired."""
    found: tuple[CodeType, int] | None = lock._place
    return found


def slots_of(lock: Any) -> list[Any]:
    """Give the locks that the slots are."""
    slots: list[Any] = lock._locks
    return slots


def writer_of(lock: Any) -> Any:
    """Give the lock that the writer of a shared lock holds."""
    return lock._writer


def readers_directory(lock: Any) -> str:
    """Name the directory that the readers of a shared lock are in."""
    directory: str = lock._directory
    return directory


def forked(lock: Any) -> bool:
    """Tell whether the parent process held a lock by this object."""
    return bool(lock._forked)


def confirm(lock: Any) -> int:
    """Ask the store whether a lock is still held; the outcome."""
    outcome: int = lock._confirm()
    return outcome


def ends_in_time(lock: Any, own: Any, left: float | None) -> bool:
    """Tell whether a lock that the caller itself holds expires during the wait for it."""
    return bool(lock._ends_in_time(own, left))


# ---------------------------------------------------------------- options and the record


# A lock's path as bytes.
encoded: Callable[[Any], bytes] = attrgetter("_encoded")


# The record that the next try writes.
record: Callable[[Any], Record | None] = attrgetter("_record")


def decode(lock: Any, content: bytes) -> LockInfo:
    """Read a record of the lock's system."""
    info: LockInfo = lock._decode(content)
    return info


def is_composed_anew(lock: Any) -> bool:
    """Tell whether a lock's record is made again for each try."""
    return bool(lock._each_time)


def options_of_files(lock: Any) -> dict[str, Any]:
    """Give the options about a lock's files."""
    mode = lock._mode
    return {
        "durability": lock._durability,
        "mode": mode & 0o777,
        "exact_mode": bool(mode & ~0o777),
    }


def left_to(lock: Any) -> Process | None:
    """Give the process that a lock is for, if it is another one."""
    return None if lock._owner is None else lock._owner[0]


def policy(lock: Any) -> Policy | None:
    """Give a lock's policy."""
    found: Policy | None = lock._policy
    return found


def schedule(lock: Any) -> Any:
    """Give a lock's retry schedule."""
    return lock._retry


def place_kept(lock: Any) -> int:
    """Give a number of the place where a lock is kept: of its filesystem, if it is a file."""
    number: int = lock._place_kept()
    return number


def heartbeat(lock: Any) -> float | None:
    """Give the seconds between a lock's refreshes."""
    every: float | None = lock._heartbeat
    return every


def on_lost(lock: Any) -> Any:
    """Give the function that is called when a refresh finds a lock lost."""
    return lock._on_lost


# The function that is called during a wait for a lock.
on_wait: Callable[[Any], Any] = attrgetter("_on_wait")


def report_waits(lock: Any, function: Any) -> None:
    """Have a function called during each wait for a lock."""
    lock._on_wait = function


# The function that ends a wait for a lock, and the seconds between its calls; or ``None``.
cancel: Callable[[Any], tuple[Callable[[], object], float] | None] = attrgetter("_cancel")


def cancel_by(lock: Any, function: Callable[[], object] | None, every: float) -> None:
    """Have a function asked during each wait for a lock whether the wait is to end."""
    lock._cancel = None if function is None else (function, every)


# What a kept wait can't do: what is asked or reported during a wait, or made for each try.
special: Callable[[Any], tuple[object, ...]] = attrgetter(
    "_policy", "_retry", "_heartbeat", "_on_wait", "_cancel", "_each_time"
)


def line_name(lock: Any) -> tuple[object, ...] | None:
    """Name the line in which tasks of one loop wait for a lock; ``None``: in no line."""
    name: tuple[object, ...] | None = lock._line_name()
    return name


# ---------------------------------------------------------------- statuses and records


def barred(found: LockStatus) -> tuple[str, str] | None:
    """Give the reason and the user who may remove a lock, if this user may not."""
    return found._barred


def is_foreign(info: LockInfo) -> bool:
    """Tell whether semlock certainly did not write a record."""
    return info._names_instances and info.token is None and info.witness is None
