"""The text that a shell was given with ``-c``, and what it forked a copy of itself for.

What is to be known of a copy is whether the original shell waits for it.

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


_OPENING = frozenset(("{", "then", "else", "!"))
_CLOSING = frozenset(("}", "fi", "done", "esac"))
_IDLE = frozenset(("exit", "return", "true", "false", ":", "echo", "printf"))
_NOWHERE = frozenset(("/dev/null", "/dev/stderr", "/dev/stdout", "/dev/tty", "-"))
_WRITES = ">"  # as a word of a command: it writes a file


def command_text(argv: list[str]) -> str | None:
    """Give the text of ``-c`` among a shell's words."""
    rest = iter(argv[1:])
    for word in rest:
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            next(rest, None)
        elif word == "--command" or (word[:1] == "-" and word[:2] != "--" and "c" in word):
            # Further options may come before the text.
            return next((other for other in rest if other[:1] not in ("-", "+")), None)
        elif word[:1] not in ("-", "+"):
            return None  # a script
    return None


def commands_of(text: str) -> list[list[str]] | None:
    """Split a text into commands that may run one after the other; ``None`` if it is too complex.

    A command after ``||`` runs only if the one before has failed, so it doesn't follow it.
    """
    from shlex import shlex  # noqa: PLC0415 - for shells with -c only

    lexer = shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    found: list[list[str]] = [[]]
    skips = False
    redirects = ""
    depth = 0  # of braces and parentheses behind ||
    try:
        for word in lexer:
            if skips:
                depth += (word in ("{", "(")) - (word[:1] in ("}", ")"))
            if set(word) & set("<>") and set(word) <= set("<>&|"):
                redirects = word
            elif redirects:
                if ">" in redirects and not (word in _NOWHERE or word.isdigit()) and not skips:
                    found[-1].append(_WRITES)
                redirects = ""
            elif word == "()" and not skips:
                found[-1].append(word)
                found.append([])
            elif word and set(word) <= set(";&|()"):
                if word == "||":
                    skips = True
                elif word not in ("(", ")") and depth <= 0:
                    skips = False
                    depth = 0
                if not skips:
                    found.append([])
            elif not skips:
                found[-1].append(word)
    except ValueError:
        return None
    return _inlined([words for words in found if words])


def does_nothing(words: list[str]) -> bool:
    """Tell whether a command only ends a construct or the shell, or says something."""
    while words and words[0] in _OPENING:
        words = words[1:]
    if set(words) <= _CLOSING:
        return True
    return words[0] in _IDLE and not any(
        word == _WRITES or "`" in word or "$(" in word for word in words
    )


def _inlined(found: list[list[str]]) -> list[list[str]]:
    """Replace calls of a shell's functions by the commands in them."""
    bodies: dict[str, list[list[str]]] = {}
    called: list[list[str]] = []
    name = ""
    body: list[list[str]] = []
    depth = 0
    for words in found:
        if not name and words[-1] == "()" and len(words) > 1:
            name, body, depth = words[-2], [], 0
        elif not name:
            called.extend(bodies.get(words[0], [words]))
        else:
            depth += words.count("{") - words.count("}")
            inner = [word for word in words if word not in ("{", "}")]
            if inner:
                body.extend(bodies.get(inner[0], [inner]))
            if depth <= 0:
                bodies[name] = body
                name = ""
    return called
