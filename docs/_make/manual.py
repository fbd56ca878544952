"""The man page, the completion files and the reference in ``docs/cli.md``, made from the tables.

``python docs/_make/manual.py`` writes them.  The wheel installs the man page and the completion
files from there.  A test fails if they differ from the tables.
"""

from __future__ import annotations

import os

from json_objects import OBJECTS
from semlock._cli import BY_SIGNAL, EXIT_CODES, NOT_EXECUTABLE, NOT_FOUND, completion
from semlock._cli.helping import SUMMARY
from semlock._cli.table import GLOBAL, VERBS

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from semlock._cli.verbs import Option

BEGIN = "<!-- made by python docs/_make/manual.py -->"
END = "<!-- end -->"

_RUN_CODES = (
    (NOT_EXECUTABLE, "run: the command can't be run"),
    (NOT_FOUND, "run: there is no such command"),
    (f"{BY_SIGNAL}+N", "the command, or a wait, was ended by signal N"),
)


_DESCRIPTION = (
    "A lock is held exactly while a file exists at its path. semlock makes it appear complete "
    "or not at all, with a record of who holds it and why, and tells living holders from dead "
    "ones by proof."
)
_ABOUT_JSON = (
    "With `--json` each line is one object. Members in **bold** are always there, the others "
    "sometimes; pass over those that you don't know."
)


def man() -> str:
    """Give the man page."""
    lines = [
        '.TH SEMLOCK 1 "" "semlock" "User Commands"',
        ".SH NAME",
        f"semlock \\- {_roff(SUMMARY[0].lower() + SUMMARY[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
    ]
    for verb in VERBS:
        lines += [".br", f".B {_roff(verb.usage)}"]
    lines += [
        ".SH DESCRIPTION",
        _DESCRIPTION,
        ".SH VERBS",
    ]
    for verb in VERBS:
        lines += [f".SS {_roff(verb.usage)}", _roff(_sentence(verb.summary))]
        for paragraph in verb.does:
            lines += [".PP", _roff(paragraph)]
        for option in verb.options:
            lines += [".TP", f".B {_roff(_written(option))}", _roff(_sentence(option.meaning))]
        for example, meaning in verb.examples:
            lines += [".PP", "Example:", ".EX", f"  {_roff(example)}", ".EE"]
            lines += [_roff(_sentence(meaning))] if meaning else []
    lines.append(".SH OPTIONS")
    for option in GLOBAL:
        lines += [".TP", f".B {_roff(_written(option))}", _roff(_sentence(option.meaning))]
    lines.append(".SH EXIT STATUS")
    for code, meaning in (*EXIT_CODES, *_RUN_CODES):
        lines += [".TP", f".B {code}", _roff(_sentence(meaning))]
    lines += [".SH SEE ALSO", ".BR flock (1),", ".BR flock (2)"]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _written(option: Option) -> str:
    return ", ".join(option.words) + (f" {option.value}" if option.value else "")


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    # A period or quote at the beginning of a line would be taken for a request.
    return "\\&" + text if text[:1] in (".", "'") else text


def reference() -> str:
    """Give the reference: verbs, exit codes and JSON objects."""
    lines: list[str] = []
    for verb in VERBS:
        lines += [f"### `{verb.name}`: {verb.summary}", "", "```text", verb.usage, "```", ""]
        for paragraph in verb.does:
            lines += [_marked(paragraph), ""]
        lines += ["| option | |", "|---|---|"]
        for option in verb.options:
            shown = _written(option).replace("|", "\\|")
            lines.append(f"| `{shown}` | {_marked(option.meaning)} |")
        lines.append("")
        if verb.examples:
            width = max(len(example) for example, _ in verb.examples)
            shown_examples = (
                f"{example.ljust(width)}  # {meaning}" if meaning else example
                for example, meaning in verb.examples
            )
            lines += ["```sh", *shown_examples, "```", ""]
    lines += ["## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in (*EXIT_CODES, *_RUN_CODES)]
    lines += ["", "## JSON", "", _ABOUT_JSON, ""]
    for name, (written_by, always, sometimes) in OBJECTS.items():
        lines += [f"### {name}: {written_by}", "", "| member | | |", "|---|---|---|"]
        lines += [f"| **{member}** | {kind} | {meaning} |" for member, kind, meaning in always]
        lines += [f"| {member} | {kind} | {meaning} |" for member, kind, meaning in sometimes]
        lines.append("")
    return "\n".join(lines)


def _marked(text: str) -> str:
    return text.replace("<", "\\<").replace(" -- ", " `--` ").replace("*.lock", "`*.lock`")


def with_reference(page: str) -> str:
    """Put the reference into the place that a page has for it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def files() -> dict[str, str]:
    """Give what is made as a whole: path below ``docs`` and content."""
    return {
        "semlock.1": man(),
        "completions/semlock": completion.bash(),
        "completions/_semlock": completion.zsh(),
        "completions/semlock.fish": completion.fish(),
    }


def write(docs: str) -> None:
    """Write all of it into the directory of the documentation."""
    path = os.path.join(docs, "cli.md")
    with open(path, encoding="utf-8") as file:
        page = file.read()
    for name, text in {**files(), "cli.md": with_reference(page)}.items():
        path = os.path.join(docs, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)


if __name__ == "__main__":
    write(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
