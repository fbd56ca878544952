"""Many readers or one writer.

The writer's lock is the file at the path, like any lock; a reader's is a file of its own in
the directory ``PATH.readers``.  Both publish first and look then: a reader that sees a writer
withdraws, and a writer waits until the readers that it sees are gone.  So one of two who come
at the same moment sees the other, in whatever order their steps go.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from time import monotonic

from semlock._core import capi, explain, inside, waits
from semlock._core.capi import HELD, LOOK, OK, POOL, try_anyway
from semlock._core.errors import LockTimeoutError
from semlock._core.explain import READERS
from semlock._core.folders import open_to_others
from semlock._core.seconds import checked_timeout
from semlock._locks import mine as _mine
from semlock._locks.lock import Lock
from semlock._locks.options import OWN_TIMEOUT
from semlock._waiting.notice import notice_of
from semlock._waiting.steps import Pause, insisting, run
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType, TracebackType
    from typing import Any, Literal

    from typing_extensions import Self

    from semlock._core.identity import Process
    from semlock._core.status import LockStatus, StrPath
    from semlock._core.verdicts import Policy
    from semlock._locks.base import BaseLock
    from semlock._locks.options import Durability
    from semlock._waiting.notice import Notice
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Schedule

_frame = sys._getframe
_TRIES = 100
_LOOKS_IN_A_STEP = 500

_NO_SUCH_PATH = -3  # what Windows says of a missing directory


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
    """Wait, as the one who holds the path, until the readers that are there have gone.

    Nobody comes anew meanwhile.  ``LockTimeoutError`` when the time is over.
    """
    directory = f"{writer.path}{READERS}"
    began = monotonic()
    for count, name in enumerate(names_of_readers(directory), 1):
        path = os.path.join(directory, name)
        if count % _LOOKS_IN_A_STEP == 0 and form.yields:
            yield Pause(0)  # there may be thousands, who have gone meanwhile
        if not os.path.lexists(path):
            continue
        left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
        reader = reader_at(writer, path)
        if left != 0:
            form.refuse(reader, frame)
        waiter = form.waiter(reader, left, directory, notice_of(writer, reader.status))
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
    """Wait so in this thread."""
    run(readers_leaving(writer, timeout, frame, ReaderWait))


class ReaderWait:
    """How a thread waits for a reader."""

    yields = False  # whether others go on only while it sleeps

    @staticmethod
    def refuse(reader: Lock, frame: FrameType) -> None:
        """Refuse a wait that is for oneself."""
        _mine.refuse_thread(reader, frame)

    @staticmethod
    def waiter(
        reader: Lock, timeout: float | None, about: str, notice: Notice | None
    ) -> Waiter:
        """Begin to wait."""
        wait = waits.Wait((inside.native(reader),))
        return Waiter(timeout, wait=wait, notice=notice, about=about)


def reader_at(writer: BaseLock, path: str) -> Lock:
    """Make a lock object by which a writer waits for somebody else's reader."""
    reader = Lock(path, policy=inside.policy(writer))
    inside.native(reader).turns = capi.NO_TURNS
    return reader


def reader_left(reader: Lock, waiter: Waiter, frame: FrameType, *, in_time: bool) -> bool:
    """Do what the last pause calls for; ``True`` if the reader is known to have gone."""
    if not in_time:
        if inside.judge(reader, frame, may_wait=False):
            return True  # it had died just now
        raise explain.timeout_error(reader, waiter.waited)
    if waiter.said == capi.FREE:
        return True
    # Proof of death takes a reader's file away, as it does with any lock.
    if waiter.judge is not False:
        inside.judge(reader, frame, may_wait=False, waiter=waiter)
    return False


class SharedLock:
    """A lock that many may share as readers, or one may have for itself as the writer.

    :path:  the writer's lock file; readers are files in ``PATH.readers`` beside it

    The other parameters are those of ``Lock``.  ``with lock.shared():`` is for readers,
    ``with lock:`` for the writer.  Dead readers and a dead writer are found out and taken away
    by proof.  Once a writer has the path new readers wait, so it waits only for those who read
    already; and readers and writers stand in one queue, so neither keeps the other out.

    A program that knows nothing of readers, a shell script with ``set -C`` or a plain ``Lock``,
    takes the path as a writer does but doesn't wait for readers: let it use it only for
    excluding writers.

    One object serves many threads, each as a reader or as the writer.
    """

    __slots__ = ("_directory", "_readers", "_writer", "path", "tag", "timeout")

    _who: Literal["thread", "task"] = "thread"
    _patient = True  # whether one who asks once may sleep to see what others do
    _reader_wait = ReaderWait
    _one_writer: Any = Lock

    def __init__(
        self,
        path: StrPath,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        retry: Schedule | None = None,
        durability: Durability = "full",
        mode: int = 0o644,
        make_dirs: bool = False,
        fair: bool = False,
        on_wait: Callable[[LockStatus, float], object] | None = None,
    ) -> None:
        writer = self._one_writer(
            path,
            tag=tag,
            timeout=timeout,
            policy=policy,
            retry=retry,
            durability=durability,
            mode=mode,
            make_dirs=make_dirs,
            fair=fair,
            on_wait=on_wait,
        )
        self._writer = writer
        self.path: str = writer.path
        self.tag: str | None = writer.tag
        self.timeout: float | None = writer.timeout
        self._directory = f"{self.path}{READERS}"
        # Each thread's own reader.
        self._readers: dict[object, Lock] = {}

    # ------------------------------------------------------------------ the writer

    def acquire(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Take the lock for oneself, waiting for all others; ``LockTimeoutError`` at the end."""
        # Made first: behind the win nothing may come in which a signal could still strike.
        holding = _Holding(self)
        self._take(self._limit(timeout), _frame(1))
        return holding  # type: ignore[return-value]

    def exclusive(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Hold the lock for oneself in a ``with`` block."""
        return _Entering(self, self._take, self._limit(timeout))  # type: ignore[return-value]

    def __enter__(self) -> Self:
        self._take(self.timeout, _frame(1))
        return self

    def try_acquire(self) -> bool:
        """Take the lock for oneself if nobody has it in any way; ``False`` if somebody has."""
        if self._own() is not None:
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
        """Take the lock for oneself."""
        self._refuse_to_wait_for_oneself(frame)
        began = monotonic()
        me = self._me()
        try:
            yield from inside.acquiring(self._writer, timeout, frame)
            left = None if timeout is None else max(0.0, timeout - (monotonic() - began))
            yield from readers_leaving(self._writer, left, frame, self._reader_wait)
        except BaseException:
            # It was not ours before, so if it is now, then it was won in this call.
            if self._writes(me):
                inside.end(self._writer)
            raise

    # ------------------------------------------------------------------ readers

    def acquire_shared(
        self, timeout: float | None = OWN_TIMEOUT
    ) -> AbstractContextManager[Self]:
        """Take the lock as a reader, waiting for a writer; ``LockTimeoutError`` at the end."""
        holding = _Holding(self)
        self._share(self._limit(timeout), _frame(1))
        return holding  # type: ignore[return-value]

    def shared(self, timeout: float | None = OWN_TIMEOUT) -> AbstractContextManager[Self]:
        """Hold the lock as a reader in a ``with`` block."""
        return _Entering(self, self._share, self._limit(timeout))  # type: ignore[return-value]

    def try_acquire_shared(self) -> bool:
        """Take the lock as a reader if there is no writer; ``False`` if there is one."""
        if self._own() is not None:
            return False
        try:
            self._share(0, _frame(1))
        except LockTimeoutError:
            return False
        return True

    def _share(self, timeout: float | None, frame: FrameType) -> None:
        me = self._me()
        before = self._readers.get(me)
        try:
            run(self._sharing(timeout, frame, patient=self._patient))
        except BaseException:
            self._stop_reading(me, before)
            raise

    def _stop_reading(self, me: object, before: Lock | None) -> None:
        """Take back the reader of a call that failed, if there is one."""
        reader = self._readers.get(me)
        if reader is None or reader is before:
            return
        if inside.native(reader).held or os.path.lexists(self._directory):
            self._withdraw(reader)
        self._readers.pop(me, None)
        _mine.end_reading(me, self.path)

    def _sharing(
        self,
        timeout: float | None,
        frame: FrameType,
        *,
        in_line: bool = False,
        asked: int = 0,
        patient: bool = True,
    ) -> Steps[None]:
        """Take the lock as a reader; who stands in line behind others doesn't try before."""
        self._refuse_to_wait_for_oneself(frame)
        me = self._me()
        before = self._readers.get(me)
        # Known before it is won, so that nothing is lost by an interrupt in between.  Nobody
        # else tries by this reader, so it goes whatever happens in which sleep.
        reader = self._readers[me] = self._new_reader()
        _mine.begin_reading(me, self.path, reader)
        try:
            way = HELD
            if not in_line:
                way = self._way(timeout)
                if timeout == 0 and way == capi.TURN and patient:
                    way = yield from insisting(lambda: self._way(0))
            if way != OK or not self._enter(reader, frame):
                yield from self._waiting_for_writer(reader, timeout, frame, asked)
        except BaseException:
            self._stop_reading(me, before)
            raise

    def _way(self, timeout: float | None) -> int:
        """Tell whether others come first: OK, TURN if it is free for them, or HELD.

        With no time, only a fair lock asks.
        """
        head = inside.native(self._writer)
        if timeout == 0 and head.turns != capi.FAIR:
            return OK
        return capi.must_make_way(head)

    def _new_reader(self) -> Lock:
        name = os.urandom(8).hex()
        reader = Lock(
            os.path.join(self._directory, name),
            tag=self.tag,
            **inside.options_of_files(self._writer),
        )
        owner = inside.left_to(self._writer)
        if owner is not None:
            inside.leave_to(reader, owner, guarded=True)
        # The directory shall go with the last reader, so no file is kept in it.
        inside.native(reader).fleeting = 1
        inside.native(reader).turns = capi.NO_TURNS
        inside.lay_out(reader)
        return reader

    def _enter(self, reader: Lock, frame: FrameType) -> bool:
        """Publish a reader, unless there is a writer, before or after."""
        if os.path.lexists(self.path):
            return False
        for _ in range(_TRIES):
            outcome = try_anyway(inside.native(reader), POOL)
            if outcome not in (-errno.ENOENT, _NO_SUCH_PATH):
                break
            self._make_directory()  # the last reader has just taken it away
        if outcome in (HELD, LOOK) or not inside.has_won(reader, outcome, frame):
            return False
        if os.path.lexists(self.path):
            self._withdraw(reader)
            return False
        return True

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
                open_to_others(self._directory, parent)  # whatever our umask is

    def _withdraw(self, reader: Lock) -> None:
        if reader.held:
            inside.end(reader)
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def _waiting_for_writer(
        self, reader: Lock, timeout: float | None, frame: FrameType, asked: int
    ) -> Steps[None]:
        writer = self._writer
        if timeout == 0:
            fair = inside.is_fair(writer)
            if (not fair or not capi.must_make_way(inside.native(writer))) and (
                inside.judge(writer, frame, may_wait=False) and self._enter(reader, frame)
            ):
                return
            raise explain.timeout_error(writer, 0.0)
        self._refuse_to_read(frame)
        waiter = self._waiter(reader, timeout, asked)
        won = None
        try:
            while not self._answer(reader, waiter, frame, in_time=(yield waiter)):
                pass
            won = inside.native(reader)
            waiter.served()
        finally:
            waiter.end(won)

    def _refuse_to_read(self, frame: FrameType) -> None:
        """Refuse to wait for a writer that waits for this very thread."""
        _mine.refuse_thread(self._writer, frame)
        _mine.refuse_reading_thread(self.path, frame)

    def _waiter(self, reader: Lock, timeout: float | None, asked: int) -> Waiter:
        del asked  # a thread asks when it begins to wait
        writer = self._writer
        return Waiter(
            timeout,
            inside.schedule(writer),
            wait=waits.Wait(
                (inside.native(writer),), inside.native(writer), inside.record(reader)
            ),
            queue=inside.native(writer),
            notice=notice_of(writer),
            about=self.path,
        )

    def _answer(self, reader: Lock, waiter: Waiter, frame: FrameType, *, in_time: bool) -> bool:
        """Do what the last pause calls for; ``True`` if the reader is in."""
        writer = self._writer
        if not in_time:
            raise explain.timeout_error(writer, waiter.waited)
        if waiter.judge is not False:
            inside.judge(writer, frame, may_wait=True, waiter=waiter)
        fair = inside.is_fair(writer)
        return waiter.in_turn(fair=fair) and self._enter(reader, frame)

    # ------------------------------------------------------------------ both

    def _leave_to(self, owner: Process, *, guarded: bool) -> None:
        """Name another process in all records of this object; see ``BaseLock``."""
        inside.leave_to(self._writer, owner, guarded=guarded)

    def _limit(self, timeout: float | None) -> float | None:
        limit = self.timeout if timeout is OWN_TIMEOUT else timeout
        return limit if limit is None else checked_timeout(limit)

    def _names(self) -> list[str]:
        return names_of_readers(self._directory)

    def _refuse_to_wait_for_oneself(self, frame: FrameType) -> None:
        own = self._own()
        if own is not None:
            raise explain.deadlock_error(own, frame, self._who, reentrant=False)

    def _own(self) -> Any:
        """Find what this thread holds of this path, by whichever object.

        A writer who waits for that reader would keep this one out.
        """
        return _mine.reader_of(self._me(), self.path) or self._mine()

    def _me(self) -> Any:
        """Name whoever acquires or lets go."""
        return capi.this_thread()

    def _writes(self, me: object) -> bool:
        return bool(inside.native(self._writer).owner == me) and self._writer.held

    def _mine(self, me: object = None) -> Any:
        """Find what this thread holds: its reader, or the writer."""
        if me is None:
            me = self._me()
        reader = self._readers.get(me)
        if reader is not None and reader.held:
            return reader
        return self._writer if self._writes(me) else None

    def _held(self) -> Any:
        mine = self._mine()
        if mine is None:
            raise explain.not_held_error(self._writer)
        return mine

    def release(self) -> None:
        """Let go of what this thread holds; the errors are those of ``Lock.release``."""
        mine = self._held()
        try:
            mine.release()
        finally:
            self._left(self._me(), mine)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(self._me(), kind, error, traceback)

    def _leave(
        self,
        me: object,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        mine = self._mine(me)
        if mine is None:
            reader = self._readers.get(me)
            if inside.forked(self._writer) or (reader is not None and inside.forked(reader)):
                return  # the block was entered by the parent, who still holds the lock
            raise explain.not_held_error(self._writer)
        try:
            mine.__exit__(kind, error, traceback)
        finally:
            self._left(me, mine)

    def _left(self, me: object, mine: Any) -> None:
        if mine is self._writer or mine.held:
            return
        self._readers.pop(me, None)
        _mine.end_reading(me, self.path)
        capi.burst_released(inside.native(self._writer))
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)

    def refresh(self) -> None:
        """Write the present time into this thread's record."""
        self._held().refresh()

    def check(self) -> None:
        """Make sure that the lock is still held; ``LockLostError`` if somebody removed it."""
        self._held().check()

    @property
    def held(self) -> Literal["shared", "exclusive"] | None:
        """How this thread holds the lock: ``"shared"``, ``"exclusive"`` or ``None``."""
        mine = self._mine()
        if mine is None:
            return None
        return "exclusive" if mine is self._writer else "shared"

    def status(self) -> LockStatus:
        """Look at the writer's place."""
        found: LockStatus = self._writer.status()
        return found

    def readers(self) -> list[LockStatus]:
        """Look at all readers."""
        found = (Lock(os.path.join(self._directory, name)).status() for name in self._names())
        return [status for status in found if status.state != "free"]

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, which then runs as the writer."""
        from semlock._locks import decorating  # noqa: PLC0415 - only for those who decorate

        decorated: Callable[..., Any] = decorating.decorate(self, function)
        return decorated

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}, {self.held or 'not held'}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} can't be pickled: make a lock of the same path in the other process"
        )


class _Holding:
    """What an acquisition returns: a context manager that only releases."""

    __slots__ = ("_lock",)

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> SharedLock:
        return self._lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, traceback)


class _Entering(_Holding):
    """A context manager that acquires when it is entered."""

    __slots__ = ("_limit", "_take")

    def __init__(
        self,
        lock: SharedLock,
        take: Callable[[float | None, FrameType], None],
        limit: float | None,
    ) -> None:
        super().__init__(lock)
        self._take = take
        self._limit = limit

    def __enter__(self) -> SharedLock:
        self._take(self._limit, _frame(1))
        return self._lock
