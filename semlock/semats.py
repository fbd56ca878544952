"""semats: the text format of the TypeScript tool, with its stricter paths and softer parsing.

A lock is stale when its holder is gone *and* it is older than ``stale_timeout``.  Where the
tool itself looks and then renames over what it saw, this follows its meaning and not its
way: a lock that appears in between is never overwritten.
"""

from __future__ import annotations

import errno
import os
import re
from time import time

from semlock import _dialects, _native, policy, retry
from semlock._cleaning import Removed, clean_matching
from semlock._errors import LockPathError, LockRecordError, NotHeldError
from semlock._lock import TextLock
from semlock._policy import GRACE, reason_to_remove
from semlock._records import LockInfo, decode_fields, parse_integer
from semlock._status import remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._engine import Durability
    from semlock._errors import LockLostError
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath
    from semlock._waiting import Schedule

__all__ = ["STALE_TIMEOUT", "Semaphore", "clean_stale", "decode", "stale", "status"]

STALE_TIMEOUT = 3600.0
RETRY_INTERVAL = 0.1
MAX_TAG_LENGTH = 10_000

# The tool's own temporary files: <path>.<pid>.<16 hexadecimal digits>.tmp
_TEMPORARY = re.compile(r"(?P<name>.+)\.(?P<pid>[0-9]{1,10})\.[0-9a-f]{16}\.tmp\Z", re.DOTALL)


def decode(content: bytes) -> LockInfo:
    """Read a record by semats' rules: white space around key and value doesn't count."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LockRecordError(f"the record is not UTF-8: {error}") from None
    if "\0" in text:
        raise LockRecordError("the record contains NUL, so it is no text")
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            fields[key.strip()] = value.strip()
    return decode_fields(fields)


def stale(stale_timeout: float | None = STALE_TIMEOUT) -> Policy:
    """Give semats' rule: gone and old; ``None`` or 0 switches it off."""
    return policy.ProofOfDeath() | (policy.Gone() & policy.Age(stale_timeout))


def resolve(path: StrPath) -> str:
    """Apply semats' path rule: no ``..``, no NUL, links followed, dangling ones too."""
    text = os.fsdecode(path)
    if "\0" in text:
        raise LockPathError(
            f"a lock's path can't contain NUL: {text!r}", path=text, code=errno.EINVAL
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


class Semaphore(TextLock):
    """A lock by semats' protocol.

    :stale_timeout:   seconds after which the lock of a process that is gone is stale; 0 or
                        ``None``: never by age
    :retry_interval:  seconds between two tries of a wait
    :timeout:         seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :max_tag_length:  characters of a tag; the rest is cut off

    The other options are those of ``semlock.Lock``.
    """

    __slots__ = ()

    def __init__(
        self,
        path: StrPath,
        *,
        stale_timeout: float | None = STALE_TIMEOUT,
        retry_interval: float = RETRY_INTERVAL,
        timeout: float | None = None,
        max_tag_length: int = MAX_TAG_LENGTH,
        tag: str | None = None,
        policy: Policy | None = None,
        retry: Schedule | None = None,
        durability: Durability = "full",
        mode: int = 0o600,
        reentrant: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[Semaphore, LockLostError], object] | None = None,
    ) -> None:
        if max_tag_length < 0:
            raise ValueError(f"max_tag_length is a number from 0 on, not {max_tag_length!r}")
        super().__init__(
            resolve(path),
            tag=None if tag is None else tag[:max_tag_length].strip(),
            timeout=timeout,
            policy=policy or stale(stale_timeout),
            retry=retry or _every(retry_interval),
            durability=durability,
            mode=mode,
            reentrant=reentrant,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def release(self, *, force: bool = False) -> None:
        """Let go of the lock; with ``force``, of whoever's it is.

        Without force it is the lock of this object or, as the protocol has it, one whose
        record names this process: a lock that was taken by other means than this object.
        """
        if self.held:
            super().release()
            return
        found = self.status()
        if found.state == "free":
            raise NotHeldError(f"{self.path} is not locked", path=self.path, status=found)
        if not force and not self._names_this_process(found):
            raise NotHeldError(
                f"{self.path} is not held by this process but by {found.holder}. "
                "release(force=True) removes it anyway",
                path=self.path,
                status=found,
            )
        remove_exactly(found, self._encoded, robs=True)

    def _names_this_process(self, found: LockStatus) -> bool:
        # A record with a token was written by a lock object, and is released by that one.
        info = found.info
        return info is not None and info.token is None and info.pid == os.getpid()

    def clean_stale(self) -> list[Removed]:
        """Remove this lock if it is stale, and orphaned temporary files of it."""
        directory, name = os.path.split(self.path)
        return clean_matching(
            directory,
            lambda file: file == name or _temporary_of(file, name),
            decode,
            lambda found: reason_to_remove(found, self._policy) or _orphan(found),
        )


_every = retry.Every


def _temporary_of(file: str, name: str) -> bool:
    match = _TEMPORARY.match(file)
    return match is not None and match["name"] == name


def _orphan(found: LockStatus) -> str | None:
    """Judge a temporary file: an orphan if the process in its name is gone, and it is quiet.

    A live peer is between writing and renaming for microseconds, so a file that was touched
    just now is left alone even if its process is gone: it may be in another container.
    """
    match = _TEMPORARY.match(os.path.basename(found.path))
    if match is None or found.unchanged_for(time()) < GRACE:
        return None
    pid = parse_integer(match["pid"], 2**31 - 1)
    if pid is None or pid < 1 or _native.probe(pid, 0) not in (_native.GONE, _native.ZOMBIE):
        return None
    return f"process {pid}, whose temporary file it is, does not exist here"


def clean_stale(
    directory: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT
) -> list[Removed]:
    """Remove stale locks and orphaned temporary files in a directory, never a live peer's."""
    rule = stale(stale_timeout)
    return clean_matching(
        os.fspath(directory),
        lambda _: True,
        decode,
        lambda found: reason_to_remove(found, rule) or _orphan(found),
    )


def status(path: StrPath, *, stale_timeout: float | None = STALE_TIMEOUT) -> LockStatus:
    """Say who holds the lock at this path by semats' rules."""
    return _dialects.status(resolve(path), decode, stale(stale_timeout))
