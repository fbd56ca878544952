"""The texts of a lock's errors: what happened at which path, who holds it, and what to do."""

from __future__ import annotations

import errno
import os
import sys

from semlock import _core
from semlock._core import capi, inside
from semlock._core.errors import (
    LockCancelledError,
    LockDeadlockError,
    LockLostError,
    LockPathError,
    LockRecordError,
    LockTimeoutError,
    NotHeldError,
)
from semlock._core.paths import READERS, address_error, engine_of
from semlock._core.records import decode_text

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Literal

    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus
    from semlock._locks.base import BaseLock
    from semlock._locks.lock_object import LockObject

_AT_ONCE = 0.05

# What the system says of a path whose directory is missing; -3 is Windows' ERROR_PATH_NOT_FOUND.
NO_DIRECTORY = (-errno.ENOENT, -errno.ENOTDIR, -3)


def where(place: tuple[CodeType, int] | None) -> str:
    """Name file and line of a place in the code."""
    if place is None:
        return "an unknown place"
    code, instruction = place
    line = code.co_firstlineno
    if hasattr(code, "co_lines"):
        for start, end, number in code.co_lines():
            if start <= instruction < end and number is not None:
                line = number
    return f"{code.co_filename}:{line}"


def _status(lock: LockObject) -> LockStatus | None:
    try:
        return lock.status()
    except LockPathError:
        raise  # what is there can't be a lock, however long the time is
    except OSError:
        return None  # an explanation must not fail for want of details


def os_error(path: str, code: int, *, makes_dirs: bool = False) -> OSError:
    """Say why the system refused to create the lock file, and its directories if it should."""
    if code in NO_DIRECTORY:
        if scheme := engine_of(path):
            return address_error(scheme)
        return LockPathError(
            f"{path} can't be created: {_why_not_in(os.path.dirname(path), makes_dirs)}",
            path=path,
            code=-code,
        )
    if code == -errno.ENXIO:
        return LockPathError(
            f"{path} is not a regular file, which can't be a lock; it is left alone",
            path=path,
            code=-code,
        )
    if code == -errno.ENAMETOOLONG:
        return LockPathError(
            f"{path} can't be created: the path or a name in it is too long (a name may have 255 "
            "bytes). Use a shorter one, such as a hash of it",
            path=path,
            code=-code,
        )
    return capi.os_error(code, path)


def link_error(path: str) -> LockPathError:
    """Refuse a symbolic link, which may lead to another file for each program."""
    return LockPathError(
        f"{path} is a symbolic link, which is not followed: it may lead to another file at any "
        "time. Lock what it leads to: os.path.realpath(path)",
        path=path,
        code=errno.ELOOP,
    )


def kernel_error(path: str, code: int) -> OSError:
    """Say why the kernel refused to lock a file."""
    if code == -errno.ELOOP:  # of the path itself, or a circle of links in its directories
        return link_error(path) if os.path.islink(path) else capi.os_error(code, path)
    words = capi.os_error(code, path).strerror or "it can't be locked"
    if code == -errno.ENOLCK:
        words += (
            ": the filesystem or its server gives no kernel locks here. Use a local directory, or "
            "semlock.Lock, which needs none"
        )
    else:
        words += (
            ": the descriptor is not open, or not open for writing, which this filesystem asks"
        )
    return OSError(-code, words, path)


def _lowest(path: str) -> str:
    """Give the lowest part of a path that exists."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def seems_a_home(parent: str) -> bool:
    """Tell whether what is missing of a directory begins with ``~``, which a shell replaces."""
    return parent[len(_lowest(parent)) :].lstrip(os.sep)[:1] == "~"


def _why_not_in(parent: str, makes_dirs: bool) -> str:
    """Say why no file can be created in a directory, and what to do."""
    if os.path.isdir(parent):
        return f"the system allows no new file in {parent}. Use another directory"
    above = _lowest(parent)
    if not os.path.isdir(above):
        return f"{above} is not a directory. Use another path"
    if seems_a_home(parent):
        return (
            f"{parent} does not exist. If ~ is meant as a home, use os.path.expanduser(path); if "
            "not, create the directory first"
        )
    if makes_dirs:
        return f"the system allows no new directory in {above}. Use another directory"
    return (
        f"{parent} does not exist. Create it first, or have it created: make_dirs=True (in a shell "
        "--make-dirs)"
    )


def timeout_error(
    lock: BaseLock, waited: float, *, of_empty: str | None = None
) -> LockTimeoutError:
    """Say who held the lock for all of the time that was given, and what to do now.

    ``of_empty`` says it of an empty file, where its lock system knows who leaves one.
    """
    found = _status(lock)
    after = f"after {waited:.1f} s" if waited >= _AT_ONCE else "at once"
    return LockTimeoutError(
        f"{lock.path} could not be acquired {after}: {_held_by(lock, found, of_empty)}",
        path=lock.path,
        status=found,
    )


def cancelled_error(lock: LockObject, by: str = "cancel_check") -> LockCancelledError:
    """Say that the program itself has ended the wait."""
    return LockCancelledError(
        f"{lock.path} was not acquired: {by} has ended the wait", path=lock.path
    )


def _held_by(lock: BaseLock, found: LockStatus | None, of_empty: str | None = None) -> str:
    """Name the holder, and a way out that takes no lock from a live holder."""
    if found is None or found.state == "free":
        return "it was held until now. Try again, or wait longer (timeout=)"
    held = f"it is held by {found.holder}"
    barred = inside.barred(found)
    if barred is not None:
        return f"{held}. {_way_to_remove(found.path, barred[1])}"
    if found.reason is not None:
        if sys.platform != "win32" and capi.kernel_locked(os.fsencode(found.path)):
            return f"{held}. It can't be removed now: {_kept_locked()}"
        return (
            f"{held}. This user could not remove it. "
            f"{_way_to_remove(found.path, 'the owner of the file or root')}"
        )
    if found.instance is not None and found.instance.error == -errno.EACCES:
        return f"{held}. {_way_to_read(found.path)}"
    if found.info is None and found.is_by_kernel:
        return f"{held}. Wait longer (timeout=), or find its holder: fuser, lsof"
    if found.info is None:
        if found.verdict != "alive" and found.is_empty:
            if of_empty is not None:
                return of_empty
            if found.is_foreign:
                return f"{held}. Wait longer (timeout=), or delete the file if its holder has ended"
            return (
                f"{held}. If a program still locks this file with flock, use semlock.KernelLock "
                "or another path; if not, delete the file, or give policy=LeftByKernelLock(seconds)"
            )
        if found.verdict == "alive":
            return f"{held}. Wait longer (timeout=), or end its holder"
        return f"{held}. See what wrote the file; delete it if its holder has ended"
    if found.verdict == "alive":
        own = _own_place(lock, found)
        if own:
            return f"{held}; that is this very process, {own}"
        return f"{held}. Wait longer (timeout=), or end its holder: the lock is free at that moment"
    return (
        f"{held}. Wait longer (timeout=). If you know that its holder has ended, remove it: "
        "semlock.remove(path, force=True), or semlock break in a shell"
    )


def _way_to_read(path: str) -> str:
    from semlock._core.verdicts import is_mine, owner_of  # noqa: PLC0415 - for an error only

    if is_mine(path):
        return f"Its holder can be judged when you may read it: chmod u+rw {path}"
    return _way_to_remove(path, owner_of(path))


def _way_to_remove(path: str, keeper: str) -> str:
    return f"Have {keeper} run: semlock clean -y {path}"


def way_to_free(found: LockStatus) -> str:
    """Say how a lock that may not be removed becomes free."""
    if found.verdict == "alive":
        return "Wait until its holder releases it, or end its holder"
    return "If you know that its holder has ended, remove it: semlock.remove(path, force=True)"


def of_another_system(found: LockStatus) -> tuple[LockInfo | None, str]:
    """Read a record that isn't of the asked lock system, and name the system that it is of."""
    content = found.content
    if content and not found.unfinished:
        try:
            of = _core.claims[0]()
        except (ImportError, OSError):
            return None, ""  # after chroot() or without a descriptor no module can be loaded
        for system in (of.task, of.sidecar, of.feature):
            info = system(found.path, content, True)
            if info is not None:
                return info, system.__name__
        try:
            info = decode_text(content)
        except LockRecordError:
            return None, ""
        if info.pid is not None:
            return info, "sema" if info.token is None else "semlock"
    return None, ""


def forbidden_error(found: LockStatus, code: int) -> PermissionError:
    """Say why a lock can't be removed by this user, and who can do it."""
    from semlock._core.verdicts import owner_of  # noqa: PLC0415 - for an error only

    return PermissionError(
        code,
        f"{os.strerror(code)}: this user may not remove the lock, which is held by "
        f"{found.holder}. {_way_to_remove(found.path, owner_of(found.path))}",
        found.path,
    )


def _own_place(lock: BaseLock, found: LockStatus) -> str:
    """Say how this process came to hold the lock; empty if another process holds it."""
    from semlock._core.identity import this_process  # noqa: PLC0415 - for an error only

    info, me = found.info, this_process()
    if info is None or (info.pid, info.boot, info.pidns or 0) != (me.pid, me.boot, me.pidns):
        return ""
    try:
        holder = inside.holder_here(lock) or inside.holder_by(lock, info.token)
    except OSError:
        holder = None
    if holder is not None:
        return f"acquired at {where(inside.place(holder))}. Release it there"
    return (
        "by no object of it: it was taken for it, or before it executed this program. Whatever "
        "took it has to release it; it ends with this process"
    )


def deadlock_error(
    holder: BaseLock,
    frame: FrameType,
    who: Literal["thread", "task"] = "thread",
    *,
    reentrant: bool = True,
) -> LockDeadlockError:
    """Say where the thread or task took the lock that it would wait for.

    ``reentrant`` tells whether its class can be so.
    """
    if who == "task":
        which, way_out = "task, which would wait for itself: it", "Release it first"
    elif getattr(holder, "_holder", None) is not None:
        which = "thread's event loop, which stands still while the thread waits: a task of it"
        way_out = "Use the form of the lock that is for tasks there"
    else:
        which = "thread, which would wait for itself: it"
        way_out = "Release it first"
        if reentrant and not os.path.dirname(holder.path).endswith(READERS):
            way_out += ", or use one lock object with reentrant=True"
    return LockDeadlockError(
        f"{holder.path} is held by this very {which} acquired the lock at "
        f"{where(inside.place(holder))} and would wait for it at "
        f"{where((frame.f_code, frame.f_lasti))}. {way_out}",
        path=holder.path,
    )


def lost_error(lock: LockObject) -> LockLostError:
    """Say who has the lock that was held here."""
    found = None
    try:
        found = lock.status()
        now = "nothing is there now"
        if found.state != "free":
            now = f"it is held by {found.holder} now"
    except OSError as error:
        now = f"what is there now is no lock that can be read: {error.strerror or error}"
    how = (
        "this path does not lead to that lock any more: another program removed it, wrote over "
        "it, or moved it or a directory of its path"
    )
    if found is not None and found.is_by_kernel:
        how = (
            "the kernel's lock is gone: this program closed its descriptor, as a daemon closes "
            "all, or the path does not lead to that file any more"
        )
        now = now if found.state != "free" else "no process has locked it now"
    return LockLostError(
        f"{lock.path} was held here, and {how}; {now}. "
        "Another process may have held the lock since then: check what was written under it",
        path=lock.path,
        status=found,
        reason="replaced" if os.path.lexists(lock.path) else "removed",
    )


def not_held_error(lock: LockObject) -> NotHeldError:
    """Say why there is nothing to release."""
    if inside.forked(lock):
        why = "it was acquired before this process was forked off, and is its parent's"
    elif lock.held:
        why = "another thread holds it through this object"
    else:
        why = "this object has not acquired it"
    return NotHeldError(f"{lock.path} is not held here: {why}", path=lock.path)


def guarded_error(path: str, intent: str, status: LockStatus | None = None) -> LockTimeoutError:
    """Say that another process has the guard of the file, and how to find it."""
    return LockTimeoutError(
        f"{path} can't be {intent} now: {_kept_locked()}", path=path, status=status
    )


def _kept_locked() -> str:
    if sys.platform == "win32":
        how, finders = (
            "or has it open without sharing its deletion",
            "Resource Monitor, handle.exe",
        )
    else:
        how, finders = "with flock(2)", "fuser, lsof"
    return (
        f"another process keeps its file locked {how}, perhaps a stopped one. See which has it "
        f"open ({finders}), and try again"
    )


def unknown_option(called: str, name: str, kind: type, more: tuple[str, ...] = ()) -> TypeError:
    """Name the option of a class that was probably meant: for Node's staleMs it is stale."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for those who mistyped
    from inspect import signature  # noqa: PLC0415

    known = {*more, *signature(kind).parameters}
    plain = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    in_ms = plain.endswith("_ms")
    near = get_close_matches(plain.removesuffix("_ms"), known, 1)
    meant = f": did you mean {near[0]}{', in seconds' * in_ms}?" if near else ""
    return TypeError(f"{called}() got an unexpected keyword argument {name!r}{meant}")
