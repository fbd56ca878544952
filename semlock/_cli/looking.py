"""``status``, ``wait`` and ``list``: who holds which lock, without changing it."""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic

from semlock._cli import AUTO, BAD, HELD, OK, OWN, Options, passing
from semlock._cli.output import (
    as_lines,
    describe,
    existing,
    print_json,
    print_line,
    say,
    sentence,
    write,
)
from semlock._cli.systems import Eye, KernelEye, eye_of
from semlock._cli.waiting import Teller
from semlock._core import capi, inside, waits
from semlock._core.errors import LockPathError
from semlock._core.paths import PREFIX, READERS
from semlock._core.status import was_removed
from semlock._locks.readers import names_of_readers
from semlock._waiting import Notice
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.status import LockStatus
    from semlock.systems import System

_ENDED = ("free", "stale")
_LOCK_NAMES = (".lock", ".lck")

# How often to check whether a lock has become stale by age.
_LOOK_EVERY = 1.0


def status(options: Options) -> int:
    """Report who holds a lock."""
    eye = eye_of(options)
    found = eye.look(options.lock)
    if found.state == "free" and isinstance(eye, Eye):
        found = _reader_of(eye, found.path) or eye.look(options.lock)
    if options.json:
        print_json(describe(found, eye.seen))
    elif options.porcelain or options.dialect == "sema":
        if not options.quiet:
            print_fields(describe(found, eye.seen))
    elif not options.quiet:
        print_status(found, eye.seen, options)
        if found.state == "free" and not options.kernel:
            _print_slots(found.path)
    return OK if found.state == "free" else HELD


def _reader_of(eye: Eye, path: str) -> LockStatus | None:
    """Look for a reader that shares the lock, whose path no writer has."""
    directory = f"{path}{READERS}"
    try:
        names = names_of_readers(directory)
    except OSError:
        return None  # not a directory, or not readable
    found = (eye.look(os.path.join(directory, name)) for name in names)
    return next((reader for reader in found if reader.state not in _ENDED), None)


def _print_slots(path: str) -> None:
    """Say of a free path which slots of that name are held: their locks are others."""
    from glob import escape, glob  # noqa: PLC0415 - not for programs

    eye = Eye(OWN)
    named = (name for name in glob(f"{escape(path)}.*") if name[len(path) + 1 :].isdigit())
    held = []
    for name in sorted(named):
        with contextlib.suppress(OSError):  # a directory, or not readable
            held += [name] if eye.look(name).state == "held" else []
    if held:
        print_line(f"slots:    {len(held)} held: {', '.join(map(os.path.basename, held[:3]))}")


def print_status(found: LockStatus, system: System | None, options: Options) -> None:
    """Write the status of a path for people."""
    from semlock._cli import columns  # noqa: PLC0415 - not for programs

    for line in columns.status_lines(
        found,
        system,
        verbose=options.verbose,
        width=columns.columns_of(sys.stdout),
        colour=columns.coloured(options.color, sys.stdout),
    ):
        write(columns.encodable(line))


def print_fields(fields: dict[str, Any]) -> None:
    """Write fields as lines."""
    for line in as_lines(fields):
        print_line(line)


def wait(options: Options) -> int:
    """Wait until a lock is free, without taking it."""
    passing.interruptible()
    eye = eye_of(options)
    end = None if options.timeout is None else monotonic() + options.timeout
    with Teller(quiet=options.quiet) as teller:
        found = _waited(eye, options, options.lock, end, teller)
        while found.state in _ENDED and isinstance(eye, Eye):
            reader = _reader_of(eye, found.path)
            if reader is None:
                break
            found = _waited(eye, options, reader.path, end, teller)
            if found.state in _ENDED:  # of the readers that are left, or of a writer
                found = _waited(eye, options, options.lock, end, teller)
    free = found.state in _ENDED
    if found.state == "stale" and eye.seen is not None and eye.seen.fails_closed:
        free = False  # an acquisition would fail now
    if options.json:
        print_json(describe(found, eye.seen))
    if not free and not options.quiet:
        still = "stale and stays" if found.state == "stale" else "still"
        say(f"{found.path} is {still} held by {found.holder}")
    return OK if free else HELD


def _waited(
    eye: Eye | KernelEye, options: Options, path: str, end: float | None, teller: Teller
) -> LockStatus:
    """Wait until what is at a path has ended, or the time is over; give what was seen last."""
    watched = eye.watched(path)
    waiter = Waiter(
        None if end is None else max(0.0, end - monotonic()),
        wait=waits.Wait((inside.native(watched),), None, None),
        notice=Notice(lambda: eye.look(path), teller, None),
    )
    try:
        found = eye.look(path)
        while found.state not in _ENDED:
            _let_be(found, waiter, by_clock=options.dialect not in (None, AUTO, OWN))
            if not waiter.pause():
                break
            found = eye.look(path)
    finally:
        waiter.end()
    return found


def _let_be(found: LockStatus, waiter: Waiter, *, by_clock: bool) -> None:
    """Tell a wait that this holder was judged, and what else may end its lock."""
    look, info = found.instance, found.info
    if look is None:
        return
    soon = capi.now_ns() + int(_LOOK_EVERY * 1e9)
    by_clock = by_clock or found.unfinished or inside.barred(found) is not None
    waiter.judged(look, soon if by_clock else None)
    if found.verdict == "alive" and not look.witnessed and info and info.pid and info.start:
        waiter.follow(info.pid, info.start)


def list_locks(options: Options) -> int:
    """List the locks in directories, and named locks; or those of the kernel on files."""
    from semlock._cli import rows  # noqa: PLC0415 - for those who look

    eye = eye_of(options)
    find = _locked_by_kernel if options.kernel else _files_of
    found: list[rows.Row] = []
    code = OK
    named = options.locks or (".",)
    for path in named:
        try:
            files = find(path)
        except OSError as error:
            say(sentence(error))
            code = BAD
            continue
        for file in files:
            try:
                status = eye.look(file)
            except OSError as error:
                passed_over = (LockPathError, FileNotFoundError, PermissionError)
                if options.kernel or isinstance(error, passed_over):
                    continue  # no lock, gone meanwhile, or not readable
                raise
            if status.state == "free" or not (
                options.all or options.kernel or is_lock(status, eye.seen)
            ):
                continue
            if options.json:
                print_json(describe(status, eye.seen))
            else:
                short = len(named) == 1 and not options.kernel
                found.append(
                    rows.Row(
                        status, eye.seen, name_of(file) if short else os.path.relpath(file)
                    )
                )
    rows.show(found, options)
    if not found and code == OK and not options.json and not options.kernel and _has_terminal():
        say(f"no lock is held in {', '.join(named)}")
    return code


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _locked_by_kernel(path: str) -> list[str]:
    """Give the files below a directory that the kernel has locks on, or the named file."""
    from semlock._core.kernel_locks import locked_below  # noqa: PLC0415 - for --kernel

    existing(path, "directory or file")
    return locked_below(path) if os.path.isdir(path) else [os.path.abspath(path)]


def is_pattern(path: str) -> bool:
    """Tell whether a path may stand for others."""
    return any(letter in path for letter in "*?[")


def _files_of(path: str) -> list[str]:
    """Give the files of an argument: a directory's, one file, or the matches of a pattern."""
    if is_pattern(path) and not os.path.lexists(path):
        from glob import glob  # noqa: PLC0415 - for a pattern that no shell has expanded

        matches = sorted(glob(path))
        return [file for match in matches for file in _files_of(match)]
    existing(path, "directory or lock")
    return lock_files(path) if os.path.isdir(path) else [os.path.abspath(path)]


def lock_files(directory: str) -> list[str]:
    """List the regular files in a directory that may be locks, by name."""
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) or was_removed(entry.name):
                continue
            if entry.is_file(follow_symlinks=False):
                names.append(entry.name)
            elif entry.name.endswith(READERS) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # gone meanwhile, or not readable
                    names += [
                        os.path.join(entry.name, reader)
                        for reader in names_of_readers(entry.path)
                    ]
    return [os.path.join(os.path.abspath(directory), name) for name in sorted(names)]


def name_of(path: str) -> str:
    """Give the name by which a table shows a file: a reader's has the name of its lock."""
    above, name = os.path.split(path)
    if above.endswith(READERS):
        return os.path.join(os.path.basename(above), name)
    return name


def is_lock(found: LockStatus, system: System | None) -> bool:
    """Tell whether a file is a lock: by its record or its name.

    For systems whose records resemble other files, the name decides.
    """
    if found.path.endswith(_LOCK_NAMES):
        return True
    return found.info is not None and not (system is not None and system.weak)
