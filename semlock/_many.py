"""Many locks at once."""

from __future__ import annotations

import sys

from semlock import _native
from semlock._lock import Lock
from semlock._native import HELD, NESTED, OK

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semlock._status import StrPath

_FAILED = 255

# Told of each lock that is taken here, while somebody listens to events.
on_taken: Callable[[Lock], object] | None = None


def try_acquire_many(paths_or_locks: Iterable[StrPath | Lock]) -> list[Lock | None]:
    """Try many locks in one call of the core, which holds no GIL.

    For each path or ``Lock`` in order: the lock if it was taken, else ``None``.  Tools that
    poll should make their ``Lock`` objects once and pass those.
    """
    locks = [item if isinstance(item, Lock) else Lock(item) for item in paths_or_locks]
    for lock in locks:
        if lock._record is None:
            lock._lay_out()
    frame = sys._getframe(1)
    batch = _native.Batch([lock._native for lock in locks])
    result: list[Lock | None] = [None] * len(locks)
    try:
        batch.run()
        outcomes = batch.outcomes
        if outcomes.count(HELD) != len(locks):
            for index, outcome in enumerate(outcomes):
                if outcome == HELD:
                    continue
                code = batch.error(index) if outcome == _FAILED else outcome
                before = locks[index]._native.serial
                try:
                    if locks[index]._settle(code, frame):
                        result[index] = locks[index]
                        if on_taken is not None:
                            on_taken(locks[index])
                except BaseException:
                    locks[index]._undo(before)
                    raise
    except BaseException:
        for index, outcome in enumerate(batch.outcomes):
            if outcome in (OK, NESTED) or result[index] is not None:
                locks[index]._end(locks[index]._native.endings)
        raise
    return result
