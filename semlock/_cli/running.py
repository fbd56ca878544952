"""``run``: hold locks while a command runs."""

from __future__ import annotations

import os
import sys
from errno import EINVAL
from time import monotonic

from semlock._cli import BAD, CHILD, OK, OWN, SELF, UsageError, systems
from semlock._cli.output import describe_refusal, print_json, say
from semlock._cli.plain import inherited, readable
from semlock._cli.waiting import Teller, holding_caller
from semlock._core import inside
from semlock._core.errors import (
    LockHeldError,
    LockLostError,
    LockPathError,
    LockTimeoutError,
    SemlockError,
)
from semlock._core.paths import READERS

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from semlock._cli import Options
    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.status import LockStatus
    from semlock.systems import System


def follows(options: Options) -> bool:
    """Tell whether the lock ends with the command, and refuse options that exclude each other."""
    _refuse_what_excludes_each_other(options)
    follow = options.follow or (SELF if sys.platform == "win32" else CHILD)
    if follow == CHILD and sys.platform == "win32":
        raise ValueError("--follow child needs a system with fork")
    return follow == CHILD


def hold(options: Options, run: Callable[..., int], owner: Process | None) -> int:
    """Take the locks, run the command, and give its exit code."""
    teller = Teller(quiet=options.quiet, as_json=options.json)
    taking = _taking(options, teller, owner)
    code = OK
    try:
        with teller:
            held = taking.take()
    except (LockTimeoutError, LockHeldError) as error:
        if options.json and error.status is not None:
            print_json(describe_refusal(error.status), of_run=True)
            return options.on_conflict_exit
        say_refusal(error, options)
        return options.on_conflict_exit
    # Where the kernel keeps no lock on the file for us, one that follows the command ends with
    # it, and a waiter that has it by now can't be told from one that took it by force.
    knows = (
        owner is None
        or options.kernel
        or all(inside.native(lock).file.witness for lock in taking.held())
    )
    try:
        with held:
            code = run(
                lambda: _keep_fresh(taking.locks() if options.refreshes else [], options.stale),
                [] if owner is None else inherited(list(map(inside.native, taking.held()))),
            )
    except SemlockError as error:
        return _not_released(error, code, knows=knows)
    return code


def ended(
    options: Options, native: semlock_lock, outcome: int, code: int, *, knows: bool
) -> int:
    """Give the exit code of a command whose lock was not simply released, but with this outcome."""
    lock = systems.make(
        options.lock, systems.chosen(options.lock, OWN), tag=None, durability=None
    )
    try:
        inside.end_as(lock, native, outcome)
    except SemlockError as error:
        return _not_released(error, code, knows=knows)
    return code


def _not_released(error: SemlockError, code: int, *, knows: bool) -> int:
    # The command ran, and it may have met what the lock should have kept away.
    if isinstance(error, LockLostError) and not knows:
        return code
    say(str(error))
    return code or BAD


class _Taking:
    """What is to be taken: how, what is held then, and of that what is refreshed by its system."""

    def __init__(
        self,
        take: Callable[[], AbstractContextManager[Any]],
        held: Callable[[], list[Any]],
        locks: Callable[[], list[tuple[Any, System]]] = list,
    ) -> None:
        self.take = take
        self.held = held
        self.locks = locks


def _taking(options: Options, teller: Teller, owner: Process | None) -> _Taking:
    tag = readable(options.tag if options.tag is not None else options.command[0])
    timeout = options.timeout
    common: Any = {
        "tag": tag, "make_dirs": options.make_dirs, "on_wait": teller,
    }  # fmt: skip
    if options.durability is not None:
        common["durability"] = options.durability
    if (options.shared and not options.kernel) or options.slots is not None:
        return _taking_part(options, common, owner)
    if options.kernel:
        from semlock import KernelLock  # noqa: PLC0415 - for --kernel

        kernel: list[Any] = [
            KernelLock(
                path, shared=options.shared, fair=options.fair, tag=tag, on_wait=teller,
                make_dirs=options.make_dirs,
            )
            for path in options.locks
        ]  # fmt: skip
        return _Taking(lambda: _take_all(kernel, timeout, ()), lambda: kernel)
    locks = []
    for path in options.locks:
        system = systems.chosen(path, options.dialect)
        lock = systems.make(
            path,
            system,
            tag=tag,
            durability=options.durability,
            make_dirs=options.make_dirs,
            fair=options.fair,
            owner=owner,
            more=systems.asked(options, system),
            guarded=True,
        )
        systems.tell_of_tag(options, lock, system)
        inside.report_waits(lock, teller)
        locks.append((lock, system))
    all_of_them = [lock for lock, _ in locks]
    allow = options.allow
    return _Taking(
        lambda: _take_all(all_of_them, timeout, allow), lambda: all_of_them, lambda: locks
    )


def _taking_part(options: Options, common: dict[str, Any], owner: Process | None) -> _Taking:
    """Share the lock with others, or take a place."""
    system = systems.chosen(options.lock, options.dialect)
    asked = systems.Asked(system, systems.asked(options, system))
    common["system"] = None if system.name == OWN else asked
    if options.shared:
        from semlock import SharedLock  # noqa: PLC0415 - for those who share

        lock: Any = SharedLock(options.lock, **common)
    else:
        from semlock import SlotLock  # noqa: PLC0415 - for those who take a place

        try:
            lock = SlotLock(options.lock, slots=options.slots or 1, **common)
        except TypeError as error:  # its record is only known when it is acquired
            from semlock._cli.table import find  # noqa: PLC0415

            raise UsageError(f"--slots and --dialect: {error}", find("run")) from None
    if owner is not None:
        inside.leave_to(lock, owner, guarded=True)
    take = lock.acquire_shared if options.shared else lock.acquire
    return _Taking(
        lambda: take(timeout=options.timeout),
        lambda: [inside.held_part(lock)],
        # A reader's record is semlock's own in any case.
        lambda: [] if options.shared else [(inside.held_part(lock), system)],
    )


def _take_all(
    locks: list[Any], timeout: float | None, allow: tuple[str, ...]
) -> AbstractContextManager[Any]:
    """Take the locks, and wait for those who share them."""
    began = monotonic()
    if allow:
        from semlock._locks import Acquired  # noqa: PLC0415 - it is there already

        acquired: Any = Acquired()
        acquired.lock = locks[0]
        locks[0].reclaim(allow=allow, timeout=timeout)
    elif len(locks) == 1:
        acquired = locks[0].acquire(timeout=timeout)
    else:
        from semlock import acquire_all  # noqa: PLC0415 - for those who take several

        acquired = acquire_all(locks, timeout=timeout)
    try:
        for lock in locks:
            let_readers_end(lock, timeout, began)
    except BaseException:
        acquired.__exit__(None, None, None)
        raise
    holding: AbstractContextManager[Any] = acquired
    return holding


def let_readers_end(lock: Any, timeout: float | None, began: float) -> None:
    """Wait until those who share a lock that was just taken have released it."""
    if os.path.lexists(f"{lock.path}{READERS}"):
        from semlock._locks.readers import wait_for_readers  # noqa: PLC0415 - hardly ever

        left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
        wait_for_readers(lock, left, sys._getframe())


def _keep_fresh(locks: list[tuple[Any, System]], stale: float | None) -> None:
    for lock, system in locks:
        systems.keep_fresh(lock, system, stale)


def _refuse_what_excludes_each_other(options: Options) -> None:
    from semlock._cli.table import find  # noqa: PLC0415

    parts = [
        word
        for word, given in (
            ("--shared", options.shared),
            ("--slots", options.slots is not None),
            ("--fair", options.fair),
        )
        if given
    ]
    has_part = "--shared" in parts or "--slots" in parts
    wrong = ""
    if options.kernel:
        if options.slots is not None or options.dialect not in (None, OWN):
            word = "--dialect" if options.slots is None else "--slots"
            wrong = f"--kernel and {word} exclude each other"
        elif systems.of_systems(options):
            wrong = "--kernel locks are of no lock system: leave the options of those out"
    elif has_part and len(parts) > 1:
        wrong = f"{parts[0]} and {parts[1]} exclude each other"
    elif has_part and len(options.locks) > 1:
        wrong = f"{parts[0]} takes one lock, not {len(options.locks)}"
    elif has_part and options.allow:
        wrong = f"{parts[0]} and --allow exclude each other"
    elif options.allow and len(options.locks) > 1:
        wrong = f"--allow takes one lock, not {len(options.locks)}"
    elif len(set(options.locks)) < len(options.locks):
        wrong = "a lock is named twice, which would wait for itself"
    if wrong:
        raise UsageError(wrong, find("run"))


def say_refusal(error: LockTimeoutError | LockHeldError, options: Options) -> None:
    """Say why a lock could not be acquired, and what can be done about it from here."""
    decision = getattr(error, "decision", None)
    found = error.status
    if isinstance(error, LockTimeoutError) or found is None:
        say_timeout(error, "Wait longer with --timeout", quiet=options.quiet)
        return
    if options.quiet:
        return
    where = shell_word(found.path)
    if decision is None:
        say(
            f"{found.path} is stale ({found.reason}) and is left alone, because its holder may "
            f"still be writing: {found.holder}. If you know that it is not: semlock break {where}"
        )
    elif decision.can_reclaim:
        say(
            f"{found.path} is held by {found.holder}. There is a reason to take it, which is not "
            f"allowed: --allow {decision.reason}"
        )
    else:
        why = (
            "its time is not over" if found.info is not None else "it says no time and no owner"
        )
        say(
            f"{found.path} is held by {found.holder}, and there is no reason to take it: {why}. "
            f"Wait for it with --timeout, or look at it with: semlock status {where}"
        )


def say_timeout(error: LockTimeoutError | LockHeldError, way_out: str, *, quiet: bool) -> None:
    """Say who held the lock, and what can be done about it from here."""
    found = error.status
    if quiet:
        return
    if found is None:
        say(str(error))
        return
    caller = holding_caller(found)
    if caller:
        say(
            f"{found.path} is held by {caller}: a wait would not end before that does. Use the "
            f"lock only once, or release it first"
        )
    else:
        say_held(found, way_out)


def say_held(found: LockStatus, way_out: str) -> None:
    """Say who holds a lock, and what can be done: the way out counts for a holder that lives."""
    word = shell_word(found.path)
    if found.is_empty and found.is_foreign:
        say(
            f"{found.path} is held by {found.holder}. {way_out}; if you know that it has ended: "
            f"semlock break {word}"
        )
    elif found.is_empty and found.verdict != "alive":
        say(
            f"{found.path} is held by {found.holder}. If a program still locks it with flock, use "
            f"--kernel or another path; if not, remove it: semlock break {word}"
        )
    elif found.verdict == "alive":
        kernel = "--kernel " if found.is_by_kernel else ""
        say(
            f"{found.path} is held by {found.holder}. {way_out}, or see: semlock status "
            f"{kernel}{word}"
        )
    else:
        say(
            f"{found.path} is held by {found.holder}. See: semlock status {word}; if you know "
            f"that its holder has ended: semlock break {word}"
        )


def spare_document(found: LockStatus, system: System | None) -> None:
    """Refuse to remove, without a look by a person, what is no lock by its name or its content.

    Any JSON object may be a record of some systems, so their content alone shows nothing.
    """
    from semlock._core.forms import is_lock_name  # noqa: PLC0415 - for those who remove

    look, info = found.instance, found.info
    if info is not None:
        is_record = system is None or not system.weak or info.token is not None
    else:
        is_record = found.is_empty or found.unfinished or bool(look and look.boot_mark)
    if not (is_record or is_lock_name(os.path.basename(found.path))):
        raise LockPathError(
            f"{found.path} is left alone: neither its name nor its content is a lock's. If it is "
            "one, answer the question of semlock break at a terminal, or remove it with rm",
            path=found.path,
            code=EINVAL,
        )


def shell_word(text: str) -> str:
    """Quote a path for a shell."""
    safe = "/._-+=:,@%"
    if text and all(letter.isalnum() or letter in safe for letter in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"
