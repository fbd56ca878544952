"""How a task sleeps until a descriptor is readable, or for some seconds."""

from __future__ import annotations

import asyncio

from semlock._waiting.hub import hub_here, trio_here

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

# A second task that listens to a descriptor, and one whose loop can't, look so often.
_PAUSE = 0.01

_busy: set[tuple[int, int]] = set()


async def listen(descriptor: int, seconds: float) -> None:
    """Sleep so long, or until the descriptor is readable; -1 is never readable."""
    key = (id(hub_here()), descriptor)
    if descriptor < 0 or seconds < 0.001 or key in _busy:
        await hub_here().rest(min(seconds, _PAUSE) if descriptor >= 0 else seconds)
        return
    _busy.add(key)
    try:
        trio: Any = trio_here()
        if trio is not None:
            with trio.move_on_after(seconds):
                await trio.lowlevel.wait_readable(descriptor)
            return
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        try:
            loop.add_reader(descriptor, readable.set)
        except NotImplementedError:
            await asyncio.sleep(min(seconds, _PAUSE))
            return
        try:
            await asyncio.wait_for(readable.wait(), seconds)
        except asyncio.TimeoutError:
            pass
        finally:
            loop.remove_reader(descriptor)
    finally:
        _busy.discard(key)
