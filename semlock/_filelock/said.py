"""What a lock object is told and what it holds, one such state or one for each thread.

``Said`` says it as properties, some of which can be set later.
"""

from __future__ import annotations

import os
from _thread import _local
from _weakref import ref

from semlock._filelock.making import (
    UNSET_MODE,
    checked_blocking,
    checked_interval,
    checked_lifetime,
    seconds,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from semlock._filelock.making import CloseErrorPolicy, ContextErrorPolicy


def quietly(call: Callable[[], object]) -> None:
    """Call what must not fail, as there is no caller to tell; contextlib takes long to import."""
    try:  # noqa: SIM105 - see above
        call()
    except Exception:  # noqa: BLE001, S110
        pass


class Context:
    """The options of a lock that can change, and what is held."""

    def __init__(
        self,
        lock_file: str,
        timeout: float,
        mode: int,
        *,
        blocking: bool,
        poll_interval: float,
        lifetime: float | None,
    ) -> None:
        self.lock_file = lock_file
        self.timeout = timeout
        self.mode = mode
        self.blocking = blocking
        self.poll_interval = poll_interval
        self.lifetime = lifetime
        # The descriptor of the held file; ``None`` while it is not held.  A subclass with a backend
        # of its own sets it.
        self.lock_file_fd: int | None = None
        self.lock_counter = 0
        # semlock's lock of this path, by which it is held.
        self.inner: Any = None
        # Whether an acquire is under way.
        self.busy = False
        # Dies with the thread that has this state.
        self.thread: ref[Any] | None = None

    def __del__(self) -> None:
        # filelock ends a hold with its lock object.  Not when that is finalized: another thread
        # may just have got the object as a singleton.  Then this state is still referred to.
        inner = self.__dict__.get("inner")
        if inner is None or not inner.held:
            return
        quietly(inner.release)


class _Thread:
    """Something that a thread's storage alone refers to, so that it ends with the thread."""

    __slots__ = ("__weakref__",)


class OfAllThreads:
    """One context for all threads."""

    __slots__ = ("context",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.context = Context(*arguments, **options)


class PerThread(_local):
    """One context for each thread, made of the options that the lock was made with."""

    context: Context

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.thread = _Thread()
        self.context = Context(*arguments, **options)
        self.context.thread = ref(self.thread)


class Said:
    """The properties of all locks."""

    if TYPE_CHECKING:
        _close_error_policy: CloseErrorPolicy
        _context_error_policy: ContextErrorPolicy
        _fallback_to_soft: bool
        _is_singleton: bool
        _is_thread_local: bool
        _on_acquired: Callable[[int], None] | None
        _pid: int
        _preserve_lock_file: bool

        @property
        def _context(self) -> Context:
            """What is held."""

    @property
    def is_locked(self) -> bool:
        """Whether this object holds the lock, in this thread if it is thread-local."""
        return self._context.lock_file_fd is not None and self._pid == os.getpid()

    @property
    def lock_counter(self) -> int:
        """How often it is held."""
        return self._context.lock_counter if self._pid == os.getpid() else 0

    @property
    def lock_file(self) -> str:
        """The path of the lock file."""
        return self._context.lock_file

    @property
    def is_singleton(self) -> bool:
        """Whether the class makes one object for each path."""
        return self._is_singleton

    def is_thread_local(self) -> bool:
        """Tell whether each thread holds by itself."""
        return self._is_thread_local

    @property
    def context_error_policy(self) -> ContextErrorPolicy:
        """What the end of a block raises if the block and the release fail."""
        return self._context_error_policy

    @property
    def close_error_policy(self) -> CloseErrorPolicy:
        """What is done with an error of closing the released file."""
        return self._close_error_policy

    @property
    def fallback_to_soft(self) -> bool:
        """Whether a ``FileLock`` becomes a soft one where there is no flock."""
        return self._fallback_to_soft

    @property
    def preserve_lock_file(self) -> bool:
        """Whether the lock file must be kept."""
        return self._preserve_lock_file

    @property
    def on_acquired(self) -> Callable[[int], None] | None:
        """What is called with the descriptor when the lock is acquired."""
        return self._on_acquired

    @property
    def timeout(self) -> float:
        """How many seconds ``acquire`` waits by default."""
        return self._context.timeout

    @timeout.setter
    def timeout(self, value: float | str | bytes | bytearray) -> None:
        if isinstance(value, (str, bytes, bytearray)):
            from warnings import warn  # noqa: PLC0415 - for those who give text

            warn(
                "setting timeout from a string is deprecated: pass a number",
                DeprecationWarning,
                stacklevel=2,
            )
            value = float(value)
        self._context.timeout = seconds("timeout", value)

    @property
    def blocking(self) -> bool:
        """Whether ``acquire`` waits by default."""
        return self._context.blocking

    @blocking.setter
    def blocking(self, value: bool) -> None:
        self._context.blocking = checked_blocking(value)

    @property
    def poll_interval(self) -> float:
        """How often ``cancel_check`` is asked by default."""
        return self._context.poll_interval

    @poll_interval.setter
    def poll_interval(self, value: float) -> None:
        self._context.poll_interval = checked_interval(value)

    @property
    def lifetime(self) -> float | None:
        """The age after which a waiter takes the lock; ``None`` for never."""
        return self._context.lifetime

    @lifetime.setter
    def lifetime(self, value: float | None) -> None:
        kind: Any = type(self)
        self._context.lifetime = kind.usable_lifetime(checked_lifetime(value), 3)

    @property
    def mode(self) -> int:
        """The permissions that were asked for; 0o644 if none were."""
        mode = self._context.mode
        return 0o644 if mode == UNSET_MODE else mode

    @property
    def has_explicit_mode(self) -> bool:
        """Whether permissions were asked for."""
        return self._context.mode != UNSET_MODE
