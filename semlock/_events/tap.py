"""Listeners, and the sink that tells them what locks report.

A listener is called with the name of the event, the lock's path, the time of the monotonic
clock in nanoseconds, and the event's fields.  docs/seeing.md tells what they are.

The sink is set with the first listener and removed with the last one.  It is called inside of the
``try`` in which a lock was won, so an interrupt in a listener releases what the call has won.
"""

from __future__ import annotations

import os
from _thread import RLock
from functools import partial
from time import monotonic_ns

from semlock._core import events, inside, registry
from semlock._core.capi import KEPT, OK, POOL, this_thread
from semlock._core.errors import LockTimeoutError
from semlock._core.paths import PREFIX

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from semlock._core.status import LockStatus
    from semlock._locks.base import BaseLock
    from semlock._waiting.steps import Steps

    Fields: TypeAlias = dict[str, Any]
    Listener: TypeAlias = Callable[[str, str, int, Fields], object]

# Held while listeners are added and removed.  Reentrant, because a signal handler may take it
# again in the same thread.
changing = RLock()

_listeners: tuple[Listener, ...] = ()

# The threads that call listeners now.  A listener may use locks too, and their events would call
# it again without end.
_telling: set[int] = set()

# The holds that have not ended, by token: their thread and when they began; 0 for one that began
# before the first listener.
_holds: dict[str, tuple[int, int]] = {}


def listen(listener: Listener) -> None:
    """Have a function called with each event, until ``unlisten``."""
    global _listeners  # noqa: PLW0603 - there is one set of listeners
    with changing:
        _listeners = (*_listeners, listener)
        if events.sink is None:
            POOL.watched = 1  # who removes a dead holder's file must report it
            events.sink = _SINK
            for lock in registry.all_locks():
                if inside.native(lock).held:
                    _holds.setdefault(inside.token(lock), (0, 0))


def unlisten(listener: Listener) -> None:
    """Call a function no more; does nothing if it is not called now."""
    global _listeners  # noqa: PLW0603
    with changing:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners:
            events.sink = None
            POOL.watched = 0
            _holds.clear()


def _forget() -> None:
    global changing  # noqa: PLW0603 - another thread may have held it
    changing = RLock()
    # The child holds nothing, and has none of the parent's other threads.
    _holds.clear()
    _telling.clear()


registry.on_fork(_forget)


def tell(event: str, path: str, at: int, fields: Fields) -> None:
    """Call all listeners."""
    thread = this_thread()
    if thread in _telling:
        return
    if thread in registry.own_threads:
        # A listener may block, and this thread must go on refreshing locks.
        from semlock._core import callbacks  # noqa: PLC0415 - it is there: the thread is its user

        callbacks.call("events", partial(tell, event, path, at, fields))
        return
    try:
        _telling.add(thread)
        for listener in _listeners:
            listener(event, path, at, fields)
    finally:
        _telling.discard(thread)


def _tell(event: str, lock: BaseLock, at: int, **fields: Any) -> None:
    if lock.tag is not None:
        fields["tag"] = lock.tag
    tell(event, lock.path, at, fields)


def _took(lock: BaseLock, asked: int | None = None) -> None:
    """Tell that a lock was won, unless it was held already and only counts once more."""
    if inside.native(lock).depth != 1:
        return
    token = inside.token(lock)
    now = monotonic_ns()
    _holds[token] = (this_thread(), now)
    waited = 0 if asked is None else now - asked
    _tell("acquire", lock, now, waited=waited, token=token)


def _left(lock: BaseLock, token: str, at: int, event: str = "release") -> None:
    """Tell that a hold is over, once; once more if an interrupt struck while that was told."""
    hold = _holds.get(token)
    if hold is None:
        return
    fields: Fields = {"token": token}
    if hold[1]:
        fields["held"] = at - hold[1]
    try:
        _tell(event, lock, at, **fields)
    except Exception:
        _holds.pop(token, None)
        raise
    _holds.pop(token, None)


def _holder(found: LockStatus | None, name: str = "holder") -> Fields:
    info = None if found is None else found.info
    if info is None:
        return {}
    fields: Fields = {}
    if info.pid is not None:
        fields[name] = info.pid
    if info.tag is not None:
        fields[f"{name}_tag"] = info.tag
    return fields


def _is_held_here(lock: BaseLock) -> bool:
    """Tell whether the caller holds the lock, so that to acquire it only counts once more."""
    if inside.is_mine(lock):
        return True
    native = inside.native(lock)
    if native.by_object and native.reentrant:
        return bool(native.held)
    if inside.is_for_tasks(lock) or not native.held:
        return False
    # A heartbeat may borrow the lock for a moment.
    hold = _holds.get(inside.token(lock))
    return hold is not None and hold[0] == this_thread()


class _Sink:
    """Makes events of what locks report; see ``semlock._core.events.Sink``."""

    __slots__ = ()

    def acquiring(self, lock: BaseLock, steps: Steps[None]) -> Steps[None]:
        if _is_held_here(lock):
            yield from steps
            return
        asked = monotonic_ns()
        before = inside.native(lock).serial
        try:
            _tell("request", lock, asked)
            yield from steps
            if inside.native(lock).serial != before:  # else a manager holds it already
                _took(lock, asked)
        except BaseException as error:
            self.failed(lock, asked, error)
            raise

    def tried(self, lock: BaseLock, asked: int, *, won: bool) -> None:
        if won:
            _took(lock, asked)
        elif not _is_held_here(lock):
            _tell("refused", lock, asked)

    def failed(self, lock: BaseLock, asked: int, error: BaseException) -> None:
        now = monotonic_ns()
        if isinstance(error, LockTimeoutError):
            _tell("timeout", lock, now, waited=now - asked, **_holder(error.status))
        else:
            _tell("failed", lock, now, waited=now - asked, error=type(error).__name__)

    def won(self, lock: BaseLock) -> None:
        _took(lock)

    def waits(self, lock: BaseLock) -> None:
        try:
            found = lock.status()
        except OSError:
            found = None  # the next try will say what is wrong
        _tell("wait", lock, monotonic_ns(), **_holder(found))

    def release(self, lock: BaseLock, let_go: Callable[[], int]) -> int:
        native = inside.native(lock)
        endings, token = native.endings, inside.token(lock)
        # The time before it is released: holds that follow each other never overlap.
        at = monotonic_ns()
        try:
            outcome = let_go()
            if outcome in (OK, KEPT):
                _left(lock, token, at)
        except BaseException:
            if native.endings != endings and (inside.token(lock) != token or not native.held):
                _left(lock, token, at)
            raise
        return outcome

    def lost(self, lock: BaseLock) -> None:
        _left(lock, inside.token(lock), monotonic_ns(), "lost")

    def refreshed(self, lock: BaseLock) -> None:
        _tell("refresh", lock, monotonic_ns())

    def removed(self, found: LockStatus, *, robs: bool) -> None:
        if os.path.basename(found.path).startswith(PREFIX):
            return
        fields = _holder(found, "from")
        fields["why"] = found.reason or ("by force" if robs else "by its owner")
        fields["verdict"] = found.verdict
        fields["evidence"] = found.evidence
        event = "remove" if found.reason is None else "reclaim"
        tell(event, found.path, monotonic_ns(), fields)

    def tell(self, event: str, path: str, fields: Fields) -> None:
        tell(event, path, monotonic_ns(), fields)


_SINK = _Sink()
