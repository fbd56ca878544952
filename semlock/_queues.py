"""Who stands in the queue of a lock: what the core writes beside it, read by others.

``csrc/semlock.h`` says under THE QUEUE what the files mean.
"""

from __future__ import annotations

import os

from semlock import _native

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._records import LockInfo
    from semlock._status import LockStatus

PREFIX = ".semlock-"
_SUFFIX = ".queue"
_TICKET_DIGITS = 16


def is_queue(name: str) -> bool:
    """Tell whether a directory is named as queues are."""
    return name.startswith(PREFIX) and name.endswith(_SUFFIX)


def queue_of(path: str, name_hash: int | None = None) -> str:
    """Give the directory of those who wait for a lock."""
    if name_hash is None:
        encoded = os.fsencode(path)
        native, memory = _native.new_lock(), _native.address(encoded)
        _native.start_lock_path(native, memory, len(encoded))
        name_hash = native.name_hash
    return os.path.join(os.path.dirname(path), f"{PREFIX}{name_hash:016x}{_SUFFIX}")


def tickets(queue: str) -> list[str]:
    """List the tickets in a queue, the first one first; ``OSError`` if there is none."""
    return [
        os.path.join(queue, name)
        for name in sorted(os.listdir(queue))
        if len(name) == _TICKET_DIGITS and set(name) <= set("0123456789abcdef")
    ]


def waiters(path: str, holder: LockInfo | None = None) -> list[LockStatus]:
    """List those who stand in the queue of a lock, the first one first.

    A holder who waited before keeps the first place until it lets go; it isn't listed.
    """
    from semlock._records import decode_text  # noqa: PLC0415 - for those who look
    from semlock._status import look_at  # noqa: PLC0415

    try:
        places = tickets(queue_of(path))
    except OSError:
        return []
    found = []
    for number, place in enumerate(places):
        try:
            ticket = look_at(place, os.fsencode(place), decode_text)
        except OSError:
            continue  # it has just left, or is not ours to see
        who = None if ticket.info is None else (ticket.info.pid, ticket.info.start)
        if number == 0 and holder is not None and who == (holder.pid, holder.start):
            continue
        if ticket.state != "free":
            found.append(ticket)
    return found
