"""Telling who is waited for: in lines, or on a terminal in one line that is redrawn."""

from __future__ import annotations

import sys

from semlock._cli.output import describe_refusal, print_json
from semlock._records import printable

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import TracebackType

    from semlock._status import LockStatus

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_PAUSE = 0.1
_WIDTH = 80  # of a terminal that doesn't know its own
_CLEAR = "\r\x1b[K"


class Teller:
    """Called with a status and the seconds waited so far, tells people about the wait.

    It is a context manager, which leaves no line behind that is not finished.
    """

    def __init__(self, *, quiet: bool, as_json: bool = False) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self._spinner: Spinner | None = None

    def __call__(self, found: LockStatus, waited: float) -> None:
        """Tell once more."""
        if found.state == "free":
            return
        if self._as_json:
            print_json(describe_refusal(found) | {"waited": round(waited, 3)}, of_run=True)
            return
        if self._quiet:
            return
        words = f"waiting for {found.path}, held by {found.holder}"
        if not _draws():
            after = f" (after {waited:.0f} s)" if waited >= 0.5 else ""
            print(f"semlock: {printable(words)}{after}", file=sys.stderr, flush=True)
        elif self._spinner is None:
            self._spinner = Spinner(words, waited)
        else:
            self._spinner.words = words

    def __enter__(self) -> Teller:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._spinner is not None:
            self._spinner.stop()


def _draws() -> bool:
    """Tell whether standard error is a terminal where a line can be redrawn."""
    import os  # noqa: PLC0415 - for those who wait

    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Spinner:
    """One line of the terminal that shows that time passes."""

    def __init__(self, words: str, waited: float) -> None:
        import threading  # noqa: PLC0415 - for those who wait at a terminal
        import time  # noqa: PLC0415

        self.words = words
        self._clock = time.monotonic
        self._began = self._clock() - waited
        self._over = threading.Event()
        utf8 = (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
        self._frames = _FRAMES if utf8 else _PLAIN_FRAMES
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()

    def _draw(self) -> None:
        import signal  # noqa: PLC0415 - for those who wait at a terminal

        if sys.platform != "win32":
            # A thread is there for a moment after it was joined, and would swallow the news
            # that the command has ended.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        turn = 0
        while True:
            self._put(_CLEAR + self._line(turn))
            turn += 1
            if self._over.wait(_PAUSE):
                return

    def _line(self, turn: int) -> str:
        import os  # noqa: PLC0415

        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            width = 0
        seconds = int(self._clock() - self._began)
        head = f"{self._frames[turn % len(self._frames)]} {seconds} s "
        # Room for the ^C that a terminal writes behind it: a line that wraps is not cleared.
        return (head + printable(self.words))[: max(1, (width or _WIDTH) - 3)]

    @staticmethod
    def _put(text: str) -> None:
        encoding = sys.stderr.encoding or "ascii"
        try:
            sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
            sys.stderr.flush()
        except OSError:
            pass  # the terminal has gone away, which is no reason to stop waiting

    def stop(self) -> None:
        """Remove the line."""
        self._over.set()
        self._thread.join()
        self._put(_CLEAR)
