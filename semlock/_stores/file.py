"""The file store: a lock is held exactly while a file exists at its path.

A lock's class mixes ``InFiles`` in.  Usually ``acquire`` and ``release`` are one call into C in
the frame that the user called; it sets owner, depth, serial and endings in C's structure.
"""

from __future__ import annotations

import errno
import os
import sys

from semlock._core import (
    BY_CALLER,
    FAIR,
    HELD,
    KEPT,
    NESTED,
    NO_TURNS,
    OK,
    TURN,
    capi,
    events,
    explain,
    registry,
    waits,
)
from semlock._core.capi import BURSTS, POOL, release_lock, this_thread, try_anyway, try_lock
from semlock._core.errors import LockTimeoutError
from semlock._core.inside import unstruck
from semlock._core.options import taken
from semlock._core.paths import absolute, engine_of
from semlock._core.status import look_at, remove_exactly
from semlock._core.verdicts import may_make_locks_beside
from semlock._stores import FileRecord, by_object, holder_here
from semlock._waiting.steps import may_keep, take
from semlock._waiting.waiter import Waiter, goes_on, run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.compiled import semlock_lock
    from semlock._core.identity import Process
    from semlock._core.options import LockOptions
    from semlock._core.status import LockStatus, StrPath
    from semlock._locks.base import BaseLock
    from semlock._stores.store import Attempt, Instance
    from semlock._waiting.steps import KeptWait

# A live holder is judged again after a tenth of the time that it has been watched, within these
# bounds: soon after it was first seen, and rarely later.
_FIRST_LOOK = 10_000_000
_LAST_LOOK = 200_000_000

_RECLAIM_PATIENCE = 0.002
_NEST_PAUSE = 0.05
_RECORDS_KEPT = 32

# Records that locks of this process share: a thousand without a tag need one.  Tags may all differ.
_shared: dict[tuple[object, ...], capi.Record] = {}
_SHARED_LIMIT = 64
registry.on_fork(_shared.clear)

_TRIES = 10
_HAD = (OK, NESTED)
_MUST_WAIT = (HELD, TURN)
_try_or_wait = waits.try_or_wait


class InFiles(FileRecord):
    """Makes of ``BaseLock`` a lock that is a file."""

    __slots__ = ()

    # The slots that each class with this mixin needs.
    SLOTS = (
        "_durability", "_encoded", "_first_seen", "_kept", "_laid_out", "_make_dirs", "_mode",
        "_owner", "_path_at", "_record", "_seen",
    )  # fmt: skip

    _native: semlock_lock

    # Whether other programs take such locks over by writing into the file.  Then the record is
    # read to find out whether the lock is still held.
    _strict = False

    # Whether waiters stand in a queue, and when holders make way for them.
    _turns = NO_TURNS

    # Whether locks with the same tag and options share a record, as nothing in it is of one alone.
    _shares_record = False

    # Whether each try needs a new record: the core fills in no payload, and one form of time.
    _each_time = False

    _absolute = staticmethod(absolute)

    def __init__(self, path: StrPath, **options: Unpack[LockOptions]) -> None:
        given = taken(self, options) if options else self._defaults
        super().__init__(self._absolute(path), given)
        mode, held_by = given["mode"], given["held_by"]
        self._durability = given["durability"]
        self._mode = mode | capi.EXACT if given["exact_mode"] else mode
        self._make_dirs = given["make_dirs"]
        # The process that the lock is for, if it isn't this one, and whether this one keeps it.
        self._owner: tuple[Process, bool] | None = None
        self._record: capi.Record | None = None
        self._laid_out: list[capi.Record] = []
        self._kept: list[KeptWait] | None = None
        self._seen: tuple[int, ...] | None = None
        self._first_seen = 0
        self._encoded = os.fsencode(self.path)
        self._path_at = capi.address(self._encoded)
        native = capi.new_lock()
        capi.start_lock_path(native, self._path_at, len(self._encoded))
        if given["reentrant"]:
            native.reentrant = 1
        if held_by is not None:
            native.by_object = by_object("task" if self._for_tasks else "thread", held_by)
            if given["reentrant"] and native.by_object and self._cancel is None:
                # Threads that wait by this object may acquire with one that wins by it, and no
                # event tells them of that: they try as often as a cancel_check is asked.
                self._cancel = bool, _NEST_PAUSE
        native.turns = FAIR if given["fair"] else self._turns
        native.vouched = self._vouched if self._policy is None else BY_CALLER
        native.strict = self._strict
        # Last: __del__ would take a zero in a structure that is not ready for a descriptor.
        self._native = native
        registry.add(self)

    def _lay_out(self) -> None:
        if self._record is not None and self._native.owner:
            return  # a thread tries or holds with this record, so it must not change
        owner = self._owner
        name = self._compose.__func__, self.tag, self._mode, self._durability  # type: ignore[attr-defined]
        record = _shared.get(name) if owner is None else None
        if record is None:
            record = self._compose(None if owner is None else owner[0])
            if owner is not None:
                record.cdata.detached = not owner[1]
            elif self._shares_record:
                if len(_shared) >= _SHARED_LIMIT:
                    _shared.clear()
                _shared[name] = record
        # Another thread may still read an earlier one.  Append and cut are one step for threads.
        self._laid_out.append(record)
        del self._laid_out[:-_RECORDS_KEPT]
        self._native.record = record.cdata
        self._record = record

    # ------------------------------------------------------------------ the hot path

    def _take(self, timeout: float | None, frame: FrameType) -> None:
        native = self._native
        before = native.serial
        try:
            if events.sink is not None:
                run(self._acquiring(timeout, frame))
                return
            if self._record is None or self._each_time:
                self._lay_out()
            outcome = (_try_or_wait if timeout != 0 else try_lock)(native, POOL)
            if outcome == OK and self._heartbeat is None:
                # As in _settle, but without a call: this is the hot path.
                self._place = (frame.f_code, frame.f_lasti)
            elif outcome in _HAD:
                self._settle(outcome, frame)
            elif outcome in _MUST_WAIT and timeout != 0 and may_keep(self, native):
                self._take_waiting(outcome, timeout, frame)
            else:
                run(self._waiting(outcome, timeout, frame))
        except BaseException:
            self._undo(before)
            raise

    def _take_waiting(self, outcome: int, timeout: float | None, frame: FrameType) -> None:
        # As in _waiting, in one call into C: the usual case of a crowded lock.
        if outcome == TURN:
            self._give_way()
        if self._kept is None:
            self._kept = []
        found = take(self, self._native, self._record, self._kept, timeout)
        if found is None:
            self._place = (frame.f_code, frame.f_lasti)
            return
        outcome, waiter = goes_on(self, self._native, timeout, *found)
        try:
            run(self._waiting(outcome, timeout, frame, waiter=waiter))
        finally:
            waiter.end()

    @unstruck
    def release(self) -> None:
        """Release the lock.

        ``NotHeldError`` if it is not held here; ``LockLostError`` if it was removed
        meanwhile; then a file at the path is another holder's and stays.
        """
        native = self._native
        endings = native.endings
        try:
            outcome = (
                release_lock(native, POOL) if events.sink is None else events.release(self)
            )
        except BaseException:
            self._end(endings)
            raise
        if outcome not in _HAD:
            self._finish_release(outcome)

    @unstruck
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        native = self._native
        endings = native.endings
        try:
            outcome = (
                release_lock(native, POOL) if events.sink is None else events.release(self)
            )
        except BaseException:
            self._end(endings)
            raise
        if outcome not in _HAD:
            self._finish_block(outcome, kind)

    # ------------------------------------------------------------------ what all stores do

    def _try(self) -> int:
        if self._record is None or self._each_time:
            self._lay_out()
        return try_lock(self._native, POOL)

    def _try_again(self) -> int:
        if self._record is None or self._each_time:
            self._lay_out()
        return try_anyway(self._native, POOL)

    def _made_dirs(self, outcome: int) -> bool:
        """Make missing directories if a try failed for them and ``make_dirs`` is set."""
        if not self._make_dirs or outcome not in explain.NO_DIRECTORY:
            return False
        parent = os.path.dirname(self.path)
        if explain.seems_a_home(parent) or engine_of(parent):
            return False
        try:
            os.makedirs(parent, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            return os.path.isdir(parent)
        except FileNotFoundError:
            pass  # another process has just removed one of them
        return True

    def _mend(self, outcome: int) -> int:
        for _ in range(_TRIES):  # another process may remove an empty directory again
            if not self._made_dirs(outcome):
                break
            outcome = self._try_again()
        if outcome < 0 and outcome != -errno.EINTR:
            raise explain.os_error(self.path, outcome, makes_dirs=self._make_dirs)
        return outcome

    def _waiter(self, timeout: float | None, asked: int) -> Attempt:
        del asked  # a thread's wait begins now
        native = self._native
        queue = native if native.turns else None
        wait = waits.Wait((native,), queue, self._record, prepares=native)
        # The core tries by itself unless each try needs a new record.
        lock = native if native.turns and not self._each_time else None
        waiter = Waiter(timeout, self._retry, wait=wait, lock=lock, of=self)
        if self._policy is not None:
            waiter.judge = None  # by the clock of the lock, from the beginning
        return waiter

    def _give_way(self) -> None:
        # Waiters that our release has woken may need this processor.
        capi.give_way()

    def _let_go(self) -> int:
        outcome = events.release(self)
        if outcome == KEPT:
            self._note_kept_claim()
            return OK
        return outcome

    def _finish_release(self, outcome: int) -> None:
        if outcome == KEPT:
            self._note_kept_claim()
        else:
            super()._finish_release(outcome)

    def _note_kept_claim(self) -> None:
        # From now on it keeps a file here while it idles, so it removes those of killed processes.
        registry.first_claim_kept()
        registry.sweep(os.path.dirname(self.path))

    def _end(self, endings: int) -> None:
        # A release whose outcome an exception has hidden may have kept a claim.
        if self._native.endings != endings or events.release(self) == KEPT:
            registry.first_claim_kept()

    def _confirm(self) -> int:
        return capi.check_lock(self._native, POOL)

    def _holds(self) -> int:
        return capi.hold_of(self._native, POOL)

    def _is_of_thread(self) -> bool:
        return bool(self._native.owner == this_thread())

    def _token(self) -> str:
        return capi.token_of(self._native).decode("ascii")

    def status(self) -> LockStatus:
        """Look at the path, also if another process holds it."""
        by = self._decode, self._policy
        return look_at(self.path, self._encoded, *by, is_foreign=self._strict)

    def _clear(self, found: LockStatus, *, robs: bool) -> bool | None:
        try:
            return remove_exactly(found, self._encoded, robs=robs, patience=_RECLAIM_PATIENCE)
        except LockTimeoutError:
            return None  # another process has the guard, which counts as alive
        except PermissionError:
            if not may_make_locks_beside(self.path):
                raise  # nor could this user take the lock when it is free
            return None

    def _holder_of(self, seen: Instance) -> BaseLock | None:
        return registry.held_here(*seen.key[:2])

    def _holder_here(self) -> BaseLock | None:
        found = None
        if sys.platform != "win32":
            try:
                found = os.lstat(self._encoded)
            except OSError:
                return None
            if not POOL.holding[found.st_ino % BURSTS]:
                return None  # no object of this process holds it
        return holder_here(self, found)

    _store_time = staticmethod(capi.now_ns)

    def _look_again_later(self, key: tuple[int, ...]) -> int:
        now = capi.now_ns()
        if key != self._seen:
            self._seen = key
            self._first_seen = now
        at: int = now + min(max((now - self._first_seen) // 10, _FIRST_LOOK), _LAST_LOOK)
        self._native.look_at = at
        return at

    def _look_is_due(self) -> bool:
        return bool(capi.now_ns() >= self._native.look_at)

    def _error(self, outcome: int) -> OSError:
        return capi.os_error(outcome, self.path)

    def _place_kept(self) -> int:
        return int(self._native.file.dev)  # its filesystem

    def _dropped(
        self,
        hold_of: Callable[[Any, Any], int] = capi.hold_of,
        pool: Any = POOL,
        held: int = OK,
        discard: Callable[[InFiles], object] = registry.discard,
        forget: Callable[[Any, Any], object] = capi.forget_lock,
        keep: Callable[[InFiles], object] = registry.keep,
    ) -> bool:
        # Its needs are default arguments, as in __del__, which calls it.
        if hold_of(self._native, pool) != held:
            discard(self)
            forget(self._native, pool)
            return False
        # The garbage collector must not end a lock whose code may still run: it stays held.
        keep(self)
        return True

    def _forget_after_fork(self) -> None:
        # C resets its own part at the first call.
        super()._forget_after_fork()
        self._record = self._kept = None
        capi.holds(self._native)

    def _follow_fork(self) -> None:
        # The record names the parent process.
        registry.follow_fork()
        self._record = None
        self._lay_out()
