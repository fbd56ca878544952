"""``clean``, ``break`` and ``migrate``: removing and rewriting what others have left."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from semlock import _native
from semlock._cleaning import _is_temporary, _why_dead
from semlock._cli.looking import print_fields
from semlock._cli.output import as_lines, describe, print_json, print_line, say
from semlock._cli.running import shell_word
from semlock._cli.systems import Eye
from semlock._cli.table import AUTO, BAD, HELD, OK, Options
from semlock._errors import LockPathError, LockTimeoutError
from semlock._identity import ALIVE
from semlock._policy import reason_to_remove
from semlock._queues import is_queue
from semlock._records import decode_text, printable
from semlock._status import look_at, remove_exactly, was_removed

if sys.platform != "win32":
    import fcntl

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semlock._status import LockStatus


class Leftover:
    """One file that may be removed, why, and what removes it: exactly it, and only while so."""

    __slots__ = ("path", "reason", "remove")

    def __init__(self, path: str, reason: str, remove: Callable[[], bool]) -> None:
        self.path = path
        self.reason = reason
        self.remove = remove


def clean(options: Options) -> int:
    """Say what the dead have left, and remove it if that is wished."""
    leftovers = list(_find(os.path.abspath(options.lock), options))
    if options.dry_run or not options.yes:
        for leftover in leftovers:
            _tell(leftover, removed=False, options=options)
        if not leftovers or options.dry_run:
            return OK
        many = len(leftovers)
        if not _agreed("Remove it?" if many == 1 else f"Remove all {many}?"):
            say(
                f"nothing was removed. To remove it: semlock clean -y {shell_word(options.lock)}"
            )
            return OK
    for leftover in leftovers:
        if _removed(leftover):
            _tell(leftover, removed=True, options=options)
    return OK


def _find(target: str, options: Options) -> Iterator[Leftover]:
    """Find what may be removed: locks of the dead, their places in queues, temporary files."""
    directory, only = (target, None) if os.path.isdir(target) else os.path.split(target)
    eye = Eye(options.dialect)
    for name in sorted(os.listdir(directory)):
        if was_removed(name):
            continue
        path = os.path.join(directory, name)
        temporary = _is_temporary(name)
        try:
            if is_queue(name):
                yield from _places_of_the_dead(path)
            elif temporary or only in (None, name):
                found = look_at_own(path) if temporary else eye.look(path)
                reason = _why(found, eye, temporary=temporary, options=options)
                if reason is not None:
                    yield Leftover(path, reason, _removal_of(found))
        except (LockPathError, PermissionError, FileNotFoundError):
            if only == name:
                raise
            # It is no lock, or not ours to see.


def _places_of_the_dead(queue: str) -> Iterator[Leftover]:
    for name in sorted(os.listdir(queue)):
        path = os.path.join(queue, name)
        if _is_left(path):
            reason = "the process that waited with it has ended"
            yield Leftover(path, reason, _leaving(queue, path))


def _is_left(place: str) -> bool:
    """Tell whether nobody keeps the kernel's lock on a place, as its owner does."""
    if sys.platform == "win32":
        return False
    else:  # noqa: RET505 - so that type checkers see which system this is for
        fd = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _leaving(queue: str, path: str) -> Callable[[], bool]:
    def remove() -> bool:
        gone = _native.clean_ticket(os.fsencode(path))
        with suppress(OSError):  # somebody waits
            os.rmdir(queue)
        return gone

    return remove


def _removal_of(found: LockStatus) -> Callable[[], bool]:
    return lambda: remove_exactly(found, os.fsencode(found.path), robs=False)


def look_at_own(path: str) -> LockStatus:
    """Look at a file of the core's own beside a lock."""
    return look_at(path, os.fsencode(path), decode_text)


def _why(found: LockStatus, eye: Eye, *, temporary: bool, options: Options) -> str | None:
    if found.state == "free":
        return None
    if temporary or options.dialect in (None, AUTO):
        return _why_dead(found)
    return reason_to_remove(found, eye.policy)


def _removed(leftover: Leftover) -> bool:
    try:
        return leftover.remove()
    except (LockTimeoutError, PermissionError, FileNotFoundError) as error:
        say(str(error))
        return False


def _tell(leftover: Leftover, *, removed: bool, options: Options) -> None:
    if options.json:
        print_json({"removed": removed, "path": leftover.path, "reason": leftover.reason})
    elif not (options.quiet and removed):
        done = "removed" if removed else "would remove"
        print_line(f"{done} {leftover.path}: {leftover.reason}")


def break_lock(options: Options) -> int:
    """Show who holds a lock, ask, and remove exactly that lock."""
    eye = Eye(options.dialect)
    found = eye.look(options.lock)
    if found.state == "free":
        if options.json:
            print_json({"broken": False, "path": found.path})
        if not options.quiet:
            say(f"{found.path} is not held by anybody")
        return OK
    if not options.yes:
        for line in as_lines(describe(found, eye.seen)):
            print(printable(line), file=sys.stderr)
        if found.verdict == ALIVE:
            say("its holder lives, and will go on as if it held the lock")
        if not _agreed("Remove it?"):
            say(f"it was left alone. To remove it: semlock break -y {shell_word(options.lock)}")
            return HELD
    gone = remove_exactly(found, os.fsencode(found.path), robs=True)
    if options.json:
        print_json({"broken": gone, **describe(found, eye.seen)})
    elif gone and not options.quiet:
        print_line(f"removed {found.path}: it was held by {found.holder}")
    if not gone:
        say(f"{found.path} has changed hands meanwhile, and was left alone. Look again")
        return HELD
    return OK


def _agreed(question: str) -> bool:
    """Ask somebody who sits at a terminal; nobody there is a no."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
