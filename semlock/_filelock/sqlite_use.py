"""Calls of SQLite, and forks: a child must not go on with a database that its parent has open.

A fork waits until no other thread is inside of such a call, which takes a tenth of a second at
most.  If the forking thread itself is inside of one, as a signal's handler may be, the child ends
at once, with the status 70: what it would return to works on the parent's database.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from weakref import WeakSet

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

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
