"""What callers of filelock's interface are told: errors, results of an acquire, and the log."""

from __future__ import annotations

from semlock._core import registry
from semlock._core.inside import unstruck

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import asyncio
    from typing import Any, NoReturn


class Timeout(TimeoutError):  # noqa: N818 - the name is filelock's
    """The lock could not be acquired in time; it can be pickled.

    ``lock_file`` is the path.  ``holder`` describes a holder that can't be looked at from here.
    """

    def __init__(self, lock_file: str, holder: str | None = None) -> None:
        super().__init__()
        self._lock_file = lock_file
        self._holder = holder

    @property
    def lock_file(self) -> str:
        """The path of the lock file."""
        return self._lock_file

    def __str__(self) -> str:
        # Programs and tests compare this text, so it is the one of filelock.
        text = f"The file lock '{self._lock_file}' could not be acquired."
        if self._holder is not None:
            text += f" It is held by {self._holder}, which this host cannot probe."
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lock_file!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._lock_file,), self.__dict__


class SoftFileLockLifetimeWarning(FutureWarning):
    """A lifetime lets a waiter in while the holder lives."""


class LeaseSettingsMismatch(ValueError):  # noqa: N818 - the name is filelock's
    """Two users of one lease disagree about its length."""


class SoftFileLockProtocolError(OSError):
    """The state of a strict soft lock can't be read without a risk of two holders."""

    def __init__(self, lock_file: str, claim_name: str | None, reason: str) -> None:
        self._lock_file = lock_file
        self._claim_name = claim_name
        self._reason = reason
        super().__init__(str(self))

    @property
    def lock_file(self) -> str:
        """The path of the lock."""
        return self._lock_file

    @property
    def claim_name(self) -> str | None:
        """The claim that can't be read, if one is known."""
        return self._claim_name

    @property
    def reason(self) -> str:
        """What is wrong with it."""
        return self._reason

    def __str__(self) -> str:
        claim = "" if self._claim_name is None else f": claim {self._claim_name!r}"
        return f"Invalid strict soft-lock state at {self._lock_file}{claim}: {self._reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._lock_file, self._claim_name, self._reason), self.__dict__


class NotProvidedError(NotImplementedError):
    """A class of filelock that semlock doesn't have was used."""


_INSTEAD = {
    "SoftFileLease": "semlock.Lock with heartbeat= and policy=semlock.policy.Age(...)",
    "StrictSoftFileLock": "semlock.Lock, which takes no lock without proof of death",
    "MarkerSoftFileLock": "semlock.Lock, whose tag and record name the holder",
    "SoftReadWriteLock": "semlock.SharedLock",
}


def not_provided(name: str, *, instead: str | None = None) -> type:
    """Make a class that can be imported and named, and says what to use when it is called."""
    way_out = instead or next((_INSTEAD[key] for key in _INSTEAD if key in name), None)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotProvidedError(
            f"{name} is not part of semlock.filelock"
            + (f": use {way_out}" if way_out else "")
            + ". See the page about semlock.filelock in its documentation"
        )

    return type(name, (), {"__new__": refuse, "__doc__": "Not part of semlock.filelock."})


_named: Any = None


def is_logged() -> bool:
    """Tell whether the program logs at level DEBUG, by filelock's logger."""
    global _named  # noqa: PLW0603 - there is one logger of this name
    if _named is None:
        logging = registry.imported("logging")
        if logging is None:
            return False
        _named = logging.getLogger("filelock")
    return bool(_named.isEnabledFor(10))


def debug(message: str, lock: Any) -> None:
    """Log at level DEBUG in filelock's words, if the program logs."""
    if is_logged():
        _named.debug(message, id(lock), lock.lock_file)


class AcquireReturnProxy:
    """What ``acquire()`` returns: a context manager that releases, without acquiring again."""

    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> Any:
        return self.lock

    @unstruck
    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.lock._release_in_context(error)  # noqa: SLF001 - a part of the lock


class AsyncAcquireReturnProxy:
    """What ``await acquire()`` gives: a context manager that releases."""

    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    async def __aenter__(self) -> Any:
        return self.lock

    async def __aexit__(self, _: object, error: BaseException | None, *__: object) -> None:
        await self.lock._leave_block(error)  # noqa: SLF001 - a part of the lock


def raise_both(message: str, first: BaseException, second: BaseException) -> None:
    """Raise two errors together, where the interpreter has groups of them; else the second."""
    import builtins  # noqa: PLC0415 - when two things went wrong

    group: Any = getattr(builtins, "BaseExceptionGroup", None)
    if group is None:  # Python 3.10
        raise second
    if second.__context__ is first:
        second.__context__ = None
    raise group(message, [first, second]) from None


async def end_of(call: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until a call has ended, however often the task is cancelled; give the first time."""
    import asyncio  # noqa: PLC0415 - its callers have it

    first: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as cancelled:  # noqa: PERF203
            first = first or cancelled
    return first
