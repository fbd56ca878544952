"""A program with a terminal of its own: a pseudo-terminal, of which a test is the other side."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from clilib import PATIENCE

CLEAR = "\r\x1b[K"


class Terminal:
    """A program with a terminal of its own, which is a session of its own too."""

    def __init__(self, *line, columns=80, term="xterm"):
        self.seen = ""
        self.code = None
        self.counted = 0
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = term
            os.environ["PYTHONIOENCODING"] = "utf-8"
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execvp(line[0], line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            if self.code is None:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self._end)

    def type(self, text):
        os.write(self._end, text.encode())

    def read(self, seconds):
        """Read what comes within a time; ``False`` when nothing will come any more."""
        if select.select([self._end], [], [], seconds)[0]:
            try:
                data = os.read(self._end, 65536)
            except OSError:
                return False
            self.seen += data.decode("utf-8", "replace")
            return bool(data)
        return True

    def until(self, pattern):
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, self.seen
            assert self.read(0.05) or re.search(pattern, self.seen), self.seen
        return re.search(pattern, self.seen)

    def count(self, word):
        """Count a word in what was seen, and forget that."""
        self.counted += self.seen.count(word)
        self.seen = self.seen.rsplit(word, 1)[-1]

    def ends(self):
        """Read to the end, and give the exit code."""
        end = time.monotonic() + PATIENCE
        while self.read(0.05):
            assert time.monotonic() < end, self.seen
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    @property
    def shown(self):
        """What is left on the screen: lines that were not cleared."""
        return [line.rsplit(CLEAR, 1)[-1] for line in self.seen.split("\n")]
