"""Faults on order: the preloaded shim, and processes that stop, fail or die at a chosen call.

``Shim`` drives ``fault/shim.c`` from within a preloaded process.  ``Actor`` is such a process
seen from the test: it does what it is told, one expression after the other, and can be made
to stop, fail or die at one system call of the core.  Nothing here sleeps: a stopped actor
says so before it stops, and every wait ends with a message or the time limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIM_SOURCE = HERE / "fault" / "shim.c"

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


# ---------------------------------------------------------------- building


def compiler() -> list[str]:
    """Give the C compiler's command."""
    return os.environ.get("CC", "cc").split()


def build_shim(directory: Path) -> Path:
    """Compile the shim."""
    made = directory / "shim.so"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*compiler(), *flags, "-o", made, SHIM_SOURCE, "-ldl"], check=True)
    return made


# How each mechanism of the protocol is taken out of a copy of the core: where it stands, what
# takes its place, and how often.
_MECHANISMS = {
    # Changes are made under the guard.
    "guard": (
        "posix/file.c",
        r"\nsemlock_guard\(int fd\)\n\{\n",
        r"\g<0>    if (OUT) return 0;\n",
        1,
    ),
    # On SMB a guard that another process has is EACCES, which is waited for as well.
    "patience": (
        "posix/file.c",
        r"errno != EWOULDBLOCK && errno != EACCES",
        r"errno != EWOULDBLOCK && (OUT || errno != EACCES)",
        1,
    ),
    # On NFS it takes a descriptor that is open for writing.
    "writable": (
        "posix/change.c",
        r"guard == -EBADF && open_exact",
        r"!OUT && \g<0>",
        1,
    ),
    # A release sees to it that the event source of the wait before watches nothing any more.
    "tidy": (
        "common/holding.c",
        r"semlock_events_tidy\(pool\);",
        r"if (!OUT) \g<0>",
        1,
    ),
    # Release, refresh and removal look whether the path still names their file.
    "path": (
        "common/change.c common/holding.c posix/release.c",
        r"( still = (?:guard == SEMLOCK_GUARDED \? 0 : )?)(semlock_still_(?:at|held)\()",
        r"\1OUT ? 1 : \2",
        3,
    ),
    # Removal compares what is there with what was judged.
    "bytes": (
        "common/change.c",
        r"length != judged->length \|\| memcmp",
        r"!OUT && memcmp",
        1,
    ),
    # The core does that when it removes what it has judged itself.
    "record": (
        "common/dead.c",
        r"semlock_read_at\(file, now, LONGEST, 0\) == seen->length",
        r"OUT || \g<0>",
        1,
    ),
    # It looks at the path first, and at the bytes afterwards.
    "order": (
        "common/change.c",
        (
            r"( still =[^;]* semlock_still_at\(place, &file\);\s+outcome =\s+still == 1 \?)"
            r" (compare[^)]*\))"
        ),
        r" int early = OUT ? \2 : 0;\n   \1 OUT ? early : \2",
        1,
    ),
    # It looks whether an unfinished file has been finished meanwhile, and at the time of change.
    "state": (
        "common/change.c posix/change.c",
        r"same_state\(file, judged\)|has_changed\(&now, judged\)",
        r"(OUT ? 0 : \g<0>)",
        2,
    ),
    # A waiter that has had a file watched waits for a removal of it that is under way.
    "barrier": (
        "posix/look.c",
        r"if \(!(semlock_system_exists\(watch->path\))\)",
        r"if (!OUT && !\1)",
        1,
    ),
    # And it watches once more, to see whether that is still the same file.
    "again": (
        "posix/look.c",
        r"again = (semlock_events_watch\([^)]*\));",
        r"again = OUT ? mark : \1;",
        1,
    ),
    # A waiter that was told of something and sees nothing looks again.
    "recheck": (
        "posix/look.c",
        r"waiting->recheck = nanoseconds;",
        r"waiting->recheck = OUT ? 0 : nanoseconds;",
        1,
    ),
    # Who creates in place makes sure that its file is still there before it believes to hold.
    "creator": (
        "posix/create.c",
        r"outcome == 0 \? semlock_still_at\(lock->path, file\) : outcome",
        r"outcome == 0 ? (OUT ? 1 : semlock_still_at(lock->path, file)) : outcome",
        1,
    ),
}

_SWITCH = """
#include <stdlib.h>
static inline int
semlock_without(const char *mechanism)
{
    const char *named = getenv("SEMLOCK_WITHOUT");

    return named != NULL && strstr(named, mechanism) != NULL;
}
"""


def build_crippled(directory: Path) -> Path:
    """Build semlock once more, so that SEMLOCK_WITHOUT takes one mechanism out of it."""
    import semlock

    shutil.copytree(HERE.parent / "csrc", directory / "csrc")
    shutil.copytree(
        Path(semlock.__file__).parent,
        directory / "semlock",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    for name, (files, pattern, replacement, times) in _MECHANISMS.items():
        switched = replacement.replace("OUT", f'semlock_without("{name}")')
        total = 0
        for file in files.split():
            source = directory / "csrc" / file
            text, found = re.subn(pattern, switched, source.read_text(encoding="utf-8"))
            total += found
            if _SWITCH not in text:
                text = re.sub(r'(?m)^#include ".*"\n', rf"\g<0>{_SWITCH}", text, count=1)
            source.write_text(text, encoding="utf-8")
        if total != times:
            raise AssertionError(f"{files} changed: {name!r} is found {total} times there")
    subprocess.run(
        [sys.executable, "csrc/build_ffi.py"],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return directory


def preloaded(shim: Path, **variables: str) -> dict[str, str]:
    """Give the environment of a process that has the shim between its core and the kernel."""
    others = os.environ.get("LD_PRELOAD", "")
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "LD_PRELOAD": f"{others} {shim}".strip(),
        "PYTHONPATH": path,
        **variables,
    }


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
        os.kill(child, signal.SIGKILL)
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


# ---------------------------------------------------------------- seen from the test


class ActorError(Exception):
    """What an actor was told to do has raised; ``kind`` is the type's name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Actor:
    """Another process, with a lock of its own on the same path, that does as it is told.

    Its expressions see what ``act`` puts on the stage: ``lock``, a ``semlock.Lock`` on
    ``path``, first of all.
    """

    def __init__(
        self, shim: Path, path: str, *, package: Path | None = None, without: str = ""
    ) -> None:
        environment = preloaded(shim, SEMLOCK_WITHOUT=without)
        if package is not None:
            environment["PYTHONPATH"] = f"{package}{os.pathsep}{environment['PYTHONPATH']}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import faultlib; faultlib.act()", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Not the checkout: its package has no compiled core unless it was built in place.
            cwd=shim.parent,
        )
        self._unread = b""
        self._stopped = False
        self.calls: list[str] = []

    def do(self, expression: str, *faults: Fault):
        """Do something, and give its value."""
        self._tell(expression, faults)
        return self._answer()

    def have(self, name: str, expression: str) -> None:
        """Give the value of an expression a name on the stage."""
        self._tell(expression, (), name)
        self._answer()

    def begin(self, expression: str, *faults: Fault) -> bool:
        """Begin something, and stop where the faults say so.

        ``False`` if it came to its end without: its value waits for ``finish``.
        """
        self._tell(expression, faults)
        return self._see_it_stop()

    def ask(self, expression: str) -> None:
        """Begin something, and wait for nothing; its value waits for ``finish``."""
        self._tell(expression, ())

    def start(self, expression: str, *faults: Fault) -> bool:
        """Begin something and see it sleep; ``False`` if it stops, dies or ends before."""
        self._tell(expression, faults, tell=True)
        return self.sleeps()

    def sleeps(self) -> bool:
        """See it sleep, after ``start``; ``False`` if it stops, dies or ends before."""
        line = self._line()
        if line == b"asleep":
            return True
        if line:
            self._unread = line + b"\n" + self._unread
        return False

    def stops(self) -> bool:
        """See it stop, after ``start``; ``False`` if it ends or dies before."""
        return self._see_it_stop()

    def resume(self) -> None:
        """Let it go on, and don't wait for what comes of it."""
        self._wake()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def has_word(self) -> bool:
        """Whether it has said something that was not read."""
        return bool(self._unread or select.select([self._process.stdout], [], [], 0)[0])

    @property
    def dead(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def go_on(self) -> bool:
        """Let a stopped actor go on to where it is to stop next; ``False`` as for ``begin``."""
        self._wake()
        return self._see_it_stop()

    def finish(self):
        """Let a stopped actor go on to the end, and give the value."""
        if self._stopped:
            self._wake()
        return self._answer()

    def dies(self, expression: str, *faults: Fault) -> bool:
        """Do something and be killed by a fault; ``False`` if it came to its end without."""
        self._tell(expression, faults)
        line = self._line()
        if line:
            return False
        self._process.wait()
        return True

    def kill(self) -> None:
        """End it as suddenly as the kernel can, stopped or not."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it if it still runs, and leave nothing of it."""
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()

    def _tell(
        self, expression: str, faults: tuple[Fault, ...], name: str = "", *, tell: bool = False
    ) -> None:
        plan = [
            (action, name, nth, error)
            for name, nth, action, error in (fault.what for fault in faults)
        ]
        said = {"name": name, "expression": expression, "faults": plan, "tell": tell}
        order = json.dumps(said) + "\n"
        self._process.stdin.write(order.encode())
        self._process.stdin.flush()

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
                raise AssertionError(f"the actor hangs: no word within {PATIENCE} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                return b""
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _see_it_stop(self) -> bool:
        while (line := self._line()) == b"asleep":
            pass
        if line != b"stopped":
            if line:
                self._unread = line + b"\n" + self._unread
            return False
        # It has said that it is about to stop; the kernel says when it has.
        os.waitpid(self._process.pid, os.WUNTRACED)
        self._stopped = True
        return True

    def _wake(self) -> None:
        self._stopped = False
        os.kill(self._process.pid, signal.SIGCONT)

    def _answer(self):
        while (line := self._line()) == b"asleep":
            pass
        if not line:
            raise AssertionError(f"the actor died: {self._process.wait()}")
        if line == b"stopped":
            raise AssertionError("the actor stopped where it should not")
        answer = json.loads(line)
        self.calls = answer["calls"]
        if "error" in answer:
            raise ActorError(answer["error"], answer["text"])
        return answer["value"]
