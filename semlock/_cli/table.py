"""The table of verbs and options: what the command takes, and what it means.

Nothing is imported here but the package's own constants, because every start reads it.
"""

from __future__ import annotations

from semlock import systems

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

# The verbs whose answer is what they print; that of the others is the exit code.
ANSWERED_BY_OUTPUT = (
    "list", "doctor", "watch", "timeline", "completion", "help", "version",
)  # fmt: skip

# What a name on the command line stands for, which is what completion offers.
FILE = "file"
DIRECTORY = "directory"
COMMAND = "command"
WORD = "word"

DURABILITIES = ("full", "data", "none")
COLORS = ("auto", "always", "never")
SELF = "self"
CHILD = "child"
FOLLOWED = (SELF, CHILD)
SHELLS = ("bash", "zsh", "fish")

# What a task lock's owner may be, and why such a lock may be taken from its holder.
ENVIRONMENTS = ("local", "ci", "cloud", "container")
PURPOSES = ("interactive", "automated", "emergency")
REASONS = ("SAME_USER", "HIGHER_PRIVILEGE", "EMERGENCY_OVERRIDE")

# The lock systems; the first one reads whatever it recognises.
AUTO = "auto"
OWN = "semlock"
DIALECTS = (AUTO, *systems.NAMES)


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
        """The path of a verb that takes one."""
        return self.locks[0]


class Option:
    """One option.

    :words:    how it is written, the short form first
    :meaning:  what it does, for the help; without a capital and a full stop
    :takes:    the name of its value in the help; ``None`` for a switch
    :read:     makes a value of the text, or raises ``ValueError`` with the reason
    :choices:  the texts it may have; with ``read`` the usual ones, and that tells which others
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


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Read a duration: seconds, or numbers with units, such as 500ms, 1m or 1h30m."""
    import re  # noqa: PLC0415 - only for an option that has a duration

    parts = re.findall(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|min|[smhd])", text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise ValueError(f"{text!r} is not a duration: write seconds, or 500ms, 30s, 1m, 2h")
    return value


def _above_zero(text: str) -> float:
    seconds = duration(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{text} is not a duration above 0")
    return seconds


def _reasons(text: str) -> tuple[str, ...]:
    named = tuple(name for name in text.upper().replace("-", "_").split(",") if name)
    unknown = [name for name in named if name not in REASONS]
    if unknown or not named:
        raise ValueError(f"{text!r} names none of {', '.join(REASONS)}")
    return named


def _timeout(text: str) -> float | None:
    return None if text == "forever" else duration(text)


def _interval(text: str) -> float:
    seconds = duration(text)
    if seconds <= 0:
        raise ValueError(f"{text} is not a duration above 0")
    return seconds


def is_like_a_value(word: str) -> bool:
    """Tell whether a word looks like an option's value and hardly like a lock's name."""
    if not word[:1].isdigit() and word[:1] != ".":  # which is nearly every name
        return word == "forever"
    try:
        duration(word)
    except ValueError:
        return False
    return True


def _whole(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
        if not lowest <= value <= highest:
            raise ValueError(f"{text!r} is no {what} ({lowest} to {highest})")
        return value

    return read


def _system(text: str) -> str:
    if text not in DIALECTS:  # what is not of this package is imported to be known
        try:
            systems.find(text)
        except ImportError as error:
            raise ValueError(f"there is no lock system {text!r}: {error}") from None
    return text


HELP = Option("-h", "--help", meaning="show this help")
JSON = Option("-j", "--json", meaning="write JSON, one object on a line")
QUIET = Option("-q", "--quiet", meaning="say nothing but errors")
TAG = Option("-m", "--tag", takes="TEXT", meaning="say in the lock what it is held for")
TIMEOUT = Option(
    "-t", "-w", "--wait", "--timeout", takes="SECONDS", read=_timeout,
    meaning="wait so long at most: seconds, or 500ms, 1m, 2h; 0 tries once (forever)",
)  # fmt: skip
NO_WAIT = Option(
    "-n", "--no-wait", name="timeout", sets=0.0, meaning="don't wait: the same as --timeout 0"
)
DURABILITY = Option(
    "--durability", takes="HOW", choices=DURABILITIES,
    meaning="what is on the disk before the lock is visible (full)",
)  # fmt: skip
DIALECT = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS, read=_system,
    meaning="whose lock file it is (semlock)",
)  # fmt: skip
DIALECT_SEEN = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS, read=_system,
    meaning="by whose rules to look (auto: read what is recognised, by semlock's rules)",
)  # fmt: skip
OWNER_PID = Option(
    "--owner-pid", takes="PID", read=_whole(1, 2**31 - 1, "process number"),
    meaning="the process whose lock it is (the shell or program that semlock is called from)",
)  # fmt: skip
STALE = Option(
    "--stale", takes="SECONDS", read=duration,
    meaning="the age from which a lock may be taken, for systems that go by age; 0: never",
)  # fmt: skip
OWNER = Option("--owner", takes="OWNER", meaning="of a task lock: whose it is, in words")
ALLOW = Option(
    "--allow", takes="REASON", read=_reasons, choices=REASONS,
    meaning="of a task lock: take it from its holder for this reason, if the decision tree has "
    "it; several with commas between them",
)  # fmt: skip
OWNED = (
    OWNER,
    Option("--user", takes="USER", meaning="of a task lock: it is this user's"),
    Option("--session", takes="ID", meaning="of a task lock: in this session of the user"),
    Option(
        "--token-file", takes="FILE",
        meaning="of a task lock: it is whose token is in the file; the record has a digest of it",
    ),
    Option(
        "--ttl", takes="SECONDS", read=_above_zero,
        meaning="of a task lock: for how long it is held without a refresh",
    ),
    Option(
        "--environment", takes="WHERE", choices=ENVIRONMENTS,
        meaning="of a task lock: where its owner runs (found out)",
    ),
    Option(
        "--purpose", takes="WHY", choices=PURPOSES, meaning="of a task lock: what it is for"
    ),
)  # fmt: skip
AUTO_REFRESH = Option(
    "--auto-refresh", name="refreshes",
    meaning="refresh a lock that goes by age while the command runs, which is the default",
)  # fmt: skip
NO_AUTO_REFRESH = Option(
    "--no-auto-refresh", name="refreshes", sets=False,
    meaning="don't: others may take it when its time is over, though the command runs",
)  # fmt: skip
VERBOSE = Option("-v", "--verbose", meaning="all that is known, in lines")
PORCELAIN = Option(
    "--porcelain", meaning="lines for programs that read sema's format; they stay as they are"
)
COLOR = Option(
    "--color", takes="WHEN", choices=COLORS,
    meaning="colours: on a terminal (auto, and never if NO_COLOR is set), or as said",
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
            TAG,
            Option("-s", "--shared", meaning="share the lock with others who share it"),
            Option(
                "--slots", takes="N", read=_whole(1, 1_000_000, "number of slots"),
                meaning="take one of N places: N commands may run at a time",
            ),
            Option("--fair", meaning="strict order: never before a waiter that asked earlier"),
            DURABILITY,
            DIALECT,
            STALE,
            *OWNED,
            ALLOW,
            AUTO_REFRESH,
            NO_AUTO_REFRESH,
            Option(
                "-E", "--on-conflict-exit", takes="N", read=_whole(0, 255, "exit code"),
                meaning="the exit code when the lock can't be acquired (1)",
            ),
            Option(
                "--follow", takes="PROCESS", choices=FOLLOWED,
                meaning="what the lock ends with if semlock is killed: the command (child, the "
                "default) or semlock (self, the default on Windows)",
            ),
            Option("-j", "--json", meaning="write JSON to standard error, one object on a line"),
            QUIET,
        ),
        does=(
            ("Takes all the locks or none, runs the command, releases, and exits with the "
            "command's exit code, or with 128 and the number of the signal that ended it."),
            "Without -- the first word is the lock and the command begins behind it.",
            ("Signals are passed on to the command. Ctrl-C reaches it from the terminal anyway, "
            "and it decides what that means. A signal that the system refuses to pass on, because "
            "the command runs as another user, is told once, and changes nothing."),
            ("The lock is the command's, whose process stands in it and inherits a descriptor of "
            "the lock file: it ends when that process has ended, also if semlock is killed "
            "before. With --follow self the lock is semlock's own, and ends with semlock if that "
            "is killed first; on Windows it is always so."),
            ("What the command leaves running in the background holds nothing, unless semlock was "
            "killed: then it holds the lock until it ends or closes the descriptor, as with "
            "flock(1). A command that closes it (sudo, daemons) keeps the lock too, but if "
            "semlock is killed, other containers can't see that and may take it."),
            ("A wait that lasts is reported on standard error: after half a second on a terminal, "
            "in a line that is redrawn, and after some seconds elsewhere."),
        ),
        examples=(
            ("semlock run build.lock -- make all", "hold the lock while make runs"),
            ("semlock run -w 1m -m nightly db.lock -- pg_dump mydb", "wait for a minute at most"),
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
        options=(TAG, OWNER_PID, DURABILITY, DIALECT, STALE, *OWNED, ALLOW, JSON, QUIET),
        does=(
            ("The lock outlives this command. It belongs to the owner: it ends with `semlock "
            "release`, or when the owner ends, after which it may be taken at once."),
            ("The owner is the process that called semlock. One that only waits for semlock and "
            "ends then is passed over: timeout, sudo and the like, `sh -c 'semlock try L'`, and a "
            "shell's copy of itself for $(...) or a part of a pipeline that the shell waits for. "
            "What it doesn't wait for (a job, a process substitution) is an owner of its own. "
            "Where nothing lasts (cron, ssh, make, a container's first process), or it can't be "
            "known whether the shell waits, the lock is refused: "
            "name the owner with --owner-pid, or use `semlock run`. On a terminal and with "
            "--json it says for which process the lock was taken."),
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
        options=(
            TIMEOUT, NO_WAIT, TAG, OWNER_PID, DURABILITY, DIALECT, STALE, *OWNED, ALLOW, JSON,
            QUIET,
        ),
        does=(
            "As `semlock try`, but it waits.",
            ("In a Makefile each line has a shell of its own, whose locks end with it: write "
            "the recipe in one line of several commands, or use `semlock run`."),
        ),
        examples=(
            ('semlock acquire -t 30 deploy.lock -m "deploy by $USER" || exit 1', "in a script"),
        ),
    ),
    Verb(
        "reclaim",
        "take a task lock for the calling shell, also from a holder",
        where=("holding", "reclaim"),
        operands=(LOCK,),
        options=(
            ALLOW,
            Option(
                "-f", "--force",
                meaning="take it if its time is over or its holder is dead, which is done anyway",
            ),
            Option(
                "--emergency",
                meaning="the same as --purpose emergency --allow EMERGENCY_OVERRIDE",
            ),
            Option(
                "-t", "-w", "--wait", "--timeout", takes="SECONDS", read=_timeout, name="patience",
                meaning="wait so long at most for a reason: seconds, 500ms or forever (0: once)",
            ),
            TAG,
            OWNER_PID,
            DURABILITY,
            *OWNED,
            JSON,
            QUIET,
        ),
        does=(
            ("As `semlock acquire --dialect task`, but it also takes the lock from a holder, for "
            "a reason. Without --allow there are two: the time of the lock is over, or its holder "
            "is proven dead. The others rob a holder that lives, so each must be allowed by name, "
            "and counts only if the task lock's decision tree has it for the owner. Exits with 1 "
            "if there is no reason."),
            ("Each reclaim, and each that is refused, is a line in .lock_audit.log beside the "
            "lock."),
        ),
        examples=(
            ("semlock reclaim --allow SAME_USER t.lock && { work; semlock release t.lock; }",
             "from one's own other session"),
            ("semlock reclaim --emergency t.lock && { work; semlock release t.lock; }",
             "from any holder, for 5 minutes"),
        ),
    ),
    Verb(
        "release",
        "release a lock that try or acquire took",
        where=("holding", "release"),
        operands=(LOCK,),
        options=(
            OWNER_PID,
            Option("-f", "--force", meaning="release it even if another process holds it"),
            DIALECT_SEEN,
            JSON,
            QUIET,
        ),
        does=(
            ("Exits with 1 if it is not the owner's lock, which is left alone. The owner is found "
            "as by `semlock try`."),
        ),
        examples=(("semlock release job.lock", "at the end of the script"),),
    ),
    Verb(
        "refresh",
        "write the present time into a lock that try or acquire took",
        where=("holding", "refresh"),
        operands=(LOCK,),
        options=(OWNER_PID, DIALECT_SEEN, JSON, QUIET),
        does=(
            ("A sign of life for programs that judge by age. Exits with 1 if the owner no longer "
            "holds the lock."),
        ),
        examples=(("semlock refresh job.lock || exit 1", "in a long loop of a script"),),
    ),
    Verb(
        "status",
        "say who holds a lock; exit 1 if it is held",
        where=("looking", "status"),
        operands=(LOCK,),
        options=(VERBOSE, PORCELAIN, COLOR, DIALECT_SEEN, STALE, JSON, QUIET),
        does=(
            ("Five lines: the state, the holder, why it holds the lock, since when, and how it is "
            "known whether the holder lives. --verbose adds the rest."),
            ("--porcelain writes lines for programs instead, those of sema's format first: locked, "
            "pid, timestamp, tag. So does --dialect sema."),
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
        options=(TIMEOUT, NO_WAIT, DIALECT_SEEN, STALE, JSON, QUIET),
        does=("A lock whose holder is dead counts as free.",),
        examples=(("semlock wait -t 300 build.lock && ls dist", "until the build is done"),),
    ),
    Verb(
        "list",
        "list locks",
        where=("looking", "list_locks"),
        operands=(Operand("PATH", optional=True, many=True),),
        options=(
            Option("-a", "--all", meaning="files too that are no record and not named *.lock"),
            COLOR,
            DIALECT_SEEN,
            JSON,
        ),
        does=(
            ("A PATH is a directory, a lock file, or a pattern with * and ?; without one it is the "
            "current directory. A file is listed if it has a record that is recognised, or is "
            "named *.lock. On a terminal each line is cut to its width."),
        ),
        examples=(
            ("semlock list /run/lock", "who holds what there"),
            ("semlock list 'build/*/cache'", "in several directories"),
        ),
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
            STALE,
            JSON,
            QUIET,
        ),
        does=(
            ("First a dry run: says what it would remove and why. Then it asks, if it has a "
            "terminal; without one it removes nothing unless told so with --yes."),
            ("Only what is proven dead goes. With --dialect it is what that lock system's rules "
            "permit, which may go by age. In either case a file goes only if its name is one that "
            "the system gives to locks, and its content is, byte for byte, one whole record."),
            ("Of a LOCK it is that file, its queue, its readers, and what semlock keeps beside it. "
            "A DIRECTORY that does not exist is an error. What could not be removed is said, and "
            "the exit code is 3 then (1 if it is only in use at the moment)."),
        ),
        examples=(
            ("semlock clean /run/lock", "what would go, and why"),
            ("semlock clean -y /run/lock", "remove it, for instance from cron"),
        ),
    ),
    Verb(
        "break",
        "remove a lock from its holder",
        where=("tidying", "break_lock"),
        operands=(LOCK,),
        options=(
            Option("-y", "--yes", meaning="don't ask"),
            DIALECT_SEEN,
            JSON,
            QUIET,
        ),
        does=(
            ("Shows who holds it and how it is known whether the holder lives, and asks. Only the "
            "lock that was shown is removed: if it changes hands meanwhile, nothing is done. A "
            "living holder learns of it only at its next check, refresh or release."),
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
                "--interval", takes="SECONDS", read=_interval,
                meaning="look so often: seconds, or 500ms, 1m (1)",
            ),
            COLOR,
            DIALECT_SEEN,
            JSON,
        ),
        does=(
            ("On a terminal q ends it, arrows, PageUp, PageDown, Home and End choose a lock, / "
            "filters, s sorts, i shows all that is known about a lock, b removes it after a "
            "question, and ? shows the keys. Without a terminal it writes the table once, as wide "
            "as COLUMNS says, or 80."),
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
                "-o", "--output", takes="FILE",
                meaning="the picture: .svg, .html or .json; never the trace itself",
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
            ("semlock timeline t.jsonl -o t.html", "holders and waiters"),
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
        "show the help of a verb or a topic",
        where=("helping", "show"),
        operands=(Operand("VERB|TOPIC", WORD, optional=True),),
        does=("Topics: topics, exit-codes, environment, record.",),
        examples=(("semlock help run", ""), ("semlock help topics", "what else there is")),
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
