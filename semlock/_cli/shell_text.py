"""The text that a shell was given with ``-c``: which commands are in it, and in which order."""

from __future__ import annotations

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
