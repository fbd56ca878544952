"""How a task lock's wait goes where the lock file is on a network filesystem: slowly."""

from __future__ import annotations

from semlock import _native
from semlock.retry import Growing

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable

# Ten tries, with pauses that begin at 100 ms and double.
NETWORK_RETRY = Growing(0.1, factor=2.0, longest=25.6, retries=9)


class Pauses:
    """The pauses of a wait, chosen when it begins: slow ones if the file is on a network."""

    __slots__ = ("_encoded",)

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def __call__(self) -> Iterable[float] | None:
        """Look where the lock file is, and give the pauses for there, if it has its own."""
        try:
            look = _native.look(self._encoded)
        except OSError:
            return None  # whoever tries next will tell
        if look is None or look.error or look.view.kind != _native.REGULAR or look.view.local:
            return None
        return NETWORK_RETRY()
