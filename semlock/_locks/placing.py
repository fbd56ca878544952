"""Files that appear whole: made under another name, synced, and put in place in one step.

``once`` is a result that one process makes so while the others wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semlock._core import inside
from semlock._core.opened import Opened
from semlock._locks.lock import Lock
from semlock._waiting.steps import Call, run_async
from semlock._waiting.waiter import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from typing import IO, Any

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.status import StrPath
    from semlock._locks.kernel import KernelLock
    from semlock._waiting.steps import Steps

# What is not finished has one of these endings.  The maker of a result holds a lock, so the others
# that have the first one are a killed maker's; writers of a file don't exclude each other.
MADE = ".making"
WRITTEN = ".part"
_RANDOM = 8  # bytes
_LONGEST_NAME = 255


def name_beside(path: str, ending: str) -> str:
    """Give a new name in the same directory, for what is not finished."""
    head, name = os.path.split(path)
    return os.path.join(head, f"{_stem(name)}.{os.urandom(_RANDOM).hex()}{ending}")


def _stem(name: str) -> str:
    """Give what temporary names begin with: the name, or a hash if they would be too long."""
    raw = os.fsencode(name)
    if len(raw) + 1 + 2 * _RANDOM + len(MADE) <= _LONGEST_NAME:
        return name
    from hashlib import blake2b  # noqa: PLC0415 - for long names only

    return blake2b(raw, digest_size=16).hexdigest()


def leftovers(path: str) -> list[str]:
    """List what killed makers of a result have left."""
    head, name = os.path.split(path)
    start = f"{_stem(name)}."
    found = []
    with contextlib.suppress(OSError):
        for other in os.listdir(head or os.curdir):
            if other.startswith(start) and other.endswith(MADE):
                middle = other[len(start) : -len(MADE)]
                if len(middle) == 2 * _RANDOM and not middle.strip("0123456789abcdef"):
                    found.append(os.path.join(head, other))
    return found


def discard(path: str) -> None:
    """Remove a file or a directory tree, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        from shutil import rmtree  # noqa: PLC0415 - for trees only

        rmtree(path, ignore_errors=True)
        if os.path.isdir(path):  # some directories forbid it
            _open_to_owner(path)
            for place, directories, _ in os.walk(path):
                for name in directories:
                    _open_to_owner(os.path.join(place, name))
            rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _open_to_owner(directory: str) -> None:
    if not os.path.islink(directory):
        with contextlib.suppress(OSError):
            os.chmod(directory, 0o700)


def sync(path: str) -> None:
    """Have a file, or all files of a tree, written to the disk, as far as they may be opened."""
    if os.path.islink(path):
        return
    is_directory = os.path.isdir(path)
    if is_directory:
        with contextlib.suppress(PermissionError):
            for name in os.listdir(path):
                sync(os.path.join(path, name))
    elif not stat.S_ISREG(os.stat(path).st_mode):
        return
    ways: tuple[int, ...] = (os.O_RDONLY,) if is_directory else (os.O_RDONLY, os.O_WRONLY)
    if os.name == "nt":
        ways = () if is_directory else (os.O_RDWR,)  # a directory can't be opened there
    for flags in ways:
        with contextlib.suppress(PermissionError):
            _sync_opened(path, flags)
            return


def _sync_opened(path: str, flags: int) -> None:
    opened = Opened(os.open, path, flags)
    try:
        os.fsync(opened.fd)
    finally:
        opened.close()


def put(
    temporary: str, path: str, *, like: os.stat_result | None = None, replaces: bool = True
) -> None:
    """Put what is finished in place: a reader sees all of it, or what was there before.

    Without ``replaces`` it is ``FileExistsError`` if another process was faster.
    """
    sync(temporary)
    if like is not None:
        _give_to_owner_of(like, temporary)
    if replaces:
        os.replace(temporary, path)
    else:
        os.link(temporary, path)
    if os.name != "nt":
        _sync_opened(os.path.dirname(path) or os.curdir, os.O_RDONLY)


def _give_to_owner_of(like: os.stat_result, path: str) -> None:
    """Give a file the owner, the group and the permissions of another, as far as this user may."""
    mode, made = stat.S_IMODE(like.st_mode), os.stat(path)
    if sys.platform != "win32" and (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        for user in (like.st_uid, -1):
            with contextlib.suppress(OSError):
                os.chown(path, user, like.st_gid)
                break
        made = os.stat(path)
        if made.st_uid != like.st_uid:
            mode &= ~stat.S_ISUID  # a program would run as another user than before
        if made.st_gid != like.st_gid:  # this group may do what all may
            mode = mode & ~(stat.S_ISGID | 0o070) | (mode & 0o007) << 3
    os.chmod(path, mode)  # last: it may forbid reading, also to its owner


@contextmanager
def open_atomic(
    path: StrPath, mode: str = "w", **options: Any
) -> Generator[IO[Any], None, None]:
    """Write a file that appears whole at the end of the ``with`` block.

    Readers see all of the new content or all of what was there before, also after a kill and
    after a loss of power.  A block that fails changes nothing.  ``mode`` is ``"w"`` or ``"wb"``,
    ``"x"`` or ``"xb"`` refuses to replace a file; ``options`` are those of ``open``.  A file that
    is replaced keeps its permissions, and its owner and group as far as this user may give them; a
    directory, a device or a FIFO is refused.  Writers don't exclude each other: use a lock.
    """
    if mode not in ("w", "wb", "x", "xb", "wt", "xt"):
        raise ValueError(f'mode is "w", "wb", "x" or "xb", not {mode!r}')
    target = os.path.realpath(os.fspath(os.fsdecode(path)))
    if mode[0] == "x" and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    like = _replaced(target)
    temporary, me = name_beside(target, WRITTEN), os.getpid()

    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        if opener := options.pop("opener", None):
            owner = Opened(opener, temporary, flags)
        else:  # never open to more users than the file that it replaces
            owner = Opened(os.open, temporary, flags, 0o666 if like is None else 0o600)
        as_is = mode.replace("x", "w")
        with _writing(owner.fd, temporary, as_is, options, owner) as file:
            yield file
        if os.getpid() != me:
            return  # a child that was forked in the block: the file is its parent's
        put(temporary, target, like=like, replaces=mode[0] != "x")
    finally:
        if os.getpid() == me:
            discard(temporary)


def _replaced(path: str, done: str = "replaced") -> os.stat_result | None:
    """Look at a file that is to be replaced or opened; ``None`` if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):  # a device or a FIFO would be gone, or block
        raise OSError(
            errno.EINVAL, f"only a regular file can be {done}, and this is none", path
        )
    return found


@contextmanager
def _writing(
    fd: int, name: str, mode: str, options: Any, owner: Opened | None
) -> Generator[IO[Any], None, None]:
    """Give a file object on a descriptor, and write out its buffer at the end; close the owner.

    Not if the program has closed the descriptor meanwhile: the number may be another file's.  And
    not in a child that was forked in the block: its buffer is a copy, and its parent writes it.
    """
    me, made = os.getpid(), os.fstat(fd)

    def is_open() -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(fd), made)
        return False

    file: Any = None
    try:
        file = open(fd, mode, closefd=False, **options)  # noqa: SIM115 - closed below
        buffer = getattr(file, "buffer", file)
        raw = getattr(buffer, "raw", buffer)
        raw.name = name
        try:
            yield file
            if os.getpid() == me and not is_open():
                raise OSError(
                    errno.EBADF, "its descriptor was closed while it was written", name
                )
        finally:
            try:
                if os.getpid() != me or not is_open():
                    raw.close()  # without the descriptor, and then there is nothing to write to
                file.close()
            finally:
                raw.close()  # behind an interrupt its destructor writes nothing either
    finally:
        file = None  # of an interrupt before the block, while it has its descriptor
        if owner is not None:
            if not is_open():
                owner.fd = -1
            owner.close()


@contextmanager
def open_locked(
    path: StrPath, mode: str = "r", *, timeout: float | None = None, **options: Any
) -> Generator[IO[Any], None, None]:
    """Open a file that is locked until the end of the ``with`` block.

    The lock is that of ``KernelLock``: shared for ``"r"``, exclusive for all other modes.  ``"w"``
    empties the file only once it is locked.  ``timeout`` is that of the lock, ``options`` are those
    of ``open``.  What was written is in the file before the lock ends.
    """
    text = mode.replace("b", "").replace("t", "")
    kind, plus = text[:1], "+" in text
    if text not in ("r", "r+", "w", "w+", "a", "a+"):
        raise ValueError(f"mode is r, w or a, with + and b if wanted, not {mode!r}")
    name = os.fsdecode(os.fspath(path))
    if _replaced(name, "opened") is None and kind == "r":  # the lock would make the file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    from semlock._locks.kernel import KernelLock  # noqa: PLC0415 - for those who open files

    reads = kind == "r" and not plus
    lock = KernelLock(name, shared=reads, timeout=timeout, mode=0o666)
    with _descriptor(lock, name, reads=reads) as lent, lock:
        owner, fd = None, lent
        if fd is None:
            owner = _opened_again(lock, name, reads=reads)
            fd = owner.fd
        as_is = mode.replace("w", "r") if plus or kind != "w" else mode.replace("w", "r+")
        with _writing(fd, name, as_is, options, owner) as file:
            if kind == "w":
                file.truncate(0)
            elif kind == "a":
                file.seek(0, os.SEEK_END)
            yield file


def _opened_again(lock: KernelLock, name: str, *, reads: bool) -> Opened:
    """Open the locked file by a descriptor that stays open in a child.

    The lock's is closed there, and a file object of the child would write to whatever file has
    its number then.
    """
    # What took the path's place may be a FIFO, whose opening would wait for a writer.
    flags = (os.O_RDONLY if reads else os.O_RDWR) | getattr(os, "O_NONBLOCK", 0)
    while True:
        opened = Opened(os.open, name, flags)
        if os.path.samestat(os.fstat(opened.fd), os.fstat(lock.fileno())):
            return opened
        opened.close()
        lock.check()  # LockLostError: the path leads to another file by now


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


__all__ = ["once", "once_async"]


def once(path: StrPath, make: Callable[[str], object], **options: Unpack[LockOptions]) -> str:
    """Make what is to be at a path, unless it is there; then and else give the path.

    ``make`` gets the name of a temporary file beside it, and writes a file or makes a directory
    there.  Of all processes one calls it at a time, under ``Lock(path + ".lock")``, and the others
    wait; none calls it again once it has succeeded.  The result appears whole, and only when
    ``make`` has returned: a process that is killed, or a ``make`` that fails, leaves nothing, and
    the next one tries.  ``options`` are those of ``Lock``.
    """
    target, is_there = _look(path)
    if is_there:
        return target
    with _lock(Lock, target, options) as lock:
        run(_making(target, make, lock))
    return target


async def once_async(
    path: StrPath,
    make: Callable[[str], Awaitable[object] | object],
    **options: Unpack[LockOptions],
) -> str:
    """Do as ``once``, in a task of asyncio or trio; what ``make`` gives is awaited if it can be."""
    from semlock._locks.async_lock import AsyncLock  # noqa: PLC0415 - asyncio, for tasks

    target, is_there = _look(path)
    if is_there:
        return target
    async with _lock(AsyncLock, target, options) as lock:
        await run_async(_making(target, make, lock), ())
    return target


def _look(path: StrPath) -> tuple[str, bool]:
    """Give the whole path, and tell whether the result is there."""
    given = os.fsdecode(os.fspath(path))
    if not given:
        raise FileNotFoundError(2, "the path of a result can't be empty", given)
    target = os.path.abspath(given)
    return target, os.path.exists(target)


def _lock(kind: Any, target: str, options: Any) -> Any:
    options.setdefault("make_dirs", True)
    options.setdefault("tag", f"making {os.path.basename(target)}")
    return kind(f"{target}.lock", **options)


def _making(target: str, make: Callable[[str], Any], lock: Any) -> Steps[None]:
    """Make it under a temporary name, and put it in place, if no other process has done so."""
    if os.path.exists(target):
        return
    for name in leftovers(target):  # the holder of the lock is the only one that makes it
        discard(name)
    temporary, me = name_beside(target, MADE), os.getpid()
    try:
        yield Call(make, temporary)
        if not os.path.exists(temporary):
            raise FileNotFoundError(
                2, "make was called with this path, and has made no file there", temporary
            )
        lock.check()  # if the lock was removed by force, another process may have made it too
        put(temporary, target)
    finally:
        if os.getpid() == me:  # a child that make has forked may come here too
            discard(temporary)
