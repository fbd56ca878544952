"""The paths of locks: what can be one, and the names beside it."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.errors import LockPathError
    from semlock._core.status import StrPath

PREFIX = ".semlock-"  # of the core's own files, which it makes beside locks
READERS = ".readers"  # behind a shared lock's path: where its readers are

# What the addresses of engines begin with: the rows of `_engines/address.py`, which is not loaded
# for a path.  A test compares them.
SCHEMES = (
    "etcd", "etcds", "file", "postgresql", "postgres", "redis", "rediss", "valkey", "valkeys",
)  # fmt: skip


def _refusal(message: str, path: str, code: int) -> LockPathError:
    from semlock._core.errors import LockPathError  # noqa: PLC0415 - not on the way of a good path

    return LockPathError(message, path=path, code=code)


def engine_of(path: str) -> str:
    """Give the scheme if a path was meant as an engine's address, also one with a slash only.

    ``pathlib`` makes one slash of two.  A directory whose name is a scheme and a colon makes it a
    path.
    """
    start, colon, _ = path.partition(":/")
    scheme = start.rpartition(os.sep)[2].lower()
    return scheme if colon and scheme in SCHEMES and not os.path.lexists(start + ":") else ""


def address_error(scheme: str) -> LockPathError:
    """Refuse an address as a path, without what it says: it may have a password."""
    return _refusal(
        f"the address of an engine ({scheme}://) is no path of a file: use "
        "semlock.connect(ADDRESS).Lock(NAME)",
        f"{scheme}://",
        errno.ENOENT,
    )


def here(path: str) -> str:
    """Give the directory that a relative path begins in."""
    try:
        return "" if path[0] == "/" else os.getcwd()
    except FileNotFoundError:
        raise _refusal(
            f"{path} is nowhere: the current directory has been removed. Go to another one, or "
            "write the whole path",
            path,
            errno.ENOENT,
        ) from None


def _refuse_unwritable(text: str) -> None:
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        message = f"a lock's path can't be {text!r}: it has no bytes ({error.reason})"
        raise _refusal(message, text, errno.EILSEQ) from None


def absolute(path: StrPath) -> str:
    """Make a lock's path absolute and refuse what can't be one."""
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not isinstance(text, str):
        raise TypeError(f"a lock's path is a str or os.PathLike, not {type(path).__name__}")
    if not text:
        raise _refusal("a lock's path can't be empty", text, errno.ENOENT)
    if "\0" in text:
        raise _refusal(f"a lock's path can't contain NUL: {text!r}", text, errno.EINVAL)
    if text[-1] in ("/", os.sep):
        raise _refusal(
            f"{text} names a directory: a lock needs a file name", text, errno.EISDIR
        )
    if not text.isascii():
        _refuse_unwritable(text)
    # Most paths are absolute and plain: they are not changed.
    if text[0] != "/" or os.sep != "/" or "/." in text or "//" in text:
        if ":/" in text and (scheme := engine_of(text)):
            raise address_error(scheme)
        text = os.path.join(here(text), text) if os.sep == "/" else os.path.abspath(text)
        if text.endswith(("/.", "/..")):
            raise _refusal(
                f"{text} names a directory: a lock needs a file name", text, errno.EISDIR
            )
    return text


def mount_of(path: str) -> list[str]:
    """Give the line of Linux's mountinfo for the mount that a path is on; empty if unknown.

    Its words are the device (2), the place (4), the options (5), and behind a dash the type, the
    source and the options of the filesystem.
    """
    import re  # noqa: PLC0415 - for those who ask

    from semlock._core.capi import read_file  # noqa: PLC0415

    found: list[str] = []
    real, longest = os.path.realpath(path).rstrip("/") + "/", 0
    try:
        lines = read_file("/proc/self/mountinfo").splitlines()
    except OSError:
        return found
    for words in map(str.split, lines):
        # The kernel writes white space in paths as a backslash and three octal digits.
        words[4] = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[4])
        # Of several at one place the last one is seen.
        if len(words[4]) >= longest and real.startswith(words[4].rstrip("/") + "/"):
            found, longest = words, len(words[4])
    return found
