"""Looking at locks, and removing exactly what was looked at."""

from __future__ import annotations

import errno
import os
from time import monotonic, sleep, time

from semlock._core import capi, events, explain, inside
from semlock._core.errors import LockHeldError, LockPathError, LockRecordError
from semlock._core.identity import DEAD, NOT_NAMED, UNKNOWN
from semlock._core.options import GUARD_PATIENCE
from semlock._core.paths import absolute
from semlock._core.records import decode_text, printable
from semlock._core.verdicts import reason_to_remove

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    from semlock._core.identity import Verdict
    from semlock._core.records import LockInfo
    from semlock._core.verdicts import Policy

    StrPath: TypeAlias = str | os.PathLike[str]
    State: TypeAlias = Literal["free", "held", "stale", "unreadable"]

GUARD_PAUSE = 0.001
_TRIES = 100


class LockStatus:
    """What was found at a lock's path.

    :state:     ``"free"``, ``"held"``, ``"stale"`` (the policy permits to take it: by
                  default, its holder is known to be dead; ``"held"`` all the same if this
                  user may not remove it, as another's in ``/tmp``) or ``"unreadable"`` (a
                  file that is no record, or may not be read; it counts as held)
    :info:      what the record says, or ``None``
    :verdict:   ``"alive"``, ``"dead"`` or ``"unknown"``; ``None`` when free
    :evidence:  how that is known, in words
    :reason:    why it may be taken, when it is stale
    :age:       seconds since it was won or refreshed; ``None`` when free
    """

    __module__ = "semlock"  # as users write it
    __slots__ = (
        "instance", "_barred", "age", "changed_at", "evidence", "info", "is_foreign", "path",
        "reason", "state", "unfinished", "verdict",
    )  # fmt: skip

    path: str
    state: State
    info: LockInfo | None
    verdict: Verdict | None
    evidence: str
    age: float | None
    unfinished: bool
    changed_at: float
    reason: str | None
    instance: capi.Instance | None

    def __init__(
        self,
        path: str,
        look: capi.Instance | None,
        info: LockInfo | None,
        policy: Policy | None = None,
        *,
        is_foreign: bool = False,
    ) -> None:
        self.path = path
        # Whether it was looked at by the rules of another lock system.
        self.is_foreign = is_foreign
        self.info = info
        self.instance = look
        self.verdict = None
        self.evidence = "nothing is at the path"
        self.age = None
        self.unfinished = False
        self.changed_at = 0.0
        self.state = "free"
        self.reason = None
        # The reason and the user who may remove the file, if this user may not.
        self._barred: tuple[str, str] | None = None
        if look is None:
            return
        self.unfinished = look.unfinished and is_unfinished(look)
        self.changed_at = look.ctime_ns / 1e9
        self.verdict, self.evidence = look.evidence(self.info)
        if look.error:
            self.evidence = f"it can't be read: {capi.os_error(look.error, self.path).strerror}"
        elif self.unfinished and self.verdict == UNKNOWN:
            self.evidence = "a process has begun to create it and has not finished"
        since = None if self.info is None else self.info.timestamp
        self.age = max(0.0, time() - (look.written_at if since is None else since))
        self.state = "unreadable" if self.info is None else "held"
        self.reason = reason_to_remove(self, policy)
        if self.reason is None:
            return
        keeper = look.keeper(self.path)
        if keeper is None:
            self.state = "stale"
        else:
            self._barred = self.reason, keeper
            self.reason = None
            self.evidence += f"; in this sticky directory only {keeper} may remove it"

    def unchanged_for(self, now: float) -> float:
        """Say for how many seconds nothing about the file has changed.

        A change in the future was made before the clock was set back: long ago.
        """
        return abs(now - self.changed_at)

    @property
    def is_by_kernel(self) -> bool:
        """Whether this is about the kernel's lock on the file, and not about a record in it."""
        return False

    @property
    def written_at(self) -> float | None:
        """When the file was last written to, in seconds since 1970; ``None`` when free."""
        return None if self.instance is None else self.instance.written_at

    @property
    def content(self) -> bytes | None:
        """The file's bytes; ``None`` when free, or after pickling."""
        return None if self.instance is None else self.instance.content

    @property
    def is_empty(self) -> bool:
        """Whether the file has no content, as flock and programs that use it leave it."""
        look = self.instance
        return look is not None and not look.error and not look.content and not self.unfinished

    @property
    def holder(self) -> str:
        """Describe the holder in a few words, for messages."""
        if self.state == "free":
            return "no process"
        if self.info is None:
            if self.instance is not None and self.instance.boot_mark:
                return f"a process that used semlock; {self.verdict}: {self.evidence}"
            if self.is_empty and self.is_foreign:
                return (
                    "a program that has not written its record yet, or was killed before it did"
                )
            if self.is_empty:
                return (
                    "an unknown program: the file is empty, probably left by flock or filelock"
                )
            info, name = explain.of_another_system(self)
            if info is None:
                more = "" if self.evidence == NOT_NAMED else f" ({self.evidence})"
                return f"an unknown program, whose file is no readable record{more}"
        else:
            info, name = self.info, ""
        words = info.holder
        if info.host:
            words += f" on {printable(info.host)}"
        if info.tag:
            words += f" ({printable(info.tag)})"
        if self.age is not None:
            words += f" since {_duration(self.age)}"
        evidence = self.evidence
        if name:
            words += f", by a lock of {name}"
            if self.verdict == UNKNOWN:
                evidence = "its record is another system's"
        return f"{words}; {self.verdict}: {evidence}"

    def __reduce__(self) -> tuple[object, ...]:
        # The instance holds C memory, so it is not pickled, and with it goes the right to
        # remove exactly that file.
        state = {name: getattr(self, name) for name in self.__slots__ if name != "instance"}
        return _revive, (state,)

    def __repr__(self) -> str:
        return f"<LockStatus {self.path!r}: {self.state}, {self.holder}>"


def _revive(state: dict[str, object]) -> LockStatus:
    status = LockStatus.__new__(LockStatus)
    status.instance = None
    for name, value in state.items():
        setattr(status, name, value)
    return status


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


_KINDS = {
    capi.SYMLINK: ("a symbolic link", errno.ELOOP),
    capi.DIRECTORY: ("a directory", errno.EISDIR),
}


def is_unfinished(look: capi.Instance) -> bool:
    """Tell whether a killed creator left this file, empty or with the beginning of a record."""
    if not look.unfinished or look.error:
        return False
    from semlock._core.forms import is_begun  # noqa: PLC0415 - seldom

    return is_begun(look.content)


def look_at(
    path: str,
    encoded: bytes,
    decode: Callable[[bytes], LockInfo],
    policy: Policy | None = None,
    *,
    is_foreign: bool = False,
) -> LockStatus:
    """Look at an absolute path; ``LockPathError`` if what is there can't be a lock."""
    for _ in range(_TRIES):
        seen = capi.look(encoded)
        if seen is None:
            return LockStatus(path, None, None)
        if seen.kind != capi.REGULAR:
            kind, code = _KINDS.get(seen.kind, ("not a regular file", errno.EINVAL))
            raise LockPathError(
                f"{path} is {kind}, which can't be a lock; it is left alone",
                path=path,
                code=code,
            )
        info = None
        if not seen.error and not (seen.unfinished and is_unfinished(seen)):
            try:
                info = decode(seen.content)
            except LockRecordError:
                info = None
        found = LockStatus(path, seen, info, policy, is_foreign=is_foreign)
        # A process may release and then end while it is looked at: then the path is checked again.
        if found.verdict != DEAD or capi.confirm(encoded, seen):
            break
    return found


def status_by(
    path: StrPath,
    decode: Callable[[bytes], LockInfo],
    policy: Policy | None = None,
    *,
    is_foreign: bool = False,
) -> LockStatus:
    """Say who holds the lock at this path, by the rules of one lock system."""
    text = absolute(path)
    return look_at(text, os.fsencode(text), decode, policy, is_foreign=is_foreign)


def status(path: StrPath) -> LockStatus:
    """Say who holds the lock at this path, and whether the holder lives."""
    return status_by(path, decode_text)


def remove_exactly(
    found: LockStatus, encoded: bytes, *, robs: bool, patience: float | None = None
) -> bool:
    """Remove the instance that was looked at, and no other; ``False`` if it is not there.

    ``robs`` permits to take it from a live holder.  If another process has the guard for too
    long: ``LockTimeoutError``.
    """
    if found.instance is None:
        return False
    end = monotonic() + (GUARD_PATIENCE if patience is None else patience)
    while True:
        outcome = capi.remove(encoded, found.instance, despite_witness=robs)
        if outcome == capi.OK:
            if (sink := events.sink) is not None:
                sink.removed(found, robs=robs)
            return True
        if outcome == capi.GUARDED:
            if monotonic() >= end:
                raise explain.guarded_error(found.path, "removed", found)
            sleep(GUARD_PAUSE)
        elif outcome in (-errno.EPERM, -errno.EACCES):
            raise explain.forbidden_error(found, -outcome)
        elif outcome < 0 and outcome != -errno.EINTR:
            capi.raise_os_error(outcome, found.path)
        elif outcome >= 0:
            return False  # it is not the instance that was judged, or its holder is alive


# NFS clients and FUSE filesystems rename a removed file that is still open.  It goes away when
# it is closed, and can't be removed before.
_REMOVED_BUT_OPEN = (".nfs", ".fuse_hidden")


def was_removed(name: str) -> bool:
    """Tell from its name that a file was removed and is only still open."""
    return name.startswith(_REMOVED_BUT_OPEN)


def remove(
    path: StrPath,
    *,
    only_if: LockStatus | str | Callable[[LockStatus], object] | None = None,
    force: bool = False,
) -> LockStatus | None:
    """Remove a lock file: exactly the instance that was judged, or nothing.

    A dead holder's lock is removed; any other is refused with ``LockHeldError``, unless
    ``force`` is true.  ``only_if`` narrows it to one instance (a ``LockStatus`` that you
    looked at, or a token) or to what a function of the status accepts.  Returns the status
    with the verdict that allowed it, or ``None`` if there was nothing to remove.
    """
    text = absolute(path)
    encoded = os.fsencode(text)
    for _ in range(_TRIES):
        found = look_at(text, encoded, decode_text)
        if found.state == "free":
            return None
        if not _matches(found, only_if):
            raise LockHeldError(
                f"{text} is not the lock that was meant: it is held by {found.holder}",
                path=text,
                status=found,
            )
        if not force and found.reason is None and inside.barred(found) is None:
            raise LockHeldError(
                f"{text} is held by {found.holder}. {explain.way_to_free(found)}",
                path=text,
                status=found,
            )
        if remove_exactly(found, encoded, robs=force):
            return found
    raise LockHeldError(
        f"{text} changes hands at every look, so it was not removed: it is held by {found.holder}",
        path=text,
        status=found,
    )


def _matches(
    found: LockStatus, only_if: LockStatus | str | Callable[[LockStatus], object] | None
) -> bool:
    if only_if is None:
        return True
    if isinstance(only_if, str):
        return found.info is not None and found.info.token == only_if
    if isinstance(only_if, LockStatus):
        seen, meant = found.instance, only_if.instance
        if seen is None or meant is None:
            return found.info == only_if.info
        # Without the device number, which another mount may change.
        return (seen.key[1:], seen.content) == (meant.key[1:], meant.content)
    return bool(only_if(found))
