"""Rewriting a task lock's old record in the enhanced form, while the lock stays held."""

from __future__ import annotations

import errno
import os
import time
from time import monotonic, sleep

from semlock._core import capi
from semlock._core import explain as _explain
from semlock._core.errors import LockRecordError
from semlock._core.identity import ALIVE
from semlock._core.json_records import iso_time
from semlock._core.options import GUARD_PATIENCE
from semlock._core.status import GUARD_PAUSE, status_by
from semlock._systems.task_audit import log
from semlock._systems.task_owner import kind_of
from semlock._systems.task_reclaim import checked_clock, explain
from semlock._systems.task_records import (
    TaskInfo,
    checked_owner,
    decode,
    to_json,
    without_secrets,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    from semlock._core.status import StrPath

    Outcome: TypeAlias = Literal[
        "migrated", "enhanced", "free", "unreadable", "alive", "unfit", "changed"
    ]

_TRIES = 100


class Migration:
    """The result of ``migrate``; true if the file was migrated.

    :outcome:  ``"migrated"``; or why the file was left alone: it is ``"enhanced"`` already,
                 ``"free"`` (nothing is there), ``"unreadable"`` (no record), ``"alive"`` (the
                 lock of a semlock process, which has other records), ``"unfit"`` (the new
                 form can't hold its values) or ``"changed"`` (at every look)
    :message:  the same in words
    :info:     what the record says now, if it is readable
    """

    __slots__ = ("info", "message", "outcome", "path")

    def __init__(
        self, path: str, outcome: Outcome, message: str, info: TaskInfo | None = None
    ) -> None:
        self.path = path
        self.outcome: Outcome = outcome
        self.message = message
        self.info = info

    def __bool__(self) -> bool:
        return self.outcome == "migrated"

    def __repr__(self) -> str:
        return f"<Migration {self.path!r}: {self.outcome}, {self.message}>"


def migrate(
    path: StrPath, *, audit: bool = True, clock: Callable[[], float] = time.time
) -> Migration:
    """Rewrite a lock file of the old form in the enhanced one, in place.

    The lock stays held by the same holder, and if it is released or taken over meanwhile,
    nothing is written.  Programs that know only the old form take a lock of the new form at
    once: migrate when no such program is left.
    """
    checked_clock(clock)
    changes = 0
    end = monotonic() + GUARD_PATIENCE
    while True:
        found = status_by(path, decode)
        info, look = found.info, found.instance
        if look is None:
            return Migration(found.path, "free", found.evidence)
        if not isinstance(info, TaskInfo):
            return Migration(found.path, "unreadable", explain(found, found.path, clock()))
        if not info.old:
            return Migration(found.path, "enhanced", "it has the enhanced form already", info)
        if found.verdict == ALIVE:
            return Migration(found.path, "alive", found.evidence, info)
        try:
            text = _enhanced(info, len(look.content), clock())
        except LockRecordError as error:
            return Migration(found.path, "unfit", str(error), info)
        outcome = capi.rewrite(os.fsencode(found.path), look, text)
        if outcome == capi.OK:
            break
        if outcome == capi.ALIVE:
            return Migration(found.path, "alive", found.evidence, info)
        if outcome == capi.GUARDED:
            if monotonic() >= end:
                raise _explain.guarded_error(found.path, "migrated", found)
            sleep(GUARD_PAUSE)
        elif outcome < 0 and outcome != -errno.EINTR:
            capi.raise_os_error(outcome, found.path)
        else:
            changes += 1
            if changes == _TRIES:
                return Migration(found.path, "changed", "it changes at every look", info)
    migrated = decode(text)
    if audit:
        owners = {"existingOwner": info.owner, "newOwner": migrated.owner}
        shown = {name: without_secrets(owner) for name, owner in owners.items()}
        log(found.path, "migrate", shown, mode=look.mode & 0o666, clock=clock)
    return Migration(found.path, "migrated", f"it was held by {info.holder}", migrated)


def _enhanced(info: TaskInfo, length: int, now: float) -> bytes:
    """Give the record in the enhanced form, padded to the length of the old one."""
    # Text that begins like an owner is kept; any other text named a process.
    known = kind_of(info.owner) != "other"
    members: dict[str, object] = {
        "owner": checked_owner(info.owner if known else f"pid-{info.owner}"),
        "since": iso_time(info.timestamp or 0.0),
        "ttl": info.ttl,
        "metadata": {
            "environment": "local",
            "purpose": "interactive",
            "migrated": True,
            "migrated_at": iso_time(now),
        },
    }
    # Blanks after JSON are ignored, and a file that never gets shorter can't be cut by a kill.
    text = to_json(members).ljust(length)
    if len(text) > capi.REWRITE_LIMIT:
        raise LockRecordError(
            f"the record would have {len(text)} bytes, more than the {capi.REWRITE_LIMIT} "
            "that can be rewritten in one step"
        )
    return text
