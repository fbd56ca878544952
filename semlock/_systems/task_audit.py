"""The audit log of task locks: one line of JSON for each operation, beside the lock.

A line is appended by one call, so processes can share the log without a lock.  It contains no
secrets.  An error of the log never fails the operation on the lock; there is one warning.
"""

from __future__ import annotations

import json
import os
import stat
import time

from semlock._core.append import open_to_append
from semlock._core.json_records import iso_time
from semlock._systems.task_owner import current_user
from semlock._systems.task_reclaim import priority_of
from semlock._systems.task_records import TaskInfo, without_secrets

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus

NAME = ".lock_audit.log"

_warned: set[str] = set()
_WARNED_LIMIT = 1000

# Looked up once, as a directory service may be slow.
_user: dict[int, str] = {}


class AuditLog:
    """Writes one lock object's operations to the log, in its owner's name."""

    __slots__ = ("_clock", "_mode", "owner", "_path", "on")

    def __init__(
        self, path: str, owner: str, *, on: bool, mode: int, clock: Callable[[], float]
    ) -> None:
        self.on = on
        self._path = path
        self.owner = without_secrets(owner)
        self._mode = mode
        self._clock = clock

    def taken(self, info: TaskInfo) -> None:
        """Log that the lock was taken, and from which holder."""
        metadata = info.metadata
        if "reclaimed_reason" in metadata:
            self.reclaimed(metadata["reclaimed_from"], metadata["reclaimed_reason"])
        else:
            self._note("acquire", owner=self.owner, ttl=info.ttl)

    def reclaimed(self, existing: str, reason: str, *, acquired: bool = True) -> None:
        """Log that a holder's lock was removed, and whether this owner then took it."""
        self._note(
            "reclaim",
            existingOwner=without_secrets(existing),
            newOwner=self.owner,
            reason=reason,
            priority=priority_of(reason),
            acquired=None if acquired else False,
        )

    def denied(self, found: LockStatus, reason: str) -> None:
        """Log that the lock was refused."""
        info = found.info
        theirs = without_secrets(info.owner) if isinstance(info, TaskInfo) else None
        self._note("denied", existingOwner=theirs, newOwner=self.owner, reason=reason)

    def released(self) -> None:
        """Log a release."""
        self._note("release", owner=self.owner)

    def lost(self) -> None:
        """Log that the owner has found its lock lost."""
        self._note("lost", owner=self.owner)

    def _note(self, operation: str, **details: object) -> None:
        if self.on:
            log(self._path, operation, details, mode=self._mode, clock=self._clock)


def note(path: str, operation: str, info: LockInfo | None) -> None:
    """Log an operation on a lock without its object, by its owner or another."""
    owner = without_secrets(info.owner) if isinstance(info, TaskInfo) else None
    log(path, operation, {"owner" if operation == "release" else "existingOwner": owner})


def log(
    path: str,
    operation: str,
    details: Mapping[str, object],
    *,
    mode: int = 0o600,
    clock: Callable[[], float] = time.time,
) -> None:
    """Append an operation on the lock at this path."""
    file = os.path.join(os.path.dirname(path), NAME)
    try:
        line = {
            "timestamp": iso_time(clock()),
            "operation": operation,
            "lockPath": path,
            "details": {name: value for name, value in details.items() if value is not None},
            "user": _user_name(),
            "pid": os.getpid(),
        }
        # ASCII only, so that a path or owner can't add a line break or control characters.
        _append(file, json.dumps(line).encode("ascii") + b"\n", mode)
    except (OSError, ValueError) as error:
        _warn(file, error)


def _append(file: str, line: bytes, mode: int) -> None:
    handle = open_to_append(file, mode, wary=True)
    try:
        if not stat.S_ISREG(os.fstat(handle.fd).st_mode):
            raise OSError("it is not a regular file")
        written = os.write(handle.fd, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes could be written")
    finally:
        handle.close()


def _user_name() -> str:
    number = os.getuid() if hasattr(os, "getuid") else 0
    if number not in _user:
        _user[number] = current_user(os.environ)
    return _user[number]


def _warn(file: str, error: Exception) -> None:
    if file in _warned:
        return
    if len(_warned) >= _WARNED_LIMIT:
        _warned.clear()
    _warned.add(file)
    import logging  # noqa: PLC0415 - only when something is wrong

    logging.getLogger("semlock").warning(
        "%s can't be written, so what is done with the locks beside it is not on record: %s",
        file,
        error,
    )
