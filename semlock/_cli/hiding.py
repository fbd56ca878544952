"""Passwords in addresses: no command line that is shown has one, nor does ``ps`` for this process.

A password is overwritten by as many letters, so that a command line keeps its length.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

# The address's login ends at the last @ before its path.
_PASSWORDS = (
    re.compile(rb"://[^/?#@:\s\0]*:([^/?#\s\0]+)@"),
    re.compile(rb"[?&](?:ssl)?password=([^&#\s\0]+)"),
)
# Where /proc/self/stat has the place of the command line, counted from the state on.
_START, _END = 45, 46


def masked(line: bytes) -> bytes:
    """Give a command line with an x for each byte of a password."""
    for pattern in _PASSWORDS:
        for found in pattern.finditer(line):
            line = line[: found.start(1)] + b"x" * len(found[1]) + line[found.end(1) :]
    return line


def without_passwords(text: str) -> str:
    """Give a message as it may be shown: it may repeat an address from the command line."""
    return masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def hide() -> None:
    """Overwrite the passwords in this process's own command line, where the system lets it."""
    if sys.platform == "win32":
        return
    with suppress(OSError, IndexError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_START]), int(fields[_END])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            line = os.pread(memory, end - start, start)
            if (hidden := masked(line)) != line:
                os.pwrite(memory, hidden, start)
        finally:
            os.close(memory)
