"""``acquire_all``: all of some locks are held in the end, or none."""

from __future__ import annotations

import sys
from time import monotonic

from semlock._core import explain, inside
from semlock._core.errors import LockTimeoutError
from semlock._core.inside import unstruck
from semlock._core.options import checked_timeout
from semlock._locks.many import TWICE, distinct, is_mine, is_plain, try_many
from semlock._waiting.steps import chance
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType, FrameType, TracebackType
    from typing import Any

    from semlock._locks.base import BaseLock
    from semlock._waiting.steps import Steps

# How long some locks are held while another is waited for; doubled with each failure.
_FIRST_PATIENCE = 0.001
_LONGEST_PATIENCE = 0.5


def _is_dropped_by_call(call: tuple[CodeType, int], frame: FrameType) -> bool:
    """Tell whether a call's result is dropped before the program could use it.

    Any use, even to ignore the result, is a later instruction than the call.
    """
    code, at = call
    if frame.f_code is not code:
        return False
    if frame.f_lasti == at:
        return True
    import dis  # noqa: PLC0415 - when locks are dropped that are held

    between = [
        one.opname
        for one in dis.get_instructions(code)
        if at < one.offset <= frame.f_lasti and one.opname != "CACHE"
    ]
    return len(between) == 1 and between[0] in _BEGINNINGS_OF_WITH


_BEGINNINGS_OF_WITH = ("SETUP_WITH", "BEFORE_WITH", "COPY")


class Several:
    """Some locks that are taken together, by this thread or task: all of them or none."""

    __slots__ = ("chosen", "is_mine", "locks")

    def __init__(self, locks: Sequence[Any], is_mine: Callable[[Any], bool] = is_mine) -> None:
        self.chosen = tuple(locks)
        # Every program takes them in this order.
        self.locks = sorted(locks, key=lambda lock: lock.path)
        self.is_mine = is_mine

    def let_go(self, behind: Any = None) -> None:
        """Release all that are held, or those behind one of them in the order of all programs."""
        for lock in reversed(self.locks):
            if lock is behind:
                break
            if self.is_mine(lock):
                inside.end(lock)

    def trying_rest(self, frame: FrameType) -> Steps[Any]:
        """Try those that are not held yet: the first that can't be taken, or ``None``."""
        yield from ()  # on other stores a try is a request, which a task awaits
        rest = [lock for lock in self.locks if not self.is_mine(lock)]
        if all(is_plain(lock) for lock in rest):
            won = try_many(rest, frame, anyway=False)
            return next((lock for lock, got in zip(rest, won, strict=True) if not got), None)
        return next((lock for lock in rest if not lock.try_acquire()), None)

    def acquiring(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Take all of them, one after the other, and none if that fails."""
        deadline = None if timeout is None else monotonic() + timeout
        patience = 0.0
        try:
            while (missing := (yield from self.trying_rest(frame))) is not None:
                twin = inside.holder_here(missing)
                if twin is not None and twin is not missing and twin in self.locks:
                    # Two names of one file, as where upper and lower case are the same.
                    raise ValueError(TWICE % missing.path)  # noqa: TRY301 - as always
                left = None if deadline is None else max(0.0, deadline - monotonic())
                if patience == 0.0 or timeout == 0:
                    # A waiter that holds nothing is in no circle, in whatever order others take
                    # them.
                    self.let_go()
                    yield from inside.acquiring(missing, left, frame)
                else:
                    # Where all of them are in use all the time, they are hardly ever free at once.
                    # So the held ones are kept for a bounded time, which grows.  Only those before
                    # the missing one: then callers that wait here wait for each other in no circle,
                    # which would last as long as that time.
                    self.let_go(behind=missing)
                    yield from self._patiently(missing, left, patience, frame)
                patience = min(max(2 * patience, _FIRST_PATIENCE), _LONGEST_PATIENCE)
        except BaseException:
            self.let_go()
            raise

    def _patiently(
        self, missing: Any, left: float | None, patience: float, frame: FrameType
    ) -> Steps[None]:
        limit = patience * (0.5 + chance())
        if left is not None and left < limit:
            yield from inside.acquiring(missing, left, frame)
            return
        try:
            yield from inside.acquiring(missing, limit, frame)
        except LockTimeoutError:
            self.let_go()
            left = None if left is None else max(0.0, left - limit)
            yield from inside.acquiring(missing, left, frame)


class AllAcquired:
    """What ``acquire_all`` returns: a context manager that releases all of them."""

    __slots__ = ("_call", "_several", "locks")

    def __init__(self, several: Several, call: tuple[CodeType, int] | None = None) -> None:
        self.locks = several.chosen
        self._several = several
        self._call = call  # the place of the call that returns this

    @unstruck
    def __enter__(self) -> tuple[Any, ...]:
        try:
            for lock in self.locks:
                if not lock.held:
                    lock.check()  # an error that says why
        except BaseException:
            if type(self) is _JustAcquired:
                self._several.let_go()  # the block that would release them doesn't begin
            raise
        return self.locks

    @unstruck
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        first: BaseException | None = None
        try:
            if type(self) is _JustAcquired:
                # An exception of a signal handler is lost in __del__, so this class has none.
                self.__class__ = AllAcquired  # type: ignore[assignment]
            for lock in reversed(self._several.locks):
                try:
                    lock.__exit__(kind, error, traceback)
                except BaseException as failure:  # noqa: BLE001, PERF203 - the others must go too
                    first = first or failure
        except BaseException:
            self._several.let_go()  # an interrupt outside of each release
            raise
        if first is not None:
            self._several.let_go()  # an interrupt may have come before one was released
            raise first

    @unstruck
    def release(self) -> None:
        """Release all of them; the first error is raised after the last release."""
        self.__exit__(None, None, None)

    def __repr__(self) -> str:
        return f"<{len(self.locks)} locks, acquired>"


class _JustAcquired(AllAcquired):
    """What ``acquire_all`` returns, until it is released."""

    __slots__ = ()

    def __del__(
        self,
        is_dropped_by_call: Callable[[tuple[CodeType, int], FrameType], bool] = (
            _is_dropped_by_call
        ),
        frame_at: Callable[[int], FrameType] = sys._getframe,
        interpreter: Any = sys,
    ) -> None:
        # A signal can arrive between the return of acquire_all and the block that releases the
        # locks.  Such a call has failed, so none may stay held.
        call = getattr(self, "_call", None)
        if call is None or getattr(interpreter, "meta_path", None) is None:
            return  # the interpreter ends and deletes all objects
        if not any(map(self._several.is_mine, self._several.locks)):
            return
        if is_dropped_by_call(call, frame_at(1)):
            self._several.let_go()


def acquire_all(locks: Iterable[BaseLock], timeout: float | None = None) -> AllAcquired:
    """Take all of some locks or none, waiting for them; a context manager that releases them.

    It never waits for ever while it holds some of them, so it doesn't matter in which order
    others take the same ones.  ``LockTimeoutError`` when the time is over; then none is held.
    """
    return take_all(Several(distinct(locks)), timeout, sys._getframe(1))


def take_all(several: Several, timeout: float | None, frame: FrameType) -> AllAcquired:
    """Take all of some locks or none, in this thread."""
    limit = None if timeout is None else checked_timeout(timeout)
    for lock in several.chosen:
        if is_mine(lock):
            raise explain.deadlock_error(lock, frame)
    acquired = _JustAcquired(several, (frame.f_code, frame.f_lasti))
    try:
        run(several.acquiring(limit, frame))
    except BaseException:
        several.let_go()
        raise
    return acquired
