"""``run`` and ``status``, as far as they go without the core.

Scripts call ``run``, ``try``, ``release`` and ``status`` for each thing that they make, and such a
call costs little more than the start of Python.  This module and ``plain.py`` do what most calls
ask for, without lock objects.  They leave all else, with nothing done, to the module that has the
whole verb: options that they don't name, locks that are held, readers, slots, traces, Windows.
"""

from __future__ import annotations

import os
import sys

from semlock._cli.grammar import OK

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli.grammar import Options

# The status of a free lock, for people.
FREE = "state:    free"


def asks_only(options: Options, *names: str) -> bool:
    """Tell whether a call is for one lock, and has no other options than these."""
    return (
        vars(options).keys() <= {"verb", "locks", "command", *names}
        and len(options.locks) == 1
        and "SEMLOCK_TRACE" not in os.environ
        and sys.platform != "win32"
    )


def status(options: Options) -> int:
    """Report who holds a lock."""
    if not asks_only(options, "verbose", "color", "quiet") or not _is_free(options.lock):
        from semlock._cli import looking  # noqa: PLC0415 - it has all of the verb

        return looking.status(options)
    if not options.quiet:
        try:
            print(FREE, flush=True)
        except OSError as error:
            from semlock._cli import output  # noqa: PLC0415 - it reports that

            output.failed(error)
    return OK


def _is_free(path: str) -> bool:
    """Tell whether nothing is at a path, and no readers and no slots are beside it."""
    directory, name = os.path.split(path)
    if name in ("", ".", ".."):
        return False
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        return False
    else:
        return False
    try:
        beside = os.listdir(directory or ".")
    except OSError:
        return False
    begin = os.path.normcase(f"{name}.")
    return not any(os.path.normcase(other).startswith(begin) for other in beside)


def run(options: Options) -> int:
    """Hold the locks while the command runs, and give its exit code."""
    plain = follows = asks_only(options, "timeout", "tag", "quiet")
    if not plain:
        from semlock._cli import running  # noqa: PLC0415 - it has all of the verb

        follows = running.follows(options)
    from semlock._cli import child  # noqa: PLC0415 - for those who run a command

    child.interruptible()
    command = child.Child(options.command)
    try:
        owner = None
        if follows and command.pid is not None:
            from semlock._core.identity import other_process  # noqa: PLC0415 - after the fork

            owner = other_process(command.pid)
            if plain:
                from semlock._cli.plain import run_at_once  # noqa: PLC0415

                code = run_at_once(options, command, owner)
                if code is not None:
                    return code
        from semlock._cli import running  # noqa: PLC0415 - it has all of the verb

        return running.hold(options, command.run, owner)
    finally:
        command.end()
