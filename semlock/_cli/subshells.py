"""What a shell forked a copy of itself for, and whether the original shell waits for that copy.

In ``{ ...; } | cat &``, a process substitution or a coprocess the original goes on and may end
first, so the copy lasts as long as the work.  How the cases differ:

====================  ====================================================================
job control           a job is a process group; a foreground job has the terminal
no job control        a background copy ignores SIGQUIT, others don't: in bash, dash, zsh and
                      ash, as POSIX requires for ``&``
both signals ignored  by the whole script, as its caller started it by ``&``: then the original
                      must read what a ``$(...)`` writes, or sleep in a wait with no children
                      but those of the pipeline
====================  ====================================================================
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli.owners import _Seen as Process


def is_awaited(copy: Process, original: Process) -> bool | None:
    """Tell whether a shell waits for its copy; ``None`` if that is unknown."""
    signals, before = _ignored(copy.pid), _ignored(original.pid)
    if signals is None or before is None:
        return True  # only Linux shows signals; most pipelines are waited for
    if copy.group != original.group:
        if copy.front == copy.group:
            return True
        if copy.front == original.group:
            return False
    elif _TTOU in before and original.group == original.pid:
        # An interactive shell: only substitutions have no job of their own, and of these the
        # shell itself reads only $(...).
        return _reads(original.pid, copy.pid)
    elif _QUIT not in signals:
        return True
    elif _INT not in before:
        return False
    return _reads(original.pid, copy.pid) or _waits(original, copy) or None


_INT, _QUIT, _TTOU = 2, 3, 22  # the same on all processors


def _ignored(pid: int) -> frozenset[int] | None:
    """Give the signals that a process ignores; ``None`` if the system doesn't say."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"SigIgn:"))
    except (OSError, StopIteration):
        return None
    bits = int(mask.split()[1], 16)
    return frozenset(n for n in (_INT, _QUIT, _TTOU) if bits >> (n - 1) & 1)


def _reads(original: int, copy: int) -> bool:
    """Tell whether a shell has the reading end of its copy's output."""
    return bool(_new_pipes(copy, original, 1) & set(_ends(original).values()))


def _waits(original: Process, copy: Process) -> bool:
    """Tell whether a shell waits for a pipeline and has no other children."""
    try:
        with open(f"/proc/{original.pid}/wchan", "rb") as file:
            where = file.read()
        with open(f"/proc/{original.pid}/task/{original.pid}/children", "rb") as file:
            children = {int(pid) for pid in file.read().split()}
    except OSError:
        return False
    if not where.startswith(
        (b"do_wait", b"sigsuspend", b"do_sigsuspend", b"__do_sys_rt_sigsuspend")
    ):
        return False
    parts, pipes = {copy.pid}, _new_pipes(copy.pid, original.pid)
    while more := {pid for pid in children - parts if pipes & _new_pipes(pid, original.pid)}:
        parts |= more
        pipes = pipes.union(*(_new_pipes(pid, original.pid) for pid in more))
    return children == parts


_SAVED = 10  # from this number on, a shell keeps its own descriptors


def _new_pipes(copy: int, original: int, *numbers: int) -> set[str]:
    """Give the pipes that a shell's copy uses and its original doesn't.

    During a command with a redirection, dash and ash have the redirection themselves, and save
    their own end of a pipe under a higher number.
    """
    theirs = _ends(original)
    usual = {theirs.get(0), theirs.get(1)}
    return {
        end
        for number, end in _ends(copy).items()
        if (number >= _SAVED or number in (numbers or (0, 1)))
        and end.startswith("pipe:")
        and end != theirs.get(number)
        and end not in usual
    }


def _ends(pid: int) -> dict[int, str]:
    """Give what a process' descriptors lead to; empty if that isn't readable."""
    found = {}
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        pass
    return found


def is_piped(copy: int, original: int) -> bool:
    """Tell whether a shell's copy uses a pipe that its original doesn't."""
    if _ends(copy) and _ends(original):
        return bool(_new_pipes(copy, original))
    # If it can't be inspected, our own inherited descriptors show it.
    import stat  # noqa: PLC0415 - hardly ever

    return any(stat.S_ISFIFO(os.fstat(number).st_mode) for number in (0, 1))
