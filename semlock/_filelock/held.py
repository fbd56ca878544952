"""Locks that stand on a lock of semlock: they wait by events, in order, and need no polling."""

from __future__ import annotations

import errno
import os
from time import monotonic, sleep

from semlock._core import OK, events, inside
from semlock._core.capi import POOL, try_lock
from semlock._core.errors import (
    LockCancelledError,
    LockDeadlockError,
    LockLostError,
    LockPathError,
    LockTimeoutError,
    NotHeldError,
)
from semlock._filelock.base import BaseFileLock
from semlock._filelock.reporting import Timeout, debug

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from semlock._filelock.making import Wait
    from semlock._filelock.said import Context


# The errors of semlock's locks that filelock has others for.
WAIT_ENDED = LockTimeoutError, LockCancelledError, LockDeadlockError, LockPathError


class HeldBySemlock(BaseFileLock):
    """A lock whose backend is a lock of semlock, one for each context."""

    _ends_with_context = True

    def _new_inner(self, context: Context, path: str) -> Any:
        """Make semlock's lock of a path."""
        raise NotImplementedError

    @property
    def _lock_path(self) -> str:
        """The path that is locked: a relative one is that of the time of the acquire."""
        context = self._context
        if context.lock_file_fd is None or context.inner is None:
            return context.lock_file
        return str(context.inner.path)

    def _inner(self, context: Context) -> Any:
        """Give semlock's lock; a relative path is that of the current directory."""
        inner = context.inner
        name = context.lock_file
        if not name or name[-1] in (os.sep, os.altsep):
            code = errno.EISDIR if name else errno.ENOENT
            raise OSError(code, os.strerror(code), name)
        if inner is not None and _is_of(inner, name):
            if not os.path.isdir(os.path.dirname(inner.path)):
                os.makedirs(os.path.dirname(inner.path), exist_ok=True)
            return inner
        # Only once: if the directory is removed during a wait, that must not go on elsewhere.
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        try:
            inner = context.inner = self._new_inner(context, os.path.abspath(name))
        except LockPathError as error:
            raise os_error(error, name) from None
        return inner

    def _has_won(self, context: Context) -> bool:
        inner = context.inner
        if inner is None or not inner.held:
            return super()._has_won(context)
        if context.lock_file_fd is None:
            context.lock_file_fd = -1  # an interrupt came before the descriptor was noted
        return True

    def _acquire(self) -> None:
        """Try once."""
        context = self._context
        inner = self._inner(context)
        self._before_try(context, inner)
        try:
            won = inner.try_acquire()
        except LockPathError as error:
            raise os_error(error, context.lock_file) from None
        if won:
            self._won(context, inner)

    def _before_try(self, context: Context, inner: Any) -> None:
        """Prepare a try."""

    def _won(self, context: Context, inner: Any) -> None:
        """Note that the lock is held."""
        try:
            # On Windows it is a handle, which tells only that the lock is held.
            context.lock_file_fd = inside.native(inner).file.handle
        except BaseException:
            inner.release()
            raise

    def _obtain(self, context: Context, wait: Wait) -> None:
        if self._has_own_backend():
            super()._obtain(context, wait)
            return
        try:
            inner = self._try_or_prepare(context, wait)
            if inner is not None:
                try:
                    inner.acquire(None if wait.limit < 0 else wait.limit)
                finally:
                    self._stop_asking(inner, wait)
                self._won(context, inner)
        except WAIT_ENDED as error:
            self._explain(context, error, wait)
            # This thread has it.  Another one may release it in time, so the wait goes on.
            self._wait_for_oneself(context, wait, str(error))

    def _takes_at_once(self, context: Context, wait: Wait) -> bool:
        # What was taken before and is free needs no look at its directory.  The try is the core's,
        # which lets waiters go first when it is their turn; ``try_acquire`` would overtake them.
        inner = context.inner
        if (
            inner is None
            or not wait.blocking
            or wait.limit == 0
            or self._has_own_backend()
            or inside.record(inner) is None
            or events.sink is not None
            or not _is_of(inner, context.lock_file)
        ):
            return False
        self._before_try(context, inner)
        native = inside.native(inner)
        before = native.serial
        try:
            if try_lock(native, POOL) != OK:
                return False
            context.lock_file_fd = native.file.handle
        except BaseException:
            inside.undo(inner, before)
            raise
        return True

    def _has_own_backend(self) -> bool:
        kind = type(self)
        return kind._acquire is not HeldBySemlock._acquire  # noqa: SLF001 - its subclasses

    def _try_or_prepare(self, context: Context, wait: Wait) -> Any:
        """Take the lock by a single try, if no wait is wanted; else give what is to be awaited."""
        inner = self._inner(context)
        self._before_try(context, inner)
        if wait.blocking and wait.limit != 0:
            if wait.cancel_check is not None:
                inside.cancel_by(inner, wait.cancel_check, wait.interval)
            return inner
        if not inner.try_acquire():
            self._gives_up(wait, in_time=False)  # which logs it
            raise Timeout(context.lock_file, self._unseen_holder(context))
        self._won(context, inner)
        return None

    @staticmethod
    def _stop_asking(inner: Any, wait: Wait) -> None:
        if wait.cancel_check is not None:
            inside.cancel_by(inner, None, wait.interval)

    def _explain(self, context: Context, error: Exception, wait: Wait) -> None:
        """Raise filelock's error for semlock's; return if the wait goes on: see the caller."""
        if isinstance(error, LockTimeoutError):
            debug("Timeout on acquiring lock %s on %s", self)
            self._refuse(context, error)
        if isinstance(error, LockCancelledError):
            debug("Cancellation requested for lock %s on %s", self)
            self._refuse(context, error)
        if isinstance(error, LockPathError):
            raise os_error(error, context.lock_file) from None
        if wait.limit < 0:
            raise RuntimeError(
                f"Deadlock: lock '{context.lock_file}' is already held by another "
                f"{self._unit()}. One object for both, as is_singleton=True gives, can be "
                "acquired again"
            ) from error

    def _unit(self) -> str:
        return "FileLock instance in this thread"

    def _wait_for_oneself(self, context: Context, wait: Wait, why: str) -> None:
        end = monotonic() + wait.limit
        while not self._gives_up(wait, in_time=(left := end - monotonic()) > 0):
            debug("Lock %s not acquired on %s, waiting ...", self)
            sleep(max(0.0, min(wait.interval, left)))
            self._acquire()
            if context.lock_file_fd is not None:
                return
        self._refuse(context, why)

    def _refuse(self, context: Context, why: object) -> NoReturn:
        """Raise filelock's error of a wait that ended, with a note that names the holder."""
        raised = Timeout(context.lock_file, self._unseen_holder(context))
        if hasattr(raised, "add_note"):  # Python 3.11
            raised.add_note(str(why))
        raise raised from None

    def _unseen_holder(self, context: Context) -> str | None:  # noqa: ARG002 - soft locks look
        """Describe a holder that can't be looked at from here."""
        return None

    def _release(self) -> None:
        context = self._context
        inner = context.inner
        try:
            inner.release()
            context.lock_file_fd = None
        except BaseException as error:
            if not inner.held:
                context.lock_file_fd = None
            if isinstance(error, LockLostError):
                # As with filelock, this is no error: what is at the path is another holder's.
                _log(error)
            elif not isinstance(error, NotHeldError):
                raise


def _is_of(inner: Any, name: str) -> bool:
    """Tell whether semlock's lock is that of a path; a relative one may lead elsewhere by now."""
    return (
        name[:1] == "/"
        or inner.path == f"{os.getcwd()}/{name}"  # a third of what abspath takes
        or bool(inner.path == os.path.abspath(name))
    )


def os_error(error: LockPathError, path: str) -> Exception:
    """Give the plain error of the system for a path that can't be a lock's."""
    if "\0" in path:
        return ValueError("embedded null byte")  # as os.open does
    if not path:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    code = error.errno or errno.EINVAL
    return OSError(code, os.strerror(code), path)


def _log(error: LockLostError) -> None:
    import logging  # noqa: PLC0415 - only when something is wrong

    logging.getLogger("semlock").warning("%s", error)
