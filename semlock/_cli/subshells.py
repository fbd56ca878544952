"""What a shell's copy of itself is there for, and whether its original waits for it.

The original goes on, and may end, beside ``{ ...; } | cat &``, a process substitution or a
coprocess: there the copy is what lasts as long as the work.  What tells them apart:

====================  ====================================================================
job control           a job is a process group; the one that is waited for has the terminal
no job control        a copy that is not waited for ignores SIGQUIT, and the others don't:
                      bash, dash, zsh and ash alike, as POSIX has it for ``&``
both signals ignored  by the script itself, since its caller began it by ``&``: then the
                      original must be seen to read what a ``$(...)`` writes, or to sleep in
                      a wait with no other child than those of the pipeline
====================  ====================================================================
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli.owners import _Seen as Process


def is_copy(process: Process, parent: Process) -> bool:
    """Tell whether a process is its parent's copy by fork, which has run no other program."""
    return process.argv == parent.argv and process.layout == parent.layout


def is_awaited(copy: Process, original: Process) -> bool | None:
    """Tell whether a shell waits for its copy before it goes on; ``None`` if that is unknown."""
    signals, before = _ignored(copy.pid), _ignored(original.pid)
    if signals is None or before is None:
        return True  # only Linux tells of signals: a pipeline is mostly waited for
    if copy.group != original.group:
        if copy.front == copy.group:
            return True
        if copy.front == original.group:
            return False
    elif _TTOU in before and original.group == original.pid:
        # It is interactive: only a substitution has no job of its own, of which just $(...) is
        # read by the shell itself.
        return _reads(original.pid, copy.pid)
    elif _QUIT not in signals:
        return True
    elif _INT not in before:
        return False
    return _reads(original.pid, copy.pid) or _waits(original, copy) or None


_INT, _QUIT, _TTOU = 2, 3, 22  # the same on all kinds of Linux


def _ignored(pid: int) -> frozenset[int] | None:
    """Tell which signals a process ignores; ``None`` where the system doesn't tell."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            mask = next(line for line in file if line.startswith(b"SigIgn:"))
    except (OSError, StopIteration):
        return None
    bits = int(mask.split()[1], 16)
    return frozenset(n for n in (_INT, _QUIT, _TTOU) if bits >> (n - 1) & 1)


def _reads(original: int, copy: int) -> bool:
    """Tell whether a shell has the other end of what its copy writes to."""
    return bool(_new_pipes(copy, original, 1) & set(_ends(original).values()))


def _waits(original: Process, copy: Process) -> bool:
    """Tell whether a shell sleeps in a wait for a pipeline, and has nothing else to wait for."""
    try:
        with open(f"/proc/{original.pid}/wchan", encoding="ascii") as file:
            where = file.read()
        with open(f"/proc/{original.pid}/task/{original.pid}/children", "rb") as file:
            children = {int(pid) for pid in file.read().split()}
    except OSError:
        return False
    if not where.startswith(
        ("do_wait", "sigsuspend", "do_sigsuspend", "__do_sys_rt_sigsuspend")
    ):
        return False
    parts, pipes = {copy.pid}, _new_pipes(copy.pid, original.pid)
    while more := {pid for pid in children - parts if pipes & _new_pipes(pid, original.pid)}:
        parts |= more
        pipes = pipes.union(*(_new_pipes(pid, original.pid) for pid in more))
    return children == parts


_SAVED = 10  # from there on a shell has what it keeps itself


def _new_pipes(copy: int, original: int, *numbers: int) -> set[str]:
    """Give the pipes that a shell's copy writes to or reads from, and its original doesn't.

    While a command runs with a redirection, dash and ash have it themselves, and their own end
    of a pipe is what they have saved.
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
    """Tell where a process' descriptors lead to; none if it is not ours to see."""
    found = {}
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        pass
    return found


def is_piped(copy: int, original: int) -> bool:
    """Tell whether a shell's copy writes to, or reads from, a pipe that its original doesn't."""
    if _ends(copy) and _ends(original):
        return bool(_new_pipes(copy, original))
    # What can't be seen of it shows in what it gave to us.
    import stat  # noqa: PLC0415 - hardly ever

    return any(stat.S_ISFIFO(os.fstat(number).st_mode) for number in (0, 1))
