"""What the table of verbs is made of: options, operands and verbs."""

from __future__ import annotations

from semlock._cli import PLAIN

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# What an operand names, for the completion.
FILE = "file"
DIRECTORY = "directory"
COMMAND = "command"
WORD = "word"


class Option:
    """One option.

    :words:    how it is written, the short form first
    :meaning:  what it does, for the help; without a capital and a full stop
    :takes:    the name of its value in the help; ``None`` for a switch
    :read:     turns the text into a value, or raises ``ValueError`` with the reason
    :choices:  the possible values; together with ``read`` the usual ones
    :name:     the attribute of ``Options`` that it sets; by default the long word
    :sets:     what a switch sets
    """

    __slots__ = ("choices", "closed", "meaning", "name", "read", "sets", "takes", "words")

    def __init__(
        self,
        *words: str,
        meaning: str,
        takes: str | None = None,
        read: Callable[[str], Any] | None = None,
        choices: tuple[str, ...] = (),
        name: str | None = None,
        sets: object = True,
    ) -> None:
        self.words = words
        self.meaning = meaning
        self.takes = takes
        self.read = read or str
        self.closed = bool(choices) and read is None
        self.choices = choices
        self.name = name or words[-1][2:].replace("-", "_")
        self.sets = sets

    @property
    def value(self) -> str | None:
        """The value in the help: the choices, or the name."""
        return "|".join(self.choices) or self.takes


HELP = Option("-h", "--help", meaning="show this help")


class Operand:
    """An argument of a verb: its name in the help, and its kind."""

    __slots__ = ("choices", "kind", "many", "name", "optional")

    def __init__(
        self,
        name: str,
        kind: str = FILE,
        *,
        many: bool = False,
        optional: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.kind = kind
        self.many = many
        self.optional = optional
        self.choices = choices


class Verb:
    """One verb.

    :summary:   what it does, in a line
    :does:      the same in paragraphs of one line each
    :where:     module and function of the verb; the module is imported only when it is used.
                Without it, ``PLAIN`` has them
    :command:   whether a command follows
    :examples:  lines of shell, and what each does
    :raw:       whether it reads its words itself; the options are for the help only
    """

    __slots__ = (
        "command", "does", "examples", "name", "operands", "options", "raw", "summary",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        where: tuple[str, str] | None = None,
        operands: tuple[Operand, ...] = (),
        options: tuple[Option, ...] = (),
        does: tuple[str, ...] = (),
        examples: tuple[tuple[str, str], ...] = (),
        command: bool = False,
        raw: bool = False,
    ) -> None:
        self.name = name
        self.summary = summary
        self.where = where or PLAIN[name]
        self.operands = operands
        self.options = (*options, HELP)
        self.does = does
        self.examples = examples
        self.command = command
        self.raw = raw

    @property
    def usage(self) -> str:
        """The usage line."""
        words = ["semlock", self.name]
        if len(self.options) > 1:
            words.append("[OPTION...]")
        for operand in self.operands:
            shown = operand.name + "..." * operand.many
            words.append(f"[{shown}]" if operand.optional else shown)
        if self.command:
            words.append("-- COMMAND [ARGUMENT...]")
        return " ".join(words)
