"""Readers of a shared lock: how a thread or a task becomes one."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from semlock._core import capi, explain, inside, registry, waits
from semlock._core.capi import HELD, LOOK, OK, POOL, try_anyway
from semlock._core.errors import LockTimeoutError
from semlock._core.folders import open_to_others
from semlock._locks import OWN_TIMEOUT, Acquired, Entering, mine
from semlock._locks.base import Acquirable
from semlock._locks.lock import Lock
from semlock._locks.parts import InParts
from semlock._waiting.steps import insisting
from semlock._waiting.waiter import Waiter, run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any

    from typing_extensions import Self

    from semlock._waiting.steps import Steps

_frame = sys._getframe
_TRIES = 100
_NO_SUCH_PATH = -3  # what Windows says of a missing directory


class Sharable(Acquirable):
    """One that readers acquire too: ``_share`` does it."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _share(self, timeout: float | None, frame: FrameType) -> None: ...

    def acquire_shared(
        self, timeout: float | None = OWN_TIMEOUT
    ) -> AbstractContextManager[Self]:
        """Take the lock as a reader, waiting for writers; ``LockTimeoutError`` at the end."""
        acquired = Acquired()
        acquired.lock = self
        self._share(self._limit(timeout), _frame(1))
        return acquired

    def shared(self, timeout: float | None = OWN_TIMEOUT) -> Entering:
        """Hold the lock as a reader in a ``with`` block, or in each call of a function.

        ``@lock.shared()`` decorates a function, which then runs as a reader.
        """
        return Entering(self, self._share, self._limit(timeout))

    def exclusive(self, timeout: float | None = OWN_TIMEOUT) -> Entering:
        """Hold the lock as the writer in a ``with`` block, or in each call of a function."""
        return Entering(self, self._take, self._limit(timeout))


class Reading(Sharable, InParts):
    """The part of ``SharedLock`` by which readers acquire."""

    __slots__ = ()

    if TYPE_CHECKING:
        path: str
        tag: str | None
        _directory: str
        _readers: dict[object, Lock]
        _writer: Any

        def _refuse_to_wait_for_oneself(self, frame: FrameType) -> None: ...
        def _own(self) -> Any: ...
        def _refuses(self, part: Any) -> bool: ...
        def _nests(self, part: Any, frame: FrameType) -> bool: ...
        def _me(self) -> Any: ...

    def try_acquire_shared(self) -> bool:
        """Take the lock as a reader if there is no writer; ``False`` if there is one."""
        if self._refuses(self._readers.get(self._me())):
            return False
        try:
            self._share(0, _frame(1))
        except LockTimeoutError:
            return False
        return True

    def _share(self, timeout: float | None, frame: FrameType) -> None:
        me = self._me()
        before = self._readers.get(me)
        serial = 0 if before is None else inside.native(before).serial
        try:
            run(self._sharing(timeout, frame, patient=self._patient))
        except BaseException:
            self._give_back(me, before)
            if before is not None:
                inside.undo(before, serial)
            raise

    def _give_back(self, me: object, before: Lock | None) -> None:
        """Take back the reader of a call that failed, if there is one."""
        reader = self._readers.get(me)
        if reader is None or reader is before:
            return
        if inside.native(reader).held or os.path.lexists(self._directory):
            self._withdraw(reader)
        self._readers.pop(me, None)
        mine.end_reading(me, self.path)

    def _sharing(
        self, timeout: float | None, frame: FrameType, *, patient: bool = True
    ) -> Steps[None]:
        """Take the lock as a reader; a task behind others in line doesn't try first.

        The caller gives back what a call that fails has won.
        """
        registry.follow_fork()  # later, it would forget this reader too
        in_line, asked, early = self._into_line(timeout)
        if early is not None:
            yield early
            del early
        before = self._readers.get(self._me())
        if self._nests(before, frame):
            return
        self._refuse_to_wait_for_oneself(frame)
        way = HELD
        if not in_line:
            way = self._way(timeout)
            if timeout == 0 and way == capi.TURN and patient:
                way = yield from insisting(self._way, 0)
        if way != OK or not self._enter(before, frame):
            yield from self._waiting_for_writer(before, timeout, frame, asked)

    def _reader(self, before: Lock | None) -> Lock:
        """Give the reader of a call, whose caller had another one ``before``, or none.

        A task that waits in a line has none yet, as there may be thousands.
        """
        me = self._me()
        reader = self._readers.get(me)
        if reader is None or reader is before:
            # Entered before it is won, so that an interrupt can't lose it.  Only this call uses
            # this reader, so a failed call can withdraw it.
            reader = self._readers[me] = self._new_reader()
            mine.begin_reading(me, self.path, reader)
        return reader

    def _new_reader(self) -> Lock:
        name, head = os.urandom(8).hex(), inside.native(self._writer)
        reader = Lock(
            os.path.join(self._directory, name),
            tag=self.tag,
            reentrant=bool(head.reentrant or head.by_object),
            held_by="object" if head.by_object else None,
            heartbeat=inside.heartbeat(self._writer),
            on_lost=inside.on_lost(self._writer),
            **inside.options_of_files(self._writer),
        )
        owner = inside.left_to(self._writer)
        if owner is not None:
            inside.leave_to(reader, owner, guarded=True)
        # The last reader removes the directory, so no file may be kept in it.
        inside.native(reader).fleeting = 1
        inside.native(reader).turns = capi.NO_TURNS
        inside.lay_out(reader)
        return reader

    def _enter(self, before: Lock | None, frame: FrameType) -> Lock | None:
        """Publish the reader of a call, unless a writer is there before or after that."""
        if os.path.lexists(self.path):
            return None
        reader = self._reader(before)
        for _ in range(_TRIES):
            outcome = try_anyway(inside.native(reader), POOL)
            if outcome not in (-errno.ENOENT, _NO_SUCH_PATH):
                break
            self._make_directory()  # the last reader has just removed it
        if outcome in (HELD, LOOK) or not inside.has_won(reader, outcome, frame):
            return None
        if os.path.lexists(self.path):
            self._withdraw(reader)
            return None
        return reader

    def _make_directory(self) -> None:
        try:
            parent = os.stat(os.path.dirname(self.path)).st_mode & 0o1777
        except (FileNotFoundError, NotADirectoryError) as error:
            if inside.made_dirs(self._writer, -errno.ENOENT):
                return  # the next try goes on from here
            code = -(error.errno or errno.ENOENT)
            makes = inside.makes_dirs(self._writer)
            raise explain.os_error(self.path, code, makes_dirs=makes) from None
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, parent)
            if parent & 0o022:
                open_to_others(self._directory, parent)  # independent of this process's umask

    def _withdraw(self, reader: Lock) -> None:
        if reader.held:
            inside.end(reader)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def _waiting_for_writer(
        self, before: Lock | None, timeout: float | None, frame: FrameType, asked: int
    ) -> Steps[None]:
        writer = self._writer
        if timeout == 0:
            fair = inside.is_fair(writer)
            if (not fair or not capi.must_make_way(inside.native(writer))) and (
                inside.judge(writer, frame, may_wait=False) and self._enter(before, frame)
            ):
                return
            raise explain.timeout_error(writer, 0.0)
        self._refuse_to_read(frame)
        waiter = self._waiter(before, timeout, asked)
        won = None
        try:
            reader = None
            while reader is None:
                reader = self._answer(before, waiter, frame, in_time=(yield waiter))
            won = inside.native(reader)
            waiter.served()
        finally:
            waiter.end(won)

    def _refuse_to_read(self, frame: FrameType) -> None:
        """Refuse to wait for a writer that waits for this thread."""
        mine.refuse_thread(self._writer, frame)
        mine.refuse_reading_thread(self.path, frame)

    def _waiter(self, before: Lock | None, timeout: float | None, asked: int) -> Waiter:
        del asked  # a thread asks when it begins to wait
        writer, reader = self._writer, self._reader(before)
        with contextlib.suppress(OSError):
            self._make_directory()  # a file is prepared there, before it sleeps
        return Waiter(
            timeout,
            inside.schedule(writer),
            wait=waits.Wait(
                (inside.native(writer),),
                inside.native(writer),
                inside.record(reader),
                prepares=inside.native(reader),
                fair=inside.is_fair(writer),
            ),
            queue=inside.native(writer),
            of=writer,
            about=self.path,
        )

    def _answer(
        self, before: Lock | None, waiter: Waiter, frame: FrameType, *, in_time: bool
    ) -> Lock | None:
        """Act on the end of a pause; the reader if it is in."""
        writer = self._writer
        if not in_time:
            raise explain.timeout_error(writer, waiter.waited)
        looked = waiter.judge is not False
        if looked:
            inside.judge(writer, frame, may_wait=True, waiter=waiter)
        fair = inside.is_fair(writer)
        return self._enter(before, frame) if waiter.in_turn(fair=fair, anew=looked) else None
