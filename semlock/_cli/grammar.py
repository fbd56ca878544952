"""What the tables of the command are made of: exit codes, values, options, operands and verbs.

Every start of the command imports this module, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OK = 0
HELD = 1
USAGE = 2
BAD = 3
NOT_EXECUTABLE = 126
NOT_FOUND = 127
BY_SIGNAL = 128

EXIT_CODES = (
    (OK, "done, or the lock is free"),
    (HELD, "the lock is held, or the time was over before it was free"),
    (USAGE, "wrong usage"),
    (BAD, "the file or its directory can't be used"),
)

# Verbs whose result is their output; the result of the others is the exit code.
ANSWERED_BY_OUTPUT = (
    "list", "doctor", "watch", "timeline", "completion", "help", "version",
)  # fmt: skip

# What an operand names, for the completion.
FILE = "file"
DIRECTORY = "directory"
COMMAND = "command"
WORD = "word"

DURABILITIES = ("safe", "full", "data", "none")
COLORS = ("auto", "always", "never")
SELF = "self"
CHILD = "child"
FOLLOWED = (SELF, CHILD)
SHELLS = ("bash", "zsh", "fish")

# Values for the owner of a task lock, and reasons to take such a lock from its holder.
ENVIRONMENTS = ("local", "ci", "cloud", "container")
PURPOSES = ("interactive", "automated", "emergency")
REASONS = ("SAME_USER", "HIGHER_PRIVILEGE", "EMERGENCY_OVERRIDE")

AUTO = "auto"  # any lock system: the one that a record is recognised by
OWN = "semlock"


class Options:
    """What a call asks for, with the defaults of verbs that lack an option."""

    verb: str = ""
    locks: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    word: str = ""
    timeout: float | None = None
    tag: str | None = None
    shared: bool = False
    slots: int | None = None
    fair: bool = False
    durability: str | None = None
    make_dirs: bool = False
    dialect: str | None = None
    on_conflict_exit: int = HELD
    on_lost: str = "end"
    follow: str | None = None
    owner_pid: int | None = None
    stale: float | None = None
    refreshes: bool = True
    owner: str | None = None
    user: str | None = None
    session: str | None = None
    token_file: str | None = None
    ttl: float | None = None
    environment: str | None = None
    purpose: str | None = None
    allow: tuple[str, ...] = ()
    emergency: bool = False
    patience: float | None = 0.0
    force: bool = False
    yes: bool = False
    dry_run: bool = False
    all: bool = False
    kernel: bool = False
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    porcelain: bool = False
    color: str = "auto"
    output: str | None = None
    once: bool = False
    interval: float = 1.0

    @property
    def lock(self) -> str:
        """The path, for a verb that takes one."""
        return self.locks[0]


# The verbs that scripts call most.  A plain call of one is read without the table, and done by
# these functions without lock objects, if nothing stands in its way.
PLAIN = {
    "run": ("starting", "run"),
    "try": ("plain", "attempt"),
    "release": ("plain", "release"),
    "status": ("starting", "status"),
}


def read_plain(words: list[str]) -> Options | None:
    """Read a call without options: a verb, a lock, and for ``run`` a command.

    Every other call is for the parser, and each that the parser might read otherwise: ``None``.
    """
    if len(words) < 2:
        return None
    verb, lock, *rest = words
    # What begins with a digit or a dot may be an option's value, unless it has a slash.
    if verb not in PLAIN or lock[:1] == "-" or lock == "forever":
        return None
    if not (lock[:1].isalpha() or "/" in lock):
        return None
    if verb == "run":
        if rest[:1] == ["--"]:
            del rest[0]
        elif "--" in rest or "".join(rest[:1])[:1] == "-":
            return None
    if bool(rest) != (verb == "run"):
        return None
    options = Options()
    options.verb = verb
    options.locks = (lock,)
    if rest:
        options.command = tuple(rest)
    return options


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
        "command",
        "does",
        "examples",
        "name",
        "operands",
        "options",
        "raw",
        "summary",
        "where",
    )

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


class UsageError(Exception):
    """A wrong call: the message, and the verb if it is known."""

    def __init__(self, message: str, verb: Verb | None = None) -> None:
        super().__init__(message)
        self.verb = verb


if TYPE_CHECKING:
    # The type of a verb's function, which is found by its name.
    Action = Callable[[Options], int]
