"""One ``ReadWriteLock`` for each path, unless told otherwise."""

from __future__ import annotations

import os
import threading
from math import inf, isnan
from weakref import WeakValueDictionary

from semlock._filelock import options as opt
from semlock._filelock.making import canonical

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any


class ReadWriteLockMeta(type):
    """Gives one object for each path, unless told otherwise."""

    def __init__(cls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        cls._instances: Any = WeakValueDictionary()
        cls._instances_pid = os.getpid()
        cls._instances_lock = threading.RLock()
        cls._making: set[str] = set()

    def _give(
        cls,
        lock_file: Any,
        timeout: float = -1,
        *,
        blocking: bool = True,
        is_singleton: bool = True,
        **own: Any,
    ) -> Any:
        """Make a lock object, or give the one that exists for this path."""
        opt.checked_blocking(blocking)
        timeout = opt.seconds("timeout", timeout)
        given = {"blocking": blocking, "is_singleton": is_singleton, **own}
        if not is_singleton:
            return super().__call__(lock_file, timeout, **given)
        if cls._instances_pid != os.getpid():
            cls._instances, cls._instances_lock, cls._making = (
                WeakValueDictionary(),
                threading.RLock(),
                set(),
            )
            cls._instances_pid = os.getpid()
        key = canonical(lock_file)
        with cls._instances_lock:
            found = cls._instances.get(key)
            if found is None:
                if key in cls._making:  # by this thread: an audit hook or a finalizer
                    raise RuntimeError(
                        f"Singleton lock construction is already active for {lock_file}"
                    )
                cls._making.add(key)
                try:
                    found = super().__call__(lock_file, timeout, **given)
                finally:
                    cls._making.discard(key)
                cls._instances[key] = found
        if not _same(found.timeout, timeout) or found.blocking != blocking:
            raise ValueError(
                f"Singleton lock created with timeout={found.timeout}, blocking={found.blocking}, "
                f"cannot be changed to timeout={timeout}, blocking={blocking}"
            )
        return found

    if (
        not TYPE_CHECKING
    ):  # which reads __init__ and not this, so that the types are the class's
        __call__ = _give


def _same(one: float, other: float) -> bool:
    endless = (-1, inf)
    return (
        one == other or (one in endless and other in endless) or (isnan(one) and isnan(other))
    )
