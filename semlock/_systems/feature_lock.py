"""The feature lock: its record, its rule when a lock is stale, and its class."""

from __future__ import annotations

import os
import re
import time

from semlock import policy
from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._core.options import or_else
from semlock._core.records import LockInfo, text_of
from semlock._core.verdicts import GRACE
from semlock._locks.lock import FileLock

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from semlock._core import capi
    from semlock._core.identity import Process
    from semlock._core.options import LockOptions
    from semlock._core.status import StrPath
    from semlock._core.verdicts import Policy

GSD_DIR = ".gsd"

STALE_SECONDS = 7200.0
MAX_PID = 4_194_304  # the largest that Linux can be configured for
_MAX_AHEAD = 86_400.0

# \Z and not $, which would let a final newline through.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*\Z")
_NAME_RULE = (
    "it begins with a letter or digit, and goes on with those, '.', '-' and '_', without '..'"
)


def validate(feature: str) -> str:
    """Check the name of a feature."""
    if not isinstance(feature, str) or ".." in feature or not _NAME.match(feature):
        error = ValueError(f"Invalid feature name: {feature!r}")  # the specification's words
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(_NAME_RULE)
        raise error
    return feature


def path_of(feature: str, gsd_dir: StrPath) -> str:
    """Give the path of a feature's lock file."""
    return os.path.join(os.fsdecode(gsd_dir), "specs", validate(feature), ".lock")


def decode(content: bytes) -> LockInfo:
    """Read ``pid:timestamp`` within its bounds; ``LockRecordError`` if it is anything else.

    The numbers are what Python's ``int`` and ``float`` accept, as in the original, so that each
    lock that the original respects is a record here too.
    """
    text = text_of(content).strip()
    first, _, second = text.partition(":")
    try:
        pid, timestamp = int(first), float(second)  # an empty text is no number
    except ValueError:
        raise LockRecordError(f"the record is not pid:timestamp: {text!r:.60}") from None
    if not 1 <= pid <= MAX_PID:
        raise LockRecordError(f"the record's pid is not between 1 and {MAX_PID}: {first!r:.60}")
    if not 0 < timestamp <= time.time() + _MAX_AHEAD:  # which "nan" is not either
        raise LockRecordError(
            f"the record's timestamp is not above 0 and at most a day ahead: {timestamp}"
        )
    # A stamp without a fraction counts whole seconds, and is compared with such.
    return LockInfo(pid=pid, timestamp=int(timestamp) if timestamp.is_integer() else timestamp)


def stale(stale_seconds: float | None = STALE_SECONDS) -> Policy:
    """Give the rule: older than two hours, or no record and unchanged for the grace time."""
    return policy.Age(stale_seconds) | policy.Unreadable(GRACE)


_REFUSED = {"tag": "its record, pid:timestamp, has no place for one"}


class FeatureLock(FileLock):
    """The lock of one feature, with the methods of ``semlock.Lock``.

    The directory is made where it is missing.  The record has no room for a token, so a
    process that is killed leaves its lock until it is two hours old.
    """

    __slots__ = ("feature",)
    _each_time = True
    _strict = True
    _refused_options = _REFUSED

    def __init__(
        self,
        feature: str,
        gsd_dir: StrPath = GSD_DIR,
        *,
        stale_seconds: float | None = STALE_SECONDS,
        **options: Unpack[LockOptions],
    ) -> None:
        self.feature = feature
        or_else(options, policy=stale(stale_seconds))
        super().__init__(path_of(feature, gsd_dir), **options)

    def _compose(self, owner: Process | None) -> capi.Record:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        process = owner or this_process()
        if process.pid > MAX_PID:
            raise LockRecordError(f"process {process.pid} has no place in a feature lock")
        return self._record_with(_record_of(process.pid, time.time()))

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def _restamped(self, before: bytes) -> bytes:
        return _record_of(int(before.partition(b":")[0]), time.time())


def _record_of(pid: int, now: float) -> bytes:
    # Seven decimals, the precision of a present-day float; the fixed length lets a refresh
    # write in place.
    return f"{pid}:{max(0.0, now):018.7f}".encode("ascii")
