"""``try``, ``acquire``, ``release`` and ``refresh``: locks that belong to the calling shell."""

from __future__ import annotations

import os
import sys
import time

from semlock._cli import HELD, OK, Options, UsageError, passing, systems
from semlock._cli.output import describe_refusal, print_json, say
from semlock._cli.plain import living_owner, owner_of, readable, refuse_dead, stranger
from semlock._cli.running import (
    let_readers_end,
    say_held,
    say_refusal,
    shell_word,
    spare_document,
)
from semlock._cli.waiting import Teller, holding_caller
from semlock._core import capi, inside
from semlock._core.errors import LockHeldError, LockTimeoutError
from semlock._core.options import GUARD_PATIENCE
from semlock._core.status import remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Process
    from semlock._core.status import LockStatus
    from semlock._locks.lock import FileLock

_PAUSE = 0.001


def _lock_for(owner: Process, options: Options) -> tuple[FileLock, str]:
    system = systems.chosen(options.lock, options.dialect)
    tag = None if options.tag is None else readable(options.tag)
    lock = systems.make(
        options.lock,
        system,
        tag=tag,
        durability=options.durability,
        make_dirs=options.make_dirs,
        owner=owner,
        more=systems.asked(options, system),
    )
    systems.tell_of_tag(options, lock, system)
    return lock, system.name


def attempt(options: Options) -> int:
    """Take the lock for its owner, if it is free."""
    owner = living_owner(options)
    lock, name = _lock_for(owner, options)
    if options.allow:
        return _reclaim(lock, name, owner, options, 0.0)
    found = None
    if lock.try_acquire():
        try:
            _let_readers_end(lock, 0.0, time.monotonic())
            return _leave(lock, name, owner, options)
        except LockTimeoutError as error:
            found = error.status
    found = found or lock.status()
    if options.json:
        print_json(describe_refusal(found))
    if not options.quiet:
        caller = holding_caller(found)
        if caller:
            say(f"{found.path} is held by {caller}, already")
        else:
            say_held(found, f"Wait for it: semlock acquire {shell_word(lock.path)}")
    return HELD


def acquire(options: Options) -> int:
    """Take the lock for its owner, waiting for it."""
    passing.interruptible()
    owner = living_owner(options)
    lock, name = _lock_for(owner, options)
    if options.allow:
        return _reclaim(lock, name, owner, options, options.timeout)
    with Teller(quiet=options.quiet) as teller:
        inside.report_waits(lock, teller)
        try:
            began = time.monotonic()
            lock.acquire(timeout=options.timeout)
            _let_readers_end(lock, options.timeout, began)
        except (LockTimeoutError, LockHeldError) as error:
            return _refused(error, options)
    return _leave(lock, name, owner, options)


def reclaim(options: Options) -> int:
    """Take a task lock for its owner, also from a holder if there is a reason."""
    passing.interruptible()
    if options.emergency:
        if options.purpose not in (None, "emergency"):
            from semlock._cli.table import find  # noqa: PLC0415

            raise UsageError(
                f"--emergency excludes --purpose {options.purpose}", find(options.verb)
            )
        options.purpose = "emergency"
        options.allow = (*options.allow, "EMERGENCY_OVERRIDE")
    options.dialect = "task"
    owner = living_owner(options)
    lock, name = _lock_for(owner, options)
    return _reclaim(lock, name, owner, options, options.patience)


def _reclaim(
    lock: Any, name: str, owner: Process, options: Options, timeout: float | None
) -> int:
    try:
        lock.reclaim(allow=options.allow, timeout=timeout)
    except LockHeldError as error:
        return _refused(error, options)
    return _leave(lock, name, owner, options)


def _refused(error: LockTimeoutError | LockHeldError, options: Options) -> int:
    if options.json and error.status is not None:
        print_json(describe_refusal(error.status))
    say_refusal(error, options)
    return HELD


def _let_readers_end(lock: FileLock, timeout: float | None, began: float) -> None:
    """Wait as ``run`` does, and give the lock back if that fails."""
    try:
        let_readers_end(lock, timeout, began)
    except BaseException:
        lock.release()
        raise


def _leave(lock: FileLock, name: str, owner: Process, options: Options) -> int:
    """Leave a lock that was won to its owner, and report the owner and the record."""
    try:
        refuse_dead(owner)  # it may have ended during the wait
    except ValueError:
        lock.release()
        raise
    info = lock.info
    capi.detach_lock(inside.native(lock))
    if not options.json and (options.quiet or sys.stderr is None or not sys.stderr.isatty()):
        return OK
    from semlock._cli.owners import owner_name  # noqa: PLC0415 - for those who are told

    program = owner_name(owner.pid)
    if options.json and info is not None:
        known = info.as_dict()
        known.pop("payload", None)
        fields = {
            "locked": False, "acquired": True, "path": lock.path, "dialect": name,
            "owner_pid": owner.pid, "owner_name": program or None,
        }  # fmt: skip
        print_json(fields | {key: value for key, value in known.items() if value is not None})
    else:
        named = f" ({program})" if program else ""
        say(f"{lock.path} is taken for process {owner.pid}{named}, and ends with it")
    return OK


def _say_not_owner(found: LockStatus, owner: Process, way_out: str) -> int:
    say(
        f"{found.path} is not the lock of process {owner.pid}: it is held by {found.holder}. "
        f"Name its owner with --owner-pid{way_out}"
    )
    return HELD


def release(options: Options) -> int:
    """Remove the lock, if it is the owner's."""
    eye = systems.Eye(options.dialect, options)
    found = eye.look(options.lock)
    if found.state == "free":
        if options.json:
            print_json({"released": False, "path": found.path})
        if not options.quiet:
            say(f"{found.path} is not held")
        return HELD
    if not options.force:
        owner = stranger(found.info, options)
        if owner is not None:
            return _say_not_owner(found, owner, ", or remove it anyway with --force")
    else:
        spare_document(found, eye.seen)
    gone = remove_exactly(found, os.fsencode(found.path), robs=True)
    if gone:
        word = "break" if options.force else "release"
        systems.audit(eye.seen, found.path, word, found.info)
    if options.json:
        print_json({"released": gone, "path": found.path})
    if not gone:
        say(f"{found.path} has changed hands just now, and was left alone")
        return HELD
    return OK


def refresh(options: Options) -> int:
    """Write the present time into the owner's lock."""
    eye = systems.Eye(options.dialect, options)
    end = time.monotonic() + GUARD_PATIENCE
    while True:
        found = eye.look(options.lock)
        look, info = found.instance, found.info
        if look is None:
            say(f"{found.path} is lost: it is not held any more. Stop what relies on it")
            return HELD
        owner = stranger(found.info, options)
        if owner is not None or info is None:
            owner = owner or owner_of(options)
            return _say_not_owner(found, owner, "; if it was yours, stop what relies on it")
        system = eye.seen
        text = None if system is None else system.restamp(look.content, info, time.time())
        if text is None:
            say(f"{found.path} has no time that could be refreshed")
            return HELD
        outcome = capi.rewrite(os.fsencode(found.path), look, text)
        if outcome == capi.OK:
            break
        if outcome == capi.ALIVE:
            say(f"{found.path} is kept by the process that took it, which alone can refresh it")
            return HELD
        if outcome < 0:
            capi.raise_os_error(outcome, found.path)
        if time.monotonic() > end:
            say(
                f"{found.path} changes at every look, or a process keeps it locked with flock(2)"
            )
            return HELD
        time.sleep(_PAUSE)
    if options.json:
        now = eye.look(options.lock).info
        print_json(
            {
                "refreshed": True,
                "path": found.path,
                "timestamp": None if now is None else now.timestamp,
            }
        )
    return OK
