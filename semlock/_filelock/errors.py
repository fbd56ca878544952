"""The errors and warnings of filelock's interface."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import NoReturn


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
