"""The command ``semlock``: locks for shell scripts, Makefiles and people.

Exit codes: 0 done or free, 1 held or out of time, 2 wrong usage, 3 the file or its directory
can't be used.  ``run`` gives the command's own exit code, 128 and the number for a signal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

import semlock
from semlock._identity import other_process, this_process
from semlock._records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

OK = 0
HELD = 1
USAGE = 2
BAD = 3
NOT_EXECUTABLE = 126
NOT_FOUND = 127
BY_SIGNAL = 128

EPILOG = """\
examples:
  semlock run build.lock -- make all         hold the lock while make runs
  semlock run -t 60 -m nightly db.lock -- pg_dump mydb
  semlock try job.lock && { work; semlock release job.lock; }
  semlock status job.lock                    who holds it, since when, alive or dead
  semlock clean /run/locks                   remove what the dead have left

exit codes: 0 done or free, 1 held or out of time, 2 usage, 3 bad path or I/O error
"""


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 on")
    return value


def _process_number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no process number")
    return value


def _parser(*, split: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="semlock",
        description="Hold lock files that no kill can wedge.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"semlock {semlock.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    run = verbs.add_parser(
        "run", help="hold a lock while a command runs",
        usage="semlock run [options] LOCK -- COMMAND [ARGUMENT...]",
    )  # fmt: skip
    run.add_argument("lock", metavar="LOCK")
    run.add_argument("command", nargs="*" if split else argparse.REMAINDER, metavar="COMMAND")
    run.add_argument(
        "-t", "--timeout", type=_seconds, metavar="S", help="wait at most S seconds"
    )
    run.add_argument(
        "-n", "--no-wait", action="store_const", const=0.0, dest="timeout", help="don't wait"
    )
    run.add_argument(
        "-E", "--on-conflict-exit", type=int, default=HELD, metavar="N",
        help="exit with N when the lock is not to be had (1)",
    )  # fmt: skip

    attempt = verbs.add_parser(
        "try", help="take a lock and leave it to the calling shell, if it is free",
    )  # fmt: skip
    attempt.add_argument("lock", metavar="LOCK")
    release = verbs.add_parser("release", help="let go of a lock that `try` took")
    release.add_argument("lock", metavar="LOCK")
    release.add_argument("-f", "--force", action="store_true", help="whoever holds it")
    for verb in (attempt, release):
        verb.add_argument(
            "--owner-pid", type=_process_number, metavar="PID",
            help="the process whose lock it is (the caller of semlock)",
        )  # fmt: skip
    for verb in (run, attempt):
        verb.add_argument("-m", "--tag", help="say in the lock what it is held for")
    show = verbs.add_parser("status", help="say who holds a lock; exit 1 if anybody does")
    show.add_argument("lock", metavar="LOCK")
    clean = verbs.add_parser("clean", help="remove what dead processes have left")
    clean.add_argument("path", metavar="DIRECTORY|LOCK")
    for verb in (attempt, release, show, clean):
        verb.add_argument("-j", "--json", action="store_true", help="one JSON object a line")
    for verb in (run, attempt, release, clean):
        verb.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the words; what stands behind ``--`` is the command, whatever it looks like.

    Without ``--`` the command begins behind the lock, and so do words of its own.
    """
    split = "--" in arguments
    parser = _parser(split=split)
    words, command = arguments, []
    if split:
        at = arguments.index("--")
        words, command = arguments[:at], arguments[at + 1 :]
    options = parser.parse_args(words)
    if options.verb == "run":
        options.command += command
        if not options.command:
            parser.error("run needs a command: semlock run LOCK -- COMMAND")
    elif command:
        parser.error(f"{options.verb} takes no command")
    return options


def _say(message: str) -> None:
    print(f"semlock: {message}", file=sys.stderr)


def _print_json(fields: dict[str, object]) -> None:
    import json  # noqa: PLC0415 - not on the way of run and try

    print(json.dumps(fields))


def _run(options: argparse.Namespace) -> int:
    lock = semlock.Lock(options.lock, tag=options.tag or options.command[0])
    if not lock.try_acquire():
        if options.timeout != 0 and not options.quiet:
            _say(f"waiting for {lock.path}, held by {lock.status().holder}")
        try:
            lock.acquire(timeout=options.timeout)
        except semlock.LockTimeoutError as error:
            _say(str(error))
            return int(options.on_conflict_exit)
    try:
        return _run_command(options.command)
    finally:
        lock.release()


def _run_command(command: Sequence[str]) -> int:
    import subprocess  # noqa: PLC0415 - only once the lock is held

    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # A terminal gives Ctrl-C to the command too, which decides what it means; from elsewhere
    # it reaches only us.
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    handlers = {signal.SIGINT: _ignore if at_terminal else pass_on}
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            handlers[getattr(signal, name)] = pass_on
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        # Descriptors of the lock are not inherited: what the command leaves running does
        # not hold it.
        child = subprocess.Popen(command)
        for number in early:
            child.send_signal(number)
        code = child.wait()
    except FileNotFoundError as error:
        _say(f"{command[0]}: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return NOT_EXECUTABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else BY_SIGNAL - code


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN, this is not inherited by the command."""


def _owner(options: argparse.Namespace) -> int:
    return int(options.owner_pid or os.getppid())


def _try(options: argparse.Namespace) -> int:
    lock = semlock.Lock(options.lock, tag=options.tag)
    info = lock._try_for(other_process(_owner(options)))
    if info is not None:
        if options.json:
            _print_json({"locked": False, "acquired": True, **info.as_dict()})
        return OK
    found = lock.status()
    if options.json:
        since = found.info.timestamp if found.info else None
        pid = found.info.pid if found.info else None
        _print_json({"locked": True, "acquired": False, "pid": pid, "since": since})
    if not options.quiet:
        _say(f"{lock.path} is held by {found.holder}")
    return HELD


def _release(options: argparse.Namespace) -> int:
    found = semlock.status(options.lock)
    if found.state == "free":
        if not options.quiet:
            _say(f"{found.path} is not held by anybody")
        return HELD
    owner = _owner(options)
    me = this_process()
    info = found.info
    ours = (
        info is not None
        and info.pid == owner
        and (info.boot, info.pidns or 0)
        in (
            (me.boot, me.pidns),
            (None, 0),
        )
    )
    if not ours and not options.force:
        _say(
            f"{found.path} is not the lock of process {owner}: it is held by {found.holder}. "
            "Name its owner with --owner-pid, or remove it anyway with --force"
        )
        return HELD
    try:
        gone = semlock.remove(found.path, only_if=found, force=True) is not None
    except semlock.LockHeldError as error:
        _say(str(error))
        return HELD
    if options.json:
        _print_json({"released": gone, "path": found.path})
    return OK


def _status(options: argparse.Namespace) -> int:
    found = semlock.status(options.lock)
    locked = found.state != "free"
    fields: dict[str, object] = {"locked": locked}
    if locked:
        info = found.info
        fields["pid"] = info.pid if info else None
        fields["timestamp"] = info.timestamp if info else None
        fields["tag"] = info.tag if info else None
        fields["state"] = found.state
        fields["verdict"] = found.verdict
        fields["evidence"] = found.evidence
        fields["age"] = None if found.age is None else round(found.age, 3)
        if info:
            more = info.as_dict().items()
            fields |= {k: v for k, v in more if k not in fields and v is not None}
        fields["path"] = found.path
    if options.json:
        _print_json(fields)
    else:
        for key, value in fields.items():
            if value is not None:
                shown = str(value).lower() if isinstance(value, bool) else value
                print(f"{key}: {printable(str(shown))}")
    return HELD if locked else OK


def _clean(options: argparse.Namespace) -> int:
    for removed in semlock.clean(options.path):
        if options.json:
            _print_json({"removed": removed.path, "reason": removed.reason})
        elif not options.quiet:
            print(f"removed {removed.path}: {removed.reason}")
    return OK


_VERBS = {"run": _run, "try": _try, "release": _release, "status": _status, "clean": _clean}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parse(sys.argv[1:] if arguments is None else list(arguments))
    try:
        return _VERBS[options.verb](options)
    except KeyboardInterrupt:
        return BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has heard enough; nothing is left to be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BY_SIGNAL + 13
    except (OSError, ValueError, semlock.SemlockError) as error:
        _say(str(error))
        return BAD
