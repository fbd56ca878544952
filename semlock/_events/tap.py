"""Where events come from: while anybody listens, methods of the locks are ones that tell.

Nobody listens in most programs, and for them nothing of this is on the way: the methods are
replaced when the first listener comes, and put back when the last one goes.  What a method
wins inside of its ``try`` it gives back when it is struck, however much is told in between.

A listener is called with the name of the event, the lock's path, the time of the monotonic
clock in nanoseconds, and the event's fields.  docs/seeing.md tells what they are.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from functools import partial, wraps
from time import monotonic_ns

from semlock._core import registry, status
from semlock._core.capi import this_thread, token_of
from semlock._core.errors import LockLostError, LockTimeoutError, SemlockError
from semlock._core.queues import PREFIX
from semlock._locks.base import BaseLock
from semlock._waiting.waiter import Waiter

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeAlias

    from semlock._core.status import LockStatus
    from semlock._waiting.notice import Notice

    Fields: TypeAlias = dict[str, Any]
    Listener: TypeAlias = Callable[[str, str, int, Fields], object]
    # A method that is replaced: what it is made of differs too much for a narrower type.
    Method: TypeAlias = Callable[..., Any]

_frame = sys._getframe
_EVER = float("inf")
_release_now = registry.release_now

# Held while listeners come and go, by those too who decide whether one is to come.  Of the kind
# that a signal handler can take again in the same thread.
changing = RLock()

_listeners: tuple[Listener, ...] = ()
_originals: list[tuple[type, str, Method]] = []

# The threads that are telling just now.  A listener may use locks too, and would hear of
# them for ever.
_telling: set[int] = set()

# By their tokens, the holds that have not ended: in which thread they began, and when; 0 for
# one that had begun before the first listener came.
_holds: dict[bytes, tuple[int, int]] = {}

# By thread and the object's identity, how many calls are under way that will tell of their win
# themselves, since they know when they asked.
_asking: dict[tuple[int, int], int] = {}


def listen(listener: Listener) -> None:
    """Have a function called with each event, until ``unlisten``."""
    global _listeners  # noqa: PLW0603 - there is one set of methods to replace
    with changing:
        _listeners = (*_listeners, listener)
        if not _originals:
            for lock in registry.all_locks():
                if lock._native.held:
                    _holds[token_of(lock._native)] = (0, 0)
            _replace_all()


def unlisten(listener: Listener) -> None:
    """Call a function no more; does nothing if it is not called now."""
    global _listeners  # noqa: PLW0603
    with changing:
        _listeners = tuple(other for other in _listeners if other is not listener)
        if not _listeners:
            _put_back()
            _holds.clear()


def _forget() -> None:
    global changing  # noqa: PLW0603 - another thread may have held it
    changing = RLock()
    # The child holds nothing, and none of the threads came along.
    _holds.clear()
    _asking.clear()
    _telling.clear()


registry.on_fork(_forget)


# -------------------------------------------------------------------- telling


def tell(event: str, path: str, at: int, fields: Fields) -> None:
    """Call all listeners."""
    thread = this_thread()
    if thread in _telling:
        return
    if thread in registry.own_threads:
        # What listens may wait, and this thread keeps locks alive.
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


def _took(lock: BaseLock, asked: int) -> None:
    token = token_of(lock._native)
    now = monotonic_ns()
    _holds[token] = (this_thread(), now)
    _tell("acquire", lock, now, waited=now - asked, token=token.decode())


def _ask(lock: BaseLock) -> None:
    key = (this_thread(), id(lock))
    _asking[key] = _asking.get(key, 0) + 1


def _asked(lock: BaseLock) -> None:
    key = (this_thread(), id(lock))
    count = _asking.pop(key, 0)
    if count > 1:
        _asking[key] = count - 1


def _left(lock: BaseLock, token: bytes, at: int, event: str = "release") -> None:
    """Tell that a hold is over, once; once more if an interrupt struck while that was told."""
    hold = _holds.get(token)
    if hold is None:
        return
    fields: Fields = {"token": token.decode()}
    if hold[1]:
        fields["held"] = at - hold[1]
    try:
        _tell(event, lock, at, **fields)
    except Exception:
        _holds.pop(token, None)
        raise
    _holds.pop(token, None)


def _gave_up(lock: BaseLock, asked: int, error: BaseException) -> None:
    now = monotonic_ns()
    if isinstance(error, LockTimeoutError):
        _tell("timeout", lock, now, waited=now - asked, **_holder(error.status))
    else:
        _tell("failed", lock, now, waited=now - asked, error=type(error).__name__)


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


def _removed(found: LockStatus, robs: bool) -> None:
    if os.path.basename(found.path).startswith(PREFIX):
        return
    fields = _holder(found, "from")
    fields["why"] = found.reason or ("by force" if robs else "by its owner")
    fields["verdict"] = found.verdict
    fields["evidence"] = found.evidence
    tell("remove" if found.reason is None else "reclaim", found.path, monotonic_ns(), fields)


def _is_held_here(lock: BaseLock) -> bool:
    """Tell whether this thread holds the lock, so that to acquire it only counts once more."""
    native = lock._native
    if native.owner == this_thread():
        return True
    # A heartbeat may borrow the lock for a moment.
    hold = _holds.get(token_of(native)) if native.held else None
    return hold is not None and hold[0] == this_thread()


class _TellingNotice:
    """Tells that a wait has begun and for whom, and then what it was to tell besides."""

    __slots__ = ("_lock", "_notice", "due")

    def __init__(self, lock: BaseLock, notice: Notice | None) -> None:
        self._lock: BaseLock | None = lock
        self._notice = notice
        self.due = _EVER

    def tell(self, now: float) -> None:
        """Tell what is to be told by now."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _waits(lock)
        if self._notice is not None:
            self._notice.tell(now)
            self.due = self._notice.due


def _waits(lock: BaseLock) -> None:
    try:
        found = lock.status()
    except OSError:
        found = None  # whoever tries next will say what is wrong
    _tell("wait", lock, monotonic_ns(), **_holder(found))


# -------------------------------------------------------------------- the methods that tell


def _telling_take(original: Method) -> Method:
    @wraps(original)
    def _take(self: BaseLock, timeout: float | None, frame: FrameType) -> None:
        if _is_held_here(self):
            return original(self, timeout, frame)  # type: ignore[no-any-return]
        asked = monotonic_ns()
        before = self._native.serial
        try:
            _ask(self)
            _tell("request", self, asked)
            original(self, timeout, frame)
            _took(self, asked)
            _asked(self)
        except BaseException as error:
            self._undo(before)
            _asked(self)
            _gave_up(self, asked, error)
            raise

    return _take


def _telling_try(original: Method) -> Method:
    @wraps(original)
    def try_acquire(self: BaseLock) -> bool:
        if _is_held_here(self):
            return original(self)  # type: ignore[no-any-return]
        asked = monotonic_ns()
        before = self._native.serial
        try:
            _ask(self)
            won: bool = original(self)
            if won:
                # The engine has noted where it was called from, which is here.
                frame = _frame(1)
                self._place = (frame.f_code, frame.f_lasti)
                _took(self, asked)
            else:
                _tell("refused", self, asked)
            _asked(self)
        except BaseException as error:
            self._undo(before)
            _asked(self)
            _gave_up(self, asked, error)
            raise
        return won

    return try_acquire


def _telling_settle(original: Method) -> Method:
    @wraps(original)
    def _settle(self: BaseLock, *arguments: Any) -> bool:
        # Whoever takes locks in another way than by their methods, many at once, gets here too.
        had: bool = original(self, *arguments)
        native = self._native
        told = (this_thread(), id(self)) in _asking or native.depth != 1
        if had and not told and token_of(native) not in _holds:
            _took(self, monotonic_ns())
        return had

    return _settle


def _telling_release(original: Method) -> Method:
    @wraps(original)
    def release(self: BaseLock, *arguments: Any) -> None:
        native = self._native
        endings = native.endings
        try:
            token = token_of(native)
            # The time before it is let go: holds that follow each other never overlap.
            at = monotonic_ns()
            original(self, *arguments)
            _release_done(self, token, endings, at)
        except (SemlockError, OSError):
            raise
        except BaseException:
            self._end(endings)
            raise

    return release


def _release_done(lock: BaseLock, token: bytes, endings: int, at: int) -> None:
    # Neither the end of a nested hold, nor that of a block which the parent entered.
    native = lock._native
    if native.endings != endings and (token_of(native) != token or not native.held):
        _left(lock, token, at)


def _telling_end(original: Method) -> Method:
    @wraps(original)
    def _end(self: BaseLock, endings: int) -> None:
        token = token_of(self._native)
        original(self, endings)
        _release_done(self, token, endings, monotonic_ns())

    return _end


def _telling_release_now(original: Method) -> Method:
    @wraps(original)
    def release_now(lock: BaseLock) -> None:
        token, endings = token_of(lock._native), lock._native.endings
        original(lock)
        _release_done(lock, token, endings, monotonic_ns())

    return release_now


def _telling_of_loss(original: Method) -> Method:
    @wraps(original)
    def method(self: BaseLock, *arguments: Any) -> Any:
        token = token_of(self._native)
        try:
            return original(self, *arguments)
        except LockLostError:
            _left(self, token, monotonic_ns(), "lost")
            raise

    return method


def _telling_refresh(original: Method) -> Method:
    original = _telling_of_loss(original)

    @wraps(original)
    def _refresh(self: BaseLock, patience: float) -> bool:
        done: bool = original(self, patience)
        if done:
            _tell("refresh", self, monotonic_ns())
        return done

    return _refresh


def _telling_waiter(original: Method) -> Method:
    @wraps(original)
    def _waiter(self: BaseLock, *arguments: Any) -> Any:
        waiter = original(self, *arguments)
        waiter._notice = _TellingNotice(self, waiter._notice)
        return waiter

    return _waiter


def _telling_steps(original: Method) -> Method:
    @wraps(original)
    def steps(self: BaseLock, *arguments: Any, **options: Any) -> Any:
        if _is_held_here(self):
            return (yield from original(self, *arguments, **options))
        asked = monotonic_ns()
        before = self._native.serial
        won = False
        try:
            _ask(self)
            _tell("request", self, asked)
            yield from original(self, *arguments, **options)
            won = self._native.serial != before  # else the manager has it already
            if won:
                _took(self, asked)
            _asked(self)
        except BaseException as error:
            if won:
                self._end(self._native.endings)
            _asked(self)
            _gave_up(self, asked, error)
            raise
        return None

    return steps


def _telling_release_async(original: Method) -> Method:
    @wraps(original)
    async def release_async(self: BaseLock) -> None:
        token, endings = token_of(self._native), self._native.endings
        at = monotonic_ns()
        try:
            await original(self)
        finally:
            _release_done(self, token, endings, at)

    return release_async


def _telling_begun(original: Method) -> Method:
    @wraps(original)
    def begun(self: Waiter) -> None:
        original(self)
        if self._about is not None:
            tell("wait", self._about, monotonic_ns(), {})

    return begun


def _telling_over(original: Method) -> Method:
    @wraps(original)
    def over(self: Waiter) -> None:
        original(self)
        about, self._about = self._about, None
        if about is not None:
            waited = int(self.waited * 1e9)
            tell("waited", about, monotonic_ns(), {"waited": waited})

    return over


# By class, the methods that are replaced.  A class whose own methods call those above them
# needs no entry.
_TELLING: dict[str, dict[str, Callable[[Method], Method]]] = {
    "BaseLock": {
        "_take": _telling_take,
        "_from_the_first_try": _telling_steps,
        "try_acquire": _telling_try,
        "_settle": _telling_settle,
        "release": _telling_release,
        "__exit__": _telling_release,
        "_end": _telling_end,
        "check": _telling_of_loss,
        "_finish_release": _telling_of_loss,
        "_refresh": _telling_refresh,
        "_waiter": _telling_waiter,
    },
    "SidecarLock": {
        "try_acquire": _telling_try,
        "_acquiring": _telling_steps,
        "release_async": _telling_release_async,
        "_schedule": _telling_waiter,
    },
    "AsyncForm": {
        "_from_the_first_try": _telling_steps,
        "_waiter": _telling_waiter,
    },
    "Waiter": {
        "begun": _telling_begun,
        "over": _telling_over,
    },
}


def _replace(kind: type) -> None:
    if kind.__module__.partition(".")[0] != "semlock":
        return  # a user's class, whose methods call ours
    for each in kind.__mro__:
        for name, make in _TELLING.get(each.__name__, {}).items():
            original = each.__dict__.get(name)
            if original is not None and not hasattr(original, "__wrapped__"):
                _originals.append((each, name, original))
                setattr(each, name, make(original))


def _replace_all() -> None:
    todo: list[type] = [BaseLock]
    while todo:
        kind = todo.pop()
        _replace(kind)
        todo += kind.__subclasses__()
    # Lock systems that are imported later on are met when their classes are made.
    BaseLock.__init_subclass__ = classmethod(_replace)  # type: ignore[assignment]
    _replace(Waiter)
    status.on_removed = _removed
    registry.release_now = _telling_release_now(_release_now)


def _put_back() -> None:
    status.on_removed = None
    registry.release_now = _release_now
    if _originals:
        del BaseLock.__init_subclass__
    while _originals:
        kind, name, original = _originals.pop()
        setattr(kind, name, original)
