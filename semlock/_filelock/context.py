"""What a lock object is told and what it holds: one such state, or one for each thread."""

from __future__ import annotations

from _thread import _local
from _weakref import ref

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
