"""Files that appear whole: made under another name, synced, and put in place in one step."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semlock._core import inside

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import IO, Any

    from semlock._core.status import StrPath
    from semlock._locks.kernel import KernelLock

ENDING = ".part"


def name_beside(path: str) -> str:
    """Give a new name in the same directory, for what is not finished."""
    return f"{path}.{os.urandom(8).hex()}{ENDING}"


def leftovers(path: str) -> list[str]:
    """List what killed processes have left under such names."""
    head, name = os.path.split(path)
    size = len(name) + 1 + 16 + len(ENDING)
    with contextlib.suppress(OSError):
        return [
            os.path.join(head, other)
            for other in os.listdir(head or os.curdir)
            if len(other) == size and other.startswith(f"{name}.") and other.endswith(ENDING)
        ]
    return []


def discard(path: str) -> None:
    """Remove a file or a directory tree, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        from shutil import rmtree  # noqa: PLC0415 - for trees only

        rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def sync(path: str) -> None:
    """Have a file, or all files of a tree, written to the disk."""
    if os.path.islink(path):
        return
    if os.path.isdir(path):
        for name in os.listdir(path):
            sync(os.path.join(path, name))
    elif not stat.S_ISREG(os.stat(path).st_mode):
        return
    if os.path.isdir(path) and os.name == "nt":
        return  # a directory can't be opened there
    flags = os.O_RDONLY if os.name != "nt" else os.O_RDWR
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(temporary: str, path: str) -> None:
    """Put what is finished in place: a reader sees all of it, or what was there before."""
    sync(temporary)
    os.replace(temporary, path)
    if os.name != "nt":
        fd = os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def open_atomic(
    path: StrPath, mode: str = "w", **options: Any
) -> Generator[IO[Any], None, None]:
    """Write a file that appears whole at the end of the ``with`` block.

    Readers see all of the new content or all of what was there before, also after a kill and
    after a loss of power.  A block that fails changes nothing.  ``mode`` is ``"w"`` or ``"wb"``,
    ``"x"`` or ``"xb"`` refuses to replace a file; ``options`` are those of ``open``.  A file that
    is replaced keeps its permissions.  Writers don't exclude each other: use a lock for that.
    """
    if mode not in ("w", "wb", "x", "xb", "wt", "xt"):
        raise ValueError(f'mode is "w", "wb", "x" or "xb", not {mode!r}')
    target = os.path.realpath(os.fspath(os.fsdecode(path)))
    if mode[0] == "x" and os.path.lexists(target):
        raise FileExistsError(17, os.strerror(17), target)
    temporary, me = name_beside(target), os.getpid()
    try:
        with open(temporary, mode.replace("w", "x"), **options) as file:
            yield file
        if os.getpid() != me:
            return  # a child that was forked in the block: the file is its parent's
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        if mode[0] == "x":
            sync(temporary)
            os.link(temporary, target)  # FileExistsError if another process was faster
        else:
            put(temporary, target)
    finally:
        if os.getpid() == me:
            discard(temporary)


@contextmanager
def open_locked(
    path: StrPath, mode: str = "r", *, timeout: float | None = None, **options: Any
) -> Generator[IO[Any], None, None]:
    """Open a file that is locked until the end of the ``with`` block.

    The lock is that of ``KernelLock``: shared for ``"r"``, exclusive for all other modes.  ``"w"``
    empties the file only once it is locked.  ``timeout`` is that of the lock, ``options`` are those
    of ``open``.  What was written is in the file before the lock ends.
    """
    kind, plus, text = mode[:1], "+" in mode, mode.replace("b", "").replace("t", "")
    if text not in ("r", "r+", "w", "w+", "a", "a+"):
        raise ValueError(f"mode is r, w or a, with + and b if wanted, not {mode!r}")
    name = os.fsdecode(os.fspath(path))
    if kind == "r":
        os.stat(name)  # FileNotFoundError: the lock would make the file
    from semlock._locks.kernel import KernelLock  # noqa: PLC0415 - for those who open files

    reads = kind == "r" and not plus
    lock = KernelLock(name, shared=reads, timeout=timeout, mode=0o666)
    with _descriptor(lock, name, reads=reads) as opened, lock:
        fd = lock.fileno() if opened is None else opened
        if kind == "w":
            os.ftruncate(fd, 0)
        as_is = mode.replace("w", "r+") if kind == "w" and not plus else mode.replace("w", "r")
        with open(fd, as_is, closefd=False, **options) as file:
            if kind == "a":
                file.seek(0, os.SEEK_END)
            yield file


@contextmanager
def _descriptor(
    lock: KernelLock, name: str, *, reads: bool
) -> Generator[int | None, None, None]:
    """Open the file on Windows, where a handle can't use what another one has locked."""
    if sys.platform != "win32":
        yield None
        return
    flags = os.O_RDONLY if reads else os.O_RDWR | os.O_CREAT
    fd = os.open(name, flags | os.O_BINARY | os.O_NOINHERIT, 0o666)
    try:
        inside.lend(lock, fd)
        yield fd
    finally:
        os.close(fd)
