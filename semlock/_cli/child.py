"""Running a command: start it, pass signals on to it, and say how it ended.

On POSIX the command's process is made before the lock is taken, and runs the command when it
is let go, so that the lock can name it as the holder.  With the word to go it is sent the
descriptors of the lock files, and the command inherits them: the kernel then takes semlock and
the command for one holder, which is dead when both have ended.

All signals that are to be passed on are blocked and fetched one by one, together with the news
that the command has ended, so that none comes at a moment where there is no answer to it.  The
modules ``signal`` and ``socket`` are not used there: they would import ``enum``, which takes as
long as everything else together.
"""

from __future__ import annotations

import os
import sys

from semlock._cli.grammar import BAD, BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND
from semlock._cli.output import say

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    Started = Callable[[], object]
elif sys.platform != "win32":
    import _signal
    import _socket

# What ends semlock while it waits, and what the command gets to hear while it runs.
_ENDING = ("SIGTERM", "SIGHUP")
_PASSED_ON = (*_ENDING, "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")

# How the kernel says that a signal comes from itself (the terminal), and not from a process:
# SI_KERNEL on Linux and on FreeBSD.
_FROM_KERNEL = (0x80, 0x10006)

# How often to look whether the command has ended, whatever is told.
_SAFETY = 1.0

# So often the call that waits for signals may fail before another way is taken.
_REFUSALS = 3


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

    class Child:
        """A command that is started when it is let go: no process can be made without it."""

        pid = None

        def __init__(self, command: tuple[str, ...]) -> None:
            self._command = command

        def run(self, started: Started, _inherited: Sequence[int] = ()) -> int:
            """Run the command to its end and give its exit code."""
            import signal  # noqa: PLC0415 - on the way of this system only
            import subprocess  # noqa: PLC0415

            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                process = subprocess.Popen(self._command)
            except OSError as error:
                return failure(self._command[0], error)
            started()
            return process.wait()

        def end(self) -> None:
            """Give everything back."""

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

    def _end(number: int, _frame: FrameType | None) -> None:
        raise Signalled(number)

    def _nothing(_number: int, _frame: FrameType | None) -> None:
        """Do nothing; unlike an ignored signal, one that comes here can be waited for."""

    class Child:
        """A command's process: suspended when it is made, until ``run`` lets it go.

        If semlock ends before that, by whatever way, it ends too, without running anything.
        """

        def __init__(self, command: tuple[str, ...]) -> None:
            self._command = command
            gate, self._gate = _socket.socketpair()
            passed = tuple(_numbers(_PASSED_ON))
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, passed)
            try:
                # Told to ignore its children, a process would not hear how they ended.
                ignored = _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN
                if ignored:
                    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                self.pid = os.fork()
                if self.pid == 0:
                    # Blocked as they are, no handler of ours runs in the child.
                    self._gate.close()
                    _become(command, gate, passed, before, ignored)
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
            gate.close()

        def run(self, started: Started, inherited: Sequence[int] = ()) -> int:
            """Let it go, and give the command's exit code once it has ended.

            ``started`` is called when signals are blocked, before the command runs, which gets
            the descriptors that it is to inherit.
            """
            with _Passing(self.pid) as passing:
                started()
                code = 0
                try:
                    for at in range(0, len(inherited), _AT_ONCE):
                        self._gate.sendmsg([_MORE], [_rights(inherited[at : at + _AT_ONCE])])
                    self._gate.sendall(_GO)
                    # At its end are its command's beginning, or the reason why there is none.
                    code = int.from_bytes(self._gate.recv(4), "big")
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it was killed meanwhile, which is told below
                ended = passing.wait()
            if code:
                return failure(self._command[0], OSError(code, os.strerror(code)))
            return ended

        def end(self) -> None:
            """Give everything back."""
            self._gate.close()

    # What is said at the gate, and how many descriptors go with one word: the kernel's limit
    # is 253.
    _MORE = b"+"
    _GO = b"!"
    _AT_ONCE = 250

    # The numbers that the command gets them under begin here: above those that a script names
    # in `exec 3>file`, and none of the round ones that are used with flock(1).
    _INHERITED_FROM = 213
    _AT_LEAST = 10  # where no number may be as high

    def _rights(numbers: Sequence[int]) -> tuple[int, int, bytes]:
        packed = b"".join(number.to_bytes(_INT, sys.byteorder) for number in numbers)
        return _socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed

    _INT = 4  # bytes of a descriptor's number

    def _is_let_go(gate: _socket.socket) -> bool:
        """Wait for the word to go on, and take over the descriptors that come before it."""
        from errno import EMFILE  # noqa: PLC0415 - while there is nothing else to do
        from fcntl import F_DUPFD, fcntl  # noqa: PLC0415

        while True:
            word, ancillary, flags, _ = gate.recvmsg(1, _socket.CMSG_SPACE(_AT_ONCE * _INT))
            if flags & _socket.MSG_CTRUNC:
                raise OSError(EMFILE, "not all of them have come")
            for _, _, packed in ancillary:
                for at in range(0, len(packed), _INT):
                    number = int.from_bytes(packed[at : at + _INT], sys.byteorder)
                    try:
                        fcntl(number, F_DUPFD, _INHERITED_FROM)
                    except OSError:
                        fcntl(number, F_DUPFD, _AT_LEAST)
                    os.close(number)
            if word != _MORE:
                return word == _GO

    def _become(
        command: tuple[str, ...],
        gate: _socket.socket,
        passed: tuple[int, ...],
        mask: set[_signal.Signals] | set[int],
        ignores_children: bool,
    ) -> None:
        """Wait to be let go, and become the command; without that, end."""
        try:
            # The last two are those that Python ignores, and that programs expect to end them.
            for number in (*passed, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            if ignores_children:
                _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
            if _is_let_go(gate):
                os.execvp(command[0], command)  # noqa: S606 - what it is told to run
        except OSError as error:
            gate.send((error.errno or 1).to_bytes(4, "big"))
        finally:
            os._exit(NOT_FOUND)

    class _Passing:
        """Signals go to the command: blocked from the beginning to the end of the block."""

        def __init__(self, pid: int) -> None:
            self._pid = pid
            self._passed = set(_numbers(_PASSED_ON))
            # The alarm is for looking whatever was told: another thread could have had the
            # news.  A deadline of sigtimedwait would not do: after a stop that was longer
            # Python gives a signal that never came.
            self._awaited = {*self._passed, _signal.SIGCHLD, _signal.SIGALRM}
            self._before: set[int] = set()
            self._refused = False

        def __enter__(self) -> _Passing:
            for number in (_signal.SIGCHLD, _signal.SIGALRM):
                _signal.signal(number, _nothing)
            self._before = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, self._awaited))
            _signal.setitimer(_signal.ITIMER_REAL, _SAFETY, _SAFETY)
            return self

        def __exit__(self, *_: object) -> None:
            _signal.setitimer(_signal.ITIMER_REAL, 0)
            # Signals that came too late for the command are dropped.
            for number in self._passed:
                _signal.signal(number, _nothing)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)

        def wait(self) -> int:
            """Wait until the command has ended, and give its exit code."""
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
            """Wait in a sandbox that refuses to wait for signals.

            A handler passes them on.  One that comes just before the call that waits for the
            end is handled after the next alarm at the latest.
            """

            def handle(number: int, _frame: FrameType | None) -> None:
                if not _is_terminals(number) or not self._has_reached_it(number):
                    self._pass_on(number)

            for number in self._passed:
                _signal.signal(number, handle)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, self._awaited)
            while (code := self._ended(0)) is None:
                pass
            return code

        def _ended(self, options: int) -> int | None:
            """Say how the command ended, if it has; reap what else has, as process 1 has to."""
            while True:
                try:
                    pid, status = os.waitpid(-1, options)
                except ChildProcessError:
                    say(f"it is not known how process {self._pid} has ended")
                    return BAD
                if pid == self._pid:
                    return exit_code(status)
                if pid == 0:
                    return None

        def _pass_on(self, number: int) -> None:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                pass
            except OSError as error:
                if not self._refused:
                    self._refused = True
                    name = next(name for name in _PASSED_ON if getattr(_signal, name) == number)
                    say(
                        f"{name} can't be passed on to process {self._pid} ({error.strerror}), "
                        "so it runs on and the lock stays with it"
                    )

        def _next(self) -> int:
            """Wait for the next signal that means something."""
            while True:
                if hasattr(_signal, "sigwaitinfo"):
                    news = _signal.sigwaitinfo(self._awaited)
                    number = int(news.si_signo)
                    from_terminal = news.si_code in _FROM_KERNEL
                else:
                    number = int(_signal.sigwait(self._awaited))
                    from_terminal = _is_terminals(number)
                if (
                    not from_terminal
                    or number not in self._passed
                    or not self._has_reached_it(number)
                ):
                    return number

        def _has_reached_it(self, number: int) -> bool:
            """Tell whether what the terminal has sent came to the command too.

            It goes to a process group; that it is closed is told to the session's leader.
            """
            if number == _signal.SIGHUP and os.getsid(0) == os.getpid():
                return False
            try:
                return os.getpgid(self._pid) == os.getpgrp()
            except OSError:
                return False

    def _is_terminals(number: int) -> bool:
        """Guess whether a signal is the terminal's, where its sender isn't told."""
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        return number in (_signal.SIGINT, _signal.SIGQUIT) and at_terminal
