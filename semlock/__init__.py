"""Crash-safe file locks.

::

    import semlock

    with semlock.Lock("build.lock", tag="nightly build", timeout=60):
        ...

What you may rely on
    A lock is held exactly while a file exists at its path.  Programs in any language that
    create it with ``O_CREAT|O_EXCL`` and remove it when done take part.

    Among programs that use this package: at most one holder, whatever is killed, paused or
    retried; a holder that dies is found out by proof (the kernel drops its lock, or its
    process is gone) and its lock taken over at once, by one of those who want it; a holder
    that lives is never robbed; no reader sees half a record; what is removed is exactly what
    was judged; a holder whose file was removed by force learns it from ``check()``,
    ``refresh()`` or ``release()``.

    Ctrl-C at any point of ``acquire`` or ``release`` leaves the lock either held, with the
    object saying so, or not held, with nothing left behind.

Where it ends
    Locks are advisory: they bind those who ask.  A foreign program that removes a lock file
    by name in the very moment (two system calls) in which a dead holder's lock is removed can
    lose a lock that it created in that moment.

    Proof of death needs a record that this package wrote, and a filesystem that is local to
    both sides or a holder on the same machine and in the same container.  Everything else is
    unknown, and unknown counts as held: ``remove(path, force=True)`` is for people who know.

    On a network filesystem the kernel's lock is not used, and creating is as safe as the
    server makes ``link`` and ``O_EXCL``.

    After ``fork`` the child holds nothing.  A thread that would wait for itself gets an error.

The protocol is told in ``csrc/semlock.h``.
"""

from __future__ import annotations

from os import environ
from os.path import basename
from sys import argv

from semlock import _core

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import ModuleType

    from semlock._core.cleaning import Removed, clean
    from semlock._core.errors import (
        LockCancelledError,
        LockDeadlockError,
        LockEngineError,
        LockHeldError,
        LockLostError,
        LockLostWarning,
        LockPathError,
        LockRecordError,
        LockTimeoutError,
        NotHeldError,
        SemlockError,
    )
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus, remove, status
    from semlock._core.verdicts import proof_of_death
    from semlock._engines.space import Space, connect
    from semlock._events.stats import Stats
    from semlock._locks.async_kernel import AsyncKernelLock
    from semlock._locks.async_kinds import AsyncSharedLock, AsyncSlotLock
    from semlock._locks.async_lock import AsyncLock
    from semlock._locks.async_many import acquire_all_async, acquire_any_async
    from semlock._locks.kernel import KernelLock
    from semlock._locks.lock import Lock
    from semlock._locks.lock_set import LockSet
    from semlock._locks.many import acquire_any, try_acquire_many
    from semlock._locks.placing import once, once_async, open_atomic, open_locked
    from semlock._locks.shared import SharedLock
    from semlock._locks.slots import SlotLock
    from semlock._locks.together import acquire_all

__all__ = [
    "AsyncKernelLock", "AsyncLock", "AsyncSharedLock", "AsyncSlotLock", "KernelLock", "Lock",
    "LockCancelledError", "LockDeadlockError", "LockEngineError", "LockHeldError", "LockInfo",
    "LockLostError", "LockLostWarning", "LockPathError", "LockRecordError", "LockSet",
    "LockStatus", "LockTimeoutError", "NotHeldError", "Removed", "SemlockError", "SharedLock",
    "SlotLock", "Space", "acquire_all", "acquire_all_async", "acquire_any",
    "acquire_any_async", "clean", "connect", "once", "once_async", "open_atomic",
    "open_locked", "proof_of_death", "remove", "stats", "status", "try_acquire_many",
]  # fmt: skip

__version__ = "0.1.0"


def stats() -> Stats:
    """Say how often the locks of this process were acquired, waited for, lost and so on.

    Counting begins with the first call, and costs nothing before.
    """
    from semlock._events.stats import current  # noqa: PLC0415 - for those who count

    return current()


def _claims() -> ModuleType:
    from semlock._systems import claims  # noqa: PLC0415 - for those who clean

    return claims


_core.claims.append(_claims)

if not TYPE_CHECKING:
    # A module is imported when one of its names is used first, or by `from semlock import name`:
    # only those who use tasks pay for asyncio, and the command pays for little more than one verb.
    _LATER = {
        name: f"semlock.{module}"
        for module, names in {
            "_core.cleaning": "Removed clean",
            "_core.errors": (
                "LockCancelledError LockDeadlockError LockEngineError LockHeldError "
                "LockLostError LockLostWarning LockPathError LockRecordError "
                "LockTimeoutError NotHeldError SemlockError"
            ),
            "_core.records": "LockInfo",
            "_core.status": "LockStatus remove status",
            "_core.verdicts": "proof_of_death",
            "_engines.space": "Space connect",
            "_locks.async_kernel": "AsyncKernelLock",
            "_locks.async_lock": "AsyncLock",
            "_locks.async_many": "acquire_all_async acquire_any_async",
            "_locks.async_kinds": "AsyncSharedLock AsyncSlotLock",
            "_locks.kernel": "KernelLock",
            "_locks.lock": "Lock",
            "_locks.lock_set": "LockSet",
            "_locks.many": "acquire_any try_acquire_many",
            "_locks.placing": "once once_async open_atomic open_locked",
            "_locks.shared": "SharedLock",
            "_locks.slots": "SlotLock",
            "_locks.together": "acquire_all",
        }.items()
        for name in names.split()
    }

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(__import__(_LATER[name], fromlist=[name]), name)
        found.__module__ = __name__  # as users write it, in tracebacks and in pickles
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    # A program has Lock from the start, with all that its methods need: the first use may come in a
    # child that a thread forked, after chroot(), or when no descriptor is left.
    if not argv or basename(argv[0]) not in ("semlock", "semlock.exe", "-m"):
        __getattr__("Lock")


if "SEMLOCK_TRACE" in environ:
    from semlock import trace

    trace.start_by_environment(environ["SEMLOCK_TRACE"])
