"""Opening a file to which any number of processes append, each line by one call."""

from __future__ import annotations

import errno
import os
import stat
import sys

if sys.platform == "win32":
    import _winapi
    import msvcrt

_FLAGS = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    # Never waiting: not for the reader of a pipe, nor for a terminal that was stopped.
    | getattr(os, "O_NONBLOCK", 0)
)
# Never through a link that somebody has put there.
_WARY = getattr(os, "O_NOFOLLOW", 0)

# Those names that _winapi doesn't have.
_FILE_APPEND_DATA = 0x4
_FILE_READ_ATTRIBUTES = 0x80
_SYNCHRONIZE = 0x100000
_SHARE_ALL = 0x7
_OPEN_ALWAYS = 4
_FILE_FLAG_OPEN_REPARSE_POINT = 0x200000


def open_to_append(path: str, mode: int, *, wary: bool = False) -> int:
    """Open a file to append whole lines, made if need be; ``wary`` of links and devices.

    ``OSError`` for a pipe: whoever writes there may be ended by it when the reader goes.
    """
    if sys.platform == "win32":
        return _open_on_windows(path, _FILE_FLAG_OPEN_REPARSE_POINT if wary else 0)
    handle = os.open(path, _FLAGS | (_WARY if wary else 0), mode)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind) and (wary or not stat.S_ISCHR(kind)):
        os.close(handle)
        raise OSError(errno.EINVAL, "Neither a regular file nor a character device", path)
    return handle


if sys.platform == "win32":

    def _open_on_windows(path: str, flags: int) -> int:
        # O_APPEND of the C library is a look for the end and then a write there, between which
        # another process may write.  With no right but to append, the kernel does both.
        rights = _FILE_APPEND_DATA | _FILE_READ_ATTRIBUTES | _SYNCHRONIZE
        handle = _winapi.CreateFile(path, rights, _SHARE_ALL, 0, _OPEN_ALWAYS, flags, 0)
        try:
            # Without O_TEXT: a line ends as it is written.
            return msvcrt.open_osfhandle(handle, os.O_NOINHERIT)
        except BaseException:
            _winapi.CloseHandle(handle)
            raise
