"""``BaseFileLock``: counters, options and the loop of a wait, as filelock has them.

A subclass has a backend: ``_acquire`` tries once, and sets ``self._context.lock_file_fd`` if the
lock is held; ``_release`` releases and sets it to ``None``.  A lock of semlock's own waits by
events (``held.py``) as long as no subclass has another ``_acquire``.
"""

from __future__ import annotations

import os
from _thread import RLock
from time import monotonic, sleep

from semlock._core.inside import unstruck
from semlock._filelock import making as opt
from semlock._filelock.reporting import (
    AcquireReturnProxy,
    Timeout,
    debug,
    is_logged,
    raise_both,
)
from semlock._filelock.said import Context, OfAllThreads, PerThread, Said, quietly

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    from typing_extensions import Self

    from semlock._filelock.making import CloseErrorPolicy, ContextErrorPolicy

    P = ParamSpec("P")
    T = TypeVar("T")


class BaseFileLock(Said, metaclass=opt.FileLockMeta):
    """The base of all locks for threads; a subclass has ``_acquire`` and ``_release``.

    :lock_file:      the path of the lock file
    :timeout:        seconds that ``acquire`` waits by default; negative for no limit
    :mode:           the lock file's permissions, exactly; by default what umask and ACLs say
    :thread_local:   whether each thread holds by itself; else all threads share one counter
    :is_singleton:   whether the class makes one object for each path
    :lifetime:       of ``SoftFileLock``: the age after which a waiter takes the lock
    :context_error_policy:  ``"group"`` raises a block's error and its release's together
    :fallback_to_soft:      whether ``FileLock`` becomes soft where there is no flock
    :on_acquired:    called with the descriptor when ``FileLock`` is acquired
    """

    # Whether an age may end a lock, and whether the two options may be given.
    _lifetime_supported = False
    _preserve_lock_file_supported = True
    _on_acquired_supported = True

    _ends_with_context = False

    def __init__(
        self,
        lock_file: str | os.PathLike[str],
        timeout: float = -1,
        mode: int = opt.UNSET_MODE,
        thread_local: bool = True,
        *,
        blocking: bool = True,
        is_singleton: bool = False,
        poll_interval: float = 0.05,
        lifetime: float | None = None,
        context_error_policy: ContextErrorPolicy = "chain",
        close_error_policy: CloseErrorPolicy = "default",
        fallback_to_soft: bool = True,
        preserve_lock_file: bool = False,
        on_acquired: Callable[[int], None] | None = None,
    ) -> None:
        path = os.fspath(lock_file)
        kind = PerThread if thread_local else OfAllThreads
        self._state = kind(
            path,
            timeout,
            mode,
            blocking=blocking,
            poll_interval=poll_interval,
            lifetime=lifetime,
        )
        self._pid = os.getpid()
        # A lock that threads share is changed by one of them at a time.
        self._gate = None if thread_local else RLock()
        self._is_thread_local = thread_local
        self._is_singleton = is_singleton
        self._context_error_policy: ContextErrorPolicy = context_error_policy
        self._close_error_policy: CloseErrorPolicy = close_error_policy
        self._fallback_to_soft = fallback_to_soft
        self._preserve_lock_file = preserve_lock_file
        self._on_acquired = on_acquired
        # The contexts of threads that hold, so that their holds outlive the threads.
        self._holds: dict[int, Context] = {}

    @property
    def _context(self) -> Context:
        return self._state.context

    # ------------------------------------------------------------------ acquiring

    def acquire(
        self,
        timeout: float | None = None,
        poll_interval: float | None = None,
        *,
        poll_intervall: float | None = None,
        blocking: bool | None = None,
        cancel_check: Callable[[], bool] | None = None,
    ) -> AcquireReturnProxy:
        """Take the lock, waiting for it; ``Timeout`` when the time is over.

        ``timeout`` is in seconds, negative for no limit; ``blocking=False`` means one try.  If
        ``cancel_check``, which is asked every ``poll_interval``, returns true, the wait ends with
        ``Timeout``.  The result is a context manager that releases.
        """
        context = self._context
        wait = self._wait_of(
            context, timeout, poll_interval, poll_intervall, blocking, cancel_check
        )
        proxy = AcquireReturnProxy(self)
        gate = self._gate
        if gate is None:
            self._enter(context, wait)
            return proxy
        if not gate.acquire(blocking=False):
            self._await_gate(gate, context, wait)
        try:
            self._enter(context, wait)
        finally:
            gate.release()
        return proxy

    @staticmethod
    def _await_gate(gate: Any, context: Context, wait: opt.Wait) -> None:
        """Wait until no other thread changes a lock that threads share."""
        began = monotonic()
        pause = wait.interval if wait.blocking else 0.0
        while not gate.acquire(
            timeout=pause if wait.limit < 0 or not wait.blocking else min(pause, wait.limit)
        ):
            if wait.limit >= 0:
                wait.limit = max(0.0, wait.limit - (monotonic() - began))
                began = monotonic()
            if not wait.blocking or wait.limit == 0 or wait.is_cancelled():
                raise Timeout(context.lock_file)

    def _wait_of(
        self,
        context: Context,
        timeout: float | None,
        poll_interval: float | None,
        poll_intervall: float | None,
        blocking: bool | None,
        cancel_check: Callable[[], bool] | None,
    ) -> opt.Wait:
        """Check what a call was told, and fill in what the lock was told."""
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{type(self).__name__} on {self.lock_file} was inherited across fork: make a new "
                "one in the child"
            )
        if blocking is None:
            blocking = context.blocking
        else:
            opt.checked_blocking(blocking)
        if poll_intervall is not None:
            from warnings import warn  # noqa: PLC0415 - for those who spell it so

            warn(
                "use poll_interval instead of poll_intervall", DeprecationWarning, stacklevel=3
            )
            poll_interval = poll_intervall
        interval = (
            context.poll_interval
            if poll_interval is None
            else opt.checked_interval(poll_interval)
        )
        limit = context.timeout if timeout is None else opt.seconds("timeout", timeout)
        if limit != -1:
            limit = opt.wait_limit(limit, blocking=blocking)
        return opt.Wait(limit, blocking, interval, cancel_check)

    def _enter(self, context: Context, wait: opt.Wait) -> None:
        """Take the lock, or count once more if it is held."""
        if context.lock_file_fd is not None:
            self._check_nested(context)
            context.lock_counter += 1
            return
        if context.busy:
            raise RuntimeError(
                f"Deadlock: lock '{context.lock_file}' is acquired again while this thread's "
                "acquire of it waits"
            )
        context.busy = True
        try:
            # An interrupt at the end of a release may have left the last number.
            context.lock_counter = 1
            told = is_logged()
            if told:
                debug("Attempting to acquire lock %s on %s", self)
            if not self._takes_at_once(context, wait):
                self._obtain(context, wait)
            self._holds[id(context)] = context
            if told:
                debug("Lock %s acquired on %s", self)
            if self._on_acquired is not None and context.lock_counter == 1:
                fd = context.lock_file_fd
                assert fd is not None
                context.busy = False
                self._on_acquired(fd)
        except BaseException as error:
            context.lock_counter = max(0, context.lock_counter - 1)
            if context.lock_counter == 0:
                self._give_back(context, error)
            raise
        finally:
            context.busy = False

    @staticmethod
    def _check_nested(context: Context) -> None:
        """Refuse a relative path where there is no current directory."""
        if not os.path.isabs(context.lock_file):
            os.getcwd()

    def _give_back(self, context: Context, error: BaseException) -> None:
        """Release what a failed call has won."""
        if not self._has_won(context):
            return
        try:
            self._release()
        except BaseException as failure:
            context.lock_counter = 1  # it is still held
            if failure is not error:
                raise_both("lock body and release both failed", error, failure)
            raise
        self._holds.pop(id(context), None)

    @property
    def _lock_path(self) -> str:
        """The path that is locked: a relative one is that of the time of the acquire."""
        return self._context.lock_file

    def _has_won(self, context: Context) -> bool:
        """Tell whether the backend holds the lock."""
        return context.lock_file_fd is not None

    def _takes_at_once(self, context: Context, wait: opt.Wait) -> bool:  # noqa: ARG002 - see held.py
        """Take the lock by a single try, if the backend has a short way for that."""
        return False

    def _obtain(self, context: Context, wait: opt.Wait) -> None:
        """Try until the lock is held: for backends that have no events."""
        end = monotonic() + wait.limit
        if parent := os.path.dirname(context.lock_file):
            os.makedirs(parent, exist_ok=True)
        while True:
            self._acquire()
            if context.lock_file_fd is not None:
                return
            left = end - monotonic()
            if self._gives_up(wait, in_time=wait.limit < 0 or left > 0):
                raise Timeout(context.lock_file)
            debug("Lock %s not acquired on %s, waiting ...", self)
            sleep(wait.interval if wait.limit < 0 else min(wait.interval, left))

    def _gives_up(self, wait: opt.Wait, *, in_time: bool) -> bool:
        """Tell whether a wait is over, and log why."""
        if not wait.blocking:
            debug("Failed to immediately acquire lock %s on %s", self)
        elif wait.is_cancelled():
            debug("Cancellation requested for lock %s on %s", self)
        elif not in_time:
            debug("Timeout on acquiring lock %s on %s", self)
        else:
            return False
        return True

    def _acquire(self) -> None:
        """Try once."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release what is held."""
        raise NotImplementedError

    _acquire.__isabstractmethod__ = True  # type: ignore[attr-defined]
    _release.__isabstractmethod__ = True  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ releasing

    @unstruck
    def release(self, force: bool = False) -> None:
        """Release the lock once; with ``force`` as often as it is held, by ended threads too."""
        before: int | None = None
        try:
            context = self._state.context
            before = context.lock_counter
            self._leave_in_turn(context, force=force)
        except BaseException as error:
            # A signal's handler may raise before anything was done.  The caller has let go, so the
            # release is completed; one that the system refused is the caller's to repeat.
            counter = self._context.lock_counter
            if before in (None, counter) and counter and not isinstance(error, OSError):
                # The first error is told.
                quietly(lambda: self._leave_in_turn(self._context, force=force))
            raise
        if force:
            self._release_others(ended=True)

    def _leave_in_turn(self, context: Context, *, force: bool) -> None:
        gate = self._gate
        if gate is None:
            self._leave(context, force=force)
        else:
            with gate:
                self._leave(context, force=force)

    def _leave(self, context: Context, *, force: bool) -> None:
        if context.lock_file_fd is None or self._pid != os.getpid():
            return
        if context.lock_counter > 1 and not force:
            context.lock_counter -= 1
            return
        told = is_logged()
        if told:
            debug("Attempting to release lock %s on %s", self)
        try:
            self._release()
        finally:
            self._left(context)
        if told:
            debug("Lock %s released on %s", self)

    @unstruck
    def _left(self, context: Context) -> None:
        """Note that nothing is held any more, if that is so."""
        if context.lock_file_fd is None:
            context.lock_counter = 0
            self._holds.pop(id(context), None)

    def _release_others(self, *, ended: bool) -> None:
        """Release the holds of other threads; of ended ones only, if told so."""
        if not self._is_thread_local:
            return
        state = self._state
        own = state.context
        for context in list(self._holds.values()):
            if context is own or (ended and context.thread and context.thread() is not None):
                continue
            state.context = context
            try:
                self._leave(context, force=True)
            finally:
                state.context = own

    def __enter__(self) -> Self:
        self.acquire()
        return self

    @unstruck
    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._release_in_context(error)

    @unstruck
    def _release_in_context(self, error: BaseException | None) -> None:
        try:
            self.release()
        except BaseException as failure:
            if error is None or self._context_error_policy == "chain":
                raise
            raise_both("lock body and release both failed", error, failure)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, which then runs under the lock; none whose body runs later."""
        from semlock._locks.decorating import decorate  # noqa: PLC0415 - for those who decorate

        locked: Callable[P, T] = decorate(self, function)
        return locked

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # semlock's own locks are released by their contexts.
        if self._ends_with_context or self.__dict__.get("_pid") != getpid() or not self._holds:
            return
        quietly(self._end_all)

    def _end_all(self) -> None:
        """Release all holds of all threads."""
        self.release(force=True)
        self._release_others(ended=False)

    def _singleton_extra_mismatches(self, _options: Any, /) -> dict[str, tuple[str, str]]:
        """Name the options of a subclass that differ from another call's: none here."""
        return {}
