"""Who a holder is, and whether it lives: alive, dead or unknown, always with the evidence.

A process number alone proves nothing: it is used again, and every container has its own.
So a record says when its process began, in which boot and in which PID namespace, and the
numbers are compared only where they mean the same.  What can't be compared is unknown, and
unknown is never dead.
"""

from __future__ import annotations

import os
import sys

from semlock import _native

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    from semlock._records import LockInfo

    Verdict: TypeAlias = Literal["alive", "dead", "unknown"]

ALIVE: Verdict = "alive"
DEAD: Verdict = "dead"
UNKNOWN: Verdict = "unknown"

# The kernel's number of the time namespace that every process begins in.  It is left out of
# records, so that ``timens`` shows up only where somebody shifted the clocks.
_INITIAL_TIME_NAMESPACE = 0xEFFFFFFA

_PID_LIMIT = 2**31 - 1 if sys.platform != "win32" else 2**32 - 1


class Process:
    """A process that may hold locks: its number, and what tells it from its namesakes."""

    __slots__ = ("boot", "host", "pid", "pidns", "start", "timens")

    def __init__(
        self, pid: int, start: int, pidns: int, timens: int, boot: str, host: str
    ) -> None:
        self.pid = pid
        self.start = start
        self.pidns = pidns
        self.timens = timens
        self.boot = boot
        self.host = host


_this_process: Process | None = None


def _host_name() -> str:
    if sys.platform == "win32":
        return os.environ.get("COMPUTERNAME", "")
    return os.uname().nodename


def this_process() -> Process:
    """Identify the running process, once; a fork makes it anew."""
    global _this_process  # noqa: PLW0603 - a cache, dropped by forget()
    if _this_process is None:
        pid, start, pidns, timens, boot = _native.identify()
        if timens == _INITIAL_TIME_NAMESPACE:
            timens = 0
        _this_process = Process(pid, start, pidns, timens, boot, _host_name())
    return _this_process


def other_process(pid: int) -> Process:
    """Identify another process of this machine and PID namespace, for whom a lock is taken."""
    me = this_process()
    return Process(pid, _native.start_time(pid), me.pidns, me.timens, me.boot, me.host)


def forget() -> None:
    """Drop what is known of this process: it has become another one by forking."""
    global _this_process  # noqa: PLW0603
    _this_process = None


def judge(info: LockInfo | None, view: Any) -> tuple[Verdict, str]:
    """Say whether the holder lives, and how that is known."""
    if view.witness == 1:
        return ALIVE, "its holder keeps the kernel's lock on it"
    if info is None or info.pid is None:
        return UNKNOWN, "its content names no process"
    local = bool(view.local)
    if info.witness == "kept" and local and view.witness == 0:
        return DEAD, f"the kernel has dropped the lock that process {info.pid} kept on it"
    me = this_process()
    if not info.boot or not me.boot:
        return UNKNOWN, f"the record doesn't say on which machine process {info.pid} runs"
    if info.boot != me.boot:
        if info.boot.startswith("boottime-"):
            # Some systems know only when they were started, which moves with their clock.
            return UNKNOWN, f"process {info.pid} may have run before a restart"
        # Only the holder knows that its filesystem was local to it, and only the reader that
        # it still is: an exported folder looks local on one side and is shared all the same.
        if info.witness in ("kept", "left") and local:
            return DEAD, "its holder ran before this machine was started anew"
        return UNKNOWN, f"process {info.pid} runs on another machine, or ran before a restart"
    if (info.pidns or 0) != me.pidns:
        return UNKNOWN, f"process {info.pid} runs in another PID namespace (a container)"
    if info.pid > _PID_LIMIT:
        return UNKNOWN, f"{info.pid} is no process number of this system"
    same_clock = (info.timens or 0) == me.timens
    fate = _native.probe(info.pid, (info.start or 0) if same_clock else 0)
    verdict, words = _FATES.get(fate, (UNKNOWN, "process {} can't be looked at"))
    return verdict, words.format(info.pid)


def process_is_gone(info: LockInfo) -> bool:
    """Tell whether no process of this machine has the record's number, whoever wrote it.

    A record that names another boot or PID namespace is not about this machine's numbers.
    """
    me = this_process()
    if info.pid is None or not 1 <= info.pid <= _PID_LIMIT:
        return False
    if info.boot and (info.boot != me.boot or (info.pidns or 0) != me.pidns):
        return False
    return _native.probe(info.pid, 0) in (_native.GONE, _native.ZOMBIE)


_FATES: dict[int, tuple[Verdict, str]] = {
    _native.RUNS: (ALIVE, "process {} runs"),
    _native.EXISTS: (ALIVE, "process {} exists, though its start can't be compared"),
    _native.GONE: (DEAD, "process {} no longer exists"),
    _native.RECYCLED: (DEAD, "process {} has ended; another process has its number now"),
    _native.ZOMBIE: (DEAD, "process {} has ended and waits to be reaped"),
}
