"""The errors: each names the path, the holder if there is one, and what to do.

Inside the package contention is a return value; it becomes an exception in the public calls.
Errors of the operating system (a full disk, a missing permission) stay ``OSError`` with the
file's name.  All errors can be pickled, so they pass through process pools.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    from semlock._core.status import LockStatus

    HowLost: TypeAlias = Literal["removed", "replaced", "expired", "unreachable"]


def _rebuild(
    kind: type[SemlockError], args: tuple[Any, ...], state: dict[str, Any]
) -> SemlockError:
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class SemlockError(Exception):
    """The base of all errors of this package.

    ``path`` is the lock's path.  ``status`` is what was found there (a ``LockStatus``), with
    the holder in ``status.info``, or ``None`` if nothing was looked at.
    """

    def __init__(
        self, message: str, *, path: str | None = None, status: LockStatus | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class LockHeldError(SemlockError):
    """The lock is held, and the call would take it from its holder."""


class LockTimeoutError(LockHeldError, TimeoutError):
    """The lock could not be acquired in the time that was given.  Also a ``TimeoutError``."""


class LockCancelledError(LockHeldError):
    """The wait was ended by the lock's ``cancel_check``, or by its ``cancel()``."""


class LockLostError(SemlockError):
    """The lock was held, and its file is no longer at its path: another program removed it.

    ``reason`` says how, for programs: ``"removed"``: nothing is there now; ``"replaced"``: another
    file or record is there, so another process may hold the lock; ``"expired"``: its lease on an
    engine ended before it was renewed, for example in a suspended process; ``"unreachable"``: it
    ended because the engine could not be reached.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        status: LockStatus | None = None,
        reason: HowLost = "removed",
    ) -> None:
        super().__init__(message, path=path, status=status)
        self.reason: HowLost = reason


class NotHeldError(SemlockError, RuntimeError):
    """The lock is not held by this object, thread or process."""


class LockRecordError(SemlockError, ValueError):
    """A record can't be read, or a value can't be written in the record's format."""


class LockDeadlockError(SemlockError, RuntimeError):
    """The thread would wait for a lock that it holds itself."""


class LockPathError(SemlockError, OSError):
    """The path can't be a lock's.

    It is empty or contains NUL, its directory doesn't exist, or it names a directory or a
    link.  Also an ``OSError`` with ``errno`` and ``filename``.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        status: LockStatus | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message, path=path, status=status)
        self.errno = code
        self.filename = path

    def __reduce__(self) -> tuple[Any, ...]:
        # errno and filename are OSError's own, not in the object's dictionary.
        rebuild, (kind, args, state) = super().__reduce__()
        return rebuild, (kind, args, state | {"errno": self.errno, "filename": self.filename})


class LockEngineError(SemlockError, OSError):
    """An engine can't be reached, doesn't answer in time, or refuses a request.

    ``address`` is the engine's, without user and password.  Also an ``OSError``.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        status: LockStatus | None = None,
        address: str | None = None,
    ) -> None:
        super().__init__(message, path=path, status=status)
        self.address = address


class LockLostWarning(UserWarning):
    """A lock was found lost while its ``with`` block ended with another exception."""


# As users write them: a traceback names them, whether or not ``semlock``'s name of one was used.
for _kind in list(globals().values()):
    if isinstance(_kind, type):
        _kind.__module__ = "semlock"
del _kind
