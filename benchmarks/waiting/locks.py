"""The locks that wait, each made to say on CLOCK_MONOTONIC when it was left and entered.

Every lock waits with the defaults of its library.  Two kinds of ``flock(2)`` stand beside
them, as the least that the kernel can do: both as a Python program would write them, and in C.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import importlib.util
import inspect
import os
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kind = Literal["semlock", "kernel", "peer"]

REFERENCE = "own"  # what a wake by the kernel costs, when there is a lock file


class LibraryLock:
    """A lock of semlock or of a peer."""

    def __init__(self, lock: Any, timeout: type[Exception] | None = None) -> None:
        self.lock = lock
        self._acquire, self._release = lock.acquire, lock.release
        self._timeout = timeout

    def enter(self) -> int:
        """Wait for the lock; return when it was entered."""
        if self._timeout is None:
            self._acquire()
            return monotonic_ns()
        return self._enter_again_and_again(self._timeout)

    def _enter_again_and_again(self, timeout: type[Exception]) -> int:
        # By default portalocker gives up after 5 s; a starving process would ask again.
        while True:
            try:
                self._acquire()
            except timeout:
                continue
            return monotonic_ns()

    def leave(self) -> int:
        """Release the lock; return when that began."""
        left = monotonic_ns()
        self._release()
        return left


class KeptFlock:
    """A lock of the kernel on a file that stays."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def enter(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        entered = monotonic_ns()
        self._file = file
        return entered

    def leave(self) -> int:
        left = monotonic_ns()
        os.close(self._file)
        return left


class OwnFlock:
    """A lock file that its holder creates and locks; who waits for it waits for that lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def enter(self) -> int:
        while True:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                self._outwait()
                continue
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.fstat(self._file).st_nlink:
                return monotonic_ns()
            os.close(self._file)  # somebody was between the two and took it for dead

    def _outwait(self) -> None:
        """Return when the file that is at the path now may have been left."""
        try:
            file = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # its holder has died: who finds that out removes it
                os.unlink(self._path)
        finally:
            os.close(file)

    def leave(self) -> int:
        left = monotonic_ns()
        os.unlink(self._path)
        os.close(self._file)
        return left


class CFlock:
    """The same two in C, with the clock read there too."""

    def __init__(self, path: str, library: str, name: str) -> None:
        loaded = ctypes.CDLL(library, use_errno=False)
        self._enter, self._leave = (
            getattr(loaded, f"{name}_{do}") for do in ("enter", "leave")
        )
        self._enter.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)]
        self._leave.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._enter.restype = self._leave.restype = ctypes.c_longlong
        self._path = os.fsencode(path)
        self._file = ctypes.c_int(-1)

    def enter(self) -> int:
        return _checked(self._enter(self._path, ctypes.byref(self._file)))

    def leave(self) -> int:
        return _checked(self._leave(self._path, self._file))


def _checked(found: int) -> int:
    if found < 0:
        raise OSError(-found, errno.errorcode.get(-found, "unknown error"))
    return found


def semlock_lock(path: str, **options: Any) -> Any:
    """Make a lock of semlock that syncs no more than the others do."""
    return importlib.import_module("semlock").Lock(path, durability="none", **options)


def absent(name: str) -> str:
    """Say what keeps something of semlock from taking part; empty if nothing does."""
    return "" if hasattr(importlib.import_module("semlock"), name) else f"no semlock.{name}"


def _no_fair() -> str:
    options = inspect.signature(importlib.import_module("semlock").Lock).parameters
    return "" if "fair" in options else "semlock.Lock takes no fair="


def _no_module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"


def _peer(module: str, name: str, timeout: str = "") -> Callable[[str, str], LibraryLock]:
    def make(path: str, _library: str) -> LibraryLock:
        found = importlib.import_module(module)
        return LibraryLock(getattr(found, name)(path), getattr(found, timeout, None))

    return make


@dataclass(frozen=True)
class Entrant:
    """One way to wait for a lock."""

    key: str
    label: str
    kind: Kind
    make: Callable[[str, str], Any]  # from the lock's path and the compiled library's
    missing: Callable[[], str] = lambda: ""  # why it can't take part
    # Seconds between two looks of one that polls.  Holds are spread over as much, so that
    # they end in every phase between two looks.
    pause: float = 0.0


_ALL = (
    Entrant("semlock", "semlock.Lock", "semlock", lambda p, _: LibraryLock(semlock_lock(p))),
    Entrant(
        "fair",
        "semlock.Lock, fair=True",
        "semlock",
        lambda p, _: LibraryLock(semlock_lock(p, fair=True)),
        _no_fair,
    ),
    Entrant("kernel", "semlock.KernelLock", "semlock", _peer("semlock", "KernelLock")),
    Entrant(
        "own FileLock",
        "semlock.filelock.FileLock",
        "semlock",
        _peer("semlock.filelock", "FileLock"),
    ),
    Entrant(
        "own",
        "flock(2) on the holder's own file, Python",
        "kernel",
        lambda p, _: OwnFlock(p),
    ),
    Entrant(
        "c own",
        "flock(2) on the holder's own file, C",
        "kernel",
        lambda p, library: CFlock(p, library, "own"),
    ),
    Entrant(
        "kept",
        "flock(2) on a file that stays, Python",
        "kernel",
        lambda p, _: KeptFlock(p),
    ),
    Entrant(
        "c kept",
        "flock(2) on a file that stays, C",
        "kernel",
        lambda p, library: CFlock(p, library, "stays"),
    ),
    Entrant(
        "FileLock",
        "filelock.FileLock",
        "peer",
        _peer("filelock", "FileLock"),
        _no_module("filelock"),
        0.05,
    ),
    Entrant(
        "fasteners",
        "fasteners.InterProcessLock",
        "peer",
        _peer("fasteners", "InterProcessLock"),
        _no_module("fasteners"),
        0.1,
    ),
    Entrant(
        "portalocker",
        "portalocker.Lock",
        "peer",
        _peer("portalocker", "Lock", "AlreadyLocked"),
        _no_module("portalocker"),
        0.25,
    ),
)

ENTRANTS = {entrant.key: entrant for entrant in _ALL}
