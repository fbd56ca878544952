"""Tickets of dead waiters: which files in a queue may be removed, and the proof.

``csrc/semlock.h`` describes the files under THE QUEUE.
"""

from __future__ import annotations

import os
import stat
from time import time

from semlock._core import capi
from semlock._core.errors import LockRecordError
from semlock._core.folders import (
    LATE,
    WHO,
    Folder,
    Leftover,
    as_far_as_it_goes,
    is_ticket,
    who_file,
)
from semlock._core.forms import is_ticket as is_content_of_ticket
from semlock._core.records import decode_text
from semlock._core.status import LockStatus, remove_exactly
from semlock._core.verdicts import GRACE

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator

    from semlock._core.records import LockInfo

_ENDED = "the process that waited with it has ended"


_EMPTY = "it is the queue of a lock, and nothing is left in it"


def places_in(folder: Folder) -> Iterator[Leftover]:
    """Find the tickets of dead waiters, and the queue itself if it is empty without them."""
    yield from folder.with_itself(_all_places(folder), _EMPTY)


def _all_places(folder: Folder) -> Iterator[Leftover]:
    for name in sorted(os.listdir(folder.listed)):
        if is_ticket(name.removesuffix(WHO).removesuffix(LATE)):
            find = _who if name.endswith(WHO) else _ticket
            yield from as_far_as_it_goes(find(folder, name))


def _ticket(queue: Folder, name: str) -> Iterator[Leftover]:
    """Judge a ticket; the core knows whether its owner is alive."""
    entry = queue.entry(name)
    mode = os.lstat(entry).st_mode
    if not stat.S_ISFIFO(mode) and (not stat.S_ISREG(mode) or _look(queue, name) is None):
        return
    told = who_file(name)
    look = _look(queue, told) if os.path.lexists(queue.entry(told)) else None
    info = None if look is None else _said_by(look)
    yield Leftover(
        queue.path_of(name), _ENDED, lambda: _leave(queue, name), info, lambda: _is_left(entry)
    )


def _is_left(entry: str) -> bool:
    return capi.ticket_state(os.fsencode(entry)) == capi.TICKET_DEAD


def _who(queue: Folder, name: str) -> Iterator[Leftover]:
    """Judge a file about a ticket's owner that was left without its ticket."""
    ticket = queue.entry(name.removesuffix(WHO))
    owned = os.path.lexists(ticket) or os.path.lexists(ticket + LATE)
    look = None if owned else _look(queue, name)
    if look is None:
        return
    found = LockStatus(queue.path_of(name), look, _said_by(look))
    silent = found.info is None and found.unchanged_for(time()) >= GRACE
    if found.reason is not None or silent:

        def remove() -> bool:
            return remove_exactly(found, os.fsencode(queue.entry(name)), robs=False)

        yield Leftover(found.path, _ENDED, remove, found.info)


def _look(queue: Folder, name: str) -> capi.Instance | None:
    """Inspect a file in a queue; ``None`` if the core doesn't write such files there."""
    look = queue.look(name)
    if look is None or look.error or not is_content_of_ticket(look.content):
        return None
    return look


def _said_by(look: capi.Instance) -> LockInfo | None:
    try:
        return decode_text(look.content)
    except LockRecordError:
        return None  # its owner had not written it yet


def _leave(queue: Folder, name: str) -> bool:
    try:
        return capi.clean_ticket(os.fsencode(queue.entry(name)))
    except OSError as error:
        error.filename = queue.path_of(name)
        raise
