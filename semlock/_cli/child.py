"""Running a command: start it, pass signals on to it, and say how it ended.

On POSIX all signals that are to be passed on are blocked and fetched one by one, together with
the news that the command has ended, so that none comes at a moment where nobody knows what to
do with it.  The module ``signal`` is not used there: it would import ``enum``, which takes as
long as everything else together.
"""

from __future__ import annotations

import os
import sys

from semlock._cli.output import say
from semlock._cli.table import BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Started = Callable[[], object]
elif sys.platform != "win32":
    import _signal

# What ends semlock while it waits, and what the command gets to hear while it runs.
_ENDING = ("SIGTERM", "SIGHUP")
_PASSED_ON = (*_ENDING, "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")

# How the kernel says that a signal comes from itself (the terminal), and not from a process:
# SI_KERNEL on Linux and on FreeBSD.
_FROM_KERNEL = (0x80, 0x10006)


# How often to look whether the command has ended, whatever is told.
_SAFETY = 1.0


class Signalled(BaseException):
    """A signal asks semlock to end.  No error: what is held is let go of on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(status: int) -> int:
    """Make an exit code of how a process ended, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code


def failure(command: str, error: OSError) -> int:
    """Say why a command could not be started, and give the exit code that shells have for it."""
    if isinstance(error, FileNotFoundError):
        say(f"{command}: there is no such command")
        return NOT_FOUND
    say(f"{command} can't be run: {error.strerror}")
    return NOT_EXECUTABLE


if sys.platform == "win32":
    # A console gives Ctrl-C to the command too, which decides what it means.

    def interruptible() -> None:
        """Let Ctrl-C end a wait, as it does anyway."""

    def run(command: tuple[str, ...], started: Started) -> int:
        """Run a command to its end and give its exit code."""
        import signal  # noqa: PLC0415 - on the way of this system only
        import subprocess  # noqa: PLC0415

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = subprocess.Popen(command)
        except OSError as error:
            return failure(command[0], error)
        started()
        return process.wait()

else:

    def _numbers(names: Sequence[str]) -> Iterator[int]:
        """Give the signals of these names, without those that this process was told to ignore.

        nohup and a shell's & do that, and the command shall ignore them too.
        """
        for name in names:
            number = getattr(_signal, name)
            if _signal.getsignal(number) != _signal.SIG_IGN:
                yield number

    def interruptible() -> None:
        """Have the signals that would end this process at once end it in good order."""
        for number in _numbers(_ENDING):
            _signal.signal(number, _end)

    def _end(number: int, _frame: Any) -> None:
        raise Signalled(number)

    def _nothing(_number: int, _frame: Any) -> None:
        """Do nothing; unlike an ignored signal, one that comes here can be waited for."""

    def run(command: tuple[str, ...], started: Started) -> int:
        """Run a command to its end and give its exit code.

        ``started`` is called when signals are blocked and the command runs.
        """
        if not hasattr(os, "posix_spawnp"):  # which PyPy hasn't
            suspended = Suspended(command)
            try:
                return suspended.run(command, started)
            finally:
                suspended.end()
        with Passing() as passing:
            try:
                # Descriptors of a lock are closed in the command.  The two signals are those
                # that Python ignores, and that programs expect to end them.
                pid = os.posix_spawnp(
                    command[0],
                    command,
                    os.environ,
                    setsigmask=passing.before,
                    setsigdef=(_signal.SIGPIPE, _signal.SIGXFSZ),
                )
            except OSError as error:
                return failure(command[0], error)
            started()
            return passing.wait_for(pid)

    class Passing:
        """Signals go to the command: blocked from the beginning to the end of the block."""

        def __init__(self) -> None:
            self._passed = set(_numbers(_PASSED_ON))
            self.before: set[int] = set()

        def __enter__(self) -> Passing:
            _signal.signal(_signal.SIGCHLD, _nothing)
            self.before = set(
                _signal.pthread_sigmask(_signal.SIG_BLOCK, {*self._passed, _signal.SIGCHLD})
            )
            return self

        def __exit__(self, *_: object) -> None:
            # Signals that came too late for the command are for nobody.
            for number in self._passed:
                _signal.signal(number, _nothing)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self.before)

        def wait_for(self, pid: int) -> int:
            """Wait until a process has ended, and give its exit code."""
            while True:
                number = self._next()
                if number not in (None, _signal.SIGCHLD):
                    os.kill(pid, number)
                    continue
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return exit_code(status)

        def _next(self) -> int | None:
            """Wait for the next signal that means something; ``None``: look for oneself."""
            awaited = {*self._passed, _signal.SIGCHLD}
            if not hasattr(_signal, "sigtimedwait"):
                # Where nobody tells who sent it, Ctrl-C is taken for the terminal's.
                while True:
                    number = int(_signal.sigwait(awaited))
                    if number not in (_signal.SIGINT, _signal.SIGQUIT) or not _at_terminal():
                        return number
            while True:
                # However reliable signals are: another thread could have had one.
                news = _signal.sigtimedwait(awaited, _SAFETY)
                if news is None:
                    return None
                if news.si_signo == _signal.SIGCHLD or news.si_code not in _FROM_KERNEL:
                    return int(news.si_signo)
                # What comes from the terminal has reached the command too.

    def _at_terminal() -> bool:
        return sys.stdin is not None and sys.stdin.isatty()

    class Suspended:
        """A command's process that has begun, and runs the command when it is let go.

        So that a lock can name it as the holder before it runs.
        """

        def __init__(self, command: tuple[str, ...]) -> None:
            gate, self._gate = os.pipe()
            self._report, report = os.pipe()
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self._gate)
                os.close(self._report)
                _become(command, gate, report)
            os.close(gate)
            os.close(report)

        def run(self, command: tuple[str, ...], started: Started) -> int:
            """Let it go, and give the command's exit code."""
            with Passing() as passing:
                started()
                try:  # noqa: SIM105 - importing contextlib takes longer than all of this
                    os.write(self._gate, b"!")
                except BrokenPipeError:
                    pass  # it was killed meanwhile, which is told below
                code = int.from_bytes(os.read(self._report, 4), "big")
                ended = passing.wait_for(self.pid)
            return failure(command[0], OSError(code, os.strerror(code))) if code else ended

        def end(self) -> None:
            """Give everything back.  A process that was never let go ends by itself."""
            os.close(self._gate)
            os.close(self._report)

    def _become(command: tuple[str, ...], gate: int, report: int) -> None:
        """Wait to be let go, and become the command; without that, end."""
        try:
            for number in (*_numbers(_PASSED_ON), _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            if os.read(gate, 1):
                os.execvp(command[0], command)  # noqa: S606 - what it is told to run
        except OSError as error:
            os.write(report, (error.errno or 1).to_bytes(4, "big"))
        finally:
            os._exit(NOT_FOUND)
