"""Where the races stop a process, on each platform: its calls, forms of creation and errors.

``test_races`` tells each race once, by the steps of the protocol.  What a step is called on a
platform, and what must be prepared there, stands here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from pathlib import Path

import pytest

from actors import ActorError
from faultlib import die_after, die_before, stop_after, stop_before
from racelib import have_only
from wine import WINE

WINDOWS = sys.platform == "win32"
if WINDOWS:
    import windows_calls
    from windows_calls import DISK_FULL, NOT_SUPPORTED, WindowsActor, bytes_at

# Where a file can't be deleted as POSIX does it, it is moved aside first; Wine is such a place.
_MOVED_ASIDE = 1 if WINE else 0


class Posix:
    """Stops beside each call; dead holders are killed children of an actor."""

    EVERYWHERE = (stop_before, stop_after)
    # How an actor's system is left no more than one form of publication: calls that are refused.
    FORMS = {
        "unnamed": [],
        "linked through /proc": [("linkfd", errno.ENOENT)],
        "named": [("tmpfile", errno.EOPNOTSUPP)],
        "kept": [],
        "in place": [("linkfd", errno.EPERM), ("linkat", errno.EPERM), ("link", errno.EPERM)],
    }
    PUBLISHED_BY = {
        "unnamed": ("link*", 1),
        "linked through /proc": ("linkat", 1),
        "named": ("link", 1),
        "kept": ("link*", 1),
        # The first that is created is a temporary file, which then can't be linked.
        "in place": ("create", 2),
    }
    FULL_DISK = (errno.ENOSPC, "No space left")
    WRITE, GUARD, REMOVE, FINISH = "pwrite", "flock", "unlink", "fchmod"
    FLUSHES = {"pwrite": ["pwrite"], "fsync": ["fsync", "fdatasync"]}
    # It opens the file to look at it, and to remove it; before, it asks a file without a record
    # for its witness.
    OPEN_TO_REMOVE, OPEN_UNFINISHED_TO_REMOVE = ("open", 2), ("open", 3)
    DEATHS = {
        "with the guard": die_after("flock"),
        "before the unlink": die_before("unlink"),
        "after the unlink": die_after("unlink"),
        "before the publication": die_before("link*"),
    }
    # What is kept has a private name beside that of the lock.
    KEPT_NAMES = 1
    SECONDS = 1.0

    content = staticmethod(lambda path: Path(path).read_bytes())

    @staticmethod
    def leave_dead(path: str, *actors, kept: bool = False) -> None:
        """Leave what a process leaves that is killed while it holds the lock."""
        actors[-1].do(f"leave_dead_lock(path, kept={kept})")

    @staticmethod
    def in_place(one, *, local: bool) -> str:
        """Have an actor create its locks at their path; give the options that this takes."""
        have_only(one, Posix.FORMS["in place"])
        if not local:
            one.do(f"refuse('fstatfs', {errno.ENOSYS})")
        return ""

    @staticmethod
    def use_names(one) -> None:
        """Have an actor make temporary files that a cleaner can see."""
        have_only(one, Posix.FORMS["named"])

    @staticmethod
    def thief(robber, token: str) -> str:
        """Say how a robber tries to take the lock with this token from its living holder."""
        robber.have(
            "lock",
            "new_lock(path, policy=lambda status: "
            f"status.info is not None and status.info.token == {token!r})",
        )
        return "lock.try_acquire()"

    @staticmethod
    def let_go(holder) -> None:
        """Have an actor release what it holds."""
        holder.do("let_go(lock)")

    @staticmethod
    def in_the_end(condition) -> object:
        """Ask for what is so at once."""
        return condition()


class Windows(Posix):
    """Stops before each call, which is where one is that was stopped behind the call before."""

    EVERYWHERE = (stop_before,)
    if WINDOWS:
        FORMS = {
            "renamed": [],
            "moved by name": [("SetFileInformationByHandle rename", NOT_SUPPORTED)],
            "kept": [],
            "in place": [("GetVolumeInformationByHandleW", NOT_SUPPORTED)],
        }
        FULL_DISK = (DISK_FULL, "WinError 112")
    PUBLISHED_BY = {
        "renamed": ("SetFileInformationByHandle rename", 1),
        "moved by name": ("MoveFileExW", 1),
        "kept": ("SetFileInformationByHandle rename", 1),
        # The first that is created is a temporary file, of which it learns where it is.
        "in place": ("CreateFileW new", 2),
    }
    WRITE, GUARD = "WriteFile", "LockFileEx guard"
    REMOVE, FINISH = "SetFileInformationByHandle delete", "SetFileInformationByHandle basic"
    FLUSHES = {"WriteFile": ["WriteFile"], "FlushFileBuffers": ["FlushFileBuffers"]}
    OPEN_TO_REMOVE = OPEN_UNFINISHED_TO_REMOVE = ("CreateFileW delete", 1)
    DEATHS = {
        "with the guard": die_after("LockFileEx guard"),
        "before the unlink": die_before("SetFileInformationByHandle delete"),
        "after the unlink": die_after(
            "SetFileInformationByHandle delete", nth=3 if WINE else 1
        ),
        "before the publication": die_before(
            "SetFileInformationByHandle rename", nth=1 + _MOVED_ASIDE
        ),
    }
    # An instance has one name at any time.
    KEPT_NAMES = 0
    # What a killed process had is dropped some time later.
    SECONDS = 15.0
    _dead_record = b""

    @staticmethod
    def content(path: str) -> bytes:
        """Read a file that others have open."""
        return bytes_at(path)

    @classmethod
    def dead_record(cls, directory: str) -> bytes:
        """Give what a process has written that died while it held a lock."""
        if not cls._dead_record:  # a process takes long to begin
            path = os.path.join(directory, "dead.lock")
            windows_calls.leave_dead_lock(path)
            cls._dead_record = bytes_at(path)
            os.unlink(path)
        return cls._dead_record

    @staticmethod
    def leave_dead(path: str, *actors, kept: bool = False) -> None:
        for one in actors:
            # Wine closes nothing of a file of which a byte is locked.
            one.do("keep_a_claim(path)" if kept else "native.drain_pool()")
        record = Windows.dead_record(os.path.dirname(path))
        with open(path, "xb") as file:
            file.write(record)

    @staticmethod
    def in_place(one, *, local: bool) -> str:
        if local:
            return ", in_place=True"
        have_only(one, Windows.FORMS["in place"])
        return ""

    @staticmethod
    def use_names(one) -> None:
        pass

    @staticmethod
    def thief(robber, token: str) -> str:
        return f"rob(path, {token!r})"

    @staticmethod
    def let_go(holder) -> None:
        holder.do("let_go(lock)")
        holder.do("native.drain_pool()")

    @staticmethod
    def in_the_end(condition) -> object:
        end = time.monotonic() + 15
        while not (value := condition()) and time.monotonic() < end:
            time.sleep(0.01)
        return value


STOPS = Windows if WINDOWS else Posix

EVERY_FORM = [
    pytest.param(
        form,
        marks=pytest.mark.skipif(
            bool(WINE) and form == "moved by name",
            reason="under Wine a file that was moved by its name loses the number of its volume",
        ),
    )
    for form in STOPS.FORMS
]


class Cast:
    """Actors that are used again, as good as new: on Windows a process takes long to begin."""

    def __init__(self) -> None:
        self._idle: list[WindowsActor] = []

    @contextlib.contextmanager
    def playing(self, path: str):
        """Give a function that makes actors at a path."""
        cast: list[WindowsActor] = []

        def make() -> WindowsActor:
            one = self._idle.pop() if self._idle else WindowsActor(path)
            cast.append(one)
            one.do(f"fresh({path!r})")
            return one

        yield make
        for one in cast:
            if _is_ready(one):
                self._idle.append(one)
            else:
                one.close()

    def close(self) -> None:
        """End those that wait for a part."""
        for one in self._idle:
            one.close()


def _is_ready(one: WindowsActor) -> bool:
    """Whether an actor has let go of everything, and waits for what it is to do next."""
    if one.dead or one.stopped:
        return False
    with contextlib.suppress(ActorError, AssertionError):
        return one.do("let_go(lock), native.drain_pool(), 'here'") == [None, None, "here"]
    return False
