"""A lock object: its options, its properties, and what is done while it is held.

This module uses no file and not the compiled core; ``base`` acquires.
"""

from __future__ import annotations

import errno
import sys
from time import monotonic, sleep

from semlock._core import FORKED, FREE, GUARDED, LOST, NESTED, OK, OTHER_THREAD, events, explain
from semlock._core.errors import LockLostError, LockLostWarning
from semlock._core.inside import unstruck
from semlock._core.options import GUARD_PATIENCE, WithOptions

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

    from semlock._core.options import LockOptions
    from semlock._core.records import LockInfo
    from semlock._stores.store import Store
else:
    Store = object

_PAUSE = 0.0005

# How often a wait asks ``cancel_check``.
CANCEL_PAUSE = 0.05

_HAD = (OK, NESTED)
_NOT_HELD = (FREE, OTHER_THREAD, FORKED)
_CHECKED = (LOST, FREE, FORKED)


class LockObject(WithOptions, Store):
    """A lock's options and properties, and releasing, refreshing and checking it."""

    __slots__ = (
        "__weakref__", "_cancel", "_forked", "_heartbeat", "_native", "_on_lost", "_on_wait",
        "_place", "_policy", "_retry", "path", "tag", "timeout",
    )  # fmt: skip

    # Whether tasks hold it, and not threads.  Then a try must not block the event loop.
    _for_tasks = False

    def __init__(self, path: str, options: LockOptions) -> None:
        """Take options that ``taken`` has checked and completed."""
        self.path = path
        self.tag = options["tag"]
        self.timeout = options["timeout"]
        self._policy = options["policy"]
        self._retry = options["retry"]
        self._heartbeat = options["heartbeat"]
        if self._heartbeat is not None:
            # A lock that was made is ready: after chroot() no module can be loaded.
            from semlock._locks import heartbeat as _  # noqa: F401, PLC0415 - threads, for those who ask
        self._on_lost = options["on_lost"]
        self._on_wait = options["on_wait"]
        cancel_check = options["cancel_check"]
        self._cancel = None if cancel_check is None else (cancel_check, CANCEL_PAUSE)
        # Where it was acquired: code object and instruction, which cost least.
        self._place: tuple[CodeType, int] | None = None
        # Whether this object held it in the parent process before a fork.
        self._forked = False

    def cancel(self) -> int:
        """End the waits of this object that are under way, from any thread: how many there are.

        Each raises ``LockCancelledError``, unless it wins at that moment.  Later ones wait as ever.
        """
        from semlock._waiting.steps import cancel  # noqa: PLC0415 - for those who ask

        return cancel(self)

    # ------------------------------------------------------------------ letting go

    @unstruck
    def release(self) -> None:
        """Release the lock.

        ``NotHeldError`` if it is not held here; ``LockLostError`` if it was removed
        meanwhile; then a file at the path is another holder's and stays.
        """
        outcome = self._let_go_whole()
        if outcome not in _HAD:
            self._finish_release(outcome)

    @unstruck
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outcome = self._let_go_whole()
        if outcome not in _HAD:
            self._finish_block(outcome, kind)

    def _finish_block(self, outcome: int, kind: type[BaseException] | None) -> None:
        """End a block whose lock was not simply released; the block may have failed too."""
        if outcome == FORKED or (outcome == FREE and self._forked):
            return  # The parent process entered the block, and still holds the lock.
        try:
            self._finish_release(outcome)
        except LockLostError as lost:
            if kind is None:
                raise
            # The block's own exception is raised, and the loss is a warning.
            from warnings import warn  # noqa: PLC0415 - hardly ever needed

            warn(str(lost), LockLostWarning, stacklevel=3)

    @unstruck
    def _let_go_whole(self) -> int:
        """Release once, also if an interrupt comes before that is done."""
        endings = self._native.endings
        try:
            return self._let_go()
        except BaseException:
            self._end(endings)
            raise

    def _end(self, endings: int) -> None:
        """Release once, unless that was done since ``endings`` was read."""
        if self._native.endings == endings:
            self._let_go()

    def _finish_release(self, outcome: int) -> None:
        end = monotonic() + GUARD_PATIENCE
        while outcome in (GUARDED, -errno.EINTR):
            if monotonic() >= end:
                raise explain.guarded_error(self.path, "released")
            sleep(_PAUSE)
            outcome = self._let_go()
        if outcome not in _HAD:
            self._fail(outcome)

    def _fail(self, outcome: int) -> NoReturn:
        """Raise the error of a call that needs a held lock."""
        if outcome == LOST:
            raise self._lost()
        if outcome in _NOT_HELD:
            self._forked = self._forked or outcome == FORKED
            raise explain.not_held_error(self)
        raise self._error(outcome)

    # ------------------------------------------------------------------ while it is held

    def refresh(self) -> None:
        """Write the present time into the record, for policies that judge by age."""
        if not self._refresh(GUARD_PATIENCE):
            raise explain.guarded_error(self.path, "refreshed")

    def _refresh(self, patience: float) -> bool:
        """Refresh; ``False`` if another process kept the guard for so many seconds."""
        end = monotonic() + patience
        while (outcome := self._rewrite()) in (GUARDED, -errno.EINTR):
            if monotonic() >= end:
                return False
            sleep(_PAUSE)
        if outcome != OK:
            self._fail(outcome)
        if (sink := events.sink) is not None:
            sink.refreshed(self)  # type: ignore[arg-type]  # it is a BaseLock
        return True

    def check(self) -> None:
        """Make sure that the lock is still held: ``LockLostError`` if it was removed."""
        while (outcome := self._confirm()) == -errno.EINTR:
            pass
        if outcome in _CHECKED or outcome < 0:
            self._fail(outcome)

    def _lost(self) -> LockLostError:
        """Report that the lock was lost, and make the error that says so."""
        if (sink := events.sink) is not None:
            sink.lost(self)  # type: ignore[arg-type]  # it is a BaseLock
        return explain.lost_error(self)

    # ------------------------------------------------------------------ what it says

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, as far as it knows; see ``check``."""
        outcome = self._holds()
        if outcome == FORKED:
            self._forked = True
        return outcome == OK

    @property
    def count(self) -> int:
        """How often this object holds the lock: as many releases end it; 0 while it does not."""
        return int(self._native.depth) if self.held else 0

    @property
    def token(self) -> str | None:
        """The name of this acquisition, new each time; ``None`` while it is not held."""
        return self._token() if self.held else None

    @property
    def info(self) -> LockInfo | None:
        """What this object's record says; ``None`` while it is not held."""
        return self._record_held() if self.held else None

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<{type(self).__name__} {self.path!r}, {state}>"

    def __del__(
        self, ending: Callable[[], bool] = sys.is_finalizing, interpreter: Any = sys
    ) -> None:
        # Its needs are default arguments: when the interpreter ends, module globals are cleared
        # before the last objects are deleted.
        if getattr(self, "_native", None) is None or not self._dropped():
            return
        # A subinterpreter ends without finalizing the process, and can't import any more.
        if ending() or getattr(interpreter, "meta_path", None) is None:
            return
        from warnings import warn  # noqa: PLC0415 - hardly ever needed

        warn(
            f"{self.path} is held by a lock object that nothing refers to any more, and stays held "
            f"until the process ends. It was acquired at {explain.where(self._place)}: keep the "
            "object and release it, or use `with`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _forget_after_fork(self) -> None:
        """Forget what the parent process holds."""
        if self._native.held:
            self._forked = True
        self._place = None

    def _follow_fork(self) -> None:
        """Continue as the child after a fork."""
