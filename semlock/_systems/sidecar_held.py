"""The locks that managers of the sidecar system hold in this process, and their handles."""

from __future__ import annotations

import threading
from time import time
from weakref import WeakValueDictionary

from semlock._core import registry
from semlock._core.errors import LockLostError, LockLostWarning, NotHeldError
from semlock._core.inside import unstruck

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from typing_extensions import Self

    from semlock._systems.sidecar_lock import SidecarLock


class Held:
    """A lock that a manager holds, and its handles.

    A handle shares the lock while it is in the set; adding and removing it are one step each, so
    an interrupt leaves nothing half done.  A lock without handles is about to be released.
    """

    __slots__ = ("acquired_at", "handles", "lock", "metadata")

    def __init__(self, lock: SidecarLock, metadata: dict[str, Any] | None) -> None:
        self.lock = lock
        self.metadata: dict[str, Any] = {} if metadata is None else metadata
        self.handles: set[FileLockHandle] = set()
        self.acquired_at = 0.0


class State:
    """What the managers of one key share in this process: the locks that they hold."""

    __slots__ = ("__weakref__", "held", "mutex")

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        # Reentrant, as a signal handler may acquire it in the same thread.
        self.mutex = threading.RLock()

    def find(self, target: str) -> Held | None:
        """Find the held lock of a target."""
        held = self.held.get(target)
        return held if held is not None and held.lock.held else None

    def add(self, held: Held) -> None:
        """Add a lock that was just won."""
        held.acquired_at = time()
        with self.mutex:
            _busy.add(self)
            self.held[held.lock.normalized_target_path] = held

    def leave(self, handle: FileLockHandle) -> Held | None:
        """Remove a handle; return its lock if that was the last handle and it must be released.

        A lock whose release failed is returned again.
        """
        with self.mutex:
            held = self.held.get(handle.normalized_target_path)
            if held is None or held.lock is not handle.lock:
                return None
            held.handles.discard(handle)
            return None if held.handles else held

    def drop(self, held: Held) -> None:
        """Remove a lock that was released."""
        target = held.lock.normalized_target_path
        with self.mutex:
            if not held.lock.held and self.held.get(target) is held:
                del self.held[target]
            if not self.held:
                _busy.discard(self)

    def let_go(self, held: Held) -> None:
        """Release a lock and all its handles."""
        held.handles.clear()
        try:
            held.lock.release()
        except NotHeldError:
            pass  # another thread has just released it
        finally:
            self.drop(held)

    async def let_go_async(self, held: Held) -> None:
        """Release a lock while the event loop goes on."""
        held.handles.clear()
        try:
            await held.lock.release_async()
        except NotHeldError:
            pass
        finally:
            self.drop(held)

    def end(self, held: Held) -> None:
        """Try once to release a lock, without errors."""
        held.handles.clear()
        registry.release_now(held.lock)
        self.drop(held)

    def forget(self) -> None:
        """Reset in a forked child, which holds nothing."""
        self.mutex = threading.RLock()
        self.held.clear()


# A state exists while a manager or a handle refers to it, or while it holds a lock.
_states: WeakValueDictionary[str, State] = WeakValueDictionary()
_busy: set[State] = set()
_registry = threading.RLock()


def state_of(key: str) -> State:
    if not isinstance(key, str):
        raise TypeError(f"the key of a manager is a text, not {key!r:.60}")
    with _registry:
        state = _states.get(key)
        if state is None:
            state = _states[key] = State()
        return state


def _forget_all() -> None:
    global _registry  # noqa: PLW0603 - another thread may have held it
    _registry = threading.RLock()
    for state in list(_states.values()):
        state.forget()
    _busy.clear()


registry.on_fork(_forget_all)


class FileLockHandle:
    """A lock that is held until ``release``, or for a ``with`` or ``async with`` block.

    ``lock`` is the lock itself, for its ``refresh``, ``check`` and ``info``.  A second release
    does nothing.  If another program removed the lock meanwhile, the release raises
    ``LockLostError``, and the file that is at the path now stays.
    """

    __slots__ = ("_state", "lock")

    def __init__(self, state: State, lock: SidecarLock) -> None:
        self._state = state
        self.lock = lock

    @property
    def lock_path(self) -> str:
        """The lock file."""
        return self.lock.path

    @property
    def normalized_target_path(self) -> str:
        """The absolute path of the target, with the links of its directory resolved."""
        return self.lock.normalized_target_path

    @unstruck
    def release(self) -> None:
        """Release the lock, if no other handle of a reentrant acquisition has it."""
        state = self._state
        try:
            held = state.leave(self)
            if held is not None:
                state.let_go(held)
        except BaseException:
            held = state.leave(self)
            if held is not None:  # an interrupt came before it was released
                state.end(held)
            raise

    async def release_async(self) -> None:
        """Release as ``release`` does, without blocking the event loop."""
        held = self._state.leave(self)
        if held is not None:
            await self._state.let_go_async(held)

    def __enter__(self) -> Self:
        return self

    @unstruck
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except LockLostError as lost:
            _lost_at_the_end(lost, kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.release_async()
        except LockLostError as lost:
            _lost_at_the_end(lost, kind)

    def __repr__(self) -> str:
        return f"<FileLockHandle of {self.lock!r}>"


def _lost_at_the_end(lost: LockLostError, kind: type[BaseException] | None) -> None:
    if kind is None:
        raise lost
    # The block's own exception has precedence; the loss becomes a warning.
    from warnings import warn  # noqa: PLC0415 - hardly ever needed

    warn(str(lost), LockLostWarning, stacklevel=3)


class HeldEntry:
    """One lock that a manager holds.

    ``acquired_at`` is in seconds since 1970; ``metadata`` is what the acquisition was given.
    """

    __slots__ = (
        "_held", "_state", "acquired_at", "lock_path", "metadata", "normalized_target_path",
    )  # fmt: skip

    def __init__(self, state: State, held: Held) -> None:
        self._state = state
        self._held = held
        self.lock_path = held.lock.path
        self.normalized_target_path = held.lock.normalized_target_path
        self.acquired_at = held.acquired_at
        self.metadata = held.metadata

    def force_release(self) -> bool:
        """Release the lock and all its handles; ``False`` if it was released before."""
        if self._state.held.get(self.normalized_target_path) is not self._held:
            return False
        self._state.let_go(self._held)
        return True

    def __repr__(self) -> str:
        return f"<HeldEntry {self.lock_path!r}, metadata={self.metadata!r}>"
