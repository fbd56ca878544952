"""The core's part of a wait in an event loop."""

from __future__ import annotations

from semlock._core import waits

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from semlock._core import capi
    from semlock._waiting.hub import Hub


class LoopWait(waits.Wait):
    """C's form of a wait that uses a hub's event source, and doesn't outlive it."""

    __slots__ = ("_hub",)

    def __init__(
        self,
        hub: Hub,
        locks: Sequence[Any],
        queue: Any = None,
        record: capi.Record | None = None,
        *,
        asked: int | None = None,
        prepares: bool = False,
    ) -> None:
        self._hub: Hub | None = None
        super().__init__(locks, queue, record, hub.events, asked=asked, prepares=prepares)
        self._hub = hub
        hub.waits.add(id(self))

    def end(self, won: Any = None) -> None:
        """Leave the queue and give everything back; more than once does no harm."""
        super().end(won)
        if self._hub is not None:
            self._hub.left(self)
