"""``try``, ``acquire``, ``release`` and ``refresh``: locks that belong to the calling shell."""

from __future__ import annotations

import os
import time

from semlock import _native
from semlock._cli import child, systems
from semlock._cli.output import describe_refusal, print_json, say
from semlock._cli.running import readable, say_timeout
from semlock._cli.table import HELD, OK, Options
from semlock._cli.waiting import Teller
from semlock._errors import LockTimeoutError
from semlock._identity import other_process, this_process
from semlock._status import GUARD_PATIENCE, remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._engine import BaseLock
    from semlock._identity import Process
    from semlock._status import LockStatus

_PAUSE = 0.001


def _owner(options: Options) -> Process:
    """Identify the process whose lock it is."""
    pid = options.owner_pid or os.getppid()
    if _native.probe(pid, 0) in (_native.GONE, _native.ZOMBIE):
        raise ValueError(
            f"there is no process {pid} that could hold a lock. Name one that runs with "
            "--owner-pid"
        )
    return other_process(pid)


def _lock_for_owner(options: Options) -> tuple[BaseLock, str]:
    name = systems.chosen(options.lock, options.dialect)
    tag = None if options.tag is None else readable(options.tag)
    lock = systems.make(
        options.lock,
        name,
        tag=tag,
        durability=options.durability,
        owner=_owner(options),
    )
    return lock, name


def attempt(options: Options) -> int:
    """Take the lock for its owner, if it is free."""
    lock, name = _lock_for_owner(options)
    if lock.try_acquire():
        return _leave(lock, name, options)
    found = lock.status()
    if options.json:
        print_json(describe_refusal(found))
    if not options.quiet:
        say(f"{lock.path} is held by {found.holder}. Wait for it with: semlock acquire")
    return HELD


def acquire(options: Options) -> int:
    """Take the lock for its owner, waiting for it."""
    child.interruptible()
    lock, name = _lock_for_owner(options)
    with Teller(quiet=options.quiet) as teller:
        lock._on_wait = teller
        try:
            lock.acquire(timeout=options.timeout)
        except LockTimeoutError as error:
            if options.json and error.status is not None:
                print_json(describe_refusal(error.status))
            say_timeout(error, "Wait longer with --timeout", quiet=options.quiet)
            return HELD
    return _leave(lock, name, options)


def _leave(lock: BaseLock, name: str, options: Options) -> int:
    """Leave a lock that was won to its owner, and say what its record says."""
    info = lock.info
    _native.detach_lock(lock._native)
    if options.json and info is not None:
        known = info.as_dict()
        known.pop("payload", None)
        fields = {"locked": False, "acquired": True, "path": lock.path, "dialect": name}
        print_json(fields | {key: value for key, value in known.items() if value is not None})
    return OK


def _is_of(found: LockStatus, owner: Process) -> bool:
    """Tell whether the record names the owner, as far as it names anybody."""
    info = found.info
    me = this_process()
    return (
        info is not None
        and info.pid == owner.pid
        and (info.boot, info.pidns or 0) in ((me.boot, me.pidns), (None, 0))
        # A record without a start is a foreigner's; another start is another process.
        and (not info.start or not owner.start or info.start == owner.start)
    )


def _say_not_owner(found: LockStatus, owner: Process, way_out: str) -> int:
    say(
        f"{found.path} is not the lock of process {owner.pid}: it is held by {found.holder}. "
        f"Name its owner with --owner-pid{way_out}"
    )
    return HELD


def release(options: Options) -> int:
    """Remove the lock, if it is the owner's."""
    found = systems.Eye(options.dialect).look(options.lock)
    owner = other_process(options.owner_pid or os.getppid())
    if found.state == "free":
        if options.json:
            print_json({"released": False, "path": found.path})
        if not options.quiet:
            say(f"{found.path} is not held by anybody")
        return HELD
    if not options.force and not _is_of(found, owner):
        return _say_not_owner(found, owner, ", or remove it anyway with --force")
    gone = remove_exactly(found, os.fsencode(found.path), robs=True)
    if options.json:
        print_json({"released": gone, "path": found.path})
    if not gone:
        say(f"{found.path} has changed hands just now, and was left alone")
        return HELD
    return OK


def refresh(options: Options) -> int:
    """Write the present time into the owner's lock."""
    eye = systems.Eye(options.dialect)
    owner = other_process(options.owner_pid or os.getppid())
    end = time.monotonic() + GUARD_PATIENCE
    while True:
        found = eye.look(options.lock)
        look, info = found._look, found.info
        if look is None:
            say(f"{found.path} is lost: nobody holds it any more. Stop what relies on it")
            return HELD
        if info is None or not _is_of(found, owner):
            return _say_not_owner(found, owner, "; if it was yours, stop what relies on it")
        text = systems.restamped(eye.seen, look.content, info, time.time())
        if text is None:
            say(f"{found.path} has no time that could be refreshed")
            return HELD
        outcome = _native.rewrite(os.fsencode(found.path), look, text)
        if outcome == _native.OK:
            break
        if outcome == _native.ALIVE:
            say(f"{found.path} is kept by the process that took it, which alone can refresh it")
            return HELD
        if outcome < 0:
            _native.raise_os_error(outcome, found.path)
        if time.monotonic() > end:
            say(
                f"{found.path} changes at every look, or somebody keeps it locked with flock(2)"
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
