"""Running a function under a lock: by a decorator, or by a call that is given the function.

A lock around a call guards the body only if the body runs within the call.  A function whose
body runs later is refused: when it is decorated, if that shows, else when it is called, by its
result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Generator

from semlock._core import registry

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any


def decorate(lock: Any, function: Any) -> Any:
    """Have a function run in a ``with`` block of a lock each time that it is called."""
    inner = _of_method(function)
    if inner is not None:
        return type(function)(decorate(lock, inner))
    _refuse_what_is_no_function(function)
    refuse_what_runs_later(function)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return finished(function(*args, **kwargs), function)

    return locked


def decorate_async(lock: Any, function: Any) -> Any:
    """Have a coroutine function run in an ``async with`` block of a lock."""
    inner = _of_method(function)
    if inner is not None:
        return type(function)(decorate_async(lock, inner))
    _refuse_what_is_no_function(function)
    if not any(inspect.iscoroutinefunction(form) for form in _forms(function)):
        if any(inspect.isasyncgenfunction(form) for form in _forms(function)):
            raise _runs_later(function, "use the lock with `async with` inside of it")
        raise TypeError(
            f"{_name(function)} is no coroutine function, so it can't wait for the lock: use "
            "the form of the lock that is for threads"
        )

    @functools.wraps(function)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        async with lock:
            return finished(await function(*args, **kwargs), function)

    return locked


def refuse_what_runs_later(
    function: Any, way_out: str = "use the lock with `with` inside of it"
) -> None:
    """Refuse a function that is known to run its body after the call."""
    for form in _forms(function):
        if (
            inspect.iscoroutinefunction(form)
            or inspect.isgeneratorfunction(form)
            or inspect.isasyncgenfunction(form)
        ):
            raise _runs_later(function, way_out)


def finished(
    result: Any, function: Any, way_out: str = "use the lock with `with` inside of it"
) -> Any:
    """Give the result of a call; refuse it if the body runs later or elsewhere."""
    if result is None or type(result) in _VALUES:
        return result
    if isinstance(result, Awaitable) or is_future(result) or _is_generator(result):
        _end(result)
        raise _runs_later(function, way_out, f"it gave a {type(result).__name__}")
    return result


# Plain values, so that most calls need no closer check.
_VALUES = frozenset({bool, int, float, str, bytes, list, tuple, dict, set})


def _is_generator(result: Any) -> bool:
    """Tell whether a result is a generator, or one that contextlib makes of one."""
    if type(result).__module__ == "contextlib":
        result = getattr(result, "gen", None)
    return isinstance(result, (Generator, AsyncGenerator))


def is_future(result: Any) -> bool:
    """Tell whether a result is one that a thread or process of a pool has yet to give."""
    futures: Any = registry.imported("concurrent.futures._base")
    return futures is not None and isinstance(result, futures.Future)


def _end(result: Any) -> None:
    """Close or cancel a refused result, so that its body does not run without the lock."""
    if inspect.iscoroutine(result) or isinstance(result, Generator):
        result.close()
        return
    asyncio: Any = registry.imported("asyncio")
    if is_future(result) or (asyncio is not None and asyncio.isfuture(result)):
        result.cancel()


def _of_method(function: Any) -> Any:
    """Give the function of a static or class method that is being made."""
    return function.__func__ if isinstance(function, (staticmethod, classmethod)) else None


def _refuse_what_is_no_function(function: Any) -> None:
    if inspect.isclass(function):
        raise TypeError(
            f"{_name(function)} is a class, and a lock around the making of an object guards "
            "none of its methods: decorate those"
        )
    if not callable(function):
        raise TypeError(f"a lock decorates functions, not {function!r}")


def _forms(function: Any) -> list[Any]:
    """List a function, and what is called in the end if it is a partial or an object."""
    forms = [function]
    while isinstance(function, functools.partial):
        function = function.func
        forms.append(function)
    if not inspect.isroutine(function) and not inspect.isclass(function):
        forms.append(getattr(type(function), "__call__", None))  # noqa: B004 - its function
    return forms


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _runs_later(function: Any, way_out: str, how: str = "") -> TypeError:
    return TypeError(
        f"{_name(function)} returns before its body has run{how and f' ({how})'}, so a lock "
        f"around the call would guard nothing: {way_out}"
    )
