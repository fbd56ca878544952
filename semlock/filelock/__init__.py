"""filelock's interface on semlock's locks: ``import semlock.filelock as filelock``.

``FileLock`` and ``SoftFileLock`` exclude the locks of the same names of filelock on the same path,
so programs can move one after the other.  They wait by events and in order, and their errors name
the holder.  docs/filelock.md tells what is the same, what is better and what is refused.
"""

from __future__ import annotations

import sys

from semlock._filelock.base import BaseFileLock
from semlock._filelock.making import LockOptions
from semlock._filelock.native import FileLock, UnixFileLock, WindowsFileLock
from semlock._filelock.reporting import (
    AcquireReturnProxy,
    LeaseSettingsMismatch,
    NotProvidedError,
    SoftFileLockLifetimeWarning,
    SoftFileLockProtocolError,
    Timeout,
    not_provided,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._filelock.aio import (
        AsyncFileLock,
        AsyncSoftFileLock,
        AsyncUnixFileLock,
        AsyncWindowsFileLock,
    )
    from semlock._filelock.aio_base import BaseAsyncFileLock
    from semlock._filelock.descriptors import lock_descriptor, unlock_descriptor
    from semlock._filelock.making import CloseErrorPolicy, ContextErrorPolicy
    from semlock._filelock.read_write import ReadWriteLock
    from semlock._filelock.read_write_async import (
        AsyncAcquireReadWriteReturnProxy,
        AsyncReadWriteLock,
    )
    from semlock._filelock.reporting import AsyncAcquireReturnProxy
    from semlock._filelock.soft import SoftFileLock
    from semlock.filelock import asyncio

__all__ = [
    "AcquireReturnProxy", "AsyncAcquireReadWriteReturnProxy", "AsyncAcquireReturnProxy",
    "AsyncAcquireSoftReadWriteReturnProxy", "AsyncFileLock", "AsyncReadWriteLock",
    "AsyncSoftFileLease", "AsyncSoftFileLock", "AsyncSoftReadWriteLock",
    "AsyncStrictSoftFileLock", "AsyncUnixFileLock", "AsyncWindowsFileLock",
    "BaseAsyncFileLock", "BaseFileLock", "CloseErrorPolicy", "CompromiseReason",
    "ContextErrorPolicy", "FileLock", "LeaseCompromise", "LeaseSettingsMismatch",
    "LockOptions", "MarkerSoftFileLock", "NotProvidedError", "OwnerMode", "OwnerRecord",
    "ReadWriteLock", "SoftFileLease", "SoftFileLock", "SoftFileLockLifetimeWarning",
    "SoftFileLockProtocolError", "SoftReadWriteLock", "StrictSoftFileClaim",
    "StrictSoftFileClaimState", "StrictSoftFileLock", "Timeout", "UnixFileLock",
    "WindowsFileLock", "__version__", "asyncio", "has_fcntl", "lock_descriptor",
    "unlock_descriptor",
]  # fmt: skip

# The version of filelock whose interface this is.
__version__ = version = "4.2.10"

has_fcntl = sys.platform != "win32"

for _name in __all__:  # also what is refused, so that a program that imports all is told
    if getattr(globals().get(_name), "__module__", "").startswith("semlock."):
        globals()[_name].__module__ = __name__
del _name

_LATER = {
    "AsyncAcquireReadWriteReturnProxy": "read_write_async",
    "AsyncAcquireReturnProxy": "reporting",
    "AsyncFileLock": "aio",
    "AsyncReadWriteLock": "read_write_async",
    "AsyncSoftFileLock": "aio",
    "AsyncUnixFileLock": "aio",
    "AsyncWindowsFileLock": "aio",
    "BaseAsyncFileLock": "aio_base",
    "ReadWriteLock": "read_write",
    "SoftFileLock": "soft",
    "lock_descriptor": "descriptors",
    "unlock_descriptor": "descriptors",
}
# Types of options and attributes that are one of some words.
_WORDS = {
    "CloseErrorPolicy": ("default", "raise", "suppress"),
    "CompromiseReason": ("marker-missing", "owner-changed", "refresh-failed", "evicted"),
    "ContextErrorPolicy": ("chain", "group"),
    "OwnerMode": ("lease", "exclusive", "unknown"),
}
_NOT_PROVIDED = (
    "AsyncAcquireSoftReadWriteReturnProxy",
    "AsyncSoftFileLease",
    "AsyncSoftReadWriteLock",
    "AsyncStrictSoftFileLock",
    "LeaseCompromise",
    "MarkerSoftFileLock",
    "OwnerRecord",
    "SoftFileLease",
    "SoftReadWriteLock",
    "StrictSoftFileClaim",
    "StrictSoftFileClaimState",
    "StrictSoftFileLock",
)


def __getattr__(name: str) -> object:
    found: object
    if name in _WORDS:
        from typing import Literal  # noqa: PLC0415 - for those who read annotations

        found = Literal[_WORDS[name]]
    elif name in _NOT_PROVIDED:
        # It can be imported and named in an annotation; a call of it says what to use.
        found = not_provided(name)
    elif name == "asyncio" or name in _LATER:
        from importlib import import_module  # noqa: PLC0415 - for those who use them

        try:
            if name == "asyncio":
                return import_module("semlock.filelock.asyncio")
            module = import_module(f"semlock._filelock.{_LATER[name]}")
        except ImportError as error:
            if (error.name or "").startswith(("sqlite3", "_sqlite3")):
                return None  # a Python without SQLite; so does filelock
            raise
        found = getattr(module, name)
        if isinstance(found, type):
            found.__module__ = __name__
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_NOT_PROVIDED, *_WORDS})
