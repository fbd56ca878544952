"""``semlock.Lock``: the default lock, whose record is sema's text and the keys that prove death."""

from __future__ import annotations

from semlock._core import BY_PROOF, TAKE_TURNS, capi
from semlock._core.identity import this_process
from semlock._core.options import DEFAULTS
from semlock._core.records import decode_text, encode_text
from semlock._locks.base import BaseLock
from semlock._locks.lock_object import LockObject
from semlock._stores.file import InFiles

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any

    from semlock._core.identity import Process
    from semlock._core.options import LockOptions

_Function: Any = type(lambda: None)  # `types` has it too, but is one more file to load


class FileLock(InFiles, BaseLock):
    """A lock that is a file.  A lock system fills in how its record is written and read."""

    __slots__ = InFiles.SLOTS


# A wrong call is told with the name that was called, as far as classes share a function.
InFiles.__init__.__qualname__ = "Lock"
for _method in (BaseLock.acquire, BaseLock.try_acquire, LockObject.release):
    _method.__qualname__ = f"Lock.{_method.__name__}"
del _method


def called_by_its_name(kind: Any) -> Any:
    """Give a class that shares the making of another a copy of it with the class's name."""
    shared = kind.__init__
    own = _Function(
        shared.__code__, shared.__globals__, "__init__", shared.__defaults__, shared.__closure__
    )
    own.__kwdefaults__ = shared.__kwdefaults__
    own.__annotations__ = shared.__annotations__
    own.__qualname__ = kind.__name__
    kind.__init__ = own
    return kind


# The systems' own locks are seen by programs that know no boot mark.
SAFE: LockOptions = {**DEFAULTS, "durability": "safe"}


class TextLock(FileLock):
    """A lock whose record is text: ``key=value`` lines."""

    __slots__ = ()

    # The core reads what ``decode_text`` reads.
    _vouched = BY_PROOF

    # Those who wait stand in a queue, and those who hold make way for them.
    _turns = TAKE_TURNS

    _shares_record = True

    def _compose(self, owner: Process | None) -> capi.Record:
        return encode_text(
            owner or this_process(),
            self.tag,
            mode=self._mode,
            durability=capi.DURABILITY[self._durability],
        )

    _decode = staticmethod(decode_text)


class Lock(TextLock):
    """A lock that is held exactly while a file exists at its path.

    :path:        the lock file; its directory must exist, or ``make_dirs`` be true
    :tag:         why it is held, for people; a line of text in the record
    :timeout:     seconds that ``acquire`` waits: ``None`` for ever, 0 one try
    :policy:      when a lock may be taken from its holder; by default when that is
                    proven to be dead, and never otherwise (see ``semlock.policy``)
    :retry:       the pauses of a wait (see ``semlock.retry``); the default grows to 50 ms
    :durability:  what a power cut may do.  ``"safe"``: no lock is left that blocks, and a
                    file is synced only where the filesystem asks for it; ``"full"`` (fsync)
                    and ``"data"`` (fdatasync): the file is whole or not there; ``"none"``
    :mode:        the lock file's permissions, less the umask; its owner can always use it
    :exact_mode:  whether it gets them whatever the umask is, for a lock that users share
    :make_dirs:   whether missing directories of the path are made when the lock is taken
    :reentrant:   whether the thread that holds may acquire again, and release as often
    :held_by:     ``"thread"``: as above, and a wait of the thread that holds is refused.
                    ``"object"``: the object holds, whichever threads and tasks use it.  Each of
                    them may release, and, if it is reentrant, acquire again; else it waits
    :fair:        whether this lock is taken only in turn: never before a waiter that asked
                  earlier.  Otherwise a process may take it again and again for a millisecond
                  before it makes way for those who wait
    :heartbeat:   seconds between refreshes of the record by a thread that all locks of the
                    process on one filesystem share; ``None`` for no refreshes
    :on_lost:     called with the lock and the error when a refresh finds it lost, by a thread
                    for such calls: it may wait, and holds up no other refresh
    :on_wait:     called with the ``LockStatus`` and the seconds waited so far, when a wait
                  begins and then less and less often; what it raises ends the wait
    :cancel_check:  called about every 50 ms of a wait; if it returns true, the wait ends with
                  ``LockCancelledError``.  ``threading.Event().is_set`` lets another thread end it

    Use it with ``with``, as a decorator, or by its methods.  Threads, objects and processes
    exclude each other alike.  A lock ends when it is released or when its process ends, never
    by losing the last reference to its object.
    """

    __module__ = "semlock"  # as users write it
    __slots__ = ()
    _defaults = SAFE
