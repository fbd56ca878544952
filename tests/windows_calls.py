"""Faults on order on Windows, without a C compiler: the core's own imports are replaced.

A module calls Windows through a table of addresses that the loader has filled in.  ``Calls``
puts functions of its own into the table of the core, and of no other module, so that each call
can be counted, fail, be the last thing that the process does, or wait there until it is told
to go on.  ``WindowsActor`` is such a process seen from the test, as ``actors.Actor`` is on
Linux; what is told there of stops and waits holds here too.

A call has the name of its function, and where one function does many things also a word for
what it does here: ``CreateFileW new``, ``LockFileEx guard``, ``SetFileInformationByHandle
rename``.  A fault that names ``CreateFileW*`` means all of them.

The core learns an error from GetLastError, and what Python does between the failed call and
that question could change the answer.  So that is replaced too, and answers with what ctypes
has kept for this thread since the call.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

from actors import Actor
from faultlib import (
    FAIL_AFTER,
    FAIL_BEFORE,
    KILL_AFTER,
    KILL_BEFORE,
    PATIENCE,
    STOP_AFTER,
    STOP_BEFORE,
    Fault,
    _plain,
    forget_bursts,
    keep_a_claim,
    let_go,
    new_lock,
    rob,
    set_grace,
    set_patience,
)

HERE = Path(__file__).resolve().parent

ACCESS_DENIED, INVALID_HANDLE, SHARING_VIOLATION = 5, 6, 32
DISK_FULL, NO_RESOURCES, IO_DEVICE = 112, 1450, 1117
NET_UNEXPECTED, NETNAME_DELETED = 59, 64
NOT_SUPPORTED, TOO_MANY_OPEN_FILES = 50, 4

# How a process ends that is killed by a fault.
KILLED = 9

# The bytes that are locked, behind the end of every file; told in windows/locks.c.
WITNESS_BYTE, GUARD_BYTE = 1 << 62, (1 << 62) + 1

_POINTER = struct.calcsize("P")
_INVALID = ctypes.c_void_p(-1).value

_P, _D, _B = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32

# Each function of Windows that the core calls and that can fail: what it gives, what it gives
# when it fails, and what it takes.  Those of the registry give their error.
_REGISTRY = object()
SIGNATURES = {
    "CloseHandle": (_B, 0, _P),
    "CreateDirectoryW": (_B, 0, _P, _P),
    "CreateFileW": (_P, _INVALID, _P, _D, _D, _P, _D, _D, _P),
    "FindClose": (_B, 0, _P),
    "FindCloseChangeNotification": (_B, 0, _P),
    "FindFirstChangeNotificationW": (_P, _INVALID, _P, _B, _D),
    "FindFirstFileExW": (_P, _INVALID, _P, _D, _P, _D, _P, _D),
    "FindFirstFileW": (_P, _INVALID, _P, _P),
    "FindNextChangeNotification": (_B, 0, _P),
    "FindNextFileW": (_B, 0, _P, _P),
    "FlushFileBuffers": (_B, 0, _P),
    "GetComputerNameW": (_B, 0, _P, _P),
    "GetDriveTypeW": (_D, 0, _P),
    "GetFileAttributesW": (_D, 0xFFFFFFFF, _P),
    "GetFileInformationByHandle": (_B, 0, _P, _P),
    "GetFileInformationByHandleEx": (_B, 0, _P, _D, _P, _D),
    "GetFileSizeEx": (_B, 0, _P, _P),
    "GetFileType": (_D, 0, _P),
    "GetFinalPathNameByHandleW": (_D, 0, _P, _P, _D, _D),
    "GetFullPathNameW": (_D, 0, _P, _D, _P, _P),
    "GetProcessId": (_D, 0, _P),
    "GetProcessTimes": (_B, 0, _P, _P, _P, _P, _P),
    "GetVolumeInformationByHandleW": (_B, 0, _P, _P, _D, _P, _P, _P, _P, _D),
    "LockFileEx": (_B, 0, _P, _D, _D, _D, _D, _P),
    "MoveFileExW": (_B, 0, _P, _P, _D),
    "OpenProcess": (_P, None, _D, _B, _D),
    "ReadFile": (_B, 0, _P, _P, _D, _P, _P),
    "RegCloseKey": (_B, _REGISTRY, _P),
    "RegOpenKeyExA": (_B, _REGISTRY, _P, _P, _D, _D, _P),
    "RegQueryValueExA": (_B, _REGISTRY, _P, _P, _P, _P, _P, _P),
    "RemoveDirectoryW": (_B, 0, _P),
    "SetFileInformationByHandle": (_B, 0, _P, _D, _P, _D),
    "Sleep": (None, None, _D),
    "UnlockFileEx": (_B, 0, _P, _D, _D, _D, _P),
    "WaitForMultipleObjects": (_D, 0xFFFFFFFF, _D, _P, _B, _D),
    "WaitForSingleObject": (_D, 0xFFFFFFFF, _P, _D),
    "WriteFile": (_B, 0, _P, _P, _D, _P, _P),
}

# What opens something, and what closes it again.
CLOSED_BY = {
    "CreateFileW": "CloseHandle",
    "FindFirstFileExW": "FindClose",
    "FindFirstFileW": "FindClose",
    "FindFirstChangeNotificationW": "FindCloseChangeNotification",
    "OpenProcess": "CloseHandle",
}
_CLOSERS = set(CLOSED_BY.values())
_SLEEPS = ("Sleep", "WaitForMultipleObjects")

_CREATE_NEW = 1
_DELETE, _GENERIC_READ, _GENERIC_WRITE = 0x10000, 0x80000000, 0x40000000
_FILE_INFORMATION = {
    0: "basic",
    1: "standard",
    3: "rename",
    4: "delete",
    6: "size",
    9: "tag",
    18: "identity",
    21: "delete",
}


def _opening(arguments) -> str:
    rights, disposition = arguments[1], arguments[4]
    if disposition == _CREATE_NEW:
        return "new"
    for right, word in (
        (_DELETE, "delete"),
        (_GENERIC_WRITE, "write"),
        (_GENERIC_READ, "read"),
    ):
        if rights & right:
            return word
    return "look"


def _locking(arguments) -> str:
    place = ctypes.string_at(arguments[-1] + 2 * _POINTER, 8)
    return "guard" if int.from_bytes(place, "little") == GUARD_BYTE else "witness"


_WORDS = {
    "CreateFileW": _opening,
    "GetFileInformationByHandleEx": lambda given: _FILE_INFORMATION.get(given[1], "other"),
    "SetFileInformationByHandle": lambda given: _FILE_INFORMATION.get(given[1], "other"),
    "LockFileEx": _locking,
    "UnlockFileEx": _locking,
}


def _is_meant(wanted: str, name: str) -> bool:
    if wanted.endswith("*"):
        return name.startswith(wanted[:-1])
    return wanted in ("", name)


# ---------------------------------------------------------------- the table of imports


def imports_of(module: int) -> dict[str, int]:
    """Give where a loaded module keeps the address of each function that it imports.

    ``module`` is where it was loaded; the layout is that of every executable of Windows.
    """
    header = module + _read(module + 0x3C, "<I")
    wide = _read(header + 24, "<H") == 0x20B
    table = _read(header + (24 + 112 if wide else 24 + 96) + 8, "<I")
    size, by_number = (8, 1 << 63) if wide else (4, 1 << 31)
    found = {}
    entry = module + table
    while _read(entry + 12, "<I"):
        names = module + (_read(entry, "<I") or _read(entry + 16, "<I"))
        slots = module + _read(entry + 16, "<I")
        while name := _read(names, "<Q" if wide else "<I"):
            if not name & by_number:
                found[ctypes.string_at(module + name + 2).decode("ascii")] = slots
            names += size
            slots += size
        entry += 20
    return found


def _read(address: int, form: str) -> int:
    return struct.unpack(form, ctypes.string_at(address, struct.calcsize(form)))[0]


def core_imports() -> dict[str, int]:
    """Do so for the core."""
    from semlock._core import compiled

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.GetModuleHandleW.restype = _P
    kernel.GetModuleHandleW.argtypes = [ctypes.c_wchar_p]
    module = kernel.GetModuleHandleW(compiled.__file__)
    if not module:
        raise ctypes.WinError(ctypes.get_last_error())
    return imports_of(module)


class Calls:
    """Stands between the core and Windows in this process, as long as that lasts."""

    def __init__(self) -> None:
        self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        self._kernel.TerminateProcess.argtypes = [_P, _D]
        self._kernel.GetCurrentProcess.restype = _P
        self._faults: list[list] = []
        self._rules: list[tuple[str, int]] = []
        self._pretences: dict[str, object] = {}
        self._armed = False
        self._asleep = None
        self.happened = 0
        self.log: list[str] = []
        # What the core has open, and how it got it.
        self.open: dict[int, str] = {}
        # What is done at a stop; ``act`` has it tell and wait.
        self.stop = lambda name: None
        slots = core_imports()
        self._originals: dict[str, object] = {}
        self._replaced = []
        # The core calls Windows at the end of the interpreter too, after this has gone.
        self._before: list[tuple[int, int]] = []
        atexit.register(self._put_back)
        for name, (gives, failure, *takes) in SIGNATURES.items():
            if name in slots:
                prototype = ctypes.WINFUNCTYPE(gives, *takes, use_last_error=True)
                self._originals[name] = prototype(
                    _read(slots[name], "<Q" if _POINTER == 8 else "<I")
                )
                handler = self._handler(name, failure, self._originals[name])
                self._replace(slots[name], ctypes.WINFUNCTYPE(gives, *takes)(handler))
        asked = ctypes.WINFUNCTYPE(_D)(ctypes.get_last_error)
        self._replace(slots["GetLastError"], asked)

    def _replace(self, slot: int, function) -> None:
        self._before.append((slot, _P.from_address(slot).value))
        self._write(slot, ctypes.cast(function, _P).value)
        self._replaced.append(function)  # which must live as long as it may be called

    def _write(self, slot: int, address: int) -> None:
        protect = self._kernel.VirtualProtect
        protect.argtypes = [_P, ctypes.c_size_t, _D, _P]
        before = _D()
        if not protect(slot, _POINTER, 4, ctypes.byref(before)):
            raise ctypes.WinError(ctypes.get_last_error())
        _P.from_address(slot).value = address
        protect(slot, _POINTER, before, ctypes.byref(before))

    def _put_back(self) -> None:
        for slot, address in self._before:
            self._write(slot, address)

    # ------------------------------------------------------------ what is ordered

    def arm(self, *faults: Fault) -> None:
        """Count calls from now on, and let these faults happen, one after the other."""
        self._faults = [list(fault.what) for fault in faults]
        self.happened = 0
        self.log = []
        self._armed = True

    def disarm(self) -> list[str]:
        """Stop counting; the names of the calls since."""
        self._armed = False
        self._faults = []
        return self.log

    def refuse(self, name: str, error: int) -> None:
        """Let every call of that name fail from now on, as on some filesystem."""
        self._rules.append((name, error))

    def refuse_nothing(self) -> None:
        """Let everything work again."""
        self._rules = []

    def work_as_usual(self) -> None:
        """Let all of it be done as ever, but for what spares time."""
        self._rules = []
        self._pretences = {}
        self._asleep = None
        self.skip_sync()

    def pretend(self, name: str, what) -> None:
        """Have calls of that name done by a function of the real call and what it was given."""
        self._pretences[name] = what

    def when_asleep(self, what) -> None:
        """Have something done whenever the core is about to sleep; ``None`` for nothing."""
        self._asleep = what

    # ------------------------------------------------------------ what happens at a call

    def _handler(self, function: str, failure, real):
        """Make what the core calls in place of a function."""
        word_of = _WORDS.get(function)
        sleeps = function in _SLEEPS

        def handler(*arguments):
            name = f"{function} {word_of(arguments)}" if word_of else function
            if sleeps and self._armed and self._asleep is not None:
                self._armed = False
                self._asleep()
                self._armed = True
            action, error = self._enter(name)
            if action == FAIL_BEFORE and function in _CLOSERS:
                action = FAIL_AFTER  # a handle that stays open is no error but a leak
            if action != FAIL_BEFORE:
                result = self._do(function, name, real, arguments)
                if action == KILL_AFTER:
                    self.die()
                if action == STOP_AFTER:
                    kept = ctypes.get_last_error()
                    self.stop(name)
                    ctypes.set_last_error(kept)
                if action != FAIL_AFTER:
                    return result
                if function in CLOSED_BY and result != failure:
                    self._do(CLOSED_BY[function], "", self._closer(function), (result,))
            ctypes.set_last_error(error)
            return error if failure is _REGISTRY else failure

        return handler

    def _closer(self, function: str):
        return self._originals[CLOSED_BY[function]]

    def _do(self, function: str, name: str, real, arguments):
        """Make the call, or what is pretended, and keep account of what is open."""
        if function in _CLOSERS:
            self.open.pop(arguments[0], None)
        pretence = self._pretences.get(name)
        result = pretence(real, *arguments) if pretence else real(*arguments)
        if function in CLOSED_BY and result not in (None, _INVALID):
            self.open[result] = name
        return result

    def _enter(self, name: str) -> tuple[int, int]:
        """Say what is to be done about this call: nothing (0), or one of the actions."""
        action = error = 0
        if self._armed:
            self.log.append(name)
            if self._faults and _is_meant(self._faults[0][0], name):
                fault = self._faults[0]
                fault[1] -= 1
                if fault[1] == 0:
                    _, _, action, error = self._faults.pop(0)
                    self.happened += 1
        if action == KILL_BEFORE:
            self.die()
        if action == STOP_BEFORE:
            self.stop(name)
            action = 0
        if action != FAIL_BEFORE:
            for wanted, refusal in self._rules:
                if _is_meant(wanted, name):
                    return FAIL_BEFORE, refusal
        return action, error

    def die(self) -> None:
        """End this process at once: nothing is given back but by Windows itself."""
        self._kernel.TerminateProcess(self._kernel.GetCurrentProcess(), KILLED)

    def let_witness_go(self, lock) -> None:
        """Let a lock be as one whose witness could not be taken."""
        place = struct.pack("<QQQQ" if _POINTER == 8 else "<IIQI", 0, 0, WITNESS_BYTE, 0)
        handle = lock._native.file.handle
        if not self._originals["UnlockFileEx"](handle, 0, 1, 0, ctypes.c_char_p(place)):
            raise ctypes.WinError(ctypes.get_last_error())

    # ------------------------------------------------------------ mechanisms taken out

    def skip_sync(self) -> None:
        """Let nothing wait for the disk: no test here cuts the power."""
        self.pretend("FlushFileBuffers", lambda real, handle: 1)

    def pretend_guarded(self) -> None:
        """Let the guard seem to be had at once, by everybody."""
        self.pretend("LockFileEx guard", lambda real, *given: 1)
        self.pretend("UnlockFileEx guard", lambda real, *given: 1)

    def pretend_no_witness(self) -> None:
        """Let the witness seem to be free, though it is taken."""
        self.pretend("LockFileEx witness", lambda real, *given: 1)
        self.pretend("UnlockFileEx witness", lambda real, *given: 1)

    def pretend_same_file(self) -> None:
        """Let every file seem to be the same one."""

        def answer(real, handle, kind, room, size):
            ctypes.memset(room, 1, size)
            return 1

        self.pretend("GetFileInformationByHandleEx identity", answer)

    def pretend_same_bytes(self) -> None:
        """Let every file hold what the first one held that was read."""
        first: list[bytes] = []

        def answer(real, handle, room, size, count, place):
            done = real(handle, room, size, count, place)
            length = _D.from_address(count)
            if done and not first and length.value:
                first.append(ctypes.string_at(room, length.value))
            elif done and length.value and length.value == len(first[0]):
                ctypes.memmove(room, first[0], length.value)
            return done

        self.pretend("ReadFile", answer)

    def pretend_no_times(self) -> None:
        """Let no file have a time at which it was changed."""

        def answer(real, handle, kind, room, size):
            done = real(handle, kind, room, size)
            ctypes.memset(room, 0, 32)  # the four times
            return done

        self.pretend("GetFileInformationByHandleEx basic", answer)


def bytes_at(path: str) -> bytes | None:
    """Read a file that may be a held lock, in a way that keeps no program from it; or ``None``."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.CreateFileW.restype = _P
    kernel.CreateFileW.argtypes = [ctypes.c_wchar_p, *SIGNATURES["CreateFileW"][3:]]
    handle = kernel.CreateFileW(path, _GENERIC_READ, 7, None, 3, 0, None)
    if handle == _INVALID:
        error = ctypes.WinError(ctypes.get_last_error())
        if isinstance(error, FileNotFoundError):
            return None
        raise error
    with open(msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY), "rb") as file:
        return file.read()


def file_id(path: str) -> int:
    """Give the number of a file that may be a held lock."""
    from semlock._core import capi

    return capi.look(os.fsencode(path)).identity[1]


def handle_count() -> int:
    """Count what this process has open, of whatever kind."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.GetCurrentProcess.restype = _P
    kernel.GetProcessHandleCount.argtypes = [_P, _P]
    count = _D()
    if not kernel.GetProcessHandleCount(kernel.GetCurrentProcess(), ctypes.byref(count)):
        raise ctypes.WinError(ctypes.get_last_error())
    return count.value


# ---------------------------------------------------------------- inside an actor


def python(code: str, *arguments: str) -> list[str]:
    """Give the command of a Python that can import what is in the directory of the tests.

    An embedded one doesn't look into the environment for that.
    """
    where = f"import sys; sys.path.insert(0, {str(HERE)!r})"
    return [sys.executable, "-c", f"{where}; {code}", *arguments]


# The number of an ended process is known as long as a handle of it is open, and then perhaps not.
_dead: list[subprocess.Popen[bytes]] = []


def leave_dead_lock(path: str, *, kept: bool = False) -> None:
    """Leave what a process leaves that is killed while it holds the lock."""
    code = (
        "import os, faultlib\n"
        f"path = {path!r}\n"
        f"if {kept}: faultlib.keep_a_claim(path)\n"
        "faultlib.new_lock(path).acquire(timeout=0)\n"
        "os._exit(0)"
    )
    process = subprocess.Popen(
        python(f"exec({code!r})"), stdin=subprocess.DEVNULL, cwd=tempfile.gettempdir()
    )
    _dead.append(process)
    assert process.wait() == 0


def act() -> None:
    """Be an actor: do what comes in, one line each, and answer."""
    import semlock
    from semlock._core import capi as native
    from semlock._core import waits
    from semlock._core.identity import this_process
    from semlock._core.status import GUARD_PATIENCE
    from semlock._core.verdicts import GRACE

    answers = os.dup(1)
    os.dup2(2, 1)
    calls = Calls()
    calls.skip_sync()

    def stop(name: str) -> None:
        os.write(answers, b"stopped\n")
        # Nothing but the word to go on comes while it is stopped; without it, its end.
        if sys.stdin.readline() != "go on\n":
            calls.die()

    calls.stop = stop
    # Who it is, it learns now, so that calls are numbered alike in every actor.
    this_process()
    stage = {
        "calls": calls,
        "semlock": semlock,
        "native": native,
        "waits": waits,
        "let_go": let_go,
        "rob": rob,
        "refuse": calls.refuse,
        "set_grace": set_grace,
        "set_patience": set_patience,
        "new_lock": new_lock,
        "keep_a_claim": keep_a_claim,
    }

    def be_at(path: str) -> None:
        stage.update(path=path, directory=os.path.dirname(path), lock=semlock.Lock(path))

    def fresh(path: str) -> None:
        """Be as good as a new process, at another path."""
        calls.work_as_usual()
        native.drain_pool()
        forget_bursts()
        set_grace(GRACE)
        set_patience(GUARD_PATIENCE)
        be_at(path)

    stage.update(be_at=be_at, fresh=fresh, file_id=lambda: file_id(stage["path"]))
    be_at(sys.argv[1])
    while line := sys.stdin.readline():
        order = json.loads(line)
        calls.arm(*(Fault(action, *rest) for action, *rest in order["faults"]))
        try:
            if order["name"]:
                stage[order["name"]] = eval(order["expression"], stage)
                answer = {"value": None}
            else:
                answer = {"value": _plain(eval(order["expression"], stage))}
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        answer["calls"] = calls.disarm()
        os.write(answers, json.dumps(answer).encode() + b"\n")


# ---------------------------------------------------------------- seen from the test


class WindowsActor(Actor):
    """The same on Windows, where a stopped process waits for a word at its standard input."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            python("import windows_calls; windows_calls.act()", path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tempfile.gettempdir(),
        )
        self._unread = b""
        self._stopped = False
        self.calls: list[str] = []
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def stopped(self) -> bool:
        """Whether it stands at a call."""
        return self._stopped

    def _read(self) -> None:
        """Hand on what it says, and at its end an empty line: no one call waits for a pipe."""
        for line in self._process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(b"")

    def _line(self) -> bytes:
        if self._unread:
            line, self._unread = self._unread, b""
            return line
        try:
            return self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"the actor hangs: no word within {PATIENCE} s") from None

    def _see_it_stop(self) -> bool:
        line = self._line()
        self._stopped = line == b"stopped"
        self._unread = b"" if self._stopped else line
        return self._stopped

    def _wake(self) -> None:
        self._stopped = False
        self._process.stdin.write(b"go on\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it if it still runs, and leave nothing of it."""
        self.kill()
        try:
            self._process.stdin.close()
        except OSError:
            pass  # what it will not read any more is not to be written any more
        self._reader.join(PATIENCE)
        self._process.stdout.close()
