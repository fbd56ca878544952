"""The feature lock: ``pid:timestamp`` in ``<gsd_dir>/specs/<feature>/.lock``, two hours long.

It is stale by age alone.  A file that is no record may be removed, but only when it has not
changed for the grace time: another program may be writing it.  The functions wait for the rest of
that time, two seconds at most, and see within a twentieth of a second that it is written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time

from semlock import policy
from semlock._core import inside, registry
from semlock._core.errors import LockLostError, LockPathError, LockRecordError, NotHeldError
from semlock._core.identity import this_process
from semlock._core.options import or_else
from semlock._core.paths import absolute
from semlock._core.records import LockInfo, text_of
from semlock._core.status import remove_exactly
from semlock._core.verdicts import GRACE
from semlock._locks.lock import FileLock
from semlock.systems import System, for_tasks, later

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core import capi
    from semlock._core.identity import Process
    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
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


__all__ = [
    "STALE_SECONDS", "AsyncFeatureLock", "FeatureLock", "acquire_feature_lock",
    "check_feature_lock", "decode", "detect_feature", "release_feature_lock", "stale",
    "status",
]  # fmt: skip

STATE_DIR = ".mahabharatha/state"
ENVIRONMENT_VARIABLE = "MAHABHARATHA_FEATURE"

REFRESH_INTERVAL = 1200.0  # of a lock that the command holds
# How long the functions pause between two looks at a file that is just being written.
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


# The locks that the functions below hold in this process, by their paths.
_held: dict[str, FeatureLock] = {}
registry.on_fork(_held.clear)


def acquire_feature_lock(feature: str, gsd_dir: StrPath = GSD_DIR) -> bool:
    """Take the lock of a feature; ``False`` if another session has it.

    It is held until ``release_feature_lock``, or until the process ends.
    """
    lock = FeatureLock(feature, gsd_dir)
    try:
        taken = lock.try_acquire()
        if not taken and _settled(lock).is_worth_a_try:
            inside.native(lock).look_at = 0  # judge it again now, not at the next due time
            taken = lock.try_acquire()
    except LockPathError:
        return False  # a directory or a link is there, which this system treats as a lock
    except OSError:
        if _is_unreadable(lock):
            return False  # what can't be read can't be compared, so it is not removed
        raise  # no other session has what can't be there
    if taken:
        _held[lock.path] = lock
    return taken


def release_feature_lock(feature: str, gsd_dir: StrPath = GSD_DIR) -> None:
    """Release the lock of a feature, if it is this process's, or is no readable record."""
    lock = FeatureLock(feature, gsd_dir)
    mine = _held.pop(lock.path, None)
    if mine is not None:
        try:
            mine.release()
        except (LockLostError, NotHeldError):
            pass  # another process took it as stale; its lock stays
        else:
            return
    try:
        found = _settled(lock).found
        corrupt = found.info is None and found.reason is not None
        if corrupt or (found.info is not None and found.info.pid == os.getpid()):
            remove_exactly(found, inside.encoded(lock), robs=not corrupt)
    except OSError:
        return  # as in the original: what can't be read or removed is no error


def check_feature_lock(
    feature: str, gsd_dir: StrPath = GSD_DIR
) -> dict[str, float | int] | None:
    """Say who has the lock of a feature; ``None`` if it is free, stale or corrupt."""
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


class _Settled:
    """What was found when it was no longer being written, and whether a try may take it now."""

    __slots__ = ("found", "is_worth_a_try")

    def __init__(self, found: LockStatus, is_worth_a_try: bool) -> None:
        self.found = found
        self.is_worth_a_try = is_worth_a_try


def _settled(lock: FeatureLock) -> _Settled:
    """Look again and again while the file is no record, for the rest of the grace time.

    Only a file that has just changed makes the caller wait.
    """
    found = lock.status()
    waited = _made_readable(found)
    if waited:
        found = lock.status()
    pause = _FIRST_PAUSE
    while _is_being_written(found):
        waited = True
        rest = max(0.0, GRACE - found.unchanged_for(time.time())) + 0.01
        time.sleep(min(pause, rest))
        pause = min(2 * pause, _LONGEST_PAUSE)
        found = lock.status()
    return _Settled(found, found.state == "free" or (waited and found.reason is not None))


def _is_being_written(found: LockStatus) -> bool:
    if found.state == "free" or found.verdict == "alive" or found.reason is not None:
        return False
    cut = found.info is None or policy.may_be_cut(found)
    return cut and not _is_forbidden(found) and found.unchanged_for(time.time()) < GRACE


def _is_forbidden(found: LockStatus) -> bool:
    return found.instance is not None and found.instance.error in (-errno.EACCES, -errno.EPERM)


def _is_unreadable(lock: FeatureLock) -> bool:
    try:
        look = lock.status().instance
    except OSError:
        return False  # the path itself is wrong, or its directory is closed to this user
    return look is not None and look.error != 0


def _made_readable(found: LockStatus) -> bool:
    """Make this user's own lock file readable for its owner; ``True`` if that was done.

    The original deletes what it can't read.  Here the record, and the kernel's state of its
    holder, decide whether it may be removed.  Another user's file is not changed: it may be a
    private lock.
    """
    look = found.instance
    if sys.platform != "linux" or look is None or not _is_forbidden(found):
        return False
    handle = None
    try:
        handle = os.open(found.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        seen = os.fstat(handle)
        if (seen.st_dev, seen.st_ino, seen.st_uid) != (*look.identity, os.geteuid()):
            return False
        # By the descriptor: the path may name another file by now.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(seen.st_mode) | stat.S_IRUSR)
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def detect_feature(gsd_dir: StrPath = GSD_DIR, state_dir: StrPath = STATE_DIR) -> str | None:
    """Find out which feature is being worked on.

    The environment variable ``MAHABHARATHA_FEATURE`` comes first, then the file
    ``.current-feature``, then the newest state file; what can't be read is passed over.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if named:
        return named
    file, states = (
        os.path.join(os.fsdecode(gsd_dir), ".current-feature"),
        os.fsdecode(state_dir),
    )
    try:
        if os.path.isfile(file):  # to open a pipe would wait for its writer
            with open(file, encoding="utf-8") as text:
                named = text.read().strip()
    except (OSError, UnicodeDecodeError):
        named = ""
    return named or _newest_state(states)


def _newest_state(state_dir: str) -> str | None:
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
        return -1.0  # it was removed meanwhile


def status(feature: str, gsd_dir: StrPath = GSD_DIR) -> LockStatus:
    """Say who has the lock of a feature, with verdict and evidence."""
    return SYSTEM.status(path_of(feature, gsd_dir))


def _feature_of(path: str) -> tuple[str, str] | None:
    """Find feature and base directory in the path of a feature lock."""
    rest, name = os.path.split(absolute(path))
    rest, feature = os.path.split(rest)
    base, specs = os.path.split(rest)
    return (feature, base) if name == ".lock" and specs == "specs" and feature else None


def _lock_at(
    path: str,
    *,
    tag: str | None = None,
    stale: float | None = STALE_SECONDS,
    kind: type[FeatureLock] = FeatureLock,
    **options: Any,
) -> FeatureLock:
    """Make the lock of which this is the file.  Its record has no place for a tag."""
    del tag
    found = _feature_of(path)
    if found is None:
        raise LockPathError(
            f"{path} is no feature lock, which is named <directory>/specs/<feature>/.lock",
            path=path,
        )
    return kind(*found, stale_seconds=stale, **options)


def _restamp(content: bytes, info: LockInfo, now: float) -> bytes:  # noqa: ARG001
    pid, _, stamp = content.partition(b":")
    _, dot, fraction = stamp.strip().partition(b".")
    return pid + b":%d" % int(now) + dot + b"0" * len(fraction)


SYSTEM = System(
    "feature",
    decode=decode,
    stale=stale,
    owns_path=lambda path: _feature_of(path) is not None,
    claims=later("semlock._systems.claims", "feature"),
    restamp=_restamp,
    refresh=lambda _: REFRESH_INTERVAL,
    lock=_lock_at,
    options=("stale",),
    async_lock=later("semlock._systems.async_forms", "feature_at"),
)

if TYPE_CHECKING:
    from semlock._systems.async_forms import AsyncFeatureLock
else:
    __getattr__ = for_tasks(__name__, AsyncFeatureLock="AsyncFeatureLock")
