"""``run``: hold locks while a command runs."""

from __future__ import annotations

import os
import sys
from time import monotonic

from semlock._cli import child, systems
from semlock._cli.output import describe_refusal, print_json, say
from semlock._cli.table import BAD, OK, OWN
from semlock._cli.waiting import Teller
from semlock._errors import LockLostError, LockTimeoutError, SemlockError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from semlock._cli.table import Options
    from semlock._identity import Process


def run(options: Options) -> int:
    """Hold the locks while the command runs, and give its exit code."""
    _refuse_what_excludes_each_other(options)
    child.interruptible()
    if options.follow == "self":
        return _hold(options, child.run, None)
    if sys.platform == "win32":
        raise ValueError("--follow child needs a system with fork")
    from semlock._identity import other_process  # noqa: PLC0415 - for those who follow

    suspended = child.Suspended(options.command)
    try:
        return _hold(options, suspended.run, other_process(suspended.pid))
    finally:
        suspended.end()


def _hold(options: Options, run: Callable[..., int], owner: Process | None) -> int:
    teller = Teller(quiet=options.quiet, as_json=options.json)
    locks, entered = _make(options, teller, owner)
    code = OK
    try:
        with teller:
            held = entered()
    except LockTimeoutError as error:
        if options.json and error.status is not None:
            print_json(describe_refusal(error.status), of_run=True)
            return options.on_conflict_exit
        say_timeout(error, "Wait longer with --timeout", quiet=options.quiet)
        return options.on_conflict_exit
    try:
        with held:
            code = run(options.command, lambda: _keep_fresh(locks))
    except LockLostError as error:
        # A lock that follows the command ends with it, so a waiter may have it by now, who
        # can't be told from one that took it by force.
        if owner is not None:
            return code
        # The command ran, and it may have met what the lock should have kept away.
        say(str(error))
        return code or BAD
    except SemlockError as error:
        say(str(error))
        return code or BAD
    return code


def _make(
    options: Options, teller: Teller, owner: Process | None
) -> tuple[list[tuple[Any, str]], Callable[[], AbstractContextManager[Any]]]:
    """Make the locks: each with its system, and what takes them all."""
    tag = readable(options.tag if options.tag is not None else options.command[0])
    timeout = options.timeout
    if options.shared:
        from semlock import SharedLock  # noqa: PLC0415 - for those who share

        shared = SharedLock(
            options.lock,
            tag=tag,
            durability=options.durability,  # type: ignore[arg-type]
            on_wait=teller,
        )
        return [], lambda: shared.acquire_shared(timeout=timeout)
    if options.slots is not None:
        from semlock import SlotLock  # noqa: PLC0415 - for those who take a place

        slot = SlotLock(
            options.lock,
            slots=options.slots,
            tag=tag,
            durability=options.durability,  # type: ignore[arg-type]
            on_wait=teller,
        )
        return [], lambda: slot.acquire(timeout=timeout)
    locks = []
    for path in options.locks:
        name = systems.chosen(path, options.dialect)
        lock = systems.make(
            path,
            name,
            tag=tag,
            durability=options.durability,
            fair=options.fair,
            owner=owner,
        )
        lock._on_wait = teller
        locks.append((lock, name))
    return locks, lambda: _take_all([lock for lock, _ in locks], timeout)


def _take_all(locks: list[Any], timeout: float | None) -> AbstractContextManager[Any]:
    """Take the locks, and wait for those who share them."""
    began = monotonic()
    if len(locks) == 1:
        acquired = locks[0].acquire(timeout=timeout)
    else:
        from semlock import acquire_all  # noqa: PLC0415 - for those who take several

        acquired = acquire_all(locks, timeout=timeout)
    try:
        for lock in locks:
            if os.path.lexists(f"{lock.path}.readers"):
                from semlock._shared import wait_for_readers  # noqa: PLC0415 - hardly ever

                left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
                wait_for_readers(lock, left, sys._getframe())
    except BaseException:
        acquired.__exit__(None, None, None)
        raise
    holding: AbstractContextManager[Any] = acquired
    return holding


def _keep_fresh(locks: list[tuple[Any, str]]) -> None:
    for lock, name in locks:
        if name != OWN:
            systems.keep_fresh(lock, name)


def _refuse_what_excludes_each_other(options: Options) -> None:
    from semlock._cli.parsing import UsageError  # noqa: PLC0415 - it is there already
    from semlock._cli.table import find  # noqa: PLC0415

    special = [
        word
        for word, given in (
            ("--shared", options.shared),
            ("--slots", options.slots is not None),
            ("--dialect", options.dialect not in (None, OWN)),
            ("--fair", options.fair),
            ("--follow child", options.follow == "child"),
        )
        if given
    ]
    wrong = ""
    if ("--shared" in special or "--slots" in special) and len(special) > 1:
        wrong = f"{special[0]} and {special[1]} exclude each other"
    elif ("--shared" in special or "--slots" in special) and len(options.locks) > 1:
        wrong = f"{special[0]} takes one lock, not {len(options.locks)}"
    elif len(set(options.locks)) < len(options.locks):
        wrong = "a lock is named twice, which would wait for itself"
    if wrong:
        raise UsageError(wrong, find("run"))


def readable(text: str) -> str:
    """Make a tag of words from the command line, which may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def say_timeout(error: LockTimeoutError, way_out: str, *, quiet: bool) -> None:
    """Say who held the lock, and what can be done about it from here."""
    found = error.status
    if quiet:
        return
    if found is None:
        say(str(error))
        return
    say(
        f"{found.path} is held by {found.holder}. {way_out}, or look at it with: semlock status "
        f"{shell_word(found.path)}; if its holder will never let go: semlock break "
        f"{shell_word(found.path)}"
    )


def shell_word(text: str) -> str:
    """Quote a path for a shell."""
    safe = "/._-+=:,@%"
    if text and all(letter.isalnum() or letter in safe for letter in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"
