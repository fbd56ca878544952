"""The feature lock: ``pid:timestamp`` in ``<gsd_dir>/specs/<feature>/.lock``, two hours long.

It is stale by age alone.  A file that is no record counts as removable, but only when it has
not changed for the grace time, so that a lock which another program is just writing is not
stolen; the functions wait for that time, two seconds at most, rather than give up on it.
"""

from __future__ import annotations

import math
import os
import re
import time

from semlock import _dialects, _native, _process, policy
from semlock._engine import BaseLock
from semlock._errors import LockLostError, LockPathError, LockRecordError, NotHeldError
from semlock._identity import this_process
from semlock._policy import GRACE
from semlock._records import LockInfo
from semlock._status import remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._engine import Durability
    from semlock._identity import Process
    from semlock._policy import Policy
    from semlock._status import LockStatus, StrPath
    from semlock._waiting import Schedule

__all__ = [
    "STALE_SECONDS",
    "FeatureLock",
    "acquire_feature_lock",
    "check_feature_lock",
    "decode",
    "detect_feature",
    "release_feature_lock",
    "stale",
    "status",
]

GSD_DIR = ".gsd"
STATE_DIR = ".mahabharatha/state"
ENVIRONMENT_VARIABLE = "MAHABHARATHA_FEATURE"

STALE_SECONDS = 7200.0
MAX_PID = 4_194_304  # the largest that Linux can be told to give
_MAX_AHEAD = 86_400.0

# \Z and not $, which would let a final newline through.
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*\Z")
# What Python's own int() and float() read besides, "+5", "1_000" and other scripts' digits,
# no writer of this format has ever written.
_RECORD = re.compile(r"(?P<pid>[0-9]{1,10}):(?P<time>[0-9]{1,15}(\.[0-9]{0,20})?)\Z", re.ASCII)


def _validate(feature: str) -> str:
    if not isinstance(feature, str) or ".." in feature or not _NAME.match(feature):
        raise ValueError(
            f"{feature!r} is no feature name: it begins with a letter or digit, and goes on with "
            "those, '.', '-' and '_', without '..'"
        )
    return feature


def decode(content: bytes) -> LockInfo:
    """Read ``pid:timestamp`` within its bounds; ``LockRecordError`` if it is anything else."""
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise LockRecordError(f"the record is not UTF-8: {error}") from None
    match = _RECORD.match(text)
    if match is None:
        raise LockRecordError(f"the record is not pid:timestamp: {text!r:.60}")
    pid, timestamp = int(match["pid"]), float(match["time"])
    if not 1 <= pid <= MAX_PID:
        raise LockRecordError(f"the record's pid is not between 1 and {MAX_PID}: {pid}")
    if not 0 < timestamp <= time.time() + _MAX_AHEAD or not math.isfinite(timestamp):
        raise LockRecordError(f"the record's timestamp is more than a day ahead: {timestamp}")
    return LockInfo(pid=pid, timestamp=timestamp)


def stale(stale_seconds: float | None = STALE_SECONDS) -> Policy:
    """Give the rule: older than two hours, or no record and left alone for the grace time."""
    return policy.Age(stale_seconds) | policy.Unreadable(GRACE)


class FeatureLock(BaseLock):
    """The lock of one feature, with the words of ``semlock.Lock``.

    The directory is made where it is missing.  The record has no room for a token, so a
    process that is killed leaves its lock until it is two hours old.
    """

    __slots__ = ("feature",)
    _each_time = True

    def __init__(
        self,
        feature: str,
        gsd_dir: StrPath = GSD_DIR,
        *,
        stale_seconds: float | None = STALE_SECONDS,
        timeout: float | None = None,
        policy: Policy | None = None,
        retry: Schedule | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        reentrant: bool = False,
        heartbeat: float | None = None,
        on_lost: Callable[[FeatureLock, LockLostError], object] | None = None,
    ) -> None:
        self.feature = _validate(feature)
        super().__init__(
            os.path.join(os.fspath(gsd_dir), "specs", feature, ".lock"),
            timeout=timeout,
            policy=policy or stale(stale_seconds),
            retry=retry,
            durability=durability,
            mode=mode,
            reentrant=reentrant,
            heartbeat=heartbeat,
            on_lost=on_lost,
        )

    def _compose(self, owner: Process | None) -> _native.Record:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        process = owner or this_process()
        if process.pid > MAX_PID:
            raise LockRecordError(f"process {process.pid} has no place in a feature lock")
        return _native.Record(
            # Seven places, as many as a float of today has, so that a refresh keeps the length.
            f"{process.pid}:{time.time():.7f}".encode("ascii"),
            stamp_at=-1,
            token_at=-1,
            witness_at=-1,
            mode=self._mode,
            durability=_native.DURABILITY[self._durability],
            detached=owner is not None,
        )

    def _decode(self, content: bytes) -> LockInfo:
        return decode(content)

    def _text(self, record: _native.Record, stamp: int) -> bytes:
        pid, _, won = record.text.partition(b":")
        if int(won.partition(b".")[0]) == stamp:
            return record.text  # the time of winning, to its last digit
        return b"%s:%d.0000000" % (pid, stamp)


# The locks that the functions below hold in this process, by their paths.
_held: dict[str, FeatureLock] = {}
_process.on_fork(_held.clear)


def acquire_feature_lock(feature: str, gsd_dir: StrPath = GSD_DIR) -> bool:
    """Take the lock of a feature; ``False`` if another session has it.

    It is held until ``release_feature_lock``, or until the process ends.
    """
    lock = FeatureLock(feature, gsd_dir)
    try:
        taken = lock.try_acquire()
        if not taken and _wait_until_it_is_written(lock.status()):
            lock._native.look_at = 0  # judge it again now, not when another look is due
            taken = lock.try_acquire()
    except LockPathError:
        return False  # a directory or a link stands there, which this system takes for a lock
    if taken:
        _held[lock.path] = lock
    return taken


def release_feature_lock(feature: str, gsd_dir: StrPath = GSD_DIR) -> None:
    """Let go of the lock of a feature, if it is this process's, or is no readable record."""
    lock = FeatureLock(feature, gsd_dir)
    mine = _held.pop(lock.path, None)
    if mine is not None:
        try:
            mine.release()
        except (LockLostError, NotHeldError):
            pass  # somebody found it stale; what is there now is not ours
        else:
            return
    try:
        found = lock.status()
        if _wait_until_it_is_written(found):
            found = lock.status()
        corrupt = found.info is None and found.reason is not None
        if corrupt or (found.info is not None and found.info.pid == os.getpid()):
            remove_exactly(found, lock._encoded, robs=not corrupt)
    except OSError:
        return  # what can't be read or removed is not ours to complain about


def check_feature_lock(
    feature: str, gsd_dir: StrPath = GSD_DIR
) -> dict[str, float | int] | None:
    """Say who has the lock of a feature; ``None`` if nobody has, or it is stale or corrupt."""
    try:
        found = FeatureLock(feature, gsd_dir).status()
    except OSError:
        return None
    info = found.info
    if info is None or info.pid is None or info.timestamp is None or found.state == "stale":
        return None
    return {
        "pid": info.pid,
        "timestamp": info.timestamp,
        "age_seconds": time.time() - info.timestamp,
    }


def _wait_until_it_is_written(found: LockStatus) -> bool:
    """Wait for the rest of the grace time if the file is no record (yet).

    ``True`` if it is worth another look.  Only a file that was written to a moment ago makes
    anybody wait.
    """
    if found.state == "free" or found.verdict == "alive" or found.reason is not None:
        return found.state == "free"
    young = found.unchanged_for(time.time()) < GRACE
    cut = found.info is None or policy.may_be_cut(found)
    if not young or not cut:
        return False
    time.sleep(max(0.0, GRACE - found.unchanged_for(time.time())) + 0.01)
    return True


def detect_feature(gsd_dir: StrPath = GSD_DIR, state_dir: StrPath = STATE_DIR) -> str | None:
    """Find out which feature is being worked on.

    The environment variable ``MAHABHARATHA_FEATURE`` comes first, then the file
    ``.current-feature``, then the newest state file; what can't be read is passed over.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if named:
        return named
    try:
        with open(os.path.join(gsd_dir, ".current-feature"), encoding="utf-8") as file:
            named = file.read().strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    return named or _newest_state(state_dir)


def _newest_state(state_dir: StrPath) -> str | None:
    newest: tuple[float, str] | None = None
    try:
        with os.scandir(state_dir) as entries:
            for entry in entries:
                name, ending = os.path.splitext(entry.name)
                if ending == ".json" and not name.startswith("."):
                    newest = max(newest or (-1.0, ""), (_written(entry), name))
    except OSError:
        return None
    return newest[1] if newest else None


def _written(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return -1.0  # it went away while we looked


def status(feature: str, gsd_dir: StrPath = GSD_DIR) -> LockStatus:
    """Say who has the lock of a feature, with verdict and evidence."""
    path = os.path.join(os.fspath(gsd_dir), "specs", _validate(feature), ".lock")
    return _dialects.status(path, decode, stale())
