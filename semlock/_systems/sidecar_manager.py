"""The managers of the sidecar system, and acquiring for them."""

from __future__ import annotations

import sys

from semlock._core import explain, inside
from semlock._core.errors import SemlockError
from semlock._core.options import DEFAULTS
from semlock._systems.sidecar_held import FileLockHandle, Held, HeldEntry, State, state_of
from semlock._systems.sidecar_lock import SidecarLock
from semlock._systems.sidecar_waiting import Alone
from semlock._waiting.steps import as_awaited, run_async
from semlock._waiting.waiter import run

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import FrameType
    from typing import Any, TypeVar, overload

    from typing_extensions import Unpack

    from semlock._core.options import PlainOptions
    from semlock._core.status import StrPath
    from semlock._systems.sidecar_lock import Payload
    from semlock._systems.sidecar_terms import StaleRecovery
    from semlock._systems.sidecar_waiting import ShouldReclaim, ShouldRemove
    from semlock._waiting.steps import Steps
    from semlock._waiting.waiter import Schedule

    T = TypeVar("T")

    class FileLockOptions(PlainOptions, total=False):
        """The options of an acquisition; see ``acquire_file_lock``."""

        payload: Payload
        lock_path: StrPath | None
        stale: float | None
        retry: Schedule | Mapping[str, Any]
        stale_recovery: StaleRecovery
        allow_reentrant: bool
        should_reclaim: ShouldReclaim | None
        should_remove_stale_lock: ShouldRemove | None
        metadata: dict[str, Any] | None


_frame = sys._getframe
_MORE = ("manager_key", "allow_reentrant", "metadata")
_OPTIONS = frozenset((*(SidecarLock.__init__.__kwdefaults__ or ()), *DEFAULTS))


class Acquisition(Alone):
    """One acquisition by a manager, from the first try until the caller has its handle."""

    __slots__ = ("_allow_reentrant", "_frame", "_held", "_lock", "_state", "handle")

    def __init__(
        self,
        manager: State | str | None,
        target: StrPath,
        frame: FrameType,
        *,
        allow_reentrant: bool = False,
        metadata: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if metadata is not None and not isinstance(metadata, dict):
            raise TypeError(f"metadata is None or a dict, not {metadata!r:.60}")
        if allow_reentrant not in (True, False):
            raise TypeError(f"allow_reentrant is True or False, not {allow_reentrant!r:.60}")
        self._frame = frame
        self._allow_reentrant = allow_reentrant
        for name in options:
            if name not in _OPTIONS:
                raise explain.unknown_option("acquire_file_lock", name, SidecarLock, _MORE)
        self._lock = SidecarLock(target, **options)
        if manager is None:
            manager = f"semlock.file-lock:{self._lock.normalized_target_path}"
        state = manager if isinstance(manager, State) else state_of(manager)
        self._state = state
        self._held = Held(self._lock, metadata)
        # Made before the try: between the win and the return a signal could strike.
        self.handle = FileLockHandle(state, self._lock)
        self._held.handles.add(self.handle)

    def join(self) -> bool:
        """Share a lock that the manager holds, if the caller allows that."""
        if not self._allow_reentrant:
            return False
        with self._state.mutex:
            held = self._state.find(self._lock.normalized_target_path)
            if held is None or not held.handles:
                return False
            self.handle.lock = held.lock
            held.handles.add(self.handle)
        return True

    def blocks(self) -> bool:
        """Tell whether the manager holds the target by another lock file."""
        if not self._state.held:
            return False
        held = self._state.find(self._lock.normalized_target_path)
        return held is not None and held.lock.path != self._lock.path

    def holds(self) -> bool:
        """Tell whether the manager holds the target."""
        return self._state.find(self._lock.normalized_target_path) is not None

    def _steps(self, *, may_deadlock: bool) -> Steps[None]:
        lock = self._lock
        yield from inside.acquiring(
            lock, lock.timeout, self._frame, self, may_deadlock=may_deadlock
        )
        if self.handle.lock is lock:
            self._state.add(self._held)

    def _undo(self) -> None:
        held = self._state.leave(self.handle)
        if held is not None:
            self._state.end(held)
        inside.undo(self._lock, 0)

    def run(self) -> FileLockHandle:
        """Acquire in this thread."""
        try:
            run(self._steps(may_deadlock=True))
        except BaseException:
            self._undo()
            raise
        return self.handle

    async def run_async(self) -> FileLockHandle:
        """Acquire in the event loop."""
        try:
            await run_async(self._steps(may_deadlock=False), (self._lock,))
        except BaseException:
            self._undo()
            raise
        return self.handle


class FileLockManager:
    """The locks that one part of a program holds; managers of one key share them.

    ``acquire``, ``with_lock`` and their async forms take a target and the options of
    ``acquire_file_lock``, except ``manager_key``.
    """

    __slots__ = ("_state", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self._state = state_of(key)

    def acquire(self, target: StrPath, **options: Unpack[FileLockOptions]) -> FileLockHandle:
        """Take the lock of a target, and wait for it in this thread."""
        return Acquisition(self._state, target, _frame(1), **options).run()

    async def acquire_async(
        self, target: StrPath, **options: Unpack[FileLockOptions]
    ) -> FileLockHandle:
        """Lock a target, and wait in the event loop."""
        return await Acquisition(self._state, target, _frame(1), **options).run_async()

    def with_lock(
        self, target: StrPath, function: Callable[[], T], **options: Unpack[FileLockOptions]
    ) -> T:
        """Call a function under the lock of a target, and return its result."""
        return with_sync(Acquisition(self._state, target, _frame(1), **options), function)

    if TYPE_CHECKING:

        @overload
        async def with_lock_async(
            self,
            target: StrPath,
            function: Callable[[], Awaitable[T]],
            **options: Unpack[FileLockOptions],
        ) -> T: ...
        @overload
        async def with_lock_async(
            self, target: StrPath, function: Callable[[], T], **options: Unpack[FileLockOptions]
        ) -> T: ...

    async def with_lock_async(
        self, target: StrPath, function: Callable[[], Any], **options: Unpack[FileLockOptions]
    ) -> Any:
        """Call a function or coroutine function under the lock of a target."""
        return await with_async(
            Acquisition(self._state, target, _frame(1), **options), function
        )

    def held_entries(self) -> list[HeldEntry]:
        """List the locks that are held now."""
        with self._state.mutex:
            return [HeldEntry(self._state, h) for h in self._state.held.values() if h.lock.held]

    def drain(self) -> None:
        """Release all locks.  If some were lost, the first such error is raised at the end."""
        errors = []
        for held in list(self._state.held.values()):
            try:
                self._state.let_go(held)
            except (SemlockError, OSError) as error:  # noqa: PERF203 - the others must go too
                errors.append(error)
        if errors:
            raise errors[0]

    async def drain_async(self) -> None:
        """Release all locks without blocking the event loop."""
        errors = []
        for held in list(self._state.held.values()):
            try:
                await self._state.let_go_async(held)
            except (SemlockError, OSError) as error:  # noqa: PERF203 - the others must go too
                errors.append(error)
        if errors:
            raise errors[0]

    def reset(self) -> None:
        """Try once to release each lock, without errors, and forget them all."""
        for held in list(self._state.held.values()):
            self._state.end(held)

    def __repr__(self) -> str:
        return f"FileLockManager({self.key!r})"


def with_sync(acquisition: Acquisition, function: Callable[[], T]) -> T:
    """Acquire, call the function and release, in this thread."""
    from semlock._locks import decorating  # noqa: PLC0415 - not for those who only acquire

    _must_be_callable(function)
    decorating.refuse_what_runs_later(function, _OTHER_FORM)
    with acquisition.run():
        result: T = decorating.finished(function(), function, _OTHER_FORM)
        return result


async def with_async(acquisition: Acquisition, function: Callable[[], Any]) -> Any:
    """Acquire, call the function, await its result and release, in the event loop."""
    from semlock._locks import decorating  # noqa: PLC0415

    _must_be_callable(function)
    async with await acquisition.run_async():
        result = await as_awaited(function())
        return decorating.finished(result, function, _INSIDE)


def _must_be_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(f"what is called under the lock is a function, not {function!r:.60}")


_INSIDE = "acquire the lock inside of it, or use it up within the call"
_OTHER_FORM = f"use the form of the call that ends in _async, or {_INSIDE}"
