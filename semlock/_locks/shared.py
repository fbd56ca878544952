"""Many readers or one writer.

The writer's lock is the file at the path, like any lock; a reader's is a file of its own in
the directory ``PATH.readers``.  Both publish first and look then: a reader that sees a writer
withdraws, and a writer waits until the readers that it sees are gone.  So of two that come
at the same moment one sees the other, in any order of their steps.
"""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic

from semlock._core import capi, explain, inside
from semlock._core.errors import LockTimeoutError
from semlock._core.options import made_by, refuse_unknown, told_of
from semlock._core.paths import READERS
from semlock._locks import mine as _mine
from semlock._locks.lock import SAFE, Lock
from semlock._locks.readers import ReaderWait, names_of_readers, readers_leaving
from semlock._locks.reading import Reading
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Literal

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
    from semlock._waiting.steps import Steps
    from semlock.systems import System

_frame = sys._getframe


class SharedLock(Reading):
    """A lock that many readers may share, or one writer may hold alone.

    :path:    the writer's lock file; readers are files in ``PATH.readers`` beside it
    :system:  the lock system of the writer's file, such as ``semlock.systems.find("sema")``;
                semlock's own by default.  Readers are always semlock's

    The other parameters are those of ``Lock``.  ``with lock.shared():`` is for readers,
    ``with lock:`` for the writer.  The locks of dead readers and writers are
    removed when their death is proven.  Once a writer has the path new readers wait, so it waits
    only for present readers; readers and writers share one queue, so neither starves the other.

    A program that knows nothing of readers, a shell script with ``set -C`` or a plain ``Lock``,
    takes the path as a writer does but doesn't wait for readers: use it only to
    exclude writers.

    One object serves many threads, each as a reader or as the writer.  A ``reentrant`` one is
    acquired again as what it is held: a reader that asks to write is refused.  With
    ``held_by="object"`` any thread may release what another one took.
    """

    __slots__ = (
        "__weakref__", "_directory", "_head", "_readers", "_writer", "path", "tag", "timeout",
    )  # fmt: skip

    _reader_wait = ReaderWait
    _one_writer: Any = Lock
    _defaults = SAFE

    def __init__(
        self, path: StrPath, *, system: System | None = None, **options: Unpack[LockOptions]
    ) -> None:
        refuse_unknown(self, options)
        make = made_by(self._one_writer, system, for_tasks=self._who == "task")
        writer = make(path, **told_of(self, options))
        self._writer = self._head = writer
        self.path: str = writer.path
        self.tag: str | None = writer.tag
        self.timeout: float | None = writer.timeout
        self._directory = f"{self.path}{READERS}"
        # Each thread's own reader.
        self._readers: dict[object, Lock] = {}

    # ------------------------------------------------------------------ the writer

    def try_acquire(self) -> bool:
        """Take the lock as the writer if it has no holder; ``False`` if it has one."""
        if self._refuses(self._writer):
            return False
        try:
            self._take(0, _frame(1))
        except LockTimeoutError:
            return False
        return True

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        before = inside.native(self._writer).serial
        try:
            run(self._writing(timeout, frame))
        except BaseException:
            inside.undo(self._writer, before)
            raise

    def _writing(self, timeout: float | None, frame: FrameType) -> Steps[None]:
        """Take the lock as the writer."""
        won = self._nests(self._writer, frame)
        if not won:
            self._refuse_to_wait_for_oneself(frame)
        began = monotonic()
        me = self._me()
        try:
            if not won:
                yield from inside.acquiring(self._writer, timeout, frame)
                won = True
            left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
            yield from readers_leaving(self._writer, left, frame, self._reader_wait)
        except BaseException:
            # A thread or task did not hold it before: if it does now, this call has won it.
            if (won or not inside.native(self._writer).by_object) and self._writes(me):
                inside.end(self._writer)
            raise

    def _may_nest(self, part: Any) -> bool:
        """Tell whether the caller holds this part, and may take it again."""
        if part is None or not inside.native(part).reentrant:
            return False
        return self._writes(self._me()) if part is self._writer else bool(part.held)

    def _refuses(self, part: Any) -> bool:
        """Tell whether the caller holds it already in a way that a try can't join."""
        own = self._own()
        if own is None or inside.native(own).by_object:
            return False
        return not self._may_nest(part)

    def _nests(self, part: Any, frame: FrameType) -> bool:
        """Hold once more what the caller holds in this way already; ``False`` if it does not."""
        return self._may_nest(part) and inside.has_won(part, inside.try_anyway(part), frame)

    # ------------------------------------------------------------------ both

    def _names(self) -> list[str]:
        return names_of_readers(self._directory)

    def _refuse_to_wait_for_oneself(self, frame: FrameType) -> None:
        own = self._own()
        if own is not None and not inside.native(own).by_object:
            raise explain.deadlock_error(own, frame, self._who, reentrant=False)

    def _own(self) -> Any:
        """Find what this thread holds of this path, by any object.

        A writer that waits for that reader would block this call for ever.
        """
        return _mine.reader_of(self._me(), self.path) or self._mine()

    def _me(self) -> Any:
        """Identify the caller that acquires or releases."""
        return capi.this_thread()

    def _writes(self, me: object) -> bool:
        native = inside.native(self._writer)
        return bool(native.by_object or native.owner == me) and self._writer.held

    def _mine(self, me: object = None) -> Any:
        """Find what this thread holds: its reader, or the writer."""
        if me is None:
            me = self._me()
        reader = self._readers.get(me)
        if reader is not None and reader.held:
            return reader
        if self._writes(me):
            return self._writer
        if not inside.native(self._writer).by_object:
            return None
        return next((reader for reader in list(self._readers.values()) if reader.held), None)

    def _parts(self) -> list[Any]:
        return [self._writer, *list(self._readers.values())]

    def _left(self, me: object, mine: Any) -> None:
        if mine is self._writer or mine.held:
            return
        me = self._me() if me is None else me
        if self._readers.get(me) is not mine:  # another thread's or task's
            me = next((who for who, one in list(self._readers.items()) if one is mine), me)
        self._readers.pop(me, None)
        _mine.end_reading(me, self.path)
        capi.burst_released(inside.native(self._writer))
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    @property
    def held(self) -> Literal["shared", "exclusive"] | None:
        """How this thread holds the lock: ``"shared"``, ``"exclusive"`` or ``None``."""
        mine = self._mine()
        if mine is None:
            return None
        return "exclusive" if mine is self._writer else "shared"

    def status(self) -> LockStatus:
        """Look at the writer's lock file."""
        found: LockStatus = self._writer.status()
        return found

    def readers(self) -> list[LockStatus]:
        """Look at the readers' lock files."""
        found = (Lock(os.path.join(self._directory, name)).status() for name in self._names())
        return [status for status in found if status.state != "free"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}, {self.held or 'not held'}>"
