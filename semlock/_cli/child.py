"""Running a command: start it, pass signals on to it, and return how it ended.

On POSIX the command's process is forked before the lock is taken, so that the lock can name it as
the holder.  It waits for a message to start, which brings the descriptors of the lock files; the
command inherits them.  For the kernel semlock and the command are then one holder, which is dead
when both have ended.

The module ``socket`` is avoided, as ``signal`` is in ``passing``.
"""

from __future__ import annotations

import os
import sys
from errno import EMFILE, ENOENT, ENOEXEC

from semlock._cli import BY_SIGNAL, NOT_FOUND
from semlock._cli.passing import (
    AT_LEAST,
    INHERITED_FROM,
    PASSED_ON,
    Ended,
    exit_code,
    failing,
    failure,
    places_of,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    Started = Callable[[], object]
elif sys.platform != "win32":
    import _signal
    import _socket


def undisturbed() -> None:
    """Have signals end this process as they end any other: it only waits for its command."""
    if sys.platform != "win32":
        for name in (*PASSED_ON, "SIGPIPE", "SIGXFSZ"):
            number = getattr(_signal, name)
            if _signal.getsignal(number) != _signal.SIG_IGN or name in ("SIGPIPE", "SIGXFSZ"):
                _signal.signal(number, _signal.SIG_DFL)


def become(command: tuple[str, ...]) -> NoReturn:
    """Exec a command; a file of no known format is a script for sh, as for shells and flock(1).

    ``os.execvp`` goes on to the next directory then, and imports ``warnings``.
    """
    name, *words = command
    refused: OSError = FileNotFoundError(ENOENT, os.strerror(ENOENT))
    for path in places_of(name):
        try:
            os.execv(path, command)  # noqa: S606 - what it is told to run
        except (FileNotFoundError, NotADirectoryError):  # noqa: PERF203 - it mostly fails
            pass
        except OSError as error:
            if error.errno == ENOEXEC:
                os.execv("/bin/sh", ("/bin/sh", path, *words))  # noqa: S606
            if not isinstance(error, PermissionError):
                raise
            refused = error
    raise refused


if sys.platform == "win32":

    class Child:
        """A command that ``run`` starts; no process is made before the lock is taken."""

        pid = None

        def __init__(self, command: tuple[str, ...], *, dies: bool = False) -> None:
            del dies
            self._command = command

        def run(self, started: Started, _inherited: Sequence[int] = ()) -> int:
            """Run the command to its end and return its exit code."""
            import signal  # noqa: PLC0415 - when the lock is held, not before
            import subprocess  # noqa: PLC0415

            # A console sends Ctrl-C to the command too, which decides what to do.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                process = subprocess.Popen(self._command)
            except OSError as error:
                return failure(self._command[0], error)
            started()
            return process.wait()

        def end(self) -> None:
            """Free all resources."""


else:
    from semlock._cli.passing import Passing, numbers

    class Child:
        """A command's process: it is forked at once, and waits until ``run`` starts it.

        If semlock ends before, the process ends without running the command.  ``dies`` says that
        the kernel, where it can, kills the command if semlock ends while that runs.
        """

        def __init__(self, command: tuple[str, ...], *, dies: bool = False) -> None:
            self._command = command
            gate, self._gate = _socket.socketpair()
            passed = tuple(numbers(PASSED_ON))
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
                name = self._command[0]
                if error := self._error():
                    raise Ended(*failing(name, error))
                code, said = exit_code(status), ""
                # A terminal sends its signals to both processes: then semlock ends by its own.
                if code > BY_SIGNAL and code - BY_SIGNAL not in numbers(PASSED_ON):
                    said = f"the process of {name} was killed before the command ran"
                raise Ended(code, said)

        def run(self, started: Started, inherited: Sequence[int] = ()) -> int:
            """Start the command, and return its exit code when it has ended.

            ``started`` is called with signals blocked, before the command runs.  The command gets
            the ``inherited`` descriptors.
            """
            with Passing(self.pid) as passing:
                started()
                try:
                    for at in range(0, len(inherited), _AT_ONCE):
                        self._gate.sendmsg([_MORE], [_rights(inherited[at : at + _AT_ONCE])])
                    self._gate.sendall(_GO)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it has ended; if by an error, that can still be read
                ended = passing.wait()
                error = self._error()
                return ended if error is None else failure(self._command[0], error)

        def _error(self) -> OSError | None:
            """Tell why the command couldn't run."""
            try:
                # The gate is closed by exec, or it delivers the error of exec or before.
                code = int.from_bytes(self._gate.recv(4), "big")
            except ConnectionResetError:
                code = 0  # it was killed
            return OSError(code, os.strerror(code)) if code else None

        def end(self) -> None:
            """Free all resources; without the gate its process ends."""
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            self._gate.close()

    # The messages at the gate, and how many descriptors go with one (the kernel's limit is 253).
    _MORE = b"+"
    _GO = b"!"
    _AT_ONCE = 250
    _INT = 4  # bytes of a descriptor's number

    def _rights(numbers: Sequence[int]) -> tuple[int, int, bytes]:
        packed = b"".join(number.to_bytes(_INT, sys.byteorder) for number in numbers)
        return _socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed

    def _is_let_go(gate: _socket.socket) -> bool:
        """Wait for the message to start, and receive the descriptors that come before it."""
        place = INHERITED_FROM
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
                        place = _moved(number, AT_LEAST)
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
