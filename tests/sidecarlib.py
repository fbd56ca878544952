"""Sidecar locks of other programs, and callbacks of their users."""

import json
import os
import sys
import time

import pytest

from semlock.sidecar import RetryOptions
from support import (
    iso,
)

# Only there does the kernel vouch for a holder, and are finished files kept for the next win.
only_linux = pytest.mark.skipif(
    not sys.platform.startswith(("linux", "win32")), reason="the kernel has no witness here"
)


ONCE = RetryOptions(retries=0)


TOKEN = "\t" * 8 + " \t" * 64


def put(lock_file, payload, age=0.0, token=""):
    """Leave a lock of another program, whose file was written so many seconds ago."""
    text = payload if isinstance(payload, str) else json.dumps(payload, indent=2) + "\n" + token
    lock_file.write_bytes(text.encode())
    os.utime(lock_file, (time.time() - age,) * 2)


def created(age):
    return {"pid": 1, "createdAt": iso(time.time() - age)}


class Calls(list):
    """A callback that gives one answer and remembers what it was told."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def __call__(self, told):
        self.append(told)
        return self.answer
