"""What the modules of the lock systems share beside the engine: looking and cleaning."""

from __future__ import annotations

import os

from semlock._status import absolute, look_at

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._policy import Policy
    from semlock._records import LockInfo
    from semlock._status import LockStatus, StrPath


def status(
    path: StrPath, decode: Callable[[bytes], LockInfo], policy: Policy | None
) -> LockStatus:
    """Look at a path with the eyes of one lock system."""
    text = absolute(path)
    return look_at(text, os.fsencode(text), decode, policy)
