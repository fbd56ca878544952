"""The table of verbs and options: what the command takes, and what it means.

Nothing is imported here but the package's own constants, because every start reads it.
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

# What a name on the command line stands for, which is what completion offers.
FILE = "file"
DIRECTORY = "directory"
COMMAND = "command"
WORD = "word"

DURABILITIES = ("full", "data", "none")
FOLLOWED = ("self", "child")
SHELLS = ("bash", "zsh", "fish")

# The lock systems; the first one reads whatever it recognises.
AUTO = "auto"
OWN = "semlock"
DIALECTS = (AUTO, OWN, "sema", "semats", "feature", "sidecar", "task")


class Options:
    """What one call asks for.  What its verb doesn't have is as it is here."""

    verb: str = ""
    locks: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    word: str = ""
    timeout: float | None = None
    tag: str | None = None
    shared: bool = False
    slots: int | None = None
    fair: bool = False
    durability: str = "full"
    dialect: str | None = None
    on_conflict_exit: int = HELD
    follow: str = "self"
    owner_pid: int | None = None
    force: bool = False
    yes: bool = False
    dry_run: bool = False
    all: bool = False
    json: bool = False
    quiet: bool = False
    output: str | None = None
    once: bool = False
    interval: float = 1.0

    @property
    def lock(self) -> str:
        """The path of a verb that takes one."""
        return self.locks[0]


class Option:
    """One option.

    :words:    how it is written, the short form first
    :meaning:  what it does, for the help; without a capital and a full stop
    :takes:    the name of its value in the help; ``None`` for a switch
    :read:     makes a value of the text, or raises ``ValueError`` with the reason
    :choices:  the texts it may have
    :name:     the attribute of ``Options`` that it sets; by default the long word
    :sets:     what a switch sets
    """

    __slots__ = ("choices", "meaning", "name", "read", "sets", "takes", "words")

    def __init__(
        self,
        *words: str,
        meaning: str,
        takes: str | None = None,
        read: Callable[[str], Any] = str,
        choices: tuple[str, ...] = (),
        name: str | None = None,
        sets: object = True,
    ) -> None:
        self.words = words
        self.meaning = meaning
        self.takes = takes
        self.read = read
        self.choices = choices
        self.name = name or words[-1][2:].replace("-", "_")
        self.sets = sets

    @property
    def value(self) -> str | None:
        """Say what it takes, for the help: its choices or the name of its value."""
        return "|".join(self.choices) or self.takes


class Operand:
    """What a verb takes besides options: the name for the help, and what it stands for."""

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
    :does:      the same in paragraphs, without a line break in any of them
    :where:     module and function of the verb, which are imported only when it is used
    :command:   whether a command follows
    :examples:  lines of shell, and what each does
    """

    __slots__ = (
        "command",
        "does",
        "examples",
        "name",
        "operands",
        "options",
        "summary",
        "where",
    )

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        where: tuple[str, str],
        operands: tuple[Operand, ...] = (),
        options: tuple[Option, ...] = (),
        does: tuple[str, ...] = (),
        examples: tuple[tuple[str, str], ...] = (),
        command: bool = False,
    ) -> None:
        self.name = name
        self.summary = summary
        self.where = where
        self.operands = operands
        self.options = (*options, HELP)
        self.does = does
        self.examples = examples
        self.command = command

    @property
    def usage(self) -> str:
        """Show how it is written."""
        words = ["semlock", self.name]
        if len(self.options) > 1:
            words.append("[OPTION...]")
        for operand in self.operands:
            shown = operand.name + "..." * operand.many
            words.append(f"[{shown}]" if operand.optional else shown)
        if self.command:
            words.append("-- COMMAND [ARGUMENT...]")
        return " ".join(words)


def _interval(text: str) -> float:
    seconds = _seconds(text)
    if seconds <= 0:
        raise ValueError(f"{text} is not a number of seconds above 0")
    return seconds


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise ValueError(f"{text!r} is not a number of seconds from 0 on")
    return value


def _whole(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
        if not lowest <= value <= highest:
            raise ValueError(f"{text!r} is no {what} ({lowest} to {highest})")
        return value

    return read


HELP = Option("-h", "--help", meaning="show this help")
JSON = Option("-j", "--json", meaning="write JSON, one object on a line")
QUIET = Option("-q", "--quiet", meaning="say nothing but errors")
TAG = Option("-m", "--tag", takes="TEXT", meaning="say in the lock what it is held for")
TIMEOUT = Option(
    "-t", "--timeout", takes="SECONDS", read=_seconds,
    meaning="wait so long at most; 0 tries once",
)  # fmt: skip
NO_WAIT = Option(
    "-n", "--no-wait", name="timeout", sets=0.0, meaning="don't wait: the same as --timeout 0"
)
WAIT = Option(
    "-w", "--wait", name="timeout", sets=None, meaning="wait for ever, which is the default"
)
DURABILITY = Option(
    "--durability", takes="HOW", choices=DURABILITIES,
    meaning="what is on the disk before the lock is visible (full)",
)  # fmt: skip
DIALECT = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS, meaning="whose lock file it is (semlock)"
)
DIALECT_SEEN = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS,
    meaning="by whose rules to look (auto: read what is recognised, by semlock's rules)",
)  # fmt: skip
OWNER_PID = Option(
    "--owner-pid", takes="PID", read=_whole(1, 2**31 - 1, "process number"),
    meaning="the process whose lock it is (the caller of semlock)",
)  # fmt: skip
DRY_RUN = Option("-n", "--dry-run", meaning="only say what would be removed and why")

LOCK = Operand("LOCK")

VERBS: tuple[Verb, ...] = (
    Verb(
        "run",
        "hold locks while a command runs",
        where=("running", "run"),
        operands=(Operand("LOCK", many=True),),
        command=True,
        options=(
            TIMEOUT,
            NO_WAIT,
            WAIT,
            TAG,
            Option("-s", "--shared", meaning="share the lock with others who share it"),
            Option(
                "--slots", takes="N", read=_whole(1, 1_000_000, "number of slots"),
                meaning="take one of N places: N commands may run at a time",
            ),
            Option("--fair", meaning="never go before somebody who asked earlier"),
            DURABILITY,
            DIALECT,
            Option(
                "-E", "--on-conflict-exit", takes="N", read=_whole(0, 255, "exit code"),
                meaning="the exit code when the lock is not to be had (1)",
            ),
            Option(
                "--follow", takes="WHOM", choices=FOLLOWED,
                meaning="what the lock ends with if semlock is killed: semlock (self) or the "
                "command (child)",
            ),
            Option("-j", "--json", meaning="write JSON to standard error, one object on a line"),
            QUIET,
        ),
        does=(
            ("Takes all the locks or none, runs the command, lets go, and exits with the "
            "command's exit code, or with 128 and the number of the signal that ended it."),
            "Without -- the first word is the lock and the command begins behind it.",
            ("Signals are passed on to the command. Ctrl-C reaches it from the terminal anyway, "
            "and it decides what that means."),
            ("The lock is never inherited: what the command leaves running in the background "
            "doesn't hold it. With --follow self, the default, it is semlock's own and ends "
            "when the command ends or semlock is killed, whichever comes first. With --follow "
            "child it is the command's: it stays until the command itself ends, even if semlock "
            "is killed before."),
            ("While it waits it says for whom on standard error; on a terminal in a line that "
            "is redrawn."),
        ),
        examples=(
            ("semlock run build.lock -- make all", "hold the lock while make runs"),
            ("semlock run -t 60 -m nightly db.lock -- pg_dump mydb", "wait for a minute at most"),
            ("semlock run -n -E 0 cron.lock -- ./job", "skip this run if the last one is not done"),
            ("semlock run a.lock b.lock -- ./swap", "both locks or none"),
            ("semlock run --slots 4 encode.lock -- ./encode", "four at a time"),
        ),
    ),
    Verb(
        "try",
        "take a lock for the calling shell, if it is free",
        where=("holding", "attempt"),
        operands=(LOCK,),
        options=(TAG, OWNER_PID, DURABILITY, DIALECT, JSON, QUIET),
        does=(
            ("The lock outlives this command. It belongs to the owner, by default the process "
            "that called semlock: it ends with `semlock release`, or when the owner ends, after "
            "which whoever wants it next may take it."),
        ),
        examples=(
            ("semlock try job.lock && { work; semlock release job.lock; }", "in a script"),
        ),
    ),
    Verb(
        "acquire",
        "take a lock for the calling shell, waiting for it",
        where=("holding", "acquire"),
        operands=(LOCK,),
        options=(TIMEOUT, NO_WAIT, WAIT, TAG, OWNER_PID, DURABILITY, DIALECT, JSON, QUIET),
        does=(
            "As `semlock try`, but it waits, and says for whom.",
            ("In a Makefile each line has a shell of its own, whose locks end with it: write "
            "the recipe in one line, or use `semlock run`."),
        ),
        examples=(
            ('semlock acquire -t 30 deploy.lock -m "deploy by $USER" || exit 1', "in a script"),
        ),
    ),
    Verb(
        "release",
        "let go of a lock that try or acquire took",
        where=("holding", "release"),
        operands=(LOCK,),
        options=(
            OWNER_PID,
            Option("-f", "--force", meaning="whoever holds it"),
            DIALECT_SEEN,
            JSON,
            QUIET,
        ),
        does=("Exits with 1 if it is not the owner's lock, which is left alone.",),
        examples=(("semlock release job.lock", "at the end of the script"),),
    ),
    Verb(
        "refresh",
        "write the present time into a lock that try or acquire took",
        where=("holding", "refresh"),
        operands=(LOCK,),
        options=(OWNER_PID, DIALECT_SEEN, JSON, QUIET),
        does=(
            ("A sign of life for programs that judge by age. Exits with 1 if the lock is not "
            "the owner's any more."),
        ),
        examples=(("semlock refresh job.lock || exit 1", "in a long loop of a script"),),
    ),
    Verb(
        "status",
        "say who holds a lock; exit 1 if anybody does",
        where=("looking", "status"),
        operands=(LOCK,),
        options=(DIALECT_SEEN, JSON, QUIET),
        does=(
            ("The first lines are those of sema: locked, pid, timestamp, tag. Then what is known "
            "about the holder: whether it lives and how that is known, since when it holds, "
            "where it runs and what it is."),
        ),
        examples=(
            ("semlock status job.lock", "for people"),
            ("semlock status --json job.lock | jq .pid", "for programs"),
        ),
    ),
    Verb(
        "wait",
        "wait until a lock is free, without taking it",
        where=("looking", "wait"),
        operands=(LOCK,),
        options=(TIMEOUT, NO_WAIT, WAIT, DIALECT_SEEN, JSON, QUIET),
        does=("A lock whose holder is dead counts as free.",),
        examples=(("semlock wait -t 300 build.lock && ls dist", "until the build is done"),),
    ),
    Verb(
        "list",
        "list the locks in a directory",
        where=("looking", "list_locks"),
        operands=(Operand("DIRECTORY", DIRECTORY, optional=True),),
        options=(
            Option("-a", "--all", meaning="files too that are no record and not named *.lock"),
            DIALECT_SEEN,
            JSON,
        ),
        does=("A file is listed if it has a record that is recognised, or is named *.lock.",),
        examples=(("semlock list /run/lock", "who holds what there"),),
    ),
    Verb(
        "clean",
        "remove what dead processes have left",
        where=("tidying", "clean"),
        operands=(Operand("DIRECTORY|LOCK"),),
        options=(
            Option("-y", "--yes", meaning="remove it, without a question"),
            DRY_RUN,
            DIALECT_SEEN,
            JSON,
            QUIET,
        ),
        does=(
            ("First a dry run: says what it would remove and why. Then it asks, if it has a "
            "terminal; without one it removes nothing unless told so with --yes."),
            ("Only what is proven dead goes. With --dialect it is what that lock system's rules "
            "permit, which may go by age."),
        ),
        examples=(
            ("semlock clean /run/lock", "what would go, and why"),
            ("semlock clean -y /run/lock", "remove it, for instance from cron"),
        ),
    ),
    Verb(
        "break",
        "remove a lock whoever holds it",
        where=("tidying", "break_lock"),
        operands=(LOCK,),
        options=(
            Option("-y", "--yes", meaning="don't ask"),
            DIALECT_SEEN,
            JSON,
            QUIET,
        ),
        does=(
            ("Shows who holds it and what speaks for their being alive or dead, and asks. Only "
            "the lock that was shown is removed: if it changes hands meanwhile, nothing is done. "
            "A holder that lives goes on believing that it holds the lock until it looks."),
        ),
        examples=(("semlock break job.lock", "after `semlock status job.lock`"),),
    ),
    Verb(
        "migrate",
        "give an old task lock the enhanced form",
        where=("tidying", "migrate"),
        operands=(LOCK,),
        options=(JSON, QUIET),
        does=("Its holder goes on holding it.",),
        examples=(("semlock migrate .task.lock", "when no old program is left"),),
    ),
    Verb(
        "doctor",
        "say what is guaranteed in a directory",
        where=("doctor", "doctor"),
        operands=(Operand("DIRECTORY", DIRECTORY, optional=True),),
        options=(JSON,),
        does=(
            ("Tries everything that locks need, in the directory itself, and says what works "
            "and what that means. Exits with 3 if locks can't be relied on there."),
        ),
        examples=(("semlock doctor /mnt/shared", "before relying on a network share"),),
    ),
    Verb(
        "watch",
        "show the locks in a directory, and go on doing so",
        where=("seeing", "watch"),
        operands=(Operand("DIRECTORY", DIRECTORY, optional=True),),
        options=(
            Option("--once", meaning="write the table once"),
            Option(
                "--interval", takes="SECONDS", read=_interval, meaning="look so often (1)"
            ),
            DIALECT_SEEN,
            JSON,
        ),
        does=(
            (
                "On a terminal q ends it, the arrows choose a lock, i shows all that is known "
                "about it, and b removes it after a question. Without a terminal it writes the "
                "table once."
            ),
        ),
        examples=(("semlock watch /run/lock", "who holds what, live"),),
    ),
    Verb(
        "timeline",
        "make a picture of a trace",
        where=("seeing", "timeline"),
        operands=(Operand("TRACE"),),
        options=(
            Option(
                "-o", "--output", takes="FILE", meaning="the picture: .svg, .html or .json"
            ),
            JSON,
        ),
        does=(
            (
                "The trace is what SEMLOCK_TRACE=FILE makes any program write. Names the longest "
                "waits and the convoys; .json is for Perfetto."
            ),
        ),
        examples=(
            ("SEMLOCK_TRACE=t.jsonl make", "write the trace"),
            ("semlock timeline t.jsonl -o t.html", "who waited for whom"),
        ),
    ),
    Verb(
        "completion",
        "print the completion file of a shell",
        where=("completion", "completion"),
        operands=(Operand("SHELL", WORD, choices=SHELLS),),
        examples=(
            ('eval "$(semlock completion bash)"', "in ~/.bashrc"),
            ("semlock completion zsh > ~/.zfunc/_semlock", "a directory of $fpath"),
            ("semlock completion fish > ~/.config/fish/completions/semlock.fish", ""),
        ),
    ),
    Verb(
        "help",
        "show the help of a verb",
        where=("helping", "show"),
        operands=(Operand("VERB", WORD, optional=True),),
        examples=(("semlock help run", ""),),
    ),
)  # fmt: skip

# What can stand in the place of a verb.
GLOBAL = (HELP, Option("--version", meaning="show the version"))


def find(name: str) -> Verb | None:
    """Find a verb by its name."""
    for verb in VERBS:
        if verb.name == name:
            return verb
    return None


if TYPE_CHECKING:
    # The types of the modules' functions, which are looked up by name.
    Action = Callable[[Options], int]
