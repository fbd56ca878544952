"""The paths of locks: what can be one, and the names beside it."""

from __future__ import annotations

import errno
import os

from semlock._core.errors import LockPathError

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.status import StrPath

READERS = ".readers"  # behind a shared lock's path: where its readers are


def _here(path: str) -> str:
    """Give the directory that a relative path begins in."""
    try:
        return "" if path[0] == "/" else os.getcwd()
    except FileNotFoundError:
        raise LockPathError(
            f"{path} is nowhere: the current directory has been removed. Go to another one, or "
            "write the whole path",
            path=path,
            code=errno.ENOENT,
        ) from None


def absolute(path: StrPath) -> str:
    """Make a lock's path absolute and refuse what can't be one."""
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not isinstance(text, str):
        raise TypeError(f"a lock's path is a str or os.PathLike, not {type(path).__name__}")
    if not text:
        raise LockPathError("a lock's path can't be empty", path=text, code=errno.ENOENT)
    if "\0" in text:
        raise LockPathError(
            f"a lock's path can't contain NUL: {text!r}", path=text, code=errno.EINVAL
        )
    if text[-1] in ("/", os.sep):
        raise LockPathError(
            f"{text} names a directory: a lock needs a file name", path=text, code=errno.EISDIR
        )
    # Most paths are absolute and plain: they are not changed.
    if text[0] != "/" or os.sep != "/" or "/." in text or "//" in text:
        text = os.path.join(_here(text), text) if os.sep == "/" else os.path.abspath(text)
        if text.endswith(("/.", "/..")):
            raise LockPathError(
                f"{text} names a directory: a lock needs a file name",
                path=text,
                code=errno.EISDIR,
            )
    return text
