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
import resource
import signal
import stat
import sys
import warnings
from functools import partial

import semlock
from common_ops import (
    acquires,
    checks,
    cleans,
    make_pool_new,
    reclaims,
    refreshes,
    releases,
    removes,
    tries_a_batch,
)
from faultcase import (
    Case,
    Sweep,
    explain,
    learn_dead_record,
    leave_dead,
    must,
    operation,
)
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
from semlock._core import capi
from semlock._core.identity import this_process
from semlock._core.verdicts import GRACE

ERRORS = {
    name: getattr(errno, name)
    for name in ("ENOSPC", "EIO", "EMFILE", "EINTR", "ENOLCK", "EACCES", "EROFS", "ESTALE")
}

# Ends a child that hangs; its default action is to end the process.
_ALARM = signal.SIGALRM

_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)

shim = Shim()


class LinuxCase(Case):
    """A case whose faults happen to the system calls of this process."""

    machine = shim
    hopeless = 0.02
    patience = 2.0

    def count_open(self) -> int:
        """Count the open descriptors of this process, but not what is kept for its next wait."""
        return len(os.listdir("/proc/self/fd")) - sum(
            kept > 0 for kept in capi.POOL.idle_events
        )

    def bytes_at(self, path: str) -> bytes | None:
        """Read a file; ``None`` if there is none."""
        if not os.path.lexists(path):
            return None
        with open(path, "rb") as file:
            return file.read()

    def tells_why(self, error: BaseException) -> None:
        """What is interrupted is no error to tell of."""
        must(
            getattr(error, "errno", None) != errno.EINTR,
            f"an interrupted call must be repeated: {error!r}",
        )

    def is_marked_as_held(self, lock: semlock.Lock) -> None:
        """Its mode is that of a finished lock."""
        mode = os.stat(lock.path).st_mode
        must(
            stat.S_IMODE(mode) == 0o644,
            f"the mode of a held lock is {stat.filemode(mode)}",
        )

    def keeps_a_ticket(self, lock: semlock.Lock) -> bool:
        """Those who stand behind are woken by its end."""
        return lock._native.ticket.handle >= 0

    def can_leave_unfinished(self) -> bool:
        """Whether a creator in place has no way to take back what it began.

        It can't be known that a file, whose making has failed, was made all the same; and what
        can't be looked at or removed stays.  It says itself that it is unfinished, and goes
        after the grace time.
        """
        return self.fails_always("fstat", "lstat", "unlink") or self.fails_once(
            "create", actions=(FAIL_AFTER,)
        )

    def can_leave_a_temporary(self) -> bool:
        """Whether a temporary file can't be removed; it must go when that works again."""
        return self.fails_always("lstat", "unlink") or self.fails_once(
            "unlink", actions=(FAIL_BEFORE,)
        )

    def can_leave_a_queue(self) -> bool:
        """Whether a waiter can't take back its ticket, or doesn't know that it has one.

        No waiter follows a ticket without an owner, and cleaning removes it.
        """
        return (
            self.fails_always("lstat", "unlink", "rmdir", "create", "mkfifo")
            or self.fails_once("lstat", "unlink", "rmdir")
            or self.fails_once("create", "mkfifo", actions=(FAIL_AFTER,))
        )

    def run(self, operation) -> None:
        """Do it all; no file and no descriptor is left when the kept claims are given up."""
        before = self.count_open()
        operation(self)
        capi.drain_pool()
        if self.can_leave_a_temporary() or self.can_leave_a_queue():
            semlock.clean(self.directory)
        must(not self.names, f"left behind: {self.names}")
        leaked = self.count_open() - before
        must(leaked == 0, f"{leaked} descriptors are left open")


# ---------------------------------------------------------------- what others have left


def have_one_die(directory: str) -> None:
    """Have a process die while it holds a lock, and learn its record."""
    path = os.path.join(directory, "template")
    if os.fork() == 0:
        lock = semlock.Lock(path, durability="none")
        lock.acquire(timeout=0)
        os._exit(0)
    os.wait()
    with open(path, "rb") as file:
        learn_dead_record(file.read())
    os.unlink(path)


def leave_dead_and_kept(path: str) -> bytes:
    """Leave a file as a dead process does that kept it for the next time."""
    left = leave_dead(path)
    inode = os.stat(path).st_ino
    os.link(path, os.path.join(os.path.dirname(path), f".semlock-{inode:x}.kept"))
    return left


# ---------------------------------------------------------------- the operations of this system


@operation
def batch_try(case):
    tries_a_batch(case, "abc")


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
def acquire_in_place_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    acquires(case, new_lock(case.path, in_place=True))


@operation(grace=True)
def acquire_where_there_are_no_links(case):
    for name in ("linkfd", "linkat", "link"):
        shim.refuse(name, errno.EPERM)
    acquires(case, new_lock(case.path))


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
def reclaim_of_a_kept_claim(case):
    reclaims(case, leave_dead_and_kept(case.path))


@operation
def reclaim_without_a_guard(case):
    left = leave_dead(case.path)
    shim.refuse("flock", errno.ENOLCK)
    reclaims(case, left)


@operation
def release_by_unlink(case):
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
def release_near_the_descriptor_limit(case):
    limit_descriptors()
    lock = new_lock(case.path)
    lock.acquire(timeout=0)
    releases(case, lock)


@operation
def refresh_without_a_guard(case):
    shim.refuse("flock", errno.ENOLCK)
    refreshes(case, new_lock(case.path))


@operation
def refresh_near_the_descriptor_limit(case):
    limit_descriptors()
    refreshes(case, new_lock(case.path))


@operation
def check_near_the_descriptor_limit(case):
    limit_descriptors()
    checks(case, new_lock(case.path))


@operation
def remove_a_dead_lock(case):
    leave_dead_and_kept(case.path)
    removes(case)


@operation
def remove_without_a_guard(case):
    leave_dead(case.path)
    shim.refuse("flock", errno.ENOLCK)
    removes(case)


@operation
def clean(case):
    leave_dead_and_kept(case.beside("dead.lock"))
    leave_dead(case.beside(".semlock-0123456789abcdef0123456789abcdef.tmp"))
    cleans(case)


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
                    # A waiter says so before it sleeps.
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

    waits(case, Other(use, other.release, capi.drain_pool))


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
    left = case.error and semlock._core.capi.look(os.fsencode(case.path))
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
    case.leaks_nothing()
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


class LinuxSweep(Sweep):
    """One operation with every fault at every call, each in a forked child."""

    def __init__(self, name: str, base: str, errors: list[str]) -> None:
        super().__init__(name, base)
        self.errors = {name: ERRORS[name] for name in errors}
        self._keeps_events = False

    def report(self) -> dict[str, object]:
        """Do it all, and say what came of it."""
        have_one_die(self.base)
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
        return {"calls": calls, "cases": self.cases, "problems": self.all_problems()}

    def _attempt(self, fault: Fault | None) -> dict[str, object]:
        """Do it once, in a directory that goes again if nothing is left in it."""
        forget_what_was_before(keeps_events=self._keeps_events)
        directory = self.new_directory()
        case = LinuxCase(directory, fault)
        case.run(self.operation)
        os.rmdir(directory)
        return {"calls": case.calls, "error": repr(case.error) if case.error else None}

    def _fail(self, faults: dict[str, Fault | Always]) -> None:
        """Do it with one fault after the other."""
        self.cases += len(faults)
        names = list(faults)
        while names:
            outcomes = in_a_child([faults[name] for name in names], self._attempt)
            for name, (outcome, said) in zip(names, outcomes, strict=False):
                if outcome != "fine":
                    self.add_problem(name, said or outcome)
            names = names[len(outcomes) :]

    def _kill(self, calls: list[tuple[int, str]]) -> None:
        """Kill it at every call, and let processes that were not there clear up."""
        left = []
        for number, call in calls:
            for when, action in (("before", KILL_BEFORE), ("after", KILL_AFTER)):
                self.cases += 1
                directory = self.new_directory()
                case = LinuxCase(directory, Fault(action, nth=number))
                ((outcome, _),) = in_a_child([case], lambda case: case.run(self.operation))
                if outcome == "killed":
                    left.append((f"call {number} ({call}), SIGKILL {when}", directory))
                else:
                    self.add_problem(f"call {number} ({call}), {when}", "SIGKILL missed it")
        while left:
            outcomes = in_a_child(
                [directory for _, directory in left], partial(self.take_over, within=1)
            )
            for (what, _), (outcome, said) in zip(left, outcomes, strict=False):
                if outcome != "fine":
                    self.add_problem(what, said or outcome)
            left = left[len(outcomes) :]


def forget_what_was_before(*, keeps_events: bool) -> None:
    """Make a process as good as new.

    It may keep the event sources of its waits, because the kernel takes milliseconds to close
    one: where the operation itself needs none, there is no difference to see.
    """
    make_pool_new()
    pool = capi.POOL
    if not keeps_events:
        for place, kept in enumerate(pool.idle_events):
            if kept > 0:
                os.close(kept - 1)
            if pool.idle_names[place] > 0:
                os.close(pool.idle_names[place] - 1)
            pool.idle_events[place] = pool.idle_marks[place] = pool.idle_names[place] = 0
    capi.POOL.no_link_by_fd = 0
    shim.refuse_nothing()
    set_grace(GRACE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _LIMITS)


if __name__ == "__main__":
    gc.disable()
    os.umask(0o022)
    capi.life()  # what the first call of a program finds out, no case shall
    for order in sys.stdin:
        ((outcome, said),) = in_a_child(
            [json.loads(order)], lambda sweep: LinuxSweep(*sweep).report(), patience=0
        )
        report = said if outcome == "fine" else {"problems": [said or outcome]}
        print(json.dumps(report), flush=True)
