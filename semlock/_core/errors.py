"""The errors: each names the path, the holder where there is one, and the way out.

Contention is a value inside the package and an exception only at its edge.  What the
operating system refuses (a full disk, a missing permission) stays a plain ``OSError`` with
the file's name.  All of them can be pickled, so they cross process pools as they are.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import LockStatus


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
    """The lock is held, and what was asked for would take it from its holder."""


class LockTimeoutError(LockHeldError, TimeoutError):
    """The lock could not be acquired in the time that was given.  Also a ``TimeoutError``."""


class LockLostError(SemlockError):
    """The lock was held, and its file is no longer at its path: another program removed it."""


class NotHeldError(SemlockError, RuntimeError):
    """The lock is not held by this object, thread or process."""


class LockRecordError(SemlockError, ValueError):
    """A record can't be read, or what it should say can't be written in its format."""


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
        # These two are OSError's own, and no part of the object's dictionary.
        rebuild, (kind, args, state) = super().__reduce__()
        return rebuild, (kind, args, state | {"errno": self.errno, "filename": self.filename})


class LockLostWarning(UserWarning):
    """A lock was found lost when its ``with`` block was already ending with an exception."""
