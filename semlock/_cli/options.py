"""The options that several verbs have, and how their values are read."""

from __future__ import annotations

from semlock import systems
from semlock._cli import AUTO, COLORS, DURABILITIES, ENVIRONMENTS, PURPOSES, REASONS
from semlock._cli.verbs import Option

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

# The lock systems; the first one recognises records of all.
DIALECTS = (AUTO, *systems.NAMES)

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


def positive_duration(text: str) -> float:
    """Read a duration that is not 0."""
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


def _wait_limit(text: str) -> float | None:
    return None if text == "forever" else duration(text)


def is_like_a_value(word: str) -> bool:
    """Tell whether a word is rather an option's value than a lock's name."""
    if not word[:1].isdigit() and word[:1] != ".":  # most names
        return word == "forever"
    try:
        duration(word)
    except ValueError:
        return False
    return True


def whole(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    """Make a reader of whole numbers within bounds."""

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
        if not lowest <= value <= highest:
            raise ValueError(f"{text!r} is no {what} ({lowest} to {highest})")
        return value

    return read


def _system(text: str) -> str:
    if text not in DIALECTS:  # the name of a module, which is imported
        try:
            systems.find(text)
        except ImportError as error:
            raise ValueError(f"there is no lock system {text!r}: {error}") from None
    return text


JSON = Option("-j", "--json", meaning="write JSON, one object on a line")
QUIET = Option("-q", "--quiet", meaning="say nothing but errors")
TAG = Option("-m", "--tag", takes="TEXT", meaning="say in the lock what it is held for")
TIMEOUT = Option(
    "-t", "-w", "--wait", "--timeout", takes="SECONDS", read=_wait_limit,
    meaning="wait so long at most: seconds, or 500ms, 1m, 2h; 0 tries once (forever)",
)  # fmt: skip
PATIENCE = Option(
    "-t", "-w", "--wait", "--timeout", takes="SECONDS", read=_wait_limit, name="patience",
    meaning="wait so long at most for a reason: seconds, 500ms or forever (0: once)",
)  # fmt: skip
NO_WAIT = Option(
    "-n", "--no-wait", name="timeout", sets=0.0, meaning="don't wait: the same as --timeout 0"
)
DURABILITY = Option(
    "--durability", takes="HOW", choices=DURABILITIES,
    meaning="what a power cut may do to the lock (safe; full for other systems than semlock)",
)  # fmt: skip
MAKE_DIRS = Option("--make-dirs", meaning="make missing directories of the lock's path")
KERNEL = Option(
    "--kernel",
    meaning="the kernel's lock on the file (flock), as flock(1) and filelock take it",
)
DIALECT = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS, read=_system,
    meaning="the lock system of the file (semlock)",
)  # fmt: skip
DIALECT_SEEN = Option(
    "--dialect", takes="SYSTEM", choices=DIALECTS, read=_system,
    meaning="the lock system by which to judge (auto: read any record, judge by semlock's rules)",
)  # fmt: skip
OWNER_PID = Option(
    "--owner-pid", takes="PID", read=whole(1, 2**31 - 1, "process number"),
    meaning="the process that owns the lock (the shell or program that called semlock)",
)  # fmt: skip
STALE = Option(
    "--stale", takes="SECONDS", read=duration,
    meaning="the age from which a lock may be taken, for systems that go by age; 0: never",
)  # fmt: skip
OWNER = Option("--owner", takes="OWNER", meaning="of a task lock: its owner, in words")
ALLOW = Option(
    "--allow", takes="REASON", read=_reasons, choices=REASONS,
    meaning="of a task lock: take it from its holder for this reason, if the decision tree has "
    "it; several with commas between them",
)  # fmt: skip
OWNED = (
    OWNER,
    Option("--user", takes="USER", meaning="of a task lock: its owner is this user"),
    Option("--session", takes="ID", meaning="of a task lock: in this session of the user"),
    Option(
        "--token-file", takes="FILE",
        meaning="of a task lock: its owner has the token in this file; the record has a digest",
    ),
    Option(
        "--ttl", takes="SECONDS", read=positive_duration,
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
ON_LOST = Option(
    "--on-lost", takes="WHAT", choices=("end", "warn"),
    meaning="what happens to the command before a lock on an engine may be another's: it is ended "
    "by TERM and then KILL (end), or goes on (warn)",
)  # fmt: skip
DRY_RUN = Option("-n", "--dry-run", meaning="only say what would be removed and why")
