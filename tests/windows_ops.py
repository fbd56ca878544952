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
import subprocess
import sys
import tempfile
import time
import warnings

import semlock
import windows_calls
from common_ops import (
    acquires,
    cleans,
    make_pool_new,
    reclaims,
    releases,
    removes,
    tries_a_batch,
)
from faultcase import (
    OPERATIONS,
    BadEndingError,
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
    mark_unfinished,
    new_lock,
    set_grace,
    stop_before,
)
from semlock._core import capi, status
from semlock._core.identity import this_process
from semlock._core.verdicts import GRACE
from windows_calls import Calls, WindowsActor, bytes_at, handle_count
from wine import WINE

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

# Which faults say nothing.  That a name can't be asked because of how others use it is said of
# names that are there, and never of a free one.  A file that was moved by its name has another
# identity under Wine for those who had it open: the number of its volume is gone.
LEFT_OUT = {("GetFileAttributesW", "SHARING_VIOLATION")}
if WINE:
    LEFT_OUT |= {("SetFileInformationByHandle rename", "NOT_SUPPORTED")}

# Where a file can't be deleted as POSIX does it, one that can't be moved aside either keeps its
# name until its holder closes it.
LEFT_OUT_OF = {"remove_by_force": {"SetFileInformationByHandle rename"}} if WINE else {}

# How many are killed at the same time.
VICTIMS = 3

# Within this time a wait must end well.
WAIT = 5.0
# A reader that denies deletion is waited for; that is nothing to be waited for here.
status.GUARD_PATIENCE = 0.01

calls = Calls()
calls.skip_sync()


class WindowsCase(Case):
    """A case whose faults happen to the core's calls of Windows."""

    machine = calls
    hopeless = 0.05
    patience = WAIT

    @contextlib.contextmanager
    def under_fault(self):
        """What is done here is what the fault happens to; then everything works again."""
        with super().under_fault():
            yield
        calls.refuse_nothing()

    def count_open(self) -> int:
        """Count what the core has open."""
        return len(calls.open)

    def bytes_at(self, path: str) -> bytes | None:
        """Read a file that may be a held lock; ``None`` if there is none."""
        return bytes_at(path)

    def tells_why(self, error: BaseException) -> None:
        """What Windows refuses has a number there."""
        if not isinstance(error, semlock.SemlockError):
            must(error.winerror, f"the error has no number of Windows': {error!r}")

    def is_marked_as_held(self, lock: semlock.Lock) -> None:
        """It is not marked as unfinished, and no process can remove it."""
        try:
            semlock.remove(lock.path)
        except semlock.LockHeldError as held:
            must(not held.status.unfinished, "a held lock is marked as unfinished")
        else:
            raise BadEndingError("a living holder was robbed")

    def can_leave_unfinished(self) -> bool:
        """Whether a file stays that can't be removed, or of which no process knows.

        It can't be known that a file, whose making has failed, was made all the same.  It says
        itself that it is unfinished or temporary, and goes after the grace time.
        """
        return self.fails_once("CreateFileW new", actions=(FAIL_AFTER,)) or self._fails(
            "SetFileInformationByHandle delete", "SetFileInformationByHandle rename"
        )

    def can_leave_a_queue(self) -> bool:
        """Whether a waiter can't take back the directory of its queue, with no waiter."""
        return self._fails(
            "RemoveDirectoryW", "CreateDirectoryW", "CreateFileW new", "FindNextFileW"
        )

    def _fails(self, *names: str) -> bool:
        return self.fails_always(*names) or self.fails_once(*names)

    def run(self, operation) -> None:
        """Do it all; no file and no handle is left when the kept claims are given up."""
        before = dict(calls.open)
        operation(self)
        capi.drain_pool()
        if self.can_leave_unfinished() or self.can_leave_a_queue():
            set_grace(0)
            semlock.clean(self.directory)
        must(not self.names, f"left behind: {self.names}")
        leaked = {handle: name for handle, name in calls.open.items() if handle not in before}
        must(not leaked, f"handles are left open: {sorted(leaked.values())}")


# ---------------------------------------------------------------- what others have left


def have_one_die(directory: str) -> None:
    """Have a process die while it holds a lock, and learn its record."""
    path = os.path.join(directory, "template")
    windows_calls.leave_dead_lock(path)
    learn_dead_record(bytes_at(path))
    os.unlink(path)


# ---------------------------------------------------------------- the operations of this system


@operation(grace=True, long=True)
def acquire_in_place_without_a_guard(case):
    calls.refuse("LockFileEx*", windows_calls.NOT_SUPPORTED)
    acquires(case, new_lock(case.path, in_place=True))


@operation
def batch_try(case):
    tries_a_batch(case, "ab")


@operation(long=True)
def reclaim_of_an_unfinished_lock(case):
    with open(case.path, "xb"):
        pass
    mark_unfinished(case.path)
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


@operation
def remove_a_dead_lock(case):
    leave_dead(case.path)
    removes(case)


@operation
def clean(case):
    leave_dead(case.beside(".semlock-1.kept"))
    cleans(case)


@operation(long=True)
def clean_much(case):
    for name in ("dead.lock", ".semlock-1.kept", f".semlock-{'0123456789abcdef' * 2}.tmp"):
        leave_dead(case.beside(name))
    cleans(case)


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
    case.leaks_nothing()
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
    case.leaks_nothing()
    must(not lock.held, "two hold one lock")
    other.do("lock.release(), native.drain_pool()")
    lock.acquire(timeout=1)
    case.holds(lock)
    case.lets_go(lock)


# ---------------------------------------------------------------- one case after the other


class WindowsSweep(Sweep):
    """One operation with every fault at every call, in this process."""

    def report(self, what: str) -> dict[str, object]:
        """Do it all, and say what came of it."""
        have_one_die(self.base)
        names = self._attempt("without a fault", None)
        handles = handle_count()
        if names and what == "kills":
            self._kill(names)
        elif names:
            self._fail(names, long=what == "all-errors")
        for other in _others:
            other.close()
        return {
            "calls": names,
            "cases": self.cases,
            "problems": self.all_problems(),
            "leaked": handle_count() - handles,
        }

    def _attempt(self, what: str, fault: Fault | Always | None) -> list[str]:
        """Do it once, in a directory that goes again if nothing is left in it."""
        with open(os.path.join(self.base, "now"), "w", encoding="utf-8") as now:
            now.write(what)  # in case it hangs
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        forget_what_was_before()
        directory = self.new_directory()
        case = WindowsCase(directory, fault)
        try:
            case.run(self.operation)
            must(case.error is None or fault is not None, repr(case.error))
            os.rmdir(directory)
        except Exception as error:
            self.add_problem(what, explain(error))
            for other in _others:
                other.close()
            _others.clear()
        return case.calls

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
                    forget_what_was_before()
                    self.take_over(directory, within=WAIT, clean_within=WAIT)
                except Exception as error:
                    self.add_problem(what, explain(error))
            deaths = deaths[VICTIMS:]

    def _victim(self, action: int, number: int):
        directory = self.new_directory()
        code = "import windows_ops; windows_ops.be_killed()"
        process = subprocess.Popen(
            windows_calls.python(code, self.name, directory, str(action), str(number)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
        )
        return (action, number), process, directory


def be_killed() -> None:
    """Do an operation up to the call at which it is killed."""
    name, directory, action, number = sys.argv[1:]
    gc.disable()
    beside = f"{directory}.beside"
    os.mkdir(beside)
    have_one_die(beside)
    os.rmdir(beside)
    this_process()
    forget_what_was_before()
    case = WindowsCase(directory, Fault(int(action), nth=int(number)))
    case.run(OPERATIONS[name])


def forget_what_was_before() -> None:
    """Make a process as good as new."""
    calls.disarm()
    calls.work_as_usual()
    make_pool_new()
    set_grace(GRACE)


if __name__ == "__main__":
    sys.modules["windows_ops"] = sys.modules["__main__"]
    gc.disable()
    warnings.simplefilter("error")
    this_process()
    print(json.dumps(WindowsSweep(sys.argv[1], sys.argv[2]).report(sys.argv[3])))
