"""The table of verbs, which the parser, the help, the completion and the documentation read."""

from __future__ import annotations

from semlock._cli import FOLLOWED, SHELLS
from semlock._cli.flock_verb import FLOCK
from semlock._cli.options import (
    ALLOW,
    AUTO_REFRESH,
    COLOR,
    DIALECT,
    DIALECT_SEEN,
    DRY_RUN,
    DURABILITY,
    JSON,
    KERNEL,
    MAKE_DIRS,
    NO_AUTO_REFRESH,
    NO_WAIT,
    ON_LOST,
    OWNED,
    OWNER_PID,
    PATIENCE,
    PORCELAIN,
    QUIET,
    STALE,
    TAG,
    TIMEOUT,
    VERBOSE,
    positive_duration,
    whole,
)
from semlock._cli.verbs import DIRECTORY, HELP, WORD, Operand, Option, Verb

LOCK = Operand("LOCK")

VERBS: tuple[Verb, ...] = (
    Verb(
        "run",
        "hold locks while a command runs",
        operands=(Operand("LOCK", many=True),),
        command=True,
        options=(
            TIMEOUT,
            NO_WAIT,
            TAG,
            Option("-s", "--shared", meaning="share the lock with other commands that share it"),
            Option(
                "--slots", takes="N", read=whole(1, 1_000_000, "number of slots"),
                meaning="take one of N places: N commands may run at a time",
            ),
            Option("--fair", meaning="strict order: never before a waiter that asked earlier"),
            DURABILITY, MAKE_DIRS, KERNEL, DIALECT, STALE,
            *OWNED,
            ALLOW,
            AUTO_REFRESH,
            NO_AUTO_REFRESH,
            Option(
                "-E", "--on-conflict-exit", takes="N", read=whole(0, 255, "exit code"),
                meaning="the exit code when the lock can't be acquired (1)",
            ),
            Option(
                "--follow", takes="PROCESS", choices=FOLLOWED,
                meaning="what the lock ends with if semlock is killed: the command (child, the "
                "default) or semlock (self, the default on Windows)",
            ),
            ON_LOST,
            Option("-j", "--json", meaning="write JSON to standard error, one object on a line"),
            QUIET,
        ),
        does=(
            ("Takes all the locks or none, runs the command, releases, and exits with the "
            "command's exit code, or with 128 and the number of the signal that ended it."),
            "Without -- the first word is the lock and the command begins behind it.",
            ("Signals are passed on to the command. Ctrl-C reaches the command from the terminal "
            "anyway, and the command decides what to do. If the system refuses to pass a signal "
            "on, because the command runs as another user, semlock says so once and goes on."),
            ("The lock belongs to the command: the record names the command's process, and that "
            "process inherits a descriptor of the lock file. The lock ends when the process has "
            "ended, also if semlock is killed before. With --follow self the lock belongs to "
            "semlock, and ends if semlock is killed; on Windows it is always so."),
            ("Background processes of the command do not hold the lock, unless semlock was "
            "killed: then they hold it until they end or close the descriptor, as with flock(1). "
            "A command that closes the descriptor (sudo, daemons) keeps the lock too, but once "
            "semlock was killed, other containers can't see that and may take the lock."),
            ("A LOCK may be one on an engine, such as redis://HOST/NAME or "
            "postgresql://HOST/DATABASE/NAME; see: semlock help engines."),
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
    FLOCK,
    Verb(
        "try",
        "take a lock for the calling shell, if it is free",
        operands=(LOCK,),
        options=(
            TAG, OWNER_PID, DURABILITY, MAKE_DIRS, DIALECT, STALE, *OWNED, ALLOW, JSON, QUIET,
        ),
        does=(
            ("The lock outlives this command. It belongs to the owner: it ends with `semlock "
            "release`, or when the owner ends, after which it may be taken at once."),
            ("The owner is the process that called semlock. One that only waits for semlock and "
            "ends then is passed over: timeout, sudo and the like, `sh -c 'semlock try L'`, and a "
            "shell's copy of itself for $(...) or a part of a pipeline that the shell waits for. "
            "What it doesn't wait for (a job, a process substitution) is an owner of its own. "
            "Where no calling process lasts (cron, ssh, make, a container's first process), or "
            "semlock can't know whether the shell waits, the lock is refused: "
            "name the owner with --owner-pid, or use `semlock run`. On a terminal and with "
            "--json semlock says for which process the lock was taken."),
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
            TIMEOUT, NO_WAIT, TAG, OWNER_PID, DURABILITY, MAKE_DIRS, DIALECT, STALE, *OWNED,
            ALLOW, JSON, QUIET,
        ),
        does=(
            "As `semlock try`, but it waits.",
            ("In a Makefile each line has a shell of its own, and a lock ends with its shell: "
            "write the recipe in one line of several commands, or use `semlock run`."),
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
            PATIENCE,
            TAG,
            OWNER_PID,
            DURABILITY,
            MAKE_DIRS,
            Option("--dialect", takes="task", choices=("task",), meaning="the lock system"),
            *OWNED,
            JSON,
            QUIET,
        ),
        does=(
            ("As `semlock acquire --dialect task`, but it also takes the lock from a holder, for "
            "a reason. Without --allow there are two: the time of the lock is over, or its holder "
            "is proven dead. The other reasons take the lock from a holder that lives, so each "
            "must be allowed by name, and counts only if the task lock's decision tree has it for "
            "the owner. Exits with 1 if there is no reason."),
            ("Each reclaim and each refused reclaim is a line in .lock_audit.log beside the "
            "lock."),
        ),
        examples=(
            ("semlock reclaim --allow SAME_USER t.lock && { work; semlock release t.lock; }",
             "from another session of the same user"),
            ("semlock reclaim --emergency t.lock && { work; semlock release t.lock; }",
             "from any holder, for 5 minutes"),
        ),
    ),
    Verb(
        "release",
        "release a lock that try or acquire took",
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
        operands=(LOCK,),
        options=(VERBOSE, PORCELAIN, COLOR, KERNEL, DIALECT_SEEN, STALE, JSON, QUIET),
        does=(
            ("Five lines: the state, the holder, why it holds the lock, since when, and how it is "
            "known whether the holder lives. --verbose adds the rest. Of readers it shows one."),
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
        options=(TIMEOUT, NO_WAIT, KERNEL, DIALECT_SEEN, STALE, JSON, QUIET),
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
            COLOR, KERNEL, DIALECT_SEEN, JSON,
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
            "With --yes a file stays that has neither a lock's name nor a lock's content.",
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
        "say what is guaranteed in a directory, or on an engine",
        where=("doctor", "doctor"),
        operands=(Operand("DIRECTORY", DIRECTORY, optional=True),),
        options=(JSON,),
        does=(
            ("Tries everything that locks need, in the directory itself, and says what works "
            "and what that means. Of an engine it says how the server is set up. Exits with 3 if "
            "locks can't be relied on there, or if there is no connection."),
        ),
        examples=(
            ("semlock doctor /mnt/shared", "before relying on a network share"),
            ("semlock doctor redis://10.0.0.5", "before relying on a server"),
        ),
    ),
    Verb(
        "watch",
        "show the locks in a directory, and go on doing so",
        where=("seeing", "watch"),
        operands=(Operand("DIRECTORY", DIRECTORY, optional=True),),
        options=(
            Option("--once", meaning="write the table once"),
            Option(
                "--interval", takes="SECONDS", read=positive_duration,
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
        does=("Topics: topics, exit-codes, environment, engines, record.",),
        examples=(("semlock help run", ""), ("semlock help topics", "what else there is")),
    ),
)  # fmt: skip

# What can stand in the place of a verb.
GLOBAL = (HELP, Option("--version", meaning="show the version"))


def find(name: str) -> Verb | None:
    """Find a verb by its name."""
    return next((verb for verb in VERBS if verb.name == name), None)
