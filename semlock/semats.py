"""semats: the text format of the TypeScript tool, with its stricter paths and softer parsing.

A lock is stale when its holder is gone *and* it is older than ``stale_timeout``.  The
tool looks and then renames its record over the stale one.  semlock removes exactly the stale
file, so a lock that appears between these steps is never overwritten.
"""

from __future__ import annotations

import errno
import os
import re
from time import time

from semlock import policy, retry
from semlock._core import capi
from semlock._core.cleaning import Removed, leftovers, remove_all
from semlock._core.errors import (
    LockHeldError,
    LockLostError,
    LockLostWarning,
    LockPathError,
    LockRecordError,
    NotHeldError,
)
from semlock._core.options import DEFAULTS, or_else
from semlock._core.records import (
    LockInfo,
    clean_tag,
    forget_first,
    info_of,
    parse_integer,
    restamp_text,
    text_of,
)
from semlock._core.status import remove_exactly
from semlock._core.verdicts import GRACE
from semlock._locks.lock import TextLock
from semlock._systems import claims
from semlock.systems import System, for_tasks, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy

__all__ = [
    "STALE_TIMEOUT", "AsyncSemaphore", "Semaphore", "clean_stale", "decode", "stale", "status",
]  # fmt: skip

STALE_TIMEOUT = 3600.0
RETRY_INTERVAL = 0.1
REFRESH_INTERVAL = 600.0  # of a lock that the command holds: several times in an hour
MAX_TAG_LENGTH = 10_000
_TRIES = 100


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}\Z", re.ASCII)
_BYTE_ORDER_MARK = "\ufeff"


def decode(content: bytes) -> LockInfo:
    """Read a record by semats' rules: white space around key and value doesn't count.

    ``pid`` and ``timestamp`` are any integers.  A number below 1 is no process's, so ``pid``
    is ``None`` then; one that is too large for this system stays, and proves nothing.
    """
    text = text_of(content)
    if "\0" in text:
        raise LockRecordError("the record contains NUL, so it is no text")
    fields: dict[str, str] = {}
    # A byte order mark is white space to the tool, so it doesn't count in front of a key either.
    for line in text.removeprefix(_BYTE_ORDER_MARK).split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            key = key.strip()
            if key == "pid" and key in fields:
                forget_first(fields)
            fields[key] = value.strip()
    pid, timestamp = _integer(fields, "pid"), _integer(fields, "timestamp")
    return info_of(fields, pid if pid > 0 else None, timestamp)


def _integer(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not _INTEGER.match(text):
        raise LockRecordError(f"the record has no usable {name}: {fields.get(name)!r:.60}")
    return int(text)


def stale(stale_timeout: float | None = STALE_TIMEOUT) -> Policy:
    """Give semats' rule: gone and old; ``None`` or 0 switches it off."""
    return policy.ProofOfDeath() | (policy.Gone() & policy.Age(stale_timeout))


def resolve(path: StrPath) -> str:
    """Apply semats' path rule: no ``..``, no NUL, links followed, dangling ones too."""
    text = os.fsdecode(path)
    if not text.strip() or "\0" in text:
        raise LockPathError(
            f"a lock's path can't be blank or contain NUL: {text!r}",
            path=text,
            code=errno.EINVAL,
        )
    if ".." in text:
        raise LockPathError(
            f"{text} contains '..', which this lock system refuses: name the directory itself",
            path=text,
            code=errno.EINVAL,
        )
    if os.path.islink(text):
        resolved = os.path.realpath(text)
        if os.path.islink(resolved):
            raise LockPathError(
                f"{text} is a symbolic link that leads to itself", path=text, code=errno.ELOOP
            )
        return resolved
    return text


_DEFAULTS: LockOptions = {**DEFAULTS, "mode": 0o600}


class Semaphore(TextLock):
    """A lock by semats' protocol.

    :stale_timeout:   seconds after which the lock of a process that is gone is stale; 0 or
                        ``None``: never by age.  A fraction of a second is rounded up
    :retry_interval:  seconds between two tries of a wait
    :timeout:         seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :max_tag_length:  characters of a tag; the rest is cut off

    The other options are those of ``semlock.Lock``.
    """

    __slots__ = ()
    _strict = True
    _defaults = _DEFAULTS

    def __init__(
        self,
        path: StrPath,
        *,
        stale_timeout: float | None = STALE_TIMEOUT,
        retry_interval: float = RETRY_INTERVAL,
        max_tag_length: int = MAX_TAG_LENGTH,
        **options: Unpack[LockOptions],
    ) -> None:
        whole = isinstance(max_tag_length, int) and not isinstance(max_tag_length, bool)
        if not whole or max_tag_length < 0:
            raise ValueError(
                f"max_tag_length is a whole number from 0 on, not {max_tag_length!r:.60}"
            )
        tag = options.get("tag")
        options["tag"] = None if tag is None else clean_tag(tag)[:max_tag_length].strip()
        or_else(options, policy=stale(stale_timeout), retry=retry.Every(retry_interval))
        super().__init__(resolve(path), **options)

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def release(self, *, force: bool = False) -> None:
        """Release the lock; with ``force``, remove it also if another process holds it.

        Without force it is the lock of this object or, as the protocol has it, one whose
        record names this process: a lock that was taken by other means than this object.
        With force a lock that was lost goes too, and the loss is a ``LockLostWarning``.
        """
        if force not in (True, False):
            raise TypeError(f"force is True or False, not {force!r:.60}")
        if self.held:
            try:
                super().release()
            except (LockLostError, NotHeldError) as error:
                if not force:
                    raise
                if isinstance(error, LockLostError):
                    from warnings import warn  # noqa: PLC0415 - hardly ever needed

                    warn(str(error), LockLostWarning, stacklevel=2)
                if error.status is not None and error.status.state == "free":
                    return
            else:
                return
        for _ in range(_TRIES):
            found = self.status()
            if found.state == "free":
                raise NotHeldError(f"{self.path} is not locked", path=self.path, status=found)
            if not force and not self._names_this_process(found):
                raise NotHeldError(
                    f"{self.path} is not held by this lock object but by {found.holder}. "
                    "release(force=True) removes it anyway",
                    path=self.path,
                    status=found,
                )
            if remove_exactly(found, self._encoded, robs=True):
                return
        raise LockHeldError(
            f"{self.path} changes hands at every look, so it was not removed: it is held by "
            f"{found.holder}",
            path=self.path,
            status=found,
        )

    def _names_this_process(self, found: LockStatus) -> bool:
        # A record with a token was written by a lock object, and is released by that one.
        info = found.info
        return info is not None and info.token is None and info.pid == os.getpid()

    def clean_stale(self) -> list[Removed]:
        """Remove this lock if it is stale, and orphaned temporary files of it."""
        try:
            return remove_all(leftovers(self.path, claims.sema, self._policy, orphan))
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(self.path)):
                raise
            return []  # the lock is free, and nothing is beside it


def orphan(found: LockStatus) -> str | None:
    """Judge a temporary file: an orphan if the process in its name is gone, and it is quiet.

    A live peer is between writing and renaming for microseconds, so a file that was touched
    just now is left alone even if its process is gone: it may be in another container.
    """
    if found.unchanged_for(time()) < GRACE:
        return None
    pid = parse_integer(found.path.split(".")[-3], 2**31 - 1)
    if pid is None or pid < 1 or capi.probe(pid, 0) not in (capi.GONE, capi.ZOMBIE):
        return None
    return f"process {pid}, whose temporary file it is, does not exist here"


def clean_stale(
    directory: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT
) -> list[Removed]:
    """Remove stale locks and orphaned temporary files in a directory, never a live peer's."""
    return remove_all(leftovers(directory, claims.sema, stale(stale_timeout), orphan))


def status(path: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT) -> LockStatus:
    """Say who holds the lock at this path by semats' rules."""
    return SYSTEM.status(path, stale(stale_timeout))


def _lock_at(
    path: StrPath,
    *,
    stale: float | None = STALE_TIMEOUT,
    kind: type[Semaphore] = Semaphore,
    **options: Any,
) -> Semaphore:
    return kind(path, stale_timeout=stale, **options)


SYSTEM = System(
    "semats",
    decode=decode,
    stale=stale,
    resolve=resolve,
    recognises=lambda _: False,  # its records are those of sema
    claims=claims.sema,
    restamp=restamp_text,
    orphan=orphan,
    refresh=lambda _: REFRESH_INTERVAL,
    lock=_lock_at,
    options=("stale",),
    async_lock=later("semlock._systems.async_forms", "semats_at"),
)

if TYPE_CHECKING:
    from semlock._systems.async_forms import SematsAsyncSemaphore as AsyncSemaphore
else:
    __getattr__ = for_tasks(__name__, AsyncSemaphore="SematsAsyncSemaphore")
