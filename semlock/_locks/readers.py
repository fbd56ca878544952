"""The files of readers, and a writer's wait until they are gone."""

from __future__ import annotations

import contextlib
import os
from time import monotonic

from semlock._core import capi, explain, inside, waits
from semlock._core.paths import READERS
from semlock._locks import mine
from semlock._locks.lock import Lock
from semlock._waiting.steps import Pause
from semlock._waiting.waiter import Waiter, run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from semlock._locks.base import BaseLock
    from semlock._waiting.steps import Steps

_LOOKS_IN_A_STEP = 500


def names_of_readers(directory: str) -> list[str]:
    """List the readers' files."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [name for name in sorted(names) if not name.startswith(".")]


def readers_leaving(
    writer: Any, timeout: float | None, frame: FrameType, form: type[ReaderWait]
) -> Steps[None]:
    """Wait, as the writer that has the path, until the present readers are gone.

    No reader can begin meanwhile.  ``LockTimeoutError`` when the time is over.
    """
    directory = f"{writer.path}{READERS}"
    began = monotonic()
    for count, name in enumerate(names_of_readers(directory), 1):
        path = os.path.join(directory, name)
        if count % _LOOKS_IN_A_STEP == 0 and form.yields:
            yield Pause(0)  # there may be thousands, and some are gone by now
        if not os.path.lexists(path):
            continue
        left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
        reader = reader_at(writer, path)
        if left != 0:
            form.refuse(reader, frame)
        waiter = form.waiter(reader, left, directory, writer)
        try:
            while os.path.lexists(path) and not reader_left(
                reader, waiter, frame, in_time=(yield waiter)
            ):
                pass
        finally:
            waiter.end()
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def wait_for_readers(writer: BaseLock, timeout: float | None, frame: FrameType) -> None:
    """Wait for the readers in this thread."""
    run(readers_leaving(writer, timeout, frame, ReaderWait))


class ReaderWait:
    """How a thread waits for a reader."""

    yields = False  # whether other tasks run only while it sleeps

    @staticmethod
    def refuse(reader: Lock, frame: FrameType) -> None:
        """Raise ``LockDeadlockError`` if this thread is that reader."""
        mine.refuse_thread(reader, frame)

    @staticmethod
    def waiter(reader: Lock, timeout: float | None, about: str, writer: Any) -> Waiter:
        """Begin to wait, in the name of the writer."""
        wait = waits.Wait((inside.native(reader),))
        return Waiter(timeout, wait=wait, of=writer, status=reader.status, about=about)


def reader_at(writer: BaseLock, path: str) -> Lock:
    """Make a lock object by which a writer waits for another holder's reader."""
    # Other systems' rules, such as an age, are for the writer: readers are semlock's own files.
    strict = inside.native(writer).strict
    reader = Lock(path, policy=None if strict else inside.policy(writer))
    inside.native(reader).turns = capi.NO_TURNS
    return reader


def reader_left(reader: Lock, waiter: Waiter, frame: FrameType, *, in_time: bool) -> bool:
    """Act on the end of a pause; ``True`` if the reader is gone."""
    if not in_time:
        if inside.judge(reader, frame, may_wait=False):
            return True  # it was dead, and its file is removed
        raise explain.timeout_error(reader, waiter.waited)
    if waiter.said == capi.FREE:
        return True
    # A dead reader's file is removed, like any dead holder's.
    if waiter.judge is not False:
        inside.judge(reader, frame, may_wait=False, waiter=waiter)
    return False
