"""Opening a file to which many processes append lines."""

from __future__ import annotations

import errno
import os
import stat
import sys

from semlock._core.opened import Opened

if sys.platform == "win32":
    import _winapi
    import msvcrt

_FLAGS = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    # Don't block: not until a pipe has a reader, nor on a stopped terminal.
    | getattr(os, "O_NONBLOCK", 0)
)
# Don't follow a link that another user may have put there.
_WARY = getattr(os, "O_NOFOLLOW", 0)

# Constants that _winapi lacks.
_FILE_APPEND_DATA = 0x4
_FILE_READ_ATTRIBUTES = 0x80
_SYNCHRONIZE = 0x100000
_SHARE_ALL = 0x7
_OPEN_ALWAYS = 4
_FILE_FLAG_OPEN_REPARSE_POINT = 0x200000


def open_to_append(path: str, mode: int, *, wary: bool = False) -> Opened:
    """Open a file to append whole lines, and create it if needed; ``wary`` refuses links.

    It refuses pipes with ``OSError``: a write raises SIGPIPE when the reader is gone.
    """
    if sys.platform == "win32":
        return Opened(_open_on_windows, path, _FILE_FLAG_OPEN_REPARSE_POINT if wary else 0)
    handle = Opened(os.open, path, _FLAGS | (_WARY if wary else 0), mode)
    kind = os.fstat(handle.fd).st_mode
    if not stat.S_ISREG(kind) and (wary or not stat.S_ISCHR(kind)):
        raise OSError(errno.EINVAL, "Neither a regular file nor a character device", path)
    return handle


if sys.platform == "win32":

    def _open_on_windows(path: str, flags: int) -> int:
        # The C library's O_APPEND seeks and then writes, and another process can write in
        # between.  With the right to append only, the kernel does both at once.
        rights = _FILE_APPEND_DATA | _FILE_READ_ATTRIBUTES | _SYNCHRONIZE
        handle = _winapi.CreateFile(path, rights, _SHARE_ALL, 0, _OPEN_ALWAYS, flags, 0)
        try:
            # Without O_TEXT, line ends are written as they are.
            return msvcrt.open_osfhandle(handle, os.O_NOINHERIT)
        except BaseException:
            _winapi.CloseHandle(handle)
            raise
