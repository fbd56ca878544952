"""One operation with one fault, and what must be true of it afterwards, on every system.

What differs from one system to the other, a ``Case`` there says: ``faultops`` for the system
calls of Linux, ``windows_ops`` for those of Windows.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

import semlock
from faultlib import FAIL_AFTER, FAIL_BEFORE, Always, Fault, forget_bursts, set_grace
from semlock._core import capi
from semlock._core.verdicts import GRACE

# Who waits looks for himself more seldom than a wait may last here, so that none ends well
# only because of it.
semlock._waiting.waiter._SAFETY = 1000.0
semlock._core.capi.set_safety(1000)


class BadEndingError(Exception):
    """Something is not as it must be."""


def must(holds: object, message: str) -> None:
    """Say what is wrong, unless it is right."""
    if not holds:
        raise BadEndingError(message)


def explain(error: BaseException) -> str:
    """Say what went wrong, and where if it was not the judge who said it."""
    if isinstance(error, BadEndingError):
        return str(error)
    place = error.__traceback__
    while place.tb_next is not None:
        place = place.tb_next
    file = os.path.basename(place.tb_frame.f_code.co_filename)
    return f"{error!r} at {file}:{place.tb_lineno}"


class Case:
    """One operation in one directory, with one fault or none.

    A system adds ``machine``, which makes the faults happen, and the methods that only raise
    here.
    """

    machine: object

    # So long a wait lasts at most in which one call never works, and within this time any other
    # must end well.
    hopeless: float
    patience: float

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
        before = self.count_open()
        once = isinstance(self.fault, Fault)
        if isinstance(self.fault, Always):
            self.machine.refuse(self.fault.name, self.fault.error)
        self.machine.arm(*([self.fault] if once else []))
        try:
            yield
        except BaseException as error:
            self.error = error
        happened = self.machine.happened
        self.calls = self.machine.disarm()
        if isinstance(self.fault, Always):
            self.machine.refuse_nothing()
        self.opened = self.count_open() - before
        must(happened or not once, "the operation makes other calls this time")

    # ------------------------------------------------------------ what a system says

    def count_open(self) -> int:
        """Count what the operation could have opened and left open."""
        raise NotImplementedError

    def bytes_at(self, path: str) -> bytes | None:
        """Read a file that may be a held lock; ``None`` if there is none."""
        raise NotImplementedError

    def tells_why(self, error: BaseException) -> None:
        """A clear error has the number that it must have."""
        raise NotImplementedError

    def is_marked_as_held(self, lock: semlock.Lock) -> None:
        """The file of a held lock looks like one to others, whatever is in it."""
        raise NotImplementedError

    def keeps_a_ticket(self, lock: semlock.Lock) -> bool:
        """Whether a held lock has something open besides its file: its ticket."""
        return False

    def can_leave_unfinished(self) -> bool:
        """Whether a lock's file stays that can't be taken back; it says itself what it is."""
        raise NotImplementedError

    # ------------------------------------------------------------ what was the fault

    def fails_always(self, *names: str) -> bool:
        """Whether it is one of these calls that never works."""
        return isinstance(self.fault, Always) and self.fault.name in names

    def fails_once(self, *names: str, actions=(FAIL_BEFORE, FAIL_AFTER)) -> bool:
        """Whether it was one of these calls that failed, in one of these ways."""
        if not isinstance(self.fault, Fault):
            return False
        _, number, action, _ = self.fault.what
        return action in actions and self.calls[number - 1] in names

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
        self.tells_why(self.error)
        return True

    def leaks_nothing(self, *allowed: int) -> None:
        """So many more are open than before the fault: none, if nothing else is said."""
        must(
            self.opened in (allowed or (0,)),
            f"{self.opened} more are open than before, with {self.error!r}",
        )

    def holds(self, lock: semlock.Lock) -> None:
        """The lock is held, its record is whole and its own."""
        must(lock.held, "the object doesn't know that it holds the lock")
        content = self.bytes_at(lock.path)
        must(content is not None, "the lock is held and its file is not there")
        # A refresh may or may not have come to writing the time.
        stamps = {lock._native.stamp + later for later in (-1, 0, 1, 2)}
        texts = [lock._text(lock._record, stamp) for stamp in stamps]
        must(content in texts, f"not its own whole record: {content!r}")
        self.is_marked_as_held(lock)
        lock.check()

    def holds_or_nothing(self, lock: semlock.Lock, *, left: bytes | None = None) -> None:
        """An acquisition ended in a lock that is held, or an error with nothing left.

        ``left`` is what a dead holder had left there, which may still be there.
        """
        if self.error is None:
            self.holds(lock)
            # A lock that was won by waiting keeps its ticket until it is released, and the name
            # of the file that it waited for.
            kept = int(self.keeps_a_ticket(lock)) + names_kept()
            self.leaks_nothing(-1 + kept, kept, 1 + kept)
            return
        self.is_clear(OSError)
        must(not lock.held, f"held, in spite of {self.error!r}")
        self.leaks_nothing(-1, 0)
        content = self.bytes_at(lock.path)
        if content is not None:
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

        always = isinstance(self.fault, Always)
        self.machine.when_asleep(asleep)
        try:
            with self.under_fault():
                lock.acquire(timeout=self.hopeless if always else self.patience)
        finally:
            self.machine.when_asleep(None)
        if always and isinstance(self.error, semlock.LockTimeoutError):
            # A user can't see what it may not read, however long it waits.
            must(not lock.held, "held, and timed out")
            self.leaks_nothing(-1, 0)
            self.error = None
            self.machine.refuse_nothing()
            lock._native.look_at = 0
            asleep()
            lock.acquire(timeout=1)
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
        must(self.bytes_at(lock.path) is None, "a released lock's file is still there")
        must(names_kept() == 0, "a name that was waited for is kept after the release")


def names_kept() -> int:
    """Count the names of files that were waited for, which are kept open until a release."""
    return sum(name > 0 for name in capi.POOL.idle_names)


# ---------------------------------------------------------------- what others have left


_dead_record = b""


def learn_dead_record(record: bytes) -> None:
    """Say what a process has written that has died while it held a lock."""
    global _dead_record
    _dead_record = record


def leave_dead(path: str) -> bytes:
    """Leave a file as a dead process does."""
    with open(path, "xb") as file:
        file.write(_dead_record)
    return _dead_record


# ---------------------------------------------------------------- naming operations


OPERATIONS = {}


def operation(
    function=None,
    *,
    grace: bool = False,
    foreign: bool = False,
    long: bool = False,
    costly: bool = False,
    kills: bool = False,
    slow: bool = False,
):
    """Name an operation.

    ``grace``    what a kill leaves is no record yet, and goes after the grace time only
    ``foreign``  the file at the path is another program's, and goes with that program
    ``long``     it is much like another one, and left to the long runs

    On Windows, where every case takes longer:

    ``costly``   so is this one
    ``kills``    who is killed in it is not left to the long runs
    ``slow``     each time takes a process, so that one error must do

    The tests read ``long``, ``costly`` and ``kills`` from the source.
    """

    def name_it(function):
        function.grace = grace
        function.foreign = foreign
        function.slow = slow
        OPERATIONS[function.__name__] = function
        return function

    return name_it if function is None else name_it(function)


# ---------------------------------------------------------------- one case after the other


class Sweep:
    """One operation with every fault at every call."""

    def __init__(self, name: str, base: str) -> None:
        self.name = name
        self.operation = OPERATIONS[name]
        self.base = base
        self.cases = 0
        self.problems: dict[str, list[str]] = {}
        self._directories = 0

    def new_directory(self) -> str:
        """Make a directory for one case."""
        # A name of its own for each: the package remembers where it has been.
        self._directories += 1
        directory = os.path.join(self.base, f"{os.getpid()}-{self._directories}")
        os.mkdir(directory)
        return directory

    def add_problem(self, what: str, problem: str) -> None:
        """Keep what was wrong with a case; the same that is wrong with others stands once."""
        problem = re.sub(rf"{re.escape(self.base)}.\d+-\d+", "...", problem)
        self.problems.setdefault(problem.replace(self.base, "..."), []).append(what)

    def all_problems(self) -> list[str]:
        """Say each problem once, and in which cases it was."""
        return [f"{what}: {', '.join(when)}" for what, when in self.problems.items()]

    def take_over(self, directory: str, *, within: float, clean_within: float = 0) -> None:
        """Acquire within some seconds what a killed process has left, and leave no trace.

        ``clean_within`` is what may pass until others who took part have ended.
        """
        set_grace(0 if self.operation.grace else GRACE)
        path = os.path.join(directory, "the.lock")
        if self.operation.foreign and os.path.lexists(path):
            os.unlink(path)
        lock = semlock.Lock(path)
        lock.acquire(timeout=within)
        lock.check()
        lock.release()
        # Whatever was never finished is old enough to go.
        set_grace(0)
        end = time.monotonic() + clean_within
        semlock.clean(directory)
        while os.listdir(directory) and time.monotonic() < end:
            time.sleep(0.01)
            semlock.clean(directory)
        must(not os.listdir(directory), f"clean left {os.listdir(directory)}")
        os.rmdir(directory)
