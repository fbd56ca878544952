"""The waiters of a lock: reading the files that the core writes beside it.

``csrc/semlock.h`` describes the files under THE QUEUE.
"""

from __future__ import annotations

import os
import sys

from semlock._core import capi
from semlock._core.paths import PREFIX

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._core.records import LockInfo
    from semlock._core.status import LockStatus

_SUFFIX = ".queue"
_TICKET_DIGITS = 16
WHO = ".who"  # suffix of a ticket's name: a file about its owner
LATE = ".late"  # suffix of a ticket that was passed by; its owner may continue
_HEX = frozenset("0123456789abcdef")


def is_queue(name: str) -> bool:
    """Tell whether a directory has a name of queues."""
    number = name.removeprefix(PREFIX).removesuffix(_SUFFIX)
    return is_ticket(number) and name == f"{PREFIX}{number}{_SUFFIX}"


def is_ticket(name: str) -> bool:
    """Tell whether a file has a name of tickets, which readers of a shared lock have too."""
    return len(name) == _TICKET_DIGITS and _HEX.issuperset(name)


def queue_of(path: str, name_hash: int | None = None) -> str:
    """Give the queue's directory of a lock."""
    if name_hash is None:
        encoded = os.fsencode(path)
        native, memory = capi.new_lock(), capi.address(encoded)
        capi.start_lock_path(native, memory, len(encoded))
        name_hash = native.name_hash
    return os.path.join(os.path.dirname(path), f"{PREFIX}{name_hash:016x}{_SUFFIX}")


def tickets(queue: str) -> list[str]:
    """List the tickets in a queue, the first one first; ``OSError`` if there is no queue.

    Tickets that were passed by are among them, as their owners still wait.
    """
    names = sorted(os.listdir(queue))
    return [os.path.join(queue, n) for n in names if is_ticket(n.removesuffix(LATE))]


def who_file(ticket: str) -> str:
    """Give the file about a ticket's owner, which a waiter writes after a while."""
    # On Windows the ticket itself has that content.
    return ticket if sys.platform == "win32" else ticket.removesuffix(LATE) + WHO


def waiters(path: str, holder: LockInfo | None = None) -> list[LockStatus]:
    """List the waiters in the queue of a lock, the first one first.

    A holder that has waited keeps its ticket until the release; it isn't listed, and neither are
    dead waiters.  Of a new waiter nothing but its waiting is known.
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
            continue  # it has just left, or may not be read
        who = None if waiter.info is None else (waiter.info.pid, waiter.info.start)
        if number == 0 and holder is not None and who == (holder.pid, holder.start):
            continue
        found.append(waiter)
    return found
