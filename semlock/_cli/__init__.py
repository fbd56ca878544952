"""The command ``semlock``: each module here is a group of its verbs, or what they share.

``table`` says which verbs and options there are, and is the one home of that: the parser, the
help, the completions, the man page and the reference in ``docs/cli.md`` are made from it.  A
new verb is one entry there and one function that takes ``Options`` and gives an exit code.

This is what a call of the command is: its options, what they may be, its exit codes, and plain
calls.  Every start of the command loads it, so it is small and imports nothing new.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

    from semlock._cli.verbs import Verb

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
    "run": ("plain", "run"),
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


def asks_only(options: Options, *names: str) -> bool:
    """Tell whether a call is for one lock, and has no other options than these."""
    return (
        vars(options).keys() <= {"verb", "locks", "command", *names}
        and len(options.locks) == 1
        and "SEMLOCK_TRACE" not in os.environ
        and sys.platform != "win32"
    )


class UsageError(Exception):
    """A wrong call: the message, and the verb if it is known."""

    def __init__(self, message: str, verb: Verb | None = None) -> None:
        super().__init__(message)
        self.verb = verb


if TYPE_CHECKING:
    # The type of a verb's function, which is found by its name.
    Action = Callable[[Options], int]
