"""A directory that is cleaned, reached by its descriptor, and the leftovers found in it.

One kind are the queues of waiters, which ``csrc/semlock.h`` describes under THE QUEUE.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from semlock._core import capi
from semlock._core.paths import PREFIX

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from typing_extensions import Self

    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus


class Leftover:
    """One removable file or directory: the reason, and the function that removes exactly it."""

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
        # For a dry run: a condition that otherwise only the removal checks.
        self.applies = applies


class Folder:
    """A directory that is being cleaned, and a path to it that can't be redirected."""

    __slots__ = ("_base", "_fds", "_parent", "path")

    def __init__(self, path: str, parent: Folder | None = None) -> None:
        self.path = path
        self._parent = parent
        self._base = path
        self._fds = [-1]

    def __enter__(self) -> Self:
        """Enter without opening, so that an interrupt here leaves nothing open."""
        return self

    @property
    def _fd(self) -> int:
        return self._fds[-1] if self._fds else -1

    def open(self) -> Self:
        """Open it, inside of the block that closes it."""
        if sys.platform == "win32":
            # There, only a privileged user can make a link to a directory.
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
        # In one step, so that no interrupt separates the open from the list that is closed.
        self._fds.extend(map(os.open, (way,), (flags,)))
        by_number = f"/proc/self/fd/{self._fd}"
        if _same(by_number, self._fd, follow=True):
            self._base = by_number
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        # Python discards exceptions of signal handlers in __del__, so from now on there is none.
        self.__class__ = Folder

    def _close(self) -> None:
        if self._fds:
            list(map(os.close, iter(self._fds.pop, -1)))  # in one step

    @property
    def listed(self) -> int | str:
        """What to pass to ``os.listdir``."""
        return self.path if self._fd < 0 else self._fd

    def path_of(self, name: str) -> str:
        """Give the path of an entry for messages."""
        return os.path.join(self.path, name)

    def entry(self, name: str) -> str:
        """Give a path to an entry of this directory, even if the directory is moved."""
        by_path = self._base is self.path and self._fd >= 0
        if by_path and not _same(self.path, self._fd, follow=self._parent is None):
            # There is no path by the descriptor here.  The directory could only be exchanged
            # between this check and the next call.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return os.path.join(self._base, name)

    def look(self, name: str, but: Container[tuple[int, int]] = ()) -> capi.Instance | None:
        """Inspect a file; ``None`` if it is gone, too large for a record, or one of ``but``."""
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
        """Remove this directory if it is empty; ``PermissionError`` if this user may not."""
        assert self._parent is not None
        try:
            entry = self._parent.entry(os.path.basename(self.path))
            # A directory that is in use stays anyway, whichever user may remove it.
            empty = not os.listdir(self.listed)
            if empty and (self._fd < 0 or _same(entry, self._fd, follow=False)):
                os.rmdir(entry)
                return True
        except PermissionError as error:
            error.filename = self.path
            raise
        except OSError:
            pass  # it isn't empty, or it is gone
        return False

    def with_itself(self, found: Iterator[Leftover], reason: str) -> Iterator[Leftover]:
        """Add this directory to the leftovers in it, as it is removable when they are gone."""
        going = set()
        for leftover in found:
            if leftover.applies is None or leftover.applies():
                going.add(os.path.basename(leftover.path))
            yield leftover

        def applies() -> bool:
            return going.issuperset(os.listdir(self.listed))

        yield Leftover(self.path, reason, self.remove_self, applies=applies)


class _OpenFolder(Folder):
    """An open folder; it is closed even if an interrupt strikes at the end of the block."""

    __slots__ = ()

    def __del__(self) -> None:
        self._close()


def open_to_others(path: str, mode: int) -> None:
    """Give a new directory of readers its mode, whatever the umask is.

    The directory around it may be writable for others.  So the mode is changed by a
    descriptor, and only if the directory is ours and contains nothing but readers.
    """
    if sys.platform == "win32":
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # the last reader has removed it, or another user changed it
    try:
        names = os.listdir(fd)
        plain = all(is_ticket(name) or name.startswith(PREFIX) for name in names)
        if plain and os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _same(path: str, fd: int, *, follow: bool) -> bool:
    """Tell whether a path leads to the open directory."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=follow), os.fstat(fd))
    except OSError:
        return False


def opened_here() -> set[tuple[int, int]]:
    """Give the identity of all files that this process has open.

    They are in use.  Besides, opening and closing such a file again would drop this process's
    ``fcntl`` locks on it, which databases rely on.
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
    """Give leftovers until one can't be read; files that are gone or unreadable are left alone."""
    try:  # noqa: SIM105 - contextlib would be imported on the way of every command
        yield from found
    except OSError:
        pass


_SUFFIX = ".queue"
_TICKET_DIGITS = 16
WHO = ".who"  # suffix of a ticket's name: a file about its owner
LATE = ".late"  # suffix of a ticket that was passed by; its owner may continue
_HEX = frozenset("0123456789abcdef")


def is_queue(name: str) -> bool:
    """Tell whether a directory has a name of queues."""
    number = name.removeprefix(PREFIX).removesuffix(_SUFFIX)
    return is_ticket(number) and name == f"{PREFIX}{number}{_SUFFIX}"


def is_ticket(name: str) -> bool:
    """Tell whether a file has a name of tickets, which readers of a shared lock have too."""
    return len(name) == _TICKET_DIGITS and _HEX.issuperset(name)


def queue_of(path: str, name_hash: int | None = None) -> str:
    """Give the queue's directory of a lock."""
    if name_hash is None:
        encoded = os.fsencode(path)
        native, memory = capi.new_lock(), capi.address(encoded)
        capi.start_lock_path(native, memory, len(encoded))
        name_hash = native.name_hash
    return os.path.join(os.path.dirname(path), f"{PREFIX}{name_hash:016x}{_SUFFIX}")


def tickets(queue: str) -> list[str]:
    """List the tickets in a queue, the first one first; ``OSError`` if there is no queue.

    Tickets that were passed by are among them, as their owners still wait.
    """
    names = sorted(os.listdir(queue))
    return [os.path.join(queue, n) for n in names if is_ticket(n.removesuffix(LATE))]


def who_file(ticket: str) -> str:
    """Give the file about a ticket's owner, which a waiter writes after a while."""
    # On Windows the ticket itself has that content.
    return ticket if sys.platform == "win32" else ticket.removesuffix(LATE) + WHO


def waiters(path: str, holder: LockInfo | None = None) -> list[LockStatus]:
    """List the waiters in the queue of a lock, the first one first.

    A holder that has waited keeps its ticket until the release; it isn't listed, and neither are
    dead waiters.  Of a new waiter nothing but its waiting is known.
    """
    from semlock._core.records import decode_text  # noqa: PLC0415 - for those who look
    from semlock._core.status import look_at  # noqa: PLC0415

    try:
        places = tickets(queue_of(path))
    except OSError:
        return []
    found = []
    for number, place in enumerate(places):
        if capi.ticket_state(os.fsencode(place)) != capi.TICKET_WAITS:
            continue
        told = who_file(place)
        try:
            waiter = look_at(told, os.fsencode(told), decode_text)
        except OSError:
            continue  # it has just left, or may not be read
        who = None if waiter.info is None else (waiter.info.pid, waiter.info.start)
        if number == 0 and holder is not None and who == (holder.pid, holder.start):
            continue
        found.append(waiter)
    return found
