"""What a lock asks of the store that it stands on.

``BaseLock`` has the public methods and the loop of a wait: when to try, to judge, to give up, to
refuse.  It uses no file.  A store implements the methods of ``Store`` for its own locks::

    class FileLock(InFiles, BaseLock): ...

They are methods of the lock's own class, and not of an object beside it, because the file store
answers ``acquire`` and ``release`` by one call into C each, in the frame that the user has
called.

The result of a call is an outcome (``_core/__init__.py``).  Three rules make interrupts harmless:

* Each win raises ``Hold.serial``, in the step that wins.  A call that was interrupted compares
  it with the number before, and releases what it has won.
* Each release raises ``Hold.endings``, in the step that releases.  One that was interrupted is
  repeated only if that number is the one before.
* ``Attempt.end`` may be called twice, and at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable

    from semlock._core.identity import Verdict
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._locks.base import BaseLock


class Hold(Protocol):
    """Who holds a lock by one object.  For files it is C's structure (``common/object.c``)."""

    owner: int  # the number of the thread that holds, by ``capi.this_thread``; 0: none
    depth: int  # how often it holds
    held: int
    serial: int  # how often the object has won, nested acquisitions too
    endings: int  # how often it was released, nested acquisitions too
    reentrant: int
    by_object: int  # whether the object holds, whichever thread or task uses it
    turns: int  # NO_TURNS, TAKE_TURNS or FAIR


class Instance(Protocol):
    """What was found under a lock's name: one acquisition, and no other."""

    @property
    def key(self) -> tuple[int, ...]:
        """Name it as it was: another after each change."""

    @property
    def content(self) -> bytes:
        """Its record."""

    @property
    def error(self) -> int:
        """Why the record can't be read: a negative outcome; 0 if it can."""

    @property
    def unfinished(self) -> bool:
        """Whether its creator has not yet come to the end of it."""

    @property
    def witnessed(self) -> bool:
        """Whether a lasting sign, such as a kernel lock, shows that its holder lives.

        The end of that sign wakes a wait.
        """

    @property
    def ctime_ns(self) -> int:
        """When anything about it has changed last."""

    @property
    def written_at(self) -> float:
        """When its record was written, in seconds since 1970."""

    def evidence(self, info: LockInfo | None) -> tuple[Verdict, str]:
        """Say whether its holder lives, and how that is known."""

    def keeper(self, path: str) -> str | None:
        """Name the user who alone may remove it; ``None`` if this one may."""


class Attempt(Protocol):
    """One wait, of a thread or a task, from the first try that failed to its end.

    It sleeps until a try makes sense.  It may stand in a queue while it does, and it may win
    by itself: then ``outcome`` says so.  The generator that drives it closes it in any case.
    """

    # Of the last try.  The caller sets it before it sleeps; afterwards it is that of the try that
    # the store itself has made, or None if it made none.
    outcome: int | None
    judge: bool | None  # whether to judge the holder now; None: by the clock of the lock

    @property
    def waited(self) -> float:
        """Say for how many seconds this wait has lasted."""

    @property
    def left(self) -> float | None:
        """Say for how many seconds it may go on; ``None`` if there is no end."""

    def pause(self) -> bool:
        """Sleep in this thread until a try makes sense; ``False`` if the time is over."""

    def pause_async(self) -> Awaitable[bool]:
        """Sleep in the event loop, which goes on."""

    def in_turn(self, *, fair: bool, anew: bool = False) -> bool:
        """Tell whether a try now would overtake no waiter that came earlier.

        ``anew`` after a judgement: one may have come back meanwhile.
        """

    def judged(self, seen: Any, again_at: int | None) -> None:
        """Skip this instance until it changes, or until that time of the store's clock."""

    def follow(self, pid: int, start: int) -> None:
        """End the pause also when the holder's process ends."""

    def end(self, won: Hold | None = None) -> None:
        """Give back what the wait had; ``won`` is what holds now, if it ended well."""


class Store(Protocol):
    """What the store does for one lock.  All but ``_waiter`` return at once."""

    _native: Any  # a ``Hold``

    def _try(self) -> int:
        """Try once, unless earlier waiters come first.

        OK, NESTED, MINE, HELD, LOOK (held; judge the holder), TURN (others are first), FORKED,
        or a negative error.
        """

    def _try_again(self) -> int:
        """Try once, for a caller whose turn it is."""

    def _let_go(self) -> int:
        """Release once.

        OK, NESTED (it is still held), LOST (it was taken away), FREE, OTHER_THREAD (it holds by
        this object), FORKED, GUARDED (try again in a moment), or a negative error.
        """

    def _rewrite(self) -> int:
        """Write the present time into the record: OK, LOST, FREE, FORKED, GUARDED or an error."""

    def _confirm(self) -> int:
        """Ask the store whether the lock is still held: OK, LOST, FREE, FORKED or an error."""

    def _holds(self) -> int:
        """Say whether this object holds, as far as it knows: OK, FREE or FORKED."""

    def _is_of_thread(self) -> bool:
        """Tell whether this thread holds by this object."""

    def _token(self) -> str:
        """Name the acquisition that is held."""

    def _record_held(self) -> LockInfo | None:
        """Say what the record of what is held says."""

    def status(self) -> LockStatus:
        """Look at the lock, whichever process holds it."""

    def _clear(self, found: LockStatus, *, robs: bool) -> bool | None:
        """Remove exactly what was found, and nothing that has replaced it.

        ``robs`` says that a living holder may lose it.  ``True`` if it was removed, ``False`` if
        it was not there any more, ``None`` if it can't be removed now.
        """

    def _holder_of(self, seen: Instance) -> BaseLock | None:
        """Find the object of this process that holds an instance."""

    def _holder_here(self) -> BaseLock | None:
        """Find the object of this process that holds what is there now."""

    def _store_time(self) -> int:
        """Give the time of the store's clock."""

    def _look_again_later(self, key: tuple[int, ...]) -> int:
        """Note that an instance was judged, and say when it is to be judged again."""

    def _look_is_due(self) -> bool:
        """Tell whether that time has come."""

    def _waiter(self, timeout: float | None, asked: int) -> Attempt:
        """Begin a wait; ``asked`` is when the caller asked by the store's clock, 0 for now."""

    def _mend(self, outcome: int) -> int:
        """Remove the reason of a try's negative outcome and try again, or raise the error."""

    def _error(self, outcome: int) -> Exception:
        """Put the negative outcome of another call into words."""

    def _follow_fork(self) -> None:
        """Continue as the child after a fork: a try has returned FORKED."""

    def _give_way(self) -> None:
        """Let the first waiter run, which may just have been woken."""

    def _place_kept(self) -> Hashable:
        """Name the place that may hang; each place has a heartbeat thread of its own."""

    def _dropped(self) -> bool:
        """Note that the object is being deleted; ``True`` if it still holds the lock."""
