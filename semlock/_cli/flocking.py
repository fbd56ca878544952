"""``flock``: what flock(1) of util-linux does, with its options, exit codes and order of arguments.

The wait is semlock's: in order among semlock's waiters, woken by events.  The lock is on the open
file, so it lasts as long as any process has a descriptor of it: it is never unlocked here.
"""

from __future__ import annotations

import errno
import os
import sys
from time import monotonic

from semlock._cli import child, passing
from semlock._cli.flock_verb import FLOCK
from semlock._core import capi, inside
from semlock._core.errors import LockTimeoutError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator

    from semlock._cli import Options

# The exit codes of sysexits.h.
_USAGE = 64
_DATA = 65
_NO_INPUT = 66
_UNAVAILABLE = 69
_OS = 71
_CANT_CREATE = 73

_LONGEST = 1e9
_TICK = 1e-6  # the timer of flock(1) counts microseconds: less than one is none
_LARGEST = 2**31 - 1


class _CallError(Exception):
    """A call that can't be carried out: the message, and the exit code."""

    def __init__(self, message: str, code: int = _USAGE) -> None:
        super().__init__(message)
        self.code = code


class _Call:
    """What a call asks for."""

    shared = unlock = at_once = close = no_fork = verbose = False
    timeout: float | None = None
    conflict = 1
    words: tuple[str, ...] = ()
    answer = ""


# The long words, and the letter that each stands for; their beginnings are words too.
_LONG = {
    "shared": "s", "exclusive": "x", "unlock": "u", "nonblocking": "n", "nb": "n",
    "timeout": "w", "wait": "w", "conflict-exit-code": "E", "close": "o", "no-fork": "F",
    "verbose": "v", "help": "h", "version": "V",
}  # fmt: skip
_LETTERS = "sexnuoFw:E:hV"


def _switches(words: list[str]) -> Iterator[tuple[str, str]]:
    """Give the options before the first other word, which are taken from the list."""
    while words and len(words[0]) > 1 and words[0][0] == "-":
        word = words.pop(0)
        if word == "--":
            return
        if word.startswith("--"):
            yield _long(word[2:], words)
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter == ":" or letter not in _LETTERS:
                raise _CallError(f"invalid option -- '{letter}'")
            value = ""
            if f"{letter}:" in _LETTERS:
                if not letters and not words:
                    raise _CallError(f"option requires an argument -- '{letter}'")
                value, letters = letters or words.pop(0), ""
            yield letter, value


def _long(word: str, words: list[str]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    meant = {_LONG[one] for one in _LONG if one.startswith(name)}
    letter = _LONG.get(name) or (meant.pop() if len(meant) == 1 else "")
    if not letter:
        kind = "is ambiguous" if meant else "is not known"
        raise _CallError(f"option '--{name}' {kind}")
    takes = f"{letter}:" in _LETTERS
    if equals and not takes:
        raise _CallError(f"option '--{name}' doesn't allow an argument")
    if takes and not equals:
        if not words:
            raise _CallError(f"option '--{name}' requires an argument")
        value = words.pop(0)
    return letter, value


def _read(arguments: tuple[str, ...]) -> _Call:
    call = _Call()
    words = list(arguments)
    if not words:
        raise _CallError("not enough arguments")
    for letter, value in _switches(words):
        if letter in "hV":
            call.answer = letter
            return call
        if letter == "w":
            call.timeout = _seconds(value)
        elif letter == "n":
            call.at_once = True
        elif letter == "E":
            call.conflict = _code(value)
        elif letter in "sex":
            call.shared, call.unlock = letter == "s", False
        else:
            names = {"u": "unlock", "o": "close", "F": "no_fork", "v": "verbose"}
            setattr(call, names[letter], True)
    if call.no_fork and call.close:
        raise _CallError("the --no-fork and --close options are incompatible")
    if not words:
        raise _CallError("requires file descriptor, file or directory")
    call.words = tuple(words)
    return call


def _plain(text: str) -> str:
    """Refuse what Python reads as a number and C doesn't: 1_0, other alphabets, a space behind."""
    if not text.isascii() or "_" in text or text != text.rstrip():
        raise ValueError
    return text


def _seconds(text: str) -> float:
    try:
        return (float.fromhex if "x" in text.lower() else float)(_plain(text))
    except (ValueError, OverflowError):
        raise _CallError(f"invalid timeout value: '{text}'") from None


def _code(text: str) -> int:
    try:
        code = int(_plain(text))
    except ValueError:
        raise _CallError(f"invalid exit code: '{text}'") from None
    if not 0 <= code <= 255:
        raise _CallError("exit code out of range (expected 0 to 255)")
    return code


def _limit(call: _Call) -> float | None:
    """Give the seconds that a call waits; a timer that can't be set is told only now."""
    if call.timeout is None:
        return 0.0 if call.at_once else None
    if not 0 <= call.timeout < 2**63:  # also nan
        raise _CallError("cannot set up timer: Invalid argument", _OS)
    return 0.0 if call.at_once or call.timeout < _TICK else min(call.timeout, _LONGEST)


class _HeldError(Exception):
    """The lock is held, and the time is over."""


def _say(words: str) -> None:
    from semlock._cli.hiding import without_passwords  # noqa: PLC0415 - for messages only

    print(f"semlock flock: {without_passwords(words)}", file=sys.stderr)


def _tell(words: str) -> None:
    print(f"semlock flock: {words}", flush=True)


def _answer(letter: str) -> int:
    from semlock._cli import helping  # noqa: PLC0415 - for those who ask
    from semlock._cli.output import write  # noqa: PLC0415

    if letter == "V":
        from semlock import __version__  # noqa: PLC0415

        write(f"semlock {__version__}, with the options of flock from util-linux")
    else:
        write(helping.help_of(FLOCK))
    return 0


def _number(word: str) -> int:
    try:
        number = int(_plain(word))
    except ValueError:
        raise _CallError(f"bad file descriptor: '{word}'") from None
    if abs(number) > _LARGEST:
        raise _CallError(f"bad file descriptor: '{word:.40}': {os.strerror(errno.ERANGE)}")
    return number


def _become(command: list[str]) -> int:
    try:
        child.become(tuple(command))
    except OSError as error:
        _say(f"failed to execute {command[0]}: {error.strerror}")
        sys.stderr.flush()
        return _OS if error.errno == errno.ENOMEM else _UNAVAILABLE


if sys.platform == "win32":

    def flock(options: Options) -> int:
        """Refuse: Windows has another kind of lock, and descriptors of one process only."""
        del options
        raise ValueError("semlock flock needs flock(2), which Windows doesn't have")

else:

    def flock(options: Options) -> int:
        """Lock a file and run a command, or lock a descriptor, as the words say."""
        from semlock._core.records import printable  # noqa: PLC0415 - it is there already

        try:
            call = _read(options.command)
            if call.answer:
                return _answer(call.answer)
            if len(call.words) == 1:
                fd = _number(call.words[0])
                _lock(fd, str(fd), call)
                return 0
            name, *command = call.words
            if command[0] in ("-c", "--command"):
                if len(command) != 2:
                    raise _CallError(f"{command[0]} requires exactly one command argument")  # noqa: TRY301 - as others
                command = [os.environ.get("SHELL") or "/bin/sh", "-c", command[1]]
            fd = _open(name)
            _lock(fd, name, call)
            return _run(fd, command, call)
        except _CallError as error:
            _say(printable(str(error)))
            if error.code == _USAGE:
                print("Try 'semlock flock --help' for more information.", file=sys.stderr)
            return error.code
        except _HeldError:
            return call.conflict

    def _open(name: str) -> int:
        """Open the file as flock(1) does: for reading, and made if there is none."""
        flags = os.O_RDONLY | os.O_NOCTTY
        try:
            try:
                return os.open(name, flags | os.O_CREAT, 0o666)
            except IsADirectoryError:
                return os.open(name, flags)
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", None) or errno.EINVAL
            exits = {errno.ENOMEM: _OS, errno.EMFILE: _OS, errno.ENFILE: _OS}
            exits |= {errno.EROFS: _CANT_CREATE, errno.ENOSPC: _CANT_CREATE}
            words = getattr(error, "strerror", None) or str(error)
            raise _CallError(
                f"cannot open lock file {name}: {words}", exits.get(code, _NO_INPUT)
            ) from None

    def _lock(fd: int, name: str, call: _Call) -> None:
        from fcntl import LOCK_UN  # noqa: PLC0415 - not on Windows
        from fcntl import flock as call_flock  # noqa: PLC0415

        from semlock._locks.kernel import KernelLock  # noqa: PLC0415 - for those who lock

        began, limit = monotonic(), _limit(call)
        try:
            if call.unlock:
                call_flock(fd, LOCK_UN)
                return
            passing.interruptible()
            lock = KernelLock.from_fd(fd, shared=call.shared)
            lock.acquire(timeout=limit)
            # From now on it belongs to the open file, and not to this process.
            capi.detach_lock(inside.native(lock))
        except LockTimeoutError as error:
            if call.verbose:
                holder = (
                    "" if error.status is None else f": it is held by {error.status.holder}"
                )
                _say(
                    f"timeout while waiting to get lock{holder}"
                    if limit
                    else f"failed to get lock{holder}"
                )
            raise _HeldError from None
        except (OSError, ValueError) as error:
            code = getattr(error, "errno", errno.EBADF)
            words = os.strerror(code)
            exits = _OS if code in (errno.ENOLCK, errno.ENOMEM) else _DATA
            raise _CallError(f"{name}: {words}", exits) from None
        if call.verbose:
            _tell(f"getting lock took {monotonic() - began:.6f} seconds")

    def _run(fd: int, command: list[str], call: _Call) -> int:
        """Run the command, which inherits the descriptor unless told otherwise."""
        if call.verbose:
            _tell(f"executing {command[0]}")
        os.set_inheritable(fd, not call.close)
        child.undisturbed()
        sys.stdout.flush()
        sys.stderr.flush()
        if call.no_fork:
            return _become(command)
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(_become(command))
            finally:
                os._exit(_UNAVAILABLE)
        _, status = os.waitpid(pid, 0)
        return passing.exit_code(status)
