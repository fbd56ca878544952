"""The directory that is cleaned, reached by its descriptor, and what is found in it."""

from __future__ import annotations

import errno
import os
import stat
import sys

from semlock._core import capi
from semlock._core.queues import PREFIX, is_ticket

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from types import TracebackType

    from typing_extensions import Self

    from semlock._core.records import LockInfo


class Leftover:
    """One thing that may be removed, why, and what removes it: exactly it, and only while so."""

    __slots__ = ("applies", "info", "path", "reason", "remove")

    def __init__(
        self,
        path: str,
        reason: str,
        remove: Callable[[], bool],
        info: LockInfo | None = None,
        applies: Callable[[], bool] | None = None,
    ) -> None:
        self.path = path
        self.reason = reason
        self.remove = remove
        self.info = info
        # What only the removal itself finds out, for those who ask without removing.
        self.applies = applies


class Folder:
    """A directory that is being cleaned, and a way to it that can't be changed."""

    __slots__ = ("_base", "_fds", "_parent", "path")

    def __init__(self, path: str, parent: Folder | None = None) -> None:
        self.path = path
        self._parent = parent
        self._base = path
        self._fds = [-1]

    def __enter__(self) -> Self:
        """Begin, with nothing open yet: an interrupt here would leave it so."""
        return self

    @property
    def _fd(self) -> int:
        return self._fds[-1] if self._fds else -1

    def open(self) -> Self:
        """Open it, inside of the block that closes it."""
        if sys.platform == "win32":
            # A link to a directory takes a privilege there.
            if self._parent is not None and not stat.S_ISDIR(os.lstat(self.path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.path)
            return self
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if self._parent is None:
            way = self.path
        else:
            way = self._parent.entry(os.path.basename(self.path))
            flags |= os.O_NOFOLLOW
        self.__class__ = _OpenFolder  # type: ignore[assignment, unused-ignore]
        # In one step, so that no interrupt comes between the descriptor and who closes it.
        self._fds.extend(map(os.open, (way,), (flags,)))
        by_number = f"/proc/self/fd/{self._fd}"
        if _same(by_number, self._fd, follow=True):
            self._base = by_number
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        # Python swallows what a signal handler raises in __del__, so there shall be none now.
        self.__class__ = Folder

    def _close(self) -> None:
        if self._fds:
            list(map(os.close, iter(self._fds.pop, -1)))  # in one step

    @property
    def listed(self) -> int | str:
        """What to list."""
        return self.path if self._fd < 0 else self._fd

    def path_of(self, name: str) -> str:
        """Give the path of an entry as people know it."""
        return os.path.join(self.path, name)

    def entry(self, name: str) -> str:
        """Give a path that leads to an entry of this very directory."""
        by_path = self._base is self.path and self._fd >= 0
        if by_path and not _same(self.path, self._fd, follow=self._parent is None):
            # This system has no way by the descriptor.  What is left is a moment between here
            # and the call, in which the directory would have to be moved.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return os.path.join(self._base, name)

    def look(self, name: str, but: Container[tuple[int, int]] = ()) -> capi.Instance | None:
        """Look at a file; ``None`` if it is gone, no record by its size, or among the last."""
        entry = self.entry(name)
        seen = os.lstat(entry)
        if (
            not stat.S_ISREG(seen.st_mode)
            or seen.st_size > capi.RECORD_LIMIT
            or (seen.st_dev, seen.st_ino) in but
        ):
            return None
        try:
            return capi.look(os.fsencode(entry))
        except OSError as error:
            error.filename = self.path_of(name)
            raise

    def remove_self(self) -> bool:
        """Remove this directory if nothing is in it; ``PermissionError`` if this user may not."""
        assert self._parent is not None
        try:
            entry = self._parent.entry(os.path.basename(self.path))
            # Of a directory that is in use it doesn't matter who may remove it.
            empty = not os.listdir(self.listed)
            if empty and (self._fd < 0 or _same(entry, self._fd, follow=False)):
                os.rmdir(entry)
                return True
        except PermissionError as error:
            error.filename = self.path
            raise
        except OSError:
            pass  # something is in it, or it is gone
        return False

    def with_itself(self, found: Iterator[Leftover], reason: str) -> Iterator[Leftover]:
        """Add this directory to what is found in it, for the case that all of it goes."""
        going = set()
        for leftover in found:
            if leftover.applies is None or leftover.applies():
                going.add(os.path.basename(leftover.path))
            yield leftover

        def applies() -> bool:
            return going.issuperset(os.listdir(self.listed))

        yield Leftover(self.path, reason, self.remove_self, applies=applies)


class _OpenFolder(Folder):
    """One that is open, and is closed even if an interrupt strikes while the block ends."""

    __slots__ = ()

    def __del__(self) -> None:
        self._close()


def open_to_others(path: str, mode: int) -> None:
    """Give a directory of readers that was just made its mode, whatever our umask is.

    Others may move what is in the directory around it.  So it is changed by its descriptor, and
    only if it is ours and nothing but readers is in it.
    """
    if sys.platform == "win32":
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # the last reader has taken it away, or another one changed it
    try:
        names = os.listdir(fd)
        plain = all(is_ticket(name) or name.startswith(PREFIX) for name in names)
        if plain and os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _same(path: str, fd: int, *, follow: bool) -> bool:
    """Tell whether a path leads to the directory that is open."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=follow), os.fstat(fd))
    except OSError:
        return False


def opened_here() -> set[tuple[int, int]]:
    """Tell which files this process has open.

    They are in use.  And a process that opens such a file once more and closes it drops the
    ``fcntl`` locks of this process on it, by which databases live.
    """
    found = set()
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            numbers = [int(name) for name in os.listdir(directory)]
        except (OSError, ValueError):
            continue
        for number in numbers:
            try:
                seen = os.fstat(number)
            except OSError:
                continue
            if stat.S_ISREG(seen.st_mode):
                found.add((seen.st_dev, seen.st_ino))
        break
    return found


def as_far_as_it_goes(found: Iterator[Leftover]) -> Iterator[Leftover]:
    """Find what can be found; what went away meanwhile or is not ours to see is left alone."""
    try:  # noqa: SIM105 - contextlib would be imported on the way of every command
        yield from found
    except OSError:
        pass
