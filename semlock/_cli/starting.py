"""``status`` of a lock that is free, as far as it goes without the core.

Scripts call ``run``, ``try``, ``release`` and ``status`` for each thing that they make, and such a
call costs little more than the start of Python.  This module and ``plain.py`` do what most calls
ask for, without lock objects.  They leave all else, with nothing done, to the module that has the
whole verb: options that they don't name, locks that are held, readers, slots, traces, Windows.
"""

from __future__ import annotations

import os

from semlock._cli import OK, asks_only

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli import Options

# The status of a free lock, for people.
FREE = "state:    free"


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
