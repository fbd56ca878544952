"""``status``, ``wait`` and ``list``: who holds what, without touching it."""

from __future__ import annotations

import os

from semlock import _native
from semlock._cli import child
from semlock._cli.output import as_lines, describe, print_json, print_line, say
from semlock._cli.systems import Eye, resolve
from semlock._cli.table import AUTO, HELD, OK, OWN, Options
from semlock._cli.waiting import Teller
from semlock._errors import LockPathError
from semlock._lock import Lock
from semlock._notice import Notice
from semlock._queues import PREFIX
from semlock._status import was_removed
from semlock._waiting import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._status import LockStatus

_LOCK_NAMES = (".lock", ".lck")

# How often to look, by the clock, whether a lock has become stale by age.
_LOOK_EVERY = 1.0


def status(options: Options) -> int:
    """Say who holds a lock, if anybody does."""
    eye = Eye(options.dialect)
    found = eye.look(options.lock)
    if not options.quiet or options.json:
        print_status(found, eye.seen, as_json=options.json)
    return OK if found.state == "free" else HELD


def print_status(found: LockStatus, dialect: str | None, *, as_json: bool) -> None:
    """Write what was found at a path."""
    fields = describe(found, dialect)
    if as_json:
        print_json(fields)
    else:
        print_fields(fields)


def print_fields(fields: dict[str, Any]) -> None:
    """Write fields as lines."""
    for line in as_lines(fields):
        print_line(line)


def wait(options: Options) -> int:
    """Wait until a lock is free, without taking it."""
    child.interruptible()
    eye = Eye(options.dialect)
    watched = Lock(resolve(options.lock, options.dialect or AUTO))
    with Teller(quiet=options.quiet) as teller:
        waiter = Waiter(
            options.timeout,
            wait=_native.Wait((watched._native,), None, None),
            notice=Notice(lambda: eye.look(options.lock), teller, None),
        )
        try:
            found = eye.look(options.lock)
            while found.state not in ("free", "stale"):
                _let_be(found, waiter, by_clock=options.dialect not in (None, AUTO, OWN))
                if not waiter.pause():
                    break
                found = eye.look(options.lock)
        finally:
            waiter.end()
    free = found.state in ("free", "stale")
    if options.json:
        print_json(describe(found, eye.seen))
    if not free and not options.quiet:
        say(f"{found.path} is still held by {found.holder}")
    return OK if free else HELD


def _let_be(found: LockStatus, waiter: Waiter, *, by_clock: bool) -> None:
    """Tell a wait that this holder was judged, and what else may end its lock."""
    look, info = found._look, found.info
    if look is None:
        return
    soon = _native.now_ns() + int(_LOOK_EVERY * 1e9)
    waiter.judged(look.view, soon if by_clock or found.unfinished else None)
    if found.verdict == "alive" and look.view.witness != 1 and info and info.pid and info.start:
        waiter.follow(info.pid, info.start)


def list_locks(options: Options) -> int:
    """List the locks in a directory."""
    directory = options.lock if options.locks else "."
    eye = Eye(options.dialect)
    rows: list[tuple[str, ...]] = []
    for path in lock_files(directory):
        try:
            found = eye.look(path)
        except (LockPathError, FileNotFoundError, PermissionError):
            continue  # no lock, gone meanwhile, or not ours to see
        if found.state == "free" or not (options.all or is_lock(found, eye.seen)):
            continue
        if options.json:
            print_json(describe(found, eye.seen))
        else:
            rows.append(_row(found))
    if rows:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        for row in rows:
            *cells, last = row
            padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
            print_line("  ".join([*padded, last]))
    return OK


def _row(found: LockStatus) -> tuple[str, str, str]:
    return found.state, os.path.basename(found.path), found.holder


def lock_files(directory: str) -> list[str]:
    """List the regular files in a directory that may be locks, by name."""
    with os.scandir(directory) as entries:
        names = [
            entry.name
            for entry in entries
            if not (entry.name.startswith(PREFIX) or was_removed(entry.name))
            and entry.is_file(follow_symlinks=False)
        ]
    return [os.path.join(os.path.abspath(directory), name) for name in sorted(names)]


def is_lock(found: LockStatus, dialect: str | None) -> bool:
    """Tell a lock from other files: it has a record, or it is named like one.

    Any JSON object may be the record of a sidecar lock, so there the name has to say so.
    """
    if found.path.endswith(_LOCK_NAMES):
        return True
    return found.info is not None and dialect != "sidecar"
