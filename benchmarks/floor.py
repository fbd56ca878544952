"""Builds the C loops of ``floor.c`` and makes them run like the other contenders."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measuring import Loop

_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "floor.c")
_OPTIONS = ("-std=c11", "-O2", "-D_FILE_OFFSET_BITS=64", "-shared", "-fPIC")


class Floor:
    """The compiled loops."""

    def __init__(self, build_directory: str) -> None:
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("the benchmarks need a C compiler (cc): it makes the floor")
        library = os.path.join(build_directory, "floor.so")
        subprocess.run(
            [*compiler.split(), *_OPTIONS, "-o", library, _SOURCE],
            check=True,
        )
        self.path = library
        self._library = ctypes.CDLL(library)

    def loop(self, name: str, paths: Sequence[str]) -> Loop:
        """Give one loop of ``floor.c`` over these paths."""
        encoded = (ctypes.c_char_p * len(paths))(*map(os.fsencode, paths))
        function = getattr(self._library, name)
        function.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_long, ctypes.c_long]
        function.restype = ctypes.c_longlong
        return lambda operations: _checked(function(encoded, len(encoded), operations))

    def kept_loop(self, name: str, path: str) -> Loop:
        """Give one loop of ``floor.c`` that keeps a finished file from call to call."""
        encoded = os.fsencode(path)
        self._library.keep.argtypes = [ctypes.c_char_p]
        kept = _checked(self._library.keep(encoded))
        function = getattr(self._library, name)
        function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long]
        function.restype = ctypes.c_longlong
        return lambda operations: _checked(function(encoded, kept, operations))


def _checked(found: int) -> int:
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    return found
