"""The slower wait for a task lock on a network filesystem."""

from __future__ import annotations

import os

from semlock._core import capi
from semlock._core.paths import PREFIX, absolute
from semlock.retry import Growing

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable

    from semlock._core.status import StrPath

# Ten tries, with pauses that begin at 100 ms and double.
NETWORK_RETRY = Growing(0.1, factor=2.0, longest=25.6, retries=9)


def is_network_path(path: StrPath) -> bool:
    """Tell whether a lock at this path is on a network filesystem.

    A filesystem that is not known to be local counts as one.  If there is no file at the path, a
    temporary file beside it is inspected: ``OSError`` if none can be made.
    """
    text = absolute(path)
    look = capi.look(os.fsencode(text))
    if look is not None and look.kind == capi.REGULAR and not look.error:
        return not look.local
    import tempfile  # noqa: PLC0415 - only for those who ask

    parent = os.path.dirname(text)
    try:
        handle, probe = tempfile.mkstemp(".tmp", f"{PREFIX}probe-", parent)
    except OSError as error:
        error.filename = parent  # not the temporary file, which the caller doesn't know
        raise
    try:
        look = capi.look(os.fsencode(probe))
        return look is None or not look.local
    finally:
        os.close(handle)
        os.unlink(probe)


class Pauses:
    """The pauses of a wait, chosen when it begins: slow ones on a network filesystem."""

    __slots__ = ("_encoded",)

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def __call__(self) -> Iterable[float] | None:
        """Inspect the lock file, and give slow pauses or ``None`` for the default."""
        try:
            look = capi.look(self._encoded)
        except OSError:
            return None  # the next try will report it
        if look is None or look.error or look.kind != capi.REGULAR or look.local:
            return None
        return NETWORK_RETRY()
