"""The verb ``flock``, whose words are those of flock(1) and are read by ``flocking``."""

from __future__ import annotations

from semlock._cli.verbs import Operand, Option, Verb

FLOCK = Verb(
    "flock",
    "the command flock(1), with semlock's waiting",
    where=("flocking", "flock"),
    operands=(Operand("FILE|DIRECTORY|NUMBER"),),
    raw=True,
    options=(
        Option("-s", "--shared", meaning="a lock that is shared with other readers"),
        Option("-x", "-e", "--exclusive", meaning="a lock of one holder, which is the default"),
        Option("-u", "--unlock", meaning="unlock the open file"),
        Option("-n", "--nb", "--nonblock", meaning="don't wait"),
        Option(
            "-w", "--wait", "--timeout", takes="SECONDS",
            meaning="wait so long at most; 0 is the same as -n",
        ),
        Option(
            "-E", "--conflict-exit-code", takes="N",
            meaning="the exit code when the lock can't be acquired (1)",
        ),
        Option("-o", "--close", meaning="the command doesn't inherit the descriptor of the lock"),
        Option("-c", "--command", meaning="behind the file: run one line by the shell"),
        Option("-F", "--no-fork", meaning="become the command, instead of waiting for it"),
        Option("--verbose", meaning="say how long it took, or who holds it"),
        Option("-V", "--version", meaning="show the version"),
    ),
    does=(
        ("As flock(1) of util-linux: `flock [OPTION...] FILE COMMAND [ARGUMENT...]`, `flock "
        "[OPTION...] FILE -c LINE`, and `flock [OPTION...] NUMBER` for a descriptor that the shell "
        "has open. Options, exit codes and the order of arguments are the same, so a script moves "
        "by writing semlock before it."),
        ("Waiters of semlock are served in the order in which they came, and --verbose says who "
        "holds the lock. The other verbs lock by a file's existence; with --kernel they use the "
        "same locks as this one."),
    ),
    examples=(
        ("semlock flock -n /tmp/backup.lock ./backup", "one backup at a time"),
        ("(semlock flock -w 10 9 || exit 1; ./work) 9>/tmp/work.lock", "a part of a script"),
    ),
)  # fmt: skip
