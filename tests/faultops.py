"""Every operation of semlock under a fault at every one of its system calls.

Run in a preloaded process, which is told the operations as lines of JSON: a name, an empty
directory and the names of the errors.  A forked child does the operation once to learn its
calls, then once for each call and each fault, in forked children and in a directory of its own
each time, and prints how many cases there were and what was wrong with them.  An operation
judges itself after an error; what a killed one has left is judged by a process that was not
there.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import resource
import signal
import stat
import sys
import warnings

import semlock
from faultlib import (
    FAIL_AFTER,
    FAIL_BEFORE,
    KILL_AFTER,
    KILL_BEFORE,
    PATIENCE,
    Always,
    Fault,
    Shim,
    keep_a_claim,
    new_lock,
    set_grace,
)
from semlock import _native
from semlock._identity import this_process
from semlock._policy import GRACE

ERRORS = {
    name: getattr(errno, name)
    for name in ("ENOSPC", "EIO", "EMFILE", "EINTR", "ENOLCK", "EACCES", "EROFS", "ESTALE")
}

# Ends a child that hangs; its default action is to end the process.
_ALARM = signal.SIGALRM

# So long a wait lasts at most in which one call never works.
HOPELESS = 0.02

# Within this time a wait must end well.  A waiter looks for itself more seldom than that, so
# that none ends well only because of it.
WAIT = 2.0
semlock._waiting._SAFETY = 1000.0

_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)

shim = Shim()


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
        self._descriptors = 0

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
        before = descriptors()
        once = isinstance(self.fault, Fault)
        if isinstance(self.fault, Always):
            shim.refuse(self.fault.name, self.fault.error)
        shim.arm(*([self.fault] if once else []))
        try:
            yield
        except BaseException as error:
            self.error = error
        happened = shim.happened
        self.calls = shim.disarm()
        if isinstance(self.fault, Always):
            shim.refuse_nothing()
        self.opened = descriptors() - before
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
        must(not kinds or isinstance(self.error, kinds), f"unexpected error {self.error!r}")
        must(
            getattr(self.error, "errno", None) != errno.EINTR,
            f"an interrupted call must be repeated: {self.error!r}",
        )
        return True

    def holds(self, lock: semlock.Lock) -> None:
        """The lock is held, its record is whole and its own."""
        must(lock.held, "the object doesn't know that it holds the lock")
        must(os.path.lexists(lock.path), "the lock is held and its file is not there")
        with open(lock.path, "rb") as file:
            content = file.read()
            about = os.fstat(file.fileno())
        # A refresh may or may not have come to writing the time.
        stamps = {lock._native.stamp + later for later in (-1, 0, 1, 2)}
        texts = [lock._text(lock._record, stamp) for stamp in stamps]
        must(content in texts, f"not its own whole record: {content!r}")
        must(
            stat.S_IMODE(about.st_mode) == 0o644,
            f"the mode of a held lock is {stat.filemode(about.st_mode)}",
        )
        lock.check()

    def holds_or_nothing(self, lock: semlock.Lock, *, left: bytes | None = None) -> None:
        """An acquisition ended in a lock that is held, or an error with nothing left.

        ``left`` is what a dead holder had left there, which may still be there.
        """
        if self.error is None:
            self.holds(lock)
            must(self.opened in (-1, 0, 1), f"{self.opened} descriptors for one lock")
            return
        self.is_clear(OSError)
        must(not lock.held, f"held, in spite of {self.error!r}")
        must(self.opened in (-1, 0), f"{self.opened} descriptors leaked with {self.error!r}")
        if os.path.lexists(lock.path):
            with open(lock.path, "rb") as file:
                content = file.read()
            if self.can_leave_unfinished() and semlock.status(lock.path).unfinished:
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

        shim.when_asleep(asleep)
        try:
            with self.under_fault():
                lock.acquire(timeout=HOPELESS if isinstance(self.fault, Always) else WAIT)
        finally:
            shim.when_asleep(None)
        if isinstance(self.fault, Always) and isinstance(self.error, semlock.LockTimeoutError):
            # Nobody can see what he is not allowed to see, however long he waits.
            must(not lock.held, "held, and timed out")
            self.error = None
            shim.refuse_nothing()
            lock._native.look_at = 0
            asleep()
            lock.acquire(timeout=1)
            must(self.opened in (-1, 0), f"{self.opened} descriptors leaked")
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
        must(not os.path.lexists(lock.path), "a released lock's file is still there")

    def can_leave_unfinished(self) -> bool:
        """Whether a creator in place has no way to take back what it began.

        Nobody can know that a file, whose making has failed, was made all the same; and what
        can't be looked at or removed stays.  It says itself that it is unfinished, and goes
        after the grace time.
        """
        if isinstance(self.fault, Always):
            return self.fault.name in ("fstat", "lstat", "unlink")
        if self.fault is None:
            return False
        _, number, action, _ = self.fault.what
        return action == FAIL_AFTER and self.calls[number - 1] == "create"

    def can_leave_a_temporary(self) -> bool:
        """Whether a temporary file can't be removed; it must go when that works again."""
        if isinstance(self.fault, Always):
            return self.fault.name in ("lstat", "unlink")
        if self.fault is None:
            return False
        _, number, action, _ = self.fault.what
        return action == FAIL_BEFORE and self.calls[number - 1] == "unlink"

    def can_leave_a_queue(self) -> bool:
        """Whether a waiter can't take back its ticket, or doesn't know that it has one.

        Nobody waits for a ticket without an owner, and cleaning removes it.
        """
        if isinstance(self.fault, Always):
            return self.fault.name in ("lstat", "unlink", "rmdir", "create")
        if self.fault is None:
            return False
        _, number, action, _ = self.fault.what
        call = self.calls[number - 1]
        return call in ("lstat", "unlink", "rmdir") or (
            call == "create" and action == FAIL_AFTER
        )

    def leaves_nothing(self) -> None:
        """No file and no descriptor is left when the kept claims are given up."""
        _native.drain_pool()
        if self.can_leave_a_temporary() or self.can_leave_a_queue():
            semlock.clean(self.directory)
        must(not self.names, f"left behind: {self.names}")
        leaked = descriptors() - self._descriptors
        must(leaked == 0, f"{leaked} descriptors are left open")

    def run(self, operation) -> None:
        """Do it all."""
        self._descriptors = descriptors()
        operation(self)
        self.leaves_nothing()


def descriptors() -> int:
    """Count the open descriptors of this process, but not what is kept for its next wait."""
    return len(os.listdir("/proc/self/fd")) - sum(kept > 0 for kept in _native.POOL.idle_events)


# ---------------------------------------------------------------- what others have left


_dead_record = b""


def learn_a_dead_record(directory: str) -> None:
    """Get the record of a process that has died while it held a lock."""
    global _dead_record
    path = os.path.join(directory, "template")
    if os.fork() == 0:
        lock = semlock.Lock(path, durability="none")
        lock.acquire(timeout=0)
        os._exit(0)
    os.wait()
    with open(path, "rb") as file:
        _dead_record = file.read()
    os.unlink(path)


def leave_dead(path: str, *, also: str | None = None) -> bytes:
    """Leave a file as a dead process does; ``also`` is a second name for it."""
    with open(path, "xb") as file:
        file.write(_dead_record)
        inode = os.fstat(file.fileno()).st_ino
    if also == "kept":
        os.link(path, os.path.join(os.path.dirname(path), f".semlock-{inode:x}.kept"))
    return _dead_record


# ---------------------------------------------------------------- the operations


OPERATIONS = {}


def operation(function=None, *, grace: bool = False, foreign: bool = False, long: bool = False):
    """Name an operation.

    ``grace``    what a kill leaves is no record yet, and goes after the grace time only
    ``foreign``  the file at the path is another program's, and goes with that program
    ``long``     it is much like another one, and left to the storms
    """

    def name_it(function):
        function.grace = grace
        function.foreign = foreign
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


@operation
def fresh_acquire(case):
    acquires(case, new_lock(case.path))


@operation
def first_acquire_of_a_process(case):
    semlock._process._after_fork_in_child()  # which makes a process as new as it can be
    acquires(case, new_lock(case.path))


@operation
def acquire_with_a_kept_claim(case):
    keep_a_claim(case.path)
    acquires(case, new_lock(case.path))


@operation
def acquire_with_a_kept_claim_and_a_shorter_record(case):
    lock = new_lock(case.path, tag="a long tag")
    for _ in range(2):
        lock.acquire(timeout=0)
        lock.release()
    acquires(case, new_lock(case.path))


@operation
def acquire_where_files_have_names(case):
    shim.refuse("tmpfile", errno.EOPNOTSUPP)
    acquires(case, new_lock(case.path))


@operation
def acquire_without_linking_by_descriptor(case):
    shim.refuse("linkfd", errno.ENOENT)
    acquires(case, new_lock(case.path))


@operation
def acquire_with_a_kept_claim_without_linking_by_descriptor(case):
    shim.refuse("linkfd", errno.ENOENT)
    keep_a_claim(case.path)
    acquires(case, new_lock(case.path))


@operation(grace=True)
def acquire_in_place(case):
    acquires(case, new_lock(case.path, in_place=True))


@operation(grace=True)
def acquire_in_place_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    acquires(case, new_lock(case.path, in_place=True))


@operation(grace=True)
def acquire_where_there_are_no_links(case):
    for name in ("linkfd", "linkat", "link"):
        shim.refuse(name, errno.EPERM)
    acquires(case, new_lock(case.path))


@operation
def acquire_detached(case):
    acquires(case, new_lock(case.path, detached=True))


@operation
def acquire_on_a_remote_filesystem(case):
    shim.refuse("fstatfs", errno.ENOSYS)
    acquires(case, new_lock(case.path))


@operation
def acquire_near_the_descriptor_limit(case):
    limit_descriptors()
    acquires(case, new_lock(case.path))


@operation
def acquire_with_the_last_descriptors_in_kept_claims(case):
    elsewhere = f"{case.directory}.elsewhere"
    os.makedirs(elsewhere, exist_ok=True)
    keep_a_claim(os.path.join(elsewhere, "a.lock"))
    lock = new_lock(case.path)
    with case.under_fault():
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, _LIMITS[1]))
        try:
            lock.acquire(timeout=0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, _LIMITS)
    case.holds_or_nothing(lock)
    case.lets_go(lock)
    semlock.clean(elsewhere)
    os.rmdir(elsewhere)


@operation
def failed_try(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    with case.under_fault():
        case.value = other.try_acquire()
    must(case.is_clear(OSError) or case.value is False, f"{case.value!r} on a held lock")
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    must(not other.held, "two hold one lock")
    case.holds(holder)
    case.lets_go(holder)


@operation
def failed_try_with_a_kept_claim(case):
    keep_a_claim(case.path)
    holder, other = new_lock(case.path, detached=True), new_lock(case.path)
    holder.acquire(timeout=0)
    with case.under_fault():
        case.value = other.try_acquire()
    must(case.is_clear(OSError) or case.value is False, f"{case.value!r} on a held lock")
    must(case.opened in (-1, 0), f"{case.opened} descriptors leaked")
    must(not other.held, "two hold one lock")
    case.holds(holder)
    case.lets_go(holder)


@operation
def failed_try_again(case):
    holder, other = new_lock(case.path), new_lock(case.path)
    holder.acquire(timeout=0)
    other.try_acquire()
    with case.under_fault():
        case.value = other.try_acquire()
    must(case.is_clear(OSError) or case.value is False, f"{case.value!r} on a held lock")
    must(not other.held, "two hold one lock")
    case.holds(holder)
    case.lets_go(holder)


@operation
def batch_try(case):
    held = new_lock(case.beside("b"))
    held.acquire(timeout=0)
    locks = [new_lock(case.beside(name)) for name in "abc"]
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


def reclaims(case: Case, *, also: str | None = None) -> None:
    left = leave_dead(case.path, also=also)
    lock = new_lock(case.path)
    with case.under_fault():
        lock.acquire(timeout=0)
    if isinstance(case.error, semlock.LockTimeoutError):
        # What can't be looked at counts as held.
        with open(case.path, "rb") as file:
            must(file.read() == left, "a lock that can't be looked at was changed")
        case.error = None
        lock._native.look_at = 0
        lock.acquire(timeout=1)
    case.holds_or_nothing(lock, left=left)
    case.lets_go(lock)
    semlock.clean(case.directory)


@operation
def reclaim(case):
    reclaims(case)


@operation
def reclaim_of_a_kept_claim(case):
    reclaims(case, also="kept")


@operation
def reclaim_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    reclaims(case)


@operation
def release_by_unlink(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
def release_that_keeps(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    lock.release()
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
def release_that_keeps_and_sweeps(case):
    leave_dead(case.beside(".semlock-1.kept"))
    leave_dead(case.beside(".semlock-0123456789abcdef0123456789abcdef.tmp"))
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    lock.release()
    lock.acquire(timeout=0)
    releases(case, lock)
    semlock.clean(case.directory)


@operation
def release_of_a_kept_claim(case):
    keep_a_claim(case.path)
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
def release_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)
    semlock.clean(case.directory)


@operation
def release_of_a_kept_claim_without_a_guard(case):
    keep_a_claim(case.path)
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    shim.refuse("flock", errno.ENOLCK)
    releases(case, lock)
    semlock.clean(case.directory)


@operation
def release_in_place(case):
    lock = new_lock(case.path, in_place=True)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
def release_near_the_descriptor_limit(case):
    limit_descriptors()
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
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


def refreshes(case: Case, lock: semlock.Lock) -> None:
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.refresh()
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    case.holds(lock)
    lock.refresh()
    case.holds(lock)
    case.lets_go(lock)


@operation
def refresh(case):
    refreshes(case, new_lock(case.path))


@operation
def refresh_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    refreshes(case, new_lock(case.path))


@operation
def refresh_near_the_descriptor_limit(case):
    limit_descriptors()
    refreshes(case, new_lock(case.path))


def checks(case: Case, lock: semlock.Lock) -> None:
    lock.acquire(timeout=0)
    with case.under_fault():
        lock.check()
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    case.holds(lock)
    case.lets_go(lock)


@operation
def check(case):
    checks(case, new_lock(case.path))


@operation
def check_near_the_descriptor_limit(case):
    limit_descriptors()
    checks(case, new_lock(case.path))


@operation
def status_of_a_held_lock(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state in ("held", "unreadable"), f"a held lock is {case.value.state}")
        must(case.value.verdict != "dead", f"a living holder is dead: {case.value.evidence}")
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    case.holds(lock)
    case.lets_go(lock)


@operation
def status_of_a_dead_lock(case):
    leave_dead(case.path)
    with case.under_fault():
        case.value = semlock.status(case.path)
    if not case.is_clear(OSError):
        must(case.value.state != "free", "a lock that is there is free")
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    semlock.remove(case.path)


def removes(case: Case, path: str, **options: object) -> None:
    with case.under_fault():
        semlock.remove(path, **options)
    if case.is_clear(OSError, semlock.LockHeldError):
        must(os.path.lexists(path), f"it is gone, in spite of {case.error!r}")
        semlock.remove(path, **options)
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    must(not os.path.lexists(path), "what was removed is still there")
    semlock.clean(case.directory)


@operation
def remove_a_dead_lock(case):
    leave_dead(case.path, also="kept")
    removes(case, case.path)


@operation
def remove_by_force(case):
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    removes(case, case.path, force=True)
    try:
        lock.release()
    except semlock.LockLostError:
        pass
    else:
        raise BadEndingError("a robbed holder released without a word")


@operation(foreign=True)
def remove_a_file_that_is_no_record(case):
    with open(case.path, "wb"):
        pass
    removes(case, case.path, force=True)


@operation
def remove_without_a_guard(case):
    leave_dead(case.path)
    shim.refuse("flock", errno.ENOLCK)
    removes(case, case.path)


@operation
def clean(case):
    leave_dead(case.beside("dead.lock"), also="kept")
    leave_dead(case.beside(".semlock-0123456789abcdef0123456789abcdef.tmp"))
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    with case.under_fault():
        semlock.clean(case.directory)
    case.is_clear(OSError)
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    case.holds(lock)
    semlock.clean(case.directory)
    must(case.names == ["the.lock"], f"clean left {case.names}")
    case.lets_go(lock)


@operation
def giving_up_kept_claims(case):
    keep_a_claim(case.path)
    with case.under_fault():
        _native.drain_pool()
    semlock.clean(case.directory)


class Other:
    """Another process that takes part: a forked child that does one step after the other.

    When its parent is killed, it goes through the steps that are left, and ends.
    """

    _open: list[int] = []  # of which the next ones must not keep copies

    def __init__(self, *steps) -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        asked, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        self._alive = True
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.setitimer(signal.ITIMER_REAL, PATIENCE)
                for fd in (*Other._open, self._ask, self._answers):
                    os.close(fd)
                silent = True

                def tell():
                    nonlocal silent
                    if not silent:
                        silent = True
                        with contextlib.suppress(BrokenPipeError):
                            os.write(answer, b".")

                shim.arm()
                shim.when_asleep(tell)
                for step in steps:
                    # Whoever waits says so before it sleeps.
                    silent = False
                    step()
                    tell()
                    os.read(asked, 1)
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answer)
        Other._open += [self._ask, self._answers]
        self.answers()

    def answers(self) -> None:
        """Wait until it has done its step, or sleeps."""
        must(os.read(self._answers, 1), "another process has failed")

    def go_on(self) -> None:
        """Have the next step done."""
        os.write(self._ask, b".")
        self.answers()

    def die(self) -> None:
        """End it in the middle of what it does."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._alive = False

    def end(self) -> None:
        """Let it go on to its end."""
        for fd in (self._ask, self._answers):
            Other._open.remove(fd)
        os.close(self._ask)
        if self._alive:
            os.waitpid(self.pid, 0)
        os.close(self._answers)


def holder(path: str, **options: object) -> Other:
    """Another process that holds the lock, and then lets go of it."""
    lock = new_lock(path, **options)
    return Other(lambda: lock.acquire(timeout=0), lock.release)


def waits(case: Case, other: Other, **options: object) -> None:
    """Wait for a lock until its holder lets go of it."""
    lock = new_lock(case.path, **options)
    case.waits(lock, other.go_on)
    other.end()
    case.holds_or_nothing(lock)
    case.lets_go(lock)


@operation(long=True)
def wait_for_a_release(case):
    waits(case, holder(case.path))


@operation(long=True)
def wait_in_turn(case):
    waits(case, holder(case.path), fair=True)


@operation(long=True)
def wait_for_the_release_of_a_kept_claim(case):
    other = new_lock(case.path)

    def use():
        keep_a_claim(case.path)
        other.acquire(timeout=0)

    waits(case, Other(use, other.release, _native.drain_pool))


@operation(long=True)
def wait_for_a_lock_in_place(case):
    waits(case, holder(case.path, in_place=True))


@operation(long=True)
def wait_for_a_lock_without_a_witness(case):
    waits(case, holder(case.path, detached=True))


@operation(long=True)
def wait_where_there_are_no_events(case):
    shim.refuse("inotify", errno.EMFILE)
    waits(case, holder(case.path))


@operation(long=True)
def wait_where_there_is_no_queue(case):
    shim.refuse("mkdir", errno.EACCES)
    waits(case, holder(case.path))


@operation
def wait_behind_another(case):
    first = holder(case.path)
    lock = new_lock(case.path)
    second = Other(lambda: lock.acquire(timeout=PATIENCE), lock.release)
    mine = new_lock(case.path)

    def both():
        first.go_on()
        # It has said that it sleeps; now it says that it has the lock.
        second.go_on()

    case.waits(mine, both)
    first.end()
    second.end()
    case.holds_or_nothing(mine)
    case.lets_go(mine)


@operation
def wait_for_a_death(case):
    other = holder(case.path)
    lock = new_lock(case.path)
    case.waits(lock, other.die)
    other.end()
    left = case.error and semlock._native.look(os.fsencode(case.path))
    case.holds_or_nothing(lock, left=left.content if left else None)
    case.lets_go(lock)


@operation(long=True)
def wait_until_the_time_is_over(case):
    other = holder(case.path)
    lock = new_lock(case.path)
    with case.under_fault():
        lock.acquire(timeout=0.01)
    if isinstance(case.error, semlock.LockTimeoutError):
        case.error = None
    else:
        must(case.is_clear(OSError), "it took a lock that is held")
    must(case.opened == 0, f"{case.opened} descriptors leaked")
    must(not lock.held, "two hold one lock")
    other.go_on()
    other.end()
    lock.acquire(timeout=1)
    case.holds(lock)
    case.lets_go(lock)


def limit_descriptors() -> None:
    """Leave so few descriptors that new locks give up theirs."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))


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


def in_a_child(items, work, *, patience: float = PATIENCE) -> list[tuple[str, object]]:
    """Do something with each item in one forked child, up to the first that goes wrong.

    For each item that was begun: ``("fine", value)``, ``("wrong", problem)``, or what became
    of the child, ``("hung", None)`` or ``("killed", None)``.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            warnings.simplefilter("error")
            this_process()
            for item in items:
                signal.setitimer(signal.ITIMER_REAL, patience)
                try:
                    said = ("fine", work(item))
                except BaseException as error:
                    said = ("wrong", explain(error))
                os.write(write_end, json.dumps(said).encode() + b"\n")
                if said[0] == "wrong":
                    break
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        outcomes = [tuple(json.loads(line)) for line in pipe]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        outcomes.append(("hung" if os.WTERMSIG(status) == _ALARM else "killed", None))
    return outcomes


class Sweep:
    """One operation with every fault at every call."""

    def __init__(self, name: str, base: str, errors: list[str]) -> None:
        self.name = name
        self.operation = OPERATIONS[name]
        self.base = base
        self.errors = {name: ERRORS[name] for name in errors}
        self.cases = 0
        self._keeps_events = False
        self.problems: dict[str, list[str]] = {}
        self._directories = 0

    def report(self) -> dict[str, object]:
        """Do it all, and say what came of it."""
        learn_a_dead_record(self.base)
        calls: list[str] = []
        ((outcome, said),) = in_a_child([None], self._attempt)
        if outcome != "fine" or said["error"]:
            self.problems[f"without a fault: {said}"] = [outcome]
        else:
            calls = said["calls"]
            self._keeps_events = "inotify" not in calls
        self._kill([*enumerate(calls, 1)])
        for number, call in enumerate(calls, 1):
            faults = {
                f"call {number} ({call}), {name} {when}": Fault(action, "", number, error)
                for when, action in (("before", FAIL_BEFORE), ("after", FAIL_AFTER))
                for name, error in self.errors.items()
            }
            self._fail(faults)
        for call in sorted(set(calls)):
            # What is interrupted is repeated, for ever if need be.
            self._fail(
                {
                    f"{call}, {name} always": Always(call, error)
                    for name, error in self.errors.items()
                    if name != "EINTR"
                }
            )
        problems = [f"{what}: {', '.join(when)}" for what, when in self.problems.items()]
        return {"calls": calls, "cases": self.cases, "problems": problems}

    def _new_directory(self) -> str:
        # A name of its own for each case: the package remembers where it has been.
        self._directories += 1
        directory = os.path.join(self.base, f"{os.getpid()}-{self._directories}")
        os.mkdir(directory)
        return directory

    def _attempt(self, fault: Fault | None) -> dict[str, object]:
        """Do it once, in a directory that goes again if nothing is left in it."""
        forget_what_was_before(keeps_events=self._keeps_events)
        directory = self._new_directory()
        case = Case(directory, fault)
        case.run(self.operation)
        os.rmdir(directory)
        return {"calls": case.calls, "error": repr(case.error) if case.error else None}

    def _problem(self, what: str, problem: str) -> None:
        problem = re.sub(rf"{re.escape(self.base)}/\d+-\d+", "...", problem)
        self.problems.setdefault(problem, []).append(what)

    def _fail(self, faults: dict[str, Fault | Always]) -> None:
        """Do it with one fault after the other."""
        self.cases += len(faults)
        names = list(faults)
        while names:
            outcomes = in_a_child([faults[name] for name in names], self._attempt)
            for name, (outcome, said) in zip(names, outcomes, strict=False):
                if outcome != "fine":
                    self._problem(name, said or outcome)
            names = names[len(outcomes) :]

    def _kill(self, calls: list[tuple[int, str]]) -> None:
        """Kill it at every call, and let processes that were not there clear up."""
        left = []
        for number, call in calls:
            for when, action in (("before", KILL_BEFORE), ("after", KILL_AFTER)):
                self.cases += 1
                directory = self._new_directory()
                case = Case(directory, Fault(action, nth=number))
                ((outcome, _),) = in_a_child([case], lambda case: case.run(self.operation))
                if outcome == "killed":
                    left.append((f"call {number} ({call}), SIGKILL {when}", directory))
                else:
                    self._problem(f"call {number} ({call}), {when}", "SIGKILL missed it")
        while left:
            outcomes = in_a_child([directory for _, directory in left], self._take_over)
            for (what, _), (outcome, said) in zip(left, outcomes, strict=False):
                if outcome != "fine":
                    self._problem(what, said or outcome)
            left = left[len(outcomes) :]

    def _take_over(self, directory: str) -> None:
        """Acquire what a killed process has left, within a second, and leave no trace."""
        set_grace(0 if self.operation.grace else GRACE)
        path = os.path.join(directory, "the.lock")
        if self.operation.foreign and os.path.lexists(path):
            os.unlink(path)
        lock = semlock.Lock(path)
        lock.acquire(timeout=1)
        lock.check()
        lock.release()
        # Whatever was never finished is old enough to go.
        set_grace(0)
        semlock.clean(directory)
        must(not os.listdir(directory), f"clean left {os.listdir(directory)}")
        os.rmdir(directory)


def forget_bursts() -> None:
    """Let no lock seem to have been taken again and again, which depends on the time."""
    bursts = _native.ffi.buffer(_native.POOL.bursts)
    bursts[:] = bytes(len(bursts))


def forget_what_was_before(*, keeps_events: bool) -> None:
    """Make a process as good as new.

    It may keep the event sources of its waits, because the kernel takes milliseconds to close
    one: where the operation itself needs none, nobody can tell the difference.
    """
    _native.drain_pool()
    pool = _native.POOL
    kept = [list(pool.idle_events), list(pool.idle_marks)]
    if keeps_events:
        pool.idle_events = pool.idle_marks = [0] * len(kept[0])
    _native.forget_pool()
    if keeps_events:
        pool.idle_events, pool.idle_marks = kept
    _native.POOL.no_link_by_fd = 0
    shim.refuse_nothing()
    set_grace(GRACE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _LIMITS)


if __name__ == "__main__":
    gc.disable()
    os.umask(0o022)
    for order in sys.stdin:
        ((outcome, said),) = in_a_child(
            [json.loads(order)], lambda sweep: Sweep(*sweep).report(), patience=0
        )
        report = said if outcome == "fine" else {"problems": [said or outcome]}
        print(json.dumps(report), flush=True)
