"""Who owns the lock that ``try`` or ``acquire`` takes: a process that outlives the command.

That is semlock's caller, unless the caller ends right after semlock: a program such as
``timeout`` or ``sudo``, a shell that was started for this command alone, or a shell's copy of
itself for ``$(...)`` or a part of a pipeline.  Such a caller is passed over, and its own caller
examined in the same way. If no lasting process is found, the lock is refused.

A shell's copy is passed over only if the original waits for it (``shells.py``); if that is
unknown, the lock is refused.  ``release`` and ``refresh`` find the owner in the same way, so the
same line of a script finds the same process.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Programs that run another one, wait for it, and then end.  Most also show by their last words,
# which are ours; those that exec the other program (env, nice) are seldom seen.
_WRAPPERS = _words(
    """
    bwrap caffeinate capsh chpst chroot chrt cpulimit dbus-run-session doas entr env fakechroot
    faketime find firejail flock gdb git gosu gtime gtimeout ionice linux32 linux64 ltrace nice
    nohup nsenter numactl parallel perf pkexec prlimit proot rr runcon runuser script setarch
    setpriv setsid setuidgid sg softlimit sshpass stdbuf strace su su-exec su-rs sudo sudo-rs
    systemd-run taskset time timeout unshare valgrind watch xargs
    """
)

# Programs that run others for ever, or that run each command separately: a lock of theirs would
# never end, or end at once.
_NO_OWNERS = _words(
    """
    init systemd launchd tini tini-static dumb-init docker-init catatonit s6-svscan s6-supervise
    runsv runsvdir openrc-init sshd sshd-session dropbear cron crond anacron atd fcron login
    agetty getty inetd xinetd containerd-shim containerd-shim-runc-v2 conmon dockerd containerd
    tmux screen SCREEN xterm gnome-terminal-server konsole wezterm-gui alacritty kitty
    systemd-executor make gmake bmake ninja samu just
    """
)

_SHELLS = _words("sh bash dash zsh ksh ksh93 mksh ash yash posh fish rbash")

# Programs whose second word names the script.
_INTERPRETERS = ("python", "pypy", "perl", "ruby", "node", "expect", "tclsh")

_TAKING = frozenset(("acquire", "try"))
_DEEPEST = 64  # how many callers are examined


class _Seen:
    """A process as other processes see it.

    ``layout`` is its memory layout: a fork has that of the original.  ``group`` is its process
    group, ``front`` the foreground group of its terminal, if any.
    """

    __slots__ = ("argv", "comm", "front", "group", "layout", "parent", "pid")

    def __init__(self, pid: int, parent: int, argv: list[str], comm: str) -> None:
        self.pid = pid
        self.parent = parent
        self.argv = argv
        self.comm = comm
        self.layout: tuple[str, ...] = ()
        self.group = self.front = 0

    @property
    def program(self) -> str:
        """The name of its program, without the directory."""
        title = self.argv[0].partition(": ")[0] if self.argv else ""
        return os.path.basename(title.removeprefix("-")) or self.comm

    @property
    def names(self) -> set[str]:
        """All names of its program; a script is known by its interpreter only.

        Scripts may have any name; one that runs another program and then ends is recognised by
        its arguments.
        """
        found = {self.program}
        if self.program == "busybox" and len(self.argv) > 1:
            found.add(self.argv[1])
        elif not self.interprets:
            found.add(self.comm.split(":")[0].strip("()"))
        elif os.path.basename(self.argv[1] if len(self.argv) > 1 else "") == "parallel":
            found.add("parallel")
        return found

    @property
    def interprets(self) -> bool:
        """Whether it is an interpreter of scripts."""
        return self.program.startswith(_INTERPRETERS) or self.program in _SHELLS

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell; a busybox shell is known by its first argument."""
        return bool(self.names & _SHELLS)


def owner_name(pid: int) -> str:
    """Give the name of a process's program; empty if that is invisible."""
    seen = _look(pid)
    return "" if seen is None else seen.program


def callers() -> list[int]:
    """Give the processes above this one, the nearest first, as far as they are visible."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 1 and len(found) < _DEEPEST:
        found.append(pid)
        seen = None if sys.platform == "win32" else _look(pid)
        if seen is None:
            break
        pid = seen.parent
    return found


def way() -> list[int]:
    """Give the callers that are passed over, and the owner as the last.

    ``ValueError`` if there is no lasting process.
    """
    pid = os.getppid()
    found: list[int] = []
    passed: list[str] = []
    if sys.platform == "win32" or (pid > 0 and not _sees_processes()):
        return [pid]
    for _ in range(_DEEPEST):
        seen = _look(pid)
        if pid < 1 or seen is None:
            raise _refusal("what called it can't be seen from here", passed)
        if seen.names & _NO_OWNERS:
            raise _refusal(
                f"process {pid} ({seen.program}) is none that a script runs in", passed
            )
        if pid == 1 and not (seen.is_shell or seen.interprets):
            raise _refusal("its caller has ended already", passed)
        above = _passed_over(seen)
        found.append(pid)
        if above is None:
            return found
        passed.append(f"{pid} ({seen.program})")
        pid = above
    raise _refusal("its callers are too many", passed)


def _passed_over(seen: _Seen) -> int | None:
    """Give the process to examine instead of one that doesn't last; ``None`` if it lasts."""
    if _runs_us_alone(seen.argv) or seen.names & _WRAPPERS or _is_run(seen.argv):
        return seen.parent
    if not seen.is_shell:
        return None
    if _ends_behind_us(seen.argv):
        return seen.parent
    # A copy of a shell lasts as long as the commands in its parentheses, unless it exists for its
    # output or input, or is part of such a copy.
    last = None
    for copy, original in _copies(seen):
        if copy.comm != original.comm and copy.comm in _WRAPPERS:
            return original.pid  # busybox runs find and the like in a copy of its shell
        from semlock._cli.shells import is_awaited, is_piped  # noqa: PLC0415 - for a copy

        piped = is_piped(copy.pid, original.pid)
        awaited = is_awaited(copy, original)
        if awaited is None and piped:
            raise _refusal(
                f"it can't be seen whether process {original.pid} ({original.program}) waits for "
                f"process {copy.pid}, its subshell",
                (),
            )
        if not awaited:
            break
        if piped:
            last = original.pid
    return last


def _copies(seen: _Seen) -> Iterator[tuple[_Seen, _Seen]]:
    """Give each copy of a shell with its original, from the inside out."""
    for _ in range(_DEEPEST):
        original = _look(seen.parent)
        if original is None or not _is_copy(seen, original):
            return
        yield seen, original
        seen = original


def _is_copy(process: _Seen, parent: _Seen) -> bool:
    """Tell whether a process is a fork of its parent that runs the same program."""
    return process.argv == parent.argv and process.layout == parent.layout


def of_pipelines() -> list[int]:
    """List our callers that are parts of pipelines, and the shells of these pipelines.

    Between ``acquire`` and ``release`` a job can be sent to the background and back.
    """
    seen = None if sys.platform == "win32" else _look(os.getppid())
    found: list[int] = []
    if seen is not None and seen.is_shell:
        for copy, original in _copies(seen):
            from semlock._cli.shells import is_piped  # noqa: PLC0415 - for a copy

            if is_piped(copy.pid, original.pid):
                found += copy.pid, original.pid
    return found


def _refusal(reason: str, passed: Sequence[str]) -> ValueError:
    through = f" (through process {', '.join(passed)})" if passed else ""
    return ValueError(
        f"there is no process to take the lock for that goes on when semlock ends: {reason}"
        f"{through}. Name one with --owner-pid, which is --owner-pid $$ in a script, or hold "
        "the lock while a command runs: semlock run LOCK -- COMMAND"
    )


# ---------------------------------------------------------------------- what a process does


def _runs_us_alone(argv: list[str]) -> bool:
    """Tell whether a process was started to run this command: its last arguments are the same."""
    ours = sys.argv[1:]
    count = len(ours)
    if not ours or len(argv) <= count or argv[-count:] != ours:
        return False
    return _names_us(argv[-count - 1])


def _is_run(argv: list[str]) -> bool:
    """Tell whether a process is semlock, which waits for its command as ``flock`` does."""
    rest = argv[1:]
    while rest and rest[0][:1] == "-":
        del rest[0]  # Python's options; of ``-m`` the module is left
    return len(rest) > 1 and _names_us(rest[0]) and rest[1] in ("run", "flock")


def _names_us(word: str) -> bool:
    return os.path.basename(word).removesuffix(".exe") in ("semlock", "semlock.py")


def _ends_behind_us(argv: list[str]) -> bool:
    """Tell whether a shell was given commands of which semlock is the last."""
    from semlock._cli.shells import command_text, commands_of, does_nothing  # noqa: PLC0415 - for shells

    text = command_text(argv)
    if text is None:
        return False
    commands = commands_of(text)
    if commands is None:
        return False
    takes = [_takes(words) for words in commands]
    if True in takes:
        first = takes.index(True)
        rest = commands[first + 1 :]
        if commands[first][0] in ("while", "until") and ["done"] in rest:
            rest = rest[rest.index(["done"]) + 1 :]  # the loop's body comes before its end
        return all(_takes(words) or does_nothing(words) for words in rest)
    # A single command with another name (a function or a variable) is certainly semlock.  Of
    # several one may be a function from another file that acquires; if we don't, the text is of a
    # shell that acquires nothing, which is no owner.
    return len(commands) == 1 or (
        not _TAKING & set(sys.argv[1:])
        and any(_names_us(word) for words in commands for word in words)
    )


def _takes(words: list[str]) -> bool:
    """Tell whether a command acquires, also as one word for ``eval``, ``su -c`` or ``env -S``."""
    return bool(_TAKING & set(words)) or any(
        _TAKING & set(inner) and any(map(_names_us, inner))
        for inner in (word.split() for word in words if " " in word)
    )


# ---------------------------------------------------------------------- what is seen of it


def _look(pid: int) -> _Seen | None:
    if pid < 1 or _is_proc_foreign():
        return None
    if os.path.exists("/proc/self/stat"):
        return _look_in_proc(pid)
    return _look_by_ps(pid)


def _is_proc_foreign() -> bool:
    """Tell whether /proc is of another PID namespace, so that its numbers are other processes'."""
    try:
        return os.readlink("/proc/self") != str(os.getpid())
    except OSError:
        return os.path.lexists("/proc/self")  # of an inner one, where this process is not seen


def _look_in_proc(pid: int) -> _Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = rest.decode("ascii", "replace").split()
    argv = [os.fsdecode(word) for word in line.split(b"\0")[:-1]]
    comm = os.fsdecode(head.partition(b"(")[2])
    seen = _Seen(pid, int(fields[1]), argv, comm)
    # startcode, endcode, startstack, arg_start and env_start, which exec randomizes.
    seen.layout = tuple(fields[index] for index in (23, 24, 25, 45, 47) if index < len(fields))
    seen.group, seen.front = int(fields[2]), int(fields[5])
    return seen


def _look_by_ps(pid: int) -> _Seen | None:
    """Ask ps, on systems without /proc: it doesn't show which spaces separate words."""
    import subprocess  # noqa: PLC0415 - on these systems only

    try:
        done = subprocess.run(
            ["ps", "-ww", "-o", "ppid=", "-o", "args=", "-p", str(pid)],  # noqa: S607
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
    parent, _, line = done.stdout.decode("utf-8", "surrogateescape").strip().partition(" ")
    if done.returncode != 0 or not parent.isdigit():
        return None
    argv = line.split()
    if _COMMAND_OPTION in argv:
        # All further words are one for a shell.
        at = argv.index(_COMMAND_OPTION) + 1
        argv = [*argv[:at], " ".join(argv[at:])]
    return _Seen(pid, int(parent), argv, os.path.basename(argv[0]) if argv else "")


_COMMAND_OPTION = "-c"


def _sees_processes() -> bool:
    """Tell whether processes are visible from here by our own numbers."""
    return _look(os.getpid()) is not None
