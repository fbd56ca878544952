"""``SoftFileLock``: its file's existence is the lock, with the record of filelock."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from time import time

from semlock._core import TAKE_TURNS, capi
from semlock._core.identity import this_process
from semlock._filelock.held import HeldBySemlock
from semlock._filelock.making import UNSET_MODE
from semlock._filelock.record import compose, decode, host_name, is_gone
from semlock._locks.lock import FileLock as LockInFile

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Process
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._filelock.said import Context

# What a file must be for so long before it counts as cut off, and not as being written.
CUT_OFF_AFTER = 2.0
# Written by strict soft locks into the path of a plain one, so that it is held for ever.
_SENTINEL = b"1\nfilelock-strict-v1\x00\n0\n"


class Stale:
    """When a soft lock may be taken: its process is gone, it was cut off, or it is too old."""

    __slots__ = ("lifetime",)

    def __init__(self, lifetime: float | None) -> None:
        self.lifetime = lifetime

    def __call__(self, status: LockStatus) -> str | None:
        """Give the reason, or ``None``."""
        seen = status.instance
        if seen is None:
            return None
        if self.lifetime is not None:
            age = time() - seen.written_at
            if age >= self.lifetime:
                return f"it is {age:.0f} s old, and its lifetime is {self.lifetime:g} s"
        content = seen.content
        if status.info is None:
            # An old filelock writes nothing into its file: an empty one may be held.
            if content in (b"", _SENTINEL) and seen.error == 0 and seen.kind == capi.REGULAR:
                return None
            unchanged = status.unchanged_for(time())
            if unchanged < CUT_OFF_AFTER or seen.error == -13:
                return None
            return f"it has been no readable record for {unchanged:.0f} s"
        return None if seen.witnessed else is_gone(status.info)


class SoftLock(LockInFile):
    """semlock's lock with filelock's record."""

    __slots__ = ()

    # Waiters of this package stand in a queue; the core tries for the first of them.
    _turns = TAKE_TURNS

    def __init__(self, path: str, mode: int, lifetime: float | None, **options: Any) -> None:
        # Others act on what the record says, so they may not write it.
        super().__init__(
            path,
            mode=0o644 if mode == UNSET_MODE else mode & 0o755,
            exact_mode=mode != UNSET_MODE,
            policy=Stale(lifetime),
            durability="none",
            **options,
        )
        self._native.fleeting = 1  # the directory has no other files than filelock would leave

    def _compose(self, owner: Process | None) -> capi.Record:
        return self._record_with(compose(owner or this_process()))

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)


class SoftFileLock(HeldBySemlock):
    """A lock that is held exactly while a file exists at its path.

    It excludes filelock's ``SoftFileLock`` and is excluded by it.  The parameters are those of
    ``BaseFileLock``.
    """

    _lifetime_supported = True
    _preserve_lock_file_supported = False
    _on_acquired_supported = False
    _is_soft = True
    _inner_kind: Any = SoftLock

    def _new_inner(self, context: Context, path: str) -> Any:
        return self._inner_kind(path, context.mode, context.lifetime)

    def _before_try(self, context: Context, inner: Any) -> None:
        if inner._policy.lifetime != context.lifetime:  # noqa: SLF001 - it can be set at any time
            inner._policy.lifetime = context.lifetime  # noqa: SLF001

    def _look(self) -> LockInfo | None:
        try:
            return self._inner(self._context).status().info  # type: ignore[no-any-return]
        except OSError:
            return None

    @property
    def pid(self) -> int | None:
        """The process that holds the lock by its record; ``None`` if there is none to read."""
        info = self._look()
        return None if info is None else info.pid

    @property
    def is_lock_held_by_us(self) -> bool:
        """Whether the record names this process."""
        info, me = self._look(), this_process()
        if info is None or info.pid != me.pid or info.host != host_name(me):
            return False
        if info.start is None or sys.platform != "linux":
            return info.start is None
        return info.start == me.start and info.boot in (None, me.boot)

    def break_lock(self) -> None:
        """Remove the lock file, whichever process holds the lock."""
        with suppress(OSError):
            os.unlink(self._inner(self._context).path)

    def _unseen_holder(self, context: Context) -> str | None:
        try:
            found = self._inner(context).status()
        except OSError:
            return None
        if found.instance is not None and found.instance.content == b"":
            return "an owner that recorded no PID (an old filelock, or one that writes it now)"
        info = found.info
        if info is not None and info.host != host_name():
            return f"pid {info.pid} on {info.host}"
        return None
