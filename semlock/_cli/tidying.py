"""``clean``, ``break`` and ``migrate``: removing and rewriting other processes' files."""

from __future__ import annotations

import os
import sys

from semlock import systems
from semlock._cli import AUTO, BAD, HELD, OK, OWN, Options, columns
from semlock._cli.looking import is_pattern, print_fields
from semlock._cli.output import (
    describe,
    existing,
    print_json,
    print_line,
    print_wrapped,
    say,
    write,
)
from semlock._cli.running import shell_word, spare_document
from semlock._cli.systems import Eye, audit, policy_of
from semlock._core.cleaning import leftovers
from semlock._core.errors import LockTimeoutError
from semlock._core.identity import ALIVE
from semlock._core.paths import PREFIX
from semlock._core.status import remove_exactly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator

    from semlock._core.folders import Leftover


def clean(options: Options) -> int:
    """Show what dead processes have left, and remove it on request."""
    if os.path.lexists(options.lock) or not _is_free_lock(options):
        existing(options.lock, "directory or lock")
    shown: set[str] | None = None
    if options.dry_run or not options.yes:
        shown = set()
        for leftover in _find(options):
            if _would_go(leftover):
                _tell(leftover, removed=False, options=options)
                shown.add(leftover.path)
        if not shown or options.dry_run:
            return OK
        many = len(shown)
        if not agreed("Remove it?" if many == 1 else f"Remove all {many}?"):
            dialect = options.dialect
            named = f"--dialect {shell_word(dialect)} " if dialect not in (None, AUTO) else ""
            say(
                "nothing was removed. To remove it: semlock clean -y "
                f"{named}{shell_word(options.lock)}"
            )
            return OK
    # Searched again, as the answer may take long; only files that were shown are removed.
    code = OK
    for leftover in _find(options):
        if shown is not None and leftover.path not in shown:
            continue
        try:
            gone = leftover.remove()
        except FileNotFoundError:
            continue  # another process was faster
        except (LockTimeoutError, PermissionError) as error:
            say(str(error))
            code = max(code, HELD if isinstance(error, LockTimeoutError) else BAD)
            continue
        if gone:
            # A kept claim may have a task lock's record, but is no lock.
            private = os.path.basename(leftover.path).startswith(PREFIX)
            if hasattr(leftover.info, "ttl") and not private:
                audit(systems.find("task"), leftover.path, "clean", leftover.info)
            _tell(leftover, removed=True, options=options)
    return code


def _is_free_lock(options: Options) -> bool:
    """Tell whether the path is a free lock's, by its name or its leftovers, and not mistyped."""
    try:
        left = any(True for _ in _find(options))
    except FileNotFoundError:
        return False
    return left or (os.path.splitext(options.lock)[1] != "" and not is_pattern(options.lock))


def _find(options: Options) -> Iterator[Leftover]:
    """Find what may be removed by the chosen lock system's rules."""
    if options.dialect in (None, AUTO, OWN):
        policy_of(options, systems.find(OWN))
        return leftovers(options.lock)
    system = systems.find(options.dialect)
    policy = policy_of(options, system)
    if system.fails_closed:
        from semlock.policy import All, Gone  # noqa: PLC0415 - for such systems only

        policy = Gone() if policy is None else All(policy, Gone())
    return leftovers(
        system.resolve(options.lock), system.claims, policy, system.orphan, system.guard
    )


def _would_go(leftover: Leftover) -> bool:
    try:
        return leftover.applies is None or leftover.applies()
    except OSError:
        return False  # it is gone, or not readable


def _tell(leftover: Leftover, *, removed: bool, options: Options) -> None:
    if options.json:
        print_json({"removed": removed, "path": leftover.path, "reason": leftover.reason})
    elif not (options.quiet and removed):
        done = "removed" if removed else "would remove"
        print_wrapped(f"{done} ", f"{leftover.path}: {leftover.reason}")


def break_lock(options: Options) -> int:
    """Show who holds a lock, ask, and remove exactly that lock."""
    eye = Eye(options.dialect, options)
    found = eye.look(options.lock)
    if found.state == "free":
        if options.json:
            print_json({"broken": False, "path": found.path})
        if not options.quiet:
            say(f"{found.path} is not held")
        return OK
    if options.yes:
        spare_document(found, eye.seen)
    else:
        for line in columns.status_lines(found, eye.seen, width=columns.columns_of(sys.stderr)):
            write(columns.encodable(line, sys.stderr), to_stderr=True)
        if found.verdict == ALIVE:
            say("its holder lives and learns of it only at its next check, refresh or release")
        if not agreed("Remove it?"):
            spare_document(found, eye.seen)
            say(f"it was left alone. To remove it: semlock break -y {shell_word(options.lock)}")
            return HELD
    gone = remove_exactly(found, os.fsencode(found.path), robs=True)
    if gone:
        audit(eye.seen, found.path, "break", found.info)
    if options.json:
        print_json({"broken": gone, **describe(found, eye.seen)})
    elif gone and not options.quiet:
        print_line(f"removed {found.path}: it was held by {found.holder}")
    if not gone:
        say(f"{found.path} has changed hands meanwhile, and was left alone. Look again")
        return HELD
    return OK


def agreed(question: str) -> bool:
    """Ask at the terminal; no without one, or if it is gone."""
    try:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
            return False
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except (OSError, ValueError):
        return False


def migrate(options: Options) -> int:
    """Give a task lock of the old form the enhanced one."""
    from semlock import task  # noqa: PLC0415 - JSON, for those who need it

    done = task.migrate(options.lock)
    if options.json:
        print_json({"migrated": bool(done), "path": done.path, "outcome": done.outcome,
                    "message": done.message})  # fmt: skip
    elif not options.quiet:
        print_fields({"migrated": bool(done), "path": done.path, "outcome": done.outcome,
                      "message": done.message})  # fmt: skip
    if done or done.outcome in ("enhanced", "free"):
        return OK
    return BAD if done.outcome == "unreadable" else HELD
