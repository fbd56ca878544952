"""The help, made from the table, and its topics: exit codes, the environment, the record."""

from __future__ import annotations

import os

from semlock._cli import BY_SIGNAL, EXIT_CODES, NOT_EXECUTABLE, NOT_FOUND, OK, UsageError
from semlock._cli.output import write
from semlock._cli.table import GLOBAL, VERBS, find

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semlock._cli import Options
    from semlock._cli.verbs import Option, Verb

SUMMARY = "Hold file locks around commands and in scripts; see who holds them and why."

_WIDEST = 100
_MARGIN = "  "


def show(options: Options) -> int:
    """Show the help of a verb, of a topic, or of the whole command."""
    verb = find(options.word) if options.word else None
    if options.word and verb is None:
        if options.word not in TOPICS:
            from semlock._cli.parsing import like  # noqa: PLC0415 - it is there

            known = [verb.name for verb in VERBS] + list(TOPICS)
            raise UsageError(f"there is no {options.word}{like(options.word, known)}")
        write(text_of(options.word).rstrip("\n"))
        return OK
    write((help_of(verb) if verb else overview()).rstrip("\n"))
    return OK


def usage(verb: Verb | None) -> str:
    """Give the usage of a verb, for a wrong call."""
    if verb is None:
        names = wrapped(", ".join(verb.name for verb in VERBS), "       ")
        return "\n".join(["usage: semlock VERB [OPTION...] ...", *names, "See: semlock --help"])
    return f"usage: {verb.usage}\nSee: semlock {verb.name} --help"


def overview() -> str:
    """Give the help of the whole command."""
    lines = [
        "usage: semlock VERB [OPTION...] ...",
        "",
        SUMMARY,
        "",
        "verbs:",
        *columns((verb.name, verb.summary) for verb in VERBS),
        "",
        "options:",
        *columns(_option(option) for option in GLOBAL),
        "",
        "examples:",
        *columns(example for name in ("run", "try", "status", "clean")
                  for example in _first_examples(name)),
        "",
        *wrapped(exit_codes(), ""),
        "",
        "semlock VERB --help tells more; semlock help topics lists what else there is.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _first_examples(name: str) -> tuple[tuple[str, str], ...]:
    verb = find(name)
    return verb.examples[:2] if verb else ()


def exit_codes() -> str:
    """Give the exit codes and their meanings, in a line."""
    return "exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES)


def help_of(verb: Verb) -> str:
    """Give the help of one verb."""
    lines = [f"usage: {verb.usage}", "", verb.summary[0].upper() + verb.summary[1:] + "."]
    for paragraph in verb.does:
        lines += ["", *wrapped(paragraph, "")]
    lines += ["", "options:", *columns(_option(option) for option in verb.options)]
    if verb.examples:
        lines += ["", "examples:", *columns(verb.examples)]
    lines += ["", *wrapped(exit_codes(), "")]
    if verb.command:
        lines += ["run gives the command's own; 126 if it can't be run, 127 if it isn't there"]
    return "\n".join(lines) + "\n"


def _option(option: Option) -> tuple[str, str]:
    shown = ", ".join(option.words)
    return (f"{shown} {option.value}" if option.value else shown), option.meaning


def columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    narrow = [len(left) for left, _ in rows if len(left) <= _WIDEST // 3]
    width = max(narrow, default=0) + 2
    lines = []
    for left, right in rows:
        indent = " " * (len(_MARGIN) + width)
        told = wrapped(right, indent) if right else []
        if len(left) + 2 > width:
            lines += [_MARGIN + left, *told]
        elif told:
            lines += [_MARGIN + left.ljust(width) + told[0].lstrip(), *told[1:]]
        else:
            lines.append(_MARGIN + left)
    return lines


def wrapped(text: str, indent: str) -> list[str]:
    import textwrap  # noqa: PLC0415 - only for those who read help

    try:
        columns = os.get_terminal_size().columns
    except OSError:
        columns = 80
    return textwrap.wrap(
        text,
        max(40, min(columns, _WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# Each topic: a summary, paragraphs, and rows of a word and its meaning.
_Topic = tuple[str, tuple[str, ...], "Sequence[tuple[str, str]]"]

_CODES = (
    *((str(code), meaning) for code, meaning in EXIT_CODES),
    (str(NOT_EXECUTABLE), "run: the command can't be run"),
    (str(NOT_FOUND), "run: there is no such command"),
    (f"{BY_SIGNAL}+N", "the command, or a wait, was ended by signal N"),
)

TOPICS: dict[str, _Topic] = {
    "topics": (
        "what help there is besides the verbs",
        ("Show one with: semlock help TOPIC",),
        (),
    ),
    "exit-codes": (
        "what the exit codes mean",
        (
            ("run gives the command's own exit code; -E N gives another one than 1 when the lock "
             "can't be acquired, so that both can be told apart."),
        ),
        _CODES,
    ),
    "environment": (
        "the environment variables",
        (),
        (
            ("SEMLOCK_TRACE", ("a file into which every program that uses semlock writes what its "
             "locks do; see: semlock timeline --help")),
            ("SEMLOCK_URL", ("an engine, such as redis://host: a LOCK without a slash is a lock on "
             "it. No list of processes shows a password that stands there")),
            ("NO_COLOR", "no colours, whatever the terminal can; --color decides before it"),
            ("TERM", "dumb: no colours, and no line that is redrawn"),
            ("COLUMNS", "how wide tables are; else the terminal's width, and 80 for watch --once"),
        ),
    ),
    "engines": (
        "locks on servers that several machines share",
        (
            ("Where a verb takes a LOCK it takes an address too: redis://HOST[:PORT]/NAME, "
             "rediss:// by TLS, etcd://HOST[:PORT][,HOST...]/NAME, or "
             "postgresql://USER@HOST[:PORT]/DATABASE/NAME, and file:///DIRECTORY/NAME for a "
             "directory that several machines mount. Behind ? stand "
             "ttl=SECONDS and prefix=TEXT. run, try, acquire, release, status, list, wait, watch, "
             "break and doctor know them; list, watch and doctor take the address without NAME."),
            ("A lock passes on when its holder's lease has ended. run ends its command before "
             "that: by TERM when a quarter of the lease is left, by KILL when a tenth is. try and "
             "acquire leave a process behind that renews the lease until the shell ends."),
        ),
        (),
    ),
    "record": (
        "what is in a lock file",
        (
            ("A lock is held exactly while its file exists. A program without semlock takes part "
             "if it creates the file exclusively (set -C; echo pid=$$ > job.lock) and removes it. "
             "The content is for people and for the proof of death: lines of key=value, at most "
             "65536 bytes, of which only these are read."),
        ),
        (
            ("pid", "the holder's process number"),
            ("timestamp", "when it was acquired or refreshed, in seconds since 1970"),
            ("tag", "why it is held"),
            ("host", "the name of the machine"),
            ("start, boot, pidns, timens", "which process, boot and namespaces the number is of"),
            ("token", "the name of this hold"),
            ("witness", "whether the kernel keeps a lock on the file while the holder lives"),
        ),
    ),
}  # fmt: skip


def text_of(name: str) -> str:
    """Give the text of a topic."""
    summary, paragraphs, rows = TOPICS[name]
    if name == "topics":
        rows = [(other, TOPICS[other][0]) for other in TOPICS if other != name]
    lines = [f"{name}: {summary}"]
    for paragraph in paragraphs:
        lines += ["", *wrapped(paragraph, "")]
    if rows:
        lines += ["", *columns(rows)]
    return "\n".join(lines) + "\n"
