"""Reporting a wait: in lines, or on a terminal in one line that is redrawn."""

from __future__ import annotations

import sys

from semlock._cli.output import describe_refusal, print_json, say
from semlock._core.records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.status import LockStatus

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_PAUSE = 0.1
_WIDTH = 80  # of a terminal without a known width
_CLEAR = "\r\x1b[K"

# After how many seconds a wait is reported: on a terminal, and elsewhere.
_SHORT = 0.5
_LONG = 5.0


class Teller:
    """A callback for a wait, with the status and the seconds so far, that reports a long wait.

    As a context manager it removes an unfinished line at the end.
    """

    def __init__(self, *, quiet: bool, as_json: bool = False) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self._spinner: Spinner | None = None
        self._noted = False

    def __call__(self, found: LockStatus, waited: float) -> None:
        """Report the wait once more."""
        if found.state == "free":
            return
        if self._as_json:
            print_json(describe_refusal(found) | {"waited": round(waited, 3)}, of_run=True)
            return
        if self._quiet:
            return
        words = f"waiting for {found.path}, held by {found.holder}"
        note = self._note(found) if waited >= _SHORT else ""
        if not _draws():
            if note:
                say(note)
            if waited >= _LONG:
                say(f"{words} (after {waited:.0f} s)")
        elif self._spinner is None:
            self._spinner = Spinner(words, waited)
        else:
            self._spinner.words = words
            self._spinner.note = self._spinner.note or note

    def _note(self, found: LockStatus) -> str:
        """Say once that the holder has called this command.

        Only after a while, as it takes longer than many waits to inspect the callers.
        """
        if self._noted:
            return ""
        self._noted = True
        caller = holding_caller(found)
        if not caller:
            return ""
        return f"{found.path} is held by {caller}: if that waits for this one, neither goes on"

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def holding_caller(found: LockStatus) -> str:
    """Name the holder if it is a caller of this command, or the command as ``run`` started it."""
    from semlock._cli.owners import callers, owner_name  # noqa: PLC0415 - for those who wait
    from semlock._core.identity import this_process  # noqa: PLC0415

    info, me = found.info, this_process()
    if info is None or info.pid is None or (info.boot, info.pidns or 0) != (me.boot, me.pidns):
        return ""
    if info.pid == me.pid:
        return f"process {me.pid}, which is this command itself"
    if info.pid not in callers():
        return ""
    return (
        f"process {info.pid} ({owner_name(info.pid) or 'a program'}), which called this command"
    )


def _draws() -> bool:
    """Tell whether standard error is a terminal where a line can be redrawn."""
    import os  # noqa: PLC0415 - for those who wait

    return (
        sys.stderr is not None
        and sys.stderr.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and _is_in_front()
    )


def _is_in_front() -> bool:
    """Tell whether this is no job in the background, whose line would be drawn over the shell's."""
    import os  # noqa: PLC0415 - for those who wait

    try:
        return sys.platform == "win32" or os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:
        return True  # the terminal is none that has jobs of this session


class Spinner:
    """One line of the terminal that shows that time passes.

    A signal can end any call of the main thread, ``stop`` too: a command's terminal sends one to
    both processes, whose end is a signal again.  So the thread that draws the line erases it, and
    the end of the program calls ``stop`` once more.
    """

    def __init__(self, words: str, waited: float) -> None:
        import atexit  # noqa: PLC0415 - for those who wait at a terminal
        import threading  # noqa: PLC0415
        import time  # noqa: PLC0415

        self.words = words
        self.note = ""  # a permanent line above the redrawn one
        self._clock = time.monotonic
        self._began = self._clock() - waited
        # Not an event: a signal within its `set` could leave that locked for good.
        self._going = threading.Lock()
        self._going.acquire()
        utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
        self._frames = _FRAMES if utf8 else _PLAIN_FRAMES
        self._thread = threading.Thread(target=self._draw, daemon=True)
        atexit.register(self.stop)
        self._thread.start()

    def _draw(self) -> None:
        import signal  # noqa: PLC0415 - for those who wait at a terminal

        if sys.platform != "win32":
            # A thread exists for a moment after join(), and would receive the signal that the
            # command has ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        turn = 0
        if self._is_over(_SHORT - (self._clock() - self._began)):
            return
        while True:
            note, self.note = self.note, ""
            if note:
                self._put(f"{_CLEAR}semlock: {printable(note)}\n")
            self._put(_CLEAR + self._line(turn))
            turn += 1
            if self._is_over(_PAUSE):
                break
        self._put(_CLEAR)

    def _is_over(self, seconds: float) -> bool:
        """Sleep until the end of the wait, or for so long."""
        return self._going.acquire(timeout=max(0.0, seconds))

    def _line(self, turn: int) -> str:
        import os  # noqa: PLC0415

        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            width = 0
        seconds = int(self._clock() - self._began)
        head = f"{self._frames[turn % len(self._frames)]} {seconds} s "
        # Room for the terminal's ^C: a line that wraps would not be cleared.
        return (head + printable(self.words))[: max(1, (width or _WIDTH) - 3)]

    @staticmethod
    def _put(text: str) -> None:
        if not _is_in_front():
            return
        encoding = sys.stderr.encoding or "ascii"
        try:
            sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
            sys.stderr.flush()
        except OSError:
            pass  # the terminal is gone; the wait goes on

    def stop(self) -> None:
        """Remove the line; it may be called twice."""
        if self._going.locked():
            self._going.release()
        if self._thread.is_alive():  # else it has ended, or will begin and draw nothing
            self._thread.join()
