"""Every operation of semlock on Windows under a fault at every one of the core's calls.

``python windows_ops.py OPERATION DIRECTORY errors|all-errors|kills`` does the operation once to
learn its calls, then once for each call and each fault, in a directory of its own each time,
and prints how many cases there were and what was wrong with them.  Errors happen in this
process, which is made as good as new in between; who is killed is a process of its own, and
what it has left is judged here.

What is killed after one call leaves what is left by who is killed before the next one, so
those are killed before each call and after the last.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

import semlock
import windows_calls
from faultlib import (
    FAIL_AFTER,
    FAIL_BEFORE,
    KILL_AFTER,
    KILL_BEFORE,
    PATIENCE,
    Always,
    Fault,
    keep_a_claim,
    new_lock,
    set_grace,
    stop_before,
)
from semlock import _native
from semlock._identity import this_process
from semlock._policy import GRACE
from windows_calls import WINE, Calls, WindowsActor, bytes_at, forget_bursts, handle_count

# The core tells five kinds of errors apart.  The short runs have one that can mean two things,
# one that it helps itself with, and one for which it knows another way.
ERRORS = {
    "ACCESS_DENIED": windows_calls.ACCESS_DENIED,
    "NO_RESOURCES": windows_calls.NO_RESOURCES,
    "NOT_SUPPORTED": windows_calls.NOT_SUPPORTED,
}
MORE_ERRORS = {
    **ERRORS,
    "SHARING_VIOLATION": windows_calls.SHARING_VIOLATION,
    "DISK_FULL": windows_calls.DISK_FULL,
    "INVALID_HANDLE": windows_calls.INVALID_HANDLE,
    "NETNAME_DELETED": windows_calls.NETNAME_DELETED,
    "NET_UNEXPECTED": windows_calls.NET_UNEXPECTED,
    "IO_DEVICE": windows_calls.IO_DEVICE,
    "TOO_MANY_OPEN_FILES": windows_calls.TOO_MANY_OPEN_FILES,
}

# What can't fail, and is counted because a process can be killed there.
UNFAILING = ("Sleep",)
# What changes nothing and opens nothing, so that it is the same whether it was made or not.
QUESTIONS = ("Get", "ReadFile", "Wait", "RegQuery", "FindNextFile")

# Which faults say nothing under Wine.  A file that was moved by its name has another identity
# there for those who had it open: the number of its volume is gone.
LEFT_OUT = {("SetFileInformationByHandle rename", "NOT_SUPPORTED")} if WINE else set()

# Where a file can't be deleted as POSIX does it, one that can't be moved aside either keeps its
# name until its holder closes it.
LEFT_OUT_OF = {"remove_by_force": {"SetFileInformationByHandle rename"}} if WINE else {}

# How many are killed at the same time.
VICTIMS = 3

# Within this time a wait must end well.  A waiter looks for itself more seldom than that, so
# that none ends well only because of it.
WAIT = 5.0
semlock._waiting._SAFETY = 1000.0
# Who lets nobody delete a file is waited for until then; that is nothing to be waited for here.
semlock._status.GUARD_PATIENCE = 0.01

calls = Calls()
calls.skip_sync()


class BadEndingError(Exception):
    """Something is not as it must be."""


def must(holds: object, message: str) -> None:
    """Say what is wrong, unless it is right."""
    if not holds:
        raise BadEndingError(message)


class Case:
    """One operation in one directory, with one fault or none."""

    def __init__(self, directory: str, fault: Fault | Always | None) -> None:
        self.directory = directory
        self.path = os.path.join(directory, "the.lock")
        self.fault = fault
        self.error: BaseException | None = None
        self.calls: list[str] = []
        self.value: object = None
        self.opened = 0

    @property
    def names(self) -> list[str]:
        """What is in the directory."""
        return sorted(os.listdir(self.directory))

    def beside(self, name: str) -> str:
        """Give another path in the directory."""
        return os.path.join(self.directory, name)

    @contextlib.contextmanager
    def under_fault(self):
        """What is done here is what the fault happens to."""
        forget_bursts()
        before = len(calls.open)
        once = isinstance(self.fault, Fault)
        if isinstance(self.fault, Always):
            calls.refuse(self.fault.name, self.fault.error)
        calls.arm(*([self.fault] if once else []))
        try:
            yield
        except BaseException as error:
            self.error = error
        happened = calls.happened
        self.calls = calls.disarm()
        calls.refuse_nothing()
        self.opened = len(calls.open) - before
        must(happened or not once, "the operation makes other calls this time")

    # ------------------------------------------------------------ what must be true

    def is_clear(self, *kinds: type[BaseException]) -> bool:
        """Whether it raised a clear error: of these kinds, if there are any."""
        if self.error is None:
            return False
        if isinstance(self.error, semlock.SemlockError):
            must(self.error.path, f"the error names no lock: {self.error!r}")
        else:
            must(isinstance(self.error, OSError), f"not a clear error: {self.error!r}")
            must(self.error.filename, f"the error names no file: {self.error!r}")
            must(self.error.winerror, f"the error has no number of Windows': {self.error!r}")
        must(not kinds or isinstance(self.error, kinds), f"unexpected error {self.error!r}")
        return True

    def holds(self, lock: semlock.Lock) -> None:
        """The lock is held, its record is whole and its own."""
        must(lock.held, "the object doesn't know that it holds the lock")
        content = bytes_at(lock.path)
        must(content is not None, "the lock is held and its file is not there")
        # A refresh may or may not have come to writing the time.
        stamps = {lock._native.stamp + later for later in (-1, 0, 1, 2)}
        texts = [lock._text(lock._record, stamp) for stamp in stamps]
        must(content in texts, f"not its own whole record: {content!r}")
        try:
            semlock.remove(lock.path)
        except semlock.LockHeldError as held:
            must(not held.status.unfinished, "a held lock is marked as unfinished")
        else:
            raise BadEndingError("a living holder was robbed")
        lock.check()

    def holds_or_nothing(self, lock: semlock.Lock, *, left: bytes | None = None) -> None:
        """An acquisition ended in a lock that is held, or an error with nothing left.

        ``left`` is what a dead holder had left there, which may still be there.
        """
        if self.error is None:
            self.holds(lock)
            must(self.opened in (-1, 0, 1), f"{self.opened} handles for one lock")
            return
        self.is_clear(OSError)
        must(not lock.held, f"held, in spite of {self.error!r}")
        must(self.opened in (-1, 0), f"{self.opened} handles leaked with {self.error!r}")
        content = bytes_at(lock.path)
        if content is not None:
            if self.can_leave_a_file() and semlock.status(lock.path).unfinished:
                set_grace(0)
            else:
                must(content == left, f"a lock file is left behind with {self.error!r}")
        # Nothing that it met has broken the object.  When to look at a holder again is not
        # what is tested, so it looks at once.
        lock._native.look_at = 0
        lock.acquire(timeout=1)
        self.holds(lock)

    def waits(self, lock: semlock.Lock, meanwhile) -> None:
        """Acquire a held lock; what happens in the meantime happens at its first sleep."""
        todo = [meanwhile]

        def asleep() -> None:
            if todo:
                todo.pop()()

        calls.when_asleep(asleep)
        try:
            with self.under_fault():
                lock.acquire(timeout=0.05 if isinstance(self.fault, Always) else WAIT)
        finally:
            calls.when_asleep(None)
        if isinstance(self.fault, Always) and isinstance(self.error, semlock.LockTimeoutError):
            # Nobody can see what he is not allowed to see, however long he waits.
            must(not lock.held, "held, and timed out")
            must(self.opened in (-1, 0), f"{self.opened} handles leaked")
            self.error = None
            lock._native.look_at = 0
            asleep()
            lock.acquire(timeout=1)
            self.opened = 0
            return
        must(
            not isinstance(self.error, semlock.LockTimeoutError),
            "the news of a release was missed",
        )
        if todo:
            asleep()

    def lets_go(self, lock: semlock.Lock) -> None:
        """Release what is held; nothing may be left of it."""
        lock.release()
        self.is_free(lock)

    def is_free(self, lock: semlock.Lock) -> None:
        """The lock is free, and its object knows."""
        must(not lock.held, "the object believes that it holds a lock that was released")
        must(bytes_at(lock.path) is None, "a released lock's file is still there")

    def _hits(self, *names: str, actions=(FAIL_BEFORE, FAIL_AFTER)) -> bool:
        if isinstance(self.fault, Always):
            return FAIL_BEFORE in actions and self.fault.name in names
        if self.fault is None:
            return False
        _, number, action, _ = self.fault.what
        return action in actions and self.calls[number - 1] in names

    def can_leave_a_file(self) -> bool:
        """Whether a file stays that can't be removed, or of which nobody knows.

        Nobody can know that a file, whose making has failed, was made all the same.  It says
        itself that it is unfinished or temporary, and goes after the grace time.
        """
        return self._hits("CreateFileW new", actions=(FAIL_AFTER,)) or self._hits(
            "SetFileInformationByHandle delete", "SetFileInformationByHandle rename"
        )

    def can_leave_a_queue(self) -> bool:
        """Whether a waiter can't take back the directory of its queue, which nobody waits for."""
        return self._hits(
            "RemoveDirectoryW", "CreateDirectoryW", "CreateFileW new", "FindNextFileW"
        )

    def leaves_nothing(self) -> None:
        """No file is left when the kept claims are given up."""
        _native.drain_pool()
        if self.can_leave_a_file() or self.can_leave_a_queue():
            set_grace(0)
            semlock.clean(self.directory)
        must(not self.names, f"left behind: {self.names}")

    def run(self, operation) -> None:
        """Do it all."""
        before = dict(calls.open)
        operation(self)
        self.leaves_nothing()
        leaked = {handle: name for handle, name in calls.open.items() if handle not in before}
        must(not leaked, f"handles are left open: {sorted(leaked.values())}")


# ---------------------------------------------------------------- what others have left


_dead_record = b""


def learn_a_dead_record(directory: str) -> None:
    """Get the record of a process that has died while it held a lock."""
    global _dead_record
    path = os.path.join(directory, "template")
    windows_calls.leave_dead_lock(path)
    _dead_record = bytes_at(path)
    os.unlink(path)


def leave_dead(path: str) -> bytes:
    """Leave a file as a dead process does."""
    with open(path, "xb") as file:
        file.write(_dead_record)
    return _dead_record


# ---------------------------------------------------------------- the operations


OPERATIONS = {}


def operation(
    function=None,
    *,
    grace: bool = False,
    foreign: bool = False,
    long: bool = False,
    kills: bool = False,
    slow: bool = False,
):
    """Name an operation.

    ``grace``    what a kill leaves is no record yet, and goes after the grace time only
    ``foreign``  the file at the path is another program's, and goes with that program
    ``long``     it is much like another one, and left to the long runs
    ``kills``    who is killed in it is not left to the long runs
    ``slow``     each time takes a process, so that one error must do
    """

    def name_it(function):
        function.grace = grace
        function.foreign = foreign
        function.slow = slow
        OPERATIONS[function.__name__] = function
        return function

    return name_it if function is None else name_it(function)


def acquires(case: Case, lock: semlock.Lock, *, left: bytes | None = None) -> None:
    with case.under_fault():
        lock.acquire(timeout=0)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)


def releases(case: Case, lock: semlock.Lock) -> None:
    with case.under_fault():
        lock.release()
    if case.is_clear(OSError):
        case.holds(lock)
        lock.release()
    case.is_free(lock)


@operation(kills=True)
def fresh_acquire(case):
    acquires(case, new_lock(case.path))


@operation(long=True)
def first_acquire_of_a_process(case):
    semlock._process._after_fork_in_child()  # which makes a process as new as it can be
    acquires(case, new_lock(case.path))


@operation(kills=True)
def acquire_with_a_kept_claim(case):
    keep_a_claim(case.path)
    acquires(case, new_lock(case.path))


@operation(long=True)
def acquire_with_a_kept_claim_and_a_shorter_record(case):
    lock = new_lock(case.path, tag="a long tag")
    for _ in range(2):
        lock.acquire(timeout=0)
        lock.release()
    acquires(case, new_lock(case.path))


@operation(grace=True)
def acquire_in_place(case):
    acquires(case, new_lock(case.path, in_place=True))


@operation(grace=True, long=True)
def acquire_in_place_without_a_guard(case):
    calls.refuse("LockFileEx*", windows_calls.NOT_SUPPORTED)
    acquires(case, new_lock(case.path, in_place=True))


@operation(long=True)
def acquire_detached(case):
    acquires(case, new_lock(case.path, detached=True))


def fails_to_take(case: Case, holder: semlock.Lock, other: semlock.Lock) -> None:
    with case.under_fault():
        case.value = other.try_acquire()
    must(case.is_clear(OSError) or case.value is False, f"{case.value!r} on a held lock")
    must(case.opened in (-1, 0), f"{case.opened} handles leaked")
    must(not other.held, "two hold one lock")
    case.holds(holder)
    case.lets_go(holder)


@operation
def failed_try(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    fails_to_take(case, holder, other)


@operation(long=True)
def failed_try_with_a_kept_claim(case):
    keep_a_claim(case.path)
    holder, other = new_lock(case.path, detached=True), new_lock(case.path)
    holder.acquire(timeout=0)
    fails_to_take(case, holder, other)


@operation(long=True)
def failed_try_again(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    other.try_acquire()
    fails_to_take(case, holder, other)


@operation
def batch_try(case):
    held = new_lock(case.beside("b"))
    held.acquire(timeout=0)
    locks = [new_lock(case.beside(name)) for name in "ab"]
    with case.under_fault():
        case.value = semlock.try_acquire_many(locks)
    must(not locks[1].held, "two hold one lock")
    if case.is_clear(OSError):
        for lock in locks:
            # Where a lock can't even be let go of, its object says that it is still held.
            must(not lock.held or isinstance(case.fault, Always), "a failed batch holds on")
            if lock.held:
                lock.release()
        case.value = semlock.try_acquire_many(locks)
    for lock, taken in zip(locks, case.value, strict=True):
        if lock is locks[1]:
            must(taken is None, "a held lock counts as taken")
        else:
            must(taken is lock, "a free lock was not taken")
            case.holds(lock)
            case.lets_go(lock)
    case.holds(held)
    case.lets_go(held)


def reclaims(case: Case, left: bytes) -> None:
    lock = new_lock(case.path)
    with case.under_fault():
        lock.acquire(timeout=0)
    if isinstance(case.error, semlock.LockTimeoutError):
        # What can't be looked at counts as held.
        must(bytes_at(case.path) == left, "a lock that can't be looked at was changed")
        case.error = None
        lock._native.look_at = 0
        lock.acquire(timeout=1)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)
    semlock.clean(case.directory)


@operation
def reclaim(case):
    reclaims(case, leave_dead(case.path))


@operation(long=True)
def reclaim_of_an_unfinished_lock(case):
    with open(case.path, "xb"):
        pass
    windows_calls.mark_unfinished(case.path)
    set_grace(0)
    reclaims(case, b"")


@operation(long=True)
def reclaim_without_a_guard(case):
    calls.refuse("LockFileEx guard", windows_calls.NOT_SUPPORTED)
    reclaims(case, leave_dead(case.path))


@operation
def release(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(kills=True)
def release_that_keeps(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    lock.release()
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(long=True)
def release_that_keeps_and_sweeps(case):
    leave_dead(case.beside(".semlock-1.kept"))
    leave_dead(case.beside(".semlock-0123456789abcdef0123456789abcdef.tmp"))
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    lock.release()
    lock.acquire(timeout=0)
    releases(case, lock)
    semlock.clean(case.directory)


@operation(long=True)
def release_of_a_kept_claim(case):
    keep_a_claim(case.path)
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(long=True)
def release_in_place(case):
    lock = new_lock(case.path, in_place=True)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation(long=True)
def release_that_finds_the_lock_lost(case):
    lock, successor = new_lock(case.path), new_lock(case.path)
    lock.acquire(timeout=0)
    semlock.remove(case.path, force=True)
    successor.acquire(timeout=0)
    with case.under_fault():
        lock.release()
    if isinstance(case.error, semlock.LockLostError):
        case.error = None
    else:
        must(case.is_clear(OSError), "a lost lock was released without a word")
        must(lock.held, "the loss was not told, and now it can't be")
        try:
            lock.release()
        except semlock.LockLostError:
            pass
        else:
            raise BadEndingError("a lost lock was released without a word")
    must(not lock.held, "a lost lock counts as held")
    case.holds(successor)
    case.lets_go(successor)


@operation
def refresh(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.refresh()
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} handles leaked")
    case.holds(lock)
    lock.refresh()
    case.holds(lock)
    case.lets_go(lock)


@operation(long=True)
def check(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.check()
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} handles leaked")
    case.holds(lock)
    case.lets_go(lock)


@operation(long=True)
def status_of_a_held_lock(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state in ("held", "unreadable"), f"a held lock is {case.value.state}")
        must(case.value.verdict != "dead", f"a living holder is dead: {case.value.evidence}")
    must(case.opened == 0, f"{case.opened} handles leaked")
    case.holds(lock)
    case.lets_go(lock)


@operation(long=True)
def status_of_a_dead_lock(case):
    leave_dead(case.path)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state != "free", "a lock that is there is free")
    must(case.opened == 0, f"{case.opened} handles leaked")
    semlock.remove(case.path)


def removes(case: Case, **options: object) -> None:
    with case.under_fault():
        semlock.remove(case.path, **options)
    if case.is_clear(OSError, semlock.LockHeldError):
        must(bytes_at(case.path) is not None, f"it is gone, in spite of {case.error!r}")
        semlock.remove(case.path, **options)
    must(case.opened == 0, f"{case.opened} handles leaked")
    must(bytes_at(case.path) is None, "what was removed is still there")
    semlock.clean(case.directory)


@operation
def remove_a_dead_lock(case):
    leave_dead(case.path)
    removes(case)


@operation(long=True)
def remove_by_force(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    removes(case, force=True)
    try:
        lock.release()
    except semlock.LockLostError:
        pass
    else:
        raise BadEndingError("a robbed holder released without a word")


@operation(foreign=True, long=True)
def remove_a_file_that_is_no_record(case):
    with open(case.path, "wb"):
        pass
    removes(case, force=True)


def cleans(case: Case, *names: str) -> None:
    for name in names:
        leave_dead(case.beside(name))
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        semlock.clean(case.directory)
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} handles leaked")
    case.holds(lock)
    semlock.clean(case.directory)
    must(case.names == ["the.lock"], f"clean left {case.names}")
    case.lets_go(lock)


@operation
def clean(case):
    cleans(case, ".semlock-1.kept")


@operation(long=True)
def clean_much(case):
    temporary = ".semlock-0123456789abcdef0123456789abcdef.tmp"
    cleans(case, "dead.lock", ".semlock-1.kept", temporary)


@operation(long=True)
def giving_up_kept_claims(case):
    keep_a_claim(case.path)
    with case.under_fault():
        _native.drain_pool()
    semlock.clean(case.directory)


# Others who take part in a wait, and stay for the next one.
_others: list[WindowsActor] = []


def other_at(path: str, number: int = 0) -> WindowsActor:
    """Have another process at a path."""
    while len(_others) <= number:
        _others.append(WindowsActor(path))
    other = _others[number]
    if other.dead:
        other.close()
        other = _others[number] = WindowsActor(path)
    other.do(f"be_at({path!r})")
    return other


@operation
def status_of_a_living_process_without_a_witness(case):
    other = other_at(case.path)
    other.have("lock", "new_lock(path, detached=True)")
    other.do("lock.acquire(timeout=0), calls.let_witness_go(lock)")
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.verdict != "dead", f"a living holder is dead: {case.value.evidence}")
        must(case.value.state != "stale", "a living holder is to be robbed")
    must(case.opened == 0, f"{case.opened} handles leaked")
    other.do("lock.check(), lock.release()")


def waits(case: Case, **options: object) -> None:
    """Wait for a lock until its holder lets go of it."""
    other = other_at(case.path)
    other.have("lock", f"new_lock(path, **{options!r})")
    other.do("lock.acquire(timeout=0)")
    lock = new_lock(case.path, **options)
    case.waits(lock, lambda: other.do("lock.release(), native.drain_pool()"))
    case.holds_or_nothing(lock)
    case.lets_go(lock)


@operation(long=True)
def wait_for_a_release(case):
    waits(case)


@operation
def wait_in_turn(case):
    waits(case, fair=True)


@operation(long=True)
def wait_for_a_lock_in_place(case):
    waits(case, in_place=True)


@operation(long=True)
def wait_for_a_lock_without_a_witness(case):
    waits(case, detached=True)


@operation(long=True)
def wait_where_nothing_is_told(case):
    calls.refuse("FindFirstChangeNotificationW", windows_calls.NOT_SUPPORTED)
    waits(case)


@operation(long=True)
def wait_where_there_is_no_queue(case):
    calls.refuse("CreateDirectoryW", windows_calls.ACCESS_DENIED)
    waits(case, fair=True)


@operation(long=True)
def wait_behind_another(case):
    first, second = other_at(case.path), other_at(case.path, 1)
    for other in (first, second):
        other.have("lock", "new_lock(path, fair=True)")
    first.do("lock.acquire(timeout=0)")
    second.begin("lock.acquire(timeout=30)", stop_before("WaitForMultipleObjects"))
    lock = new_lock(case.path, fair=True)

    def both() -> None:
        second.resume()
        first.do("lock.release(), native.drain_pool()")
        second.finish()
        second.do("lock.release(), native.drain_pool()")

    case.waits(lock, both)
    case.holds_or_nothing(lock)
    case.lets_go(lock)


@operation(long=True, slow=True)
def wait_for_a_death(case):
    other = other_at(case.path)
    other.do("lock.acquire(timeout=0)")
    lock = new_lock(case.path)
    case.waits(lock, other.kill)
    left = case.error and bytes_at(case.path)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)


@operation(long=True)
def wait_until_the_time_is_over(case):
    other = other_at(case.path)
    other.do("lock.acquire(timeout=0)")
    lock = new_lock(case.path)
    begun = time.monotonic()
    with case.under_fault():
        lock.acquire(timeout=0.02)
    if isinstance(case.error, semlock.LockTimeoutError):
        must(time.monotonic() - begun >= 0.02, "the time was not over")
        case.error = None
    else:
        must(case.is_clear(OSError), "it took a lock that is held")
    must(case.opened == 0, f"{case.opened} handles leaked")
    must(not lock.held, "two hold one lock")
    other.do("lock.release(), native.drain_pool()")
    lock.acquire(timeout=1)
    case.holds(lock)
    case.lets_go(lock)


# ---------------------------------------------------------------- one case after the other


def explain(error: BaseException) -> str:
    """Say what went wrong, and where if it was not the judge who said it."""
    if isinstance(error, BadEndingError):
        return str(error)
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    file = os.path.basename(place.tb_frame.f_code.co_filename)
    return f"{error!r} at {file}:{place.tb_lineno}"


class Sweep:
    """One operation with every fault at every call."""

    def __init__(self, name: str, base: str) -> None:
        self.name = name
        self.operation = OPERATIONS[name]
        self.base = base
        self.cases = 0
        self.problems: dict[str, list[str]] = {}
        self._directories = 0

    def report(self, what: str) -> dict[str, object]:
        """Do it all, and say what came of it."""
        learn_a_dead_record(self.base)
        names = self._attempt("without a fault", None)
        handles = handle_count()
        if names and what == "kills":
            self._kill(names)
        elif names:
            self._fail(names, long=what == "all-errors")
        for other in _others:
            other.close()
        problems = [f"{what}: {', '.join(when)}" for what, when in self.problems.items()]
        return {
            "calls": names,
            "cases": self.cases,
            "problems": problems,
            "leaked": handle_count() - handles,
        }

    def _new_directory(self) -> str:
        # A name of its own for each case: the package remembers where it has been.
        self._directories += 1
        directory = os.path.join(self.base, f"{os.getpid()}-{self._directories}")
        os.mkdir(directory)
        return directory

    def _attempt(self, what: str, fault: Fault | Always | None) -> list[str]:
        """Do it once, in a directory that goes again if nothing is left in it."""
        with open(os.path.join(self.base, "now"), "w", encoding="utf-8") as now:
            now.write(what)  # in case it hangs
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        forget_what_was_before()
        directory = self._new_directory()
        case = Case(directory, fault)
        try:
            case.run(self.operation)
            must(case.error is None or fault is not None, repr(case.error))
            os.rmdir(directory)
        except Exception as error:
            self._problem(what, explain(error))
            for other in _others:
                other.close()
            _others.clear()
        return case.calls

    def _problem(self, what: str, problem: str) -> None:
        problem = re.sub(rf"{re.escape(self.base)}.\d+-\d+", "...", problem)
        self.problems.setdefault(problem.replace(self.base, "..."), []).append(what)

    def _fail(self, names: list[str], *, long: bool) -> None:
        """Do it with one error after the other."""
        errors = MORE_ERRORS if long else ERRORS
        if self.operation.slow:
            errors = {"NO_RESOURCES": windows_calls.NO_RESOURCES}
        for number, name in enumerate(names, 1):
            for error, code in errors.items():
                what = f"call {number} ({name}), {error}"
                self._case(name, error, f"{what} before", Fault(FAIL_BEFORE, "", number, code))
                if not name.startswith(QUESTIONS) and (long or error == "ACCESS_DENIED"):
                    self._case(
                        name, error, f"{what} after", Fault(FAIL_AFTER, "", number, code)
                    )
        for name in sorted(set(names)) if long else ():
            for error, code in errors.items():
                self._case(name, error, f"{name}, {error} always", Always(name, code))

    def _case(self, name: str, error: str, what: str, fault: Fault | Always) -> None:
        left_out = (name, error) in LEFT_OUT or name in LEFT_OUT_OF.get(self.name, ())
        if name not in UNFAILING and not left_out:
            self.cases += 1
            self._attempt(what, fault)

    def _kill(self, names: list[str]) -> None:
        """Kill it at every call, and let a process that was not there clear up."""
        faulthandler.cancel_dump_traceback_later()
        deaths = [(KILL_BEFORE, number) for number in range(1, len(names) + 1)]
        deaths.append((KILL_AFTER, len(names)))
        while deaths:
            victims = [self._victim(*death) for death in deaths[:VICTIMS]]
            for (action, number), victim, directory in victims:
                self.cases += 1
                when = "before" if action == KILL_BEFORE else "after"
                what = f"call {number} ({names[number - 1]}), killed {when}"
                try:
                    ended = victim.wait(4 * PATIENCE)
                    must(
                        ended == windows_calls.KILLED,
                        f"it was not killed, but ended as {ended}",
                    )
                    self._take_over(directory)
                except Exception as error:
                    self._problem(what, explain(error))
            deaths = deaths[VICTIMS:]

    def _victim(self, action: int, number: int):
        directory = self._new_directory()
        code = "import windows_ops; windows_ops.be_killed()"
        process = subprocess.Popen(
            windows_calls.python(code, self.name, directory, str(action), str(number)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
        )
        return (action, number), process, directory

    def _take_over(self, directory: str) -> None:
        """Acquire what a killed process has left, and leave no trace."""
        forget_what_was_before()
        set_grace(0 if self.operation.grace else GRACE)
        path = os.path.join(directory, "the.lock")
        if self.operation.foreign and os.path.lexists(path):
            os.unlink(path)
        lock = semlock.Lock(path)
        lock.acquire(timeout=WAIT)
        lock.check()
        lock.release()
        # Whatever was never finished is old enough to go, and so are others who took part.
        set_grace(0)
        end = time.monotonic() + WAIT
        while True:
            semlock.clean(directory)
            if not os.listdir(directory) or time.monotonic() > end:
                break
            time.sleep(0.01)
        must(not os.listdir(directory), f"clean left {os.listdir(directory)}")
        os.rmdir(directory)


def be_killed() -> None:
    """Do an operation up to the call at which it is killed."""
    name, directory, action, number = sys.argv[1:]
    gc.disable()
    beside = f"{directory}.beside"
    os.mkdir(beside)
    learn_a_dead_record(beside)
    os.rmdir(beside)
    this_process()
    forget_what_was_before()
    case = Case(directory, Fault(int(action), nth=int(number)))
    case.run(OPERATIONS[name])


def forget_what_was_before() -> None:
    """Make a process as good as new."""
    calls.disarm()
    calls.work_as_usual()
    _native.drain_pool()
    _native.forget_pool()
    set_grace(GRACE)


if __name__ == "__main__":
    sys.modules["windows_ops"] = sys.modules["__main__"]
    gc.disable()
    warnings.simplefilter("error")
    this_process()
    print(json.dumps(Sweep(sys.argv[1], sys.argv[2]).report(sys.argv[3])))
