"""Processes that stop, fail or die at a chosen call, and the core that they have.

An ``Actor`` does what it is told, one expression after the other, and can be made to stop, fail or
die at one system call of the core.  Nothing here sleeps: a stopped actor says so before it stops,
and every wait ends with a message or the time limit.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from faultlib import PATIENCE, Fault

HERE = Path(__file__).resolve().parent
SHIM_SOURCE = HERE / "fault" / "shim.c"


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
