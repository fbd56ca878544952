"""Who a holder is, and whether it is alive, dead or unknown, with the evidence.

A process number alone proves nothing: it is reused, and each container has numbers of its own.  So
a record also has the start time, the boot and the PID namespace, and numbers are compared only
if these match.  A holder that can't be compared is unknown, which never counts as dead.
"""

from __future__ import annotations

import os
import sys

from semlock._core import capi

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal, TypeAlias

    from semlock._core.capi import Instance
    from semlock._core.records import LockInfo

    Verdict: TypeAlias = Literal["alive", "dead", "unknown"]

ALIVE: Verdict = "alive"
DEAD: Verdict = "dead"
UNKNOWN: Verdict = "unknown"

# The evidence where nothing tells which process holds a lock.
NOT_NAMED = "no readable record names a process"

# The witness field in a file whose holder has released it, and which has other hard links.
OVER = "over"

# The kernel's number of the initial time namespace.
_INITIAL_TIME_NAMESPACE = 0xEFFFFFFA

# How far a start time may be off while the clock is being adjusted.
_CLOCK_PLAY = 1_000_000_000

_PID_LIMIT = 2**31 - 1 if sys.platform != "win32" else 2**32 - 1


class Process:
    """A process that may hold locks: its number, and what tells it from others with the number."""

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


# Forgets the parent's state in a process that C code has forked; the registry sets it.
follow_fork: Callable[[], object] = int

_this_process: tuple[int, Process] | None = None  # with the value of capi.life() for it


def _host_name() -> str:
    if sys.platform == "win32":
        return os.environ.get("COMPUTERNAME", "")
    return os.uname().nodename


def this_process() -> Process:
    """Identify the running process; the result is kept until a fork."""
    global _this_process  # noqa: PLW0603 - a cache
    life = capi.life_of(capi.POOL)
    if _this_process is None or _this_process[0] != life:
        follow_fork()  # before the first record of a process that C code has forked
        pid, start, pidns, timens, boot = capi.identify()
        if timens == _INITIAL_TIME_NAMESPACE:
            timens = 0
        _this_process = life, Process(pid, start, pidns, timens, boot, _host_name())
    return _this_process[1]


def other_process(pid: int) -> Process:
    """Identify another process of this machine and PID namespace, to take a lock for it."""
    me = this_process()
    return Process(pid, capi.start_time(pid), me.pidns, me.timens, me.boot, me.host)


def judge(info: LockInfo | None, seen: Instance) -> tuple[Verdict, str]:
    """Say whether the holder is alive, and how that is known.

    If the record's numbers are comparable, death needs two proofs: the kernel has dropped the
    lock on the file, and the process has ended.  Otherwise the kernel's lock alone decides, and
    if its state is unknown, so is the holder.
    """
    if seen.witnessed and not _is_written_over(info):
        return ALIVE, "its holder keeps the kernel's lock on it"
    verdict, evidence = _judge_record(info, seen)
    if seen.witnessed:
        evidence += (
            "; another process keeps the kernel's lock on the file, as semlock does, and this "
            "record was written over its own"
        )
    return verdict, evidence


def _is_written_over(info: LockInfo | None) -> bool:
    """Tell whether another program wrote this record over that of the kernel lock's owner.

    semlock writes a token into each record, if the system has room for it.  A program that
    takes a lock over by writing its own record into the file writes none, and the kernel's lock
    says nothing about that program.
    """
    from semlock._core import inside  # noqa: PLC0415 - for those who judge

    return info is not None and inside.is_foreign(info)


def _judge_record(info: LockInfo | None, seen: Instance) -> tuple[Verdict, str]:
    if info is None:
        return _judge_mark(seen)
    if info.pid is None:
        # Its owner may be text, which may even look like a process.
        return UNKNOWN, "its record names no process that can be looked at"
    if info.witness == OVER:
        return DEAD, f"process {info.pid} has released it: this is a copy of its file"
    dropped = info.witness == "kept" and seen.local and seen.witness == 0
    me = this_process()
    if not info.boot or not me.boot:
        return _judge_unplaced(info.pid, info.host, dropped=dropped)
    if info.boot != me.boot:
        return _judge_other_boot(info, seen)
    if (info.pidns or 0) != me.pidns:
        if dropped:
            return DEAD, _DROPPED.format(info.pid)
        return UNKNOWN, f"process {info.pid} runs in another PID namespace (a container)"
    if info.pid > _PID_LIMIT:
        return UNKNOWN, f"{info.pid} is no process number of this system"
    # A start time by the clock of another time namespace can't be compared.
    fate = capi.probe(info.pid, 0 if info.timens else info.start or 0)
    verdict, words = _FATES.get(fate, (UNKNOWN, "process {} can't be looked at"))
    if verdict == ALIVE and dropped:
        words += (
            "; it has closed the lock's descriptor or executed another program, and the lock is "
            "held until it ends"
        )
    elif verdict == DEAD and dropped:
        words += ", and the kernel has dropped the lock that it kept"
    return verdict, words.format(info.pid)


def _judge_unplaced(pid: int, host: str | None, *, dropped: bool) -> tuple[Verdict, str]:
    if dropped and (pid > _PID_LIMIT or capi.probe(pid, 0) in _ENDED):
        return DEAD, _DROPPED.format(pid)
    if host:
        return UNKNOWN, (
            f"a host name doesn't prove where process {pid} runs, and no boot id is there"
        )
    return UNKNOWN, f"the record doesn't say on which machine process {pid} runs"


def _judge_other_boot(info: LockInfo, seen: Instance) -> tuple[Verdict, str]:
    if (info.boot or "").startswith("boottime-"):
        # There, the boot time is the only number of a boot, and it moves with the clock.
        return UNKNOWN, f"process {info.pid} may have run before a restart"
    # Only the holder knows that the filesystem was local to it, and only the reader that it is
    # still local: an exported directory looks local on the server.
    if info.witness in ("kept", "left") and seen.local:
        if _is_older_than_this_boot(seen, info):
            return DEAD, "its holder ran before this machine was started anew"
        return UNKNOWN, (
            f"process {info.pid} names another boot, though this machine was not started since: "
            "a container's, perhaps"
        )
    return UNKNOWN, f"process {info.pid} runs on another machine, or ran before a restart"


def _judge_mark(seen: Instance) -> tuple[Verdict, str]:
    """Judge a file that no record names a holder of, by the boot mark of its inode."""
    if seen.boot_mark == 0:
        return UNKNOWN, NOT_NAMED
    this_process()  # after that, the core knows this boot
    if capi.POOL.boot in (seen.boot_mark, 0):  # 0: no boot can be named here
        return UNKNOWN, "it was made since this machine was started, and its record is gone"
    if seen.witness == 0 and _is_older_than_this_boot(seen):
        return DEAD, (
            "its holder ran before this machine was started anew, and its record did not come "
            "to the disk"
        )
    return UNKNOWN, "another boot made it, and it was changed in this one"


def _is_older_than_this_boot(seen: Instance, info: LockInfo | None = None) -> bool:
    """Tell whether a file was last changed before this machine was started.

    A container may have a boot number of its own, and be older than its own file.  btrfs, when it
    repairs itself after a power cut, gives files the present time as their ctime; then the times
    of the content and in the record tell.
    """
    boot = capi.boot_time() - _CLOCK_PLAY
    if seen.ctime_ns < boot:
        return True
    wins = [] if info is None or info.timestamp is None else [info.timestamp]
    return max([seen.written_at, *wins]) * 1e9 < boot


def process_is_gone(info: LockInfo) -> bool:
    """Tell whether no process of this machine has the record's number.

    It is ``False`` for a record of another host, boot or PID namespace.
    """
    me = this_process()
    if info.pid is None or not 1 <= info.pid <= _PID_LIMIT:
        return False
    if info.host and info.host != me.host:
        return False
    if info.boot and (info.boot != me.boot or (info.pidns or 0) != me.pidns):
        return False
    return capi.probe(info.pid, 0) in _ENDED


_ENDED = (capi.GONE, capi.ZOMBIE)
_DROPPED = "the kernel has dropped the lock that process {} kept on it"

_FATES: dict[int, tuple[Verdict, str]] = {
    capi.RUNS: (ALIVE, "process {} runs"),
    capi.EXISTS: (ALIVE, "process {} exists, though its start can't be compared"),
    capi.GONE: (DEAD, "process {} no longer exists"),
    capi.RECYCLED: (DEAD, "process {} has ended; another process has its number now"),
    capi.ZOMBIE: (DEAD, "process {} has ended and waits to be reaped"),
}
