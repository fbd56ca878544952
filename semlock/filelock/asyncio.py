"""The locks for tasks, under the name of filelock's module."""

from __future__ import annotations

from semlock._filelock.aio import (
    AsyncFileLock,
    AsyncSoftFileLock,
    AsyncUnixFileLock,
    AsyncWindowsFileLock,
)
from semlock._filelock.aio_base import BaseAsyncFileLock
from semlock._filelock.reporting import AsyncAcquireReturnProxy, not_provided

__all__ = [
    "AsyncAcquireReturnProxy", "AsyncFileLock", "AsyncSoftFileLock", "AsyncUnixFileLock",
    "AsyncWindowsFileLock", "BaseAsyncFileLock",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in ("AsyncSoftFileLease", "AsyncStrictSoftFileLock"):
        return not_provided(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
