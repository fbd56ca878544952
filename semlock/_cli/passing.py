"""Signals of a command that runs: which reach it, how its end is noticed, and its exit code.

Signals that are passed on are blocked and fetched one by one, together with SIGCHLD, so none is
lost between two calls.  The module ``signal`` is avoided: it imports ``enum``, which takes as long
as everything else together.

On Linux the core starts a command under a lock that is free, which is taken for this process and
handed to the command's; everywhere else, and for locks that are waited for, ``child`` does it.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from semlock._cli import BAD, BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND
from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from semlock._core.compiled import semlock_lock
elif sys.platform != "win32":
    import _signal

# Signals that end semlock while it waits, and that are passed to the running command.
_ENDING = ("SIGTERM", "SIGHUP")
PASSED_ON = (*_ENDING, "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")

# The si_code of signals that the kernel (the terminal, a timer) sends, and no process: SI_KERNEL
# on Linux and on FreeBSD.
_FROM_KERNEL = (0x80, 0x10006)
# How often to check for the command's end without a signal.
_SAFETY = 1.0
_NEVER = float("inf")
# The command's numbers of the descriptors of locks begin here: above those that scripts use in
# `exec 3>file`, and none of the round numbers that are used with flock(1).
INHERITED_FROM = 213
AT_LEAST = 10  # if numbers are limited
_BITS = 64  # the signals that the core can name

# After how many failures of the call that waits for signals another way is used.
_REFUSALS = 3


class Ended(BaseException):
    """semlock is to end with an exit code.  What is held is released on the way out.

    What is to be said is said there: a handler may interrupt an import, and then can't import.
    """

    def __init__(self, exit_code: int, said: str = "") -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self.said = said


def tell(message: str) -> None:
    """Say on standard error what is wrong."""
    from semlock._cli.output import say  # noqa: PLC0415 - only where something is wrong

    say(message)


def exit_code(status: int) -> int:
    """Turn a process's end into an exit code, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code


def failing(command: str, error: OSError) -> tuple[int, str]:
    """Give the shells' exit code for a command that could not be started, and say why."""
    if not isinstance(error, FileNotFoundError):
        return NOT_EXECUTABLE, f"{command} can't be run: {error.strerror}"
    there = next(filter(os.path.exists, places_of(command)), None)
    if there:
        return NOT_FOUND, f"{there} can't be run: the interpreter that it names is not there"
    return NOT_FOUND, f"{command or repr(command)}: there is no such command"


def failure(command: str, error: OSError) -> int:
    """Report why a command could not be started, and return the exit code for it."""
    code, said = failing(command, error)
    tell(said)
    return code


def places_of(name: str) -> list[str]:
    """Name the files that a command may be, in order."""
    if not name:
        return []
    places = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [os.path.join(place, name) for place in places]


if sys.platform == "win32":

    def interruptible() -> None:
        """Let Ctrl-C end a wait, which it does anyway."""

else:

    def run_as_holder(command: tuple[str, ...], lock: semlock_lock) -> int:
        """Run a command that is the holder of a lock from now on, and return its exit code."""
        with Passing() as passing:
            error = passing.start(command, lock)
            code = passing.wait() if passing.pid else BAD
            return code if error is None else failure(command[0], error)

    def numbers(names: Sequence[str]) -> Iterator[int]:
        """Give the numbers of these signals, without those that this process ignores.

        nohup and a shell's & ignore signals, and the command shall ignore them too.
        """
        for name in names:
            number = getattr(_signal, name)
            if _signal.getsignal(number) != _signal.SIG_IGN:
                yield number

    def interruptible() -> None:
        """Turn signals that would kill this process into exceptions."""
        for number in numbers(_ENDING):
            _signal.signal(number, _end)

    def _end(number: int, _frame: FrameType | None) -> None:
        raise Ended(BY_SIGNAL + number)

    def _set_timer(first: float, again: float = 0.0) -> tuple[float, float]:
        """Set the timer, and give what is left of the one before."""
        try:
            return _signal.setitimer(_signal.ITIMER_REAL, first, again)
        except OSError:
            return 0.0, 0.0  # in a sandbox that forbids it, SIGCHLD alone tells of the end

    def _nothing(_number: int, _frame: FrameType | None) -> None:
        """Do nothing; in contrast to an ignored signal, this one can be waited for."""

    class Passing:
        """Passes signals on to the command; they are blocked within the block."""

        def __init__(self, pid: int = 0) -> None:
            self.pid = pid
            self._passed = set(numbers(PASSED_ON))
            # SIGALRM makes it check for the command's end from time to time, as another thread
            # may have consumed SIGCHLD.  A timeout of sigtimedwait doesn't work: after a long
            # stop of the process Python returns a signal that never came.
            self._awaited = {*self._passed, _signal.SIGCHLD, _signal.SIGALRM}
            self._before: set[int] = set()
            self._ignored: list[int] = []
            self._refused = False
            # When the timer runs out that was set before this program was executed, and the time
            # from then on to the next: `perl -e 'alarm 5; exec @ARGV' semlock run ...`.
            self._alarm = self._again = _NEVER

        def __enter__(self) -> Passing:
            for number in (_signal.SIGCHLD, _signal.SIGALRM):
                if _signal.signal(number, _nothing) == _signal.SIG_IGN:
                    self._ignored.append(number)
            self._before = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, self._awaited))
            left, again = _set_timer(_SAFETY, _SAFETY)
            if left:
                self._alarm, self._again = monotonic() + left, again or _NEVER
                _set_timer(left % _SAFETY or _SAFETY, _SAFETY)
            return self

        def __exit__(self, *_: object) -> None:
            _set_timer(0)
            # Signals that came after the command's end are dropped.
            for number in self._passed:
                _signal.signal(number, _nothing)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)

        def start(self, command: tuple[str, ...], lock: semlock_lock) -> OSError | None:
            """Start the command as the holder of a lock; give the error if it doesn't run."""
            # Python ignores the last two; programs expect their default, to be ended by them.
            defaults = {*self._awaited, _signal.SIGPIPE, _signal.SIGXFSZ}.difference(
                self._ignored
            )
            self.pid, code = capi.spawn(
                lock,
                places_of(command[0]),
                command,
                (INHERITED_FROM, AT_LEAST),
                (_bits(self._before), _bits(self._ignored), _bits(defaults)),
            )
            return OSError(-code, os.strerror(-code)) if code else None

        def wait(self) -> int:
            """Wait for the command's end, and return its exit code."""
            refused = 0
            while (code := self._ended(os.WNOHANG)) is None:
                try:
                    number = self._next()
                except OSError:
                    refused += 1
                    if refused == _REFUSALS:
                        return self._wait_by_handlers()
                    continue
                if number in self._passed:
                    self._pass_on(number)
            return code

        def _wait_by_handlers(self) -> int:
            """Wait in a sandbox that forbids waiting for signals.

            A handler passes them on.  A signal just before the call that waits for the command is
            handled at the next alarm at the latest.
            """

            def handle(number: int, _frame: FrameType | None) -> None:
                if number == _signal.SIGALRM and not self._is_due():
                    return
                if not _is_terminals(number) or not self._has_reached_it(number):
                    self._pass_on(number)

            for number in self._passed:
                _signal.signal(number, handle)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, self._awaited)
            while (code := self._ended(0)) is None:
                pass
            return code

        def _ended(self, options: int) -> int | None:
            """Return how the command ended, if it has; reap other children, as process 1 must."""
            while True:
                try:
                    pid, status = os.waitpid(-1, options)
                except ChildProcessError:
                    tell(f"it is not known how process {self.pid} has ended")
                    return BAD
                if pid == self.pid:
                    return exit_code(status)
                if pid == 0:
                    return None

        def _pass_on(self, number: int) -> None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass
            except OSError as error:
                if not self._refused:
                    self._refused = True
                    name = next(name for name in PASSED_ON if getattr(_signal, name) == number)
                    tell(
                        f"{name} can't be passed on to process {self.pid} ({error.strerror}), "
                        "so it runs on and the lock stays with it"
                    )

        def _next(self) -> int:
            """Wait for the next signal that matters."""
            while True:
                if hasattr(_signal, "sigwaitinfo"):
                    news = _signal.sigwaitinfo(self._awaited)
                    number = int(news.si_signo)
                    from_terminal = news.si_code in _FROM_KERNEL
                else:
                    number = int(_signal.sigwait(self._awaited))
                    from_terminal = _is_terminals(number)
                if number == _signal.SIGALRM:
                    sent = hasattr(_signal, "sigwaitinfo") and not from_terminal
                    return number if sent or self._is_due() else _signal.SIGCHLD
                known = from_terminal and number in self._passed
                if not known or not self._has_reached_it(number):
                    return number

        def _is_due(self) -> bool:
            """Tell whether the timer has run out that was set before this program began."""
            if monotonic() < self._alarm:
                return False
            self._alarm += self._again
            return True

        def _has_reached_it(self, number: int) -> bool:
            """Tell whether the terminal has sent this signal to the command too.

            It sends to a process group; a hangup is sent to the session's leader.
            """
            if number == _signal.SIGHUP and os.getsid(0) == os.getpid():
                return False
            try:
                return os.getpgid(self.pid) == os.getpgrp()
            except OSError:
                return False

    def _bits(some: Iterable[int]) -> int:
        return sum(1 << number - 1 for number in some if number <= _BITS)

    def _is_terminals(number: int) -> bool:
        """Guess whether the terminal has sent a signal, on systems that don't say."""
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        return number in (_signal.SIGINT, _signal.SIGQUIT) and at_terminal
