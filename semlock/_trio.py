"""Waiting in trio: the same hub, served by a task of trio's own.

Nothing of trio is imported here; it is there when one of its tasks waits.
"""

from __future__ import annotations

from semlock import _native
from semlock._hub import Hub, next_look, next_safety

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any


class _Sleeper:
    """One task that sleeps."""

    __slots__ = ("told", "wait")

    def __init__(self, wait: _native.Wait, wake: Any) -> None:
        self.wait = wait
        self.told = wake


class TrioHub(Hub):
    """What the waits of one run of trio share."""

    __slots__ = ("_trio",)

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        super().__init__()
        if self.events >= 0:
            trio.lowlevel.spawn_system_task(self._serve)

    async def _serve(self) -> None:
        while True:
            await self._trio.lowlevel.wait_readable(self.events)
            self._read()

    async def hear(self, wait: _native.Wait, until: int | None, *, news: bool = False) -> int:
        """Sleep until something can be done, or until a time of ``now_ns``."""
        safety = next_safety()
        told = False
        while True:
            now = _native.now_ns()
            outcome = wait.wait(now)
            if outcome == _native.TIME and self.events < 0:
                outcome = _native.BLIND
            if outcome != _native.TIME or (until is not None and now >= until):
                return outcome
            if told and news:
                return _native.HELD
            event = self._trio.Event()
            sleeper = _Sleeper(wait, event.set)
            marks = tuple(wait.marks)
            self.listen(sleeper, marks)
            try:
                delay = max(0, next_look(wait, safety, until) - now) / 1e9
                with self._trio.move_on_after(delay):
                    await event.wait()
            finally:
                self.ignore(sleeper, marks)
            told = event.is_set()
            if told:
                continue
            if _native.now_ns() >= safety:
                safety = next_safety()
                wait.doubt()
            elif not wait.recheck_at:
                wait.due()

    async def rest(self, seconds: float) -> None:
        """Sleep so long, whatever happens."""
        await self._trio.sleep(seconds)

    def turn(self, path: str) -> None:
        """Have no lines: all stand in the queue of the processes."""


_of_run: Any = None


def hub_of_run(trio: Any) -> TrioHub:
    """Give the hub of the run of trio that goes on in this thread."""
    global _of_run  # noqa: PLW0603 - made when trio is there
    if _of_run is None:
        _of_run = trio.lowlevel.RunVar("semlock", default=None)
    hub: TrioHub | None = _of_run.get()
    if hub is None:
        hub = TrioHub(trio)
        _of_run.set(hub)
    return hub
