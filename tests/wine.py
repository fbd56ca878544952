"""Which Wine this is, if it is what stands here for Windows; otherwise empty.

What only Wine does wrong is left out there.  Processes that have no pytest ask as well, so this
imports nothing of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

WINE = ""
if sys.platform == "win32":
    with contextlib.suppress(AttributeError):
        _version = ctypes.CDLL("ntdll").wine_get_version
        _version.restype = ctypes.c_char_p
        WINE = _version().decode()
