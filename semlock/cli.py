"""The command ``semlock``: locks for shell scripts, Makefiles and people.

Exit codes: 0 done or free, 1 held or out of time, 2 wrong usage, 3 the file or its directory
can't be used.  ``run`` gives the command's own exit code, 128 and the number for a signal.
The verbs are listed in ``semlock._cli.table``.
"""

from __future__ import annotations

import os
import sys

from semlock._cli import (
    ANSWERED_BY_OUTPUT,
    BAD,
    BY_SIGNAL,
    OK,
    PLAIN,
    USAGE,
    UsageError,
    read_plain,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn, TextIO

    from semlock._cli import Action, Options

# The numbers of these signals are the same on all systems.
_INTERRUPT = 2
_PIPE = 13
# The garbage collector runs after so many new objects: 700 or 2,000 by default.
_OBJECTS = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = None
    try:
        options = _read(sys.argv[1:] if arguments is None else list(arguments))
        if options.verb == "version":
            from semlock import __version__  # noqa: PLC0415
            from semlock._cli.output import write  # noqa: PLC0415

            write(f"semlock {__version__}")
            code = OK
        else:
            code = _action(options)(options)
        # The standard output of these is the command's; without the module nothing was written.
        if options.verb not in ("run", "flock") and "semlock._cli.output" in sys.modules:
            code = _after_output(options.verb, code)
    except UsageError as error:
        return _wrong_usage(error)
    except KeyboardInterrupt:
        return BY_SIGNAL + _INTERRUPT
    except Exception as error:  # noqa: BLE001 - told apart there
        if _is_broken_pipe(error):
            _drop_output()
            return BY_SIGNAL + _PIPE
        return _failed(error, options)
    except BaseException as ending:
        exit_code = getattr(ending, "exit_code", None)  # of child.Ended
        if exit_code is None:
            raise
        if said := getattr(ending, "said", ""):
            from semlock._cli.output import say  # noqa: PLC0415 - only where something is wrong

            say(said)
        return int(exit_code)
    return code


def _read(words: list[str]) -> Options:
    options = read_plain(words)
    if options is None:
        from semlock._cli.parsing import parse  # noqa: PLC0415 - it reads all the tables

        options = parse(words)
    return options


def _action(options: Options) -> Action:
    """Import the module of one verb, or of the verbs for locks on an engine."""
    if options.verb in PLAIN:
        module, function = PLAIN[options.verb]
    else:
        from semlock._cli.table import find  # noqa: PLC0415 - the parser has it already

        verb = find(options.verb)
        assert verb is not None
        module, function = verb.where
    # On Windows the second letter of a path may be a colon too.
    if "SEMLOCK_URL" in os.environ or any(
        ":/" in word[2:] or "@" in word for word in options.locks
    ):
        from semlock._cli import engines  # noqa: PLC0415 - where one may be meant

        if engines.are_meant(options):
            module, function = "engines", "act"
    action: Action = getattr(
        __import__(f"semlock._cli.{module}", fromlist=[function]), function
    )
    return action


def _after_output(verb: str, code: int) -> int:
    """Flush the output, and give the exit code.

    A failed flush changes the exit code only for verbs whose result is the output.
    """
    from semlock._cli.output import say, unwritten  # noqa: PLC0415 - the verb has it already

    error = unwritten()
    if error is None:
        return code
    broken = _is_broken_pipe(error)
    _drop_output()
    if not broken:
        say(f"standard output can't be written: {error.strerror}")
    if verb not in ANSWERED_BY_OUTPUT or code != OK:
        return code
    return BY_SIGNAL + _PIPE if broken else BAD


def _drop_output() -> None:
    """Redirect standard output to nowhere, so that what can't be written isn't tried again."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def _is_broken_pipe(error: Exception) -> bool:
    """Tell whether the reader of our output is gone."""
    if sys.platform == "win32":
        # Windows' C library reports an invalid argument then.  An error of a file also has the
        # system's own number.
        from errno import EINVAL  # noqa: PLC0415 - only where something is wrong

        if type(error) is OSError and error.errno == EINVAL and error.winerror is None:
            return True
    return isinstance(error, BrokenPipeError)


def _wrong_usage(error: UsageError) -> int:
    from semlock._cli.helping import usage  # noqa: PLC0415 - only where something is wrong
    from semlock._cli.output import say, write  # noqa: PLC0415

    say(str(error))
    write(usage(error.verb), to_stderr=True)
    return USAGE


def _failed(error: Exception, options: Options | None) -> int:
    from semlock._cli.output import print_error, say, sentence  # noqa: PLC0415 - then only
    from semlock._core.errors import SemlockError  # noqa: PLC0415

    if not isinstance(error, (OSError, ValueError, SemlockError)):
        raise error
    if options is not None and options.json:
        print_error(error, of_run=options.verb == "run")
    else:
        say(sentence(error))
    return BAD


def entry() -> NoReturn:
    """Run the command as a program, and exit without taking the interpreter apart.

    That would take a third of the time of ``semlock run`` and does nothing that the end of the
    process doesn't do.  Functions that are registered for the exit are called.
    """
    import atexit  # noqa: PLC0415 - only for a program
    import gc  # noqa: PLC0415

    if hasattr(gc, "set_threshold"):
        # A short call makes no garbage worth a search, nor pages that its fork has to copy for it.
        gc.set_threshold(_OBJECTS)
    _fill_standard_streams()
    try:
        code = main()
    except BaseException:  # noqa: BLE001 - the interpreter would do the same
        sys.excepthook(*sys.exc_info())
        code = BAD
    if not hasattr(atexit, "_run_exitfuncs"):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    os._exit(code)


def _flush(stream: TextIO | None) -> None:
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        pass  # the exit code is settled


def _fill_standard_streams() -> None:
    """Occupy closed standard streams, so that no file of ours gets their numbers.

    The replacement isn't writable, and is closed in a command that is run.
    """
    if sys.platform == "win32":
        return
    import io  # noqa: PLC0415 - it is there already

    for number in range(3):
        if _is_closed(number):
            # Without /dev, a directory will do.
            os.open(os.devnull if os.path.exists(os.devnull) else "/", os.O_RDONLY)
    if sys.stdout is None:
        try:
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as we live
        except OSError:
            sys.stdout = io.StringIO()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False
