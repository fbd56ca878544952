"""A result that one process makes while the others wait for it: a download, a compiled cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from semlock._locks import placing
from semlock._locks.lock import Lock
from semlock._waiting.steps import Call, run_async
from semlock._waiting.waiter import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from typing_extensions import Unpack

    from semlock._core.options import LockOptions
    from semlock._core.status import StrPath
    from semlock._waiting.steps import Steps

__all__ = ["once", "once_async"]


def once(path: StrPath, make: Callable[[str], object], **options: Unpack[LockOptions]) -> str:
    """Make what is to be at a path, unless it is there; then and else give the path.

    ``make`` gets the name of a temporary file beside it, and writes a file or makes a directory
    there.  Of all processes one calls it at a time, under ``Lock(path + ".lock")``, and the others
    wait; none calls it again once it has succeeded.  The result appears whole, and only when
    ``make`` has returned: a process that is killed, or a ``make`` that fails, leaves nothing, and
    the next one tries.  ``options`` are those of ``Lock``.
    """
    target, is_there = _look(path)
    if is_there:
        return target
    with _lock(Lock, target, options) as lock:
        run(_making(target, make, lock))
    return target


async def once_async(
    path: StrPath,
    make: Callable[[str], Awaitable[object] | object],
    **options: Unpack[LockOptions],
) -> str:
    """Do as ``once``, in a task of asyncio or trio; what ``make`` gives is awaited if it can be."""
    from semlock._locks.async_lock import AsyncLock  # noqa: PLC0415 - asyncio, for tasks

    target, is_there = _look(path)
    if is_there:
        return target
    async with _lock(AsyncLock, target, options) as lock:
        await run_async(_making(target, make, lock), ())
    return target


def _look(path: StrPath) -> tuple[str, bool]:
    """Give the whole path, and tell whether the result is there."""
    given = os.fsdecode(os.fspath(path))
    if not given:
        raise FileNotFoundError(2, "the path of a result can't be empty", given)
    target = os.path.abspath(given)
    return target, os.path.exists(target)


def _lock(kind: Any, target: str, options: Any) -> Any:
    options.setdefault("make_dirs", True)
    options.setdefault("tag", f"making {os.path.basename(target)}")
    return kind(f"{target}.lock", **options)


def _making(target: str, make: Callable[[str], Any], lock: Any) -> Steps[None]:
    """Make it under a temporary name, and put it in place, if no other process has done so."""
    if os.path.exists(target):
        return
    for name in placing.leftovers(
        target
    ):  # the holder of the lock is the only one that makes it
        placing.discard(name)
    temporary, me = placing.name_beside(target, placing.MADE), os.getpid()
    try:
        yield Call(make, temporary)
        if not os.path.exists(temporary):
            raise FileNotFoundError(
                2, "make was called with this path, and has made no file there", temporary
            )
        lock.check()  # if the lock was removed by force, another process may have made it too
        placing.put(temporary, target)
    finally:
        if os.getpid() == me:  # a child that make has forked may come here too
            placing.discard(temporary)
