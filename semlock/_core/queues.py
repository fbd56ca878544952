"""Who stands in the queue of a lock: what the core writes beside it, read by others.

``csrc/semlock.h`` says under THE QUEUE what the files mean.
"""

from __future__ import annotations

import os
import sys

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus

PREFIX = ".semlock-"
_SUFFIX = ".queue"
_TICKET_DIGITS = 16
WHO = ".who"  # behind the name of a ticket: a file that says whose it is
LATE = ".late"  # behind the name of a ticket that was passed by, whose owner may come back
_HEX = frozenset("0123456789abcdef")


def is_queue(name: str) -> bool:
    """Tell whether a directory is named as queues are."""
    number = name.removeprefix(PREFIX).removesuffix(_SUFFIX)
    return is_ticket(number) and name == f"{PREFIX}{number}{_SUFFIX}"


def is_ticket(name: str) -> bool:
    """Tell whether a file is named as tickets are, and the readers of a shared lock."""
    return len(name) == _TICKET_DIGITS and _HEX.issuperset(name)


def queue_of(path: str, name_hash: int | None = None) -> str:
    """Give the directory of those who wait for a lock."""
    if name_hash is None:
        encoded = os.fsencode(path)
        native, memory = capi.new_lock(), capi.address(encoded)
        capi.start_lock_path(native, memory, len(encoded))
        name_hash = native.name_hash
    return os.path.join(os.path.dirname(path), f"{PREFIX}{name_hash:016x}{_SUFFIX}")


def tickets(queue: str) -> list[str]:
    """List the tickets in a queue, the first one first; ``OSError`` if there is none.

    Those that were passed by are among them, since their owners wait too.
    """
    names = sorted(os.listdir(queue))
    return [os.path.join(queue, n) for n in names if is_ticket(n.removesuffix(LATE))]


def who_file(ticket: str) -> str:
    """Give the file that tells of a ticket's owner, which is written when it waits for long."""
    # On Windows, where a ticket goes with its owner, it tells of it itself.
    return ticket if sys.platform == "win32" else ticket.removesuffix(LATE) + WHO


def waiters(path: str, holder: LockInfo | None = None) -> list[LockStatus]:
    """List those who stand in the queue of a lock, the first one first.

    A holder who waited before keeps its place until it lets go; it isn't listed, nor are the
    dead.  Of one who has only just come nothing is known but that it waits.
    """
    from semlock._core.records import decode_text  # noqa: PLC0415 - for those who look
    from semlock._core.status import look_at  # noqa: PLC0415

    try:
        places = tickets(queue_of(path))
    except OSError:
        return []
    found = []
    for number, place in enumerate(places):
        if capi.ticket_state(os.fsencode(place)) != capi.TICKET_WAITS:
            continue
        told = who_file(place)
        try:
            waiter = look_at(told, os.fsencode(told), decode_text)
        except OSError:
            continue  # it has just left, or is not ours to see
        who = None if waiter.info is None else (waiter.info.pid, waiter.info.start)
        if number == 0 and holder is not None and who == (holder.pid, holder.start):
            continue
        found.append(waiter)
    return found
