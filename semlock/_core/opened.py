"""A descriptor that no interrupt leaves open."""

from __future__ import annotations

import os

from semlock._core.inside import unstruck

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Opened:
    """A descriptor that is closed, at the latest, when nothing refers to this object any more.

    A handler of a signal may raise behind any call, so also between ``os.open()`` and the ``try``
    whose end would close what it gave.
    """

    fd = -1

    def __init__(self, function: Callable[..., int], *arguments: Any) -> None:
        """Call a function that opens it, such as ``os.open``."""
        # No handler runs between what is called here and the store.
        (self.fd,) = map(function, *zip(arguments, strict=False))

    @unstruck
    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close it, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close(fd)

    __del__ = close
