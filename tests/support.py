"""Python processes on a leash, records of who held what and when, and strikes like Ctrl-C.

``Child`` is a Python process that runs the code it is sent, piece by piece, and answers each
piece with a value or an exception.  A test that waits for it waits for that answer: nothing
here sleeps to be lucky, and every wait ends with a message or with ``TimeoutError``.

``HoldRecord`` is where a process writes when it entered and left a lock, in a file of its
own, and ``overlaps`` is the judge who reads all those files afterwards.

``Strike`` raises ``KeyboardInterrupt`` at one chosen bytecode of semlock's own code.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import dis
import functools
import gc
import os
import pickle
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from types import CodeType, FunctionType

import pytest

import semlock
import users
from semlock._core import capi
from semlock._core.identity import this_process
from semlock._core.records import encode_text
from wine import WINE

if sys.platform == "win32":
    import _winapi
    import ctypes
    import msvcrt

# Two calls of its own for what is one of Windows': other processes write in between.
wine_appends_in_two_steps = pytest.mark.skipif(
    bool(WINE), reason="Wine looks where a file ends, and then writes there"
)

# How a process is killed: Windows has no signals, and TerminateProcess() behind this one.
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)

# What may pass before an answer counts as missing.  Every single step takes milliseconds; a
# machine that is busy with other tests takes longer, and no test waits for this in vain.
PATIENCE = 30.0
# A number that is no process's, of a holder that is none of this one's.
STRANGER = 2**22 + 1
# The name of this machine, as records have it.
HOST = os.environ.get("COMPUTERNAME", "") if sys.platform == "win32" else os.uname().nodename

_HEAD = struct.Struct("=I")

# The child's side.  Its answers have a descriptor of their own, so that whatever the code
# prints goes to the test's captured output and not into the conversation.
# What a child imports is paid for by thousands of them: ast, pickle and traceback cost as much as
# semlock.  All is there before a test takes rights, descriptors or files from the child.
_SERVER = """
import os, struct, sys
from _ast import Expr, Expression
try:
    from _pickle import dumps, loads
except ImportError:  # it is CPython's
    from pickle import dumps, loads

names = {"__name__": "__child__"}
head = struct.Struct("=I")

def serve(commands, answers):
    while True:
        size = commands.read(4)
        if len(size) < 4:
            return
        text = commands.read(head.unpack(size)[0]).decode()
        try:
            tree = compile(text, "<command>", "exec", 0x400)  # no code yet: PyCF_ONLY_AST
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
            exec(compile(tree, "<command>", "exec"), names)
            value = None
            if last is not None:
                value = eval(compile(Expression(last.value), "<command>", "eval"), names)
            answer = dumps((True, value))
        except BaseException as error:
            try:
                import traceback
                text = traceback.format_exc()
            except Exception:  # it may not read sources any more, or has no descriptor for that
                text = repr(error)
            try:
                answer = dumps((False, (error, text)))
                loads(answer)
            except Exception:
                answer = dumps((False, (RuntimeError(repr(error)), text)))
            del error
        answers.write(head.pack(len(answer)) + answer)
        answers.flush()

answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
serve(sys.stdin.buffer, answers)
"""


def chance_of_the_day() -> random.Random:
    """Choose a part of what could be tested: the same all day, so a failure comes again."""
    return random.Random(dt.date.today().toordinal())  # noqa: DTZ011 - any day does


def iso(seconds: float) -> str:
    """Write a time as Node does.  On Windows fromtimestamp() ends with the year 3000."""
    utc = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)  # noqa: DTZ001
    return utc.isoformat(timespec="milliseconds") + "Z"


def wait_until(condition, what: str, timeout: float = PATIENCE) -> None:
    """Wait for something that no event announces, like a change of a process' state."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout} s in vain until {what}")
        time.sleep(0.001)


def readable(stream, timeout: float) -> bool:
    """Tell whether a pipe has something to read, or has ended, within some seconds."""
    if sys.platform != "win32":
        return bool(select.select([stream], [], [], timeout)[0])
    # select() knows sockets only there, and nothing waits for a pipe.
    end = time.monotonic() + timeout
    while True:
        try:
            if _winapi.PeekNamedPipe(msvcrt.get_osfhandle(stream.fileno()), 0)[0]:
                return True
        except BrokenPipeError:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.001)


def share(path, flags: int) -> int:
    """Open a file as ``os.open`` does, so that it may be a held lock on Windows too.

    It is for ``open(path, opener=share)``.  Python's own way of opening shares no deletion
    there, which is refused while a holder has the file open with the right to delete it.
    """
    if sys.platform != "win32":
        return os.open(path, flags)
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.CreateFileW.restype = ctypes.c_void_p
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    rights = 0x40000000 if flags & os.O_WRONLY else 0xC0000000 if writes else 0x80000000
    how = 5 if flags & os.O_TRUNC else 3  # TRUNCATE_EXISTING, OPEN_EXISTING
    handle = kernel.CreateFileW(os.fspath(path), rights, 7, None, how, 0x80, None)
    if handle == ctypes.c_void_p(-1).value:
        raise ctypes.WinError(ctypes.get_last_error())
    return msvcrt.open_osfhandle(handle, flags)


def content_of(path) -> bytes:
    """Read a file that may be a held lock."""
    with open(path, "rb", opener=share) as file:
        return file.read()


def overwrite(path, content: str | bytes) -> None:
    """Write to a file that may be a held lock, as a program does that knows no locks."""
    data = content.encode() if isinstance(content, str) else content
    with open(path, "r+b", opener=share) as file:
        file.truncate(0)
        file.write(data)


def take_away(path) -> None:
    """Remove a file that may be a held lock, so that nothing is at its path any more.

    That is what ``os.unlink()`` does, on Windows too.  Wine leaves the name there until the
    last who has the file open closes it, as test_windows.py shows, so there it is moved first.
    """
    if WINE:
        aside = os.path.join(tempfile.gettempdir(), f"removed-{uuid.uuid4()}")
        os.rename(path, aside)
        path = aside
    os.unlink(path)


def trio_or_skip():
    """Give the module trio, or skip the test where there is none whose loop begins."""
    trio = pytest.importorskip("trio")
    if WINE:
        try:
            trio.run(trio.sleep, 0)
        except OSError as error:
            pytest.skip(f"Wine {WINE} lacks what trio asks of its sockets: {error.winerror}")
    return trio


def _keeps_locked_names() -> bool:
    """Find out whether a file that was removed keeps its name while a part of it is locked."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.CreateFileW.restype = ctypes.c_void_p
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "file")
        Path(path).write_bytes(b"x")
        with open(path, "rb", opener=share) as file:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            handle = ctypes.c_void_p(kernel.CreateFileW(path, 0x10000, 7, None, 3, 0x80, None))
            flags = ctypes.c_uint32(3)  # delete, as POSIX does
            done = kernel.SetFileInformationByHandle(handle, 21, ctypes.byref(flags), 4)
            kernel.CloseHandle(handle)
            return bool(done) and os.path.exists(path)


# Newer Wines do, from when on they know POSIX's way to delete; and a holder has its witness locked.
WINE_KEEPS_LOCKED_NAMES = bool(WINE) and _keeps_locked_names()
wine_keeps_locked_names = pytest.mark.skipif(
    WINE_KEEPS_LOCKED_NAMES, reason="Wine keeps the name of a removed file that is locked"
)


def make_link(link, target) -> None:
    """Make a symbolic link, or skip the test where that can't be done."""
    try:
        os.symlink(target, link)
    except OSError as error:
        if sys.platform != "win32":
            raise
        pytest.skip(f"a privilege is needed for symbolic links: {error}")
    if sys.platform == "win32" and not os.path.islink(link):
        pytest.skip("the system says that it made a symbolic link, and made none")


def state_of(pid: int) -> str:
    """Give the letter of a process' state in /proc; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text[text.rindex(")") + 2]


def children_of(pid: int) -> list[int]:
    """List the children that the main thread of a process has."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(number) for number in text.split()]


def files_open_in(directory: str, pid: int | str = "self") -> list[str]:
    """List what a process has open in a directory, unlinked files too."""
    if sys.platform == "win32":
        pytest.skip("no /proc says which files are open here")
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target.startswith(directory + "/"):
                found.append(f"{number} -> {target}")
    return found


def watched_by(pid: int | str = "self") -> int:
    """Count the files that the event sources of a process watch."""
    if not sys.platform.startswith("linux"):
        pytest.skip("no /proc says what is watched here")
    count = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for number in os.listdir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(FileNotFoundError):
                text = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
                count += text.count("inotify wd:")
    return count


def _suspend(process: subprocess.Popen[bytes], call: str) -> None:
    import ctypes

    status = getattr(ctypes.WinDLL("ntdll"), call)(ctypes.c_void_p(int(process._handle)))
    assert status == 0, f"{call}: {status & 0xFFFFFFFF:#x}"


class Child:
    """A Python process that does what it is told, one piece of code after the other.

    ``wrapper`` is a command that runs the interpreter: ``("unshare", "--pid", "--fork")``.
    ``setup`` is the first piece of code.
    """

    def __init__(
        self, setup: str = "import os, semlock", *, wrapper=(), env=None, options=(), cwd=None
    ):
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, *options, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            # Not in a checkout, whose sources python -c would import instead of what is installed.
            cwd=tempfile.gettempdir(),
        )
        try:
            # Two numbers: the child's own, which another PID namespace may have given, and
            # the one by which it can be signalled from here.
            self.pid = self.run("import os; os.getpid()")
            self.outer_pid = self.process.pid
            while wrapper and (below := children_of(self.outer_pid)):
                self.outer_pid = below[0]
            self.run(setup)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, timeout: float = PATIENCE):
        """Have code executed, and give the value of its last line if that is an expression."""
        self.send(code)
        return self.receive(timeout)

    def send(self, code: str) -> None:
        """Have code executed without waiting for it."""
        data = code.encode()
        self.process.stdin.write(_HEAD.pack(len(data)) + data)
        self.process.stdin.flush()

    def receive(self, timeout: float = PATIENCE):
        """Wait for the answer to the piece of code that was sent first."""
        end = time.monotonic() + timeout
        (size,) = _HEAD.unpack(self._read(_HEAD.size, end))
        done, value = pickle.loads(self._read(size, end))
        if done:
            return value
        error, text = value
        if hasattr(error, "add_note"):
            error.add_note(f"in the child:\n{text}")
        raise error

    def answered(self, timeout: float) -> bool:
        """Tell whether an answer has begun to come."""
        return readable(self.process.stdout, timeout)

    def _read(self, size: int, end: float) -> bytes:
        data = b""
        handle = self.process.stdout.fileno()
        while len(data) < size:
            if not readable(self.process.stdout, max(0.0, end - time.monotonic())):
                raise TimeoutError("the child does not answer")
            more = os.read(handle, size - len(data))
            if not more:
                raise EOFError("the child has ended")
            data += more
        return data

    def stop(self) -> None:
        """Stop it with SIGSTOP, or as a debugger does, and see that it has stopped."""
        if sys.platform == "win32":
            _suspend(self.process, "NtSuspendProcess")
            return
        os.kill(self.outer_pid, signal.SIGSTOP)
        wait_until(lambda: state_of(self.outer_pid) == "T", "the child has stopped")

    def resume(self) -> None:
        """Let it go on."""
        if sys.platform == "win32":
            _suspend(self.process, "NtResumeProcess")
            return
        os.kill(self.outer_pid, signal.SIGCONT)

    def kill(self, *, reap: bool = True) -> None:
        """Kill it with SIGKILL, and see that it is dead; it stays a zombie if not reaped."""
        os.kill(self.outer_pid, KILL)
        # A handle of ours keeps a process there on Windows, whether or not it was waited for.
        if reap or sys.platform == "win32":
            self.process.wait(PATIENCE)
        else:
            wait_until(lambda: state_of(self.outer_pid) in ("Z", ""), "the child is dead")

    def finish(self) -> int:
        """Let it end as programs do, and give its exit code."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Make an end of it, whatever state it is in."""
        if self.process.poll() is None:
            for pid in {getattr(self, "outer_pid", self.process.pid), self.process.pid}:
                with contextlib.suppress(OSError):
                    os.kill(pid, KILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def mounted(tmp_path, kind, options, name="mounted"):
    """Mount a filesystem below a directory; the test is skipped where that is not allowed."""
    where = os.path.join(tmp_path, name)
    os.makedirs(where)
    done = subprocess.run(
        ["mount", "-t", kind, "-o", options, kind, where], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{kind} can't be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


class Taking:
    """A thread that takes a lock by a function, holds it, and lets it go when it is told to."""

    def __init__(self, take, release):
        self._take, self._release = take, release
        self.done = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self):
        self.result = self._take()
        self.done.set()
        self._end.wait(PATIENCE)
        self._release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def in_a_fork(function, timeout: float = PATIENCE):
    """Run a function in a forked child that leaves by ``os._exit``, and give its value."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = (True, function())
            except BaseException as error:
                answer = (False, repr(error))
            os.write(writer, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    end = time.monotonic() + timeout
    try:
        while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            more = os.read(reader, 65536)
            if not more:
                break
            data += more
        else:
            raise TimeoutError("the forked child does not answer")
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    done, value = pickle.loads(data)
    assert done, value
    return value


def as_nobody(function):
    """Run a function in a forked child as a user who may not do everything, and give its value."""

    def run():
        if users.ROOT:
            users.become(users.NOBODY)
        return function()

    return in_a_fork(run)


# To find the modules takes longer than many a test.  Once is enough: what a test takes out of
# sys.modules, it puts back.
_import_all_once = functools.cache(users.import_all)


def set_everywhere(monkeypatch, name: str, value) -> None:
    """Replace what semlock knows by a name, in every module that has it."""
    _import_all_once()
    having = [
        module
        for known, module in list(sys.modules.items())
        if known.partition(".")[0] == "semlock" and name in vars(module)
    ]
    assert having, f"semlock has no {name}"
    for module in having:
        monkeypatch.setattr(module, name, value)


def set_time(monkeypatch, now) -> None:
    """Have a function say what time it is by the calendar."""
    _import_all_once()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "semlock" and callable(vars(module).get("time")):
            monkeypatch.setattr(module, "time", now)
    monkeypatch.setattr(time, "time", now)


class InPlaceLock(semlock.Lock):
    """A lock that is created at its path, as where there are no hard links."""

    __slots__ = ()

    def _compose(self, owner):
        return encode_text(
            owner or this_process(),
            self.tag,
            mode=self._mode,
            durability=capi.DURABILITY[self._durability],
            in_place=True,
            detached=owner is not None,
        )


# One event: its kind, which lock, when, and the number of the hold in its process.  The size
# divides a page, so no write is cut in two by a kill that comes in the middle of it.
_EVENT = struct.Struct("<c7xQQQ")
EVENT_SIZE = _EVENT.size
_ENTER, _LEAVE = b"E", b"L"
_UNINHERITED = os.O_BINARY | os.O_NOINHERIT if sys.platform == "win32" else os.O_CLOEXEC


class HoldRecord:
    """The holds of one process, each event in the file before the process goes on."""

    def __init__(self, file: str) -> None:
        self._handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _UNINHERITED)
        self._count = 0

    def enter(self, which: int) -> int:
        """Write that a lock is held from now on; called after it was acquired."""
        self._count += 1
        event = _EVENT.pack(_ENTER, which, time.monotonic_ns(), self._count)
        os.write(self._handle, event)
        return self._count

    def leave(self, which: int) -> None:
        """Write that a lock was held until now; called before it is released."""
        os.write(self._handle, _EVENT.pack(_LEAVE, which, time.monotonic_ns(), self._count))

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


def read_holds(file: str, killed_at: int | None) -> list[tuple[int, int, int]]:
    """Read one process' holds as (lock, from, until).

    A hold that is open at the end is one in which the process was killed.  It certainly held
    until the instant before the kill was sent, which is ``killed_at``; what came after that
    instant is nothing that could be held against its successor.
    """
    holds = []
    data = Path(file).read_bytes()
    entered = None
    for kind, which, at, _ in _EVENT.iter_unpack(data[: len(data) // EVENT_SIZE * EVENT_SIZE]):
        if kind == _ENTER:
            assert entered is None, f"{file}: entered twice without leaving"
            entered = (which, at)
        else:
            assert entered is not None, f"{file}: left without entering"
            assert entered[0] == which, f"{file}: left another lock than was entered"
            holds.append((which, entered[1], at))
            entered = None
    if entered is not None:
        assert killed_at is not None, f"{file}: ended in a hold without having been killed"
        holds.append((entered[0], entered[1], max(entered[1], killed_at)))
    return holds


def overlaps(holds: list[tuple[int, int, int]]) -> list[str]:
    """Describe every pair of neighbouring holds of one lock that were held at one time."""
    found = []
    last: dict[int, tuple[int, int]] = {}
    for which, begin, end in sorted(holds, key=lambda hold: (hold[0], hold[1])):
        if which in last and begin < last[which][1]:
            found.append(
                f"lock {which} was entered {(last[which][1] - begin) / 1000:.1f} µs "
                "before its last holder left"
            )
        last[which] = (begin, max(end, last.get(which, (0, 0))[1]))
    return found


PACKAGE = os.path.dirname(semlock.__file__)

# A name is imported when it is used first.  No test that counts or interrupts means that.
for _name in semlock.__all__:
    getattr(semlock, _name)

# The interpreter runs signal handlers at the end of these bytecodes and nowhere else.
HANDLERS_RUN_AT = ("CALL", "PRECALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME")


class Strike:
    """Run something and raise ``KeyboardInterrupt`` at its n-th bytecode in semlock's code.

    ``modules`` names the files whose bytecodes count.  Afterwards ``struck`` says whether it
    came to that, ``error`` what semlock raised instead, ``where`` the line, and ``rest`` the
    bytecodes from the one before the strike to the end of the call.
    """

    def __init__(self, at: int, operation, modules: tuple[str, ...] = ("",)) -> None:
        self._left = at
        self._files = tuple(os.path.join(PACKAGE, *name.split("/")) for name in modules)
        assert all(map(os.path.exists, self._files)), modules
        self._thread = threading.get_ident()
        self._last = ""
        self.struck = False
        self.where = ""
        self.rest: list[str] = []
        self.error: BaseException | None = None
        # What other tests left to the garbage collector is destroyed after the operation: a
        # destructor of theirs is not what is struck.
        collects = gc.isenabled()
        gc.disable()
        try:
            with _monitored(self) if hasattr(sys, "monitoring") else _traced(self):
                try:
                    operation()
                except KeyboardInterrupt:
                    self.struck = True
                except semlock.SemlockError as error:
                    self.error = error
        finally:
            forget_handled()
            if collects:
                gc.enable()

    def counts(self, code: CodeType) -> bool:
        """Tell whether this code's bytecodes count."""
        return code.co_filename.startswith(self._files)

    def step(self, frame, offset: int) -> None:
        """Come to a bytecode, and strike if it is its turn."""
        if threading.get_ident() != self._thread:
            return
        name = dis.opname[_bytecode(frame.f_code)[offset]]
        # The NOP where a nested `try` begins belongs to no `try` at all in CPython 3.11, and
        # the NOT_TAKEN of a branch to none in 3.14; no handler runs there either.
        can_strike = name not in ("NOP", "NOT_TAKEN")
        self._left -= can_strike
        if self._left == 0 and can_strike:
            self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            # A handler that runs at the end of the last bytecode strikes here as well.
            self.rest = [self._last, *_what_comes(frame, offset)]
            raise KeyboardInterrupt
        self._last = name


def forget_handled() -> None:
    """Tell CPython that no exception is being handled.

    From 3.11 on it may lose count of them where one is raised between two bytecodes, and then keeps
    the last one, with all that its traceback refers to, until the thread ends.
    """
    if sys.version_info >= (3, 11) and sys.implementation.name == "cpython":
        ctypes.pythonapi.PyErr_SetHandledException(ctypes.py_object(None))


@functools.cache  # every access to co_code makes a copy
def _bytecode(code: CodeType) -> bytes:
    return code.co_code


@contextlib.contextmanager
def _traced(strike: Strike):
    def enter(frame, event, argument):
        if not strike.counts(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return step

    def step(frame, event, argument):
        if event == "opcode":
            strike.step(frame, frame.f_lasti)
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def _monitored(strike: Strike):
    """Do the same from CPython 3.12 on, where bytecodes are traced late or not at all."""
    watch = sys.monitoring
    tool = watch.DEBUGGER_ID
    codes = [code for code in _all_code() if strike.counts(code)]
    watch.use_tool_id(tool, "strike")
    watch.register_callback(
        tool,
        watch.events.INSTRUCTION,
        lambda code, offset: strike.step(sys._getframe(1), offset),
    )
    for code in codes:
        watch.set_local_events(tool, code, watch.events.INSTRUCTION)
    try:
        yield
    finally:
        watch.register_callback(tool, watch.events.INSTRUCTION, None)
        for code in codes:
            watch.set_local_events(tool, code, 0)
        watch.free_tool_id(tool)


@functools.cache
def _all_code() -> list[CodeType]:
    return _code_of(sum(name.startswith("semlock") for name in sys.modules))


@functools.cache
def _code_of(modules: int) -> list[CodeType]:
    """Find all code of semlock, which has so many modules."""
    found = set()
    gc.unfreeze()  # what conftest.py has frozen is not told otherwise
    gc.collect()  # what is garbage would be frozen for ever
    todo = [item.__code__ for item in gc.get_objects() if isinstance(item, FunctionType)]
    gc.freeze()
    while todo:
        code = todo.pop()
        if code.co_filename.startswith(PACKAGE) and code not in found:
            found.add(code)
            todo += [item for item in code.co_consts if isinstance(item, CodeType)]
    return list(found)


def _what_comes(frame, position: int):
    """Name the bytecodes from here to the return, in this frame and its callers here."""
    here = True
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        code = {step.offset: step for step in dis.get_instructions(frame.f_code)}
        later = sorted(offset for offset in code if offset > position)
        step = code[position] if here else code[later[0]]
        while not step.opname.startswith("RETURN"):
            yield step.opname
            goes_to = step.argval if step.opname == "JUMP_FORWARD" else None
            later = sorted(offset for offset in code if offset > step.offset)
            if goes_to is None and not later:
                break
            step = code[later[0] if goes_to is None else goes_to]
        yield step.opname
        frame, here = frame.f_back, False
        position = -1 if frame is None else frame.f_lasti
