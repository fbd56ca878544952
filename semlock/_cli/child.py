"""Running a command: start it, pass signals on to it, and return how it ended.

On POSIX the command's process is forked before the lock is taken, so that the lock can name it as
the holder.  It waits for a message to start, which brings the descriptors of the lock files; the
command inherits them.  For the kernel semlock and the command are then one holder, which is dead
when both have ended.

Signals that are passed on are blocked and fetched one by one, together with SIGCHLD, so none is
lost between two calls.  The modules ``signal`` and ``socket`` are avoided: they import ``enum``,
which takes as long as everything else together.
"""

from __future__ import annotations

import os
import sys
from errno import EMFILE, ENOENT, ENOEXEC

from semlock._cli import BAD, BY_SIGNAL, NOT_EXECUTABLE, NOT_FOUND

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType
    from typing import NoReturn

    Started = Callable[[], object]
elif sys.platform != "win32":
    import _signal
    import _socket

# Signals that end semlock while it waits, and that are passed to the running command.
_ENDING = ("SIGTERM", "SIGHUP")
_PASSED_ON = (*_ENDING, "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")

# The si_code of signals that the kernel (the terminal) sends, and no process: SI_KERNEL on Linux
# and on FreeBSD.
_FROM_KERNEL = (0x80, 0x10006)
# How often to check for the command's end without a signal.
_SAFETY = 1.0
# After how many failures of the call that waits for signals another way is used.
_REFUSALS = 3


class Ended(BaseException):
    """semlock is to end with an exit code.  What is held is released on the way out."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def _say(message: str) -> None:
    from semlock._cli.output import say  # noqa: PLC0415 - only where something is wrong

    say(message)


def exit_code(status: int) -> int:
    """Turn a process's end into an exit code, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code


def undisturbed() -> None:
    """Have signals end this process as they end any other: it only waits for its command."""
    if sys.platform != "win32":
        for name in (*_PASSED_ON, "SIGPIPE", "SIGXFSZ"):
            number = getattr(_signal, name)
            if _signal.getsignal(number) != _signal.SIG_IGN or name in ("SIGPIPE", "SIGXFSZ"):
                _signal.signal(number, _signal.SIG_DFL)


def become(command: tuple[str, ...]) -> NoReturn:
    """Exec a command; a file of no known format is a script for sh, as for shells and flock(1).

    ``os.execvp`` goes on to the next directory then, and imports ``warnings``.
    """
    name, *words = command
    places = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    refused: OSError = FileNotFoundError(ENOENT, os.strerror(ENOENT))
    for place in places if name else ():
        path = os.path.join(place, name)
        try:
            os.execv(path, command)  # noqa: S606 - what it is told to run
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            if error.errno == ENOEXEC:
                os.execv("/bin/sh", ("/bin/sh", path, *words))  # noqa: S606
            if not isinstance(error, PermissionError):
                raise
            refused = error
    raise refused


def failure(command: str, error: OSError) -> int:
    """Report why a command could not be started, and return the shells' exit code for it."""
    if isinstance(error, FileNotFoundError):
        _say(f"{command or repr(command)}: there is no such command")
        return NOT_FOUND
    _say(f"{command} can't be run: {error.strerror}")
    return NOT_EXECUTABLE


if sys.platform == "win32":
    from semlock._cli.child_windows import Child as Child  # noqa: PLC0414 - it is for others
    from semlock._cli.child_windows import interruptible as interruptible  # noqa: PLC0414

else:

    def _numbers(names: Sequence[str]) -> Iterator[int]:
        """Give the numbers of these signals, without those that this process ignores.

        nohup and a shell's & ignore signals, and the command shall ignore them too.
        """
        for name in names:
            number = getattr(_signal, name)
            if _signal.getsignal(number) != _signal.SIG_IGN:
                yield number

    def interruptible() -> None:
        """Turn signals that would kill this process into exceptions."""
        for number in _numbers(_ENDING):
            _signal.signal(number, _end)

    def _end(number: int, _frame: FrameType | None) -> None:
        raise Ended(BY_SIGNAL + number)

    def _nothing(_number: int, _frame: FrameType | None) -> None:
        """Do nothing; in contrast to an ignored signal, this one can be waited for."""

    class Child:
        """A command's process: it is forked at once, and waits until ``run`` starts it.

        If semlock ends before, the process ends without running the command.  ``dies`` says that
        the kernel, where it can, kills the command if semlock ends while that runs.
        """

        def __init__(self, command: tuple[str, ...], *, dies: bool = False) -> None:
            self._command = command
            gate, self._gate = _socket.socketpair()
            passed = tuple(_numbers(_PASSED_ON))
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, (*passed, _signal.SIGCHLD))
            try:
                # A process that ignores SIGCHLD can't get its children's exit codes.
                ignored = _signal.signal(_signal.SIGCHLD, self._check) == _signal.SIG_IGN
                self.pid = os.fork()
                if self.pid == 0:
                    # Signals are blocked, so no handler of ours runs in the child.
                    self._gate.close()
                    if dies:
                        _die_with_parent()
                    _become(command, gate, passed, before, ignored)
                gate.close()
            finally:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)

        def _check(self, *_: object) -> None:
            """End a wait for the lock whose command can't run, because its process has ended."""
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = self._error() or exit_code(status)
                # A terminal sends its signals to both processes: then semlock ends by its own.
                if code > BY_SIGNAL and code - BY_SIGNAL not in _numbers(_PASSED_ON):
                    _say(f"the process of {self._command[0]} was killed before the command ran")
                raise Ended(code)

        def run(self, started: Started, inherited: Sequence[int] = ()) -> int:
            """Start the command, and return its exit code when it has ended.

            ``started`` is called with signals blocked, before the command runs.  The command gets
            the ``inherited`` descriptors.
            """
            with _Passing(self.pid) as passing:
                started()
                try:
                    for at in range(0, len(inherited), _AT_ONCE):
                        self._gate.sendmsg([_MORE], [_rights(inherited[at : at + _AT_ONCE])])
                    self._gate.sendall(_GO)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it has ended; if by an error, that can still be read
                ended = passing.wait()
                return self._error() or ended

        def _error(self) -> int:
            """Report why the command couldn't run, and return the exit code for it; 0 if it ran."""
            try:
                # The gate is closed by exec, or it delivers the error of exec or before.
                code = int.from_bytes(self._gate.recv(4), "big")
            except ConnectionResetError:
                code = 0  # it was killed
            return code and failure(self._command[0], OSError(code, os.strerror(code)))

        def end(self) -> None:
            """Free all resources; without the gate its process ends."""
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            self._gate.close()

    # The messages at the gate, and how many descriptors go with one (the kernel's limit is 253).
    _MORE = b"+"
    _GO = b"!"
    _AT_ONCE = 250
    _INT = 4  # bytes of a descriptor's number

    # The command's numbers of them begin here: above those that scripts use in `exec 3>file`,
    # and none of the round numbers that are used with flock(1).
    _INHERITED_FROM = 213
    _AT_LEAST = 10  # if numbers are limited

    def _rights(numbers: Sequence[int]) -> tuple[int, int, bytes]:
        packed = b"".join(number.to_bytes(_INT, sys.byteorder) for number in numbers)
        return _socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed

    def _is_let_go(gate: _socket.socket) -> bool:
        """Wait for the message to start, and receive the descriptors that come before it."""
        place = _INHERITED_FROM
        while True:
            word, ancillary, flags, _ = gate.recvmsg(1, _socket.CMSG_SPACE(_AT_ONCE * _INT))
            if flags & _socket.MSG_CTRUNC:
                raise OSError(EMFILE, "not all of them have come")
            for _, _, packed in ancillary:
                for at in range(0, len(packed), _INT):
                    number = int.from_bytes(packed[at : at + _INT], sys.byteorder)
                    try:
                        place = _moved(number, place)
                    except OSError:
                        place = _moved(number, _AT_LEAST)
            if word != _MORE:
                return word == _GO

    def _moved(number: int, place: int) -> int:
        """Move a descriptor to the first free number from one on, where a command inherits it.

        The module ``fcntl`` has a call for this, and takes longer to load than all of this takes.
        """
        try:
            while True:
                os.fstat(place)
                place += 1
        except OSError:
            os.dup2(number, place)
        os.close(number)
        return place

    def _die_with_parent() -> None:
        """Have the kernel kill this process, and what it becomes, when its parent has ended."""
        if sys.platform == "linux":
            try:
                import ctypes  # noqa: PLC0415 - while there is nothing else to do

                ctypes.CDLL(None).prctl(1, int(_signal.SIGKILL))  # PR_SET_PDEATHSIG
            except (ImportError, OSError, AttributeError):
                pass

    def _become(
        command: tuple[str, ...],
        gate: _socket.socket,
        passed: tuple[int, ...],
        mask: set[_signal.Signals] | set[int],
        ignores_children: bool,
    ) -> None:
        """Wait for the message to start and exec the command; without it, exit."""
        try:
            # Python ignores the last two; programs expect their default, to be ended by them.
            for number in (*passed, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            if ignores_children:
                _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
            if _is_let_go(gate):
                become(command)
        except BaseException as error:  # noqa: BLE001 - semlock tells it
            gate.send((getattr(error, "errno", None) or EMFILE).to_bytes(4, "big"))
        finally:
            os._exit(NOT_FOUND)

    class _Passing:
        """Passes signals on to the command; they are blocked within the block."""

        def __init__(self, pid: int) -> None:
            self._pid = pid
            self._passed = set(_numbers(_PASSED_ON))
            # SIGALRM makes it check for the command's end from time to time, as another thread
            # may have consumed SIGCHLD.  A timeout of sigtimedwait doesn't work: after a long
            # stop of the process Python returns a signal that never came.
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
            # Signals that came after the command's end are dropped.
            for number in self._passed:
                _signal.signal(number, _nothing)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)

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
                    _say(f"it is not known how process {self._pid} has ended")
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
                    _say(
                        f"{name} can't be passed on to process {self._pid} ({error.strerror}), "
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
                known = from_terminal and number in self._passed
                if not known or not self._has_reached_it(number):
                    return number

        def _has_reached_it(self, number: int) -> bool:
            """Tell whether the terminal has sent this signal to the command too.

            It sends to a process group; a hangup is sent to the session's leader.
            """
            if number == _signal.SIGHUP and os.getsid(0) == os.getpid():
                return False
            try:
                return os.getpgid(self._pid) == os.getpgrp()
            except OSError:
                return False

    def _is_terminals(number: int) -> bool:
        """Guess whether the terminal has sent a signal, on systems that don't say."""
        at_terminal = sys.stdin is not None and sys.stdin.isatty()
        return number in (_signal.SIGINT, _signal.SIGQUIT) and at_terminal
