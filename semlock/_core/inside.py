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


def _calling(name: str) -> Callable[..., Any]:
    """Make a function that calls the method of this name, with all that it is given."""

    def call(lock: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(lock, name)(*arguments, **options)

    return call


# ---------------------------------------------------------------- acquiring and releasing

# The core's structure of a lock: who holds it, how often, and its file.
native: Callable[[Any], semlock_lock] = attrgetter("_native")
# Try a lock, unless waiters come first: the core's outcome.
try_once: Callable[[Any], int] = methodcaller("_try")
# The same for a caller whose turn it is.
try_anyway: Callable[[Any], int] = methodcaller("_try_again")
# Act on the outcome of a try of one of several locks (outcome, frame); true if it is held now.
has_won: Callable[..., bool] = _calling("_has_won")
# Make missing directories if a try failed for them (outcome) and the lock may make them.
made_dirs: Callable[..., bool] = _calling("_made_dirs")
# Whether it may.
makes_dirs: Callable[[Any], bool] = attrgetter("_make_dirs")
# Judge the holder (frame, may_wait, waiter), and remove the lock if that is allowed; true if it
# may be free.
judge: Callable[..., bool] = _calling("_judge")
# The steps that acquire a lock, within a timeout and for a frame.
acquiring: Callable[..., Any] = _calling("_acquiring")
# Release what an interrupted call has won since the lock's serial number was read.
undo: Callable[[Any, int], None] = _calling("_undo")
# The running task, and the part of a lock that it has.
part_here: Callable[[Any], tuple[Any, Any]] = methodcaller("_part_here")
# Release the part of a call that failed (task, part), unless the caller had it before.
give_back: Callable[[Any, object, Any], None] = _calling("_give_back")
# Write the present time into the record; false if the guard was taken for so many seconds.
refresh: Callable[..., bool] = _calling("_refresh")
# Have a lock's record name another process as its holder (owner, guarded).
leave_to: Callable[..., None] = _calling("_leave_to")
# Forget what the parent holds by this object.
forget_after_fork: Callable[[Any], None] = methodcaller("_forget_after_fork")
# Have a kernel lock use a descriptor of the caller, which leads to the lock's path.
lend: Callable[[Any, int], None] = _calling("_lend")


def is_fair(lock: Any) -> bool:
    """Tell whether a lock is only taken in turn."""
    return native(lock).turns == FAIR


def lay_out(*locks: Any) -> None:
    """Make the records of some locks that have none yet."""
    for lock in locks:
        if lock._record is None:
            lock._lay_out()


def taking(lock: Any, timeout: float | None, frame: FrameType, *, reads: bool) -> Any:
    """Give the steps by which a task takes a lock, as a reader or not, and what they win."""
    steps = (lock._reading if reads else lock._steps)(timeout, frame)
    return steps, lock._wins()


def end(lock: Any) -> None:
    """Release a lock once."""
    lock._end(lock._native.endings)


def end_as(lock: Any, held: semlock_lock, outcome: int) -> None:
    """Act on the outcome of a release of what is held by another structure, and free that."""
    lock._native = held
    lock._finish_release(outcome)


# ---------------------------------------------------------------- the end of a block

# In CPython 3.11 and later a function's own first bytecode is RESUME 0, behind some that make its
# cells.  RESUME 2 stands behind `yield from`.
_CPYTHON = sys.implementation.name == "cpython"
_HAS_RESUME = sys.version_info >= (3, 11)
_RESUME = (lambda: None).__code__.co_code[:1]
_AT_START, _BEHIND_YIELD_FROM = 0, 2
# CPython 3.10's; `opcode` has them too, but is two more files to load.  The last are those of
# jumps to an absolute place.
_POP_BLOCK, _RERAISE, _SETUP_FINALLY = 87, 119, 122
_JUMPS = (111, 112, 113, 114, 115, 121)


def unstruck(function: T) -> T:
    """Let no handler of a signal run before the function's first statement.

    CPython runs handlers at the first bytecode of a function, ``RESUME 0``, which no ``try`` of the
    function covers.  What a handler raises there, as for Ctrl-C, would end an ``__exit__`` that
    has released nothing.  At a ``RESUME 2`` it runs none; there is no other difference.  A function
    that Nuitka or Cython has compiled has no bytecode to change, and is of another type.
    """
    if _CPYTHON and type(function).__name__ == "function":
        code: CodeType = function.__code__
        if not _HAS_RESUME:
            function.__code__ = _begun_by_a_try(code)
            return function
        text = bytearray(code.co_code)
        at = text[::2].find(_RESUME) * 2 + 1
        if text[at] == _AT_START:
            text[at] = _BEHIND_YIELD_FROM
            function.__code__ = code.replace(co_code=bytes(text))
    return function


def _begun_by_a_try(code: CodeType) -> CodeType:
    """Put an empty ``try`` before the code: CPython 3.10 runs no handler where one begins."""
    text = bytearray((_SETUP_FINALLY, len(code.co_code) // 2 + 1, _POP_BLOCK, 0))
    size = len(text)
    for name, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        text += bytes((name, argument + (name in _JUMPS) * size // 2))
    text += bytes((_RERAISE, 0))  # what a debugger raises at the POP_BLOCK
    return code.replace(
        co_code=bytes(text),
        co_linetable=bytes((size, 0)) + code.co_linetable + bytes((2, 0)),
        co_stacksize=code.co_stacksize + 6,  # an exception that is handled takes so many
    )


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


@unstruck
def leave(lock: Any, me: object, error: tuple[object, ...]) -> Any:
    """Release what a task holds, at the end of a block; the result may be awaited."""
    return lock._leave(me, *error)


# ---------------------------------------------------------------- who holds it

# Whether tasks hold a lock, and not threads.
is_for_tasks: Callable[[Any], bool] = attrgetter("_for_tasks")
# Whether the caller, a thread or a task, holds a lock by this object.
is_mine: Callable[[Any], bool] = methodcaller("_is_mine")
# Whether this thread holds a lock.
is_of_thread: Callable[[Any], bool] = methodcaller("_is_of_thread")
# The object of this process that holds what stands under a lock's name.
holder_here: Callable[[Any], Any] = methodcaller("_holder_here")
# The name of the acquisition that is held, or was held last.
token: Callable[[Any], str] = methodcaller("_token")
# Whether a task holds a lock by this object.
is_held_by: Callable[[Any, object], bool] = _calling("_is_held_by")
# The lock that the caller holds of a shared lock or of slots; None if none.
held_part: Callable[[Any], Any] = methodcaller("_mine")
# Note that the running task has won a lock, called from this frame.
won_by: Callable[[Any, FrameType], None] = _calling("_won_by")
# The place in the program where a lock was acquired.
place: Callable[[Any], tuple[CodeType, int] | None] = attrgetter("_place")
# The locks that the slots are.
slots_of: Callable[[Any], list[Any]] = attrgetter("_locks")
# The lock that the writer of a shared lock holds, and the directory that its readers are in.
writer_of: Callable[[Any], Any] = attrgetter("_writer")
readers_directory: Callable[[Any], str] = attrgetter("_directory")
# Whether the parent process held a lock by this object.
forked: Callable[[Any], bool] = attrgetter("_forked")
# Ask the store whether a lock is still held; the outcome.
confirm: Callable[[Any], int] = methodcaller("_confirm")
# Whether a lock that the caller itself holds expires during the wait for it (holder, seconds).
ends_in_time: Callable[[Any, Any, float | None], bool] = _calling("_ends_in_time")


def holder_by(lock: Any, token: str | None) -> Any:
    """Find the object of this process that holds by an entry of an engine, in any space."""
    client = getattr(lock, "client", None)
    return None if client is None or token is None else client.holder_by(token)


# ---------------------------------------------------------------- options and the record

# A lock's path as bytes.
encoded: Callable[[Any], bytes] = attrgetter("_encoded")
# The record that the next try writes, and whether it is made again for each try.
record: Callable[[Any], Record | None] = attrgetter("_record")
is_composed_anew: Callable[[Any], bool] = attrgetter("_each_time")
# Read a record of the lock's system.
decode: Callable[[Any, bytes], LockInfo] = _calling("_decode")
policy: Callable[[Any], Policy | None] = attrgetter("_policy")
schedule: Callable[[Any], Any] = attrgetter("_retry")
# The seconds between a lock's refreshes, and what is called when one finds it lost.
heartbeat: Callable[[Any], float | None] = attrgetter("_heartbeat")
on_lost: Callable[[Any], Any] = attrgetter("_on_lost")
# A number of the place where a lock is kept: of its filesystem, if it is a file.
place_kept: Callable[[Any], int] = methodcaller("_place_kept")
# The function that is called during a wait for a lock.
on_wait: Callable[[Any], Any] = attrgetter("_on_wait")
# The function that ends a wait for a lock, and the seconds between its calls; or None.
cancel: Callable[[Any], tuple[Callable[[], object], float] | None] = attrgetter("_cancel")
# What a kept wait can't do: what is asked or reported during a wait, or made for each try.
special: Callable[[Any], tuple[object, ...]] = attrgetter(
    "_policy", "_retry", "_heartbeat", "_on_wait", "_cancel", "_each_time"
)
# The name of the line in which tasks of one loop wait for a lock; None: in no line.
line_name: Callable[[Any], tuple[object, ...] | None] = methodcaller("_line_name")


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


def report_waits(lock: Any, function: Any) -> None:
    """Have a function called during each wait for a lock."""
    lock._on_wait = function


def cancel_by(lock: Any, function: Callable[[], object] | None, every: float) -> None:
    """Have a function asked during each wait for a lock whether the wait is to end."""
    lock._cancel = None if function is None else (function, every)


# ---------------------------------------------------------------- statuses and records

# The reason and the user who may remove a lock, if this user may not.
barred: Callable[[LockStatus], tuple[str, str] | None] = attrgetter("_barred")


def is_foreign(info: LockInfo) -> bool:
    """Tell whether semlock certainly did not write a record."""
    return info._names_instances and info.token is None and info.witness is None
