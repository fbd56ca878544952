"""The help, made from the table."""

from __future__ import annotations

import os

from semlock._cli import EXIT_CODES, OK, UsageError
from semlock._cli.output import write
from semlock._cli.table import GLOBAL, VERBS, find

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Iterable

    from semlock._cli import Options
    from semlock._cli.verbs import Option, Verb

SUMMARY = "Hold file locks around commands and in scripts; see who holds them and why."

_WIDEST = 100
_MARGIN = "  "


def show(options: Options) -> int:
    """Show the help of a verb, of a topic, or of the whole command."""
    verb = find(options.word) if options.word else None
    if options.word and verb is None:
        from semlock._cli import topics  # noqa: PLC0415 - for those who ask

        if options.word not in topics.TOPICS:
            from semlock._cli.parsing import like  # noqa: PLC0415 - it is there

            known = [verb.name for verb in VERBS] + list(topics.TOPICS)
            raise UsageError(f"there is no {options.word}{like(options.word, known)}")
        write(topics.text_of(options.word).rstrip("\n"))
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
