"""Faults on order: the preloaded shim, from within its process, and what an actor can do there.

``Shim`` drives ``fault/shim.c``.  ``act`` is what an actor of ``actors`` runs.  Some hundreds of
them start in a run of the tests, so this imports as little as it can.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
import time

FAIL_BEFORE, FAIL_AFTER, KILL_BEFORE, KILL_AFTER, STOP_BEFORE, STOP_AFTER = range(1, 7)
DEAF, DEAF_THEN_STOP = 7, 8
COPY_AFTER = 9

# What may pass before a process counts as hung.  Every single step takes milliseconds.
PATIENCE = 15.0


class Fault:
    """What happens at one call: the nth of that name, or of any, since the fault before."""

    def __init__(self, action: int, name: str = "", nth: int = 1, error: int = 0) -> None:
        self.what = (name, nth, action, error)


class Always:
    """Every call of a name fails with this error, for as long as the operation lasts."""

    def __init__(self, name: str, error: int) -> None:
        self.name = name
        self.error = error


def stop_before(name: str = "", nth: int = 1) -> Fault:
    """Stop before the call is made."""
    return Fault(STOP_BEFORE, name, nth)


def stop_after(name: str = "", nth: int = 1) -> Fault:
    """Stop when the call has been made."""
    return Fault(STOP_AFTER, name, nth)


def die_before(name: str = "", nth: int = 1) -> Fault:
    """Be killed before the call is made."""
    return Fault(KILL_BEFORE, name, nth)


def die_after(name: str = "", nth: int = 1) -> Fault:
    """Be killed when the call has been made."""
    return Fault(KILL_AFTER, name, nth)


def copy_after(name: str = "", nth: int = 1) -> Fault:
    """Have another process hold copies of all descriptors, once the call has been made.

    Like a program between its fork and its exec; ``end_copy`` on the stage ends it.
    """
    return Fault(COPY_AFTER, name, nth)


def deaf(nth: int = 1) -> Fault:
    """Make a watch that tells nothing, as one that is made when all was told already."""
    return Fault(DEAF, "addwatch", nth)


def deaf_then_stop(nth: int = 1) -> Fault:
    """Do the same, and stop."""
    return Fault(DEAF_THEN_STOP, "addwatch", nth)


def fail(error: int, name: str = "", nth: int = 1) -> Fault:
    """Let the call fail: it is not made."""
    return Fault(FAIL_BEFORE, name, nth, error)


# ---------------------------------------------------------------- inside a preloaded process


class Shim:
    """The shim of this process."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(None)
        library.fault_logged.restype = ctypes.c_char_p
        library.fault_skip_sync(1)
        self._asleep: object = None

    def arm(self, *faults: Fault) -> None:
        """Count calls from now on, and let these faults happen, one after the other."""
        for fault in faults:
            name, nth, action, error = fault.what
            self._library.fault_add(name.encode(), nth, action, error)
        self._library.fault_arm()

    def disarm(self) -> list[str]:
        """Stop counting; the names of the calls since."""
        count = self._library.fault_disarm()
        return [self._library.fault_logged(number).decode() for number in range(count)]

    @property
    def happened(self) -> int:
        """How many of the faults have happened since it was armed."""
        return self._library.fault_happened()

    def refuse(self, name: str, error: int) -> None:
        """Let every call of that name fail from now on, as on some filesystem."""
        self._library.fault_refuse(name.encode(), error)

    def refuse_nothing(self) -> None:
        """Let everything work again."""
        self._library.fault_refuse(b"", 0)

    def end_copy(self) -> None:
        """End the process that has copies of this one's descriptors."""
        self._library.fault_end_copy()

    def when_asleep(self, what, *, at_barrier: bool = False) -> None:
        """Have something done whenever the core is about to sleep; ``None`` for nothing.

        ``at_barrier``: also where it waits for a removal that is under way.
        """
        called = ctypes.CFUNCTYPE(None)(what) if what is not None else None
        self._library.fault_when_asleep(called, at_barrier and called is not None)
        self._asleep = called  # which must live as long as it may be called

    def deafen(self) -> None:
        """Let no watch tell anything from now on."""
        self._library.fault_deafen()

    def lock_by_writers(self) -> None:
        """Let flock need a descriptor that is open for writing, as on NFS."""
        self._library.fault_lock_by_writers()

    def tell_asleep(self) -> None:
        """Say so before the core sleeps the next time."""
        self._library.fault_tell_asleep()

    def report_to(self, fd: int) -> None:
        """Say so on this descriptor before the process stops."""
        self._library.fault_report_to(fd)


def set_grace(seconds: float) -> None:
    """Say how long an unfinished file must have been left alone."""
    _set_everywhere("GRACE", seconds)


def set_patience(seconds: float) -> None:
    """Say how long a process that keeps the guard is waited for."""
    _set_everywhere("GUARD_PATIENCE", seconds)


def set_safety(seconds: float) -> None:
    """Say how often a waiter and a set of locks look for themselves, whatever is reported."""
    from semlock._core import capi
    from semlock._locks import candidates

    capi.set_safety(seconds)
    candidates._ROUND = int(seconds * 1e9)
    _set_everywhere("_SAFETY", seconds)


def take(lock, timeout: float | None) -> bool:
    """Wait for a lock; ``False`` if it was not had before the last look, when time is over."""
    import semlock

    begin = time.monotonic()
    try:
        lock.acquire(timeout=timeout)
    except semlock.LockTimeoutError:
        return False
    return timeout is None or time.monotonic() - begin < timeout


_holders: list[tuple[int, int, int]] = []


def raise_holder(path: str, form: str = "fresh") -> int:
    """Have a child of this process hold a lock: its number."""
    asked, ask = os.pipe()
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ask)
            lock = new_lock(path, in_place=form == "in place", detached=form == "unwitnessed")
            if form == "kept":
                keep_a_claim(path)
            lock.acquire(timeout=0)
            os.write(answer, b".")
            if os.read(asked, 1):
                lock.release()
                # What it keeps goes with it, before it says so.
                _drain()
                os.write(answer, b".")
        finally:
            os._exit(0)
    os.close(asked)
    os.close(answer)
    if not os.read(answers, 1):
        raise AssertionError("the child could not take the lock")
    _holders.append((child, ask, answers))
    return child


def _drain() -> None:
    from semlock._core import capi

    capi.drain_pool()


def end_holder(*, kill: bool = False) -> None:
    """Have the child that was raised first let go of its lock, or kill it."""
    child, ask, answers = _holders.pop(0)
    if kill:
        os.kill(child, 9)
    else:
        os.write(ask, b".")
        os.read(answers, 1)
    os.close(ask)
    os.waitpid(child, 0)
    os.close(answers)


def drop_witness(lock) -> None:
    """Let go of a lock's witness, of which no event tells."""
    import fcntl
    import struct

    whole = struct.pack("hhqqi", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(lock._native.file.handle, 37, whole)  # F_OFD_SETLK


def name_a_dead_process(lock) -> None:
    """Have a held lock's record name a process that has ended, with as many digits."""
    from semlock._core import capi

    handle = lock._native.file.handle
    record = os.pread(handle, 4096, 0)
    digits = len(str(os.getpid()))
    gone = next(
        pid
        for pid in range(10**digits - 1, 10 ** (digits - 1), -1)
        if capi.probe(pid, 0) == capi.GONE
    )
    os.pwrite(handle, record.replace(b"pid=%d" % os.getpid(), b"pid=%d" % gone, 1), 0)


def watched() -> int:
    """Count the files that the event sources of this process watch."""
    count = 0
    for number in os.listdir("/proc/self/fdinfo"):
        with (
            contextlib.suppress(FileNotFoundError),
            open(f"/proc/self/fdinfo/{number}") as file,
        ):
            count += sum(line.startswith("inotify wd:") for line in file)
    return count


def _set_everywhere(name: str, value: float) -> None:
    modules = [module for key, module in sys.modules.items() if key.startswith("semlock")]
    for module in modules:
        if hasattr(module, name):
            setattr(module, name, value)


def new_lock(path: str, *, in_place: bool = False, detached: bool = False, **options):
    """Make a lock, also in the forms that the public class doesn't offer."""
    import semlock
    from semlock._core import capi
    from semlock._core.identity import this_process
    from semlock._core.records import encode_text

    lock = semlock.Lock(path, **options)
    if in_place or detached:
        lock._record = encode_text(
            this_process(),
            lock.tag,
            mode=0o644,
            durability=capi.DURABILITY["full"],
            in_place=in_place,
            detached=detached,
        )
        lock._native.record = lock._record.cdata
    return lock


def mark_unfinished(path) -> None:
    """Make a file look as if its creator, who creates it in place, had not finished it."""
    if sys.platform == "win32":
        hidden, system = 2, 4
        # Which is what the core marks it by.
        assert ctypes.windll.kernel32.SetFileAttributesW(os.fspath(path), hidden | system)
    else:
        os.chmod(path, 0o1644)
        os.utime(path)  # the bit was there when it was written last


def keep_a_claim(path: str) -> None:
    """Use the lock until its file is kept between acquisitions."""
    import semlock

    lock = semlock.Lock(path)
    for _ in range(2):
        lock.acquire(timeout=0)
        lock.release()


def forget_bursts() -> None:
    """Forget what earlier operations left in the pool, so that each one makes the same calls.

    No lock seems to have been taken again and again, which depends on the time, and it is not
    known whether the filesystem keeps boot marks.
    """
    from semlock._core import capi

    capi.POOL.ordered = 0

    bursts = capi.ffi.buffer(capi.POOL.bursts)
    bursts[:] = bytes(len(bursts))


def let_go(lock) -> None:
    """Release a lock if it is held, and don't mind if it is lost or can't be released."""
    import semlock

    if lock.held:
        with contextlib.suppress(semlock.LockLostError, semlock.LockTimeoutError):
            lock.release()


def rewrite(path: str, text: bytes) -> None:
    """Replace a record by another one, like a migration."""
    from semlock._core import capi

    capi.rewrite(os.fsencode(path), capi.look(os.fsencode(path)), text)


def rob(path: str, token: str) -> None:
    """Remove the lock with this token from its living holder, and no other."""
    import semlock
    from semlock._core.status import remove_exactly

    found = semlock.status(path)
    if found.info is not None and found.info.token == token:
        with contextlib.suppress(semlock.LockTimeoutError):
            remove_exactly(found, os.fsencode(path), robs=True, patience=0.002)


def in_a_child(work) -> bool:
    """Do something in a forked child, which then ends without letting go of anything.

    ``True`` if it was killed before it had done it.
    """
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def leave_dead_lock(path: str, *, kept: bool = False) -> None:
    """Leave what a process leaves that is killed while it holds the lock."""
    import semlock

    def hold():
        if kept:
            keep_a_claim(path)
        semlock.Lock(path).acquire(timeout=0)

    in_a_child(hold)


def act() -> None:
    """Be an actor: do what comes in, one line each, and answer."""
    import semlock
    from semlock._core import capi
    from semlock._core.identity import this_process

    path = sys.argv[1]
    shim = Shim()
    shim.report_to(1)
    # Who it is, it learns now, so that calls are numbered alike in every actor.
    this_process()

    def removal_under_way() -> None:
        """Remove the lock when the core waits for that, or when it sleeps at the latest."""

        def gone() -> None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

        shim.when_asleep(gone, at_barrier=True)

    stage = {
        "lock": semlock.Lock(path),
        "path": path,
        "directory": os.path.dirname(path),
        "semlock": semlock,
        "native": capi,
        "let_go": let_go,
        "rob": rob,
        "rewrite": rewrite,
        "refuse": shim.refuse,
        "refuse_nothing": shim.refuse_nothing,
        "end_copy": shim.end_copy,
        "set_grace": set_grace,
        "set_patience": set_patience,
        "set_safety": set_safety,
        "take": take,
        "raise_holder": functools.partial(raise_holder, path),
        "end_holder": end_holder,
        "drop_witness": drop_witness,
        "name_a_dead_process": name_a_dead_process,
        "deafen": shim.deafen,
        "lock_by_writers": shim.lock_by_writers,
        "watched": watched,
        "removal_under_way": removal_under_way,
        "new_lock": new_lock,
        "keep_a_claim": keep_a_claim,
        "leave_dead_lock": leave_dead_lock,
        "in_a_child": in_a_child,
        "file_id": lambda: os.stat(path).st_ino,
    }
    for line in sys.stdin:
        order = json.loads(line)
        faults = [Fault(action, *rest) for action, *rest in order["faults"]]
        if order["tell"]:
            shim.tell_asleep()
        shim.arm(*faults)
        try:
            if order["name"]:
                stage[order["name"]] = eval(order["expression"], stage)
                answer = {"value": None}
            else:
                answer = {"value": _plain(eval(order["expression"], stage))}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        answer["calls"] = shim.disarm()
        os.write(1, json.dumps(answer).encode() + b"\n")


def _plain(value: object) -> object:
    """Give what JSON can carry; of anything else only that it is there."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)
