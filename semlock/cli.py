"""The command ``semlock``: locks for shell scripts, Makefiles and people.

Exit codes: 0 done or free, 1 held or out of time, 2 wrong usage, 3 the file or its directory
can't be used.  ``run`` gives the command's own exit code, 128 and the number for a signal.
The verbs are told in ``semlock._cli.table``.
"""

from __future__ import annotations

import os
import sys

from semlock._cli.table import BAD, BY_SIGNAL, OK, USAGE, find

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn, TextIO

    from semlock._cli.parsing import UsageError
    from semlock._cli.table import Action, Options

# The numbers of these signals are the same on all systems.
_INTERRUPT = 2
_PIPE = 13


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from semlock._cli.parsing import UsageError, parse  # noqa: PLC0415 - only for a call

    options = None
    try:
        options = parse(sys.argv[1:] if arguments is None else list(arguments))
        if options.verb == "version":
            from semlock import __version__  # noqa: PLC0415

            print(f"semlock {__version__}")
            return OK
        code = _action(options.verb)(options)
        sys.stdout.flush()
    except UsageError as error:
        return _wrong_usage(error)
    except KeyboardInterrupt:
        return BY_SIGNAL + _INTERRUPT
    except Exception as error:  # noqa: BLE001 - told apart there
        if _is_broken_pipe(error):
            # Whoever read our output has heard enough; nothing is left to be flushed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BY_SIGNAL + _PIPE
        return _failed(error, options)
    except BaseException as ending:
        number = getattr(ending, "number", None)
        if number is None:
            raise
        return BY_SIGNAL + int(number)
    return code


def _action(name: str) -> Action:
    """Import a verb's module, and no other."""
    verb = find(name)
    assert verb is not None
    module, function = verb.where
    action: Action = getattr(
        __import__(f"semlock._cli.{module}", fromlist=[function]), function
    )
    return action


def _is_broken_pipe(error: Exception) -> bool:
    """Tell whether nobody reads our output any more."""
    if sys.platform == "win32":
        # The C library there says that an argument is invalid.  An error of a file has the
        # system's own number too.
        from errno import EINVAL  # noqa: PLC0415 - only where something is wrong

        if type(error) is OSError and error.errno == EINVAL and error.winerror is None:
            return True
    return isinstance(error, BrokenPipeError)


def _wrong_usage(error: UsageError) -> int:
    from semlock._cli.helping import usage  # noqa: PLC0415 - only where something is wrong
    from semlock._cli.output import say  # noqa: PLC0415

    say(str(error))
    print(usage(error.verb), file=sys.stderr)
    return USAGE


def _failed(error: Exception, options: Options | None) -> int:
    from semlock._cli.output import print_error, say  # noqa: PLC0415 - only where it is wrong
    from semlock._errors import SemlockError  # noqa: PLC0415

    if not isinstance(error, (OSError, ValueError, SemlockError)):
        raise error
    if options is not None and options.json:
        print_error(error, of_run=options.verb == "run")
    else:
        say(str(error))
    return BAD


def entry() -> NoReturn:
    """Be the program: run the command, and end without taking the interpreter apart.

    That would take as long as a third of ``semlock run`` and does nothing that the end of the
    process doesn't do.  What is registered for the end of the program does happen.
    """
    import atexit  # noqa: PLC0415 - only for a program

    try:
        code = main()
    except BaseException:  # noqa: BLE001 - the interpreter would do the same
        sys.excepthook(*sys.exc_info())
        code = BAD
    if not hasattr(atexit, "_run_exitfuncs"):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not _flushed(stream):
            code = code or BAD
    os._exit(code)


def _flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return False  # a full disk, nobody who reads any more, or no such stream
    return True
