"""Files, records, processes and policies.  The only room that calls C; it knows no lock object."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# Loads what the lock systems claim, which this room may not import: the package appends it.
claims: list[Callable[[], ModuleType]] = []
